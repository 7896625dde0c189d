//! Claims of a test, a runtime in memory.

use super::*;
use crate::api::ApiPods;
use crate::fixture::{self, RecordedEvents};
use crate::objects::ObjectFuture;
use ferrokube_cri::Runtime;
use ferrokube_cri::testing::FakeRuntime;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A claim and a volume; null: there is none.
struct ClaimObjects(Mutex<(Value, Value)>);

impl ClaimObjects {
    fn new(claim: Value, volume: Value) -> Arc<Self> {
        Arc::new(Self(Mutex::new((claim, volume))))
    }
}

fn found<T: serde::de::DeserializeOwned + Send + 'static>(
    value: Value,
) -> ObjectFuture<'static, T> {
    Box::pin(std::future::ready(Ok(serde_json::from_value(value).unwrap())))
}

impl PodObjects for ClaimObjects {
    fn config_map<'a>(&'a self, _: &'a str, _: &'a str) -> ObjectFuture<'a, ConfigMap> {
        found(Value::Null)
    }

    fn secret<'a>(&'a self, _: &'a str, _: &'a str) -> ObjectFuture<'a, Secret> {
        found(Value::Null)
    }

    fn service_account<'a>(&'a self, _: &'a str, _: &'a str) -> ObjectFuture<'a, ServiceAccount> {
        found(Value::Null)
    }

    fn claim<'a>(&'a self, _: &'a str, _: &'a str) -> ObjectFuture<'a, PersistentVolumeClaim> {
        found(self.0.lock().0.clone())
    }

    fn volume<'a>(&'a self, _: &'a str) -> ObjectFuture<'a, PersistentVolume> {
        found(self.0.lock().1.clone())
    }

    fn node<'a>(&'a self, name: &'a str) -> ObjectFuture<'a, Node> {
        found(json!({"metadata": {"name": name, "labels": {"zone": "a", "size": "4"}}}))
    }
}

fn claim(phase: &str) -> Value {
    json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "c1"},
        "spec": {"volumeName": "pv-1"},
        "status": {"phase": phase},
    })
}

fn volume(fields: Value) -> Value {
    let mut spec = json!({"claimRef": {"name": "data", "namespace": "default", "uid": "c1"}});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"metadata": {"name": "pv-1"}, "spec": spec})
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_claim_and_keeps_what_it_was_bound_to() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let objects = ClaimObjects::new(claim("Pending"), volume(json!({"hostPath": {"path": data}})));
    let runtime = Arc::<FakeRuntime>::default();
    let client = Runtime::new(Arc::clone(&runtime) as Arc<_>);
    let messages = Arc::<RecordedEvents>::default();
    let fields = ", evictionHard: {memory.available: 0%}, imageGCHighThresholdPercent: 100";
    let kubelet = fixture::kubelet(client, fields, folder.path(), Arc::clone(&messages) as Arc<_>)
        .objects(Arc::clone(&objects) as Arc<_>);
    let pods = Arc::<ApiPods>::default();
    pods.set([serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {
            "containers": [{"name": "c", "image": "r.io/c:v1", "volumeMounts": [
                {"name": "disk", "mountPath": "/data"}]}],
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "data",
                "readOnly": true}}],
        },
    }))
    .unwrap()]);
    let (_, _, loops) = kubelet.loops(Some(pods));
    let task = tokio::spawn(loops);
    let unbound = "Unable to attach or mount volumes: unmounted volumes=[disk], unattached \
                   volumes=[], failed to process volumes=[disk]: error processing PVC \
                   default/data: PVC is not bound";
    let expected = ("FailedMount", unbound.to_owned());
    while !messages.0.lock().contains(&expected) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(runtime.sandboxes().is_empty());
    objects.0.lock().0 = claim("Bound");
    runtime.until(|runtime| !runtime.running("c").is_empty()).await;
    let first = runtime.running("c").remove(0);
    let mount = &first.config.mounts[0];
    assert_eq!((mount.host_path.as_str(), mount.readonly), (data.to_str().unwrap(), true));
    // It restarts without the API server's objects.
    *objects.0.lock() = (Value::Null, Value::Null);
    runtime.exit(&first.report.id, 1);
    let is_new = |runtime: &FakeRuntime| {
        let running = runtime.running("c");
        running.first().is_some_and(|container| container.report.id != first.report.id)
    };
    runtime.until(is_new).await;
    assert_eq!(runtime.running("c")[0].config.mounts[0].host_path, data.to_str().unwrap());
    task.abort();
}

