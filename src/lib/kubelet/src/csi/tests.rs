//! Volumes of a driver of the tests, which really mounts them where this process may.

use super::*;
use crate::api::ApiPods;
use crate::ending::{EndingPod, end};
use crate::ends::PodEnd;
use crate::fixture::{self, RecordedEvents};
use crate::node::PodNode;
use crate::objects::{ObjectFuture, PodObjects};
use crate::pod::NodePod;
use ferrokube_cri::Runtime;
use ferrokube_cri::testing::FakeRuntime;
use ferrokube_csi::{
    CallCode, CsiClient, NodeExpandVolumeRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeServiceRpcType, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeAccess,
};
use ferrokube_testkit::{
    BOUND, CsiDriverConfig, CsiTestDriver, MountGuard, is_mount_point, wait_until,
};
use ferrokube_trace::TraceContext;
use k8s_openapi::api::authentication::v1::TokenRequestStatus;
use k8s_openapi::api::core::v1::{
    Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccountTokenProjection,
};
use k8s_openapi::api::storage::v1::{CSIDriver as CsiDriverObject, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;

mod block;
mod expansion;
mod finished;
mod stats;
mod tokens;

const DRIVER: &str = "csi.example.com";
const MOUNTED: [&str; 2] = ["NodeStageVolume", "NodePublishVolume"];
const UNMOUNTED: [&str; 2] = ["NodeUnpublishVolume", "NodeUnstageVolume"];

/// Objects by kind and name.
#[derive(Default)]
struct CsiObjects(Mutex<BTreeMap<String, Value>>);

impl CsiObjects {
    fn set(&self, kind: &str, name: &str, object: Value) {
        self.0.lock().insert(format!("{kind}/{name}"), object);
    }

    fn get<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        kind: &str,
        name: &str,
    ) -> ObjectFuture<'static, T> {
        let found = self.0.lock().get(&format!("{kind}/{name}")).cloned();
        let found = found.map(|object| serde_json::from_value(object).unwrap());
        Box::pin(std::future::ready(Ok(found)))
    }
}

impl PodObjects for CsiObjects {
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Secret> {
        self.get("secret", &format!("{namespace}/{name}"))
    }

    fn claim<'a>(&'a self, _: &'a str, name: &'a str) -> ObjectFuture<'a, PersistentVolumeClaim> {
        self.get("claim", name)
    }

    fn expanded<'a>(
        &'a self,
        claim: &'a PersistentVolumeClaim,
        capacity: &'a Quantity,
    ) -> ObjectFuture<'a, ()> {
        let key = format!("claim/{}", claim.metadata.name.as_deref().unwrap());
        self.0.lock().get_mut(&key).unwrap()["status"]["capacity"]["storage"] = json!(capacity);
        Box::pin(std::future::ready(Ok(None)))
    }

    fn volume<'a>(&'a self, name: &'a str) -> ObjectFuture<'a, PersistentVolume> {
        self.get("volume", name)
    }

    fn node<'a>(&'a self, name: &'a str) -> ObjectFuture<'a, Node> {
        self.get("node", name)
    }

    fn csi_driver<'a>(&'a self, name: &'a str) -> ObjectFuture<'a, CsiDriverObject> {
        self.get("driver", name)
    }

    fn volume_attachment<'a>(&'a self, name: &'a str) -> ObjectFuture<'a, VolumeAttachment> {
        self.get("attachment", name)
    }

    fn token<'a>(
        &'a self,
        pod: &'a NodePod,
        wanted: &'a ServiceAccountTokenProjection,
    ) -> ObjectFuture<'a, TokenRequestStatus> {
        let audience = wanted.audience.as_deref().unwrap_or_default();
        let seconds = wanted.expiration_seconds;
        self.get("token", &format!("{}/{audience}/{seconds:?}", pod.service_account()))
    }
}

/// A node with a driver, and the objects of a claim.
struct NodeWithDriver {
    // Unmounts before the folder is removed.
    driver: CsiTestDriver,
    folder: TempDir,
    objects: Arc<CsiObjects>,
    events: Arc<RecordedEvents>,
    runtime: Arc<FakeRuntime>,
}

