//! The validation rules of a custom resource's versions, compiled at their first use: most of many
//! definitions are cold.

use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_cel::{RuleFindings, Rules};
use ferrokube_resource::DefinitionVersion;
use ferrokube_schema::Schema;
use std::sync::{Arc, OnceLock};

/// The rules of the versions that have some.
#[derive(Debug, Default)]
pub(super) struct VersionRules(Vec<OfVersion>);

#[derive(Debug)]
struct OfVersion {
    version: String,
    schema: Arc<Schema>,
    compiled: OnceLock<Result<Option<Rules>, String>>,
}

impl VersionRules {
    pub(super) fn of(versions: &[DefinitionVersion]) -> Self {
        let with_rules = versions.iter().filter(|version| Rules::are_in(&version.schema));
        let each = with_rules.map(|version| OfVersion {
            version: version.name.clone(),
            schema: Arc::clone(&version.schema),
            compiled: OnceLock::new(),
        });
        Self(each.collect())
    }

    fn find(&self, version: &str) -> Option<&OfVersion> {
        self.0.iter().find(|rules| rules.version == version)
    }

    /// Whether a version has any.
    pub(super) fn has(&self, version: &str) -> bool {
        self.find(version).is_some()
    }

    /// What the rules have to say against an object.
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
            // They were stored by a server that understood them: what cannot be checked does not
            // pass.
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
