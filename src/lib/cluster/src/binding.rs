//! `pods/binding` and the older `bindings`: assign a pod to a node, once.

use crate::{conditions, pod_target, success};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::ComputedResource;
use ferrokube_registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_schema::Schema;
use std::sync::Arc;
use std::time::SystemTime;

/// The handler of both, with the schema of their body.
pub(crate) struct PodBinding(pub(crate) Arc<Schema>);

impl ComputedResource for PodBinding {
    fn create<'a>(&'a self, call: ComputedCall<'a>, object: Document) -> ComputedFuture<'a> {
        Box::pin(async move { bind(call, &object).await })
    }

    fn schema(&self) -> Option<Arc<Schema>> {
        Some(Arc::clone(&self.0))
    }
}

async fn bind(call: ComputedCall<'_>, binding: &Document) -> Result<Document, Failure> {
    let name = call.target.name.as_deref().unwrap_or(binding.name());
    if name != binding.name() {
        return Err(Failure::bad_request("name in URL does not match name in Binding object"));
    }
    check(binding)?;
    let pod = pod_target(&call, name, "")?;
    let now = call.context.now;
    let assign = |pod: &mut Document| assign(pod, binding, now);
    call.registry.amend(call.context, &pod, call.options, assign).await?;
    Ok(success())
}

/// kube-apiserver returns 500 here.
fn check(binding: &Document) -> Result<(), Failure> {
    let mut errors = Vec::new();
    let target = |field| binding.str(&["target", field]).unwrap_or_default();
    if !matches!(target("kind"), "" | "Node") {
        let known = ["Node", "<empty>"];
        errors.push(FieldError::not_supported("target.kind", target("kind"), known));
    }
    if target("name").is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    let text = |error: &FieldError| format!("{}: {}", error.field, error.message);
    let texts: Vec<String> = errors.iter().map(text).collect();
    match texts.as_slice() {
        [] => Ok(()),
        [one] => Err(Failure::bare(500, one)),
        all => Err(Failure::bare(500, format!("[{}]", all.join(", ")))),
    }
}

/// Sets the pod's node, and the labels and annotations of the binding.
fn assign(pod: &mut Document, binding: &Document, now: SystemTime) -> Result<(), Failure> {
    let name = pod.name().to_owned();
    for (what, field) in [("UID", "uid"), ("ResourceVersion", "resourceVersion")] {
        let (asked, stored) = (binding.meta(field), pod.meta(field));
        if !asked.is_empty() && asked != stored {
            let key = format!("/registry/pods/{}/{name}", pod.namespace());
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {what} in precondition: {asked}, {what} in object meta: {stored}"
            );
            return Err(Failure::conflict(&GroupResource::new("", "pods"), &name, &why));
        }
    }
    let node = pod.str(&["spec", "nodeName"]).unwrap_or_default();
    let why = if pod.is_terminating() {
        format!("pod {name} is being deleted, cannot be assigned to a host")
    } else if !node.is_empty() {
        format!("pod {name} is already assigned to node {node:?}")
    } else if !pod.list(&["spec", "schedulingGates"]).is_empty() {
        format!("pod {name} has non-empty .spec.schedulingGates")
    } else {
        let node = binding.str(&["target", "name"]).unwrap_or_default();
        pod.set(&["spec", "nodeName"], node);
        pod.remove(&["status", "nominatedNodeName"]);
        for field in ["annotations", "labels"] {
            let given = binding.get(&["metadata", field]).and_then(Value::as_object);
            for (key, value) in given.into_iter().flatten() {
                pod.set(&["metadata", field, key.as_str()], value.clone());
            }
        }
        conditions::set(pod, json!({"type": "PodScheduled", "status": "True"}), now);
        return Ok(());
    };
    Err(Failure::conflict(&GroupResource::new("", "pods/binding"), &name, &why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(value: Value) -> Document {
        Document::from_value(value).unwrap()
    }

    fn binding() -> Document {
        document(json!({
            "metadata": {"name": "p", "labels": {"a": "b"}, "annotations": {"c": "d"}},
            "target": {"kind": "Node", "name": "n"},
        }))
    }

    fn refused(pod: Value, binding: &Document) -> String {
        assign(&mut document(pod), binding, SystemTime::UNIX_EPOCH).unwrap_err().message
    }

    #[test]
    fn a_pod_gets_node_labels_annotations_and_a_condition() {
        let mut pod = document(json!({
            "metadata": {"name": "p", "labels": {"a": "x", "e": "f"}},
            "status": {"nominatedNodeName": "m", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
        }));
        assign(&mut pod, &binding(), SystemTime::UNIX_EPOCH).unwrap();
        let time = "1970-01-01T00:00:00Z";
        let expected = json!({
            "metadata": {"name": "p", "labels": {"a": "b", "e": "f"}, "annotations": {"c": "d"}},
            "spec": {"nodeName": "n"},
            "status": {"conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": time}]},
        });
        assert_eq!(pod.into_value(), expected);
    }

    #[test]
    fn pods_that_cannot_be_bound_are_refused() {
        let conflict =
            |why: &str| format!("Operation cannot be fulfilled on pods/binding \"p\": pod p {why}");
        let bound = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "m"}});
        assert_eq!(refused(bound, &binding()), conflict("is already assigned to node \"m\""));
        let gated =
            json!({"metadata": {"name": "p"}, "spec": {"schedulingGates": [{"name": "g"}]}});
        assert_eq!(refused(gated, &binding()), conflict("has non-empty .spec.schedulingGates"));
        let ends = json!({"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let why = conflict("is being deleted, cannot be assigned to a host");
        assert_eq!(refused(ends, &binding()), why);
        let mut other = binding();
        other.set(&["metadata", "uid"], "u");
        let pod = json!({"metadata": {"name": "p", "uid": "v"}});
        let why = refused(pod, &other);
        assert!(why.ends_with("UID in precondition: u, UID in object meta: v"), "{why}");
    }

    #[test]
    fn the_target_is_a_node_with_a_name() {
        let why = |target: Value| {
            check(&document(json!({ "target": target }))).map_err(|failure| failure.message)
        };
        assert_eq!(why(json!({"name": "n"})), Ok(()));
        assert_eq!(why(json!({"kind": "Node"})), Err("target.name: Required value".to_owned()));
        let kind =
            "target.kind: Unsupported value: \"Pod\": supported values: \"Node\", \"<empty>\"";
        assert_eq!(why(json!({"kind": "Pod", "name": "n"})), Err(kind.to_owned()));
        let both = format!("[{kind}, target.name: Required value]");
        assert_eq!(why(json!({"kind": "Pod"})), Err(both));
    }
}
