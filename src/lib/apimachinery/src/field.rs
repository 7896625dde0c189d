//! Field errors: path, reason and message. They become the causes of an `Invalid` status.

use crate::document::Value;
use crate::json::round_trip_floats;
pub use crate::quote::quote;

/// Why a field is invalid, as in the API (`status.details.causes[].reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldReason {
    /// A required value is absent (`FieldValueRequired`).
    Required,
    /// A value that must be unique is duplicated (`FieldValueDuplicate`).
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
    /// The check failed (`InternalError`).
    Internal,
}

impl FieldReason {
    /// First words of the message.
    fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }

    /// Name in the API.
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

/// Errors collected and shown per object. More are of no use, and each contains its path.
pub const MAX_ERRORS: usize = 100;
/// Limit of a field manager's name.
pub const MAX_MANAGER_BYTES: usize = 128;
/// Longer paths are truncated.
const MAX_FIELD_BYTES: usize = 1024;
/// Longer messages are truncated: they may quote values and enumerations.
const MAX_MESSAGE_BYTES: usize = 4 * 1024;

/// An invalid field. `field` is a path such as `metadata.labels` or `spec.ports[0].name`.
///
/// Constructors format the message like kube-apiserver, `<reason>: <value>: <detail>`: clients
/// match on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Category of the error.
    pub reason: FieldReason,
    /// Path of the field.
    pub field: String,
    /// For users; never contains a secret's value.
    pub message: String,
}

/// An invalid value as shown in a message.
pub trait Shown {
    /// Strings quoted like Go, anything else as JSON.
    fn shown(&self) -> String;
}

impl Shown for str {
    fn shown(&self) -> String {
        quote(start(self))
    }
}

impl Shown for String {
    fn shown(&self) -> String {
        quote(start(self))
    }
}

/// Enough of a text for a message: the rest would be truncated after it was quoted.
fn start(text: &str) -> &str {
    let end = (MAX_MESSAGE_BYTES + 1..text.len()).find(|at| text.is_char_boundary(*at));
    end.map_or(text, |end| &text[..end])
}

impl Shown for Value {
    fn shown(&self) -> String {
        match self {
            Self::String(text) => text.as_str().shown(),
            // Numbers beyond i64 are floats.
            Self::Number(number) if !number.is_i64() => number.as_f64().unwrap_or_default().shown(),
            Self::Array(_) | Self::Object(_) => {
                let mut rounded = self.clone();
                round_trip_floats(&mut rounded);
                escaped(&rounded)
            }
            other => escaped(other),
        }
    }
}

/// Strings, as a list.
impl Shown for [&str] {
    fn shown(&self) -> String {
        escaped(&Value::from(self))
    }
}

/// A string shown as JSON, for types that kube-apiserver does not treat as strings.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a>(pub &'a str);

impl Shown for Word<'_> {
    fn shown(&self) -> String {
        escaped(&Value::from(self.0))
    }
}

/// A value shown in many errors: formatted once, truncated.
#[derive(Clone, Debug)]
pub struct FormattedValue(String);

impl FormattedValue {
    /// Formats the value.
    pub fn new(value: impl Shown) -> Self {
        Self(cut(value.shown(), MAX_MESSAGE_BYTES))
    }

    /// An object with its fields in the given order, as Go formats a struct.
    pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        let fields: Vec<String> = fields
            .into_iter()
            .map(|(name, value)| format!("{}:{}", escaped(&Value::from(name)), value.0))
            .collect();
        Self(cut(format!("{{{}}}", fields.join(",")), MAX_MESSAGE_BYTES))
    }

    /// A list of formatted values.
    pub fn list(items: impl IntoIterator<Item = Self>) -> Self {
        let mut out = String::from("[");
        for item in items {
            // The rest would be truncated.
            if out.len() > MAX_MESSAGE_BYTES {
                break;
            }
            if out.len() > 1 {
                out.push(',');
            }
            out.push_str(&item.0);
        }
        out.push(']');
        Self(cut(out, MAX_MESSAGE_BYTES))
    }
}

impl Shown for FormattedValue {
    fn shown(&self) -> String {
        self.0.clone()
    }
}

