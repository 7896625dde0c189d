//! Bodies that cost more than their size suggests.

use super::{AttackTally, at_once};
use crate::testbed::{TENANT, TENANTS, Testbed};
use crate::wire::{Wire, WireProtocol};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CONFIG_MAPS: &str = "/api/v1/namespaces/tenant/configmaps";
const BAGS: &str = "/apis/hostile.example.com/v1/namespaces/tenant/bags";
const JSON: &str = "application/json";

/// One request on a new connection.
async fn send(stage: &Testbed, tally: &AttackTally, request: (&str, &str, &str), body: &[u8]) {
    send_as(stage, tally, request, (TENANT, body)).await;
}

/// Likewise, as any caller.
pub(super) async fn send_as(
    stage: &Testbed,
    tally: &AttackTally,
    (method, path, content_type): (&str, &str, &str),
    (token, body): (&str, &[u8]),
) {
    let answer = async {
        Wire::connect(stage, WireProtocol::Http1)
            .await?
            .send(method, path, token, content_type, body)
            .await
    }
    .await;
    tally.answer(&answer);
}

/// Stores a ConfigMap, which is rejected as long as the attack before this one holds the caller's
/// room.
async fn store(stage: &Testbed, tally: &AttackTally, object: &str) {
    loop {
        let answer = async {
            let mut wire = Wire::connect(stage, WireProtocol::Http1).await?;
            wire.send("POST", CONFIG_MAPS, TENANT, JSON, object.as_bytes()).await
        }
        .await;
        tally.answer(&answer);
        if matches!(answer, Ok((201 | 409, _))) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A repeated key: quadratic if the parser searches the previous ones linearly.
pub(super) async fn yaml(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let body = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: y\ndata:\n{}",
        "  k: v\n".repeat(2_800_000 / 7)
    );
    at_once(4, |_| {
        send(&stage, &tally, ("POST", CONFIG_MAPS, "application/yaml"), body.as_bytes())
    })
    .await;
}

/// A collection that a naive parser scans to its end before yielding the first item.
pub(super) async fn yaml_flow(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let body = format!("# x\n[{}]", "a,".repeat(1_450_000));
    at_once(8, |index| {
        send_as(
            &stage,
            &tally,
            ("POST", CONFIG_MAPS, "application/yaml"),
            (TENANTS[index % 8], body.as_bytes()),
        )
    })
    .await;
}

/// RBAC rules, which are reread after each write.
pub(super) async fn roles(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/tenant/roles";
    let number = AtomicU64::new(0);
    at_once(2, |index| {
        let names: Vec<_> = (0..90_000).map(|name| format!("\"object-{name:05}\"")).collect();
        let rule = format!(r#"{{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"],"resourceNames":[{}]}}"#, names.join(","));
        let number = number.fetch_add(1, Ordering::Relaxed);
        let meta = format!(r#"{{"name":"large{index}","annotations":{{"n":"{number}"}}}}"#);
        let body = format!(r#"{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{meta},"rules":[{rule}]}}"#);
        let (stage, tally) = (&stage, &tally);
        async move { send(stage, tally, ("PUT", &format!("{ROLES}/large{index}"), JSON), body.as_bytes()).await }
    })
    .await;
}

/// Bytes of maps whose tree is just below what one body may take: beyond it is a 413, and the
/// budget that is shared by all bodies is not used.
const FITTING_MAPS: usize = 1_200_000;

pub(super) fn one_key_maps(bytes: usize) -> String {
    format!("[{}]", vec!["{\"\":0}"; bytes / 7].join(","))
}

/// A document whose tree is many times larger than its text.
pub(super) async fn maps(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let body = one_key_maps(2_800_000);
    at_once(20, |_| send(&stage, &tally, ("POST", CONFIG_MAPS, JSON), body.as_bytes())).await;
}

/// Waits until a body of the largest tree is decoded, which is rejected as no object: what an
/// attack that has ended held of its callers' budgets would protect the victim from the next one.
pub(crate) async fn wait_for_room(stage: &Testbed) -> anyhow::Result<()> {
    let body = one_key_maps(FITTING_MAPS);
    for _ in 0..30 {
        let mut wire = Wire::connect(stage, WireProtocol::Http1).await?;
        let (status, text) = wire.send("POST", CONFIG_MAPS, TENANT, JSON, body.as_bytes()).await?;
        match status {
            400 => return Ok(()),
            429 => tokio::time::sleep(Duration::from_millis(500)).await,
            other => anyhow::bail!("a body that should be decoded got {other}: {text}"),
        }
    }
    anyhow::bail!("a tenant's budget is still used up after its requests have ended")
}

/// Likewise, in a kind that accepts it.
pub(super) async fn custom_maps(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let maps = one_key_maps(FITTING_MAPS);
    at_once(20, |index| {
        let body = format!(r#"{{"apiVersion":"hostile.example.com/v1","kind":"Bag","metadata":{{"name":"b{index}"}},"spec":{maps}}}"#);
        let (stage, tally) = (&stage, &tally);
        async move {
            send(stage, tally, ("POST", BAGS, JSON), body.as_bytes()).await;
            send(stage, tally, ("DELETE", &format!("{BAGS}/b{index}"), JSON), b"").await;
        }
    })
    .await;
}

/// Patches whose cost is the product of two lengths.
pub(super) async fn patches(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let fields: Vec<_> = (0..20_000).map(|number| format!("\"k{number}\":\"v\"")).collect();
    let object = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"patched"}},"data":{{{}}}}}"#,
        fields.join(",")
    );
    store(&stage, &tally, &object).await;
    let kept: Vec<_> = (0..100_000).map(|number| format!("\"z{number}\"")).collect();
    let retain = format!(r#"{{"data":{{"$retainKeys":[{}],"k1":"w"}}}}"#, kept.join(","));
    let doubled: Vec<_> = (0..30)
        .map(|number| format!(r#"{{"op":"copy","from":"/data","path":"/metadata/c{number}"}},{{"op":"copy","from":"/metadata","path":"/data/d{number}"}}"#))
        .collect();
    let copies = format!("[{}]", doubled.join(","));
    let many: Vec<_> = (0..10_000)
        .map(|number| format!(r#"{{"op":"add","path":"/data/k{number}","value":"w"}}"#))
        .collect();
    let many = format!("[{}]", many.join(","));
    let path = format!("{CONFIG_MAPS}/patched");
    at_once(6, |index| {
        let (content_type, body) = match index % 3 {
            0 => ("application/strategic-merge-patch+json", &retain),
            1 => ("application/json-patch+json", &copies),
            _ => ("application/json-patch+json", &many),
        };
        send(&stage, &tally, ("PATCH", &path, content_type), body.as_bytes())
    })
    .await;
}

/// Many writers of one key, which queue.
pub(super) async fn hot_object(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let text = "x".repeat(500_000);
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"hot"}},"data":{{"text":"{text}"}}}}"#
    );
    store(&stage, &tally, &body).await;
    let number = AtomicU64::new(0);
    let path = format!("{CONFIG_MAPS}/hot");
    at_once(64, |_| {
        let body =
            format!(r#"{{"data":{{"number":"{}"}}}}"#, number.fetch_add(1, Ordering::Relaxed));
        let (stage, tally, path) = (&stage, &tally, &path);
        async move {
            send(stage, tally, ("PATCH", path, "application/merge-patch+json"), body.as_bytes())
                .await
        }
    })
    .await;
}
