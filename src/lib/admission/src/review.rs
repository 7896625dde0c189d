//! Trace ids for other API servers: [`trace_stamp`](crate::trace_stamp) as a mutating webhook
//! (`AdmissionReview` v1).
//!
//! Never rejects a write: a request that is not understood is allowed unchanged.

use crate::trace_stamp::StampedWrite;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::json as codec;
use ferrokube_registry::{Operation, show_ids};
use ferrokube_trace::TraceContext;
use ferrokube_trace::annotation::ALL;

/// Allows always: a review only adds ids.
#[derive(Clone, Debug, PartialEq)]
pub struct ReviewResponse {
    /// An encoded `AdmissionReview`.
    pub body: Vec<u8>,
    /// Whether the object gets ids.
    pub stamped: bool,
    /// For the log.
    pub about: ReviewInfo,
}

/// Subject of a review; fields that it lacks are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReviewInfo {
    /// `CREATE`, `UPDATE`, `DELETE`, `CONNECT`.
    pub operation: String,
    /// Plural name.
    pub resource: String,
    /// Empty for cluster scope.
    pub namespace: String,
    /// Empty if it is yet to be generated.
    pub name: String,
}

/// A review without a uid, which every response needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is no AdmissionReview with a request and its uid")]
pub struct ReviewError;

/// Responds to a review: allowed, with a JSON patch if the object gets ids. `on` is the gate
/// `LogTracking`.
///
/// # Errors
/// [`ReviewError`].
pub fn answer(body: &[u8], trace: &TraceContext, on: bool) -> Result<ReviewResponse, ReviewError> {
    let mut review = codec::read(body).map_err(|_| ReviewError)?.document;
    let api_version = review.api_version().to_owned();
    let Some(Value::Object(request)) = review.remove(&["request"]) else { return Err(ReviewError) };
    let request = Document::from_value(Value::Object(request)).map_err(|_| ReviewError)?;
    let uid = request
        .str(&["uid"])
        .filter(|uid| !uid.is_empty() && uid.len() <= 256)
        .ok_or(ReviewError)?
        .to_owned();
    if !api_version.starts_with("admission.k8s.io/") {
        return Err(ReviewError);
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
    Ok(ReviewResponse { body, stamped: patch.is_some(), about })
}

fn about(request: &Document) -> ReviewInfo {
    let text = |path: &[&str]| request.str(path).unwrap_or_default().to_owned();
    ReviewInfo {
        operation: text(&["operation"]),
        resource: text(&["resource", "resource"]),
        namespace: text(&["namespace"]),
        name: text(&["name"]),
    }
}

/// Patch that sets the ids; `None` if nothing changes.
fn patch(mut request: Document, trace: &TraceContext) -> Option<Value> {
    let object = Document::from_value(request.remove(&["object"])?).ok()?;
    let old = request.remove(&["oldObject"]).and_then(|old| Document::from_value(old).ok());
    let text = |path: &[&str]| request.str(path).unwrap_or_default();
    let subresource = text(&["subResource"]);
    let operation = match text(&["operation"]) {
        "CREATE" if subresource.is_empty() => Operation::Create,
        "UPDATE" if subresource != "scale" => Operation::Update,
        // A Scale, Eviction or Binding has no annotations of its own: they would be lost, or set on
        // an object of another family. Servers reject patches of deleted objects.
        _ => return None,
    };
    let annotations = object.get(&["metadata", "annotations"]).filter(|value| !value.is_null());
    if object.get(&["metadata"]).is_none_or(|metadata| !metadata.is_object())
        || annotations.is_some_and(|value| !value.is_object())
    {
        return None;
    }
    let subject = StampedWrite {
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

/// Patch between two documents that differ in the three keys only.
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
