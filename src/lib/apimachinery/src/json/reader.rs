//! The reader: a loop with its own stack, so that no input can exhaust the thread's.

use super::{DecodeError, DecodedValue, MAX_DEPTH, MAX_DUPLICATES, text};
use crate::document::{Map, Number, Value};
use serde_json::map::Entry;

/// Reads exactly one value.
pub(super) fn parse(text: &str) -> Result<DecodedValue, DecodeError> {
    let mut reader = Reader { text, bytes: text.as_bytes(), at: 0, stack: Vec::new(), duplicates: Vec::new() };
    let value = reader.run()?;
    reader.skip_space();
    if reader.at < reader.bytes.len() {
        return Err(reader.unexpected("the end of the body"));
    }
    Ok(DecodedValue { value, duplicates: reader.duplicates })
}

/// An object or array that is being read.
enum Frame {
    /// With the key whose value comes next.
    Object(Map<String, Value>, String),
    Array(Vec<Value>),
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Frame>,
    duplicates: Vec<String>,
}

impl Reader<'_> {
    fn run(&mut self) -> Result<Value, DecodeError> {
        loop {
            let Some(value) = self.begin_value()? else { continue };
            if let Some(whole) = self.attach(value)? {
                return Ok(whole);
            }
        }
    }

    /// Reads a scalar or an empty container; otherwise opens a container and gives `None`.
    fn begin_value(&mut self) -> Result<Option<Value>, DecodeError> {
        self.skip_space();
        let value = match self.bytes.get(self.at) {
            Some(b'"') => {
                self.at += 1;
                Value::String(self.string()?)
            }
            Some(b'{') => return self.begin_object(),
            Some(b'[') => return self.begin_array(),
            Some(b'-' | b'0'..=b'9') => Value::Number(self.number()?),
            Some(b't') => self.word("true", Value::Bool(true))?,
            Some(b'f') => self.word("false", Value::Bool(false))?,
            Some(b'n') => self.word("null", Value::Null)?,
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Some(value))
    }

    fn begin_object(&mut self) -> Result<Option<Value>, DecodeError> {
        self.descend()?;
        if self.bytes.get(self.at) == Some(&b'}') {
            self.at += 1;
            return Ok(Some(Value::Object(Map::new())));
        }
        let key = self.key()?;
        self.stack.push(Frame::Object(Map::new(), key));
        Ok(None)
    }

    fn begin_array(&mut self) -> Result<Option<Value>, DecodeError> {
        self.descend()?;
        if self.bytes.get(self.at) == Some(&b']') {
            self.at += 1;
            return Ok(Some(Value::Array(Vec::new())));
        }
        self.stack.push(Frame::Array(Vec::new()));
        Ok(None)
    }

    fn descend(&mut self) -> Result<(), DecodeError> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(DecodeError::TooDeep);
        }
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    /// Puts a finished value into its container, closing as many containers as end here; gives the whole value at the end.
    fn attach(&mut self, mut value: Value) -> Result<Option<Value>, DecodeError> {
        loop {
            match self.stack.last_mut() {
                None => return Ok(Some(value)),
                Some(Frame::Object(map, key)) => match map.entry(std::mem::take(key)) {
                    Entry::Vacant(slot) => {
                        slot.insert(value);
                    }
                    Entry::Occupied(mut slot) => {
                        let key = slot.key().clone();
                        slot.insert(value);
                        self.note_duplicate(&key);
                    }
                },
                Some(Frame::Array(items)) => items.push(value),
            }
            match self.after_element()? {
                Some(container) => value = container,
                None => return Ok(None),
            }
        }
    }

    /// After an element: on a comma prepares for the next one, on a closing bracket gives the container.
    fn after_element(&mut self) -> Result<Option<Value>, DecodeError> {
        self.skip_space();
        let in_object = matches!(self.stack.last(), Some(Frame::Object(..)));
        match (self.bytes.get(self.at), in_object) {
            (Some(b','), true) => {
                self.at += 1;
                self.skip_space();
                let next = self.key()?;
                if let Some(Frame::Object(_, key)) = self.stack.last_mut() {
                    *key = next;
                }
                Ok(None)
            }
            (Some(b','), false) => {
                self.at += 1;
                Ok(None)
            }
            (Some(b'}'), true) | (Some(b']'), false) => {
                self.at += 1;
                Ok(self.stack.pop().map(|frame| match frame {
                    Frame::Object(map, _) => Value::Object(map),
                    Frame::Array(items) => Value::Array(items),
                }))
            }
            (_, true) => Err(self.unexpected("',' or '}'")),
            (_, false) => Err(self.unexpected("',' or ']'")),
        }
    }

    /// A key and its colon.
    fn key(&mut self) -> Result<String, DecodeError> {
        if self.bytes.get(self.at) != Some(&b'"') {
            return Err(self.unexpected("a key"));
        }
        self.at += 1;
        let key = self.string()?;
        self.skip_space();
        if self.bytes.get(self.at) != Some(&b':') {
            return Err(self.unexpected("':'"));
        }
        self.at += 1;
        Ok(key)
    }

    /// The rest of a string whose opening quote is read.
    fn string(&mut self) -> Result<String, DecodeError> {
        let end = text::plain_end(self.bytes, self.at);
        let plain = &self.text[self.at..end];
        self.at = end;
        if self.bytes.get(end) == Some(&b'"') {
            self.at += 1;
            return Ok(plain.to_owned());
        }
        self.escaped_string(plain.to_owned())
    }

    fn escaped_string(&mut self, mut out: String) -> Result<String, DecodeError> {
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
    fn number(&mut self) -> Result<Number, DecodeError> {
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
        text.parse().ok().and_then(Number::from_f64).ok_or_else(|| self.syntax("a number that is out of range"))
    }

    /// Walks over a number; says whether it is an integer.
    fn number_syntax(&mut self) -> Result<bool, DecodeError> {
        if self.bytes[self.at] == b'-' {
            self.at += 1;
        }
        if self.bytes.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        let mut is_integer = true;
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
            is_integer = false;
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
            is_integer = false;
        }
        Ok(is_integer)
    }

    fn digits(&mut self) -> Result<(), DecodeError> {
        let start = self.at;
        while matches!(self.bytes.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.unexpected("a digit")) } else { Ok(()) }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, DecodeError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.unexpected("a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn skip_space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn note_duplicate(&mut self, key: &str) {
        if self.duplicates.len() >= MAX_DUPLICATES {
            return;
        }
        let mut path = String::new();
        let parents = self.stack.len() - 1;
        for frame in &self.stack[..parents] {
            match frame {
                Frame::Object(_, key) => push_field(&mut path, key),
                Frame::Array(items) => path.push_str(&format!("[{}]", items.len())),
            }
        }
        push_field(&mut path, key);
        if !self.duplicates.contains(&path) {
            self.duplicates.push(path);
        }
    }

    fn unexpected(&self, wanted: &str) -> DecodeError {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(found) => self.syntax(&format!("found {found:?}, expected {wanted}")),
            None => DecodeError::Syntax(format!("the body ends where {wanted} is expected")),
        }
    }

    fn syntax(&self, why: &str) -> DecodeError {
        DecodeError::Syntax(format!("{why} at byte {}", self.at))
    }
}

fn push_field(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}
