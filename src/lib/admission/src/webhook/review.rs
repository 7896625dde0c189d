//! AdmissionReview: what a webhook is sent.

use super::matching::{ReviewedObjects, ReviewedWrite};
use crate::request::admission_request;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::json as codec;

/// The JSON of a review.
pub(super) fn body(
    write: &ReviewedWrite<'_>,
    objects: &ReviewedObjects,
    (uid, version): (&str, &str),
) -> Vec<u8> {
    let mut request = admission_request(&write.attributes, &objects.served);
    request.set(&["uid"], uid);
    let bytes = |object: &Option<Document>| match object {
        Some(object) => codec::to_vec(&object.clone().into_value()),
        None => b"null".to_vec(),
    };
    let (object, old) = (bytes(&objects.object), bytes(&objects.old));
    let request = codec::to_vec(&request.into_value());
    let head = format!(
        r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/{version}","request":"#
    );
    let mut body = Vec::with_capacity(head.len() + request.len() + object.len() + old.len() + 32);
    body.extend_from_slice(head.as_bytes());
    // Objects are written as they are, into the end of the request.
    body.extend_from_slice(request.strip_suffix(b"}").unwrap_or(&request));
    body.extend_from_slice(br#","object":"#);
    body.extend_from_slice(&object);
    body.extend_from_slice(br#","oldObject":"#);
    body.extend_from_slice(&old);
    body.extend_from_slice(b"}}");
    body
}
