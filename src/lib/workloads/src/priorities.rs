//! Order of the group versions in discovery, as in kube-apiserver.

use ferrokube_resource::ApiPriorityRow;

const fn row(group: &'static str, version: &'static str, place: [i64; 2]) -> ApiPriorityRow {
    ApiPriorityRow::new(group, version, place)
}

#[rustfmt::skip]
pub(crate) const PRIORITIES: &[ApiPriorityRow] = &[
    row("", "v1", [18_000, 1]),
    row("apps", "v1", [17_800, 15]),
    row("autoscaling", "v1", [17_500, 15]),
    row("autoscaling", "v2", [17_500, 30]),
    row("batch", "v1", [17_400, 15]),
    row("networking.k8s.io", "v1", [17_200, 15]),
    row("policy", "v1", [17_100, 15]),
    row("storage.k8s.io", "v1", [16_800, 15]),
    row("scheduling.k8s.io", "v1", [16_600, 15]),
    row("node.k8s.io", "v1", [16_300, 15]),
    row("discovery.k8s.io", "v1", [16_200, 15]),
    row("resource.k8s.io", "v1", [16_200, 21]),
];
