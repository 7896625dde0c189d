//! The keywords of one schema object.

use super::Loader;
use crate::schema::Kind;
use crate::validate::{Checks, Pattern};
use ferrokube_apimachinery::document::{Array, Map, Number, Value};
use ferrokube_apimachinery::field::FieldError;

/// Keywords that custom resources may not use.
const FORBIDDEN: [&str; 6] =
    ["$ref", "id", "definitions", "dependencies", "patternProperties", "additionalItems"];
/// The types, in the order of error messages.
pub(super) const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// A schema object's keywords and its path.
pub(super) struct Keywords<'a> {
    pub(super) map: &'a Map,
    pub(super) path: &'a str,
}

impl<'a> Keywords<'a> {
    /// A keyword's value, unless null.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name)?.as_str()
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    pub(super) fn list(&self, name: &str) -> &'a [Value] {
        self.get(name).and_then(Value::as_array).map_or(&[], Array::as_slice)
    }

    pub(super) fn fields(&self, name: &str) -> Option<&'a Map> {
        self.get(name)?.as_object()
    }

    /// Whether a keyword is absent, empty or false.
    pub(super) fn is_zero(&self, name: &str) -> bool {
        match self.map.get(name) {
            None | Some(Value::Null | Value::Bool(false)) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(fields)) => fields.is_empty(),
            Some(_) => false,
        }
    }

    pub(super) fn at(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    /// The error for a keyword that needs another type.
    pub(super) fn wrong_type(&self, why: &str) -> FieldError {
        match self.text("type").unwrap_or_default() {
            "" => FieldError::required(self.at("type"), why),
            given => FieldError::invalid(self.at("type"), given, why),
        }
    }

    fn number(&self, name: &str) -> Option<Number> {
        match self.get(name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    fn count(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }
}

/// Parses a `type`.
pub(super) fn kind_of(text: &str) -> Option<Kind> {
    Some(match text {
        "object" => Kind::Object,
        "array" => Kind::Array,
        "string" => Kind::String,
        "integer" => Kind::Integer,
        "number" => Kind::Number,
        "boolean" => Kind::Boolean,
        _ => return None,
    })
}

impl Loader {
    /// Refuses unsupported keywords.
    pub(super) fn forbidden(&mut self, keywords: &Keywords<'_>) {
        for name in FORBIDDEN {
            let may_be_empty = !matches!(name, "additionalItems" | "dependencies" | "$ref");
            if keywords.get(name).is_some() && !(may_be_empty && keywords.is_zero(name)) {
                self.refuse(FieldError::forbidden(
                    keywords.at(name),
                    format!("{name} is not supported"),
                ));
                self.unsupported |= name == "additionalItems" || !keywords.is_zero(name);
            }
        }
        self.unsupported |= !keywords.is_zero("$schema");
        if keywords.flag("uniqueItems") {
            self.refuse(FieldError::forbidden(
                keywords.at("uniqueItems"),
                "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ));
        }
        if matches!(keywords.get("items"), Some(Value::Array(_))) {
            self.refuse(FieldError::forbidden(
                keywords.at("items"),
                "items must be a schema object and not an array",
            ));
            self.unsupported = true;
        }
        const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
        if keywords.get(PRESERVE) == Some(&Value::Bool(false)) {
            self.refuse(FieldError::invalid(
                keywords.at(PRESERVE),
                false,
                "must be true or undefined",
            ));
            self.unsupported = true;
        }
    }

    /// The value validations of a schema object, without its compositions.
    pub(super) fn checks(&mut self, keywords: &Keywords<'_>) -> Checks {
        Checks {
            minimum: keywords.number("minimum"),
            exclusive_minimum: keywords.flag("exclusiveMinimum"),
            maximum: keywords.number("maximum"),
            exclusive_maximum: keywords.flag("exclusiveMaximum"),
            multiple_of: keywords.number("multipleOf"),
            min_length: keywords.count("minLength"),
            max_length: keywords.count("maxLength"),
            pattern: self.pattern(keywords),
            min_items: keywords.count("minItems"),
            max_items: keywords.count("maxItems"),
            min_properties: keywords.count("minProperties"),
            max_properties: keywords.count("maxProperties"),
            rules: keywords.list("x-kubernetes-validations").to_vec(),
            ..Checks::default()
        }
    }

    fn pattern(&mut self, keywords: &Keywords<'_>) -> Option<Pattern> {
        let text = keywords.text("pattern").filter(|text| !text.is_empty())?;
        Pattern::new(text, &mut self.pattern_room)
            .map_err(|why| {
                self.report(FieldError::invalid(
                    keywords.at("pattern"),
                    text,
                    format!("must be a valid regular expression, but isn't: {why}"),
                ))
            })
            .ok()
    }
}
