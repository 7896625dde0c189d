//! The catalog's definitions by group and version.

use base64::Engine;
use ferrokube_aggregator::AggregatedVersion;
use ferrokube_apimachinery::work;
use ferrokube_resource::{ApiPriority, Definition, Scope, Verbs};
use sha2::{Digest, Sha256};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

/// Verbs of custom resources, in kube-apiserver's order.
const CUSTOM_ORDER: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

pub(crate) struct Group {
    /// Empty for the core group.
    pub(crate) name: String,
    /// Whether any of its resources is bundled.
    pub(crate) native: bool,
    /// Preferred first.
    pub(crate) versions: Vec<ServedVersion>,
}

pub(crate) struct ServedVersion {
    /// Such as `v1`.
    pub(crate) name: String,
    /// Sorted by name.
    pub(crate) resources: Vec<Resource>,
    /// If another server serves it.
    pub(crate) aggregated: Option<AggregatedVersion>,
    /// Priority of its group, and of the version in it.
    priority: ApiPriority,
}

impl ServedVersion {
    /// Number of its resources.
    pub(crate) fn entries(&self) -> usize {
        let others = self.aggregated.as_ref().map_or(0, |other| other.resources.len());
        self.resources.len() + others
    }

    fn new(name: &str, priority: ApiPriority) -> Self {
        Self { name: name.to_owned(), resources: Vec::new(), aggregated: None, priority }
    }
}

/// A resource in one version.
pub(crate) struct Resource {
    pub(crate) definition: Arc<Definition>,
    /// Index into the definition's versions.
    pub(crate) version: usize,
    /// Empty if nothing is stored.
    pub(crate) storage_hash: String,
}

impl Resource {
    pub(crate) fn namespaced(&self) -> bool {
        self.definition.scope == Scope::Namespaced
    }

    /// In the order in which kube-apiserver lists them.
    pub(crate) fn verbs(definition: &Definition) -> Vec<&'static str> {
        let mut words: Vec<&'static str> = definition.verbs.words().collect();
        if definition.dialect.is_discovered_by_controller() {
            words.sort_by_key(|word| CUSTOM_ORDER.iter().position(|known| known == word));
        }
        words
    }

    /// Names of a subresource's verbs.
    pub(crate) fn words(verbs: Verbs) -> Vec<&'static str> {
        verbs.words().collect()
    }
}

/// The group of APIServices comes first.
const FIRST: &str = "apiregistration.k8s.io";
/// Priority of bundled group versions without an APIService.
const OTHER_PRIORITY: ApiPriority = ApiPriority { group: 15_000, version: 1 };

/// Groups and versions by priority, then name and age; resources by name.
pub(crate) fn collect(
    definitions: &[Arc<Definition>],
    aggregated: Vec<AggregatedVersion>,
) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    // Where groups and versions are: a server has thousands.
    let mut places: HashMap<&str, GroupPlace<'_>> = HashMap::new();
    let mut stored: HashMap<&str, String> = HashMap::new();
    for definition in definitions {
        if let Some(prefix) = &definition.storage_prefix {
            stored.entry(prefix).or_insert_with(|| storage_hash(definition));
        }
    }
    for definition in definitions {
        let hash = definition
            .storage_prefix
            .as_deref()
            .filter(|_| definition.verbs.has(Verbs::CREATE))
            .and_then(|prefix| stored.get(prefix))
            .cloned()
            .unwrap_or_default();
        for (index, version) in
            definition.versions.iter().enumerate().filter(|(_, version)| version.served)
        {
            let place = places.entry(&definition.group).or_insert_with(|| {
                let name = definition.group.clone();
                groups.push(Group { name, native: false, versions: Vec::new() });
                GroupPlace { at: groups.len() - 1, versions: HashMap::new() }
            });
            work::count(2);
            let group = &mut groups[place.at];
            group.native |= definition.dialect.is_bundled();
            let priority = version.priority.unwrap_or(OTHER_PRIORITY);
            let at = *place.versions.entry(&version.name).or_insert_with(|| {
                group.versions.push(ServedVersion::new(&version.name, priority));
                group.versions.len() - 1
            });
            group.versions[at].resources.push(Resource {
                definition: Arc::clone(definition),
                version: index,
                storage_hash: hash.clone(),
            });
        }
    }
    for other in aggregated {
        let group = find_or_push(
            &mut groups,
            |group| group.name == other.group,
            || Group { name: other.group.clone(), native: false, versions: Vec::new() },
        );
        group.versions.retain(|known| known.name != other.version);
        let priority = ApiPriority { group: other.group_priority, version: other.version_priority };
        let mut version = ServedVersion::new(&other.version, priority);
        version.aggregated = Some(other);
        group.versions.push(version);
    }
    groups.sort_by_cached_key(|group| {
        let priority = group.versions.iter().map(|version| version.priority.group).max();
        (group.name != FIRST, Reverse(priority), group.name.clone())
    });
    for group in &mut groups {
        group.versions.sort_by_cached_key(|version| {
            Reverse((version.priority.version, preference(&version.name)))
        });
        for version in &mut group.versions {
            version.resources.sort_by(|a, b| a.definition.plural.cmp(&b.definition.plural));
        }
    }
    groups
}

/// Index of a group, and those of its versions.
struct GroupPlace<'a> {
    at: usize,
    versions: HashMap<&'a str, usize>,
}

fn find_or_push<T>(list: &mut Vec<T>, is: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> &mut T {
    let at = list.iter().position(is).unwrap_or_else(|| {
        list.push(make());
        list.len() - 1
    });
    &mut list[at]
}

/// Identifies the storage version of a kind: a prefix of its hash.
fn storage_hash(definition: &Definition) -> String {
    let gvk = definition.gvk(definition.storage_version);
    // kube-apiserver hashes the version in which the definitions were first stored; clients compare
    // the hashes.
    let version =
        if gvk.group == ferrokube_apiextensions::GROUP { "v1beta1" } else { &gvk.version };
    let digest = Sha256::digest(format!("{}/{version}/{}", gvk.group, gvk.kind));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

/// GA before beta before alpha, higher numbers first; other words last, in reverse order.
fn preference(version: &str) -> (u8, u64, u64, Reverse<String>) {
    let parsed = version.strip_prefix('v').and_then(|rest| {
        let end = rest.find(|symbol: char| !symbol.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..end].parse().ok()?;
        match &rest[end..] {
            "" => Some((3, major, 0)),
            tail => {
                let (stability, number) = tail
                    .strip_prefix("beta")
                    .map(|number| (2, number))
                    .or_else(|| tail.strip_prefix("alpha").map(|number| (1, number)))?;
                Some((stability, major, number.parse().ok()?))
            }
        }
    });
    let (stability, major, minor) = parsed.unwrap_or_default();
    (stability, major, minor, Reverse(version.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_in_kube_apiserver() {
        let mut versions = [
            "foo1",
            "v1alpha1",
            "v10",
            "v2beta10",
            "v2",
            "v3beta1",
            "v1",
            "foo10",
            "v11alpha2",
            "v12alpha1",
            "v2beta2",
            "v1beta1",
        ];
        versions.sort_by_key(|version| Reverse(preference(version)));
        assert_eq!(
            versions,
            [
                "v10",
                "v2",
                "v1",
                "v3beta1",
                "v2beta10",
                "v2beta2",
                "v1beta1",
                "v12alpha1",
                "v11alpha2",
                "v1alpha1",
                "foo1",
                "foo10"
            ]
        );
    }
}
