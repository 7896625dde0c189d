//! How full volumes are, as their drivers say.

use super::*;
use crate::fields::NodeFacts;
use crate::volumes::{measure, prepare};

const METRICS: &str = "\
# HELP kubelet_volume_stats_available_bytes [ALPHA] Number of available bytes in the volume
# TYPE kubelet_volume_stats_available_bytes gauge
kubelet_volume_stats_available_bytes{namespace=\"default\",persistentvolumeclaim=\"data\"} 600
";

fn driver(capabilities: &[NodeServiceRpcType]) -> NodeWithDriver {
    let mut config = CsiDriverConfig::new(DRIVER);
    config.capabilities.extend(capabilities);
    let test = NodeWithDriver::with(config);
    test.rules(json!({"attachRequired": false,
        "volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
    test
}

/// Pods with a volume of their own and one of a claim that they share.
async fn measured(node: &PodNode) -> Value {
    for uid in ["u1", "u2"] {
        let mut pod = claiming(uid);
        let own = json!({"name": "own", "csi": {"driver": DRIVER}});
        let volumes = pod.spec.as_mut().unwrap().volumes.as_mut().unwrap();
        volumes.push(serde_json::from_value(own).unwrap());
        let pod = NodePod::from_api(&pod).unwrap();
        prepare(node, &pod, &NodeFacts::default()).await.unwrap();
        node.active.lock().insert(uid.to_owned(), Arc::new(pod));
    }
    measure::round(node).await;
    let mut samples = json!(node.volumes.of("u1"));
    for sample in samples.as_array_mut().unwrap() {
        assert!(sample.as_object_mut().unwrap().remove("time").is_some_and(|it| it.is_string()));
    }
    samples
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_and_health_of_volumes_are_in_the_summary_and_the_metrics_of_claims() {
    use NodeServiceRpcType::{GetVolumeStats, VolumeCondition};
    let test = driver(&[GetVolumeStats, VolumeCondition]);
    let (node, task) = test.kill_9().await;
    let usage = json!({"availableBytes": 600, "capacityBytes": 1000, "usedBytes": 400,
        "inodesFree": 10, "inodes": 20, "inodesUsed": 10, "volumeHealthStats": {"abnormal": true}});
    let claim = json!({"name": "data", "namespace": "default"});
    let expected = json!([
        with(usage.clone(), json!({"name": "disk", "pvcRef": claim})),
        with(usage, json!({"name": "own"}))
    ]);
    assert_eq!(measured(&node).await, expected);
    let mut text = String::new();
    node.volumes.write_metrics(&mut text);
    assert!(text.starts_with(METRICS), "{text}");
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(samples, 7, "one of each, of two pods: {text}");
    let asked: Vec<(bool, String)> = test
        .driver
        .calls("NodeGetVolumeStats")
        .iter()
        .map(|call| call.decode::<NodeGetVolumeStatsRequest>())
        .map(|request| (request.staging_target_path.is_empty(), request.volume_path))
        .collect();
    let path = |name: &str| target(&node.paths.root, "u1", name).display().to_string();
    assert!(asked.contains(&(false, path("pv-1"))) && asked.contains(&(true, path("own"))));
    // What is no longer there is not shown as it was.
    test.driver.fail("NodeGetVolumeStats", Some((CallCode::Internal, "gone")));
    measure::round(&node).await;
    assert!(node.volumes.of("u1").is_empty());
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_cannot_measure_is_not_asked() {
    let test = driver(&[]);
    let (node, task) = test.kill_9().await;
    assert_eq!(measured(&node).await, json!([]));
    assert!(test.driver.calls("NodeGetVolumeStats").is_empty());
    task.abort();
}
