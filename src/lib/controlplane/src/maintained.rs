//! Maintains the default objects that kinds declare ([`Hooks::maintained`]): those of priority and
//! fairness.
//!
//! Mandatory ones are restored whatever users do. Others are updated while their annotation says
//! so; without one, while their generation is 1. Deleted ones are created again.
//!
//! [`Hooks::maintained`]: ferrokube_resource::Hooks::maintained

use crate::bootstrap::StepError;
use crate::flow_objects::{GROUP, RESOURCES};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::{DeleteOptions, Local, Registry};
use ferrokube_resource::MaintainedObject;
use futures::future::try_join_all;

/// Whether the server updates the spec.
const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// Creates, updates and removes the maintained objects.
///
/// # Errors
/// The registry's failure.
pub(crate) async fn reconcile(registry: &Registry) -> Result<(), StepError> {
    for plural in RESOURCES {
        let Some(client) = Local::new(registry, GROUP, "v1", plural) else { continue };
        let definition = client.served().definition.clone();
        let all = definition.hooks.maintained();
        // Together, so that they share syncs.
        try_join_all(all.iter().map(async |object| {
            ensure(&client, object).await.map_err(|failure| {
                let name = object.object.name();
                StepError::new(format!("cannot maintain {plural} {name}: {failure}"), &failure)
            })
        }))
        .await?;
        remove_unknown(&client, all).await.map_err(|failure| {
            StepError::new(format!("cannot remove old {plural}: {failure}"), &failure)
        })?;
    }
    Ok(())
}

async fn ensure(client: &Local, wanted: &MaintainedObject) -> Result<(), Failure> {
    let name = wanted.object.name();
    let written = match client.get("", name).await? {
        None => {
            let mut object = wanted.object.clone();
            object.set(&["metadata", "annotations", AUTO_UPDATE], "true");
            client.add("", object).await
        }
        Some(current) => match revised(wanted, current) {
            None => return Ok(()),
            Some(object) => client.update(object, "").await.map(drop),
        },
    };
    match written {
        Ok(()) => {
            tracing::info!(
                k8s.name = name,
                kind = wanted.object.kind(),
                "created or updated default object"
            );
            Ok(())
        }
        // A concurrent write; the next check sees its result.
        Err(failure)
            if matches!(failure.reason, Some(Reason::AlreadyExists | Reason::Conflict)) =>
        {
            Ok(())
        }
        Err(failure) => Err(failure),
    }
}

/// The object as it should be; `None` if it is.
fn revised(wanted: &MaintainedObject, mut current: Document) -> Option<Document> {
    let annotated = current.annotation(AUTO_UPDATE).and_then(parse_bool);
    let is_first = current.get(&["metadata", "generation"]).and_then(Value::as_i64) == Some(1);
    let is_updated = wanted.is_mandatory || annotated.unwrap_or(is_first);
    let mut spec = wanted.object.clone();
    if !wanted.free.is_empty()
        && let Some(own) = current.get(wanted.free)
    {
        spec.set(wanted.free, own.clone());
    }
    let spec = spec.remove(&["spec"]).unwrap_or(Value::Null);
    let differs = is_updated && current.get(&["spec"]) != Some(&spec);
    if !differs && annotated == Some(is_updated) {
        return None;
    }
    if differs {
        current.set(&["spec"], spec);
    }
    if annotated != Some(is_updated) {
        current.set(&["metadata", "annotations", AUTO_UPDATE], is_updated.to_string());
    }
    Some(current)
}

/// Removes objects that an earlier version maintained.
async fn remove_unknown(client: &Local, known: &[MaintainedObject]) -> Result<(), Failure> {
    for object in client.list("").await? {
        let is_ours = object.annotation(AUTO_UPDATE).and_then(parse_bool) == Some(true);
        if is_ours && !known.iter().any(|known| known.is(object.name())) {
            client.delete("", object.name(), &DeleteOptions::default()).await?;
        }
    }
    Ok(())
}

/// As Go reads it.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn check(
        is_mandatory: bool,
        annotation: Option<&str>,
        generation: i64,
        (spec, want): (i64, Option<(i64, &str)>),
    ) {
        let wanted = MaintainedObject::new(json!({"spec": {"a": 1}}), is_mandatory);
        let mut current = json!({"metadata": {"generation": generation}, "spec": {"a": spec}});
        if let Some(annotation) = annotation {
            current["metadata"]["annotations"] = json!({ AUTO_UPDATE: annotation });
        }
        let revised = revised(&wanted, Document::from_value(current).unwrap());
        let found = revised.map(|object| {
            let spec = object.get(&["spec", "a"]).and_then(Value::as_i64).unwrap();
            (spec, object.annotation(AUTO_UPDATE).unwrap().to_owned())
        });
        let want = want.map(|(spec, annotation)| (spec, annotation.to_owned()));
        assert_eq!(found, want, "{is_mandatory} {annotation:?} {generation} {spec}");
    }

    #[test]
    fn users_keep_what_the_annotation_lets_them_change() {
        check(false, Some("true"), 2, (1, None));
        check(false, Some("true"), 2, (5, Some((1, "true"))));
        check(false, Some("false"), 2, (5, None));
        check(false, Some("f"), 1, (5, None));
        check(false, None, 1, (5, Some((1, "true"))));
        check(false, None, 2, (5, Some((5, "false"))));
        check(false, Some("moon"), 2, (5, Some((5, "false"))));
        check(true, Some("false"), 2, (5, Some((1, "true"))));
        check(true, Some("false"), 2, (1, Some((1, "true"))));
    }

    #[test]
    fn a_free_field_is_left_alone() {
        let wanted = MaintainedObject {
            free: &["spec", "b"],
            ..MaintainedObject::new(json!({"spec": {"a": 1, "b": 1}}), true)
        };
        let current = |a: i64| {
            let annotations = json!({ AUTO_UPDATE: "true" });
            let object =
                json!({"metadata": {"annotations": annotations}, "spec": {"a": a, "b": 7}});
            Document::from_value(object).unwrap()
        };
        assert!(revised(&wanted, current(1)).is_none());
        assert_eq!(revised(&wanted, current(2)).unwrap(), current(1));
    }
}
