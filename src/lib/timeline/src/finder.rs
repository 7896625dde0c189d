//! Searches bytes for ids: runs of hexadecimal digits that have the length of an id and match one
//! of the given ids.
//!
//! A run of 32 digits covers one byte of any 32 consecutive ones, so most of a text is never
//! read, and the cost does not depend on the number of ids (an automaton for a thousand ids took
//! ten times as long).

use memchr::memmem;
use std::collections::HashSet;
use std::ops::Range;

/// Length of a trace id in digits.
const LONG: usize = 32;
/// Length of a span id in digits.
const SHORT: usize = 16;
/// Size of the filter, in bits.
const BITS: usize = 1 << 16;

/// The ids to search for.
#[derive(Debug)]
pub(crate) enum Needle {
    /// Lines with one of the ids.
    Ids(Finder),
    /// Lines with a text.
    Text(Box<memmem::Finder<'static>>),
}

impl Needle {
    pub(crate) fn ids(ids: &[String]) -> Self {
        Self::Ids(Finder::new(ids))
    }

    pub(crate) fn text(text: &str) -> Self {
        Self::Text(Box::new(memmem::Finder::new(text).into_owned()))
    }

    /// The first match at or after `from`, the start of a line.
    pub(crate) fn find(&self, block: &[u8], from: usize) -> Option<Range<usize>> {
        match self {
            Self::Ids(finder) => finder.find(block, from),
            Self::Text(finder) => {
                finder.find(&block[from..]).map(|at| from + at..from + at + finder.needle().len())
            }
        }
    }
}

/// A set of ids to find.
#[derive(Debug)]
pub(crate) struct Finder {
    ids: HashSet<Box<[u8]>>,
    /// Filter with a bit per id, which rejects most other runs.
    maybe: Vec<u64>,
    /// Length of the shortest id.
    step: usize,
}

impl Finder {
    /// For ids of 16 or 32 lower-case hexadecimal digits; others never match.
    pub(crate) fn new(ids: &[String]) -> Self {
        let ids: HashSet<Box<[u8]>> =
            ids.iter().filter(|id| is_id(id)).map(|id| id.as_bytes().into()).collect();
        let mut maybe = vec![0; BITS / 64];
        ids.iter().map(|id| place(id)).for_each(|at| maybe[at / 64] |= 1 << (at % 64));
        let step = if ids.iter().any(|id| id.len() == SHORT) { SHORT } else { LONG };
        Self { ids, maybe, step }
    }

    /// The first match at or after `from`, where a run is assumed to start.
    pub(crate) fn find(&self, text: &[u8], from: usize) -> Option<Range<usize>> {
        let mut at = from + self.step - 1;
        while let Some(byte) = text.get(at) {
            if !is_digit(*byte) {
                at += self.step;
                continue;
            }
            let begin = text[from..at]
                .iter()
                .rposition(|byte| !is_digit(*byte))
                .map_or(from, |before| from + before + 1);
            let end = text[at..]
                .iter()
                .position(|byte| !is_digit(*byte))
                .map_or(text.len(), |length| at + length);
            if self.is_wanted(&text[begin..end]) {
                return Some(begin..end);
            }
            // The next run starts beyond the byte that ended this one.
            at = end + self.step;
        }
        None
    }

    fn is_wanted(&self, run: &[u8]) -> bool {
        if !matches!(run.len(), SHORT | LONG) {
            return false;
        }
        let at = place(run);
        self.maybe[at / 64] >> (at % 64) & 1 == 1 && self.ids.contains(run)
    }
}

/// Whether a text has the form of an id: 16 or 32 lower-case hexadecimal digits.
pub(crate) fn is_id(text: &str) -> bool {
    matches!(text.len(), SHORT | LONG)
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Includes upper-case digits: a run with one is not an id.
fn is_digit(byte: u8) -> bool {
    const TABLE: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            table[byte] = (byte as u8).is_ascii_hexdigit();
            byte += 1;
        }
        table
    };
    TABLE[usize::from(byte)]
}

/// Filter bit of an id (at least 16 bytes).
fn place(id: &[u8]) -> usize {
    let word = |bytes: &[u8]| bytes.iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
    let mixed = (word(&id[..8]).rotate_left(29) ^ word(&id[id.len() - 8..]))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::from((mixed >> 48) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn all(ids: &[&str], text: &str) -> Vec<usize> {
        let finder = Finder::new(&ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
        let (mut from, mut found) = (0, Vec::new());
        while let Some(hit) = finder.find(text.as_bytes(), from) {
            assert!(ids.contains(&&text[hit.clone()]));
            found.push(hit.start);
            from = hit.end;
        }
        found
    }

    #[test]
    fn an_id_is_found_at_every_place_and_only_as_a_whole_run() {
        for before in 0..70 {
            for filler in [" ", "g", "0 ", "abc-"] {
                let begin: String =
                    filler.chars().cycle().take(before).chain(" ".chars()).collect();
                let text = format!("{begin}{TRACE} {SPAN}-{TRACE}\n{SPAN}");
                assert_eq!(
                    all(&[TRACE, SPAN], &text),
                    [before + 1, before + 34, before + 51, before + 84],
                    "{text:?}"
                );
                assert_eq!(all(&[TRACE], &text), [before + 1, before + 51], "{text:?}");
            }
        }
        for part in [
            format!("{TRACE}0"),
            format!("a{TRACE}"),
            format!("F{SPAN}"),
            format!("{SPAN}{SPAN}"),
            TRACE.to_uppercase(),
            TRACE[1..].to_owned(),
        ] {
            assert!(all(&[TRACE, SPAN], &part).is_empty(), "{part}");
        }
        assert!(all(&[], TRACE).is_empty());
        assert!(all(&["no id"], "no id").is_empty());
    }

    #[test]
    fn a_megabyte_of_digits_is_read_once() {
        let text = "a".repeat(1 << 20) + " " + TRACE;
        assert_eq!(all(&[TRACE], &text), [(1 << 20) + 1]);
    }

    #[test]
    fn any_bytes_give_what_a_plain_search_gives() {
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for _ in 0..2000 {
            let text: String = (0..300)
                .map(|_| {
                    if next() % 40 == 0 {
                        ' '
                    } else {
                        char::from(b"0123456789abcdef"[next() % 16])
                    }
                })
                .collect();
            let words: Vec<(usize, &str)> = text
                .split(' ')
                .scan(0, |at, word| Some((std::mem::replace(at, *at + word.len() + 1), word)))
                .collect();
            let ids: Vec<&str> =
                words.iter().map(|(_, word)| *word).filter(|word| is_id(word)).collect();
            let expected: Vec<usize> =
                words.iter().filter(|(_, word)| is_id(word)).map(|(at, _)| *at).collect();
            assert_eq!(all(&ids, &text), expected, "{text}");
        }
    }
}
