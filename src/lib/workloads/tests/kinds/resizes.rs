//! What the resize of a pod may change.

use super::{create, write_part};
use ferrokube_apimachinery::document::{Document, Value, json};

fn pod(spec: Value) -> Value {
    json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": spec})
}

/// The stored pod after a resize, and the errors.
fn resize(before: Value, after: Value) -> (Value, Vec<String>) {
    let (stored, errors) = create("pods", pod(before));
    assert_eq!(errors, [""; 0]);
    let stored = Document::from_value(stored).expect("an object");
    write_part("pods", "resize", Some(&stored), pod(after))
}

fn container(name: &str, cpu: &str) -> Value {
    json!({"name": name, "image": "i", "resources": {"requests": {"cpu": cpu}}})
}

#[test]
fn init_containers_are_resized_unless_they_would_restart() {
    let spec = |init: Value| json!({"initContainers": [init], "containers": [container("c", "1")]});
    let (stored, errors) = resize(spec(container("i", "1")), spec(container("i", "2")));
    assert_eq!(errors, [""; 0]);
    let init = &stored["spec"]["initContainers"][0]["resources"]["requests"]["cpu"];
    assert_eq!(init, &json!("2"));
    let mut restarts = container("i", "2");
    restarts["resizePolicy"] =
        json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    let errors = resize(spec(container("i", "1")), spec(restarts)).1;
    assert!(errors.contains(&"Forbidden spec.initContainers[0]".to_owned()), "{errors:?}");
    let mut other = container("i", "1");
    other["resources"]["requests"]["example.com/a"] = json!("1");
    other["resources"]["limits"] = json!({"example.com/a": "1"});
    let errors = resize(spec(container("i", "1")), spec(other)).1;
    assert_eq!(errors, ["Forbidden spec.initContainers[0]"]);
}

#[test]
fn pods_are_resized_as_a_whole() {
    let spec =
        |resources: Value| json!({"resources": resources, "containers": [container("c", "1")]});
    let one = json!({"requests": {"cpu": "2"}});
    let (stored, errors) = resize(spec(one.clone()), spec(json!({"requests": {"cpu": "3"}})));
    assert_eq!(errors, [""; 0]);
    assert_eq!(stored["spec"]["resources"]["requests"]["cpu"], json!("3"));
    let removed = resize(spec(one.clone()), spec(json!({"requests": {"memory": "1"}}))).1;
    assert_eq!(removed, ["Forbidden spec.resources.requests"]);
    let gone = resize(spec(one.clone()), json!({"containers": [container("c", "1")]})).1;
    assert_eq!(gone, ["Forbidden spec.resources"]);
    let pages = json!({"requests": {"cpu": "2", "hugepages-2Mi": "2Mi"}, "limits": {"hugepages-2Mi": "2Mi"}});
    assert_eq!(resize(spec(one), spec(pages)).1, ["Forbidden spec"]);
}

#[test]
fn containers_stay_as_they_are() {
    let one = json!({"containers": [container("c", "1")]});
    let errors = |after: Value| resize(one.clone(), after).1;
    let two = json!({"containers": [container("c", "1"), container("d", "1")]});
    assert_eq!(errors(two), ["Forbidden spec.containers"]);
    assert_eq!(
        errors(json!({"containers": [container("d", "1")]})),
        ["Forbidden spec.containers[0].name"]
    );
    let init =
        json!({"initContainers": [container("i", "1")], "containers": [container("c", "1")]});
    assert_eq!(errors(init), ["Forbidden spec.initContainers"]);
}
