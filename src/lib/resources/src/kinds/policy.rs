//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy. Their expressions compile before they
//! are stored.

mod expressions;
pub(crate) mod matching;

use crate::cells;
use crate::checks::{all_invalid, is_full, items, text};
use expressions::Expressions;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::name;
use ferrokube_resource::native::{CREATION_DESCRIPTION, KindBody, NativeColumn, NativeSubresource};
use ferrokube_resource::{Change, FinalizerDomain, Hooks, MetadataRules, Policy};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

/// Max audit annotations of a policy.
const MAX_AUDIT_ANNOTATIONS: usize = 20;
/// Max bytes of an audit annotation's expression.
const MAX_VALUE_EXPRESSION: usize = 5 * 1024;
const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];

pub(crate) fn validating() -> KindBody {
    KindBody {
        subresources: &[NativeSubresource::STATUS_ALONE],
        reset: &["status"],
        columns: const {
            &[
                NativeColumn::NAME,
                count(
                    "Validations",
                    "Validations indicates the number of validation rules defined in this configuration",
                ),
                NativeColumn::text(
                    "ParamKind",
                    "ParamKind specifies the kind of resources used to parameterize this policy",
                ),
                AGE,
            ]
        },
        ..body("validatingadmissionpolicies", PolicyKind::Validating)
    }
}

pub(crate) fn mutating() -> KindBody {
    KindBody {
        columns: const {
            &[
                NativeColumn::NAME,
                count(
                    "Mutations",
                    "Mutation indicates the number of mutations rules defined in this configuration",
                ),
                NativeColumn::text(
                    "ParamKind",
                    "ParamKind specifies the kind of resources used to parameterize this policy",
                ),
                AGE,
            ]
        },
        ..body("mutatingadmissionpolicies", PolicyKind::Mutating)
    }
}

const AGE: NativeColumn = NativeColumn::text("Age", CREATION_DESCRIPTION);

const fn count(name: &'static str, description: &'static str) -> NativeColumn {
    NativeColumn { kind: "integer", ..NativeColumn::text(name, description) }
}

