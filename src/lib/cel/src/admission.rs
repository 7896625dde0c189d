//! Expressions of admission: match conditions, and those of policies.

use crate::cost::Meter;
use crate::failure::Failure;
use crate::library::authorizer;
use crate::program::{CompileError, Program};
use crate::sizes::Sizes;
use crate::types::Type;
use crate::value::authorizer::{Authorize, CheckedResource};
use crate::value::{JsonShape, Value, is_reserved};
use ferrokube_apimachinery::document::{Document, Value as Json, json};
use ferrokube_schema::Schema;
use ferrokube_schema::custom::{SchemaContext, from_json_schema};
use std::cell::OnceCell;
use std::sync::{Arc, LazyLock};

/// Cost of all match conditions of a webhook or policy.
pub const MATCH_BUDGET: u64 = 2_500_000;

/// Variables that only some expressions have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionalVariables {
    /// `params`
    pub params: bool,
    /// `authorizer` and `authorizer.requestResource`
    pub authorizer: bool,
    /// The types `Object` and `JSONPatch`, of mutations.
    pub patches: bool,
}

/// Compiles expressions of admission. `variables` of a policy are added in order; each sees those
/// before it.
#[derive(Clone, Debug, Default)]
pub struct AdmissionCompiler {
    composed: Option<Arc<Composed>>,
    types: ObjectTypes,
}

/// Types of variables that depend on the request; `None`: not known before evaluation.
#[derive(Clone, Debug, Default)]
pub struct ObjectTypes {
    /// Type of `object` and `oldObject`.
    pub object: Option<Type>,
    /// From the schema of the kind in `paramKind`.
    pub params: Option<Type>,
}

/// Environment of admission expressions besides variables.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExpressionEnvironment {
    /// The fields of `variables`, in a policy.
    pub(crate) composed: Option<Arc<Composed>>,
    /// Whether there are the types `Object` and `JSONPatch`.
    pub(crate) patches: bool,
}

/// Whether a text is an identifier.
pub fn is_identifier(text: &str) -> bool {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    !text.starts_with(|letter: char| letter.is_ascii_digit())
        && !text.is_empty()
        && text.chars().all(is_word)
        && !is_reserved(text)
}

/// The variables that a policy defines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Composed {
    variables: Vec<ComposedVariable>,
}

#[derive(Clone, Debug)]
struct ComposedVariable {
    name: Arc<str>,
    /// Or why it does not compile.
    program: Result<Program, String>,
}

impl Composed {
    /// Index and type of a variable.
    pub(crate) fn find(&self, name: &str) -> Option<(usize, Type)> {
        let place = self.variables.iter().rposition(|variable| &*variable.name == name)?;
        let answer = match &self.variables[place].program {
            Ok(program) => program.answer().clone().composed(),
            Err(_) => Type::Dyn,
        };
        Some((place, answer))
    }
}

impl AdmissionCompiler {
    /// For a policy with variables.
    pub fn composing() -> Self {
        Self { composed: Some(Arc::default()), ..Self::default() }
    }

    /// A compiler for type-checking a policy against its objects. Its programs must not be
    /// evaluated.
    pub fn checking(types: ObjectTypes) -> Self {
        Self { types, ..Self::composing() }
    }

    /// Checks the types of an expression.
    ///
    /// # Errors
    /// cel-go's messages.
    pub fn check(&self, source: &str, optional: OptionalVariables) -> Result<(), String> {
        match self.program(source, optional) {
            Ok(_) | Err(CompileError::Program(..)) => Ok(()),
            Err(CompileError::Source(why)) => Err(why),
        }
    }

    fn program(&self, source: &str, optional: OptionalVariables) -> Result<Program, CompileError> {
        let environment =
            ExpressionEnvironment { composed: self.composed.clone(), patches: optional.patches };
        let declared = declared(optional, self.composed.is_some(), &self.types);
        Program::compile(source, &declared, &environment, &mut Sizes::default())
    }

