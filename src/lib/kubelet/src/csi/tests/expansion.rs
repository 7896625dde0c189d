//! Volumes whose storage grows, and claims that a controller makes for a volume of a pod.

use super::*;
use crate::environment::ContainerEnvironment;
use crate::fields::NodeFacts;
use crate::variables::VariableRoom;
use crate::volumes::{mounts as container_mounts, prepare, upkeep};

fn expanding() -> NodeWithDriver {
    let mut config = CsiDriverConfig::new(DRIVER);
    config.capabilities.push(NodeServiceRpcType::ExpandVolume);
    NodeWithDriver::with(config)
}

impl NodeWithDriver {
    /// Capacities of the claim's volume, and as the claim shows it.
    fn capacities(&self, volume: &str, shown: &str) {
        let secret = json!({"name": "expand", "namespace": "default"});
        self.claim(
            json!({"nodeExpandSecretRef": secret}),
            json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": volume}}),
        );
        let mut objects = self.objects.0.lock();
        objects.get_mut("claim/data").unwrap()["status"]["capacity"] = json!({"storage": shown});
    }

    fn shown(&self) -> Value {
        self.objects.0.lock()["claim/data"]["status"]["capacity"]["storage"].clone()
    }

    async fn prepare(&self, node: &PodNode) {
        let pod = NodePod::from_api(&claiming("u1")).unwrap();
        prepare(node, &pod, &NodeFacts::default()).await.unwrap();
        node.active.lock().insert(pod.uid.clone(), Arc::new(pod));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_storage_has_grown_is_expanded_once_and_its_claim_shows_it() {
    let test = expanding();
    test.secret("expand");
    test.capacities("1Gi", "1Gi");
    let (node, task) = test.kill_9().await;
    test.prepare(&node).await;
    if !mounts(&test, "u1") {
        eprintln!("skipped: this process may not mount");
        return;
    }
    upkeep::round(&node).await;
    assert!(test.driver.calls("NodeExpandVolume").is_empty());
    test.capacities("2Gi", "1024Mi");
    test.driver.fail("NodeExpandVolume", Some((CallCode::Internal, "busy")));
    upkeep::round(&node).await;
    assert_eq!(test.shown(), "1024Mi");
    test.driver.fail("NodeExpandVolume", None);
    upkeep::round(&node).await;
    assert_eq!(test.shown(), "2Gi");
    upkeep::round(&node).await;
    let calls = test.driver.calls("NodeExpandVolume");
    assert_eq!(calls.len(), 2, "one failed, one succeeded");
    let request: NodeExpandVolumeRequest = calls[1].decode();
    assert_eq!(request.volume_id, "disk-1");
    assert_eq!(request.volume_path, target(&node.paths.root, "u1", "pv-1").display().to_string());
    assert!(request.staging_target_path.ends_with("/globalmount"));
    assert_eq!(request.capacity_range.unwrap().required_bytes, 2 << 30);
    assert_eq!(request.secrets["key"], "password");
    let access = request.volume_capability.unwrap().access_mode.unwrap();
    assert_eq!(access.mode(), VolumeAccess::SingleNodeWriter);
    let failed = "MountVolume.NodeExpandVolume failed for volume \"pv-1\" : rpc error: code = \
                  Internal desc = busy";
    let expected = [
        ("VolumeResizeFailed", failed),
        (
            "FileSystemResizeSuccessful",
            "MountVolume.NodeExpandVolume succeeded for volume \"pv-1\" n",
        ),
    ];
    let expected = expected.map(|(reason, message)| (reason, message.to_owned()));
    assert_eq!(*test.events.0.lock(), expected);
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_cannot_expand_is_not_asked() {
    let test = NodeWithDriver::new();
    test.capacities("2Gi", "1Gi");
    let (node, task) = test.kill_9().await;
    test.prepare(&node).await;
    upkeep::round(&node).await;
    assert_eq!(
        (test.driver.order(), test.shown()),
        (MOUNTED.map(str::to_owned).to_vec(), json!("1Gi"))
    );
    task.abort();
}

/// Whoever makes a claim of that name for another's data: the pod does not get it.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_with_a_template_uses_the_claim_that_was_made_for_its_pod() {
    let test = NodeWithDriver::new();
    let template = json!({"spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let pod = pod_object("u1", json!({"ephemeral": {"volumeClaimTemplate": template}}));
    let mut claim = test.objects.0.lock()["claim/data"].clone();
    claim["metadata"]["name"] = json!("u1-disk");
    test.objects.set("claim", "u1-disk", claim.clone());
    let pod = NodePod::from_api(&pod).unwrap();
    let (node, task) = test.kill_9().await;
    let refused = prepare(&node, &pod, &NodeFacts::default()).await.unwrap_err().to_string();
    let expected = "Unable to attach or mount volumes: unmounted volumes=[disk], unattached \
                    volumes=[], failed to process volumes=[disk]: PVC default/u1-disk was not \
                    created for pod default/u1 (pod is not owner)";
    assert_eq!(refused, expected);
    assert!(test.driver.order().is_empty());
    claim["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod",
        "name": "u1", "uid": "u1", "controller": true}]);
    test.objects.set("claim", "u1-disk", claim);
    prepare(&node, &pod, &NodeFacts::default()).await.unwrap();
    let mut environment =
        ContainerEnvironment { values: BTreeMap::new(), room: VariableRoom::new() };
    let container = &pod.spec.containers[0];
    let mounts = container_mounts(&node, &pod, container, &mut environment).await.unwrap();
    let target = target(&node.paths.root, "u1", "pv-1");
    assert_eq!(mounts[0].host_path, target.display().to_string());
    task.abort();
}
