//! Field errors: what is wrong with an object, where, and why. They become the causes of an `Invalid` status.

/// Why a field is refused; the words are the API's (`status.details.causes[].reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldReason {
    /// A required value is absent (`FieldValueRequired`).
    Required,
    /// A value that must be unique is repeated (`FieldValueDuplicate`).
    Duplicate,
    /// A malformed or disallowed value (`FieldValueInvalid`).
    Invalid,
    /// A value outside a fixed set (`FieldValueNotSupported`).
    NotSupported,
    /// A value that may not be given here (`FieldValueForbidden`).
    Forbidden,
    /// A string or body that is too long (`FieldValueTooLong`).
    TooLong,
    /// A list with too many items (`FieldValueTooMany`).
    TooMany,
    /// A value of another JSON type (`FieldValueTypeInvalid`).
    TypeInvalid,
    /// A reference to something that does not exist (`FieldValueNotFound`).
    NotFound,
    /// Could not be checked (`InternalError`).
    Internal,
}

impl FieldReason {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }
}

/// At most so many errors of one object are collected and shown: more help nobody, and each names its path.
pub const MAX_ERRORS: usize = 100;
/// Longer paths are cut.
const MAX_FIELD_BYTES: usize = 1024;
/// Longer messages are cut: they may quote values and whole enumerations.
const MAX_MESSAGE_BYTES: usize = 4 * 1024;

/// One refused field. `field` is a path such as `metadata.labels` or `spec.ports[0].name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Why.
    pub reason: FieldReason,
    /// Where.
    pub field: String,
    /// For people; never contains a secret's value.
    pub message: String,
}

impl FieldError {
    /// From its parts. A path over 1 KiB and a message over 4 KiB lose their ends.
    pub fn new(reason: FieldReason, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason, field: cut(field.into(), MAX_FIELD_BYTES), message: cut(message.into(), MAX_MESSAGE_BYTES) }
    }

    /// The same within the bounds of [`FieldError::new`].
    pub(crate) fn bounded(&self) -> Self {
        Self::new(self.reason, self.field.as_str(), self.message.as_str())
    }
}

/// A text of at most so many bytes; dots stand for the rest of a longer one.
pub fn cut(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        let end = (0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
        text.shrink_to_fit();
    }
    text
}
