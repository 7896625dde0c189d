//! Events at their true times, with kubelet's messages; ids; progress.

use crate::node::{PullNode, parallel, request, settle};
use ferrokube_cri::testing::PullScript;
use ferrokube_images::PullConfig;
use ferrokube_trace::{TraceContext, scoped};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn queued_is_shown_while_queued_and_pulling_while_pulling() {
    let node = PullNode::new(parallel(Some(1)));
    node.runtime.script_all(PullScript::Takes(Duration::from_secs(20)));
    let first = node.pod("a", "r.io/a:v1");
    settle().await;
    let second = node.pod("b", "r.io/b:v1");
    settle().await;
    let joiner = node.pod("joiner", "r.io/b:v1");
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    joiner.await.unwrap().unwrap();
    let events = |pod| node.events.of(pod, node.start);
    assert_eq!(events("a"), [(0, "Pulling"), (20, "Pulled")]);
    assert_eq!(events("b"), [(0, "Queued"), (20, "Pulling"), (40, "Pulled")]);
    assert_eq!(events("joiner"), events("b"));
    assert_eq!(
        node.events.messages("b"),
        [
            "Pull of image \"r.io/b:v1\" is queued: 1 in progress, 0 ahead",
            "Pulling image \"r.io/b:v1\"",
            "Successfully pulled image \"r.io/b:v1\" in 20s (39.999s including waiting). Image \
             size: 20971520 bytes.",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_long_pull_says_every_30_seconds_that_it_goes_on() {
    let node = PullNode::new(parallel(None));
    node.runtime.script_all(PullScript::Takes(Duration::from_secs(70)));
    node.pod("a", "r.io/a:v1").await.unwrap().unwrap();
    let events = node.events.of("a", node.start);
    assert_eq!(events, [(0, "Pulling"), (30, "Pulling"), (60, "Pulling"), (70, "Pulled")]);
}

#[tokio::test(start_paused = true)]
async fn a_pull_without_progress_is_cancelled_and_one_that_trickles_is_not() {
    let config = PullConfig { progress_timeout: Duration::from_secs(60), ..parallel(Some(1)) };
    let node = PullNode::new(config);
    node.runtime.script("r.io/stuck:v1", PullScript::Waits);
    let stuck = node.pod("stuck", "r.io/stuck:v1");
    settle().await;
    let next = node.pod("next", "r.io/next:v1");
    let error = stuck.await.unwrap().unwrap_err();
    assert_eq!((error.reason, &*error.message), ("ErrImagePull", "no progress for 60s, cancelled"));
    next.await.unwrap().unwrap();
    assert!(node.runtime.pulls()[0].cancelled);
    node.runtime.script("r.io/slow:v1", PullScript::Trickles);
    let slow = node.pod("slow", "r.io/slow:v1");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!slow.is_finished());
    assert!(node.metrics().contains("kubelet_image_pull_stalls_total 1\n"));
}

#[tokio::test(start_paused = true)]
async fn l14_the_runtime_gets_the_ids_of_the_pods_request() {
    let node = PullNode::new(parallel(Some(1)));
    let context = TraceContext::root();
    let manager = node.manager.clone();
    let request = request("a", "r.io/a:v1");
    let ensure = async move { manager.ensure(&request).await };
    scoped(context, tracing::Span::none(), ensure).await.unwrap();
    let seen = node.runtime.pulls()[0].context.unwrap();
    assert_eq!(seen.trace_id, context.trace_id);
    let calls = node.runtime.calls();
    assert!(calls.iter().all(|call| call.context.is_some()), "{calls:?}");
}
