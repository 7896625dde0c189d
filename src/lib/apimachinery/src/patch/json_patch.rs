//! JSON patch. Input is hostile: work, copies and depth are bounded per patch.

use super::pointer::{Pointer, index};
use super::{MAX_COPIED_BYTES, MAX_JSON_PATCH_OPERATIONS, PatchError};
use crate::document::{Map, Value};
use crate::json::{MAX_DEPTH, type_name};
use crate::work;

/// Shifted array elements and visited nodes of a patch: about 50 ms.
const MAX_WORK: usize = 20_000_000;

/// Applies a JSON patch. Returns warnings for the client.
///
/// Lenient like kube-apiserver: `replace` of a missing key adds it, `copy` from a missing key and
/// `add` without a value set null, negative indexes count from the end, text before a pointer's
/// first slash is dropped.
///
/// # Errors
/// [`PatchError`]; `target` is then unspecified and must be dropped.
pub fn json_patch(target: &mut Value, patch: &Value) -> Result<Vec<String>, PatchError> {
    let operations = match patch {
        Value::Array(operations) => operations.as_slice(),
        Value::Null => &[],
        _ => return Err(PatchError::Malformed("a JSON patch is a list of operations".to_owned())),
    };
    let mut parsed = Vec::with_capacity(operations.len().min(MAX_JSON_PATCH_OPERATIONS));
    for operation in operations {
        parsed.push(match operation {
            Value::Object(fields) => PatchOperation { fields: Some(fields) },
            Value::Null => PatchOperation { fields: None },
            operation => {
                return Err(PatchError::Malformed(format!(
                    "json: cannot unmarshal {} into Go value of type jsonpatch.Operation",
                    type_name(operation)
                )));
            }
        });
    }
    if parsed.len() > MAX_JSON_PATCH_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_JSON_PATCH_OPERATIONS}, got {}",
            parsed.len()
        )));
    }
    let mut patcher = Patcher { top: target, copied: 0, work: 0 };
    for operation in &parsed {
        patcher.apply(operation)?;
    }
    Ok(Vec::new())
}

struct PatchOperation<'a> {
    fields: Option<&'a Map>,
}

impl<'a> PatchOperation<'a> {
    fn field(&self, name: &str) -> Option<&'a Value> {
        self.fields?.get(name)
    }

    fn kind(&self) -> &'a str {
        self.field("op").and_then(Value::as_str).unwrap_or_default()
    }

    fn text(&self, name: &str) -> Result<&'a str, PatchError> {
        self.field(name).and_then(Value::as_str).ok_or_else(|| {
            refuse(format!("the operation '{}' has no string '{name}'", self.kind()))
        })
    }

    /// Value of an operation; null if missing.
    fn value(&self) -> &'a Value {
        self.field("value").unwrap_or(&Value::Null)
    }
}

struct Patcher<'t> {
    top: &'t mut Value,
    copied: usize,
    work: usize,
}

