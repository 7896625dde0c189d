//! Tokens of the pod for its drivers, and calls that renew them.

use super::super::tokens::TOKENS;
use super::*;
use crate::fields::NodeFacts;
use crate::volumes::{prepare, upkeep};
use ferrokube_testkit::CsiCall;

const EXPIRES: &str = "2030-01-01T00:00:00Z";

impl NodeWithDriver {
    /// A token that the service account gets for an audience.
    fn token(&self, audience: &str, seconds: Option<i64>, token: &str) {
        let token = json!({"token": token, "expirationTimestamp": EXPIRES});
        self.objects.set("token", &format!("robot/{audience}/{seconds:?}"), token);
    }

    /// The tokens of a call, by audience.
    fn published(&self, index: usize) -> Value {
        let request: NodePublishVolumeRequest =
            self.driver.calls("NodePublishVolume")[index].decode();
        serde_json::from_str(&request.volume_context[TOKENS]).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_gets_the_tokens_that_it_wants_where_it_wants_them() {
    let test = NodeWithDriver::new();
    let wanted = json!([{"audience": "vault", "expirationSeconds": 600}, {"audience": ""}]);
    test.rules(json!({"attachRequired": false, "tokenRequests": wanted}));
    let (node, task) = test.kill_9().await;
    test.token("vault", Some(600), "t1");
    let failed = mount(&test, &node, "u1").await.unwrap_err();
    assert_eq!(
        failed,
        "MountVolume.SetUp failed for volume \"pv-1\" : kubernetes.io/csi: mounter.SetUpAt failed \
         to get service accoount token attributes: the server returned no token"
    );
    assert!(test.driver.calls("NodePublishVolume").is_empty());
    test.token("", None, "t2");
    mount(&test, &node, "u1").await.unwrap();
    let expected = json!({"": {"token": "t2", "expirationTimestamp": EXPIRES},
        "vault": {"token": "t1", "expirationTimestamp": EXPIRES}});
    assert_eq!(test.published(0), expected);
    let staged: NodeStageVolumeRequest = test.driver.calls("NodeStageVolume")[0].decode();
    assert!(staged.volume_context.is_empty(), "it is for all pods");

    test.rules(json!({"attachRequired": false, "tokenRequests": wanted,
        "serviceAccountTokenInSecrets": true}));
    mount(&test, &node, "u2").await.unwrap();
    let request: NodePublishVolumeRequest = test.driver.calls("NodePublishVolume")[1].decode();
    assert!(request.volume_context.is_empty());
    let secret: Value = serde_json::from_str(&request.secrets[TOKENS]).unwrap();
    assert_eq!(secret, expected);
    task.abort();
}

/// A volume of the pod itself and one of a claim, which the driver wants to renew.
fn renewing() -> NodePod {
    let mut pod = claiming("u1");
    let own = json!({"name": "own", "csi": {"driver": DRIVER}});
    let volumes = pod.spec.as_mut().unwrap().volumes.as_mut().unwrap();
    volumes.push(serde_json::from_value(own).unwrap());
    NodePod::from_api(&pod).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn mounted_volumes_are_published_again_with_new_tokens() {
    let test = NodeWithDriver::new();
    let rules = json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"],
        "requiresRepublish": true, "tokenRequests": [{"audience": "vault"}]});
    test.rules(rules);
    test.attachment(json!({"attached": true, "attachmentMetadata": {"device": "/dev/vdb"}}));
    test.token("vault", None, "t1");
    let (node, task) = test.kill_9().await;
    let pod = renewing();
    prepare(&node, &pod, &NodeFacts::default()).await.unwrap();
    if !mounts(&test, "u1") {
        eprintln!("skipped: this process may not mount");
        return;
    }
    node.active.lock().insert(pod.uid.clone(), Arc::new(pod.clone()));
    test.token("vault", None, "t2");
    upkeep::round(&node).await;
    let requests = || -> Vec<NodePublishVolumeRequest> {
        test.driver.calls("NodePublishVolume").iter().map(CsiCall::decode).collect()
    };
    let all = requests();
    assert_eq!(all.len(), 4, "each volume twice");
    let token = json!({"vault": {"token": "t2", "expirationTimestamp": EXPIRES}});
    assert_eq!((test.published(2), test.published(3)), (token.clone(), token));
    let (first, again) = all.split_at(2);
    for (first, again) in first.iter().zip(again) {
        let of = |it: &NodePublishVolumeRequest| (it.volume_id.clone(), it.target_path.clone());
        assert_eq!(of(first), of(again));
    }
    let again = &again[0];
    assert_eq!(again.publish_context["device"], "/dev/vdb");
    assert!(again.staging_target_path.ends_with("/globalmount"));
    assert_eq!(test.driver.calls("NodeStageVolume").len(), 1, "it stays staged");

    // A failure is reported, and leaves the volume to its pod.
    test.driver.fail("NodePublishVolume", Some((CallCode::Unavailable, "sealed")));
    upkeep::round(&node).await;
    let failed = |volume: &str| {
        let code = "rpc error: code = Unavailable desc = sealed";
        ("FailedMount", format!("MountVolume.SetUp failed for volume \"{volume}\" : {code}"))
    };
    assert_eq!(*test.events.0.lock(), ["pv-1", "own"].map(failed));
    assert!(is_ready(&target(&node.paths.root, "u1", "pv-1")).unwrap());
    test.driver.fail("NodePublishVolume", None);

    // Not once its pod has ended.
    tear_down(&node, "u1").await.unwrap();
    upkeep::round(&node).await;
    assert_eq!(requests().len(), 6);
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_does_not_want_to_be_called_again_is_not() {
    let test = NodeWithDriver::new();
    let (node, task) = test.kill_9().await;
    let pod = NodePod::from_api(&claiming("u1")).unwrap();
    prepare(&node, &pod, &NodeFacts::default()).await.unwrap();
    node.active.lock().insert(pod.uid.clone(), Arc::new(pod));
    upkeep::round(&node).await;
    assert_eq!(test.driver.order(), MOUNTED);
    task.abort();
}
