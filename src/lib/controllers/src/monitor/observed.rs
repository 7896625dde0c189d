//! Metadata that the controllers need. Every write in the cluster passes through here; labels,
//! annotations and managedFields make up most of it and are skipped instead of collected into maps
//! (half the cost of a metadata watch).

use ferrokube_trace::TraceContext;
use ferrokube_trace::annotation::CauseReader;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, de};
use std::borrow::Cow;
use std::fmt;

/// An object as seen by a metadata watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Names, uid, resourceVersion, owners, finalizers and deletion only.
    pub(crate) metadata: ObjectMeta,
    /// Trace context of the last write; for a deleted object, of the deletion.
    pub(crate) cause: Option<TraceContext>,
}

impl From<ObjectMeta> for Observed {
    fn from(metadata: ObjectMeta) -> Self {
        Self { cause: ferrokube_client::cause(&metadata), metadata }
    }
}

/// A resource from discovery, requested as metadata only.
impl Resource for Observed {
    type DynamicType = ApiResource;
    type Scope = <DynamicObject as Resource>::Scope;

    fn metadata_api() -> bool {
        true
    }

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(resource)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(resource)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(resource)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(resource)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Deserialize)]
struct ObservedObject {
    #[serde(default)]
    metadata: ObservedMetadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObservedMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    owner_references: Option<Vec<OwnerReference>>,
    finalizers: Option<Vec<String>>,
    annotations: Option<TraceAnnotations>,
}

impl<'de> Deserialize<'de> for Observed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = ObservedObject::deserialize(deserializer)?.metadata;
        let metadata = ObjectMeta {
            name: read.name,
            namespace: read.namespace,
            uid: read.uid,
            resource_version: read.resource_version,
            deletion_timestamp: read.deletion_timestamp,
            owner_references: read.owner_references,
            finalizers: read.finalizers,
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, cause: read.annotations.and_then(|annotations| annotations.0.cause()) })
    }
}

/// The ids among the annotations.
struct TraceAnnotations(CauseReader);

impl<'de> Deserialize<'de> for TraceAnnotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TraceAnnotationsVisitor)
    }
}

struct TraceAnnotationsVisitor;

impl<'de> Visitor<'de> for TraceAnnotationsVisitor {
    type Value = TraceAnnotations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TraceAnnotations, A::Error> {
        let mut found = CauseReader::default();
        while let Some(BorrowedText(key)) = map.next_key()? {
            match CauseReader::wants(&key) {
                true => found.note(&key, &map.next_value::<BorrowedText<'_>>()?.0),
                false => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(TraceAnnotations(found))
    }
}

/// A string, borrowed unless it has escapes.
struct BorrowedText<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for BorrowedText<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BorrowedTextVisitor;
        impl<'de> Visitor<'de> for BorrowedTextVisitor {
            type Value = BorrowedText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E: de::Error>(
                self,
                text: &'de str,
            ) -> Result<BorrowedText<'de>, E> {
                Ok(BorrowedText(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<BorrowedText<'de>, E> {
                Ok(BorrowedText(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(BorrowedTextVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use kube::core::WatchEvent;
    use kube::core::metadata::PartialObjectMeta;
    use serde_json::json;

    #[test]
    fn l30_it_is_what_the_whole_metadata_says() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        for annotations in [
            json!(null),
            json!({}),
            json!({"a": "b\n", "trace.kubernetes.io/trace-id": trace, "trace.kubernetes.io/span-id": span}),
            json!({"trace.kubernetes.io/trace-id": trace, "trace.kubernetes.io/span-id": span, "trace.kubernetes.io/initial-trace-id": trace, "z": ""}),
            json!({"trace.kubernetes.io/trace-id": "edited\u{1b}", "trace.kubernetes.io/span-id": span}),
        ] {
            let object = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {
                "name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-11-21T03:00:01Z", "generation": 3,
                "labels": {"l": "v"}, "annotations": annotations, "deletionTimestamp": "2026-11-21T03:00:01Z", "deletionGracePeriodSeconds": 0,
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "x", "controller": true}], "finalizers": ["f"],
                "managedFields": [{"manager": "m", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}}}]}});
            let text = json!({"type": "MODIFIED", "object": object}).to_string();
            let Ok(WatchEvent::Modified(seen)) =
                serde_json::from_str::<WatchEvent<Observed>>(&text)
            else {
                panic!("{text}")
            };
            let whole: PartialObjectMeta = serde_json::from_value(object).unwrap();
            assert_eq!(seen.cause, ferrokube_client::cause(&whole.metadata), "{text}");
            let slim = ObjectMeta {
                labels: None,
                annotations: None,
                managed_fields: None,
                creation_timestamp: None,
                generation: None,
                deletion_grace_period_seconds: None,
                ..whole.metadata
            };
            assert_eq!(seen.metadata, slim, "{text}");
            assert!(slim.deletion_timestamp.is_some_and(|at| at.0 > Timestamp::UNIX_EPOCH));
        }
        let empty: Observed = serde_json::from_str(r#"{"kind": "K"}"#).unwrap();
        assert_eq!(empty.metadata, ObjectMeta::default());
    }
}