impl NodeWithDriver {
    fn new() -> Self {
        Self::with(CsiDriverConfig::new(DRIVER))
    }

    fn with(config: CsiDriverConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let driver =
            CsiTestDriver::start(&folder.path().join("root"), &folder.path().join("disks"), config);
        let node = Self {
            folder,
            objects: Arc::default(),
            events: Arc::default(),
            runtime: Arc::default(),
            driver,
        };
        node.rules(json!({"attachRequired": false}));
        node.claim(json!({"fsType": "ext4"}), json!({"accessModes": ["ReadWriteOnce"]}));
        node
    }

    /// The CSIDriver object's spec.
    fn rules(&self, spec: Value) {
        self.objects.set("driver", DRIVER, json!({"metadata": {"name": DRIVER}, "spec": spec}));
    }

    /// The claim `data`, its volume `pv-1`, and fields of that and its source.
    fn claim(&self, source: Value, spec: Value) {
        let claim = json!({"metadata": {"name": "data", "namespace": "default", "uid": "c1"},
            "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"}});
        self.objects.set("claim", "data", claim);
        let source = with(json!({"driver": DRIVER, "volumeHandle": "disk-1"}), source);
        let reference = json!({"name": "data", "namespace": "default", "uid": "c1"});
        let spec = with(json!({"csi": source, "claimRef": reference}), spec);
        self.objects.set("volume", "pv-1", json!({"metadata": {"name": "pv-1"}, "spec": spec}));
    }

    fn secret(&self, name: &str) {
        // "key" of "password".
        let secret = json!({"metadata": {"name": name}, "data": {"key": "cGFzc3dvcmQ="}});
        self.objects.set("secret", &format!("default/{name}"), secret);
    }

    /// The attachment of the claim's volume.
    fn attachment(&self, status: Value) {
        let name = super::source::digest_name(&["disk-1", DRIVER, "n"]);
        let spec = json!({"attacher": DRIVER, "nodeName": "n",
            "source": {"persistentVolumeName": "pv-1"}});
        let object = json!({"metadata": {"name": name}, "spec": spec, "status": status});
        self.objects.set("attachment", &name, object);
    }

    fn kubelet(&self) -> crate::kubelet::Kubelet {
        let client = Runtime::new(Arc::clone(&self.runtime) as Arc<_>);
        let fields = ", evictionHard: {memory.available: 0%}, imageGCHighThresholdPercent: 100";
        fixture::kubelet(client, fields, self.folder.path(), Arc::clone(&self.events) as Arc<_>)
            .objects(Arc::clone(&self.objects) as Arc<_>)
    }

    /// A kubelet of which nothing runs but registration. Aborting the task is a kill -9.
    async fn kill_9(&self) -> (Arc<PodNode>, JoinHandle<()>) {
        let (node, _, _) = self.kubelet().loops(None);
        let task = tokio::spawn(register(Arc::clone(&node.csi), node.paths.root.clone()));
        let mut changes = node.csi.changes();
        let registered = changes.wait_for(|drivers| drivers.contains_key(DRIVER));
        tokio::time::timeout(BOUND, registered).await.unwrap().unwrap();
        (node, task)
    }

    /// Runs all of a kubelet with these pods.
    fn run(&self, pods: &[Pod]) -> (Arc<ApiPods>, JoinHandle<()>) {
        let bound = Arc::<ApiPods>::default();
        bound.set(pods.iter().cloned());
        let (_, _, loops) = self.kubelet().loops(Some(Arc::clone(&bound)));
        (bound, tokio::spawn(loops))
    }

    async fn until_order(&self, expected: &[&str]) {
        self.driver.until("the volume's calls", |driver| driver.order() == expected).await;
    }
}

fn with(mut object: Value, fields: Value) -> Value {
    object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    object
}

/// A pod with one volume, mounted at /data.
fn pod_object(uid: &str, volume: Value) -> Pod {
    let mount = json!({"name": "disk", "mountPath": "/data"});
    serde_json::from_value(json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {
            "serviceAccountName": "robot",
            "containers": [{"name": "c", "image": "r.io/c:v1", "volumeMounts": [mount]}],
            "volumes": [with(json!({"name": "disk"}), volume)],
        },
    }))
    .unwrap()
}

