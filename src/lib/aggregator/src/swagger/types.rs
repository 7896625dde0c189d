//! Whether clients can read an OpenAPI v2 document: those in typed languages fail over a single
//! value of another type, for everything that the document describes. kube-aggregator decodes
//! documents into such types.

use super::KINDS;
use ferrokube_apimachinery::document::Value;

/// Form in which a value is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum SwaggerType {
    Any,
    Text,
    Flag,
    Number,
    Count,
    Texts,
    TextOrTexts,
    List,
    /// Groups, versions and kinds.
    Kinds,
    Schema,
    SchemaOrFlag,
    SchemaOrSchemas,
    Schemas,
    NamedSchemas,
    PathItem,
    Operation,
    Parameter,
    Parameters,
    Responses,
    Response,
}

use SwaggerType as Type;

impl SwaggerType {
    /// The type of a field of an object; unknown ones are ignored by clients.
    fn field(self, name: &str) -> Self {
        match self {
            Self::Schema => schema_field(name),
            Self::PathItem => match name {
                "$ref" => Self::Text,
                "parameters" => Self::Parameters,
                "get" | "put" | "post" | "delete" | "options" | "head" | "patch" => Self::Operation,
                _ => Self::Any,
            },
            Self::Operation => match name {
                "tags" | "consumes" | "produces" | "schemes" => Self::Texts,
                "summary" | "description" | "operationId" => Self::Text,
                "deprecated" => Self::Flag,
                "parameters" => Self::Parameters,
                "responses" => Self::Responses,
                _ => Self::Any,
            },
            Self::Parameter => match name {
                "$ref" | "name" | "in" | "description" | "type" | "format" | "pattern"
                | "collectionFormat" => Self::Text,
                "required" | "uniqueItems" | "allowEmptyValue" => Self::Flag,
                "schema" => Self::Schema,
                _ => Self::Any,
            },
            Self::Responses => Self::Response,
            Self::Response => match name {
                "$ref" | "description" => Self::Text,
                "schema" => Self::Schema,
                _ => Self::Any,
            },
            Self::NamedSchemas => Self::Schema,
            _ => Self::Any,
        }
    }

    /// The type of an object's fields or a list's items, and whether `value` has this type.
    fn check<'a>(self, value: &'a Value, open: &mut Vec<(&'a Value, Self)>) -> bool {
        let is_text = |value: &Value| value.is_string();
        match (self, value) {
            (Type::Any, _)
            | (Type::Text | Type::TextOrTexts, Value::String(_))
            | (Type::Flag | Type::SchemaOrFlag, Value::Bool(_))
            | (Type::Number, Value::Number(_))
            | (Type::List, Value::Array(_)) => true,
            (Type::Count, Value::Number(_)) => value.as_i64().is_some(),
            (Type::Texts | Type::TextOrTexts, Value::Array(items)) => items.iter().all(is_text),
            (Type::Kinds, Value::Array(items)) => items.iter().all(|kind| {
                ["group", "version", "kind"].iter().all(|part| kind.get(*part).is_some_and(is_text))
            }),
            (Type::SchemaOrSchemas | Type::Schemas, Value::Array(items)) => {
                open.extend(items.iter().map(|item| (item, Type::Schema)));
                true
            }
            (Type::Parameters, Value::Array(items)) => {
                open.extend(items.iter().map(|item| (item, Type::Parameter)));
                true
            }
            (Type::SchemaOrFlag | Type::SchemaOrSchemas, Value::Object(_)) => {
                Type::Schema.check(value, open)
            }
            (
                Type::Schema
                | Type::NamedSchemas
                | Type::PathItem
                | Type::Operation
                | Type::Parameter
                | Type::Responses
                | Type::Response,
                Value::Object(fields),
            ) => {
                open.extend(fields.iter().map(|(name, field)| (field, self.field(name))));
                true
            }
            _ => false,
        }
    }
}

fn schema_field(name: &str) -> SwaggerType {
    match name {
        "$ref" | "description" | "title" | "format" | "pattern" | "discriminator" => Type::Text,
        "type" => Type::TextOrTexts,
        "properties" | "patternProperties" | "definitions" => Type::NamedSchemas,
        "items" => Type::SchemaOrSchemas,
        "additionalProperties" | "additionalItems" => Type::SchemaOrFlag,
        "allOf" | "anyOf" | "oneOf" => Type::Schemas,
        "not" => Type::Schema,
        "required" => Type::Texts,
        "enum" => Type::List,
        "maximum" | "minimum" | "multipleOf" => Type::Number,
        "maxLength" | "minLength" | "maxItems" | "minItems" | "maxProperties" | "minProperties" => {
            Type::Count
        }
        "exclusiveMaximum" | "exclusiveMinimum" | "uniqueItems" | "readOnly" | "nullable" => {
            Type::Flag
        }
        KINDS => Type::Kinds,
        _ => Type::Any,
    }
}

/// Whether each value has its type, and whatever is in it.
pub(super) fn are_readable<'a>(values: impl IntoIterator<Item = (&'a Value, SwaggerType)>) -> bool {
    let mut open: Vec<(&Value, SwaggerType)> = values.into_iter().collect();
    while let Some((value, wanted)) = open.pop() {
        if !wanted.check(value, &mut open) {
            return false;
        }
    }
    true
}
