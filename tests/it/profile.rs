//! `--profile generic` serves exactly what docs/library.md lists: the resources of upstream's
//! generic sample server, and the few that are ours.

use crate::FERROKUBE;
use ferrokube_testkit::{Client, Launch};
use std::collections::BTreeSet;
use std::path::Path;

/// As kubernetes/kubernetes asserts for its sample (`test/integration/controlplane`), with all
/// versions enabled.
const SAMPLE: &[&str] = &[
    "apiservices.apiregistration.k8s.io",
    "certificatesigningrequests.certificates.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "configmaps",
    "customresourcedefinitions.apiextensions.k8s.io",
    "events",
    "events.events.k8s.io",
    "flowschemas.flowcontrol.apiserver.k8s.io",
    "leasecandidates.coordination.k8s.io",
    "leases.coordination.k8s.io",
    "localsubjectaccessreviews.authorization.k8s.io",
    "mutatingadmissionpolicies.admissionregistration.k8s.io",
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "namespaces",
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
    "resourcequotas",
    "rolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "secrets",
    "selfsubjectaccessreviews.authorization.k8s.io",
    "selfsubjectreviews.authentication.k8s.io",
    "selfsubjectrulesreviews.authorization.k8s.io",
    "serviceaccounts",
    "storageversions.internal.apiserver.k8s.io",
    "subjectaccessreviews.authorization.k8s.io",
    "tokenreviews.authentication.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
];

/// Rows of the table in docs/library.md: name, whether it is ours, whether it is served by default.
fn documented() -> Vec<(String, bool, bool)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/library.md");
    let text = std::fs::read_to_string(page).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("| resource |")).skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            (cells[0].trim_matches('`').to_owned(), cells[1] == "ours", cells[2] == "always")
        })
        .collect()
}

async fn served(admin: &Client) -> BTreeSet<String> {
    let mut paths = vec![("/api/v1".to_owned(), String::new())];
    for group in admin.get("/apis").await.unwrap().body["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let path = format!("/apis/{}", version["groupVersion"].as_str().unwrap());
            paths.push((path, format!(".{}", group["name"].as_str().unwrap())));
        }
    }
    let mut all = BTreeSet::new();
    for (path, suffix) in paths {
        let list = admin.get(&path).await.unwrap().body;
        let names = list["resources"].as_array().unwrap().iter();
        let names = names.map(|resource| resource["name"].as_str().unwrap());
        all.extend(names.filter(|name| !name.contains('/')).map(|name| format!("{name}{suffix}")));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn the_generic_profile_serves_what_is_documented() {
    let rows = documented();
    let of_sample: BTreeSet<&str> =
        rows.iter().filter(|row| !row.1).map(|row| row.0.as_str()).collect();
    assert_eq!(of_sample, SAMPLE.iter().copied().collect());
    let by_default: BTreeSet<String> =
        rows.iter().filter(|row| row.2).map(|row| row.0.clone()).collect();
    let cluster = Launch::new(FERROKUBE).flag("--profile=generic").start().unwrap();
    assert_eq!(served(&cluster.admin().unwrap()).await, by_default);
    let everything = Launch::new(FERROKUBE)
        .flag("--runtime-config=api/all=true")
        .flag("--feature-gates=FeatureAPI=true")
        .start()
        .unwrap();
    let all: BTreeSet<String> = rows.iter().map(|row| row.0.clone()).collect();
    assert_eq!(served(&everything.admin().unwrap()).await, all);
}