fn claiming(uid: &str) -> Pod {
    pod_object(uid, json!({"persistentVolumeClaim": {"claimName": "data"}}))
}

fn with_group(mut pod: Pod, policy: &str) -> NodePod {
    let context = json!({"fsGroup": 4242, "fsGroupChangePolicy": policy});
    pod.spec.as_mut().unwrap().security_context = serde_json::from_value(context).unwrap();
    NodePod::from_api(&pod).unwrap()
}

/// The volume as the objects of the node describe it.
fn volume(node: &NodeWithDriver) -> CsiVolume {
    let object = node.objects.0.lock()["volume/pv-1"].clone();
    let volume: PersistentVolume = serde_json::from_value(object).unwrap();
    let spec = volume.spec.unwrap();
    let pod = NodePod::from_api(&claiming("any")).unwrap();
    CsiVolume::persistent(&pod, "pv-1", &spec, spec.csi.as_ref().unwrap(), false)
}

async fn mount(test: &NodeWithDriver, node: &PodNode, uid: &str) -> Result<(), String> {
    let pod = NodePod::from_api(&claiming(uid)).unwrap();
    let done = set_up(node, &pod, &volume(test)).await;
    done.map(|_| ()).map_err(|error| error.to_string())
}

/// Whether this process may mount, found out by the driver's first volume.
fn mounts(test: &NodeWithDriver, uid: &str) -> bool {
    is_mount_point(&target(&test.folder.path().join("root"), uid, "pv-1"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_volume_is_staged_published_used_unpublished_and_unstaged() {
    let test = NodeWithDriver::new();
    for name in ["stage", "publish"] {
        test.secret(name);
    }
    let secret = |name: &str| json!({"name": name, "namespace": "default"});
    let source = json!({"fsType": "ext4", "volumeAttributes": {"tier": "fast"},
        "nodeStageSecretRef": secret("stage"), "nodePublishSecretRef": secret("publish")});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"]});
    test.claim(source, spec);
    let (pods, kubelet) = test.run(&[claiming("u1")]);
    test.runtime.until(|runtime| !runtime.running("c").is_empty()).await;
    let root = test.folder.path().join("root");
    let target = root.join("pods/u1/volumes/kubernetes.io~csi/pv-1/mount");
    let container = test.runtime.running("c").remove(0);
    assert_eq!(container.config.mounts[0].host_path, target.to_str().unwrap());
    assert_eq!(test.driver.order(), MOUNTED);

    let staged: NodeStageVolumeRequest = test.driver.calls("NodeStageVolume")[0].decode();
    let published: NodePublishVolumeRequest = test.driver.calls("NodePublishVolume")[0].decode();
    let directory = root.join("plugins/kubernetes.io/csi").join(DRIVER);
    assert!(staged.staging_target_path.starts_with(directory.to_str().unwrap()));
    assert!(staged.staging_target_path.ends_with("/globalmount"));
    assert_eq!(published.staging_target_path, staged.staging_target_path);
    assert_eq!(published.target_path, target.to_str().unwrap());
    assert_eq!((&*staged.volume_id, &*published.volume_id), ("disk-1", "disk-1"));
    let key = BTreeMap::from([("key".to_owned(), "password".to_owned())]);
    assert_eq!((&staged.secrets, &published.secrets), (&key, &key));
    let tier = BTreeMap::from([("tier".to_owned(), "fast".to_owned())]);
    assert_eq!((&staged.volume_context, &published.volume_context), (&tier, &tier));
    assert!(!published.readonly);
    let capability = staged.volume_capability.clone().unwrap();
    assert_eq!(published.volume_capability, staged.volume_capability);
    assert_eq!(capability.access_mode.unwrap().mode(), VolumeAccess::SingleNodeWriter);
    let shown = format!("{:?}", capability.access_type);
    assert!(shown.contains("ext4") && shown.contains("noatime"), "{shown}");
    if mounts(&test, "u1") {
        fs::write(target.join("file"), "kept").unwrap();
    } else {
        eprintln!("this process may not mount: only the calls are tested");
    }

    pods.set([]);
    let all = [MOUNTED, UNMOUNTED].concat();
    test.until_order(&all).await;
    let unpublished: NodeUnpublishVolumeRequest =
        test.driver.calls("NodeUnpublishVolume")[0].decode();
    let unstaged: NodeUnstageVolumeRequest = test.driver.calls("NodeUnstageVolume")[0].decode();
    assert_eq!(unpublished.target_path, published.target_path);
    assert_eq!(unstaged.staging_target_path, staged.staging_target_path);
    let removed = || async {
        let left = [root.join("pods/u1"), directory.clone()].map(|path| path.exists());
        // The directory of the driver stays, that of the volume goes.
        let inner = fs::read_dir(&directory).map_or(0, Iterator::count);
        if !left[0] && inner == 0 { Ok(()) } else { Err(format!("{left:?} {inner}")) }
    };
    wait_until("nothing is left", BOUND, removed).await;
    let file = test.folder.path().join("disks/disk-1/file");
    assert!(!file.exists() || fs::read_to_string(file).unwrap() == "kept");
    kubelet.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_kubelet_has_mounted_is_continued_or_undone() {
    let test = NodeWithDriver::new();
    let (node, task) = test.kill_9().await;
    mount(&test, &node, "u1").await.unwrap();
    task.abort();
    // The next kubelet still has the pod.
    let (node, task) = test.kill_9().await;
    mount(&test, &node, "u1").await.unwrap();
    if mounts(&test, "u1") {
        assert_eq!(test.driver.order(), MOUNTED, "it is mounted already");
    }
    assert!(is_ready(&target(&node.paths.root, "u1", "pv-1")).unwrap() == mounts(&test, "u1"));
    task.abort();
    // One that was killed in a call, whose result nobody knows.
    test.driver.hang("NodePublishVolume", true);
    let (node, task) = test.kill_9().await;
    let calls = test.driver.calls("NodePublishVolume").len();
    let (own, volume) = (Arc::clone(&node), volume(&test));
    let pod = NodePod::from_api(&claiming("u2")).unwrap();
    let mounting = tokio::spawn(async move { set_up(&own, &pod, &volume).await.map(|_| ()) });
    test.driver
        .until("the call hangs", |driver| driver.calls("NodePublishVolume").len() > calls)
        .await;
    mounting.abort();
    task.abort();
    test.driver.hang("NodePublishVolume", false);
    drop(node);
    // For the next, both pods are gone, and no runtime knows them.
    let (_, kubelet) = test.run(&[]);
    let targets = |driver: &CsiTestDriver| -> Vec<String> {
        let calls = driver.calls("NodeUnpublishVolume").into_iter();
        let mut paths: Vec<_> =
            calls.map(|call| call.decode::<NodeUnpublishVolumeRequest>().target_path).collect();
        paths.sort();
        paths.dedup();
        paths
    };
    let root = test.folder.path().join("root");
    let both = ["u1", "u2"].map(|uid| target(&root, uid, "pv-1").display().to_string());
    test.driver.until("both are unpublished", |driver| targets(driver) == both).await;
    test.driver.until("unstaged", |driver| !driver.calls("NodeUnstageVolume").is_empty()).await;
    let removed = || async {
        let left = ["u1", "u2"].map(|uid| root.join("pods").join(uid).exists());
        if left == [false; 2] { Ok(()) } else { Err(format!("{left:?}")) }
    };
    wait_until("the pods' directories are removed", BOUND, removed).await;
    kubelet.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_share_a_staged_volume_until_the_last_has_gone() {
    let test = NodeWithDriver::new();
    let (node, task) = test.kill_9().await;
    mount(&test, &node, "u1").await.unwrap();
    mount(&test, &node, "u2").await.unwrap();
    tear_down(&node, "u1").await.unwrap();
    assert!(test.driver.calls("NodeUnstageVolume").is_empty());
    tear_down(&node, "u2").await.unwrap();
    assert_eq!(test.driver.calls("NodeUnstageVolume").len(), 1);
    tear_down(&node, "u2").await.unwrap();
    assert_eq!(test.driver.calls("NodeUnpublishVolume").len(), 2, "it is idempotent");
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_shown_with_kubelets_words() {
    let test = NodeWithDriver::new();
    let (node, task) = test.kill_9().await;
    let fails = async |expected: &str| {
        assert_eq!(mount(&test, &node, "u1").await.unwrap_err(), expected);
    };
    test.driver.fail("NodeStageVolume", Some((CallCode::Internal, "no such disk")));
    fails(
        "MountVolume.MountDevice failed for volume \"pv-1\" : rpc error: code = Internal desc = \
         no such disk",
    )
    .await;
    test.driver.fail("NodeStageVolume", None);
    test.driver.fail("NodePublishVolume", Some((CallCode::PermissionDenied, "not yours")));
    fails(
        "MountVolume.SetUp failed for volume \"pv-1\" : rpc error: code = PermissionDenied desc = \
         not yours",
    )
    .await;
    test.driver.fail("NodePublishVolume", None);
    let secret = json!({"name": "none", "namespace": "default"});
    test.claim(json!({"nodePublishSecretRef": secret}), json!({}));
    fails(
        "MountVolume.SetUp failed for volume \"pv-1\" : fetching NodePublishSecretRef default/none \
         failed: secrets \"none\" not found",
    )
    .await;
    test.claim(json!({"driver": "other"}), json!({}));
    fails(
        "MountVolume.SetUp failed for volume \"pv-1\" : kubernetes.io/csi: mounter.SetUpAt failed \
         to get CSI client: driver name other not found in the list of registered CSI drivers",
    )
    .await;
    // The pod shows them, too: as an event.
    test.claim(json!({}), json!({}));
    test.driver.fail("NodePublishVolume", Some((CallCode::Unavailable, "busy")));
    let (_, kubelet) = test.run(&[claiming("u3")]);
    let expected = (
        "FailedMount",
        "MountVolume.SetUp failed for volume \"pv-1\" : rpc error: code = Unavailable desc = busy"
            .to_owned(),
    );
    let shown = || async {
        let seen = test.events.0.lock().clone();
        if seen.contains(&expected) { Ok(()) } else { Err(format!("{seen:?}")) }
    };
    wait_until("the pod has an event", BOUND, shown).await;
    assert!(test.runtime.sandboxes().is_empty());
    kubelet.abort();
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_with_their_deadline_or_their_pod_and_carry_the_ids() {
    let test = NodeWithDriver::new();
    let (node, task) = test.kill_9().await;
    test.driver.hang("NodeStageVolume", true);
    let context = TraceContext::root();
    let (own, volume) = (Arc::clone(&node), volume(&test));
    let pod = NodePod::from_api(&claiming("u1")).unwrap();
    let work = async move { set_up(&own, &pod, &volume).await.map(|_| ()) };
    let work = ferrokube_trace::scoped(context, tracing::Span::none(), work);
    let mounting = tokio::spawn(work);
    test.driver.until("it hangs", |it| !it.calls("NodeStageVolume").is_empty()).await;
    let call = test.driver.calls("NodeStageVolume").remove(0);
    let parent = call.headers["traceparent"].to_str().unwrap();
    assert!(parent.contains(&context.trace_id.to_string()), "{parent}");
    mounting.abort();
    test.driver.until("it is cancelled", |driver| driver.cancelled() == ["NodeStageVolume"]).await;

    test.driver.hang("NodeGetInfo", true);
    let socket = node.paths.root.join("plugins").join(DRIVER).join("csi.sock");
    let client = CsiClient::new(&socket, Duration::from_millis(50)).unwrap();
    let late = client.node_get_info(NodeGetInfoRequest {}).await.unwrap_err();
    assert_eq!(
        late.to_string(),
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    );
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_volume_is_reported_before_it_is_mounted_and_until_it_is_unstaged() {
    let test = NodeWithDriver::new();
    test.rules(json!({}));
    let (node, task) = test.kill_9().await;
    let listed = || node.csi.in_use.changes().borrow().iter().cloned().collect::<Vec<_>>();
    test.attachment(json!({"attached": false, "attachError": {"message": "no more slots"}}));
    let failed = mount(&test, &node, "u1").await.unwrap_err();
    assert_eq!(failed, "MountVolume.WaitForAttach failed for volume \"pv-1\" : no more slots");
    assert!(test.driver.order().is_empty());
    assert_eq!(listed(), [format!("kubernetes.io/csi/{DRIVER}^disk-1")]);
    // A pod that goes before its volume is attached: the driver knows nothing of it.
    tear_down(&node, "u1").await.unwrap();
    assert!(test.driver.order().is_empty() && listed().is_empty());

    // Until the Node lists it, the volume is not mounted.
    node.csi.in_use.written(Default::default());
    test.attachment(json!({"attached": true, "attachmentMetadata": {"device": "/dev/vdb"}}));
    let (own, volume) = (Arc::clone(&node), volume(&test));
    let pod = NodePod::from_api(&claiming("u2")).unwrap();
    let mounting = tokio::spawn(async move { set_up(&own, &pod, &volume).await.map(|_| ()) });
    let mut changes = node.csi.in_use.changes();
    let names = changes.wait_for(|names| !names.is_empty()).await.unwrap().clone();
    assert!(test.driver.order().is_empty());
    node.csi.in_use.written(names);
    mounting.await.unwrap().unwrap();
    let staged: NodeStageVolumeRequest = test.driver.calls("NodeStageVolume")[0].decode();
    let published: NodePublishVolumeRequest = test.driver.calls("NodePublishVolume")[0].decode();
    let context = BTreeMap::from([("device".to_owned(), "/dev/vdb".to_owned())]);
    assert_eq!((&staged.publish_context, &published.publish_context), (&context, &context));
    // A kubelet that starts with it lists it, too.
    assert_eq!(CsiDrivers::new(&node.paths.root).in_use.changes().borrow().len(), 1);
    tear_down(&node, "u2").await.unwrap();
    assert!(listed().is_empty());
    task.abort();
}

/// The record says that the driver was called, also after attempts that did not come that far.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_undone_although_the_attachment_was_lost_before_the_next_attempt() {
    let test = NodeWithDriver::new();
    test.rules(json!({}));
    test.attachment(json!({"attached": true}));
    test.driver.fail("NodePublishVolume", Some((CallCode::Internal, "half done")));
    let (node, task) = test.kill_9().await;
    let failed = mount(&test, &node, "u1").await.unwrap_err();
    assert!(failed.ends_with("half done"), "{failed}");
    test.attachment(json!({"attached": false, "attachError": {"message": "lost"}}));
    let failed = mount(&test, &node, "u1").await.unwrap_err();
    assert_eq!(failed, "MountVolume.WaitForAttach failed for volume \"pv-1\" : lost");
    tear_down(&node, "u1").await.unwrap();
    assert_eq!(test.driver.order(), [MOUNTED, UNMOUNTED].concat());
    assert!(node.csi.in_use.changes().borrow().is_empty());
    task.abort();
}

/// PersistentVolumes and volumes of pods are named by different people.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_the_same_name_have_their_own_directories() {
    let test = NodeWithDriver::new();
    test.rules(json!({"attachRequired": false,
        "volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
    let mut pod = claiming("u1");
    let spec = pod.spec.as_mut().unwrap();
    let own = json!({"name": "pv-1", "csi": {"driver": DRIVER}});
    spec.volumes.as_mut().unwrap().insert(0, serde_json::from_value(own).unwrap());
    let mount = json!({"name": "pv-1", "mountPath": "/own"});
    let mounts = spec.containers[0].volume_mounts.as_mut().unwrap();
    mounts.insert(0, serde_json::from_value(mount).unwrap());
    let (pods, kubelet) = test.run(&[pod]);
    test.runtime.until(|runtime| !runtime.running("c").is_empty()).await;
    let volumes = test.folder.path().join("root/pods/u1/volumes/kubernetes.io~csi");
    let paths = ["pv-1/mount", "pv-1~claim/mount"].map(|path| volumes.join(path));
    let paths = paths.map(|path| path.display().to_string());
    let mounts = &test.runtime.running("c").remove(0).config.mounts;
    let seen: Vec<_> = mounts.iter().take(2).map(|mount| mount.host_path.clone()).collect();
    assert_eq!(seen, paths);
    let published: BTreeMap<String, String> = test
        .driver
        .calls("NodePublishVolume")
        .iter()
        .map(|call| call.decode::<NodePublishVolumeRequest>())
        .map(|request| (request.target_path, request.volume_id))
        .collect();
    let own = super::source::digest_name(&["u1", "pv-1"]);
    let [first, second] = paths;
    assert_eq!(published, BTreeMap::from([(first, own), (second, "disk-1".to_owned())]));
    pods.set([]);
    let is_over = |driver: &CsiTestDriver| driver.calls("NodeUnpublishVolume").len() == 2;
    test.driver.until("both are unpublished", is_over).await;
    kubelet.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_the_pod_itself_is_published_with_the_pods_facts() {
    let test = NodeWithDriver::new();
    test.secret("own");
    test.rules(json!({"podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"]}));
    let source = json!({"driver": DRIVER, "readOnly": true, "volumeAttributes": {"size": "1"},
        "nodePublishSecretRef": {"name": "own"}});
    let (pods, kubelet) = test.run(&[pod_object("u1", json!({"csi": source}))]);
    test.runtime.until(|runtime| !runtime.running("c").is_empty()).await;
    let mount = test.runtime.running("c").remove(0).config.mounts.remove(0);
    let target = target(&test.folder.path().join("root"), "u1", "disk");
    assert_eq!((mount.host_path.as_str(), mount.readonly), (target.to_str().unwrap(), true));
    let request: NodePublishVolumeRequest = test.driver.calls("NodePublishVolume")[0].decode();
    assert_eq!(request.volume_id, super::source::digest_name(&["u1", "disk"]));
    assert_eq!((request.staging_target_path.as_str(), request.readonly), ("", true));
    assert_eq!(request.secrets["key"], "password");
    let expected = [
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("csi.storage.k8s.io/pod.name", "u1"),
        ("csi.storage.k8s.io/pod.namespace", "default"),
        ("csi.storage.k8s.io/pod.uid", "u1"),
        ("csi.storage.k8s.io/serviceAccount.name", "robot"),
        ("size", "1"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(request.volume_context, BTreeMap::from(expected));
    pods.set([]);
    test.until_order(&["NodePublishVolume", "NodeUnpublishVolume"]).await;
    kubelet.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_get_the_group_of_the_pod_from_the_kubelet_or_the_driver() {
    let test = NodeWithDriver::new();
    let (node, task) = test.kill_9().await;
    let pod = with_group(claiming("u1"), "Always");
    match set_up(&node, &pod, &volume(&test)).await {
        Err(error) if !rustix::process::geteuid().is_root() => {
            assert!(error.to_string().contains("applyFSGroup failed for vol disk-1"), "{error}");
        }
        other => {
            let meta = fs::metadata(other.unwrap()).unwrap();
            use std::os::unix::fs::MetadataExt;
            assert_eq!((meta.gid(), meta.mode() & 0o2070), (4242, 0o2070));
        }
    }
    task.abort();
    drop(node);

    let mut config = CsiDriverConfig::new(DRIVER);
    config.capabilities.push(NodeServiceRpcType::VolumeMountGroup);
    let test = NodeWithDriver::with(config);
    let (node, task) = test.kill_9().await;
    set_up(&node, &pod, &volume(&test)).await.unwrap();
    let request: NodePublishVolumeRequest = test.driver.calls("NodePublishVolume")[0].decode();
    let shown = format!("{:?}", request.volume_capability);
    assert!(shown.contains("volume_mount_group: \"4242\""), "{shown}");
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn drivers_are_registered_while_their_socket_is_there() {
    let mut config = CsiDriverConfig::new(DRIVER);
    config.max_volumes = 7;
    config.topology = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let mut test = NodeWithDriver::with(config.clone());
    let (node, task) = test.kill_9().await;
    test.driver.until("it is notified", |driver| driver.registered().is_some()).await;
    let status = test.driver.registered().unwrap();
    assert_eq!((status.plugin_registered, status.error.as_str()), (true, ""));
    let known = node.csi.changes().borrow()[DRIVER].clone();
    assert_eq!((&*known.node_id, known.max_volumes), ("id-of-node", Some(7)));
    assert_eq!(known.topology, config.topology);

    fs::remove_file(test.driver.registration()).unwrap();
    let root = node.paths.root.clone();
    let is_gone = || async {
        if node.csi.changes().borrow().is_empty() { Ok(()) } else { Err("there".to_owned()) }
    };
    wait_until("it is deregistered", BOUND, is_gone).await;
    // Another version of the driver.
    config.max_volumes = 8;
    test.driver = CsiTestDriver::start(&root, &test.folder.path().join("disks"), config.clone());
    let is_new = || async {
        let count = node.csi.changes().borrow().get(DRIVER).and_then(|it| it.max_volumes);
        if count == Some(8) { Ok(()) } else { Err(format!("{count:?}")) }
    };
    wait_until("it is registered again", BOUND, is_new).await;

    for (name, change) in [
        ("old.example.com", "None of the versions specified [\"0.3.0\"] are supported"),
        ("outside.example.com", "is not a socket of a plug-in's directory"),
        ("-bad", "the name must consist of"),
    ] {
        let mut refused = CsiDriverConfig::new(name);
        match name {
            "old.example.com" => refused.versions = vec!["0.3.0".to_owned()],
            "outside.example.com" => {
                let socket = test.folder.path().join("other.sock");
                let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
                refused.endpoint = Some(socket);
            }
            _ => {}
        }
        let driver = CsiTestDriver::start(&root, &test.folder.path().join("disks"), refused);
        driver.until("it is refused", |driver| driver.registered().is_some()).await;
        let status = driver.registered().unwrap();
        assert!(!status.plugin_registered && status.error.contains(change), "{status:?}");
        assert_eq!(node.csi.changes().borrow().len(), 1, "{name}");
        fs::remove_file(driver.registration()).unwrap();
    }
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_driver_of_the_tests_has_mounted_outlives_it() {
    let test = NodeWithDriver::new();
    let (node, task) = test.kill_9().await;
    for uid in ["u1", "u2"] {
        mount(&test, &node, uid).await.unwrap();
    }
    task.abort();
    let NodeWithDriver { driver, folder, .. } = test;
    drop(driver);
    let left = super::mount_table::mounted_below(folder.path()).unwrap();
    assert!(left.is_empty(), "{left:?}");
    assert!(folder.path().join("disks/disk-1").is_dir());
}

/// Whatever a driver or another process has left: files of a volume are not those of a pod.
#[tokio::test(flavor = "multi_thread")]
async fn the_directory_of_a_pod_is_not_removed_while_something_is_mounted_in_it() {
    let test = NodeWithDriver::new();
    let _mounts = MountGuard::new(test.folder.path());
    let (node, task) = test.kill_9().await;
    let data = test.folder.path().join("data");
    let left = node.paths.root.join("pods/u1/volumes/other/mount");
    for directory in [&data, &left] {
        fs::create_dir_all(directory).unwrap();
    }
    fs::write(data.join("file"), "kept").unwrap();
    if rustix::mount::mount_bind(&data, &left).is_err() {
        eprintln!("skipped: this process may not mount");
        return;
    }
    let gone = EndingPod { uid: "u1".to_owned(), grace: 0, pod: None, end: PodEnd::Removed };
    let refused = end(&node, &gone).await.unwrap_err().to_string();
    assert!(refused.ends_with("is still mounted"), "{refused}");
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "kept");
    rustix::mount::unmount(&left, rustix::mount::UnmountFlags::DETACH).unwrap();
    end(&node, &gone).await.unwrap();
    assert!(!node.paths.root.join("pods/u1").exists());
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "kept");
    task.abort();
}
