//! Validation rules: compiled per schema node, evaluated on objects.

mod compile;
mod evaluate;

pub use evaluate::RuleFindings;

use crate::program::Program;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::{FieldError, FieldReason};
use ferrokube_schema::Schema;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The rules of one version of a custom resource.
#[derive(Clone, Debug)]
pub struct Rules {
    schema: Arc<Schema>,
    root: RuleNode,
}

/// A schema node that has rules or an ancestor of one.
#[derive(Clone, Debug, Default)]
struct RuleNode {
    rules: Vec<CompiledRule>,
    properties: BTreeMap<Arc<str>, RuleNode>,
    items: Option<Box<RuleNode>>,
    values: Option<Box<RuleNode>>,
}

impl RuleNode {
    fn is_empty(&self) -> bool {
        self.rules.is_empty()
            && self.properties.is_empty()
            && self.items.is_none()
            && self.values.is_none()
    }
}

#[derive(Clone, Debug)]
struct CompiledRule {
    source: Arc<str>,
    program: Program,
    message: Option<Arc<str>>,
    message_program: Option<Program>,
    message_source: Arc<str>,
    reason: FieldReason,
    /// Relative to the node: `a.b[key]`.
    field_path: Arc<str>,
    /// Whether it uses `oldSelf`.
    uses_old: bool,
    optional_old: bool,
}

impl Rules {
    /// Compiles the rules of a schema; `None` if it has none. `path` is the schema's path in
    /// errors.
    ///
    /// # Errors
    /// Invalid and too expensive rules.
    pub fn compile(schema: &Arc<Schema>, path: &str) -> Result<Option<Self>, Vec<FieldError>> {
        if !compile::has_rules(schema, 0) {
            return Ok(None);
        }
        let root = compile::compile(schema, path, &[], true)?;
        Ok(Some(Self { schema: Arc::clone(schema), root }))
    }

    /// The errors of the rules of a schema that may be invalid itself. `refused` are the schema's
    /// errors: rules there and above are not compiled, nor any rules of a non-structural schema.
    pub fn validate_schema(
        schema: &Arc<Schema>,
        path: &str,
        refused: &[FieldError],
        is_structural: bool,
    ) -> Vec<FieldError> {
        if !compile::has_rules(schema, 0) {
            return Vec::new();
        }
        match compile::compile(schema, path, refused, is_structural) {
            Ok(root) if is_structural && refused.is_empty() => {
                evaluate::validate_defaults(&root, schema, path)
            }
            Ok(_) => Vec::new(),
            Err(errors) => errors,
        }
    }

    /// Whether a schema has any rules.
    pub fn are_in(schema: &Schema) -> bool {
        compile::has_rules(schema, 0)
    }

    /// Checks the schema's defaults against the rules. `path` is the schema's path in errors.
    pub fn validate_defaults(&self, path: &str) -> Vec<FieldError> {
        evaluate::validate_defaults(&self.root, &self.schema, path)
    }

    /// Checks an object against the rules. For unchanged values, a rule that does not use the old
    /// object only warns.
    pub fn check(&self, old: Option<&Document>, object: &Document) -> RuleFindings {
        evaluate::check(&self.root, &self.schema, old, object)
    }

    /// [`Self::check`] without the warnings.
    pub fn validate(&self, old: Option<&Document>, object: &Document) -> Vec<FieldError> {
        self.check(old, object).errors
    }
}
