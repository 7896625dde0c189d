//! Ownership of an object's replicas: maps its managedFields to those of its scale, and back.

use super::ManagerOperation;
use super::managers::{self, ManagerEntry};
use super::set::{self, Fields};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::work;
use std::collections::HashMap;

const SCALE: &str = "autoscaling/v1";

/// The path of `spec.replicas` in each version of a resource.
#[derive(Clone, Debug, Default)]
pub struct Replicas(Vec<(String, Option<Fields>)>);

impl Replicas {
    /// Pairs of an `apiVersion` and the field's path; `None` for a version without a scale.
    pub fn new(versions: impl IntoIterator<Item = (String, Option<Vec<String>>)>) -> Self {
        Self(
            versions
                .into_iter()
                .map(|(version, path)| {
                    (version, path.map(|path| fields(path.iter().map(String::as_str))))
                })
                .collect(),
        )
    }

    /// The field in a version; `None` for an unknown version, `Some(None)` for one without a scale.
    fn of(&self, api_version: &str) -> Option<Option<&Fields>> {
        self.0.iter().find(|(version, _)| version == api_version).map(|(_, fields)| fields.as_ref())
    }

    /// Sets a scale's managedFields to the object's entries that own the replicas.
    pub fn show(&self, object: &Document, scale: &mut Document) {
        let shown = |entry: ManagerEntry| match self.of(&entry.api_version) {
            Some(Some(replicas)) if set::intersects(&entry.fields, replicas) => {
                Some(ManagerEntry {
                    api_version: SCALE.to_owned(),
                    fields: fields(["spec", "replicas"]),
                    ..entry
                })
            }
            _ => None,
        };
        let entries = managers::stored(object).into_iter().filter_map(shown).collect();
        managers::write(scale, entries);
    }

    /// Drops an empty managedFields: a typed scale has none.
    pub fn normalize(scale: &mut Document) {
        if scale.get(&["spec", "replicas"]).and_then(Value::as_i64) == Some(0) {
            scale.remove(&["spec", "replicas"]);
        }
    }

    /// Writes the managedFields of a changed scale back into its object, which is of this version.
    /// As in kube-apiserver, new entries have no time and entries of unknown versions are dropped.
    /// Unlike there, a manager of other fields does not get a second entry.
    pub fn inject(&self, scale: &Document, object: &mut Document, api_version: &str) {
        let wanted = fields(["spec", "replicas"]);
        let mut changed = managers::stored(scale);
        changed.retain(|entry| set::intersects(&entry.fields, &wanted));
        let key = |entry: &ManagerEntry| {
            (
                entry.manager.clone(),
                entry.operation == ManagerOperation::Apply,
                entry.subresource.clone(),
            )
        };
        let mut places: HashMap<_, Vec<usize>> = HashMap::new();
        // The first of duplicates wins.
        changed
            .iter()
            .enumerate()
            .rev()
            .for_each(|(place, entry)| places.entry(key(entry)).or_default().push(place));
        let mut left: Vec<Option<ManagerEntry>> = changed.into_iter().map(Some).collect();
        let mut entries = Vec::new();
        for mut entry in managers::take(object) {
            work::count(1);
            let Some(replicas) = self.of(&entry.api_version) else { continue };
            if let Some(replicas) =
                replicas.filter(|replicas| set::intersects(&entry.fields, replicas))
            {
                // An entry that owns nothing else is rewritten, in this version.
                let stays = entry.operation == ManagerOperation::Apply || entry.fields != *replicas;
                let kept =
                    if stays { places.get_mut(&key(&entry)).and_then(Vec::pop) } else { None };
                match kept {
                    Some(place) => left[place] = None,
                    None => set::subtract(&mut entry.fields, replicas),
                }
            }
            entries.push(entry);
        }
        if let Some(Some(replicas)) = self.of(api_version) {
            entries.extend(left.into_iter().flatten().map(|entry| ManagerEntry {
                api_version: api_version.to_owned(),
                fields: replicas.clone(),
                time: String::new(),
                ..entry
            }));
        }
        managers::write(object, entries);
    }
}

/// The set of a single field.
fn fields<'a>(path: impl IntoIterator<Item = &'a str, IntoIter: DoubleEndedIterator>) -> Fields {
    path.into_iter().rev().fold(Fields::new(), |inner, name| {
        Fields::from_iter([(format!("f:{name}"), Value::Object(inner))])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::document;
    use ferrokube_apimachinery::document::json;

    fn entry(manager: &str, version: &str, subresource: &str, spec: &Value) -> Value {
        let mut entry = json!({"manager": manager, "operation": "Update", "apiVersion": version, "time": "2026-01-02T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": spec}});
        if !subresource.is_empty() {
            entry["subresource"] = json!(subresource);
        }
        entry
    }

    #[test]
    fn a_scale_shows_the_managers_of_the_replicas() {
        let replicas = Replicas::new([
            ("g/v1".to_owned(), Some(vec!["spec".to_owned(), "r".to_owned()])),
            ("g/v2".to_owned(), None),
        ]);
        let managed = [
            entry("creator", "g/v1", "", &json!({".": {}, "f:r": {}, "f:x": {}})),
            entry("other", "g/v2", "", &json!({"f:r": {}})),
            entry("gone", "g/v0", "", &json!({"f:y": {}})),
        ];
        let mut object = document(json!({"metadata": {"managedFields": managed}}));
        let mut scale = document(json!({"metadata": {}}));
        replicas.show(&object, &mut scale);
        assert_eq!(
            scale.get(&["metadata", "managedFields"]),
            Some(&json!([entry("creator", SCALE, "", &json!({"f:replicas": {}}))]))
        );

        replicas.inject(&scale, &mut object, "g/v1");
        assert_eq!(
            object.list(&["metadata", "managedFields"]),
            &managed[..2],
            "ownership is unchanged"
        );

        scale.set(
            &["metadata", "managedFields"],
            json!([entry("autoscaler", SCALE, "scale", &json!({"f:replicas": {}}))]),
        );
        replicas.inject(&scale, &mut object, "g/v1");
        let mut taken = entry("autoscaler", "g/v1", "scale", &json!({"f:r": {}}));
        taken.as_object_mut().expect("an object").remove("time");
        assert_eq!(
            object.list(&["metadata", "managedFields"]),
            [taken, entry("creator", "g/v1", "", &json!({".": {}, "f:x": {}})), managed[1].clone()]
        );
    }
}
