//! The position of a walk: a linked list on the stack, formatted only for errors.

use std::fmt;

/// A position. The root has no parent and prints nothing.
#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: PathSegment<'a>,
    depth: usize,
}

#[derive(Clone, Copy)]
enum PathSegment<'a> {
    Root,
    Field(&'a str),
    /// A key of a map.
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    pub(super) const ROOT: Path<'static> =
        Path { parent: None, segment: PathSegment::Root, depth: 0 };

    pub(super) fn field(&'a self, name: &'a str) -> Self {
        self.child(PathSegment::Field(name))
    }

    pub(super) fn key(&'a self, name: &'a str) -> Self {
        self.child(PathSegment::Key(name))
    }

    /// With map keys in brackets, as some errors print them.
    pub(super) fn bracketed(&self) -> String {
        let mut out = String::new();
        let _ = self.write(&mut out, true);
        out
    }

    pub(super) fn index(&'a self, index: usize) -> Self {
        self.child(PathSegment::Index(index))
    }

    fn child(&'a self, segment: PathSegment<'a>) -> Self {
        Self { parent: Some(self), segment, depth: self.depth + 1 }
    }

    /// Field names and map keys from the root; `None` for a list item.
    pub(super) fn way(&self) -> Vec<Option<String>> {
        let mut way = self.parent.map(Self::way).unwrap_or_default();
        match self.segment {
            PathSegment::Root => {}
            PathSegment::Field(name) | PathSegment::Key(name) => way.push(Some(name.to_owned())),
            PathSegment::Index(_) => way.push(None),
        }
        way
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }
}

impl Path<'_> {
    fn write(&self, out: &mut impl fmt::Write, brackets: bool) -> fmt::Result {
        let parent = self.parent.filter(|parent| !matches!(parent.segment, PathSegment::Root));
        if let Some(parent) = parent {
            parent.write(out, brackets)?;
        }
        match self.segment {
            PathSegment::Root => Ok(()),
            PathSegment::Key(name) if brackets => write!(out, "[{name}]"),
            PathSegment::Field(name) | PathSegment::Key(name) if parent.is_none() => {
                out.write_str(name)
            }
            PathSegment::Field(name) | PathSegment::Key(name) => write!(out, ".{name}"),
            PathSegment::Index(index) => write!(out, "[{index}]"),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}
