//! Pins the order of the steps.

use crate::{chain, store};
use ferrokube_admission::step::FnStep;
use ferrokube_admission::{Availability, PLUGINS};
use std::sync::Arc;

#[tokio::test]
async fn built_in_steps_come_in_this_order() {
    let store = store();
    let escalation = FnStep::new("RBACEscalation", |_, _| Ok(()));
    let chain = chain(&store).with(Arc::new(escalation));
    let names: Vec<&str> = chain.names().collect();
    let expected = [
        "RBACEscalation",
        "NamespaceLifecycle",
        "CertificateApproval",
        "CertificateSigning",
        "CertificateSubjectRestriction",
        "ResourceQuota",
    ];
    assert_eq!(names, expected);
}

#[test]
fn remote_steps_come_late_and_quota_last() {
    let place = |name: &str| PLUGINS.iter().position(|known| known.name == name).unwrap();
    let last = PLUGINS.iter().rfind(|known| known.availability != Availability::Absent).unwrap();
    assert_eq!(last.name, "ResourceQuota");
    let remote = [
        "MutatingAdmissionPolicy",
        "MutatingAdmissionWebhook",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionWebhook",
    ];
    let places: Vec<usize> = remote.iter().map(|name| place(name)).collect();
    assert!(places.is_sorted() && places[0] > place("CertificateSubjectRestriction"));
    let mut unique: Vec<&str> = PLUGINS.iter().map(|known| known.name).collect();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), PLUGINS.len());
}
