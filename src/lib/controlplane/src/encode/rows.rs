//! Rows of Tables, written with gaps where ages go: all but the ages is the same whenever it is
//! sent.

use bytes::Bytes;
use ferrokube_apimachinery::time::human_age;
use std::sync::Arc;
use std::time::SystemTime;

/// What a custom column shows for a time that has not come yet.
const INVALID: &str = "<invalid>";

/// Where an age goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    at: u32,
    since: SystemTime,
    future: Future,
}

/// What the age of a time in the future is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Future {
    /// As now.
    Now,
    /// [`INVALID`]
    Invalid,
}

/// Rows, separated by commas, and the gaps in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    /// All but the ages.
    pub(crate) bytes: Bytes,
    /// In order.
    pub(crate) gaps: Arc<[Gap]>,
}

impl Rows {
    /// What keeping them costs.
    pub(crate) fn cost(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.gaps)
    }
}

/// Rows that are being written.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// All but the ages.
    pub(crate) bytes: Vec<u8>,
    gaps: Vec<Gap>,
    /// They depend on the time in other ways, too.
    pub(crate) is_dated: bool,
}

impl Draft {
    /// No rows.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.gaps.clear();
        self.is_dated = false;
    }

    /// The age of something, as a JSON string.
    pub(crate) fn age(&mut self, since: SystemTime, future: Future) {
        self.bytes.push(b'"');
        // Rows of one piece are bounded, and so is every object.
        let at = u32::try_from(self.bytes.len()).expect("rows are shorter than 4 GiB");
        self.gaps.push(Gap { at, since, future });
        self.bytes.push(b'"');
    }

    /// A copy to keep: it has no more room than it needs.
    pub(crate) fn rows(&self) -> Rows {
        Rows { bytes: Bytes::copy_from_slice(&self.bytes), gaps: self.gaps.as_slice().into() }
    }

    /// The rows themselves, for once.
    pub(crate) fn take(&mut self) -> Rows {
        let room = self.bytes.len();
        Rows {
            bytes: std::mem::replace(&mut self.bytes, Vec::with_capacity(room)).into(),
            gaps: self.gaps.as_slice().into(),
        }
    }
}

/// The ages at a time.
#[derive(Debug)]
pub(crate) struct Ages {
    now: SystemTime,
    /// The last one that was written: what was made together has the same.
    last: Option<(SystemTime, Future)>,
    text: String,
}

impl Ages {
    pub(crate) fn new(now: SystemTime) -> Self {
        Self { now, last: None, text: String::new() }
    }

    fn of(&mut self, gap: &Gap) -> &str {
        if self.last != Some((gap.since, gap.future)) {
            self.last = Some((gap.since, gap.future));
            self.text = match self.now.duration_since(gap.since) {
                Ok(age) => human_age(age.as_secs()),
                Err(_) if gap.future == Future::Invalid => INVALID.to_owned(),
                Err(_) => human_age(0),
            };
        }
        &self.text
    }
}

/// Rows on their way out.
#[derive(Debug)]
pub(crate) struct Filling {
    rows: Rows,
    at: usize,
    gap: usize,
}

impl Filling {
    pub(crate) fn new(rows: Rows) -> Self {
        Self { rows, at: 0, gap: 0 }
    }

    /// Appends what comes next until there are `most` bytes, or an age more; true at the end.
    pub(crate) fn fill(&mut self, ages: &mut Ages, out: &mut Vec<u8>, most: usize) -> bool {
        loop {
            let gap = self.rows.gaps.get(self.gap);
            let stop = gap.map_or(self.rows.bytes.len(), |gap| gap.at as usize);
            let end = stop.min(self.at.saturating_add(most.saturating_sub(out.len())));
            out.extend_from_slice(&self.rows.bytes[self.at..end]);
            self.at = end;
            if end < stop {
                return false;
            }
            let Some(gap) = gap else { return true };
            out.extend_from_slice(ages.of(gap).as_bytes());
            self.gap += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn filled(rows: &Rows, now: SystemTime, step: usize) -> String {
        let (mut filling, mut ages, mut out) =
            (Filling::new(rows.clone()), Ages::new(now), Vec::new());
        while !{
            let most = out.len() + step;
            filling.fill(&mut ages, &mut out, most)
        } {}
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn ages_are_filled_in_when_rows_are_sent() {
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let mut draft = Draft::default();
        draft.bytes.extend_from_slice(b"a");
        draft.age(then, Future::Now);
        draft.bytes.extend_from_slice(b"bc");
        draft.age(then, Future::Invalid);
        let rows = draft.rows();
        for step in [1, 2, 3, 100] {
            assert_eq!(filled(&rows, then + Duration::from_secs(5), step), "a\"5s\"bc\"5s\"");
            assert_eq!(filled(&rows, then + Duration::from_secs(3600), step), "a\"60m\"bc\"60m\"");
            assert_eq!(filled(&rows, SystemTime::UNIX_EPOCH, step), "a\"0s\"bc\"<invalid>\"");
        }
        draft.clear();
        assert_eq!(filled(&draft.rows(), then, 10), "");
    }
}
