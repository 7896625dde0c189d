//! Checks that defaults match their schema and are complete.

use super::{Loader, MAX_ERRORS, MAX_LEVELS, Meta};
use crate::schema::Schema;
use crate::validate;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::FieldError;

impl Loader {
    /// Checks the defaults of a structural schema, except those of map values, as kube-apiserver.
    pub(super) fn defaults(&mut self, schema: &Schema, path: &str, meta: Meta, depth: usize) {
        if depth > MAX_LEVELS || schema.native {
            return;
        }
        // Errors of defaults that are not allowed at all were added before.
        if let Some(default) = schema.default.as_ref().filter(|_| !matches!(meta, Meta::Bare(_))) {
            // The default of a root is a whole resource.
            match depth {
                0 => self.check_default(
                    &Schema { embedded: true, ..schema.clone() },
                    default,
                    &format!("{path}.default"),
                ),
                _ => self.check_default(schema, default, &format!("{path}.default")),
            }
        }
        for (name, property) in &schema.properties {
            let check_metadata_keywords = matches!(&**name, "metadata" | "kind" | "apiVersion");
            let below = match (depth, check_metadata_keywords) {
                (0, true) => Meta::Bare("in metadata"),
                (_, true) if schema.embedded => Meta::Embedded,
                _ => meta,
            };
            self.defaults(
                &property.schema,
                &format!("{path}.properties[{name}]"),
                below,
                depth + 1,
            );
        }
        if let Some(items) = schema.items.as_deref() {
            self.defaults(items, &format!("{path}.items"), meta, depth + 1);
        }
    }

    fn check_default(&mut self, schema: &Schema, default: &Value, path: &str) {
        let mut value = default.clone();
        if !validate::prune_value(schema, &mut value).is_empty() {
            self.report(FieldError::invalid(path, default, "must not have unknown fields"));
        }
        let room = MAX_ERRORS.saturating_sub(self.structural.len());
        self.structural
            .extend(validate::validate_value(schema, default, path).into_iter().take(room));
    }
}
