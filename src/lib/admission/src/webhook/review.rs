//! The AdmissionReview sent to a webhook.

use super::matching::ReviewedWrite;
use crate::objects::{ObjectsJson, ReviewedObjects};
use crate::request::admission_request;
use ferrokube_apimachinery::json as codec;

/// A review whose objects are not copied yet.
pub(super) struct PendingReview {
    /// Up to the objects.
    head: Vec<u8>,
    objects: ObjectsJson,
}

const OBJECT: &[u8] = br#","object":"#;
const OLD: &[u8] = br#","oldObject":"#;
const END: &[u8] = b"}}";

impl PendingReview {
    pub(super) fn new(
        write: &ReviewedWrite<'_>,
        objects: &ReviewedObjects<'_>,
        uid: &str,
        version: &str,
    ) -> Self {
        let mut request = admission_request(&write.attributes, &objects.served);
        request.set(&["uid"], uid);
        let request = codec::document_to_vec(&request);
        let start = format!(
            r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/{version}","request":"#
        );
        let mut head = start.into_bytes();
        // The objects are its last fields.
        head.extend_from_slice(request.strip_suffix(b"}").unwrap_or(&request));
        Self { head, objects: objects.json() }
    }

    /// Bytes of its JSON.
    pub(super) fn len(&self) -> usize {
        let ObjectsJson { object, old } = &self.objects;
        self.head.len() + OBJECT.len() + object.len() + OLD.len() + old.len() + END.len()
    }

    pub(super) fn into_json(self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.len());
        let ObjectsJson { object, old } = &self.objects;
        for part in [&self.head[..], OBJECT, object, OLD, old, END] {
            body.extend_from_slice(part);
        }
        body
    }
}
