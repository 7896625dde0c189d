//! Mutations of bytes, and of JSON values within them.

use crate::MAX_INPUT;
use crate::random::Random;
use std::ops::Range;

/// JSON values to insert.
const VALUES: &[&[u8]] = &[
    b"null",
    b"true",
    b"{}",
    b"[]",
    b"\"\"",
    b"0",
    b"-1",
    b"1.5",
    b"1e400",
    b"9223372036854775808",
    b"[null]",
    b"[{}]",
    b"[[]]",
    b"{\"\":null}",
    b"\"\\u0000\"",
    b"\"\\ud800\"",
    b"\"a\"",
    b"18446744073709551615",
    b"-0.0",
    b"1E-7",
    b"[1,1]",
    b"{\"a\":{\"b\":[]}}",
    b"\"1e30\"",
    b"\"2026-01-01T00:00:00Z\"",
];

/// Tokens that are special to some parser.
const WORDS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"/",
    b"~1",
    b"~0",
    b"-",
    b"%",
    b"%2f",
    b"%00",
    b"..",
    b"=",
    b"==",
    b"!=",
    b"!",
    b" in (",
    b" notin ",
    b")",
    b"&",
    b"*",
    b"|",
    b">",
    b"\n",
    b"\n  ",
    b"- ",
    b": ",
    b"---\n",
    b"'",
    b"#",
    b"<<: ",
    b"&a ",
    b"*a",
    b"\t",
    b"\r\n",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\x00",
    b"\x80",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"999999999999999999999",
    b"e",
    b".",
    b"+",
    b";",
    b"q=",
    b"$patch",
    b"$retainKeys",
    b"$setElementOrder/",
    b"$deleteFromPrimitiveList/",
    b"f:",
    b"k:{\"name\":\"a\"}",
    b"v:1",
    b"i:0",
];

/// Derives inputs from the corpus.
pub(crate) struct Mutator<'a> {
    pub(crate) random: &'a mut Random,
    pub(crate) corpus: &'a [Vec<u8>],
}

impl Mutator<'_> {
    /// A member of the corpus after a few mutations.
    pub(crate) fn next(mut self) -> Vec<u8> {
        let mut input = self.member().to_vec();
        for _ in 0..=self.random.below(4) {
            self.mutate(&mut input);
            input.truncate(MAX_INPUT);
        }
        input
    }

    fn member(&mut self) -> &[u8] {
        if self.corpus.is_empty() {
            return b"";
        }
        let place = self.random.below(self.corpus.len());
        &self.corpus[place]
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        match self.random.below(12) {
            0 => self.flip(input),
            1 => {
                let (at, byte) = (self.random.below(input.len() + 1), self.random.byte());
                input.insert(at, byte);
            }
            2 => drop(input.drain(self.range(input.len()))),
            3 => input.truncate(self.random.below(input.len() + 1)),
            4 => self.repeat(input),
            5 => self.splice(input),
            6 | 7 => {
                let range = if self.random.below(2) == 0 {
                    self.range(input.len())
                } else {
                    self.point(input.len())
                };
                let word = self.random.pick(WORDS);
                drop(input.splice(range, word.iter().copied()));
            }
            8 => self.nest(input),
            _ => self.swap_value(input),
        }
    }

    fn point(&mut self, length: usize) -> Range<usize> {
        let at = self.random.below(length + 1);
        at..at
    }

    /// A range, usually short.
    fn range(&mut self, length: usize) -> Range<usize> {
        let start = self.random.below(length + 1);
        let longest = if self.random.below(4) == 0 { length } else { 8 };
        start..(start + self.random.below(longest + 1)).min(length)
    }

    fn flip(&mut self, input: &mut [u8]) {
        let (at, bit) = (self.random.below(input.len()), self.random.below(8));
        if let Some(byte) = input.get_mut(at) {
            *byte ^= 1 << bit;
        }
    }

    /// Repeats a range many times.
    fn repeat(&mut self, input: &mut Vec<u8>) {
        let range = self.range(input.len());
        let piece = input[range.clone()].to_vec();
        let most = if self.random.below(8) == 0 { 2000 } else { 8 };
        let times = self.random.below(most).min(MAX_INPUT / piece.len().max(1));
        drop(input.splice(range.end..range.end, piece.repeat(times)));
    }

    /// Joins the beginning of this input and the end of another.
    fn splice(&mut self, input: &mut Vec<u8>) {
        let cut = self.random.below(input.len() + 1);
        let other = self.member().to_vec();
        let from = self.random.below(other.len() + 1);
        input.truncate(cut);
        input.extend_from_slice(&other[from..]);
    }

    /// Nests a JSON value more deeply.
    fn nest(&mut self, input: &mut Vec<u8>) {
        let Some(range) = self.value(input) else { return };
        let (open, close) = self.random.pick::<(&[u8], &[u8])>(&[
            &(b"[", b"]"),
            &(b"{\"a\":", b"}"),
            &(b"{\"spec\":", b"}"),
        ]);
        let most = if self.random.below(8) == 0 { 600 } else { 3 };
        let times = self.random.below(most);
        let nested = [&open.repeat(times), &input[range.clone()], &close.repeat(times)].concat();
        drop(input.splice(range, nested));
    }

    /// Replaces a JSON value with another one, from the corpus or from [`VALUES`].
    fn swap_value(&mut self, input: &mut Vec<u8>) {
        let Some(range) = self.value(input) else { return };
        let value = if self.random.below(3) == 0 {
            self.random.pick(VALUES).to_vec()
        } else {
            let other = self.member().to_vec();
            self.value(&other).map(|range| other[range].to_vec()).unwrap_or_default()
        };
        drop(input.splice(range, value));
    }

    /// Approximate range of some JSON value: whatever follows a colon, comma or bracket.
    fn value(&mut self, input: &[u8]) -> Option<Range<usize>> {
        let from = self.random.below(input.len());
        let at = (from..input.len())
            .chain(0..from)
            .find(|at| matches!(input[*at], b':' | b',' | b'['))?
            + 1;
        let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
        for (offset, byte) in input[at..].iter().enumerate() {
            if quoted {
                quoted = escaped || *byte != b'"';
                escaped = !escaped && *byte == b'\\';
                continue;
            }
            match byte {
                b'"' => quoted = true,
                b'{' | b'[' => depth += 1,
                b'}' | b']' | b',' if depth == 0 => return Some(at..at + offset),
                b'}' | b']' => depth -= 1,
                _ => {}
            }
        }
        None
    }
}
