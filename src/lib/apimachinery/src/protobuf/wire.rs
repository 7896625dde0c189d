//! Wire format: tags, varints, lengths.

use super::ProtobufError;
use crate::work;
use std::borrow::Cow;

/// Go's text for a body that ends too early.
const UNEXPECTED_END: &str = "unexpected EOF";

/// Payload of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WireValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
    /// Without a payload that could be read: groups, and wire types that there are not.
    Other(u8),
}

impl WireValue<'_> {
    /// The error of Go's generated decoders about a field of another type.
    pub(super) fn mismatch(self, field: &str) -> ProtobufError {
        let wire_type = match self {
            Self::Varint(_) => 0,
            Self::Fixed64(_) => 1,
            Self::Bytes(_) => 2,
            Self::Other(wire_type) => wire_type,
            Self::Fixed32 => 5,
        };
        ProtobufError::Malformed(format!("proto: wrong wireType = {wire_type} for field {field}"))
    }

    /// Checks an unknown field.
    pub(super) fn skip(self) -> Result<(), ProtobufError> {
        match self {
            Self::Other(wire_type) => {
                Err(ProtobufError::Malformed(format!("proto: illegal wireType {wire_type}")))
            }
            _ => Ok(()),
        }
    }
}

/// Fields of a message, in order. Ends after the first error.
pub(super) fn fields(bytes: &[u8]) -> WireFields<'_> {
    WireFields { rest: bytes }
}

pub(super) struct WireFields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for WireFields<'a> {
    type Item = Result<(u32, WireValue<'a>), ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        work::count(1);
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> WireFields<'a> {
    fn field(&mut self) -> Result<(u32, WireValue<'a>), ProtobufError> {
        let tag = varint(&mut self.rest)?;
        let number =
            u32::try_from(tag >> 3).ok().filter(|number| *number > 0).ok_or_else(|| {
                ProtobufError::Malformed(format!("proto: illegal tag 0 (wire type {})", tag & 7))
            })?;
        let wire = match tag & 7 {
            0 => WireValue::Varint(varint(&mut self.rest)?),
            1 => WireValue::Fixed64(u64::from_le_bytes(
                self.take(8)?.try_into().expect("eight bytes were taken"),
            )),
            2 => {
                let length = usize::try_from(varint(&mut self.rest)?).unwrap_or(usize::MAX);
                WireValue::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| WireValue::Fixed32)?,
            other => WireValue::Other(other as u8),
        };
        Ok((number, wire))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or_else(|| ProtobufError::malformed(UNEXPECTED_END))?;
        self.rest = rest;
        Ok(taken)
    }
}

/// Decodes a varint.
pub(super) fn varint(bytes: &mut &[u8]) -> Result<u64, ProtobufError> {
    // Most have one byte.
    if let [byte @ ..0x80, rest @ ..] = *bytes {
        *bytes = rest;
        return Ok(u64::from(*byte));
    }
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            *bytes = &bytes[index + 1..];
            return Ok(value);
        }
    }
    let why = if bytes.len() < 10 { UNEXPECTED_END } else { "proto: integer overflow" };
    Err(ProtobufError::malformed(why))
}

/// A string; invalid UTF-8 becomes U+FFFD.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    // Faster than the lossy way for what is valid, as most is.
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

fn varint_length(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Length of a length-delimited field, including tag and length.
pub(super) fn delimited_length(number: u32, length: usize) -> usize {
    varint_length(u64::from(number) << 3) + varint_length(length as u64) + length
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A varint field.
pub(super) fn put_number(out: &mut Vec<u8>, number: u32, value: u64) {
    put_varint(out, u64::from(number) << 3);
    put_varint(out, value);
}

/// A double field.
pub(super) fn put_double(out: &mut Vec<u8>, number: u32, value: f64) {
    put_varint(out, u64::from(number) << 3 | 1);
    out.extend_from_slice(&value.to_bits().to_le_bytes());
}

/// Tag and length of a field whose payload follows.
pub(super) fn put_length(out: &mut Vec<u8>, number: u32, length: usize) {
    put_varint(out, u64::from(number) << 3 | 2);
    put_varint(out, length as u64);
}

/// A length-delimited field.
pub(super) fn put_bytes(out: &mut Vec<u8>, number: u32, payload: &[u8]) {
    put_length(out, number, payload.len());
    out.extend_from_slice(payload);
}

/// A length-delimited field whose payload `write` appends. The length is inserted afterwards: a
/// length of several bytes moves the payload.
pub(super) fn put_nested<E>(
    out: &mut Vec<u8>,
    number: u32,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    put_varint(out, u64::from(number) << 3 | 2);
    let at = out.len();
    out.push(0);
    write(out)?;
    let length = out.len() - at - 1;
    let extra = varint_length(length as u64) - 1;
    if extra > 0 {
        out.resize(out.len() + extra, 0);
        out.copy_within(at + 1..at + 1 + length, at + 1 + extra);
    }
    let mut value = length as u64;
    for slot in &mut out[at..at + extra] {
        *slot = value as u8 | 0x80;
        value >>= 7;
    }
    out[at + extra] = value as u8;
    Ok(())
}
