//! Validation rules of a custom resource's versions, compiled at first use: most definitions are
//! rarely written to.

use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::work::SharedOnce;
use ferrokube_cel::{RuleFindings, Rules};
use ferrokube_resource::DefinitionVersion;
use ferrokube_schema::Schema;
use std::sync::Arc;

/// Versions that have rules.
#[derive(Debug, Default)]
pub(super) struct VersionRules(Vec<CompiledRules>);

#[derive(Debug)]
struct CompiledRules {
    version: String,
    schema: Arc<Schema>,
    compiled: SharedOnce<Result<Option<Rules>, String>>,
}

impl VersionRules {
    pub(super) fn of(versions: &[DefinitionVersion]) -> Self {
        let with_rules = versions.iter().filter(|version| Rules::are_in(&version.schema));
        let each = with_rules.map(|version| CompiledRules {
            version: version.name.clone(),
            schema: Arc::clone(&version.schema),
            compiled: SharedOnce::new(),
        });
        Self(each.collect())
    }

    fn find(&self, version: &str) -> Option<&CompiledRules> {
        self.0.iter().find(|rules| rules.version == version)
    }

    pub(super) fn has(&self, version: &str) -> bool {
        self.find(version).is_some()
    }

    /// Violations of the rules by an object.
    pub(super) fn check(
        &self,
        version: &str,
        old: Option<&Document>,
        object: &Document,
    ) -> RuleFindings {
        let Some(found) = self.find(version) else { return RuleFindings::default() };
        let compile = || {
            Rules::compile(&found.schema, "").map_err(|errors| {
                errors.first().map_or_else(String::new, |error| error.message.clone())
            })
        };
        match found.compiled.get_or_init(compile) {
            Ok(None) => RuleFindings::default(),
            Ok(Some(rules)) => rules.check(old, object),
            // Such rules were stored by a newer server. Fail closed.
            Err(why) => {
                let error = FieldError::internal(
                    "<nil>",
                    format!("the validation rules cannot be compiled: {why}"),
                );
                RuleFindings { errors: vec![error], ..RuleFindings::default() }
            }
        }
    }
}
