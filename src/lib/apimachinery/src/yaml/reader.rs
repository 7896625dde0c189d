//! The reader: converts events to values, with an explicit stack.

use super::input::Limited;
use super::resolve::{self, YamlScalar};
use crate::document::{Map, Value};
use crate::heap::{FIELD, GROWN, YamlRoom};
use crate::json::{DecodeError, DecodedValue, MAX_DEPTH, MAX_DUPLICATES};
use crate::work;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Tag};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

/// Nodes added by aliases (a string counts one per 32 bytes): at least and at most; in between, ten
/// times what was read.
const MIN_ALIAS_NODES: usize = 10_000;
const MAX_ALIAS_NODES: usize = 100_000;

/// Duplicates inspected until [`MAX_DUPLICATES`] different ones are found; each formats its whole
/// path.
const MAX_REPEATS: usize = 64;

/// The scanner visits every open collection at each token. Limits of events times open collections,
/// in total and per byte of the body: real objects stay below 3 per byte, and 3 MiB at the limit
/// take about 200 ms.
const MIN_SCANNED: usize = 1_000_000;
const SCANNED_PER_BYTE: usize = 30;

/// Decodes the first document; ignores what follows.
pub(super) fn parse(text: &str, room: YamlRoom) -> Result<DecodedValue, DecodeError> {
    let steps = Rc::new(Cell::new(Some(room.steps)));
    let reader = YamlReader {
        events: Parser::new(Limited::new(text, Rc::clone(&steps))),
        steps,
        max_steps: room.steps,
        values: room.values,
        has_aliases: memchr::memchr(b'*', text.as_bytes()).is_some(),
        stack: Vec::new(),
        anchors: HashMap::new(),
        duplicates: Vec::new(),
        repeats: 0,
        nodes: 0,
        scanned: 0,
        max_scanned: (SCANNED_PER_BYTE * text.len()).max(MIN_SCANNED),
        expanded: 0,
    };
    reader.document()
}

/// An open collection, with its anchor (0 for none).
enum OpenCollection {
    Mapping { map: Map, key: Option<MappingKey>, anchor: usize },
    Sequence { items: Vec<Value>, anchor: usize },
}

enum MappingKey {
    Field(String),
    /// `<<`: merges the value's fields into this mapping.
    Merge,
}

struct YamlReader<'a> {
    events: Parser<'a, Limited<'a>>,
    /// Scanner steps up to the next event. The scanner has no limit of its own when it looks for
    /// the end of a potential key.
    steps: Rc<Cell<Option<usize>>>,
    max_steps: usize,
    /// Bytes left for values.
    values: usize,
    has_aliases: bool,
    stack: Vec<OpenCollection>,
    anchors: HashMap<usize, Value>,
    duplicates: Vec<String>,
    repeats: usize,
    nodes: usize,
    scanned: usize,
    max_scanned: usize,
    expanded: usize,
}

impl<'a> YamlReader<'a> {
    fn document(mut self) -> Result<DecodedValue, DecodeError> {
        let value = loop {
            match self.next()? {
                Event::StreamEnd => break Value::Null,
                Event::Nothing | Event::StreamStart | Event::DocumentStart(_) => {}
                Event::DocumentEnd => break Value::Null,
                event => {
                    if let Some(value) = self.handle(event)? {
                        // The next event tells whether the document ends well.
                        self.next()?;
                        break value;
                    }
                }
            }
        };
        Ok(DecodedValue { value, duplicates: self.duplicates })
    }

