//! Group, version, kind and resource names.

use std::fmt;

/// Group and version: `apps/v1`, or `v1` for the core group (empty group).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// Empty for the core group.
    pub group: String,
    /// Such as `v1`.
    pub version: String,
}

impl GroupVersion {
    /// Does not validate.
    pub fn new(group: impl Into<String>, version: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into() }
    }

    /// Parses `group/version` or `version`; `None` with more than one slash or an empty version.
    pub fn parse(text: &str) -> Option<Self> {
        let (group, version) = text.split_once('/').unwrap_or(("", text));
        (!version.is_empty() && !version.contains('/')).then(|| Self::new(group, version))
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.version)
        } else {
            write!(f, "{}/{}", self.group, self.version)
        }
    }
}

/// Group, version and kind of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// Empty for the core group.
    pub group: String,
    /// Such as `v1`.
    pub version: String,
    /// Such as `ConfigMap`.
    pub kind: String,
}

impl GroupVersionKind {
    /// Does not validate.
    pub fn new(
        group: impl Into<String>,
        version: impl Into<String>,
        kind: impl Into<String>,
    ) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// `apiVersion` of objects of this kind.
    pub fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => [group, "/", &self.version].concat(),
        }
    }

    /// Whether it is [`Self::api_version`].
    pub fn is_api_version(&self, text: &str) -> bool {
        is_api_version(text, &self.group, &self.version)
    }
}

/// Whether it is the `apiVersion` of a group and version.
pub fn is_api_version(text: &str, group: &str, version: &str) -> bool {
    match group {
        "" => text == version,
        group => text.split_once('/') == Some((group, version)),
    }
}

/// Group and plural resource name, as in errors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// Empty for the core group.
    pub group: String,
    /// Plural name, such as `configmaps`.
    pub resource: String,
}

impl GroupResource {
    /// Does not validate.
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { group: group.into(), resource: resource.into() }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.resource)
        } else {
            write!(f, "{}.{}", self.resource, self.group)
        }
    }
}
