//! Block volumes: devices of containers.

use super::*;
use ferrokube_csi::{AccessType, VolumeCapability};

impl NodeWithDriver {
    fn block(&self) {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"});
        self.claim(json!({"fsType": "ext4"}), spec);
    }

    async fn until_event(&self, reason: &'static str, message: &str) {
        let expected = (reason, message.to_owned());
        let seen = || async {
            let events = self.events.0.lock().clone();
            if events.contains(&expected) { Ok(()) } else { Err(format!("{events:?}")) }
        };
        wait_until(message, BOUND, seen).await;
    }
}

/// A pod whose container has the device of a claim.
fn with_device(uid: &str, read_only: bool) -> Pod {
    let claim = json!({"claimName": "data", "readOnly": read_only});
    let mut pod = pod_object(uid, json!({"persistentVolumeClaim": claim}));
    let spec = pod.spec.as_mut().unwrap();
    let container = &mut spec.containers[0];
    container.volume_mounts = None;
    let devices = json!([{"name": "disk", "devicePath": "/dev/xvda"}]);
    container.volume_devices = serde_json::from_value(devices).unwrap();
    pod
}

fn is_block(capability: Option<VolumeCapability>) -> bool {
    matches!(capability.unwrap().access_type, Some(AccessType::Block(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_volume_is_a_device_of_its_container_until_the_pod_is_gone() {
    let test = NodeWithDriver::new();
    test.block();
    let (_, kubelet) = test.run(&[with_device("u1", false)]);
    test.runtime.until(|runtime| !runtime.running("c").is_empty()).await;
    let target = target(&test.folder.path().join("root"), "u1", "pv-1");
    let first = test.runtime.running("c").remove(0);
    let devices: Vec<_> = first
        .config
        .devices
        .iter()
        .map(|it| (&*it.container_path, &*it.host_path, &*it.permissions))
        .collect();
    assert_eq!(devices, [("/dev/xvda", target.to_str().unwrap(), "mrw")]);
    let mounts_it = |path: &str| first.config.mounts.iter().any(|it| it.host_path == path);
    assert!(!mounts_it(devices[0].1), "{:?}", first.config.mounts);
    let staged: NodeStageVolumeRequest = test.driver.calls("NodeStageVolume")[0].decode();
    let published: NodePublishVolumeRequest = test.driver.calls("NodePublishVolume")[0].decode();
    assert!(is_block(staged.volume_capability) && is_block(published.volume_capability));
    assert!(!target.is_dir());

    // By the next kubelet, without the API server's objects; a device that is there is kept.
    kubelet.abort();
    let calls = test.driver.order().len();
    test.objects.0.lock().remove("claim/data");
    let (pods, kubelet) = test.run(&[with_device("u1", false)]);
    if mounts(&test, "u1") {
        test.runtime.exit(&first.report.id, 1);
        let is_new = |runtime: &FakeRuntime| {
            runtime.running("c").first().is_some_and(|it| it.report.id != first.report.id)
        };
        test.runtime.until(is_new).await;
        assert_eq!(test.runtime.running("c")[0].config.devices, first.config.devices);
        assert_eq!(test.driver.order().len(), calls);
    } else {
        eprintln!("this process may not mount: only the calls are tested");
    }
    pods.set([]);
    test.driver
        .until("it is unstaged", |it| it.order().ends_with(&UNMOUNTED.map(str::to_owned)))
        .await;
    let directory = test.folder.path().join("root/pods/u1");
    let removed = || async {
        if directory.exists() { Err(format!("{} is left", directory.display())) } else { Ok(()) }
    };
    wait_until("nothing is left", BOUND, removed).await;
    kubelet.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_of_a_claim_that_is_read_only_cannot_be_written() {
    let test = NodeWithDriver::new();
    test.block();
    let (_, kubelet) = test.run(&[with_device("u1", true)]);
    test.runtime.until(|runtime| !runtime.running("c").is_empty()).await;
    assert_eq!(test.runtime.running("c")[0].config.devices[0].permissions, "mr");
    let published: NodePublishVolumeRequest = test.driver.calls("NodePublishVolume")[0].decode();
    assert!(published.readonly);
    kubelet.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_used_as_what_it_is_not_is_refused_with_kubelets_words() {
    let refused = |words: &str| {
        format!(
            "Unable to attach or mount volumes: unmounted volumes=[disk], unattached volumes=[], \
             failed to process volumes=[disk]: volume disk has volumeMode {words}"
        )
    };
    let test = NodeWithDriver::new();
    let (pods, kubelet) = test.run(&[with_device("u1", false)]);
    let words = refused("Filesystem, but is specified in volumeDevices");
    test.until_event("FailedMount", &words).await;
    test.block();
    pods.set([claiming("u2")]);
    let words = refused("Block, but is specified in volumeMounts");
    test.until_event("FailedMount", &words).await;
    assert!(test.driver.order().is_empty(), "{:?}", test.driver.order());

    test.driver.fail("NodeStageVolume", Some((CallCode::Internal, "busy")));
    pods.set([with_device("u3", false)]);
    let words = "MapVolume.SetUpDevice failed for volume \"pv-1\" : rpc error: code = Internal \
                 desc = busy";
    test.until_event("FailedMapVolume", words).await;
    assert!(test.runtime.running("c").is_empty());
    kubelet.abort();
}
