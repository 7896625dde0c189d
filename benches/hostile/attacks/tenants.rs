//! What a tenant does with ordinary rights in a namespace: requests just below the size from which
//! they count as costly, and objects that cost others.

use super::bodies::send_as;
use super::readers::stall;
use super::{AttackTally, at_once};
use crate::testbed::{AUTHOR, TENANT, TENANTS, Testbed};
use crate::wire::{Wire, WireProtocol};
use anyhow::Context;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CONFIG_MAPS: &str = "/api/v1/namespaces/tenant/configmaps";
const ACCOUNTS: &str = "/api/v1/namespaces/tenant/serviceaccounts";
const BAGS: &str = "/apis/hostile.example.com/v1/namespaces/tenant/bags";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/tenant/rolebindings";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(super) const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

/// A request without its body.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) method: &'static str,
    pub(super) path: &'a str,
    pub(super) content_type: &'static str,
}

/// The same request on one connection until that ends.
pub(super) async fn repeat(
    stage: &Testbed,
    tally: &AttackTally,
    Ask { method, path, content_type }: Ask<'_>,
    token: &str,
    body: impl Fn() -> String,
) {
    let Ok(mut wire) = Wire::connect(stage, WireProtocol::Http1).await else {
        return tally.count("refused");
    };
    loop {
        let answer = wire.send(method, path, token, content_type, body().as_bytes()).await;
        tally.answer(&answer);
        if answer.is_err() {
            return;
        }
    }
}

pub(super) async fn make(stage: &Testbed, tally: &AttackTally, path: &str, object: &Value) {
    send_as(stage, tally, ("POST", path, JSON), (TENANT, object.to_string().as_bytes())).await;
}

/// Creates objects over one connection.
pub(super) async fn make_all(
    stage: &Testbed,
    tally: &AttackTally,
    path: &str,
    objects: impl Iterator<Item = Value>,
) {
    let Ok(mut wire) = Wire::connect(stage, WireProtocol::Http1).await else {
        return tally.count("refused");
    };
    for object in objects {
        let answer = wire.post(path, TENANT, JSON, object.to_string().as_bytes()).await;
        tally.answer(&answer);
        if answer.is_err() {
            return;
        }
    }
}

/// Merge patches of one label.
fn label(number: &AtomicU64) -> String {
    let number = number.fetch_add(1, Ordering::Relaxed);
    format!(r#"{{"metadata":{{"labels":{{"number":"{number}"}}}}}}"#)
}

/// YAML of 64,000 bytes.
pub(super) async fn short_yaml(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let body = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: y\ndata:\n{}",
        (0..4_500).map(|number| format!("  k{number:05}: v\n")).collect::<String>()
    );
    let path = format!("{CONFIG_MAPS}?dryRun=All");
    at_once(80, |index| {
        let ask = Ask { method: "POST", path: &path, content_type: "application/yaml" };
        repeat(&stage, &tally, ask, TENANTS[index % 8], || body.clone())
    })
    .await;
}