    /// Compiles an expression whose result is of one of the types.
    ///
    /// # Errors
    /// kube-apiserver's message.
    pub fn compile(
        &self,
        source: &str,
        optional: OptionalVariables,
        wanted: &[Type],
    ) -> Result<Program, String> {
        let failed = |why: &str| format!("compilation failed: {why}");
        let (answer, program) = match self.program(source, optional) {
            Ok(program) => (program.answer().clone(), Ok(program)),
            Err(CompileError::Source(why)) => return Err(failed(&why)),
            Err(CompileError::Program(why, answer)) => {
                (answer, Err(format!("program instantiation failed: {why}")))
            }
        };
        if !wanted.is_empty() && !wanted.iter().any(|wanted| is_exact(&answer, wanted)) {
            return Err(match wanted {
                [one] => {
                    format!(
                        "must evaluate to {} but got {}",
                        one.declaration(),
                        answer.declaration()
                    )
                }
                several => {
                    let names: Vec<String> = several.iter().map(Type::declaration).collect();
                    format!(
                        "must evaluate to one of [{}] but got {}",
                        names.join(" "),
                        answer.declaration()
                    )
                }
            });
        }
        program
    }

    /// Compiles a variable of a policy and adds it.
    ///
    /// # Errors
    /// As [`Self::compile`]; expressions that use it still compile.
    pub fn define(
        &mut self,
        name: &str,
        source: &str,
        optional: OptionalVariables,
    ) -> Result<(), String> {
        let program = self.compile(source, optional, &[]);
        let result = program.as_ref().map(|_| ()).map_err(Clone::clone);
        let composed = Arc::make_mut(self.composed.get_or_insert_default());
        composed.variables.push(ComposedVariable { name: name.into(), program });
        result
    }

    /// The variables of an evaluation.
    pub fn scope<'a>(&'a self, input: &AdmissionInput<'a>) -> AdmissionScope<'a> {
        let variables = self.composed.as_deref().map_or(&[][..], |composed| &composed.variables);
        AdmissionScope {
            roots: input.values(),
            composed: variables
                .iter()
                .map(|variable| LazyVariable { variable, value: OnceCell::new() })
                .collect(),
        }
    }
}

fn is_exact(given: &Type, wanted: &Type) -> bool {
    given.shown() == wanted.shown() && given.is_dyn() == wanted.is_dyn()
}

/// Names and types by slot; those that are not declared have no name.
fn declared(
    optional: OptionalVariables,
    composes: bool,
    types: &ObjectTypes,
) -> [(&'static str, Type); SLOTS] {
    let known = |given: &Option<Type>| given.clone().unwrap_or(Type::Dyn);
    let [authorizer, request_resource] = authorizer::TYPES;
    let only = |has: bool, name: &'static str| if has { name } else { "" };
    let object = |schema: &Arc<Schema>, name: &str| Type::declared_object(schema, name);
    [
        ("object", known(&types.object)),
        ("oldObject", known(&types.object)),
        ("namespaceObject", object(&NAMESPACE, "kubernetes.Namespace")),
        ("request", object(&REQUEST, "kubernetes.AdmissionRequest")),
        (only(optional.params, "params"), known(&types.params)),
        (only(optional.authorizer, "authorizer"), authorizer),
        (only(optional.authorizer, "authorizer.requestResource"), request_resource),
        (only(composes, "variables"), object(&NONE, "kubernetes.variables")),
    ]
}

/// Count of the variables that are not composed.
pub(crate) const SLOTS: usize = 8;
/// Slot of `variables`, which has no value of its own.
pub(crate) const VARIABLES: usize = 7;

/// Variables of expressions of admission.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionInput<'a> {
    /// The new object; none for a delete.
    pub object: Option<&'a Document>,
    /// The stored object.
    pub old: Option<&'a Document>,
    /// The namespace of the object.
    pub namespace: Option<&'a Document>,
    /// An AdmissionRequest without objects.
    pub request: &'a Document,
    /// The parameter of a policy.
    pub params: Option<&'a Document>,
    /// Answers `authorizer`; unset where expressions may not use it.
    pub authorizer: Option<&'a Arc<dyn Authorize>>,
    /// The resource of the request.
    pub resource: &'a CheckedResource,
}

impl<'a> AdmissionInput<'a> {
    fn values(&self) -> Vec<Value<'a>> {
        let free = |object: Option<&'a Document>| {
            object.map_or(Value::Null, |object| Value::of_fields(object.fields(), JsonShape::Free))
        };
        let typed = |object: &'a Document, schema: &'static Schema| {
            Value::of_fields(object.fields(), JsonShape::Node(schema, false))
        };
        let [authorizer, request_resource] = match self.authorizer {
            Some(authorize) => authorizer::values(authorize, self.resource.clone()),
            None => [Value::Null, Value::Null],
        };
        vec![
            free(self.object),
            free(self.old),
            self.namespace.map_or(Value::Null, |object| typed(object, &NAMESPACE)),
            typed(self.request, &REQUEST),
            free(self.params),
            authorizer,
            request_resource,
            Value::Null,
        ]
    }
}

