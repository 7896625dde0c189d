//! Field paths on the stack of a traversal, formatted only for errors.

use std::fmt;

/// A field path such as `spec.ports[0].name`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FieldPath<'a> {
    /// The object itself.
    Root,
    /// A field, or several if dotted.
    Field(&'a FieldPath<'a>, &'a str),
    /// An item of a list.
    Index(&'a FieldPath<'a>, usize),
    /// An entry of a map.
    Key(&'a FieldPath<'a>, &'a str),
}

impl<'a> FieldPath<'a> {
    /// The path of a child field.
    pub(crate) fn field(&'a self, name: &'a str) -> Self {
        if name.is_empty() { *self } else { Self::Field(self, name) }
    }

    /// Resolves the start of a relative path such as `name`, `../name` or `/metadata.name`. Returns
    /// it with the rest.
    pub(crate) fn placed<'b>(&self, mut place: &'b str) -> (Self, &'b str) {
        let mut start = *self;
        if let Some(rest) = place.strip_prefix('/') {
            return (Self::Root, rest);
        }
        while let Some(rest) = place.strip_prefix("..") {
            place = rest.strip_prefix('/').unwrap_or(rest);
            start = match start {
                Self::Field(parent, _) | Self::Index(parent, _) | Self::Key(parent, _) => *parent,
                Self::Root => start,
            };
        }
        (start, place)
    }

    /// The path of a list item.
    pub(crate) fn index(&'a self, at: usize) -> Self {
        Self::Index(self, at)
    }

    /// The path of a map entry.
    pub(crate) fn key(&'a self, key: &'a str) -> Self {
        Self::Key(self, key)
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => out.write_str(name),
            Self::Field(parent, name) => write!(out, "{parent}.{name}"),
            Self::Index(parent, at) => write!(out, "{parent}[{at}]"),
            Self::Key(parent, key) => write!(out, "{parent}[{key}]"),
        }
    }
}

impl From<FieldPath<'_>> for String {
    fn from(path: FieldPath<'_>) -> Self {
        path.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_written_as_in_kube_apiserver() {
        let (root, ports) = (FieldPath::Root, "spec.ports");
        let list = root.field(ports);
        let item = list.index(1);
        assert_eq!(item.field("name").to_string(), "spec.ports[1].name");
        assert_eq!(item.field("").to_string(), "spec.ports[1]");
        assert_eq!(root.field("data").key("a b").to_string(), "data[a b]");
        assert_eq!(root.to_string(), "");
        let placed = |place| {
            let (start, rest) = item.placed(place);
            start.field(rest).to_string()
        };
        assert_eq!(placed("name"), "spec.ports[1].name");
        assert_eq!(placed(".."), "spec.ports");
        assert_eq!(placed("../../name"), "name");
        assert_eq!(placed("/metadata.x"), "metadata.x");
    }
}
