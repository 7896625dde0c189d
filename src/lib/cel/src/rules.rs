//! The rules of a schema: compiled for every node that has some, evaluated on objects.

mod compile;
mod evaluate;

pub use evaluate::Verdict;

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
    root: Branch,
}

/// A node with rules in it or below it.
#[derive(Clone, Debug, Default)]
struct Branch {
    rules: Vec<Rule>,
    properties: BTreeMap<Arc<str>, Branch>,
    items: Option<Box<Branch>>,
    values: Option<Box<Branch>>,
}

impl Branch {
    fn is_empty(&self) -> bool {
        self.rules.is_empty()
            && self.properties.is_empty()
            && self.items.is_none()
            && self.values.is_none()
    }
}

/// One rule.
#[derive(Clone, Debug)]
struct Rule {
    source: Arc<str>,
    program: Program,
    message: Option<Arc<str>>,
    message_program: Option<Program>,
    message_source: Arc<str>,
    reason: FieldReason,
    /// Below the node: `a.b[key]`.
    field_path: Arc<str>,
    /// Whether it compares with the old value.
    uses_old: bool,
    optional_old: bool,
}

impl Rules {
    /// Compiles the rules of a schema; `None` when it has none. `path` is where errors say that the
    /// schema is.
    ///
    /// # Errors
    /// What is wrong with them, and what may cost too much.
    pub fn compile(schema: &Arc<Schema>, path: &str) -> Result<Option<Self>, Vec<FieldError>> {
        if !compile::has_rules(schema, 0) {
            return Ok(None);
        }
        let root = compile::compile(schema, path, &[], true)?;
        Ok(Some(Self { schema: Arc::clone(schema), root }))
    }

    /// What is wrong with the rules of a schema that may be wrong itself: `refused` says why it is,
    /// and nothing is compiled there or above, nor anywhere in a schema that is not structural.
    pub fn judge(
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

    /// Whether a schema has any rule.
    pub fn are_in(schema: &Schema) -> bool {
        compile::has_rules(schema, 0)
    }

    /// What the rules have to say against the defaults of the schema. `path` is where errors say
    /// that the schema is.
    pub fn validate_defaults(&self, path: &str) -> Vec<FieldError> {
        evaluate::validate_defaults(&self.root, &self.schema, path)
    }

    /// What the rules have to say against an object. A rule that does not look at the old object
    /// only warns about what did not change.
    pub fn check(&self, old: Option<&Document>, object: &Document) -> Verdict {
        evaluate::check(&self.root, &self.schema, old, object)
    }

    /// [`Self::check`] without the warnings.
    pub fn validate(&self, old: Option<&Document>, object: &Document) -> Vec<FieldError> {
        self.check(old, object).errors
    }
}
