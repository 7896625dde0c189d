//! Pods that have finished, by themselves or as another client has it.

use super::*;

fn with_phase(uid: &str, phase: &str) -> Pod {
    let mut pod = claiming(uid);
    pod.status = serde_json::from_value(json!({"phase": phase})).unwrap();
    pod
}

/// Files of a pod are updated each minute and when it changes, but not once it has finished.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_has_finished_is_not_mounted_again() {
    let test = NodeWithDriver::new();
    let labelled = |label: &str| {
        let mut pod = claiming("u1");
        pod.metadata.labels = Some(BTreeMap::from([("l".to_owned(), label.to_owned())]));
        let spec = pod.spec.as_mut().unwrap();
        spec.restart_policy = Some("Never".to_owned());
        let labels = json!({"name": "labels", "downwardAPI": {"items": []}});
        spec.volumes.as_mut().unwrap().push(serde_json::from_value(labels).unwrap());
        pod
    };
    let (pods, kubelet) = test.run(&[labelled("a")]);
    test.runtime.until(|runtime| !runtime.running("c").is_empty()).await;
    let container = test.runtime.running("c").remove(0).report.id;
    test.runtime.exit(&container, 0);
    let all = [MOUNTED, UNMOUNTED].concat();
    test.until_order(&all).await;
    // Each time its worker observes it, it has done what it had to do before.
    for label in ["b", "c", "d"] {
        let observed = test.runtime.count(ferrokube_cri::path::container_status);
        pods.set([labelled(label)]);
        let again =
            |runtime: &FakeRuntime| runtime.count(ferrokube_cri::path::container_status) > observed;
        test.runtime.until(again).await;
    }
    assert_eq!(test.driver.order(), all);
    kubelet.abort();
}

/// A status may be posted by a kubelet that is killed before the driver answers.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_a_pod_that_finished_under_a_killed_kubelet_are_unmounted() {
    let test = NodeWithDriver::new();
    let (node, task) = test.kill_9().await;
    mount(&test, &node, "u1").await.unwrap();
    task.abort();
    drop(node);
    let (_, kubelet) = test.run(&[with_phase("u1", "Succeeded")]);
    test.until_order(&[MOUNTED, UNMOUNTED].concat()).await;
    assert!(test.folder.path().join("root/pods/u1").is_dir(), "it is still the API's");
    kubelet.abort();
}

/// Controllers replace such pods, which must not run twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_another_client_has_failed_is_stopped_also_by_the_next_kubelet() {
    let test = NodeWithDriver::new();
    let (pods, kubelet) = test.run(&[claiming("u1"), claiming("u2")]);
    test.runtime.until(|runtime| runtime.running("c").len() == 2).await;
    pods.set([with_phase("u1", "Failed"), claiming("u2")]);
    test.runtime.until(|runtime| runtime.running("c").len() == 1).await;
    let target = |uid: &str| target(&test.folder.path().join("root"), uid, "pv-1");
    let is_unpublished = |driver: &CsiTestDriver, uid: &str| {
        let calls = driver.calls("NodeUnpublishVolume").into_iter();
        let mut paths = calls.map(|it| it.decode::<NodeUnpublishVolumeRequest>().target_path);
        paths.any(|path| path == target(uid).display().to_string())
    };
    test.driver.until("one is unpublished", |driver| is_unpublished(driver, "u1")).await;
    kubelet.abort();
    let _ = kubelet.await;
    let (_, kubelet) = test.run(&[with_phase("u1", "Failed"), with_phase("u2", "Failed")]);
    test.runtime.until(|runtime| runtime.running("c").is_empty()).await;
    test.driver.until("both are unpublished", |driver| is_unpublished(driver, "u2")).await;
    kubelet.abort();
}
