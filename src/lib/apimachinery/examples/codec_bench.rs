//! Time per call of the codecs on typical objects: `cargo run --release -p ferrokube-apimachinery
//! --example codec_bench`.

use ferrokube_apimachinery::document::{Map, Value, json};
use ferrokube_apimachinery::protobuf::Messages;
use ferrokube_apimachinery::selector::{CompiledLabels, LabelSelector};
use ferrokube_apimachinery::{json as codec, patch, yaml};
use std::hint::black_box;

fn main() {
    let config_map = config_map();
    let pod = pod();
    for (name, object) in [("configmap", &config_map), ("pod", &pod)] {
        let text = codec::to_vec(object);
        let document = codec::read(&text).expect("own output").document;
        let (bytes, layout) = codec::write(&document);
        let yaml_text = yaml::to_vec(object);
        println!("{name}: {} bytes of JSON, {} of YAML", text.len(), yaml_text.len());
        time("json::read", || drop(black_box(codec::read(black_box(&text)))));
        time("serde_json", || {
            drop(black_box(serde_json::from_slice::<serde_json::Value>(black_box(&text))))
        });
        time("json::write", || drop(black_box(codec::write(black_box(&document)))));
        let theirs: serde_json::Value = serde_json::from_slice(&text).expect("own output");
        time("serde_json", || drop(black_box(serde_json::to_vec(black_box(&theirs)))));
        println!("  heap: {:.2} times its JSON", document.heap_bytes() as f64 / text.len() as f64);
        time("clone", || drop(black_box(object.clone())));
        time("splice", || drop(black_box(codec::forms::splice_revision(&bytes, &layout, 123_456))));
        let selector = CompiledLabels::new(
            &LabelSelector::parse("app=web,tier in (a,b),!gone").expect("well-formed"),
        );
        time("select by bytes", || {
            black_box(selector.matches(codec::forms::labels(black_box(&bytes), &layout)));
        });
        time("yaml::read", || drop(black_box(yaml::read(black_box(&yaml_text)))));
        time("yaml::to_vec", || drop(black_box(yaml::to_vec(black_box(object)))));
        let change = json!({"metadata": {"labels": {"app": "db"}}, "data": {"k0": "x"}});
        time("merge patch (with a clone)", || {
            let mut target = object.clone();
            patch::merge_patch(&mut target, &change);
            black_box(target);
        });
    }
    protobuf(&config_map);
}

fn protobuf(config_map: &Value) {
    let table =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../resources/data/protobuf.tsv"));
    println!("protobuf: {} bytes of tables", table.len());
    time("parse tables", || drop(black_box(Messages::parse(table))));
    let messages = Messages::parse(table).expect("the committed table parses");
    let message = "k8s.io.api.core.v1.ConfigMap";
    let document = codec::read(&codec::to_vec(config_map)).expect("own output").document;
    let body = messages.write(message, &document).expect("fits");
    time("protobuf write", || drop(black_box(messages.write(message, black_box(&document)))));
    time("protobuf read", || drop(black_box(messages.read(message, black_box(&body)))));
}

/// Median CPU time of 40 batches after a warm-up. Wall time would include other work of the
/// machine.
fn time(name: &str, mut call: impl FnMut()) {
    (0..200).for_each(|_| call());
    let mut batches: Vec<u64> = (0..40)
        .map(|_| {
            let before = cpu_nanos();
            (0..100).for_each(|_| call());
            cpu_nanos() - before
        })
        .collect();
    batches.sort_unstable();
    println!(
        "  {name:<28} {:>9.2} us (best {:.2})",
        batches[20] as f64 / 1e5,
        batches[0] as f64 / 1e5
    );
}

/// CPU time of the process so far.
fn cpu_nanos() -> u64 {
    std::thread::yield_now();
    let schedstat = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
    schedstat
        .split(' ')
        .next()
        .and_then(|nanos| nanos.parse().ok())
        .expect("the first number is the CPU time")
}

fn config_map() -> Value {
    let data: Map =
        (0..8).map(|i| (format!("k{i}"), Value::from("0123456789".repeat(12)))).collect();
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata("settings"), "data": data})
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "namespace": "default", "uid": "0b7e1c5e-8d7a-4a0f-9b55-0d2f5e0a2f11", "creationTimestamp": "2024-02-29T12:34:56Z",
        "labels": {"app": "web", "tier": "a"}, "annotations": {"example.com/note": "a \"quoted\" text"}})
}

fn pod() -> Value {
    let container = |name: &str| {
        json!({"name": name, "image": format!("registry.example.com/{name}:1.2.3"), "imagePullPolicy": "IfNotPresent", "args": ["--verbose", "--port=8080"],
            "env": (0..6).map(|i| json!({"name": format!("VARIABLE_{i}"), "value": format!("value number {i}")})).collect::<Vec<_>>(),
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}], "resources": {"limits": {"cpu": "500m", "memory": "128Mi"}, "requests": {"cpu": "100m", "memory": "64Mi"}},
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "initialDelaySeconds": 5, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "token", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            "terminationMessagePath": "/dev/termination-log", "securityContext": {"allowPrivilegeEscalation": false, "runAsNonRoot": true}})
    };
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata("web-0"),
        "spec": {"containers": [container("one"), container("two")], "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "nodeName": "node-1",
            "serviceAccountName": "default", "schedulerName": "default-scheduler", "priority": 0, "enableServiceLinks": true,
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}], "defaultMode": 420}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]},
        "status": {"phase": "Running", "podIP": "10.1.2.3", "hostIP": "192.168.1.10", "qosClass": "Burstable",
            "conditions": (0..4).map(|i| json!({"type": format!("Condition{i}"), "status": "True", "lastTransitionTime": "2024-02-29T12:34:56Z"})).collect::<Vec<_>>(),
            "containerStatuses": [{"name": "one", "ready": true, "restartCount": 0, "image": "registry.example.com/one:1.2.3", "state": {"running": {"startedAt": "2024-02-29T12:34:56Z"}}}]}})
}
