//! Kubernetes protobuf: `k8s\0` + `runtime.Unknown` around messages, transcoded from and to
//! documents by tables.
//!
//! Document fields map one to one to message fields. Zero values on the wire stay in the document:
//! Go encodes every field that is not a pointer, and the kind's encoding rules (crate `schema`)
//! drop those that JSON omits. Nulls are not encoded. Empty lists and maps have no encoding. What
//! others store and compare is encoded with these zero values ([`Messages::write_as_go`]).

mod read;
mod special;
mod table;
mod wire;
mod write;

use crate::document::{Document, Value};
use std::borrow::Cow;
pub use table::Messages;
use write::MessageForm;

/// Prefix of an enveloped body.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// Envelope field of the message.
const RAW: u32 = 2;

/// Why a message cannot be decoded, or a value not encoded.
#[derive(Debug, thiserror::Error)]
pub enum ProtobufError {
    /// The message: truncated, too deep, or with an invalid length or wire type.
    #[error("{0}")]
    Malformed(String),
    /// A field of another wire type, whose name is not known where that is found.
    #[error("a field of another wire type")]
    WireType,
    /// The same of what is around the message, so that its type is not known.
    #[error("{0}")]
    Envelope(String),
    /// The tables have no such message.
    #[error("no protobuf message {0}")]
    UnknownMessage(String),
    /// The type of a value does not match the message's field.
    #[error("the field {0} does not fit its protobuf message")]
    DoesNotFit(String),
    /// Would take more memory than [`crate::heap::LARGEST`].
    #[error("the body holds too many values")]
    TooLarge,
}

impl ProtobufError {
    fn malformed(why: &str) -> Self {
        Self::Malformed(why.to_owned())
    }

    fn envelope(why: &str) -> Self {
        Self::Envelope(why.to_owned())
    }
}

