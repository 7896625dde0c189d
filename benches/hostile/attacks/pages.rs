//! The pages below `/ui/`, which are rendered for each reader.

use super::readers::read_as;
use super::tenants::make_all;
use super::{AttackTally, at_once};
use crate::testbed::{TENANTS, Testbed};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// 70 Features of 60 KB, and the board of their namespace.
pub(super) async fn features(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    const FEATURES: &str = "/apis/features.k8s.io/v1alpha1/namespaces/tenant/features";
    // Escaped in the page as five characters each.
    let text = "<".repeat(60_000);
    let features = (0..70).map(|number| {
        let annotations = json!({ "text": text });
        let labels = json!({"attack": "yes"});
        let name = format!("Feature{number}");
        json!({"metadata": {"name": name, "labels": labels, "annotations": annotations}})
    });
    make_all(&stage, &tally, FEATURES, features).await;
    at_once(32, |index| {
        read_as(&stage, &tally, ("/ui/features/?namespace=tenant", TENANTS[index % 8], ""))
    })
    .await;
}

/// The list of recent objects, and the events of ids that are unknown, which all are compared with.
pub(super) async fn trace(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let number = AtomicU64::new(1);
    at_once(32, |index| {
        let (stage, tally) = (&stage, &tally);
        let path = match index % 2 {
            0 => "/ui/trace/".to_owned(),
            _ => format!("/ui/trace/{:032x}", number.fetch_add(1, Ordering::Relaxed)),
        };
        async move { read_as(stage, tally, (&path, TENANTS[index % 8], "")).await }
    })
    .await;
}
