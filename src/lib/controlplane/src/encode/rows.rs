//! Rows of Tables, encoded with gaps for the ages, the only part that depends on when they are
//! sent.

use bytes::Bytes;
use ferrokube_apimachinery::time::human_age;
use std::sync::Arc;
use std::time::SystemTime;

/// Shown by a custom column for a time in the future.
const INVALID: &str = "<invalid>";

/// The place of an age.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgeGap {
    at: u32,
    since: SystemTime,
    future: FutureAge,
}

/// How an age of a time in the future is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FutureAge {
    /// As zero.
    Now,
    Invalid,
}

/// Rows separated by commas, with gaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    /// Everything but the ages.
    pub(crate) bytes: Bytes,
    /// In ascending order.
    pub(crate) gaps: Arc<[AgeGap]>,
}

impl Rows {
    /// Bytes in memory.
    pub(crate) fn cost(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.gaps)
    }
}

/// Rows being encoded.
#[derive(Debug, Default)]
pub(crate) struct RowDraft {
    /// Everything but the ages.
    pub(crate) bytes: Vec<u8>,
    gaps: Vec<AgeGap>,
    /// Other parts than the ages depend on the time.
    pub(crate) is_dated: bool,
}

impl RowDraft {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.gaps.clear();
        self.is_dated = false;
    }

    /// Appends the age of `since`, as a JSON string.
    pub(crate) fn age(&mut self, since: SystemTime, future: FutureAge) {
        self.bytes.push(b'"');
        // Rows of a chunk are bounded, and so is every object.
        let at = u32::try_from(self.bytes.len()).expect("rows are shorter than 4 GiB");
        self.gaps.push(AgeGap { at, since, future });
        self.bytes.push(b'"');
    }

    /// A copy without spare capacity, for the cache.
    pub(crate) fn rows(&self) -> Rows {
        Rows { bytes: Bytes::copy_from_slice(&self.bytes), gaps: self.gaps.as_slice().into() }
    }

    /// Moves the rows out.
    pub(crate) fn take(&mut self) -> Rows {
        let room = self.bytes.len();
        Rows {
            bytes: std::mem::replace(&mut self.bytes, Vec::with_capacity(room)).into(),
            gaps: self.gaps.as_slice().into(),
        }
    }
}

/// Formats ages relative to one time.
#[derive(Debug)]
pub(crate) struct Ages {
    now: SystemTime,
    /// The last one formatted: objects created together share it.
    last: Option<(SystemTime, FutureAge)>,
    text: String,
}

impl Ages {
    pub(crate) fn new(now: SystemTime) -> Self {
        Self { now, last: None, text: String::new() }
    }

    fn of(&mut self, gap: &AgeGap) -> &str {
        if self.last != Some((gap.since, gap.future)) {
            self.last = Some((gap.since, gap.future));
            self.text = match self.now.duration_since(gap.since) {
                Ok(age) => human_age(age.as_secs()),
                Err(_) if gap.future == FutureAge::Invalid => INVALID.to_owned(),
                Err(_) => human_age(0),
            };
        }
        &self.text
    }
}

/// Fills the gaps while rows are sent.
#[derive(Debug)]
pub(crate) struct RowFiller {
    rows: Rows,
    at: usize,
    gap: usize,
}

impl RowFiller {
    pub(crate) fn new(rows: Rows) -> Self {
        Self { rows, at: 0, gap: 0 }
    }

    /// Appends up to about `most` bytes; true at the end.
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
            (RowFiller::new(rows.clone()), Ages::new(now), Vec::new());
        while !{
            let most = out.len() + step;
            filling.fill(&mut ages, &mut out, most)
        } {}
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn ages_are_filled_when_rows_are_sent() {
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let mut draft = RowDraft::default();
        draft.bytes.extend_from_slice(b"a");
        draft.age(then, FutureAge::Now);
        draft.bytes.extend_from_slice(b"bc");
        draft.age(then, FutureAge::Invalid);
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
