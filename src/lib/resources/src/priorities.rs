//! Places of the group versions in discovery, as in kube-apiserver.

use ferrokube_resource::ApiPriorityRow;

const fn row(group: &'static str, version: &'static str, place: [i64; 2]) -> ApiPriorityRow {
    ApiPriorityRow::new(group, version, place)
}

/// Kinds of other group versions (features) have no APIService.
#[rustfmt::skip]
pub(crate) const PRIORITIES: &[ApiPriorityRow] = &[
    row("", "v1", [18_000, 1]),
    row("events.k8s.io", "v1", [17_750, 15]),
    row("authentication.k8s.io", "v1", [17_700, 15]),
    row("authorization.k8s.io", "v1", [17_600, 15]),
    row("certificates.k8s.io", "v1", [17_300, 15]),
    row("rbac.authorization.k8s.io", "v1", [17_000, 15]),
    row("apiextensions.k8s.io", "v1", [16_700, 15]),
    row("admissionregistration.k8s.io", "v1", [16_700, 15]),
    row("admissionregistration.k8s.io", "v1beta1", [16_700, 12]),
    row("admissionregistration.k8s.io", "v1alpha1", [16_700, 9]),
    row("coordination.k8s.io", "v1", [16_500, 15]),
    row("coordination.k8s.io", "v1beta1", [16_500, 13]),
    row("coordination.k8s.io", "v1alpha2", [16_500, 12]),
    row("flowcontrol.apiserver.k8s.io", "v1", [16_100, 21]),
    row("internal.apiserver.k8s.io", "v1alpha1", [16_000, 9]),
    row("storagemigration.k8s.io", "v1beta1", [15_800, 9]),
];