fn body(storage: &'static str, kind: PolicyKind) -> KindBody {
    KindBody {
        categories: &["api-extensions"],
        storage: Some(storage),
        policy: Policy {
            metadata_rules: MetadataRules::Object,
            subresource_metadata_rules: MetadataRules::Nothing,
            // It stores mutating ones so to this day.
            former_versions: &["v1beta1", "v1alpha1"],
            computes_long: true,
            counts_generation: true,
            finalizer_domain: FinalizerDomain::Optional,
            unconditional_update: false,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(PolicyHooks(kind)),
        ..KindBody::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyKind {
    Validating,
    Mutating,
}

#[derive(Debug)]
struct PolicyHooks(PolicyKind);

impl Hooks for PolicyHooks {
    fn default(&self, _version: &str, object: &mut Document) {
        set_default(object, &["spec", "failurePolicy"], "Fail");
        if let Some(constraints) = object.get_mut(&["spec", "matchConstraints"]) {
            matching::default(constraints);
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        if change.subresource == "status" {
            return status(object);
        }
        let mut errors = Vec::new();
        let spec = object.get(&["spec"]).unwrap_or(&Value::Null);
        let failure_policy = text(spec, "failurePolicy");
        errors.extend(one_of("spec.failurePolicy", failure_policy, &FAILURE_POLICIES));
        let param_kind = spec.get("paramKind").filter(|kind| !kind.is_null());
        errors.extend(param_kind.into_iter().flat_map(check_param_kind));
        match spec.get("matchConstraints").filter(|given| !given.is_null()) {
            None => errors.push(FieldError::required("spec.matchConstraints", "")),
            Some(constraints) => {
                errors.extend(matching::check(constraints, "spec.matchConstraints"));
                if items(constraints, "resourceRules").is_empty() {
                    errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
                }
                if self.0 == PolicyKind::Mutating {
                    errors.extend(matching::check_mutable(constraints, "spec.matchConstraints"));
                }
            }
        }
        let same_conditions = change.old.is_some_and(|old| {
            ["paramKind", "matchConditions"]
                .iter()
                .all(|field| old.get(&["spec", field]) == spec.get(field))
        });
        let has_params = param_kind.is_some();
        if !same_conditions {
            errors.extend(matching::check_conditions(
                items(spec, "matchConditions"),
                has_params,
                "spec.matchConditions",
            ));
        }
        let composes = self.0 == PolicyKind::Mutating || !items(spec, "variables").is_empty();
        let mut expressions = Expressions::new(has_params, composes);
        for (index, variable) in items(spec, "variables").iter().enumerate() {
            if is_full(&errors) {
                break;
            }
            errors.extend(check_variable(&mut expressions, variable, index));
        }
        errors.extend(match self.0 {
            PolicyKind::Validating => check_validations(&expressions, object, spec),
            PolicyKind::Mutating => check_mutations(&expressions, spec),
        });
        errors
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let list = match self.0 {
            PolicyKind::Validating => "validations",
            PolicyKind::Mutating => "mutations",
        };
        let count = object.list(&["spec", list]).len();
        let param = |field: &str| object.str(&["spec", "paramKind", field]).unwrap_or_default();
        let shown = match object.get(&["spec", "paramKind"]).filter(|kind| !kind.is_null()) {
            Some(_) => format!("{}/{}", param("apiVersion"), param("kind")),
            None => "<unset>".to_owned(),
        };
        vec![
            Value::from(object.name()),
            Value::from(count),
            Value::from(shown),
            Value::from(cells::age(object, now)),
        ]
    }
}

/// Sets a field that is absent or null.
fn set_default(object: &mut Document, path: &[&str], value: &str) {
    if object.get(path).is_none_or(Value::is_null) {
        object.set(path, value);
    }
}

/// The error of a text outside a fixed set.
pub(crate) fn one_of(path: &str, given: &str, allowed: &[&str]) -> Option<FieldError> {
    let is_known = allowed.contains(&given);
    (!is_known).then(|| FieldError::not_supported(path, Word(given), allowed))
}

fn check_param_kind(kind: &Value) -> Vec<FieldError> {
    const PATH: &str = "spec.paramKind.apiVersion";
    let mut errors = Vec::new();
    let api_version = text(kind, "apiVersion");
    let parts: Vec<&str> = match api_version {
        "/" => vec![""],
        other => other.split('/').collect(),
    };
    match (api_version, &parts[..]) {
        ("", _) => errors.push(FieldError::required(PATH, "")),
        (_, [version]) => errors.extend(check_version(api_version, version)),
        (_, [group, version]) => {
            if !group.is_empty() {
                let sentences = name::dns1123_subdomain(group);
                errors.extend(joined(PATH, group, &sentences, ""));
            }
            errors.extend(check_version(api_version, version));
        }
        _ => errors.push(FieldError::invalid(
            PATH,
            api_version,
            format!("unexpected GroupVersion string: {api_version}"),
        )),
    }
    let kind = text(kind, "kind");
    if kind.is_empty() {
        errors.push(FieldError::required("spec.paramKind.kind", ""));
    } else {
        let sentences = name::dns1035_label(&kind.to_ascii_lowercase());
        const CASE: &str = "may have mixed case, but should otherwise match: ";
        errors.extend(joined("spec.paramKind.kind", kind, &sentences, CASE));
    }
    errors
}

fn check_version(api_version: &str, version: &str) -> Option<FieldError> {
    const PATH: &str = "spec.paramKind.apiVersion";
    if version.is_empty() {
        return Some(FieldError::invalid(PATH, api_version, "version must be specified"));
    }
    joined(PATH, version, &name::dns1035_label(version), "")
}

/// One error of all sentences about a value.
fn joined(path: &str, value: &str, sentences: &[String], before: &str) -> Option<FieldError> {
    let detail = || format!("{before}{}", sentences.join(","));
    (!sentences.is_empty()).then(|| FieldError::invalid(path, value, detail()))
}

fn check_variable(
    expressions: &mut Expressions,
    variable: &Value,
    index: usize,
) -> Vec<FieldError> {
    let path = format!("spec.variables[{index}]");
    let (name, source) = (text(variable, "name"), text(variable, "expression"));
    let mut errors = Vec::new();
    if name.trim().is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), "name is not specified"));
    } else if !ferrokube_cel::admission::is_identifier(name) {
        errors.push(FieldError::invalid(
            format!("{path}.name"),
            name,
            "must be a valid CEL identifier",
        ));
    }
    if source.trim().is_empty() {
        errors.push(FieldError::required(
            format!("{path}.expression"),
            "expression is not specified",
        ));
    } else {
        errors.extend(expressions.define(name, source, &format!("{path}.expression")));
    }
    errors
}

fn check_validations(
    expressions: &Expressions,
    object: &Document,
    spec: &Value,
) -> Vec<FieldError> {
    const NEITHER: &str = "validations or auditAnnotations must contain at least one item";
    let validations = items(spec, "validations");
    let annotations = items(spec, "auditAnnotations");
    if validations.is_empty() && annotations.is_empty() {
        return ["spec.validations", "spec.auditAnnotations"]
            .map(|path| FieldError::required(path, NEITHER))
            .into();
    }
    let mut errors = Vec::new();
    for (index, validation) in validations.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        errors.extend(check_validation(
            expressions,
            validation,
            &format!("spec.validations[{index}]"),
        ));
    }
    if annotations.len() > MAX_AUDIT_ANNOTATIONS {
        errors.push(FieldError::invalid(
            "spec.auditAnnotations",
            spec.get("auditAnnotations"),
            format!("must not have more than {MAX_AUDIT_ANNOTATIONS} auditAnnotations"),
        ));
    }
    let mut keys = BTreeSet::new();
    for (index, annotation) in annotations.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        let path = format!("spec.auditAnnotations[{index}]");
        errors.extend(check_annotation(expressions, object.name(), annotation, &path));
        let key = text(annotation, "key");
        if !keys.insert(key) {
            errors.push(FieldError::duplicate(format!("{path}.key"), key));
        }
    }
    errors
}