    fn next(&mut self) -> Result<Event<'a>, DecodeError> {
        self.steps.set(Some(self.max_steps));
        let event = self.events.next_event();
        if self.steps.get().is_none() {
            return Err(DecodeError::TooLarge);
        }
        match event {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => Err(scan_error(&error)),
            None => Ok(Event::StreamEnd),
        }
    }

    /// Handles an event; returns the value of a complete document.
    fn handle(&mut self, event: Event<'a>) -> Result<Option<Value>, DecodeError> {
        self.nodes += 1;
        self.scanned += 1 + self.stack.len();
        work::count(1 + self.stack.len());
        work::breathe();
        if self.scanned > self.max_scanned {
            return Err(DecodeError::TooMuchWork);
        }
        self.take(GROWN)?;
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.scalar(text, style, anchor, tag.as_deref())
            }
            Event::Alias(anchor) => {
                let value = self.expand(anchor)?;
                self.finish(value, 0)
            }
            Event::MappingStart(anchor, _) => {
                self.open(OpenCollection::Mapping { map: Map::new(), key: None, anchor })
            }
            Event::SequenceStart(anchor, _) => {
                self.open(OpenCollection::Sequence { items: Vec::new(), anchor })
            }
            Event::MappingEnd | Event::SequenceEnd => match self.stack.pop() {
                Some(OpenCollection::Mapping { mut map, anchor, .. }) => {
                    map.shrink_to_fit();
                    self.finish(Value::Object(map), anchor)
                }
                Some(OpenCollection::Sequence { items, anchor }) => {
                    self.finish(Value::from(items), anchor)
                }
                None => Err(syntax("a collection ends that did not begin")),
            },
            _ => Err(syntax("the document ends inside a collection")),
        }
    }

    /// Counts the bytes of a value.
    fn take(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.values = self.values.checked_sub(bytes).ok_or(DecodeError::TooLarge)?;
        Ok(())
    }

    fn open(&mut self, frame: OpenCollection) -> Result<Option<Value>, DecodeError> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(DecodeError::TooDeep);
        }
        if matches!(self.stack.last(), Some(OpenCollection::Mapping { key: None, .. })) {
            return Err(syntax("a collection cannot be a key"));
        }
        self.stack.push(frame);
        Ok(None)
    }

    fn scalar(
        &mut self,
        text: Cow<'a, str>,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
    ) -> Result<Option<Value>, DecodeError> {
        let is_plain = style == ScalarStyle::Plain;
        if let Some(OpenCollection::Mapping { key: key @ None, .. }) = self.stack.last_mut() {
            let is_merge =
                tag.map_or(is_plain, |tag| tag.is_yaml_core_schema() && tag.suffix == "merge");
            if text == "<<" && is_merge {
                *key = Some(MappingKey::Merge);
                return Ok(None);
            }
        }
        let scalar = match tag {
            None if is_plain => resolve::plain(&text),
            Some(tag) if tag.is_yaml_core_schema() => resolve::tagged(&text, &tag.suffix)
                .ok_or_else(|| {
                    syntax(&format!("a scalar does not fit its tag !!{}", tag.suffix))
                })?,
            _ => YamlScalar::String(text.into_owned()),
        };
        self.finish_scalar(scalar, anchor)
    }

    fn finish_scalar(
        &mut self,
        scalar: YamlScalar,
        anchor: usize,
    ) -> Result<Option<Value>, DecodeError> {
        if let Some(OpenCollection::Mapping { key: key @ None, .. }) = self.stack.last_mut() {
            let name = scalar.into_key().ok_or_else(|| syntax("a key must not be null"))?;
            *key = Some(MappingKey::Field(name.clone()));
            return self.remember(&Value::from(name), anchor).map(|()| None);
        }
        let value =
            scalar.into_value().ok_or_else(|| syntax("a number that JSON does not have"))?;
        self.finish(value, anchor)
    }

    /// Adds a complete value to its parent; returns it if it is the whole document.
    fn finish(&mut self, value: Value, anchor: usize) -> Result<Option<Value>, DecodeError> {
        self.remember(&value, anchor)?;
        match self.stack.last_mut() {
            None => return Ok(Some(value)),
            Some(OpenCollection::Sequence { items, .. }) => items.push(value),
            Some(OpenCollection::Mapping { map, key, .. }) => match key.take() {
                Some(MappingKey::Merge) => merge(map, value)?,
                Some(MappingKey::Field(name)) => {
                    let repeated = map.insert(name.clone(), value).is_some();
                    if repeated {
                        self.note_duplicate(&name);
                    }
                }
                None => *key = Some(MappingKey::Field(alias_key(value)?)),
            },
        }
        Ok(None)
    }

    fn remember(&mut self, value: &Value, anchor: usize) -> Result<(), DecodeError> {
        if anchor == 0 || !self.has_aliases {
            return Ok(());
        }
        self.charge(value)?;
        self.anchors.insert(anchor, value.clone());
        Ok(())
    }

    /// A copy of an anchored value.
    fn expand(&mut self, anchor: usize) -> Result<Value, DecodeError> {
        let (weight, depth) = self
            .anchors
            .get(&anchor)
            .map(measure)
            .ok_or_else(|| syntax("an alias to something that contains it"))?;
        self.charge_weight(weight)?;
        if self.stack.len() + depth > MAX_DEPTH {
            return Err(DecodeError::TooDeep);
        }
        Ok(self.anchors.get(&anchor).cloned().unwrap_or_default())
    }

    fn charge(&mut self, value: &Value) -> Result<(), DecodeError> {
        let (weight, _) = measure(value);
        self.charge_weight(weight)
    }

    fn charge_weight(&mut self, weight: usize) -> Result<(), DecodeError> {
        work::count(weight);
        let limit = (10 * self.nodes).clamp(MIN_ALIAS_NODES, MAX_ALIAS_NODES);
        self.expanded += weight;
        if self.expanded > limit {
            return Err(DecodeError::TooManyAliases(limit));
        }
        self.take(weight * FIELD)
    }

    fn note_duplicate(&mut self, name: &str) {
        if self.duplicates.len() >= MAX_DUPLICATES || self.repeats >= MAX_REPEATS {
            return;
        }
        self.repeats += 1;
        work::count(self.stack.len());
        let mut path = String::new();
        let mut push = |segment: &str| {
            if !path.is_empty() && !segment.starts_with('[') {
                path.push('.');
            }
            path.push_str(segment);
        };
        for frame in &self.stack {
            match frame {
                OpenCollection::Mapping { key: Some(MappingKey::Field(key)), .. } => push(key),
                OpenCollection::Mapping { .. } => {}
                OpenCollection::Sequence { items, .. } => push(&format!("[{}]", items.len())),
            }
        }
        push(name);
        if !self.duplicates.contains(&path) {
            self.duplicates.push(path);
        }
    }
}

