//! The reader: recursive descent with a depth limit. Elements and fields wait on two stacks until
//! their list or map ends, then move to an allocation of the exact size.

use super::census::{self, Census};
use super::{DecodeError, DecodedValue, MAX_DEPTH, MAX_DUPLICATES, text};
use crate::document::{Map, Number, Text, Value};
use crate::value::FEW;
use crate::work;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Duplicates inspected until [`MAX_DUPLICATES`] different ones are found.
const MAX_REPEATS: usize = 64;

/// Characters of a number that an error shows.
const MAX_SHOWN: usize = 1024;

/// Decodes exactly one value. `rounds`: integral floats are integers.
pub(super) fn parse(text: &str, rounds: bool) -> Result<DecodedValue, DecodeError> {
    let bytes = text.as_bytes();
    let large = census::take(bytes);
    let mut reader = JsonReader {
        text,
        bytes,
        at: 0,
        rounds,
        items: Vec::new(),
        fields: Vec::new(),
        large,
        repeats: Vec::new(),
    };
    let value = reader.document().map_err(|fault| *fault)?;
    Ok(DecodedValue { value, duplicates: reader.duplicates() })
}

/// Boxed, so that results fit into registers.
type BoxedDecodeError = Box<DecodeError>;

/// A segment of the path to a duplicate key.
enum KeySegment {
    /// Position of the key's string.
    KeyAt(usize),
    Index(usize),
}

struct JsonReader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    rounds: bool,
    /// Elements of all open lists, except large ones.
    items: Vec<Value>,
    /// Fields of all open maps, except large ones; sorted within each map.
    fields: Vec<(Text, Value)>,
    large: Census,
    /// Paths of duplicate keys, innermost segment first; each container adds its segment when it
    /// ends.
    repeats: Vec<Vec<KeySegment>>,
}