fn check_validation(expressions: &Expressions, validation: &Value, path: &str) -> Vec<FieldError> {
    const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
    let mut errors = Vec::new();
    let source = text(validation, "expression");
    if source.trim().is_empty() {
        errors.push(FieldError::required(
            format!("{path}.expression"),
            "expression is not specified",
        ));
    } else {
        errors.extend(expressions.condition(source, &format!("{path}.expression")));
    }
    let message_path = format!("{path}.messageExpression");
    match text(validation, "messageExpression") {
        "" => {}
        given if given.trim().is_empty() => {
            errors.push(FieldError::invalid(message_path, given, "must be non-empty if specified"))
        }
        given => errors.extend(expressions.message(given, &message_path)),
    }
    let message = text(validation, "message");
    if !message.is_empty() && message.trim().is_empty() {
        errors.push(FieldError::invalid(
            format!("{path}.message"),
            message,
            "must be non-empty if specified",
        ));
    } else if message.trim().contains(['\n', '\r']) {
        errors.push(FieldError::invalid(
            format!("{path}.message"),
            message,
            "must not contain line breaks",
        ));
    }
    if let Some(reason) = validation.get("reason").and_then(Value::as_str) {
        errors.extend(one_of(&format!("{path}.reason"), reason, &REASONS));
    }
    errors
}

fn check_annotation(
    expressions: &Expressions,
    policy: &str,
    annotation: &Value,
    path: &str,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let key = text(annotation, "key");
    let key_path = format!("{path}.key");
    if policy.is_empty() {
        errors.push(FieldError::invalid(key_path, key, "requires metadata.name be non-empty"));
    } else {
        let whole = format!("{policy}/{key}");
        errors.extend(all_invalid(&key_path, &whole, name::qualified_name(&whole)));
    }
    let value_path = format!("{path}.valueExpression");
    let source = text(annotation, "valueExpression");
    match source.trim() {
        "" => errors.push(FieldError::required(value_path, "valueExpression is not specified")),
        long if long.len() > MAX_VALUE_EXPRESSION => errors.push(FieldError::required(
            value_path,
            format!("must not exceed {MAX_VALUE_EXPRESSION} bytes in length"),
        )),
        trimmed => errors.extend(expressions.annotation(trimmed, source, &value_path)),
    }
    errors
}

fn check_mutations(expressions: &Expressions, spec: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mutations = items(spec, "mutations");
    if mutations.is_empty() {
        errors.push(FieldError::required(
            "spec.mutations",
            "mutations must contain at least one item",
        ));
    }
    for (index, mutation) in mutations.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        errors.extend(check_mutation(expressions, mutation, &format!("spec.mutations[{index}]")));
    }
    match text(spec, "reinvocationPolicy") {
        "" => errors.push(FieldError::required("spec.reinvocationPolicy", "")),
        given => {
            errors.extend(one_of("spec.reinvocationPolicy", given, &["IfNeeded", "Never"]));
        }
    }
    errors
}

fn check_mutation(expressions: &Expressions, mutation: &Value, path: &str) -> Vec<FieldError> {
    const FIELDS: [(&str, &str); 2] =
        [("ApplyConfiguration", "applyConfiguration"), ("JSONPatch", "jsonPatch")];
    let patch_type = text(mutation, "patchType");
    if patch_type.is_empty() {
        return vec![FieldError::required(format!("{path}.patchType"), "")];
    }
    let Some((_, field)) = FIELDS.into_iter().find(|(known, _)| *known == patch_type) else {
        let known = FIELDS.map(|(known, _)| known);
        return one_of(&format!("{path}.patchType"), patch_type, &known).into_iter().collect();
    };
    let mut errors = Vec::new();
    let below = format!("{path}.{field}");
    match mutation.get(field).filter(|given| !given.is_null()) {
        None => errors.push(FieldError::required(
            below,
            format!("must be specified when patchType is {patch_type}"),
        )),
        Some(given) => match text(given, "expression").trim() {
            "" => errors.push(FieldError::required(format!("{below}.expression"), "")),
            source => {
                errors.extend(expressions.mutation(
                    source,
                    patch_type,
                    &format!("{below}.expression"),
                ));
            }
        },
    }
    for (_, other) in FIELDS.into_iter().filter(|(known, _)| *known != patch_type) {
        if mutation.get(other).is_some_and(|given| !given.is_null()) {
            errors.push(FieldError::invalid(
                format!("{path}.{other}"),
                format!("{{{other}}}").as_str(),
                format!("must not be specified when patchType is {patch_type}"),
            ));
        }
    }
    errors
}

/// Errors of the status that the type checking controller writes.
fn status(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let warnings = object.list(&["status", "typeChecking", "expressionWarnings"]);
    for (index, warning) in warnings.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        for field in ["warning", "fieldRef"] {
            if text(warning, field).trim().is_empty() {
                errors.push(FieldError::required(
                    format!("status.typeChecking.expressionWarnings[{index}].{field}"),
                    "",
                ));
            }
        }
    }
    errors
}
