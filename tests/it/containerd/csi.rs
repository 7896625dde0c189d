//! Volumes of a CSI driver in a pod on a real runtime: the driver of the tests really mounts them.
//! So do devices.

use super::engine::skip;
use super::node::{NODE, NodeUnderTest, PODS};
use super::pods::WAIT;
use ferrokube_testkit::{BOUND, CsiCall, CsiDriverConfig, CsiTestDriver, wait_until};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::process::Command;

const DRIVER: &str = "csi.example.com";
const STORAGE: &str = "/apis/storage.k8s.io/v1";

/// A bound claim `data` with the volume `disk-1`, as provisioner and binder would leave it.
async fn claim(node: &NodeUnderTest, mode: &str) {
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let resources = json!({"requests": {"storage": "1Gi"}});
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": resources, "storageClassName": "", "volumeName": "pv-1", "volumeMode": mode}});
    node.create(claims, &claim).await;
    let path = format!("{claims}/data");
    let bound = json!({"status": {"phase": "Bound"}});
    let bound = node.admin.merge(&format!("{path}/status"), &bound).await.unwrap();
    assert_eq!(bound.status, 200, "{}", bound.text);
    let reference = json!({"kind": "PersistentVolumeClaim", "name": "data",
        "namespace": "default", "uid": bound.body["metadata"]["uid"]});
    let volume = json!({"metadata": {"name": "pv-1"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"}, "claimRef": reference,
        "persistentVolumeReclaimPolicy": "Retain", "volumeMode": mode,
        "csi": {"driver": DRIVER, "volumeHandle": "disk-1", "fsType": "ext4"}}});
    node.create("/api/v1/persistentvolumes", &volume).await;
}

/// Attaches the volume, as an attacher would.
async fn attach(node: &NodeUnderTest) {
    let digest = Sha256::digest(format!("disk-1{DRIVER}{NODE}"));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("csi-{digest}");
    let spec = json!({"attacher": DRIVER, "nodeName": NODE,
        "source": {"persistentVolumeName": "pv-1"}});
    let attachments = format!("{STORAGE}/volumeattachments");
    node.create(&attachments, &json!({"metadata": {"name": name}, "spec": spec})).await;
    let status = json!({"status": {"attached": true, "attachmentMetadata": {"lun": "7"}}});
    let done = node.admin.merge(&format!("{attachments}/{name}/status"), &status).await.unwrap();
    assert_eq!(done.status, 200, "{}", done.text);
}

async fn volumes_in_use(node: &NodeUnderTest, expected: Value) {
    let path = format!("/api/v1/nodes/{NODE}");
    let listed = || async {
        let found = node.admin.get(&path).await.unwrap();
        let names = found.body["status"]["volumesInUse"].as_array().cloned().unwrap_or_default();
        if json!(names) == expected {
            Ok(())
        } else {
            Err(format!("{}\n{}", found.text, node.log()))
        }
    };
    wait_until("the node lists its volumes in use", BOUND, listed).await;
}

/// The user of the token that a driver gets with a volume, for itself.
async fn user_of_token(node: &NodeUnderTest, call: &CsiCall) -> Value {
    let tokens = &call.attributes()["csi.storage.k8s.io/serviceAccount.tokens"];
    let tokens: Value = serde_json::from_str(tokens).unwrap();
    let expires = tokens[DRIVER]["expirationTimestamp"].as_str().unwrap();
    assert!(expires.ends_with('Z') && expires.len() == 20, "{expires}");
    let spec = json!({"token": tokens[DRIVER]["token"], "audiences": [DRIVER]});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = node.admin.post(reviews, &json!({"spec": spec})).await.unwrap();
    assert_eq!(review.body["status"]["audiences"], json!([DRIVER]), "{}", review.text);
    review.body["status"]["user"].clone()
}