/// Merges the fields of a mapping, or of a list of mappings (the first wins), into `map`; like Go's
/// reader, overwriting.
fn merge(map: &mut Map, value: Value) -> Result<(), DecodeError> {
    match value {
        Value::Object(fields) => map.extend(fields),
        Value::Array(items) => {
            for item in items.into_iter().rev() {
                match item {
                    Value::Object(fields) => map.extend(fields),
                    _ => return Err(syntax("a merge key takes mappings only")),
                }
            }
        }
        _ => return Err(syntax("a merge key takes a mapping or a list of mappings")),
    }
    Ok(())
}

fn alias_key(value: Value) -> Result<String, DecodeError> {
    match value {
        Value::String(text) => Ok(text.into()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(syntax("a key must be a scalar other than null")),
    }
}

/// Weight in nodes, and depth.
fn measure(value: &Value) -> (usize, usize) {
    let all = |children: &mut dyn Iterator<Item = &Value>| {
        children
            .map(measure)
            .fold((1, 1), |(weight, depth), child| (weight + child.0, depth.max(child.1 + 1)))
    };
    match value {
        Value::String(text) => (1 + text.len() / 32, 0),
        Value::Array(items) => all(&mut items.iter()),
        Value::Object(map) => {
            let (weight, depth) = all(&mut map.values());
            (weight + map.keys().map(|key| key.len() / 32).sum::<usize>(), depth)
        }
        _ => (1, 0),
    }
}

fn syntax(why: &str) -> DecodeError {
    DecodeError::Syntax(why.to_owned())
}

fn scan_error(error: &ScanError) -> DecodeError {
    // libyaml counts lines from zero, its scanner from one, and does not name the first line.
    let (of_parser, why) =
        match error.info().strip_prefix("while parsing ").and_then(|rest| rest.split_once(", ")) {
            Some((_, why)) => (true, why),
            None => (false, error.info()),
        };
    DecodeError::Syntax(match error.marker().line() {
        0 | 1 => why.to_owned(),
        line => format!("line {}: {why}", if of_parser { line - 1 } else { line }),
    })
}
