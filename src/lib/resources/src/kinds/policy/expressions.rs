//! Compiles the expressions of a policy, for their errors.

use ferrokube_apimachinery::field::FieldError;
use ferrokube_cel::Type;
use ferrokube_cel::admission::{AdmissionCompiler, OptionalVariables};

/// A policy's compiler with its variables.
pub(super) struct Expressions {
    compiler: AdmissionCompiler,
    has_params: bool,
}

impl Expressions {
    pub(super) fn new(has_params: bool, composes: bool) -> Self {
        let compiler = match composes {
            true => AdmissionCompiler::composing(),
            false => AdmissionCompiler::default(),
        };
        Self { compiler, has_params }
    }

    fn variables(&self) -> OptionalVariables {
        OptionalVariables { params: self.has_params, authorizer: true, patches: false }
    }

    /// Adds a variable, whether it compiles or not.
    pub(super) fn define(&mut self, name: &str, source: &str, path: &str) -> Option<FieldError> {
        let variables = self.variables();
        let why = self.compiler.define(name, source, variables).err()?;
        Some(FieldError::invalid(path, source, why))
    }

    /// A validation's expression.
    pub(super) fn condition(&self, source: &str, path: &str) -> Option<FieldError> {
        let why = self.compiler.compile(source, self.variables(), &[Type::Bool]).err()?;
        Some(FieldError::invalid(path, source, why))
    }

    /// A message expression, which has no authorizer.
    pub(super) fn message(&self, source: &str, path: &str) -> Option<FieldError> {
        let variables = OptionalVariables { authorizer: false, ..self.variables() };
        let why = self.compiler.compile(source, variables, &[Type::String]).err()?;
        Some(FieldError::invalid(path, source, why))
    }

    /// The trimmed expression of an audit annotation.
    pub(super) fn annotation(&self, trimmed: &str, shown: &str, path: &str) -> Option<FieldError> {
        let wanted = [Type::String, Type::Null];
        let why = self.compiler.compile(trimmed, self.variables(), &wanted).err()?;
        Some(FieldError::invalid(path, shown, why))
    }

    /// The trimmed expression of a mutation.
    pub(super) fn mutation(
        &self,
        source: &str,
        patch_type: &str,
        path: &str,
    ) -> Option<FieldError> {
        let wanted = match patch_type {
            "JSONPatch" => Type::json_patches(),
            _ => Type::apply_configuration(),
        };
        let variables = OptionalVariables { patches: true, ..self.variables() };
        let why = self.compiler.compile(source, variables, &[wanted]).err()?;
        Some(FieldError::invalid(path, source, why))
    }
}
