//! The ids for another API server: [`trace_stamp`](crate::trace_stamp) behind an `AdmissionReview`
//! (v1), as a mutating webhook.
//!
//! It never refuses anything: what it cannot read or does not understand is allowed as it is.

use crate::trace_stamp::Subject;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::json as codec;
use ferrokube_registry::{Operation, show_ids};
use ferrokube_trace::TraceContext;
use ferrokube_trace::annotation::ALL;

/// A review that was answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// The answer: an `AdmissionReview` with a response.
    pub body: Vec<u8>,
    /// Whether it gives the object ids.
    pub stamped: bool,
    /// About what it was, for the log.
    pub about: About,
}

/// About what a review is; empty where it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// `CREATE`, `UPDATE`, `DELETE`, `CONNECT`.
    pub operation: String,
    /// The plural name.
    pub resource: String,
    /// The namespace.
    pub namespace: String,
    /// The object; empty for one whose name is yet to be made.
    pub name: String,
}

/// Why a review cannot be answered: without its uid no answer is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is no AdmissionReview with a request and its uid")]
pub struct Unreadable;

/// Answers a review: allowed, with a JSON patch when the object gets ids (`on`: gate
/// `LogTracking`).
///
/// # Errors
/// [`Unreadable`].
pub fn answer(body: &[u8], trace: &TraceContext, on: bool) -> Result<Answered, Unreadable> {
    let mut review = codec::read(body).map_err(|_| Unreadable)?.document;
    let api_version = review.api_version().to_owned();
    let Some(Value::Object(request)) = review.remove(&["request"]) else { return Err(Unreadable) };
    let request = Document::from_value(Value::Object(request)).map_err(|_| Unreadable)?;
    let uid = request
        .str(&["uid"])
        .filter(|uid| !uid.is_empty() && uid.len() <= 256)
        .ok_or(Unreadable)?
        .to_owned();
    if !api_version.starts_with("admission.k8s.io/") {
        return Err(Unreadable);
    }
    let about = about(&request);
    let patch = if on { patch(request, trace) } else { None };
    let mut response = json!({"uid": uid, "allowed": true});
    if let (Some(patch), Value::Object(response)) = (&patch, &mut response) {
        response.insert("patchType".to_owned(), Value::from("JSONPatch"));
        response.insert("patch".to_owned(), Value::from(STANDARD.encode(codec::to_vec(patch))));
    }
    let body = codec::to_vec(
        &json!({"kind": "AdmissionReview", "apiVersion": api_version, "response": response}),
    );
    Ok(Answered { body, stamped: patch.is_some(), about })
}

fn about(request: &Document) -> About {
    let text = |path: &[&str]| request.str(path).unwrap_or_default().to_owned();
    About {
        operation: text(&["operation"]),
        resource: text(&["resource", "resource"]),
        namespace: text(&["namespace"]),
        name: text(&["name"]),
    }
}

/// What would have to change for the object to have its ids; `None`: nothing.
fn patch(mut request: Document, trace: &TraceContext) -> Option<Value> {
    let object = Document::from_value(request.remove(&["object"])?).ok()?;
    let old = request.remove(&["oldObject"]).and_then(|old| Document::from_value(old).ok());
    let text = |path: &[&str]| request.str(path).unwrap_or_default();
    let subresource = text(&["subResource"]);
    let operation = match text(&["operation"]) {
        "CREATE" if subresource.is_empty() => Operation::Create,
        "UPDATE" if subresource != "scale" => Operation::Update,
        // What is not the object itself (a Scale, an Eviction, a Binding) has no annotations that
        // are kept, or they would go where another family's are. A patch of what is deleted is
        // refused by every server.
        _ => return None,
    };
    let annotations = object.get(&["metadata", "annotations"]).filter(|value| !value.is_null());
    if object.get(&["metadata"]).is_none_or(|metadata| !metadata.is_object())
        || annotations.is_some_and(|value| !value.is_object())
    {
        return None;
    }
    let subject = Subject {
        group: text(&["resource", "group"]),
        resource: text(&["resource", "resource"]),
        subresource,
        operation,
        user: text(&["userInfo", "username"]),
        trace,
        old: old.as_ref(),
    };
    let mut stamped = object.clone();
    if let Some(ids) = subject.stamp(&mut stamped).ids {
        show_ids(&ids, &mut stamped);
    }
    let operations = operations(&object, &stamped);
    (!operations.is_empty()).then_some(Value::from(operations))
}

/// The patch from one to the other: only the three keys differ.
fn operations(before: &Document, after: &Document) -> Vec<Value> {
    let mut operations = Vec::new();
    for key in ALL {
        let path = format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"));
        match (before.get(&["metadata", "annotations", key]), after.annotation(key)) {
            (Some(Value::String(old)), Some(new)) if old == new => {}
            (_, Some(new)) => operations.push(json!({"op": "add", "path": path, "value": new})),
            (Some(_), None) => operations.push(json!({"op": "remove", "path": path})),
            (None, None) => {}
        }
    }
    let has_map = before.get(&["metadata", "annotations"]).is_some_and(Value::is_object);
    if !operations.is_empty() && !has_map {
        operations
            .insert(0, json!({"op": "add", "path": "/metadata/annotations", "value": Map::new()}));
    }
    operations
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
