//! The objects of a write in the versions that webhooks and policies want.

use crate::candidate::CandidateWrite;
use bytes::Bytes;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::json as codec;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{ConvertedObject, Served, convert};
use std::any::Any;
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

/// The objects of a write in one version.
pub(crate) struct ReviewedObjects<'o> {
    pub(crate) served: Served,
    pub(crate) object: Option<Cow<'o, Document>>,
    pub(crate) old: Option<Cow<'o, Document>>,
    json: OnceLock<ObjectsJson>,
    /// Memory of converted objects.
    _rooms: [Room; 2],
}

/// Room in the budget of conversions.
pub(crate) type Room = Option<Box<dyn Any + Send + Sync>>;

/// Their JSON. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ObjectsJson {
    pub(crate) object: Bytes,
    pub(crate) old: Bytes,
}

/// The versions of a write's objects. However many webhooks review it, an object is in memory once
/// per version.
#[derive(Default)]
pub(crate) struct ObjectVersions<'o>(Vec<Arc<ReviewedObjects<'o>>>);

impl ObjectsJson {
    /// Bytes of both.
    pub(super) fn len(&self) -> usize {
        self.object.len() + self.old.len()
    }
}

impl<'o> ObjectVersions<'o> {
    /// The objects, which have the version of the request, in version `wanted`.
    ///
    /// # Errors
    /// A conversion fails.
    pub(crate) async fn get(
        &mut self,
        write: &CandidateWrite<'_>,
        wanted: Served,
        [object, old]: [Option<&'o Document>; 2],
    ) -> Result<Arc<ReviewedObjects<'o>>, Failure> {
        let known = self.0.iter().find(|known| is_same(&known.served, &wanted));
        if let Some(known) = known {
            return Ok(Arc::clone(known));
        }
        let (object, room) = in_version(write, &wanted, object).await?;
        let (old, old_room) = in_version(write, &wanted, old).await?;
        let (json, _rooms) = (OnceLock::new(), [room, old_room]);
        let made = Arc::new(ReviewedObjects { served: wanted, object, old, json, _rooms });
        self.0.push(Arc::clone(&made));
        Ok(made)
    }
}

impl ReviewedObjects<'_> {
    /// As JSON, made once.
    pub(crate) fn json(&self) -> ObjectsJson {
        let json = |object: &Option<Cow<'_, Document>>| match object {
            Some(object) => Bytes::from(codec::document_to_vec(object)),
            None => Bytes::from_static(b"null"),
        };
        let made = || ObjectsJson { object: json(&self.object), old: json(&self.old) };
        self.json.get_or_init(made).clone()
    }
}

fn is_same(one: &Served, other: &Served) -> bool {
    Arc::ptr_eq(&one.definition, &other.definition) && one.version == other.version
}

async fn in_version<'o>(
    write: &CandidateWrite<'_>,
    wanted: &Served,
    object: Option<&'o Document>,
) -> Result<(Option<Cow<'o, Document>>, Room), Failure> {
    let own = write.served();
    Ok(match object {
        None => (None, None),
        Some(object) if write.is_same_kind(own, wanted) => (Some(Cow::Borrowed(object)), None),
        Some(object) => {
            let ConvertedObject { object, room } = convert(own, wanted, object).await?;
            (Some(Cow::Owned(object)), room)
        }
    })
}

/// An object in the version of the request.
///
/// # Errors
/// The conversion fails.
pub(crate) async fn in_own_version(
    write: &CandidateWrite<'_>,
    given: &Served,
    object: Document,
) -> Result<ConvertedObject, Failure> {
    match write.is_same_kind(given, write.served()) {
        true => Ok(ConvertedObject { object, room: None }),
        false => convert(given, write.served(), &object).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;
    use ferrokube_registry::{AdmissionOptions, Attributes, Catalog, Operation, Target};
    use ferrokube_storage::{Config, Store};

    #[tokio::test]
    async fn fault_33_webhooks_share_the_objects_that_they_review() {
        let catalog = Catalog::default();
        let tables = ferrokube_resources::tables();
        ferrokube_resources::definitions(tables).into_iter().for_each(|one| catalog.put(one));
        let own = catalog.find("events.k8s.io", "v1", "events").expect("it is bundled");
        let core = catalog.find("", "v1", "events").expect("it is bundled");
        let object = json!({"kind": "Event", "apiVersion": "events.k8s.io/v1",
            "metadata": {"name": "e"}, "regarding": {"name": "a"}});
        let object = Document::from_value(object).expect("an object");
        let mut versions = ObjectVersions::default();
        let (store, context) = (
            Store::open(Config::memory()).expect("it is in memory"),
            ferrokube_registry::Local::context(),
        );
        let target =
            Target { served: own.clone(), namespace: None, name: None, subresource: String::new() };
        let attributes = Attributes {
            context: &context,
            target: &target,
            operation: Operation::Create,
            old: None,
            options: AdmissionOptions::Connect,
            dry_run: false,
        };
        let write = CandidateWrite::new(attributes, &catalog, &store);
        let mut of = async |wanted: &Served| {
            let given = [Some(&object), None];
            versions.get(&write, wanted.clone(), given).await.expect("it is converted")
        };
        let (first, other, second) = (of(&own).await, of(&core).await, of(&own).await);
        assert!(Arc::ptr_eq(&first, &second));
        assert!(matches!(first.object, Some(Cow::Borrowed(_))), "nothing is copied");
        assert_eq!(first.json().object.as_ptr(), second.json().object.as_ptr());
        let converted = other.object.as_ref().expect("an object");
        assert_eq!(converted.str(&["involvedObject", "name"]), Some("a"));
        assert_eq!(first.json().old, "null");
    }
}
