//! Allocates the names in a group: first come, first served.

use super::fields::text;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_registry::Catalog;
use std::collections::HashMap;

/// The names of one definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ResourceNames {
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) short_names: Vec<String>,
    pub(super) kind: String,
    pub(super) list_kind: String,
    pub(super) categories: Vec<String>,
}

impl ResourceNames {
    /// From `spec.names`.
    pub(super) fn requested(object: &Document) -> Self {
        object.get(&["spec", "names"]).map(Self::of).unwrap_or_default()
    }

    /// From `status.acceptedNames`.
    pub(super) fn accepted(object: &Document) -> Self {
        object.get(&["status", "acceptedNames"]).map(Self::of).unwrap_or_default()
    }

    fn of(names: &Value) -> Self {
        let list = |field: &str| {
            names
                .get(field)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        };
        Self {
            plural: text(names, "plural").to_owned(),
            singular: text(names, "singular").to_owned(),
            short_names: list("shortNames"),
            kind: text(names, "kind").to_owned(),
            list_kind: text(names, "listKind").to_owned(),
            categories: list("categories"),
        }
    }

    /// As `status.acceptedNames`.
    pub(super) fn to_value(&self) -> Value {
        let mut value = json!({"plural": self.plural, "kind": self.kind});
        let map = value.as_object_mut().expect("an object literal");
        for (field, name) in [("singular", &self.singular), ("listKind", &self.list_kind)] {
            if !name.is_empty() {
                map.insert(field.to_owned(), Value::from(name.as_str()));
            }
        }
        for (field, names) in [("shortNames", &self.short_names), ("categories", &self.categories)]
        {
            if !names.is_empty() {
                map.insert(field.to_owned(), Value::from(names.clone()));
            }
        }
        value
    }
}

/// Names of the bundled kinds, by group.
pub(super) fn natives(catalog: &Catalog) -> HashMap<String, Vec<ResourceNames>> {
    let mut all: HashMap<String, Vec<ResourceNames>> = HashMap::new();
    for definition in
        catalog.all().1.into_iter().filter(|definition| definition.dialect.is_bundled())
    {
        all.entry(definition.group.clone()).or_default().push(ResourceNames {
            plural: definition.plural.clone(),
            singular: definition.singular.clone(),
            short_names: definition.short_names.clone(),
            kind: definition.kind.clone(),
            list_kind: definition.list_kind.clone(),
            categories: Vec::new(),
        });
    }
    all
}

/// Names taken in a group, with their owners.
#[derive(Default)]
pub(super) struct TakenNames {
    resources: HashMap<String, String>,
    kinds: HashMap<String, String>,
}

impl TakenNames {
    /// Adds a definition's names. The empty owner is a bundled kind; existing owners keep their
    /// names.
    pub(super) fn take(&mut self, owner: &str, names: &ResourceNames) {
        let resources = [&names.plural, &names.singular].into_iter().chain(&names.short_names);
        for name in resources.filter(|name| !name.is_empty()) {
            self.resources.entry(name.clone()).or_insert_with(|| owner.to_owned());
        }
        for name in [&names.kind, &names.list_kind].into_iter().filter(|name| !name.is_empty()) {
            self.kinds.entry(name.clone()).or_insert_with(|| owner.to_owned());
        }
    }
}

/// Which names a definition gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameDecision {
    pub(super) accepted: ResourceNames,
    /// Reason and message of the last conflict.
    pub(super) conflict: Option<(&'static str, String)>,
    /// Whether it requested a name of a bundled kind.
    pub(super) wants_bundled: bool,
}

/// Decides which of the requested names a definition gets.
pub(super) fn decide(
    owner: &str,
    requested: &ResourceNames,
    before: &ResourceNames,
    taken: &TakenNames,
) -> NameDecision {
    let mut decided = NameDecision {
        accepted: ResourceNames { categories: requested.categories.clone(), ..before.clone() },
        conflict: None,
        wants_bundled: false,
    };
    let wants_bundled = std::cell::Cell::new(false);
    let others = |set: &HashMap<String, String>, name: &str| {
        let has = set.get(name).filter(|has| *has != owner);
        wants_bundled.set(wants_bundled.get() || has.is_some_and(String::is_empty));
        has.is_some()
    };
    let mut refuse = |reason, name: &str| {
        decided.conflict = Some((reason, format!("{name:?} is already in use")))
    };
    let accepted = &mut decided.accepted;
    for (wanted, had, reason) in [
        (&requested.plural, &mut accepted.plural, "PluralConflict"),
        (&requested.singular, &mut accepted.singular, "SingularConflict"),
    ] {
        if others(&taken.resources, wanted) {
            refuse(reason, wanted)
        } else {
            had.clone_from(wanted)
        }
    }
    match requested.short_names.iter().find(|name| others(&taken.resources, name)) {
        Some(name) => refuse("ShortNamesConflict", name),
        None => accepted.short_names.clone_from(&requested.short_names),
    }
    for (wanted, had, reason) in [
        (&requested.kind, &mut accepted.kind, "KindConflict"),
        (&requested.list_kind, &mut accepted.list_kind, "ListKindConflict"),
    ] {
        if others(&taken.kinds, wanted) { refuse(reason, wanted) } else { had.clone_from(wanted) }
    }
    decided.wants_bundled = wants_bundled.get();
    decided
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(plural: &str, kind: &str) -> ResourceNames {
        ResourceNames {
            plural: plural.to_owned(),
            singular: kind.to_lowercase(),
            short_names: vec!["th".to_owned()],
            kind: kind.to_owned(),
            list_kind: format!("{kind}List"),
            categories: Vec::new(),
        }
    }

    #[test]
    fn the_first_keeps_its_names() {
        let first = names("things", "Thing");
        let mut taken = TakenNames::default();
        let decided = decide("a", &first, &ResourceNames::default(), &taken);
        assert!(decided.conflict.is_none() && decided.accepted == first);
        taken.take("a", &first);
        let second = decide("b", &names("others", "Thing"), &ResourceNames::default(), &taken);
        assert_eq!(second.conflict.map(|(reason, _)| reason), Some("ListKindConflict"));
        assert_eq!(
            second.accepted,
            ResourceNames { plural: "others".to_owned(), ..ResourceNames::default() }
        );
        assert!(decide("a", &first, &first, &taken).conflict.is_none(), "what it has it keeps");
    }
}
