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
    Index(usize),
}

impl<'a> Path<'a> {
    pub(super) const ROOT: Path<'static> = Path { parent: None, segment: Segment::Root, depth: 0 };

    pub(super) fn field(&'a self, name: &'a str) -> Self {
        self.child(Segment::Field(name))
    }

    pub(super) fn index(&'a self, index: usize) -> Self {
        self.child(Segment::Index(index))
    }

    fn child(&'a self, segment: Segment<'a>) -> Self {
        Self { parent: Some(self), segment, depth: self.depth + 1 }
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parent = self.parent.filter(|parent| !matches!(parent.segment, Segment::Root));
        if let Some(parent) = parent {
            parent.fmt(f)?;
        }
        match self.segment {
            Segment::Root => Ok(()),
            Segment::Field(name) if parent.is_none() => f.write_str(name),
            Segment::Field(name) => write!(f, ".{name}"),
            Segment::Index(index) => write!(f, "[{index}]"),
        }
    }
}
