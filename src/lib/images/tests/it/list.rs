//! The kubelet's own list: I10 to I18.

use crate::node::{PullNode, parallel, request, settle};
use ferrokube_cri::RegistryAuth;
use ferrokube_cri::testing::PullScript;
use ferrokube_images::PullConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("r.io/image{number:02}:v1")).collect()
}

#[tokio::test(start_paused = true)]
async fn i10_i11_i13_i16_twenty_images_at_limit_three_are_pulled_in_order() {
    let node = PullNode::new(parallel(Some(3)));
    let images = names(20);
    let mut pods = Vec::new();
    for (number, image) in images.iter().enumerate() {
        pods.push(node.pod(&format!("pod{number}"), image));
        // In this order.
        settle().await;
    }
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    assert_eq!(node.runtime.most_in_flight(), 3);
    assert_eq!(node.runtime.pulled(), images, "first in, first out; each once");
}

#[tokio::test(start_paused = true)]
async fn i12_a_failed_or_finished_pull_frees_its_place() {
    let node = PullNode::new(parallel(Some(1)));
    let error = ferrokube_cri::CriError::new(ferrokube_cri::CallCode::NotFound, "no such image");
    node.runtime.script("r.io/bad:v1", PullScript::Fails(error));
    let bad = node.pod("bad", "r.io/bad:v1");
    settle().await;
    let good = node.pod("good", "r.io/good:v1");
    assert_eq!(bad.await.unwrap().unwrap_err().reason, "ErrImagePull");
    good.await.unwrap().unwrap();
    let last = node.pod("last", "r.io/last:v1");
    last.await.unwrap().unwrap();
    let text = node.metrics();
    assert!(text.contains("kubelet_image_pulls_in_flight 0\n"), "{text}");
    assert!(text.contains("kubelet_image_pulls_queued 0\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn i14_a_full_list_blocks_without_an_error() {
    let node = PullNode::new(parallel(Some(2)));
    node.runtime.script_all(PullScript::Waits);
    let first = node.pod("a", "r.io/a:v1");
    let second = node.pod("b", "r.io/b:v1");
    settle().await;
    let third = node.pod("c", "r.io/c:v1");
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(node.runtime.pulled(), ["r.io/a:v1", "r.io/b:v1"]);
    assert!(!third.is_finished());
    let text = node.metrics();
    assert!(text.contains("kubelet_image_pulls_in_flight 2\n"), "{text}");
    assert!(text.contains("kubelet_image_pulls_queued 1\n"), "{text}");
    node.runtime.release("r.io/b:v1");
    second.await.unwrap().unwrap();
    settle().await;
    node.runtime.release("r.io/c:v1");
    third.await.unwrap().unwrap();
    assert!(!first.is_finished(), "a stuck pull stops no other below the limit");
}

#[tokio::test(start_paused = true)]
async fn i15_d11_fourteen_pods_of_an_image_cause_one_pull_and_hold_one_slot() {
    let node = PullNode::new(parallel(Some(2)));
    node.runtime.script("r.io/same:v1", PullScript::Takes(Duration::from_secs(60)));
    let pods: Vec<_> =
        (0..14).map(|number| node.pod(&format!("pod{number}"), "r.io/same:v1")).collect();
    settle().await;
    // The other slot is free.
    node.pod("other", "r.io/other:v1").await.unwrap().unwrap();
    assert!(node.start.elapsed() < Duration::from_secs(10));
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    assert_eq!(node.runtime.pulled(), ["r.io/same:v1", "r.io/other:v1"]);
    let text = node.metrics();
    assert!(text.contains("kubelet_image_pull_joins_total 13\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn other_credentials_are_another_pull() {
    let node = PullNode::new(parallel(None));
    let with = |user: &str| {
        let mut request = request(user, "r.io/private:v1");
        let username = user.to_owned();
        request.credentials = vec![RegistryAuth { username, ..RegistryAuth::default() }];
        request
    };
    let pods = [node.spawn(with("alice")), node.spawn(with("bob")), node.spawn(with("bob"))];
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    let users: Vec<String> =
        node.runtime.pulls().into_iter().map(|pull| pull.auth.unwrap().username).collect();
    assert_eq!(users, ["alice", "bob"]);
}

#[tokio::test(start_paused = true)]
async fn a_queued_pull_leaves_with_its_pod() {
    let node = PullNode::new(parallel(Some(1)));
    node.runtime.script("r.io/a:v1", PullScript::Waits);
    let first = node.pod("a", "r.io/a:v1");
    settle().await;
    let gone = node.pod("gone", "r.io/gone:v1");
    settle().await;
    let last = node.pod("last", "r.io/last:v1");
    settle().await;
    gone.abort();
    settle().await;
    let text = node.metrics();
    assert!(text.contains("kubelet_image_pulls_queued 1\n"), "its place is free at once: {text}");
    assert!(text.contains("kubelet_image_pull_cancellations_total 1\n"), "{text}");
    node.runtime.release("r.io/a:v1");
    first.await.unwrap().unwrap();
    last.await.unwrap().unwrap();
    assert_eq!(node.runtime.pulled(), ["r.io/a:v1", "r.io/last:v1"], "the deleted pod's is not");
}

#[tokio::test(start_paused = true)]
async fn a_pull_goes_on_while_one_of_its_pods_is_left() {
    let node = PullNode::new(parallel(Some(1)));
    node.runtime.script("r.io/a:v1", PullScript::Waits);
    let starter = node.pod("starter", "r.io/a:v1");
    settle().await;
    let joiner = node.pod("joiner", "r.io/a:v1");
    settle().await;
    starter.abort();
    settle().await;
    assert_eq!(node.runtime.in_flight(), 1);
    node.runtime.release("r.io/a:v1");
    joiner.await.unwrap().unwrap();
    // The last one's leaving cancels the call and frees the slot.
    node.runtime.script("r.io/b:v1", PullScript::Waits);
    let only = node.pod("only", "r.io/b:v1");
    settle().await;
    only.abort();
    settle().await;
    assert!(node.runtime.pulls()[1].cancelled);
    node.pod("next", "r.io/c:v1").await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_waiting_the_image_is_looked_up_again() {
    let node = PullNode::new(parallel(Some(1)));
    node.runtime.script("r.io/a:v1", PullScript::Waits);
    let first = node.pod("a", "r.io/a:v1");
    settle().await;
    let second = node.pod("b", "r.io/b:v1");
    settle().await;
    node.runtime.add_image("r.io/b:v1");
    node.runtime.release("r.io/a:v1");
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(node.runtime.pulled(), ["r.io/a:v1"]);
}

#[tokio::test(start_paused = true)]
async fn serialized_pulls_are_one_at_a_time() {
    let config = PullConfig {
        is_serial: true,
        max_parallel: None,
        registry_qps: 0,
        ..PullConfig::default()
    };
    let node = PullNode::new(config);
    let pods: Vec<_> = names(5).iter().map(|image| node.pod(image, image)).collect();
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    assert_eq!(node.runtime.most_in_flight(), 1);
    assert_eq!(node.runtime.pulls().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn i02_d08_without_a_limit_all_are_pulled_at_once() {
    for limit in [None, Some(0)] {
        let node = PullNode::new(parallel(limit));
        let pods: Vec<_> = names(30).iter().map(|image| node.pod(image, image)).collect();
        for pod in pods {
            pod.await.unwrap().unwrap();
        }
        assert_eq!(node.runtime.most_in_flight(), 30);
    }
}

#[tokio::test(start_paused = true)]
async fn i17_no_pull_has_priority() {
    let node = PullNode::new(parallel(Some(1)));
    let images = names(3);
    let mut pods = Vec::new();
    for image in &images {
        // What a pod says of its priority is not even part of a request: annotations are none.
        let mut request = request(image, image);
        request.annotations.insert("priority".to_owned(), image.clone());
        pods.push(node.spawn(request));
        settle().await;
    }
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    assert_eq!(node.runtime.pulled(), images);
}

#[tokio::test(start_paused = true)]
async fn i18_qps_and_burst_do_not_bound_pulls_in_progress_the_limit_does() {
    let slow = |limit| PullConfig { registry_qps: 1, registry_burst: 2, ..parallel(limit) };
    for (limit, most) in [(None, 8), (Some(3), 3)] {
        let node = PullNode::new(slow(limit));
        node.runtime.script_all(PullScript::Takes(Duration::from_secs(60)));
        let mut pods = Vec::new();
        for image in names(8) {
            pods.push(node.pod(&image, &image));
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        for pod in pods {
            pod.await.unwrap().unwrap();
        }
        assert_eq!(node.runtime.most_in_flight(), most);
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_pods_at_once_wait_in_a_queue() {
    let node = PullNode::new(parallel(Some(3)));
    let pods: Vec<_> = (0..1000)
        .map(|number| node.pod(&format!("pod{number}"), &format!("r.io/i{}:v1", number % 50)))
        .collect();
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    assert_eq!(node.runtime.most_in_flight(), 3);
    assert_eq!(node.runtime.pulls().len(), 50);
}

/// Feature gate `MaxParallelImagePulls`, which may change at any time.
#[tokio::test(start_paused = true)]
async fn the_limit_is_lifted_while_its_gate_is_off() {
    for (is_serial_without_limit, most) in [(false, 6), (true, 1)] {
        let gate = Arc::new(AtomicBool::new(true));
        let config = PullConfig { is_serial_without_limit, ..parallel(Some(2)) };
        let mut node = PullNode::new(config);
        node.manager = node.manager.limited_by(Arc::clone(&gate));
        node.runtime.script_all(PullScript::Takes(Duration::from_secs(60)));
        let need = |names: Vec<String>| {
            names.iter().map(|image| node.pod(image, image)).collect::<Vec<_>>()
        };
        let first = need(names(6));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(node.runtime.most_in_flight(), 2);
        gate.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(5)).await;
        // Those that waited need no end of another.
        assert_eq!(node.runtime.most_in_flight(), most.max(2));
        for pod in first {
            pod.await.unwrap().unwrap();
        }
        gate.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        for pod in need((6..10).map(|number| format!("r.io/later{number}:v1")).collect()) {
            pod.await.unwrap().unwrap();
        }
        // Two by two again.
        assert_eq!(begun.elapsed().as_secs(), 120);
    }
}
