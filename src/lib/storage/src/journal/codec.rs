//! Encodes changes as journal ops, and decodes them.

use crate::entry::{DraftEntry, Entry, FieldValues, Sidecar, ValueForm};
use crate::journal::frame::{FrameWriter, Op, OpFlags, OpHeader, u32_at};
use crate::journal::transform::Transformer;
use crate::key::{Key, Revision};
use crate::txn::{Expires, TxnEvent};
use std::sync::Arc;

pub(crate) fn write(writer: &mut FrameWriter, change: &TxnEvent, transformer: &dyn Transformer) {
    let TxnEvent { event, own_last, expires } = change;
    let entry = &event.entry;
    let Sidecar { marks, revision_at, comma, fields, schema_epoch, form } = &entry.sidecar;
    let flags = OpFlags::default()
        .with(OpFlags::DELETE, event.deleted)
        .with(OpFlags::OWN_LAST, *own_last)
        .with(OpFlags::COMMA, *comma)
        .with(OpFlags::STALE, *form == ValueForm::STALE)
        .with(OpFlags::EXPIRES, expires.is_some())
        .with(OpFlags::DIFFERENCE, *own_last);
    let header = OpHeader {
        revision: entry.revision.0,
        create_revision: entry.create_revision.0,
        previous: event.previous.as_ref().map_or(0, |previous| previous.revision.0),
        ttl_ms: expires.map_or(0, |expires| expires.ttl_ms),
        wall_ms: expires.map_or(0, |expires| expires.wall_ms),
        marks: *marks,
        revision_at: *revision_at,
        schema_epoch: *schema_epoch,
        flags,
        prefix_len: entry.key.prefix_len(),
        ..OpHeader::default()
    };
    let has_value = !event.deleted || *own_last;
    let fields = if has_value { write_fields(fields) } else { Vec::new() };
    writer.op(OpHeader { fields_len: fields.len(), ..header }, entry.key.as_str(), |buffer| {
        if has_value {
            match event.previous.as_deref().filter(|_| *own_last) {
                Some(previous) => {
                    let (old, new) = (previous.value().concat(), entry.value().concat());
                    let difference = ValueDelta::between(&old, &new);
                    transformer.seal(
                        &entry.key,
                        &[&fields, &difference.lengths(), difference.middle],
                        buffer,
                    );
                }
                None => {
                    let [head, tail] = entry.value();
                    transformer.seal(&entry.key, &[&fields, head, tail], buffer);
                }
            }
        }
    });
}

/// A value as a delta: a length of the old value's head, new bytes, a length of its tail. Makes a
/// delete that records who deleted barely larger than its key, which the reserve of a full disk
/// must hold.
struct ValueDelta<'a> {
    before: usize,
    after: usize,
    middle: &'a [u8],
}

impl<'a> ValueDelta<'a> {
    fn between(old: &[u8], new: &'a [u8]) -> Self {
        let before = old.iter().zip(new).take_while(|(old, new)| old == new).count();
        let after = old[before..]
            .iter()
            .rev()
            .zip(new[before..].iter().rev())
            .take_while(|(old, new)| old == new)
            .count();
        Self { before, after, middle: &new[before..new.len() - after] }
    }

    fn lengths(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        for (at, len) in [(0, self.before), (4, self.after)] {
            bytes[at..at + 4].copy_from_slice(
                &u32::try_from(len).expect("bounded by StoreLimits::value_bytes").to_le_bytes(),
            );
        }
        bytes
    }

    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (lengths, middle) = bytes.split_at_checked(8)?;
        Some(Self {
            before: u32_at(lengths, 0) as usize,
            after: u32_at(lengths, 4) as usize,
            middle,
        })
    }

    fn apply(&self, old: &[u8]) -> Option<Vec<u8>> {
        let (head, rest) = old.split_at_checked(self.before)?;
        let tail = rest.get(rest.len().checked_sub(self.after)?..)?;
        Some([head, self.middle, tail].concat())
    }
}

fn write_fields(fields: &[Box<str>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        bytes.extend_from_slice(
            &u32::try_from(field.len()).expect("a field is part of a value").to_le_bytes(),
        );
        bytes.extend_from_slice(field.as_bytes());
    }
    bytes
}

fn read_fields(mut bytes: &[u8]) -> Option<FieldValues> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let len = u32_at(bytes.get(..4)?, 0) as usize;
        let (field, rest) = bytes[4..].split_at_checked(len)?;
        fields.push(std::str::from_utf8(field).ok()?.into());
        bytes = rest;
    }
    Some(fields.into_iter().collect())
}

/// The key of an op.
///
/// # Errors
/// The op has no valid key.
pub(crate) fn key(op: &Op<'_>) -> Result<Key, String> {
    Key::from_journal(op.key, op.header.prefix_len)
        .ok_or_else(|| format!("{:?} is not a key", op.key))
}

/// Expiry of an op's entry.
pub(crate) fn expires(op: &Op<'_>) -> Option<Expires> {
    op.header
        .flags
        .has(OpFlags::EXPIRES)
        .then_some(Expires { ttl_ms: op.header.ttl_ms, wall_ms: op.header.wall_ms })
}

/// Decodes the entry of an op. `previous` is the value it replaces, which a delete without an own
/// last state shows.
///
/// # Errors
/// A description of the damage, with the key.
pub(crate) fn entry(
    op: &Op<'_>,
    key: Key,
    previous: Option<&Entry>,
    transformer: &dyn Transformer,
) -> Result<Arc<Entry>, String> {
    let header = &op.header;
    let revision = Revision(header.revision);
    let draft = if header.flags.has(OpFlags::DELETE) && !header.flags.has(OpFlags::OWN_LAST) {
        let previous =
            previous.ok_or_else(|| format!("{:?} is deleted but was not there", op.key))?;
        DraftEntry::new(previous.value(), previous.sidecar.clone(), revision)
    } else {
        let opened = transformer
            .open(&key, op.value)
            .map_err(|reason| format!("the value of {:?} cannot be opened: {reason}", op.key))?;
        let parts = opened.value.split_at_checked(header.fields_len);
        let (fields, value) =
            parts.ok_or_else(|| format!("the value of {:?} is cut short", op.key))?;
        let fields = read_fields(fields)
            .ok_or_else(|| format!("the fields of {:?} are malformed", op.key))?;
        let whole;
        let value = if header.flags.has(OpFlags::DIFFERENCE) {
            let previous = previous
                .ok_or_else(|| format!("{:?} is deleted but was not there", op.key))?
                .value()
                .concat();
            whole = ValueDelta::parse(value)
                .and_then(|difference| difference.apply(&previous))
                .ok_or_else(|| format!("{:?} does not apply to the value it replaces", op.key))?;
            &whole[..]
        } else {
            value
        };
        if header.revision_at as usize > value.len() {
            return Err(format!("the value of {:?} is shorter than its header says", op.key));
        }
        let sidecar = Sidecar {
            marks: header.marks,
            revision_at: header.revision_at,
            comma: header.flags.has(OpFlags::COMMA),
            fields,
            schema_epoch: header.schema_epoch,
            form: if header.flags.has(OpFlags::STALE) || opened.stale {
                ValueForm::STALE
            } else {
                ValueForm::OWN
            },
        };
        DraftEntry::new([value, b""], sidecar, revision)
    };
    Ok(Arc::new(draft.finish(key, revision, Revision(header.create_revision))))
}