fn pod(node: &NodeUnderTest) -> Value {
    let script = format!(
        "set -e; test \"$(cat /data/before)\" = there; echo hello >/data/file; \
         test ! -e /own/x; ! touch /own/x 2>/dev/null; touch /data/done; {WAIT}"
    );
    let mut main = node.busybox("main", &script);
    main["volumeMounts"] = json!([{"name": "disk", "mountPath": "/data"},
        {"name": "own", "mountPath": "/own"}]);
    let own = json!({"driver": DRIVER, "readOnly": true, "volumeAttributes": {"size": "1"}});
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stores"},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 5,
            "containers": [main],
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "own", "csi": own}],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_uses_volumes_of_a_csi_driver_also_after_kill_9_of_the_kubelet() {
    let Some(mut node) = NodeUnderTest::start().await else { return };
    let disks = node.containerd.path("disks");
    fs::create_dir_all(disks.join("disk-1")).unwrap();
    fs::write(disks.join("disk-1/before"), "there").unwrap();
    let rules = json!({"podInfoOnMount": true, "fsGroupPolicy": "File",
        "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        "tokenRequests": [{"audience": DRIVER}]});
    let object = json!({"metadata": {"name": DRIVER}, "spec": rules});
    node.create(&format!("{STORAGE}/csidrivers"), &object).await;
    let mut config = CsiDriverConfig::new(DRIVER);
    config.max_volumes = 5;
    config.topology.insert("example.com/zone".to_owned(), "a".to_owned());
    let driver = CsiTestDriver::start(&node.containerd.path("kubelet"), &disks, config);
    let csi_node = || async {
        let found = node.admin.get(&format!("{STORAGE}/csinodes/{NODE}")).await.unwrap();
        let drivers = json!([{"name": DRIVER, "nodeID": "id-of-node", "allocatable": {"count": 5},
            "topologyKeys": ["example.com/zone"]}]);
        let is_it = found.body["spec"]["drivers"] == drivers;
        if is_it { Ok(()) } else { Err(format!("{}\n{}", found.text, node.log())) }
    };
    wait_until("the node lists its driver", BOUND, csi_node).await;
    let own = node.admin.get(&format!("/api/v1/nodes/{NODE}")).await.unwrap().body;
    assert_eq!(own["metadata"]["labels"]["example.com/zone"], "a", "{own}");

    claim(&node, "Filesystem").await;
    node.create(PODS, &pod(&node)).await;
    volumes_in_use(&node, json!([format!("kubernetes.io/csi/{DRIVER}^disk-1")])).await;
    assert!(driver.order().is_empty(), "it is not attached: {:?}", driver.order());
    attach(&node).await;
    let running = node.until("stores", "it runs", |pod| pod["status"]["phase"] == "Running").await;
    let written = || async {
        let is_done = disks.join("disk-1/done").exists();
        if is_done { Ok(()) } else { Err(node.log()) }
    };
    wait_until("the container writes to the volume", BOUND, written).await;
    assert_eq!(fs::read_to_string(disks.join("disk-1/file")).unwrap(), "hello\n");
    let published = driver.calls("NodePublishVolume");
    let initial = &running["metadata"]["annotations"]["trace.kubernetes.io/initial-trace-id"];
    for call in &published {
        assert_eq!(call.headers["initial-trace-id"].to_str().unwrap(), initial, "of the create");
        let user = user_of_token(&node, call).await;
        assert_eq!(user["username"], "system:serviceaccount:default:default");
        assert_eq!(user["extra"]["authentication.kubernetes.io/pod-name"], json!(["stores"]));
    }
    let order = driver.order();

    node.restart_kubelet();
    let is_adopted = || async {
        let log = node.log();
        if log.matches("CSI driver registered").count() > 1 { Ok(()) } else { Err(log) }
    };
    wait_until("the next kubelet has registered the driver", BOUND, is_adopted).await;
    assert_eq!(driver.order(), order, "what is mounted is not mounted again");
    node.admin.delete(&format!("{PODS}/stores")).await.unwrap();
    node.until_gone("stores").await;
    driver
        .until("both are unpublished, one is unstaged", |driver| {
            driver.calls("NodeUnpublishVolume").len() == 2
                && driver.calls("NodeUnstageVolume").len() == 1
        })
        .await;
    volumes_in_use(&node, json!([])).await;
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let kubelet = node.containerd.path("kubelet").display().to_string();
    assert!(!mounts.contains(&kubelet), "{mounts}");
    assert_eq!(fs::read_to_string(disks.join("disk-1/file")).unwrap(), "hello\n", "it is kept");
}

/// Numbers of the first loop device: its node can be made, and opened, on any machine that has the
/// driver. Nothing is read or written.
const DEVICE: [&str; 2] = ["7", "0"];

#[tokio::test(flavor = "multi_thread")]
async fn a_container_has_the_device_of_a_block_volume() {
    let Some(node) = NodeUnderTest::start().await else { return };
    let disks = node.containerd.path("disks");
    fs::create_dir(&disks).unwrap();
    let device = disks.join("device");
    let made = Command::new("mknod").arg(&device).arg("b").args(DEVICE).output().unwrap();
    if !made.status.success() {
        // Root of a container may lack it.
        return skip(&format!("no CAP_MKNOD: {}", String::from_utf8_lossy(&made.stderr)));
    }
    let object = json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": false}});
    node.create(&format!("{STORAGE}/csidrivers"), &object).await;
    let config = CsiDriverConfig { device, ..CsiDriverConfig::new(DRIVER) };
    let driver = CsiTestDriver::start(&node.containerd.path("kubelet"), &disks, config);
    claim(&node, "Block").await;
    let [major, minor] = DEVICE;
    let script = format!(
        "set -ex; test -b /dev/xvda; test \"$(stat -c %t:%T /dev/xvda)\" = {major}:{minor}"
    );
    let mut main = node.busybox("main", &script);
    main["volumeDevices"] = json!([{"name": "disk", "devicePath": "/dev/xvda"}]);
    let claim = json!({"claimName": "data"});
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "device"},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "containers": [main],
            "volumes": [{"name": "disk", "persistentVolumeClaim": claim}],
        },
    });
    node.create(PODS, &pod).await;
    let is_over =
        |pod: &Value| ["Succeeded", "Failed"].iter().any(|it| pod["status"]["phase"] == *it);
    let ended = node.until("device", "it ends", is_over).await;
    assert_eq!(ended["status"]["phase"], "Succeeded", "{ended}\n{}", node.log());
    node.admin.delete(&format!("{PODS}/device")).await.unwrap();
    node.until_gone("device").await;
    let order =
        ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    driver.until("it is unstaged", |driver| driver.order() == order).await;
}
