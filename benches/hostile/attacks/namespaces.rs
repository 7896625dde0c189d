//! What the administrator of a namespace writes there, so that requests cost more.

use super::bodies::send_as;
use super::tenants::{Ask, JSON, make, make_all, repeat};
use super::{AttackTally, at_once};
use crate::testbed::{TENANT, TENANTS, Testbed};
use crate::wire::{Wire, WireProtocol};
use anyhow::Context;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const NAMESPACE: &str = "/api/v1/namespaces/tenant";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/tenant";

/// A service account that a role of 90,000 names is bound to 40 times, none of which is asked for.
pub(super) async fn bound_role(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    const BINDINGS: usize = 40;
    const WRITERS: usize = 4;
    let token = match token(&stage, "bound").await {
        Ok(token) => token,
        Err(error) => return tally.count(format!("no token: {error:#}")),
    };
    let names: Vec<_> = (0..90_000).map(|name| format!("object-{name:05}")).collect();
    let rule = json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": names});
    let labels = json!({"attack": "yes"});
    let role = json!({"metadata": {"name": "huge", "labels": labels}, "rules": [rule]});
    make(&stage, &tally, &format!("{RBAC}/roles"), &role).await;
    let subjects = json!([{"kind": "ServiceAccount", "name": "bound", "namespace": "tenant"}]);
    let reference =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "huge"});
    let path = format!("{RBAC}/rolebindings");
    let bind = |first: usize| {
        let (labels, subjects, reference) = (&labels, &subjects, &reference);
        let bindings = (first..BINDINGS).step_by(WRITERS).map(move |index| {
            let metadata = json!({"name": format!("huge{index}"), "labels": labels});
            json!({"metadata": metadata, "subjects": subjects, "roleRef": reference})
        });
        make_all(&stage, &tally, &path, bindings)
    };
    futures::future::join_all((0..WRITERS).map(bind)).await;
    let path = format!("{NAMESPACE}/secrets/none");
    let ask = Ask { method: "GET", path: &path, content_type: JSON };
    at_once(64, |_| repeat(&stage, &tally, ask, &token, String::new)).await;
}

/// A token of a new service account.
pub(super) async fn token(stage: &Testbed, name: &str) -> anyhow::Result<String> {
    let accounts = format!("{NAMESPACE}/serviceaccounts");
    let mut wire = Wire::connect(stage, WireProtocol::Http1).await?;
    let account = json!({"metadata": {"name": name, "labels": {"attack": "yes"}}}).to_string();
    wire.post(&accounts, TENANT, JSON, account.as_bytes()).await?;
    let path = format!("{accounts}/{name}/token");
    let (status, text) = wire.post(&path, TENANT, JSON, br#"{"spec":{}}"#).await?;
    let answer: Value = serde_json::from_str(&text).with_context(|| format!("{status}"))?;
    answer["status"]["token"].as_str().map(str::to_owned).context("no token")
}

/// Creates that are counted by a quota of 200 KB, which each of them reads and writes.
pub(super) async fn large_quota(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    const QUOTA: &str = "/api/v1/namespaces/tenant/resourcequotas";
    let mut hard = json!({"count/configmaps": "1000000"});
    for number in 0..1_600 {
        hard[format!("count/k{number:05}.a")] = json!("1");
    }
    let metadata = json!({"name": "large", "labels": {"attack": "yes"}});
    let quota = json!({"metadata": metadata, "spec": {"hard": hard}}).to_string();
    send_as(&stage, &AttackTally::default(), ("POST", QUOTA, JSON), (TENANT, quota.as_bytes()))
        .await;
    // Until the controller has written its status.
    loop {
        let read = async {
            let mut wire = Wire::connect(&stage, WireProtocol::Http1).await?;
            wire.send("GET", &format!("{QUOTA}/large"), TENANT, JSON, b"").await
        };
        if matches!(read.await, Ok((200, text)) if text.contains("\"used\":{\"")) {
            break tally.count("quota in force");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let path = format!("{NAMESPACE}/configmaps");
    let ask = Ask { method: "POST", path: &path, content_type: JSON };
    at_once(64, |index| {
        let body = || r#"{"metadata":{"generateName":"counted"}}"#.to_owned();
        repeat(&stage, &tally, ask, TENANTS[index % 8], body)
    })
    .await;
}
