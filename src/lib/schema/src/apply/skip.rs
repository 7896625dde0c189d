//! Fields without an owner: server-set metadata, the trace annotations, and the definition's reset
//! fields.

use ferrokube_apimachinery::document::Text;

/// Fields that no manager owns, from the resource's definition. Parsed once, as each write reads
/// them.
#[derive(Clone, Debug, Default)]
pub struct ResetFields {
    paths: Vec<Vec<&'static str>>,
    names: Vec<String>,
}

impl ResetFields {
    /// Dotted paths such as `status` or `metadata.deletionTimestamp`.
    pub fn of_paths(paths: &[&'static str]) -> Self {
        let paths = paths.iter().map(|path| path.split('.').collect()).collect();
        Self { paths, names: Vec::new() }
    }

    /// Top-level fields, whose names may have dots.
    pub fn of_names(names: impl IntoIterator<Item = String>) -> Self {
        Self { paths: Vec::new(), names: names.into_iter().collect() }
    }

    /// Whether a top-level field is one of them.
    pub fn has(&self, name: &str) -> bool {
        self.paths.iter().any(|path| *path == [name])
            || self.names.iter().any(|field| field == name)
    }

    /// Calls `visit` with each path.
    pub fn for_each(&self, mut visit: impl FnMut(&[&str])) {
        self.paths.iter().for_each(|path| visit(path));
        self.names.iter().for_each(|name| visit(&[name.as_str()]));
    }
}

/// Ferrokube's own annotations are stamped on every write: owning them would make every write a
/// change of ownership.
const TRACE: [&str; 3] = [
    "trace.kubernetes.io/trace-id",
    "trace.kubernetes.io/span-id",
    "trace.kubernetes.io/initial-trace-id",
];

const SERVER: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

const IDS: &[&[&str]] = &[
    &["metadata", "annotations", TRACE[0]],
    &["metadata", "annotations", TRACE[1]],
    &["metadata", "annotations", TRACE[2]],
];

/// All skipped paths of a write.
pub(super) struct Skipped<'a> {
    paths: &'a [Vec<&'static str>],
    names: Vec<&'a str>,
    ids: &'static [&'static [&'static str]],
}

impl<'a> Skipped<'a> {
    /// `ids`: whether to skip the trace annotations.
    pub(super) fn of(reset: &'a ResetFields, ids: bool) -> Self {
        Self {
            paths: &reset.paths,
            names: reset.names.iter().map(String::as_str).collect(),
            ids: if ids { IDS } else { &[] },
        }
    }

    /// For the root of an object.
    pub(super) fn root(&self) -> Skip<'_> {
        Skip {
            paths: SERVER
                .iter()
                .chain(self.ids)
                .copied()
                .chain(self.paths.iter().map(Vec::as_slice))
                .chain(self.names.iter().map(std::slice::from_ref))
                .collect(),
            annotations: false,
        }
    }
}

/// The skipped paths below a field. Empty almost everywhere.
#[derive(Clone, Default)]
pub(super) struct Skip<'a> {
    paths: Vec<&'a [&'a str]>,
    annotations: bool,
}

impl<'a> Skip<'a> {
    /// Whether the field itself is skipped.
    pub(super) fn has(&self, name: &str) -> bool {
        self.paths.iter().any(|path| matches!(path, [only] if *only == name))
    }

    /// Whether this is about the fields of an object's metadata.
    pub(super) fn is_metadata(&self) -> bool {
        self.has("resourceVersion") && self.has("managedFields")
    }

    /// The skipped paths below the field.
    pub(super) fn below(&self, name: &str) -> Self {
        let paths: Vec<&'a [&'a str]> = self
            .paths
            .iter()
            .filter_map(|path| path.split_first())
            .filter(|(first, rest)| **first == name && !rest.is_empty())
            .map(|(_, rest)| rest)
            .collect();
        let annotations = paths.iter().any(|path| path[0] == TRACE[0]);
        Self { paths, annotations }
    }

    /// Whether a map only has skipped keys (such as annotations with nothing but the trace).
    pub(super) fn hides<'k>(&self, mut keys: impl Iterator<Item = &'k Text>) -> bool {
        self.annotations && {
            let mut any = false;
            keys.all(|key| {
                any = true;
                self.has(key)
            }) && any
        }
    }
}
