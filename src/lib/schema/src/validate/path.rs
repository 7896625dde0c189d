//! Where in a value a walk is: a list on the stack, written out only when something is reported.

use std::fmt;

/// A position. Roots have no parent and write nothing.
#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: Segment<'a>,
    depth: usize,
}

#[derive(Clone, Copy)]
enum Segment<'a> {
    Root,
    Field(&'a str),
    /// Of a map.
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    pub(super) const ROOT: Path<'static> = Path { parent: None, segment: Segment::Root, depth: 0 };

    pub(super) fn field(&'a self, name: &'a str) -> Self {
        self.child(Segment::Field(name))
    }

    pub(super) fn key(&'a self, name: &'a str) -> Self {
        self.child(Segment::Key(name))
    }

    /// With keys of maps in brackets, as some errors have them.
    pub(super) fn bracketed(&self) -> String {
        let mut out = String::new();
        let _ = self.write(&mut out, true);
        out
    }

    pub(super) fn index(&'a self, index: usize) -> Self {
        self.child(Segment::Index(index))
    }

    fn child(&'a self, segment: Segment<'a>) -> Self {
        Self { parent: Some(self), segment, depth: self.depth + 1 }
    }

    /// Names of fields and keys on the way from the root; `None`: an element of a list.
    pub(super) fn way(&self) -> Vec<Option<String>> {
        let mut way = self.parent.map(Self::way).unwrap_or_default();
        match self.segment {
            Segment::Root => {}
            Segment::Field(name) | Segment::Key(name) => way.push(Some(name.to_owned())),
            Segment::Index(_) => way.push(None),
        }
        way
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }
}

impl Path<'_> {
    fn write(&self, out: &mut impl fmt::Write, brackets: bool) -> fmt::Result {
        let parent = self.parent.filter(|parent| !matches!(parent.segment, Segment::Root));
        if let Some(parent) = parent {
            parent.write(out, brackets)?;
        }
        match self.segment {
            Segment::Root => Ok(()),
            Segment::Key(name) if brackets => write!(out, "[{name}]"),
            Segment::Field(name) | Segment::Key(name) if parent.is_none() => out.write_str(name),
            Segment::Field(name) | Segment::Key(name) => write!(out, ".{name}"),
            Segment::Index(index) => write!(out, "[{index}]"),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}