/// JSON with HTML escapes, as Go encodes it.
fn escaped(value: &Value) -> String {
    let text = value.to_string();
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text;
    }
    let escape = |letter: char| match letter {
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => format!("\\u{:04x}", u32::from(letter)),
        letter => letter.to_string(),
    };
    text.chars().map(escape).collect()
}

impl Shown for Option<&Value> {
    fn shown(&self) -> String {
        self.map_or_else(|| "null".to_owned(), Shown::shown)
    }
}

impl<T: Shown + ?Sized> Shown for &T {
    fn shown(&self) -> String {
        (**self).shown()
    }
}

macro_rules! shown_as_displayed {
    ($($kind:ty),*) => {
        $(impl Shown for $kind {
            fn shown(&self) -> String {
                self.to_string()
            }
        })*
    };
}

/// As Go formats a float: with an exponent from six digits on.
impl Shown for f64 {
    fn shown(&self) -> String {
        let scientific = format!("{self:e}");
        let Some((digits, exponent)) = scientific
            .split_once('e')
            .and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?)))
        else {
            return scientific;
        };
        if (-4..6).contains(&exponent) {
            self.to_string()
        } else {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
    }
}

shown_as_displayed!(i64, i32, u64, u32, usize, bool);

impl FieldError {
    /// A path over 1 KiB and a message over 4 KiB are truncated.
    fn new(reason: FieldReason, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            reason,
            field: cut(field.into(), MAX_FIELD_BYTES),
            message: cut(message.into(), MAX_MESSAGE_BYTES),
        }
    }

    /// A copy within the limits of [`FieldError::new`].
    pub(crate) fn bounded(&self) -> Self {
        Self::new(self.reason, self.field.as_str(), self.message.as_str())
    }

    /// An error of any reason that does not show the value.
    pub fn unshown(reason: FieldReason, field: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self::new(reason, field, joined(reason.words(), detail.as_ref()))
    }

    /// A required value is missing.
    pub fn required(field: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self::new(FieldReason::Required, field, joined("Required value", detail.as_ref()))
    }

    /// A value that is not allowed here.
    pub fn forbidden(field: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self::new(FieldReason::Forbidden, field, joined("Forbidden", detail.as_ref()))
    }

    /// A malformed or disallowed value.
    pub fn invalid(field: impl Into<String>, value: impl Shown, detail: impl AsRef<str>) -> Self {
        Self::new(
            FieldReason::Invalid,
            field,
            joined(&format!("Invalid value: {}", value.shown()), detail.as_ref()),
        )
    }

    /// A malformed value that is not shown: secret, large, or omitted by kube-apiserver.
    pub fn invalid_unshown(field: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self::new(FieldReason::Invalid, field, joined("Invalid value", detail.as_ref()))
    }

    /// A value of another JSON type.
    pub fn type_invalid(
        field: impl Into<String>,
        value: impl Shown,
        detail: impl AsRef<str>,
    ) -> Self {
        Self::new(
            FieldReason::TypeInvalid,
            field,
            joined(&format!("Invalid value: {}", value.shown()), detail.as_ref()),
        )
    }

    /// A value outside a fixed set, which is shown in the given order.
    pub fn not_supported<T: AsRef<str>>(
        field: impl Into<String>,
        value: impl Shown,
        supported: impl IntoIterator<Item = T>,
    ) -> Self {
        let supported: Vec<_> = supported.into_iter().map(|word| quote(word.as_ref())).collect();
        let detail = if supported.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", supported.join(", "))
        };
        Self::new(
            FieldReason::NotSupported,
            field,
            joined(&format!("Unsupported value: {}", value.shown()), &detail),
        )
    }

    /// `FieldValueDuplicate`: another item of the list has this value.
    pub fn duplicate(field: impl Into<String>, value: impl Shown) -> Self {
        Self::new(FieldReason::Duplicate, field, format!("Duplicate value: {}", value.shown()))
    }

    /// A reference to something that does not exist.
    pub fn not_found(field: impl Into<String>, value: impl Shown) -> Self {
        Self::new(FieldReason::NotFound, field, format!("Not found: {}", value.shown()))
    }

    /// More bytes than allowed.
    pub fn too_long(field: impl Into<String>, max_bytes: usize) -> Self {
        let noun = if max_bytes == 1 { "byte" } else { "bytes" };
        Self::new(
            FieldReason::TooLong,
            field,
            format!("Too long: may not be more than {max_bytes} {noun}"),
        )
    }

    /// More characters than allowed.
    pub fn too_long_characters(field: impl Into<String>, max: u64) -> Self {
        let noun = if max == 1 { "character" } else { "characters" };
        Self::new(
            FieldReason::TooLong,
            field,
            format!("Too long: may not be more than {max} {noun}"),
        )
    }

    /// More items than allowed.
    pub fn too_many(field: impl Into<String>, items: usize, max: usize) -> Self {
        let noun = if max == 1 { "item" } else { "items" };
        Self::new(
            FieldReason::TooMany,
            field,
            format!("Too many: {items}: must have at most {max} {noun}"),
        )
    }

    /// Errors in a field manager's name: its length, and each character that is not printable.
    pub fn manager(field: &str, manager: &str) -> Vec<Self> {
        let mut errors = Vec::new();
        if manager.len() > MAX_MANAGER_BYTES {
            errors.push(Self::too_long(field, MAX_MANAGER_BYTES));
        }
        let hidden = manager
            .char_indices()
            .filter(|(_, letter)| !crate::name::is_printable(*letter))
            .take(MAX_ERRORS);
        errors.extend(hidden.map(|(at, letter)| {
            let code = format!("U+{:04X}", u32::from(letter));
            Self::invalid(field, manager, format!("invalid character {code} (at position {at})"))
        }));
        errors
    }

    /// The check failed.
    pub fn internal(field: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self::new(FieldReason::Internal, field, joined("Internal error", detail.as_ref()))
    }
}

