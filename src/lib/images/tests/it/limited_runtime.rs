//! A runtime that enforces the limit itself: I03 to I09, against the reference implementation.

use crate::node::{PullNode, parallel, settle};
use ferrokube_cri::limit::{EXTENSION, LimitedRuntime, TOO_MANY};
use ferrokube_cri::testing::{FakeRuntime, PullScript};
use ferrokube_cri::{CallCode, ImageSpec, PullImageRequest, Runtime, Transport};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

async fn limited(limit: Option<u32>) -> PullNode {
    let fake = Arc::new(FakeRuntime::default());
    let shim = Arc::new(LimitedRuntime::new(Arc::clone(&fake) as Arc<dyn Transport>));
    let node = PullNode::behind(parallel(limit), fake, shim);
    assert!(node.manager.learn_capabilities().await.expect("the fake answers"));
    node
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

#[tokio::test(start_paused = true)]
async fn i03_d10_the_limit_is_offered_to_a_runtime_that_lists_it() {
    let node = limited(Some(2)).await;
    node.pod("a", "r.io/a:v1").await.unwrap().unwrap();
    let pull = node.runtime.pulls().remove(0);
    assert_eq!(pull.annotations.get(EXTENSION).unwrap(), "2");
    // Another runtime does not list it, and is not handed it.
    let plain = PullNode::new(parallel(Some(2)));
    assert!(!plain.manager.learn_capabilities().await.unwrap());
    plain.pod("a", "r.io/a:v1").await.unwrap().unwrap();
    assert!(plain.runtime.pulls()[0].annotations.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_limit_whose_gate_is_off_is_not_offered() {
    let gate = Arc::new(AtomicBool::new(false));
    let mut node = limited(Some(2)).await;
    node.manager = node.manager.limited_by(Arc::clone(&gate));
    assert!(node.manager.learn_capabilities().await.unwrap());
    for (image, offered) in [("r.io/a:v1", None), ("r.io/b:v1", Some("2"))] {
        node.pod("a", image).await.unwrap().unwrap();
        let pull = node.runtime.pulls().pop().unwrap();
        assert_eq!(pull.annotations.get(EXTENSION).map(String::as_str), offered, "{image}");
        gate.store(true, Ordering::Relaxed);
    }
}

fn pull(image: &str, limit: &str) -> PullImageRequest {
    let annotations = [(EXTENSION.to_owned(), limit.to_owned())].into();
    let image = ImageSpec { image: image.to_owned(), annotations, ..ImageSpec::default() };
    PullImageRequest { image: Some(image), ..PullImageRequest::default() }
}

#[tokio::test(start_paused = true)]
async fn i04_an_image_that_is_there_succeeds_at_the_limit() {
    let node = limited(Some(1)).await;
    node.runtime.script("r.io/a:v1", PullScript::Waits);
    node.runtime.add_image("r.io/there:v1");
    let _first = node.pod("a", "r.io/a:v1");
    settle().await;
    let shim = LimitedRuntime::new(Arc::clone(&node.runtime) as Arc<dyn Transport>);
    let shim = Runtime::new(Arc::new(shim));
    let begun = Instant::now();
    let response = shim.pull_image(pull("r.io/there:v1", "1")).await.unwrap();
    assert_eq!(response.image_ref, "sha256:r.io/there:v1");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(node.runtime.pulls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn i05_no_limit_is_as_before() {
    let node = limited(None).await;
    let pods: Vec<_> = (0..10).map(|number| node.pod("a", &format!("r.io/i{number}:v1"))).collect();
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    assert_eq!(node.runtime.most_in_flight(), 10);
    assert!(node.runtime.pulls().iter().all(|pull| pull.annotations.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn i06_i07_i08_a_pull_over_the_limit_fails_at_the_fourth_check() {
    let node = limited(Some(1)).await;
    node.runtime.script("r.io/a:v1", PullScript::Waits);
    let _first = node.pod("a", "r.io/a:v1");
    settle().await;
    let begun = Instant::now();
    let error = node.pod("b", "r.io/b:v1").await.unwrap().unwrap_err();
    assert_eq!(begun.elapsed(), seconds(30));
    assert_eq!(error.reason, TOO_MANY);
    assert_eq!(
        error.message,
        "rpc error: code = ResourceExhausted desc = TooManyPullingInParallelErr: 1 images are \
         being pulled"
    );
    let events = node.events.of("b", begun);
    assert_eq!((events[0], events[events.len() - 1]), ((0, "Pulling"), (30, TOO_MANY)));
    assert_eq!(node.runtime.pulls().len(), 1, "no retry of the call");
    // It backs off as after any failure.
    let error = node.pod("b", "r.io/b:v1").await.unwrap().unwrap_err();
    assert_eq!(error.reason, "ImagePullBackOff");
    assert!(error.message.contains(TOO_MANY), "{error}");
    assert!(node.metrics().contains("kubelet_image_pull_refusals_total 1\n"));
}

#[tokio::test(start_paused = true)]
async fn i08_a_slot_freed_at_19_seconds_succeeds() {
    let node = limited(Some(1)).await;
    node.runtime.script("r.io/a:v1", PullScript::Takes(seconds(19)));
    let first = node.pod("a", "r.io/a:v1");
    settle().await;
    let second = node.pod("b", "r.io/b:v1");
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    let begun = node.runtime.pulls()[1].begun - node.start;
    assert_eq!(begun.as_secs(), 20, "at the check after");
}

#[tokio::test(start_paused = true)]
async fn i09_below_the_limit_pulls_go_on_as_before() {
    let node = limited(Some(3)).await;
    let pods: Vec<_> = (0..3).map(|number| node.pod("a", &format!("r.io/i{number}:v1"))).collect();
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    assert_eq!(node.runtime.most_in_flight(), 3);
    assert!(node.start.elapsed() < seconds(2));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_frees_the_runtimes_slot() {
    let node = limited(Some(1)).await;
    node.runtime.script("r.io/a:v1", PullScript::Waits);
    let gone = node.pod("a", "r.io/a:v1");
    settle().await;
    gone.abort();
    settle().await;
    let begun = Instant::now();
    node.pod("b", "r.io/b:v1").await.unwrap().unwrap();
    assert!(begun.elapsed() < seconds(2));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_cannot_say_leaves_the_own_list_in_charge() {
    let node = PullNode::new(parallel(Some(1)));
    let dead = ferrokube_cri::CriError::new(CallCode::Unavailable, "connection refused");
    node.runtime.fail(ferrokube_cri::path::status, Some(dead));
    node.manager.learn_capabilities().await.unwrap_err();
    let pods = [node.pod("a", "r.io/a:v1"), node.pod("b", "r.io/b:v1")];
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    assert_eq!(node.runtime.most_in_flight(), 1);
}