/// The variables of one evaluation; those that the policy defines are evaluated at first use.
pub struct AdmissionScope<'a> {
    roots: Vec<Value<'a>>,
    composed: Vec<LazyVariable<'a>>,
}

struct LazyVariable<'a> {
    variable: &'a ComposedVariable,
    value: OnceCell<Result<Value<'a>, Failure>>,
}

impl<'a> AdmissionScope<'a> {
    pub(crate) fn roots(&self) -> Vec<Value<'a>> {
        self.roots.clone()
    }

    /// The value of a variable that the policy defines.
    pub(crate) fn composed(&self, place: usize, meter: &mut Meter) -> Result<Value<'a>, Failure> {
        let Some(LazyVariable { variable, value }) = self.composed.get(place) else {
            return Err("no such variable".into());
        };
        if let Some(value) = value.get() {
            return value.clone();
        }
        let name = &variable.name;
        let found = match &variable.program {
            Ok(program) => {
                meter.nested(|meter| program.evaluate_in(self, meter)).map_err(|why| match why {
                    Failure::Budget if meter.is_spent() => Failure::Budget,
                    why => Failure::Failed(format!(
                        "composited variable {name:?} fails to evaluate: {why}"
                    )),
                })
            }
            Err(why) => Err(Failure::Failed(format!(
                "composited variable {name:?} fails to compile: {why}"
            ))),
        };
        // Set once: a variable sees only those before it.
        let _ = value.set(found.clone());
        found
    }
}

/// No fields: those of `variables` are composed.
static NONE: LazyLock<Arc<Schema>> = LazyLock::new(|| schema(&json!({"type": "object"})));

/// Fields of `request`.
static REQUEST: LazyLock<Arc<Schema>> = LazyLock::new(|| {
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": text});
    let coordinates = |last: &str| {
        let mut fields = json!({"group": text, "version": text});
        if let Json::Object(fields) = &mut fields {
            fields.insert(last.to_owned(), text.clone());
        }
        json!({"type": "object", "properties": fields})
    };
    schema(&json!({"type": "object", "properties": {
        "kind": coordinates("kind"),
        "resource": coordinates("resource"),
        "subResource": text,
        "requestKind": coordinates("kind"),
        "requestResource": coordinates("resource"),
        "requestSubResource": text,
        "name": text,
        "namespace": text,
        "operation": text,
        "userInfo": {"type": "object", "properties": {
            "username": text,
            "uid": text,
            "groups": texts,
            "extra": {"type": "object", "additionalProperties": texts},
        }},
        "dryRun": {"type": "boolean"},
        "options": {"x-kubernetes-preserve-unknown-fields": true},
    }}))
});

/// Fields of `namespaceObject`.
static NAMESPACE: LazyLock<Arc<Schema>> = LazyLock::new(|| {
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": text});
    let map = json!({"type": "object", "additionalProperties": text});
    let time = json!({"type": "string", "format": "date-time"});
    let whole = json!({"type": "integer"});
    schema(&json!({"type": "object", "properties": {
        "metadata": {"type": "object", "properties": {
            "name": text, "generateName": text, "namespace": text, "labels": map,
            "annotations": map, "UID": text, "creationTimestamp": time,
            "deletionGracePeriodSeconds": whole, "deletionTimestamp": time, "generation": whole,
            "resourceVersion": text, "finalizers": texts,
        }},
        "spec": {"type": "object", "properties": {"finalizers": texts}},
        "status": {"type": "object", "properties": {
            "conditions": {"type": "array", "items": {"type": "object", "properties": {
                "status": text, "type": text, "lastTransitionTime": time, "message": text,
                "reason": text,
            }}},
            "phase": text,
        }},
    }}))
});

/// A schema that is no resource's root, whose metadata would be restricted.
pub(crate) fn schema(json: &Json) -> Arc<Schema> {
    let context = SchemaContext { path: "", name: None, metadata: None };
    let root = json!({"type": "object", "properties": {"it": json}});
    let root = from_json_schema(&root, &context).expect("a constant, compiled by the tests");
    let it = root.properties.get("it").expect("a constant");
    Arc::clone(it.schema.shared())
}

#[cfg(test)]
mod tests;