fn joined(head: &str, detail: &str) -> String {
    if detail.is_empty() { head.to_owned() } else { format!("{head}: {detail}") }
}

/// Truncates a string to `bytes` with an ellipsis.
pub fn cut(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        let end = (0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::json;

    #[test]
    fn messages_show_reason_value_and_detail() {
        let cases = [
            (FieldError::required("f", ""), "Required value"),
            (FieldError::required("f", "name it"), "Required value: name it"),
            (FieldError::forbidden("f", "not here"), "Forbidden: not here"),
            (FieldError::invalid("f", "a\"b", "no"), "Invalid value: \"a\\\"b\": no"),
            (FieldError::invalid("f", 3_i64, "no"), "Invalid value: 3: no"),
            (FieldError::invalid("f", json!({"a": [1]}), "no"), "Invalid value: {\"a\":[1]}: no"),
            (
                FieldError::invalid("f", json!({"<": ["&"]}), "no"),
                "Invalid value: {\"\\u003c\":[\"\\u0026\"]}: no",
            ),
            (FieldError::invalid("f", &["a"][..], "no"), "Invalid value: [\"a\"]: no"),
            (FieldError::duplicate("f", Word("<")), "Duplicate value: \"\\u003c\""),
            (
                FieldError::invalid(
                    "f",
                    FormattedValue::list([FormattedValue::object([
                        ("b", FormattedValue::new(Word("<"))),
                        ("a", FormattedValue::new(1_i64)),
                    ])]),
                    "",
                ),
                "Invalid value: [{\"b\":\"\\u003c\",\"a\":1}]",
            ),
            (FieldError::invalid("f", None::<&Value>, "no"), "Invalid value: null: no"),
            (
                FieldError::not_supported("f", "x", ["", "b"]),
                "Unsupported value: \"x\": supported values: \"\", \"b\"",
            ),
            (FieldError::duplicate("f", "x"), "Duplicate value: \"x\""),
            (FieldError::too_long("f", 5), "Too long: may not be more than 5 bytes"),
            (FieldError::too_long("f", 1), "Too long: may not be more than 1 byte"),
            (FieldError::too_many("f", 2, 1), "Too many: 2: must have at most 1 item"),
        ];
        for (error, want) in cases {
            assert_eq!(error.message, want);
        }
    }

    #[test]
    fn quotes_as_go_does() {
        assert_eq!(
            FieldError::manager("m", "a\0")[0].message,
            "Invalid value: \"a\\x00\": invalid character U+0000 (at position 1)"
        );
        assert_eq!(quote("a\0\n\u{7f}\u{e9}\u{200b}"), "\"a\\x00\\n\\x7f\u{e9}\\u200b\"");
    }
}
