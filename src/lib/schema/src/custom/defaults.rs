//! Defaults must fit the schema that they are in, and be complete in themselves.

use super::{Loader, MAX_ERRORS, MAX_LEVELS, Meta};
use crate::schema::Schema;
use crate::validate;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::{FieldError, FieldReason};

impl Loader {
    /// Checks the defaults of a structural schema. Those of maps' values are not looked at, as upstream.
    pub(super) fn defaults(&mut self, schema: &Schema, path: &str, meta: Meta, depth: usize) {
        if depth > MAX_LEVELS || schema.native {
            return;
        }
        // What is wrong with metadata and may not be there at all was told before.
        if let Some(default) = schema.default.as_ref().filter(|_| meta != Meta::Bare) {
            // The default of a root is a whole resource.
            match depth {
                0 => self.check_default(&Schema { embedded: true, ..schema.clone() }, default, &format!("{path}.default")),
                _ => self.check_default(schema, default, &format!("{path}.default")),
            }
        }
        for (name, property) in &schema.properties {
            let of_meta = matches!(&**name, "metadata" | "kind" | "apiVersion");
            let below = match (depth, of_meta) {
                (0, true) => Meta::Bare,
                (_, true) if schema.embedded => Meta::Embedded,
                _ => meta,
            };
            self.defaults(&property.schema, &format!("{path}.properties[{name}]"), below, depth + 1);
        }
        if let Some(items) = schema.items.as_deref() {
            self.defaults(items, &format!("{path}.items"), meta, depth + 1);
        }
    }

    fn check_default(&mut self, schema: &Schema, default: &Value, path: &str) {
        let mut value = default.clone();
        if !validate::prune_value(schema, &mut value).is_empty() {
            self.report(FieldReason::Invalid, path.to_owned(), "must not have unknown fields");
            return;
        }
        for error in validate::validate_value(schema, &value) {
            let field = match error.field.as_str() {
                "" | "<nil>" => path.to_owned(),
                below => format!("{path}.{below}"),
            };
            if self.structural.len() < MAX_ERRORS {
                self.structural.push(FieldError { field, ..error });
            }
        }
    }
}