#[tokio::test]
async fn claims_that_cannot_be_used_say_why_with_kubelets_words() {
    let check = async |claim: Value, volume: Value, expected: &str| {
        let objects = ClaimObjects::new(claim, volume);
        let source =
            PersistentVolumeClaimVolumeSource { claim_name: "data".to_owned(), read_only: None };
        let failed = bound(&*objects, "default", &source).await.map(|_| ()).unwrap_err();
        assert_eq!(failed, format!("error processing PVC default/data: {expected}"));
    };
    let local = || volume(json!({"local": {"path": "/x"}}));
    let missing = "failed to fetch PVC from API server: persistentvolumeclaims \"data\" not found";
    check(Value::Null, local(), missing).await;
    check(claim("Lost"), local(), "PVC is not bound").await;
    let mut deleted = claim("Bound");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    check(deleted, local(), "PVC is being deleted").await;
    let mut empty = claim("Bound");
    empty["spec"] = json!({});
    check(empty, local(), "PVC has empty pvc.Spec.VolumeName").await;
    let missing = "failed to fetch PV pv-1 from API server: persistentvolumes \"pv-1\" not found";
    check(claim("Bound"), Value::Null, missing).await;
    let unbound = "found PV object pv-1 but it has a nil pv.Spec.ClaimRef indicating it is not \
                   yet bound to the claim";
    check(claim("Bound"), volume(json!({"claimRef": null})), unbound).await;
    let other = "found PV object pv-1 but its pv.Spec.ClaimRef.UID c2 does not point to \
                 claim.UID c1";
    check(claim("Bound"), volume(json!({"claimRef": {"uid": "c2"}})), other).await;
}

#[test]
fn terms_of_a_node_affinity_are_met_as_by_the_scheduler() {
    let node = json!({"metadata": {"name": "n", "labels": {"zone": "a", "size": "4"}}});
    let node: Node = serde_json::from_value(node).unwrap();
    let is_met = |term: Value| matches(&serde_json::from_value(term).unwrap(), &node);
    let one = |key: &str, operator: &str, values: &[&str]| {
        let one = json!({"key": key, "operator": operator, "values": values});
        is_met(json!({"matchExpressions": [one]}))
    };
    assert!(one("zone", "In", &["b", "a"]) && !one("zone", "In", &["b"]));
    assert!(one("zone", "NotIn", &["b"]) && one("none", "NotIn", &["b"]));
    assert!(one("zone", "Exists", &[]) && !one("none", "Exists", &[]));
    assert!(one("none", "DoesNotExist", &[]) && !one("zone", "DoesNotExist", &[]));
    assert!(one("size", "Gt", &["3"]) && !one("size", "Gt", &["4"]) && one("size", "Lt", &["5"]));
    assert!(!one("zone", "Gt", &["3"]) && !one("zone", "Other", &["a"]));
    assert!(!is_met(json!({})));
    let name = |value: &str| {
        let own = json!({"key": "metadata.name", "operator": "In", "values": [value]});
        is_met(json!({"matchFields": [own]}))
    };
    assert!(name("n") && !name("m"));
}

#[test]
fn a_local_directory_must_be_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a").display().to_string();
    let failed = local_directory("pv-1", &path).unwrap_err().to_string();
    let expected = format!(
        "MountVolume.NewMounter initialization failed for volume \"pv-1\" : path {path:?} does not \
         exist"
    );
    assert_eq!(failed, expected);
    assert!(local_directory("pv-1", folder.path().to_str().unwrap()).is_ok());
}

#[test]
fn a_local_device_must_be_one() {
    let why = |path: &str| local_device("pv-1", path).unwrap_err().to_string();
    let failed = |why: &str| {
        format!(
            "MapVolume.NewBlockVolumeMapper initialization failed for volume \"pv-1\" : path {why}"
        )
    };
    assert_eq!(why("/dev/null"), failed("\"/dev/null\" is not a block device"));
    assert_eq!(why("/none"), failed("\"/none\" does not exist"));
}
