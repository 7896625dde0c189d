//! Hooks shared by all custom resources.

use super::rules::VersionRules;
use super::scale::ScalePaths;
use super::webhook::ConversionWebhook;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_resource::conversion::Converter;
use ferrokube_resource::{Change, Hooks, Printable, TableRow};

/// Hooks of one custom resource.
#[derive(Debug)]
pub(super) struct CustomHooks {
    pub(super) kind: String,
    /// Set while the definition is being deleted.
    pub(super) terminating: bool,
    pub(super) rules: VersionRules,
    /// Scale paths by version.
    pub(super) scales: Vec<(String, ScalePaths)>,
    /// The conversion webhook, if the definition has one.
    pub(super) webhook: Option<ConversionWebhook>,
}

impl Hooks for CustomHooks {
    fn forbids_create(&self) -> Option<String> {
        self.terminating.then(|| {
            "create not allowed while custom resource definition is terminating".to_owned()
        })
    }

    fn check(
        &self,
        change: &Change<'_>,
        object: &Document,
        warn: &mut dyn FnMut(String),
    ) -> Vec<FieldError> {
        let mut errors = self.validate(change, object);
        let verdict = self.rules.check(change.version, change.old, object);
        verdict.warnings.into_iter().for_each(warn);
        errors.extend(verdict.errors);
        errors
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let scale = self.scales.iter().find(|(version, _)| version == change.version);
        let scale = scale.filter(|_| object.kind() == self.kind);
        scale.map(|(_, paths)| paths.validate(change.subresource, object)).unwrap_or_default()
    }

    fn unchecked(&self, change: &Change<'_>) -> Option<FieldError> {
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        self.rules.has(change.version).then(|| FieldError::invalid("<nil>", Value::Null, why))
    }

    fn converter(&self) -> Option<&dyn Converter> {
        self.webhook.as_ref().map(|webhook| webhook as &dyn Converter)
    }

    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        row.text(&object.name());
    }
}