impl JsonReader<'_> {
    fn document(&mut self) -> Result<Value, BoxedDecodeError> {
        let value = self.value(0)?;
        self.skip_space();
        if self.at < self.bytes.len() {
            Err(self.unexpected("the end of the body"))
        } else {
            Ok(value)
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, BoxedDecodeError> {
        self.skip_space();
        work::count(1);
        work::breathe();
        match self.bytes.get(self.at) {
            Some(b'"') => {
                self.at += 1;
                Ok(Value::String(self.string()?))
            }
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'-' | b'0'..=b'9') => Ok(Value::Number(self.number()?)),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            _ => Err(self.unexpected("a value")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, BoxedDecodeError> {
        self.open(depth)?;
        if self.eat(b'}') {
            return Ok(Value::Object(Map::new()));
        }
        let from = self.fields.len();
        loop {
            if self.fields.len() - from == FEW {
                return self.large_object(from, depth);
            }
            let (key_at, repeats) = (self.at, self.repeats.len());
            let key = self.key()?;
            let place = self.place(from, key);
            let value = self.value(depth + 1)?;
            self.fields[place].1 = value;
            self.leave(repeats, || KeySegment::KeyAt(key_at));
            if self.ends_object()? {
                return Ok(Value::Object(Map::from_sorted(self.fields.split_off(from))));
            }
        }
    }

    /// The rest of an object with too many fields for sorted insertion.
    fn large_object(&mut self, from: usize, depth: usize) -> Result<Value, BoxedDecodeError> {
        let mut tree: BTreeMap<Text, Value> = self.fields.drain(from..).collect();
        loop {
            let (key_at, repeats) = (self.at, self.repeats.len());
            let slot = match tree.entry(self.key()?) {
                Entry::Vacant(slot) => slot.insert(Value::Null),
                Entry::Occupied(slot) => {
                    self.note_repeat();
                    let slot = slot.into_mut();
                    *slot = Value::Null;
                    slot
                }
            };
            *slot = self.value(depth + 1)?;
            self.leave(repeats, || KeySegment::KeyAt(key_at));
            if self.ends_object()? {
                return Ok(Value::Object(Map::from_tree(tree)));
            }
        }
    }

    /// Inserts a placeholder for a key into the sorted fields from `from` on; returns its index.
    fn place(&mut self, from: usize, key: Text) -> usize {
        let own = &self.fields[from..];
        if own.last().is_none_or(|(last, _)| *last < key) {
            self.fields.push((key, Value::Null));
            return self.fields.len() - 1;
        }
        match own.binary_search_by(|(name, _)| name.cmp(&key)) {
            Ok(at) => {
                self.fields[from + at].1 = Value::Null;
                self.note_repeat();
                from + at
            }
            Err(at) => {
                work::count(own.len() - at);
                self.fields.insert(from + at, (key, Value::Null));
                from + at
            }
        }
    }

    #[cold]
    fn note_repeat(&mut self) {
        if self.repeats.len() < MAX_REPEATS {
            self.repeats.push(Vec::new());
        }
    }

    /// Adds a segment to the paths of duplicates since there were `before`.
    fn leave(&mut self, before: usize, segment: impl Fn() -> KeySegment) {
        if self.repeats.len() > before {
            work::count(self.repeats.len() - before);
            self.repeats[before..].iter_mut().for_each(|path| path.push(segment()));
        }
    }

    /// Skips to the next field, or past the end of the object.
    fn ends_object(&mut self) -> Result<bool, BoxedDecodeError> {
        self.skip_space();
        if self.eat(b'}') {
            return Ok(true);
        }
        if !self.eat(b',') {
            return Err(self.unexpected("',' or '}'"));
        }
        self.skip_space();
        Ok(false)
    }

    fn array(&mut self, depth: usize) -> Result<Value, BoxedDecodeError> {
        let large = self.large.of(self.at);
        self.open(depth)?;
        if self.eat(b']') {
            return Ok(Value::Array(Vec::new().into()));
        }
        if let Some(length) = large {
            return self.large_array(length, depth);
        }
        let from = self.items.len();
        loop {
            let item = self.element(self.items.len() - from, depth)?;
            self.items.push(item);
            if self.ends_array()? {
                return Ok(Value::Array(self.items.split_off(from).into()));
            }
        }
    }

    fn large_array(&mut self, length: usize, depth: usize) -> Result<Value, BoxedDecodeError> {
        let mut items = Vec::with_capacity(length);
        loop {
            items.push(self.element(items.len(), depth)?);
            if self.ends_array()? {
                return Ok(Value::Array(items.into()));
            }
        }
    }

    fn element(&mut self, index: usize, depth: usize) -> Result<Value, BoxedDecodeError> {
        let repeats = self.repeats.len();
        let item = self.value(depth + 1)?;
        self.leave(repeats, || KeySegment::Index(index));
        Ok(item)
    }

    /// Skips to the next element, or past the end of the array.
    fn ends_array(&mut self) -> Result<bool, BoxedDecodeError> {
        self.skip_space();
        if self.eat(b']') {
            return Ok(true);
        }
        if self.eat(b',') { Ok(false) } else { Err(self.unexpected("',' or ']'")) }
    }

    /// Skips an opening bracket.
    fn open(&mut self, depth: usize) -> Result<(), BoxedDecodeError> {
        if depth >= MAX_DEPTH {
            return Err(Box::new(DecodeError::TooDeep));
        }
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    /// A key and its colon.
    fn key(&mut self) -> Result<Text, BoxedDecodeError> {
        if !self.eat(b'"') {
            return Err(self.unexpected("a key"));
        }
        let key = self.string()?;
        self.skip_space();
        if self.eat(b':') { Ok(key) } else { Err(self.unexpected("':'")) }
    }

    /// The rest of a string after its opening quote.
    fn string(&mut self) -> Result<Text, BoxedDecodeError> {
        let end = text::plain_end(self.bytes, self.at);
        let plain = &self.text[self.at..end];
        self.at = end;
        if self.eat(b'"') {
            return Ok(plain.into());
        }
        let mut text = self.escaped_string(plain.to_owned())?;
        text.shrink_to_fit();
        Ok(text.into())
    }

    #[cold]
    fn escaped_string(&mut self, mut out: String) -> Result<String, BoxedDecodeError> {
        loop {
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    let (char, after) =
                        text::read_escape(self.bytes, self.at).map_err(|why| self.syntax(why))?;
                    out.push(char);
                    self.at = after;
                }
                Some(_) => return Err(self.syntax("a control character in a string")),
                None => return Err(self.syntax("the body ends inside a string")),
            }
            let end = text::plain_end(self.bytes, self.at);
            out.push_str(&self.text[self.at..end]);
            self.at = end;
        }
    }

    /// Integers are exact within 64 bits; other numbers are floats, which must be finite.
    fn number(&mut self) -> Result<Number, BoxedDecodeError> {
        let start = self.at;
        let is_integer = self.number_syntax()?;
        let text = &self.text[start..self.at];
        if is_integer {
            if let Ok(integer) = text.parse::<i64>() {
                return Ok(integer.into());
            }
            if let Ok(integer) = text.parse::<u64>() {
                return Ok(integer.into());
            }
        }
        let number = |float| {
            if self.rounds { super::float(float) } else { Number::of_text(float, text) }
        };
        text.parse()
            .ok()
            .and_then(number)
            .ok_or_else(|| Box::new(DecodeError::Range(text.chars().take(MAX_SHOWN).collect())))
    }

    /// Skips a number; true if it is an integer.
    fn number_syntax(&mut self) -> Result<bool, BoxedDecodeError> {
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        let mut is_integer = true;
        if self.eat(b'.') {
            self.digits()?;
            is_integer = false;
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _signed = self.eat(b'+') || self.eat(b'-');
            self.digits()?;
            is_integer = false;
        }
        Ok(is_integer)
    }

    fn digits(&mut self) -> Result<(), BoxedDecodeError> {
        let start = self.at;
        while matches!(self.bytes.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.unexpected("a digit")) } else { Ok(()) }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, BoxedDecodeError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.unexpected("a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    /// Skips the next byte if it equals this one.
    fn eat(&mut self, byte: u8) -> bool {
        let found = self.bytes.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    fn skip_space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Distinct paths of duplicate keys, as strings.
    fn duplicates(mut self) -> Vec<String> {
        let mut paths = Vec::new();
        for repeat in std::mem::take(&mut self.repeats) {
            let mut path = String::new();
            for segment in repeat.iter().rev() {
                match segment {
                    KeySegment::KeyAt(at) => {
                        self.at = at + 1;
                        if !path.is_empty() {
                            path.push('.');
                        }
                        path.push_str(&self.string().unwrap_or_default());
                    }
                    KeySegment::Index(index) => path.push_str(&format!("[{index}]")),
                }
            }
            work::count(path.len());
            if !paths.contains(&path) {
                paths.push(path);
            }
            if paths.len() == MAX_DUPLICATES {
                break;
            }
        }
        paths
    }

    #[cold]
    fn unexpected(&self, wanted: &str) -> BoxedDecodeError {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(found) => self.syntax(&format!("found {found:?}, expected {wanted}")),
            None => {
                Box::new(DecodeError::Syntax(format!("the body ends where {wanted} is expected")))
            }
        }
    }

    #[cold]
    fn syntax(&self, why: &str) -> BoxedDecodeError {
        Box::new(DecodeError::Syntax(format!("{why} at byte {}", self.at)))
    }
}
