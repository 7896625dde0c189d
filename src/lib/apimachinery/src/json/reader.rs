//! The reader: recursive descent with an explicit bound, which builds each value in its final place (moving values about cost more than parsing them).

use super::{DecodeError, DecodedValue, MAX_DEPTH, MAX_DUPLICATES, text};
use crate::document::{Map, Number, Value};
use serde_json::map::Entry;

/// So many repeats are looked at until [`MAX_DUPLICATES`] different ones are found.
const MAX_REPEATS: usize = 64;

/// Reads exactly one value. `rounds`: floats without a fraction are integers.
pub(super) fn parse(text: &str, rounds: bool) -> Result<DecodedValue, DecodeError> {
    let mut reader = Reader { text, bytes: text.as_bytes(), at: 0, rounds, repeats: Vec::new() };
    let mut value = Value::Null;
    reader.document(&mut value).map_err(|fault| *fault)?;
    Ok(DecodedValue { value, duplicates: reader.duplicates() })
}

/// Boxed, so that results fit into registers.
type Fault = Box<DecodeError>;

/// A part of the path to a repeated key.
enum Segment {
    /// Where the key's string begins in the text.
    KeyAt(usize),
    Index(usize),
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    rounds: bool,
    /// Paths of repeated keys, innermost segment first; each container adds its segment when it is left.
    repeats: Vec<Vec<Segment>>,
}

impl Reader<'_> {
    fn document(&mut self, slot: &mut Value) -> Result<(), Fault> {
        self.value(slot, 0)?;
        self.skip_space();
        if self.at < self.bytes.len() { Err(self.unexpected("the end of the body")) } else { Ok(()) }
    }

    /// Reads a value into its place, which holds null.
    fn value(&mut self, slot: &mut Value, depth: usize) -> Result<(), Fault> {
        self.skip_space();
        match self.bytes.get(self.at) {
            Some(b'"') => {
                self.at += 1;
                *slot = Value::String(self.string()?);
            }
            Some(b'{') => {
                *slot = Value::Object(Map::new());
                let Value::Object(map) = slot else { unreachable!("set just above") };
                return self.object(map, depth);
            }
            Some(b'[') => {
                *slot = Value::Array(Vec::new());
                let Value::Array(items) = slot else { unreachable!("set just above") };
                return self.array(items, depth);
            }
            Some(b'-' | b'0'..=b'9') => *slot = Value::Number(self.number()?),
            Some(b't') => *slot = self.word("true", Value::Bool(true))?,
            Some(b'f') => *slot = self.word("false", Value::Bool(false))?,
            Some(b'n') => *slot = self.word("null", Value::Null)?,
            _ => return Err(self.unexpected("a value")),
        }
        Ok(())
    }

    fn object(&mut self, map: &mut Map<String, Value>, depth: usize) -> Result<(), Fault> {
        self.open(depth)?;
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            let key_at = self.at;
            let key = self.key()?;
            let repeats = self.repeats.len();
            let slot = match map.entry(key) {
                Entry::Vacant(slot) => slot.insert(Value::Null),
                Entry::Occupied(slot) => {
                    if repeats < MAX_REPEATS {
                        self.repeats.push(Vec::new());
                    }
                    let slot = slot.into_mut();
                    *slot = Value::Null;
                    slot
                }
            };
            self.value(slot, depth + 1)?;
            if self.repeats.len() > repeats {
                self.repeats[repeats..].iter_mut().for_each(|path| path.push(Segment::KeyAt(key_at)));
            }
            self.skip_space();
            if self.eat(b'}') {
                return Ok(());
            }
            if !self.eat(b',') {
                return Err(self.unexpected("',' or '}'"));
            }
            self.skip_space();
        }
    }

    fn array(&mut self, items: &mut Vec<Value>, depth: usize) -> Result<(), Fault> {
        self.open(depth)?;
        if self.eat(b']') {
            return Ok(());
        }
        loop {
            let repeats = self.repeats.len();
            items.push(Value::Null);
            let index = items.len() - 1;
            self.value(&mut items[index], depth + 1)?;
            if self.repeats.len() > repeats {
                self.repeats[repeats..].iter_mut().for_each(|path| path.push(Segment::Index(index)));
            }
            self.skip_space();
            if self.eat(b']') {
                return Ok(());
            }
            if !self.eat(b',') {
                return Err(self.unexpected("',' or ']'"));
            }
        }
    }

    /// Goes over an opening bracket.
    fn open(&mut self, depth: usize) -> Result<(), Fault> {
        if depth >= MAX_DEPTH {
            return Err(Box::new(DecodeError::TooDeep));
        }
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    /// A key and its colon.
    fn key(&mut self) -> Result<String, Fault> {
        if !self.eat(b'"') {
            return Err(self.unexpected("a key"));
        }
        let key = self.string()?;
        self.skip_space();
        if self.eat(b':') { Ok(key) } else { Err(self.unexpected("':'")) }
    }

    /// The rest of a string whose opening quote is read.
    fn string(&mut self) -> Result<String, Fault> {
        let end = text::plain_end(self.bytes, self.at);
        let plain = &self.text[self.at..end];
        self.at = end;
        if self.eat(b'"') {
            return Ok(plain.to_owned());
        }
        self.escaped_string(plain.to_owned())
    }

    #[cold]
    fn escaped_string(&mut self, mut out: String) -> Result<String, Fault> {
        loop {
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    let (char, after) = text::read_escape(self.bytes, self.at).map_err(|why| self.syntax(why))?;
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

    /// Integers stay exact within 64 bits; everything else is a float, which must be finite.
    fn number(&mut self) -> Result<Number, Fault> {
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
        let number = if self.rounds { super::float } else { Number::from_f64 };
        text.parse().ok().and_then(number).ok_or_else(|| self.syntax("a number that is out of range"))
    }

    /// Walks over a number; says whether it is an integer.
    fn number_syntax(&mut self) -> Result<bool, Fault> {
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

    fn digits(&mut self) -> Result<(), Fault> {
        let start = self.at;
        while matches!(self.bytes.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.unexpected("a digit")) } else { Ok(()) }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, Fault> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.unexpected("a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    /// Goes over the next byte if it is this one.
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

    /// The different paths of repeated keys, as texts.
    fn duplicates(mut self) -> Vec<String> {
        let mut paths = Vec::new();
        for repeat in std::mem::take(&mut self.repeats) {
            let mut path = String::new();
            for segment in repeat.iter().rev() {
                match segment {
                    Segment::KeyAt(at) => {
                        self.at = at + 1;
                        if !path.is_empty() {
                            path.push('.');
                        }
                        path.push_str(&self.string().unwrap_or_default());
                    }
                    Segment::Index(index) => path.push_str(&format!("[{index}]")),
                }
            }
            if paths.len() < MAX_DUPLICATES && !paths.contains(&path) {
                paths.push(path);
            }
        }
        paths
    }

    #[cold]
    fn unexpected(&self, wanted: &str) -> Fault {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(found) => self.syntax(&format!("found {found:?}, expected {wanted}")),
            None => Box::new(DecodeError::Syntax(format!("the body ends where {wanted} is expected"))),
        }
    }

    #[cold]
    fn syntax(&self, why: &str) -> Fault {
        Box::new(DecodeError::Syntax(format!("{why} at byte {}", self.at)))
    }
}
