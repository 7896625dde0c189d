//! The `scale` subresource: a controller's replicas as a Scale object.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{ComputedResource, Target};
use ferrokube_resource::Definition;
use ferrokube_schema::Schema;
use ferrokube_schema::apply::Replicas;
use std::sync::Arc;

const WANTED: [&str; 2] = ["spec", "replicas"];

pub(crate) struct Scale {
    replicas: Replicas,
    schema: Arc<Schema>,
}

impl Scale {
    pub(crate) fn new(definition: &Definition, schema: Arc<Schema>) -> Self {
        let versions = 0..definition.versions.len();
        let path = || WANTED.iter().map(|name| (*name).to_owned()).collect();
        let replicas = Replicas::new(
            versions.map(|version| (definition.gvk(version).api_version(), Some(path()))),
        );
        Self { replicas, schema }
    }
}

impl ComputedResource for Scale {
    fn schema(&self) -> Option<Arc<Schema>> {
        Some(Arc::clone(&self.schema))
    }

    fn is_projection(&self) -> bool {
        true
    }

    fn replicas(&self) -> Option<&Replicas> {
        Some(&self.replicas)
    }

    fn project(&self, _target: &Target, object: &Document) -> Result<Document, Failure> {
        Ok(scale_of(object))
    }

    fn inject(
        &self,
        target: &Target,
        projection: &Document,
        object: &mut Document,
    ) -> Result<(), Failure> {
        let wanted = projection.get(&WANTED).and_then(Value::as_i64).unwrap_or_default();
        if wanted < 0 {
            let why = "must be greater than or equal to 0";
            let error = FieldError::invalid("spec.replicas", wanted, why);
            let name = target.name.as_deref().unwrap_or_default();
            return Err(Failure::invalid("autoscaling", "Scale", name, &[error]));
        }
        object.set(&WANTED, wanted);
        Ok(())
    }
}

fn scale_of(object: &Document) -> Document {
    let mut scale = Document::from_value(
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {}}),
    )
    .expect("an object literal");
    for field in ["name", "namespace", "uid", "creationTimestamp"] {
        if !object.meta(field).is_empty() {
            scale.set(&["metadata", field], object.meta(field));
        }
    }
    let wanted = object.get(&WANTED).and_then(Value::as_i64).unwrap_or_default();
    scale.set(&["spec"], if wanted == 0 { json!({}) } else { json!({"replicas": wanted}) });
    let actual = object.get(&["status", "replicas"]).and_then(Value::as_i64).unwrap_or_default();
    scale.set(&["status", "replicas"], actual);
    let selector = match object.get(&["spec", "selector"]) {
        // ReplicationControllers have a plain map of labels.
        Some(labels) if object.kind() == "ReplicationController" => {
            ferrokube_workloads::selector_text(&json!({"matchLabels": labels.clone()}))
        }
        Some(selector) => ferrokube_workloads::selector_text(selector),
        None => String::new(),
    };
    if !selector.is_empty() {
        scale.set(&["status", "selector"], selector);
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_shows_replicas_and_the_selector() {
        let object = json!({
            "kind": "Deployment", "metadata": {"name": "d", "uid": "u"},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"b": "c", "a": "b"}}},
            "status": {"replicas": 2},
        });
        let scale = scale_of(&Document::from_value(object).unwrap());
        let expected = json!({
            "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "d", "uid": "u"},
            "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "a=b,b=c"},
        });
        assert_eq!(scale.into_value(), expected);
    }
}