/// The envelope, `runtime.Unknown`.
#[derive(Default)]
struct Envelope<'a> {
    api_version: Cow<'a, str>,
    kind: Cow<'a, str>,
    raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn read(body: &'a [u8]) -> Result<Self, ProtobufError> {
        if body.is_empty() {
            return Err(ProtobufError::envelope("empty data"));
        }
        let unknown = body
            .strip_prefix(MAGIC)
            .ok_or_else(|| ProtobufError::envelope("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"))?;
        if unknown.is_empty() {
            return Err(ProtobufError::envelope("empty body"));
        }
        let mut envelope = Self::default();
        envelope
            .read_fields(unknown)
            .map_err(|error| ProtobufError::Envelope(error.to_string()))?;
        Ok(envelope)
    }

    /// The content encoding and type that it names mean nothing to kube-apiserver.
    fn read_fields(&mut self, unknown: &'a [u8]) -> Result<(), ProtobufError> {
        for field in wire::fields(unknown) {
            match field? {
                (1, wire::WireValue::Bytes(bytes)) => self.read_type(bytes)?,
                (RAW, wire::WireValue::Bytes(bytes)) => self.raw = bytes,
                (number @ 1..=4, wire) => {
                    let names = ["TypeMeta", "Raw", "ContentEncoding", "ContentType"];
                    if !matches!(wire, wire::WireValue::Bytes(_)) {
                        return Err(wire.mismatch(names[number as usize - 1]));
                    }
                }
                (_, wire) => wire.skip()?,
            }
        }
        Ok(())
    }

    fn read_type(&mut self, bytes: &'a [u8]) -> Result<(), ProtobufError> {
        for field in wire::fields(bytes) {
            match field? {
                (1, wire::WireValue::Bytes(bytes)) => self.api_version = wire::text(bytes),
                (2, wire::WireValue::Bytes(bytes)) => self.kind = wire::text(bytes),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Messages {
    /// Decodes an enveloped body (`k8s\0`...) of the named message; sets `kind` and `apiVersion`
    /// from the envelope.
    ///
    /// # Errors
    /// [`ProtobufError`].
    pub fn read(&self, message: &str, body: &[u8]) -> Result<Document, ProtobufError> {
        let index = self.index_of(message)?;
        let envelope = Envelope::read(body)?;
        let types = [("kind", envelope.kind), ("apiVersion", envelope.api_version)];
        read::object(self, index, envelope.raw, types).map(Document::from)
    }

    /// `(apiVersion, kind)` of the envelope, to choose the message.
    ///
    /// # Errors
    /// [`ProtobufError::Envelope`].
    pub fn type_of(body: &[u8]) -> Result<(Cow<'_, str>, Cow<'_, str>), ProtobufError> {
        let envelope = Envelope::read(body)?;
        Ok((envelope.api_version, envelope.kind))
    }

    /// Encodes an object as an enveloped message.
    ///
    /// # Errors
    /// [`ProtobufError::UnknownMessage`], [`ProtobufError::DoesNotFit`].
    pub fn write(&self, message: &str, object: &Document) -> Result<Vec<u8>, ProtobufError> {
        self.enveloped(message, object, MessageForm { messages: self, has_zeros: false })
    }

    /// [`Self::write`] in the bytes of Go: with the zero values of fields that are no pointers
    /// there.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_as_go(&self, message: &str, object: &Document) -> Result<Vec<u8>, ProtobufError> {
        self.enveloped(message, object, MessageForm { messages: self, has_zeros: true })
    }

    fn enveloped(
        &self,
        message: &str,
        object: &Document,
        form: MessageForm<'_>,
    ) -> Result<Vec<u8>, ProtobufError> {
        let mut raw = Vec::with_capacity(512);
        write::object(form, self.index_of(message)?, object.fields(), &mut raw)?;
        Ok(envelope(object.api_version(), object.kind(), &raw))
    }

    /// Encodes only the message, as embedded in lists and watch events.
    ///
    /// # Errors
    /// [`ProtobufError::UnknownMessage`], [`ProtobufError::DoesNotFit`].
    pub fn write_bare(&self, message: &str, value: &Value) -> Result<Vec<u8>, ProtobufError> {
        let mut out = Vec::with_capacity(512);
        let fields =
            value.as_object().ok_or_else(|| ProtobufError::DoesNotFit(message.to_owned()))?;
        let form = MessageForm { messages: self, has_zeros: false };
        write::object(form, self.index_of(message)?, fields, &mut out)?;
        Ok(out)
    }

    /// Encodes an enveloped list of bare messages.
    ///
    /// # Errors
    /// [`ProtobufError::UnknownMessage`] if `list.message` is not a list message,
    /// [`ProtobufError::DoesNotFit`].
    pub fn write_list<I: AsRef<[u8]>>(
        &self,
        list: &ListHead<'_>,
        items: &[I],
    ) -> Result<Vec<u8>, ProtobufError> {
        let message = self.message(self.index_of(list.message)?);
        let number = |name: &str| {
            message
                .number_of(name)
                .ok_or_else(|| ProtobufError::UnknownMessage(format!("{}.{name}", list.message)))
        };
        let (metadata_number, items_number) = (number("metadata")?, number("items")?);
        let metadata = self.write_bare(table::LIST_META, list.metadata)?;
        let items_length: usize = items
            .iter()
            .map(|item| wire::delimited_length(items_number, item.as_ref().len()))
            .sum();
        let length = wire::delimited_length(metadata_number, metadata.len()) + items_length;
        let mut out = begin_envelope(list.api_version, list.kind, length);
        // In the order of field numbers, like Go.
        if metadata_number < items_number {
            wire::put_bytes(&mut out, metadata_number, &metadata);
        }
        for item in items {
            wire::put_bytes(&mut out, items_number, item.as_ref());
        }
        if metadata_number > items_number {
            wire::put_bytes(&mut out, metadata_number, &metadata);
        }
        end_envelope(&mut out);
        Ok(out)
    }
}

/// A list without its items.
#[derive(Clone, Copy, Debug)]
pub struct ListHead<'a> {
    /// Message of the list, such as `k8s.io.api.core.v1.ConfigMapList`.
    pub message: &'a str,
    /// apiVersion of the list.
    pub api_version: &'a str,
    /// Kind of the list.
    pub kind: &'a str,
    /// An object.
    pub metadata: &'a Value,
}

/// Wraps a bare message.
pub fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut out = begin_envelope(api_version, kind, raw.len());
    out.extend_from_slice(raw);
    end_envelope(&mut out);
    out
}

/// A watch event on the wire: four bytes of length, then a bare `meta.v1.WatchEvent` with the
/// enveloped object.
pub fn write_watch_event(event_type: &str, enveloped_object: &[u8]) -> Vec<u8> {
    let object_length = wire::delimited_length(1, enveloped_object.len());
    let length =
        wire::delimited_length(1, event_type.len()) + wire::delimited_length(2, object_length);
    let mut out = Vec::with_capacity(4 + length);
    out.extend_from_slice(
        &u32::try_from(length).expect("objects are bounded far below 4 GiB").to_be_bytes(),
    );
    wire::put_bytes(&mut out, 1, event_type.as_bytes());
    // RawExtension: its only field is the raw object.
    wire::put_length(&mut out, 2, object_length);
    wire::put_bytes(&mut out, 1, enveloped_object);
    out
}

/// The envelope up to the raw message of this length.
fn begin_envelope(api_version: &str, kind: &str, raw_length: usize) -> Vec<u8> {
    let type_length =
        wire::delimited_length(1, api_version.len()) + wire::delimited_length(2, kind.len());
    let mut out = Vec::with_capacity(MAGIC.len() + type_length + raw_length + 24);
    out.extend_from_slice(MAGIC);
    wire::put_length(&mut out, 1, type_length);
    wire::put_bytes(&mut out, 1, api_version.as_bytes());
    wire::put_bytes(&mut out, 2, kind.as_bytes());
    wire::put_length(&mut out, RAW, raw_length);
    out
}

/// Empty content encoding and content type, as Go encodes them.
fn end_envelope(out: &mut Vec<u8>) {
    wire::put_bytes(out, 3, b"");
    wire::put_bytes(out, 4, b"");
}

#[cfg(test)]
mod tests;