/// JSON patches of 61 KB that shift a list with each operation.
pub(super) async fn short_patches(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let zeros = vec![0; 5_000];
    for index in 0..8 {
        let name = format!("p{index}");
        make(&stage, &tally, BAGS, &json!({"apiVersion": "hostile.example.com/v1", "kind": "Bag", "metadata": {"name": name}, "j": zeros})).await;
    }
    let operations = vec![r#"{"op": "remove",     "path": "/j/0"}         "#; 1_250];
    let body = format!("[{}]", operations.join(","));
    at_once(80, |index| {
        let (stage, tally, body) = (&stage, &tally, &body);
        async move {
            let path = format!("{BAGS}/p{}?dryRun=All", index % 8);
            let content_type = "application/json-patch+json";
            let ask = Ask { method: "PATCH", path: &path, content_type };
            repeat(stage, tally, ask, TENANTS[index % 8], || body.clone()).await;
        }
    })
    .await;
}

/// A token whose account is gone, and another one of 1.1 MB has its name.
pub(super) async fn dead_token(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let token = match token_of_a_gone_account(&stage).await {
        Ok(token) => token,
        Err(error) => return tally.count(format!("no token: {error:#}")),
    };
    let secrets: Vec<_> =
        (0..60_000).map(|number| json!({"name": format!("x{number:x}")})).collect();
    let metadata = json!({"name": "fat", "labels": {"attack": "yes"}});
    make(&stage, &tally, ACCOUNTS, &json!({"metadata": metadata, "secrets": secrets})).await;
    let ask = Ask { method: "GET", path: "/version", content_type: JSON };
    at_once(60, |_| repeat(&stage, &tally, ask, &token, String::new)).await;
}

async fn token_of_a_gone_account(stage: &Testbed) -> anyhow::Result<String> {
    let mut wire = Wire::connect(stage, WireProtocol::Http1).await?;
    let account = format!("{ACCOUNTS}/fat");
    wire.send("DELETE", &account, TENANT, JSON, b"").await?;
    wire.post(ACCOUNTS, TENANT, JSON, br#"{"metadata":{"name":"fat"}}"#).await?;
    let (status, text) =
        wire.post(&format!("{account}/token"), TENANT, JSON, br#"{"spec":{}}"#).await?;
    let answer: Value = serde_json::from_str(&text).with_context(|| format!("{status}"))?;
    wire.send("DELETE", &account, TENANT, JSON, b"").await?;
    answer["status"]["token"].as_str().map(str::to_owned).context("no token")
}

/// Bindings of 15,000 users each, which change nothing but a label.
pub(super) async fn bindings(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    const NUMBER: usize = 8;
    for index in 0..NUMBER {
        let subject = |user| json!({"kind": "User", "name": format!("{index}-{user:x}"), "apiGroup": "rbac.authorization.k8s.io"});
        let subjects: Vec<_> = (0..15_000).map(subject).collect();
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"});
        let metadata = json!({"name": format!("wide{index}"), "labels": {"attack": "yes"}});
        let binding = json!({"metadata": metadata, "roleRef": role, "subjects": subjects});
        make(&stage, &tally, BINDINGS, &binding).await;
    }
    let number = AtomicU64::new(0);
    at_once(2 * NUMBER, |index| {
        let (stage, tally, number) = (&stage, &tally, &number);
        async move {
            let path = format!("{BINDINGS}/wide{}", index % NUMBER);
            let ask = Ask { method: "PATCH", path: &path, content_type: MERGE };
            repeat(stage, tally, ask, TENANTS[index % 8], || label(number)).await;
        }
    })
    .await;
}

/// A kind of 500 columns that each show the whole of an object of 1.2 MB.
pub(super) async fn table(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    const WIDES: &str = "/apis/tables.example.com/v1/namespaces/tenant/wides";
    let columns: Vec<_> = (0..500)
        .map(|number| json!({"name": format!("c{number}"), "type": "string", "jsonPath": ".spec"}))
        .collect();
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema, "additionalPrinterColumns": columns});
    let names =
        json!({"plural": "wides", "singular": "wide", "kind": "Wide", "listKind": "WideList"});
    let spec = json!({"group": "tables.example.com", "scope": "Namespaced", "names": names, "versions": [version]});
    let body = json!({"metadata": {"name": "wides.tables.example.com"}, "spec": spec}).to_string();
    send_as(&stage, &tally, ("POST", DEFINITIONS, JSON), (AUTHOR, body.as_bytes())).await;
    // Until it is served.
    for _ in 0..10 {
        let object = json!({"apiVersion": "tables.example.com/v1", "kind": "Wide", "metadata": {"name": "w"}, "spec": "x".repeat(1_200_000)});
        make(&stage, &tally, WIDES, &object).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    at_once(6, |index| {
        let (stage, tally) = (&stage, &tally);
        async move {
            let accept = "accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n";
            let request = (WIDES, TENANTS[index % 8], accept);
            super::readers::read_as(stage, tally, request).await;
        }
    })
    .await;
}

/// A deep value, indented and as YAML, for viewers who stop reading.
pub(super) async fn pretty(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    const DEPTH: usize = 300;
    let value =
        format!("{}{}{}", "[".repeat(DEPTH), vec!["0"; 300_000].join(","), "]".repeat(DEPTH));
    let body = format!(
        r#"{{"apiVersion":"hostile.example.com/v1","kind":"Bag","metadata":{{"name":"deep"}},"spec":{value}}}"#
    );
    send_as(&stage, &tally, ("POST", BAGS, JSON), (TENANT, body.as_bytes())).await;
    at_once(100, |index| {
        let (stage, tally) = (&stage, &tally);
        async move {
            let (query, accept) = [("?pretty=1", JSON), ("", "application/yaml")][index % 2];
            stall(stage, tally, &format!("{BAGS}/deep{query}"), accept).await;
        }
    })
    .await;
}

/// Objects of 45,000 keys, and patches of 50 bytes.
pub(super) async fn many_keys(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    const NUMBER: usize = 24;
    let keys: Vec<_> = (0..45_000).map(|key| format!(r#""k{key:05}":"""#)).collect();
    let keys = keys.join(",");
    for index in 0..NUMBER {
        let body = format!(r#"{{"metadata":{{"name":"keys{index}"}},"data":{{{keys}}}}}"#);
        send_as(&stage, &tally, ("POST", CONFIG_MAPS, JSON), (TENANT, body.as_bytes())).await;
    }
    let number = AtomicU64::new(0);
    at_once(90, |index| {
        let (stage, tally, number) = (&stage, &tally, &number);
        async move {
            let path = format!("{CONFIG_MAPS}/keys{}", index % NUMBER);
            let ask = Ask { method: "PATCH", path: &path, content_type: MERGE };
            repeat(stage, tally, ask, TENANT, || label(number)).await;
        }
    })
    .await;
}
