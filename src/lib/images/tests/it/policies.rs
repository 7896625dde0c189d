//! Pull policies, back-off, rates, credentials, and kubelet's messages.

use crate::node::{PullNode, parallel, request, settle};
use ferrokube_cri::testing::PullScript;
use ferrokube_cri::{CallCode, CriError, RegistryAuth, path};
use ferrokube_images::{PullConfig, PullPolicy};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn never_and_present_do_not_pull() {
    let node = PullNode::new(parallel(None));
    let never = |image| {
        let mut request = request("never", image);
        request.policy = PullPolicy::Never;
        node.spawn(request)
    };
    let error = never("r.io/a:v1").await.unwrap().unwrap_err();
    assert_eq!(error.reason, "ErrImageNeverPull");
    let text = "Container image \"r.io/a:v1\" is not present with pull policy of Never";
    assert_eq!(error.message, text);
    node.runtime.add_image("r.io/a:v1");
    never("r.io/a:v1").await.unwrap().unwrap();
    node.pod("present", "r.io/a:v1").await.unwrap().unwrap();
    assert!(node.runtime.pulls().is_empty());
    let text =
        "Container image \"r.io/a:v1\" already present on machine and can be accessed by the pod";
    assert_eq!(node.events.messages("present"), [text]);
    assert!(node.events.fields().iter().all(|field| field == "spec.containers{main}"));
    let text = node.metrics();
    let row = "kubelet_image_manager_ensure_image_requests_total{pull_policy=\"ifnotpresent\",\
               present_locally=\"true\",pull_required=\"false\"} 1";
    assert!(text.contains(row), "{text}");
}

#[tokio::test(start_paused = true)]
async fn always_pulls_what_is_there() {
    let node = PullNode::new(parallel(None));
    node.runtime.add_image("r.io/a:v1");
    let mut always = request("always", "r.io/a:v1");
    always.policy = PullPolicy::Always;
    node.spawn(always).await.unwrap().unwrap();
    assert_eq!(node.runtime.pulled(), ["r.io/a:v1"]);
    assert_eq!(node.runtime.count(path::image_status), 1, "for its size only");
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_from_ten_seconds_to_five_minutes() {
    let node = PullNode::new(parallel(None));
    let error = CriError::new(CallCode::Unknown, "boom");
    node.runtime.script("r.io/a:v1", PullScript::Fails(error));
    let fail = async || node.pod("a", "r.io/a:v1").await.unwrap().unwrap_err();
    let error = fail().await;
    assert_eq!(error.to_string(), "ErrImagePull: rpc error: code = Unknown desc = boom");
    let error = fail().await;
    assert_eq!(
        error.to_string(),
        "ImagePullBackOff: Back-off pulling image \"r.io/a:v1\": ErrImagePull: rpc error: code = \
         Unknown desc = boom"
    );
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let since = tokio::time::Instant::now();
        while fail().await.reason == "ImagePullBackOff" {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        pauses.push(since.elapsed().as_secs() - 1);
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300]);
    // Another pod has its own.
    let other = node.pod("other", "r.io/a:v1").await.unwrap().unwrap_err();
    assert_eq!(other.reason, "ErrImagePull");
}

#[tokio::test(start_paused = true)]
async fn pulls_over_the_burst_are_refused() {
    let config = PullConfig { registry_qps: 1, registry_burst: 2, ..parallel(None) };
    let node = PullNode::new(config);
    node.pod("a", "r.io/a:v1").await.unwrap().unwrap();
    let pods = ["b", "c", "d"].map(|name| node.pod(name, &format!("r.io/{name}:v1")));
    let mut refused = 0;
    for pod in pods {
        if let Err(error) = pod.await.unwrap() {
            assert_eq!(error.to_string(), "ErrImagePull: pull QPS exceeded");
            refused += 1;
        }
    }
    assert_eq!(refused, 1);
}

#[tokio::test(start_paused = true)]
async fn wrong_names_and_a_dead_runtime_are_named() {
    let node = PullNode::new(parallel(None));
    let error = node.pod("a", "r.io/Upper:v1").await.unwrap().unwrap_err();
    assert_eq!(error.reason, "InvalidImageName");
    let text = "Failed to apply default image tag \"r.io/Upper:v1\": couldn't parse image name \
                \"r.io/Upper:v1\": invalid reference format: repository name must be lowercase";
    assert_eq!(error.message, text);
    let dead = CriError::new(CallCode::Unavailable, "connection refused");
    node.runtime.fail(path::image_status, Some(dead));
    let error = node.pod("a", "r.io/a:v1").await.unwrap().unwrap_err();
    assert_eq!(error.reason, "ImageInspectError");
    node.runtime.fail(path::image_status, None);
    let gone = CriError::new(CallCode::Unknown, "RegistryUnavailable: no route");
    node.runtime.script("r.io/gone:v1", PullScript::Fails(gone));
    let error = node.pod("a", "r.io/gone:v1").await.unwrap().unwrap_err();
    assert_eq!(error.reason, "RegistryUnavailable");
    let text = "image pull failed for r.io/gone:v1 because the registry is unavailable: no route";
    assert_eq!(error.message, text);
}

#[tokio::test(start_paused = true)]
async fn credentials_are_tried_in_turn_and_never_shown() {
    let node = PullNode::new(parallel(None));
    let denied = CriError::new(CallCode::PermissionDenied, "denied");
    node.runtime.script("r.io/a:v1", PullScript::Fails(denied));
    let mut pull = request("a", "r.io/a:v1");
    let auth = |word: &str| RegistryAuth { password: word.to_owned(), ..RegistryAuth::default() };
    pull.credentials = vec![auth("canary-1"), auth("canary-2")];
    let error = node.spawn(pull).await.unwrap().unwrap_err();
    settle().await;
    let denied = "rpc error: code = PermissionDenied desc = denied";
    assert_eq!(error.message, format!("[{denied}, {denied}]"));
    assert_eq!(node.runtime.pulls().len(), 2);
    assert!(!node.events.messages("a").concat().contains("canary"));
}