impl Patcher<'_> {
    fn apply(&mut self, operation: &PatchOperation<'_>) -> Result<(), PatchError> {
        match operation.kind() {
            "add" => self.put(operation.text("path")?, operation.value().clone()),
            "remove" => self.take(operation.text("path")?).map(drop),
            "replace" => self.replace(operation),
            "move" => {
                let value = self.take(operation.text("from")?)?;
                self.put(operation.text("path")?, value)
            }
            "copy" => self.copy(operation),
            "test" => self.test(operation),
            _ => Err(refuse("an operation is one of add, remove, replace, move, copy, test")),
        }
    }

    /// Sets a field of an object, or inserts into an array.
    fn put(&mut self, path: &str, value: Value) -> Result<(), PatchError> {
        let pointer = pointer(path)?;
        self.check_depth(&pointer, &value)?;
        match container(self.top, &pointer)? {
            Value::Object(map) => {
                map.insert(pointer.key(), value);
            }
            Value::Array(items) => {
                let key = pointer.key();
                let at = if key == "-" { Some(items.len()) } else { index(&key, items.len() + 1) };
                let at = at.filter(|at| *at <= items.len()).ok_or_else(|| no_position(path))?;
                let shifted = items.len() - at;
                items.insert(at, value);
                self.charge(shifted)?;
            }
            _ => return Err(missing(path)),
        }
        Ok(())
    }

    fn take(&mut self, path: &str) -> Result<Value, PatchError> {
        let pointer = pointer(path)?;
        match container(self.top, &pointer)? {
            Value::Object(map) => map.remove(pointer.key().as_ref()).ok_or_else(|| missing(path)),
            Value::Array(items) => {
                let at = index(&pointer.key(), items.len())
                    .filter(|at| *at < items.len())
                    .ok_or_else(|| no_position(path))?;
                let shifted = items.len() - at;
                let value = items.remove(at);
                self.charge(shifted)?;
                Ok(value)
            }
            _ => Err(missing(path)),
        }
    }

    fn replace(&mut self, operation: &PatchOperation<'_>) -> Result<(), PatchError> {
        let (path, value) = (operation.text("path")?, operation.value());
        if path.is_empty() {
            if !value.is_object() && !value.is_array() {
                return Err(refuse("the whole object can be replaced by an object or a list only"));
            }
            *self.top = value.clone();
            return Ok(());
        }
        let pointer = pointer(path)?;
        self.check_depth(&pointer, value)?;
        match container(self.top, &pointer)? {
            Value::Object(map) => {
                map.insert(pointer.key(), value.clone());
            }
            Value::Array(items) => {
                let slot = index(&pointer.key(), items.len()).and_then(|at| items.get_mut(at));
                *slot.ok_or_else(|| no_position(path))? = value.clone();
            }
            _ => return Err(missing(path)),
        }
        Ok(())
    }

    fn copy(&mut self, operation: &PatchOperation<'_>) -> Result<(), PatchError> {
        let from = operation.text("from")?;
        let source = get(self.top, from)?;
        if let Some(source) = source {
            self.copied += json_length(source, MAX_COPIED_BYTES);
            if self.copied > MAX_COPIED_BYTES {
                // 422 like every patch that does not apply, as in kube-apiserver (parity case
                // `json-patch-bomb`).
                return Err(refuse(format!("it copies more than {MAX_COPIED_BYTES} bytes")));
            }
        }
        let value = source.cloned().unwrap_or_default();
        self.put(operation.text("path")?, value)
    }

    fn test(&mut self, operation: &PatchOperation<'_>) -> Result<(), PatchError> {
        let path = operation.text("path")?;
        let wanted = operation.field("value").filter(|value| !value.is_null());
        let found = if path.is_empty() { Some(&*self.top) } else { get(self.top, path)? };
        if found == wanted {
            Ok(())
        } else {
            Err(PatchError::TestFailed(shorten(path).to_string()))
        }
    }

    /// Rejects values deeper than any reader accepts. The walk counts as work.
    fn check_depth(&mut self, pointer: &Pointer<'_>, value: &Value) -> Result<(), PatchError> {
        if !value.is_object() && !value.is_array() {
            return Ok(());
        }
        let mut nodes = 0;
        let depth = depth(value, &mut nodes);
        self.charge(4 * nodes)?;
        if pointer.depth() + depth > MAX_DEPTH {
            Err(refuse(format!("the object would nest deeper than {MAX_DEPTH}")))
        } else {
            Ok(())
        }
    }

    fn charge(&mut self, steps: usize) -> Result<(), PatchError> {
        self.work += steps;
        work::count(steps);
        if self.work > MAX_WORK {
            Err(PatchError::TooLarge("its operations move too much".to_owned()))
        } else {
            Ok(())
        }
    }
}

/// The value at a path: `None` for a missing key and null, an error if a parent is missing.
fn get<'v>(top: &'v mut Value, path: &str) -> Result<Option<&'v Value>, PatchError> {
    let pointer = pointer(path)?;
    let found = match container(top, &pointer)? {
        Value::Object(map) => map.get(pointer.key().as_ref()),
        Value::Array(items) => {
            let at = index(&pointer.key(), items.len())
                .filter(|at| *at < items.len())
                .ok_or_else(|| no_position(path))?;
            items.get(at)
        }
        _ => None,
    };
    Ok(found.filter(|value| !value.is_null()))
}

fn pointer(path: &str) -> Result<Pointer<'_>, PatchError> {
    Pointer::parse(path).ok_or_else(|| missing(path))
}

fn container<'v>(top: &'v mut Value, pointer: &Pointer<'_>) -> Result<&'v mut Value, PatchError> {
    pointer.container(top).ok_or_else(|| refuse("a path leads through something that is not there"))
}

fn depth(value: &Value, nodes: &mut usize) -> usize {
    *nodes += 1;
    match value {
        Value::Array(items) => 1 + items.iter().map(|item| depth(item, nodes)).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(|item| depth(item, nodes)).max().unwrap_or(0),
        _ => 0,
    }
}

/// Approximate length of the value's JSON; stops soon after `enough`.
fn json_length(value: &Value, enough: usize) -> usize {
    let mut length = 0;
    add_json_length(value, &mut length, enough);
    length
}

fn add_json_length(value: &Value, length: &mut usize, enough: usize) {
    if *length > enough {
        return;
    }
    work::count(1);
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => *length += 5,
        Value::String(text) => *length += text.len() + 3,
        Value::Array(items) => {
            *length += 2;
            items.iter().for_each(|item| add_json_length(item, length, enough));
        }
        Value::Object(map) => {
            *length += 2;
            for (name, value) in map {
                *length += name.len() + 4;
                add_json_length(value, length, enough);
            }
        }
    }
}

fn refuse(why: impl Into<String>) -> PatchError {
    PatchError::DoesNotApply(why.into())
}

fn missing(path: &str) -> PatchError {
    refuse(format!("nothing is at \"{}\"", shorten(path)))
}

fn no_position(path: &str) -> PatchError {
    refuse(format!("\"{}\" ends with no position of its list", shorten(path)))
}

/// Truncates a path of the client for messages.
fn shorten(path: &str) -> String {
    if path.chars().count() <= 100 {
        path.to_owned()
    } else {
        path.chars().take(100).chain("...".chars()).collect()
    }
}
