//! Restrictions on the schema of a resource's metadata, kind and apiVersion.

use super::keywords::Keywords;
use super::{Loader, NodeContext, NodeRole};
use crate::schema::{Kind, Schema};
use crate::validate::Checks;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::FieldError;

/// Keywords that a root may use on its metadata.
const ALLOWED: [&str; 3] = ["type", "properties", "default"];

impl Loader {
    /// Metadata has its own schema; a definition may only restrict its two names.
    pub(super) fn restrict_metadata(
        &mut self,
        keywords: &Keywords<'_>,
        at: &NodeContext,
        out: &mut Schema,
        checks: &mut Checks,
    ) {
        if at.role != NodeRole::Root && !out.embedded {
            return;
        }
        for (field, wanted, why) in [
            ("kind", Kind::String, "must be string"),
            ("apiVersion", Kind::String, "must be string"),
            ("metadata", Kind::Object, "must be object"),
        ] {
            if out.properties.get(field).is_some_and(|property| property.schema.kind != wanted) {
                let given = keywords
                    .fields("properties")
                    .and_then(|properties| properties.get(field)?.get("type")?.as_str());
                self.report(FieldError::invalid(
                    format!("{}.properties[{field}].type", keywords.path),
                    given.unwrap_or_default(),
                    why,
                ));
            }
        }
        if at.role != NodeRole::Root {
            return;
        }
        let Some(Value::Object(given)) =
            keywords.fields("properties").and_then(|properties| properties.get("metadata"))
        else {
            return;
        };
        let given = Keywords { map: given, path: keywords.path };
        let names = given.fields("properties");
        let only_names = names.is_none_or(|names| {
            names.keys().all(|name| matches!(name.as_str(), "name" | "generateName"))
        });
        let says_more = given
            .map
            .keys()
            .any(|keyword| !ALLOWED.contains(&keyword.as_str()) && !given.is_zero(keyword));
        if !only_names || says_more {
            let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            self.report(FieldError::forbidden(
                format!("{}.properties[metadata]", keywords.path),
                why,
            ));
        }
        if let Some(property) = out.properties.get("metadata") {
            checks.metadata = Some(property.schema.clone());
        }
    }
}
