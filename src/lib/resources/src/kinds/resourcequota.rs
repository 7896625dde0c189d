//! ResourceQuota: limits on a namespace's content. Admission counts, the quota controller repairs.

use crate::cells;
use crate::checks::{all_invalid, items, text};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::{FieldError, FormattedValue, MAX_ERRORS, Word};
use ferrokube_apimachinery::name;
use ferrokube_apimachinery::quantity::Quantity;
use ferrokube_resource::native::{KindBody, NativeColumn, NativeSubresource};
use ferrokube_resource::{Change, Hooks, MetadataRules, Policy};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

/// Unprefixed names that count objects: integers.
const COUNTED: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
/// Unprefixed names that measure quantities.
const MEASURED: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

pub(crate) fn body() -> KindBody {
    KindBody {
        subresources: &[NativeSubresource::STATUS],
        reset: &["status"],
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text(
                    "Request",
                    "Request represents a minimum amount of cpu/memory that a container may consume.",
                ),
                NativeColumn::text(
                    "Limit",
                    "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
                ),
                NativeColumn::AGE,
            ]
        },
        storage: Some("resourcequotas"),
        policy: Policy {
            metadata_rules: MetadataRules::Changes,
            subresource_metadata_rules: MetadataRules::Changes,
            returns_deleted: true,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(ResourceQuota),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct ResourceQuota;

impl Hooks for ResourceQuota {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.old.is_none() {
            object.set(&["status"], json!({}));
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        if change.subresource == "status" {
            return ["hard", "used"]
                .into_iter()
                .flat_map(|field| amounts(object, ["status", field]))
                .collect();
        }
        let mut errors = amounts(object, ["spec", "hard"]);
        errors.extend(scopes(object));
        errors.extend(scope_selector(object));
        if change.old.is_some_and(|old| sorted_scopes(old) != sorted_scopes(object)) {
            errors.push(FieldError::invalid(
                "spec.scopes",
                object.get(&["spec", "scopes"]),
                "field is immutable",
            ));
        }
        errors
    }

    fn warnings(&self, change: &Change<'_>, object: &Document) -> Vec<String> {
        if change.old.is_some() {
            return Vec::new();
        }
        let hard = |resource: &str| {
            let amount = object.str(&["spec", "hard", resource])?;
            Some((resource.to_owned(), Quantity::parse(amount).ok()?))
        };
        let warning = |resource: &&str| {
            let bare = Some(*resource).filter(|it| ["cpu", "memory"].contains(it));
            let (request, least) = hard(&format!("requests.{resource}")).or_else(|| hard(bare?))?;
            let (limit, most) = hard(&format!("limits.{resource}"))?;
            let (shown, bound) = (least.canonical(), most.canonical());
            (least > most).then(|| {
                format!("ResourceQuota {request} ({shown}) should be less than {limit} ({bound})")
            })
        };
        ["cpu", "memory", "storage", "ephemeral-storage"].iter().filter_map(warning).collect()
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (resource, hard) in
            object.get(&["status", "hard"]).and_then(Value::as_object).into_iter().flatten()
        {
            let used = object.str(&["status", "used", resource]).unwrap_or("0");
            let cell = format!("{resource}: {used}/{}", hard.as_str().unwrap_or("0"));
            if resource.starts_with("limits.") { limits.push(cell) } else { requests.push(cell) }
        }
        vec![
            Value::from(object.name()),
            Value::from(requests.join(", ")),
            Value::from(limits.join(", ")),
            Value::from(cells::age(object, now)),
        ]
    }
}

fn amounts(object: &Document, path: [&str; 2]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (resource, amount) in object.get(&path).and_then(Value::as_object).into_iter().flatten() {
        let field = format!("{}.{}[{resource}]", path[0], path[1]);
        errors.extend(all_invalid(&field, resource, resource_name(resource)));
        let amount = amount.as_str().unwrap_or("0");
        if amount.starts_with('-') {
            errors.push(FieldError::invalid(&field, amount, "must be greater than or equal to 0"));
        }
        if is_counted(resource) && !Quantity::parse(amount).is_ok_and(|amount| amount.is_whole()) {
            errors.push(FieldError::invalid(&field, amount, "must be an integer"));
        }
    }
    errors
}

fn resource_name(resource: &str) -> Vec<String> {
    let mut sentences = name::qualified_name(resource);
    if resource.contains('/') {
        return sentences;
    }
    if sentences.is_empty() && !is_standard(resource) && resource != "storage" {
        sentences.push("must be a standard resource type or fully qualified".to_owned());
    }
    if !is_standard(resource) {
        sentences.push("must be a standard resource for quota".to_owned());
    }
    sentences
}

fn is_standard(resource: &str) -> bool {
    COUNTED.contains(&resource)
        || MEASURED.contains(&resource)
        || resource.starts_with("hugepages-")
        || resource.starts_with("requests.hugepages-")
}

/// Whether amounts must be integers: object counts and extended resources (`count/...`,
/// `example.com/gpu`).
fn is_counted(resource: &str) -> bool {
    COUNTED.contains(&resource)
        || (resource.contains('/')
            && !resource.contains("kubernetes.io/")
            && !resource.starts_with("requests."))
}

fn sorted_scopes(object: &Document) -> Vec<&str> {
    let mut scopes: Vec<&str> =
        object.list(&["spec", "scopes"]).iter().filter_map(Value::as_str).collect();
    scopes.sort_unstable();
    scopes.dedup();
    scopes
}

fn scopes(object: &Document) -> Vec<FieldError> {
    let scopes: Vec<&str> =
        object.list(&["spec", "scopes"]).iter().filter_map(Value::as_str).collect();
    let shown = FormattedValue::new(object.get(&["spec", "scopes"]));
    let mut unfit_resources = UnfitResources::of(object);
    let mut errors = Vec::new();
    for scope in &scopes {
        if errors.len() >= MAX_ERRORS {
            break;
        }
        if !SCOPES.contains(scope) {
            errors.push(FieldError::invalid("spec.scopes", &shown, "unsupported scope"));
        }
        let error = FieldError::invalid("spec.scopes", &shown, UNFIT);
        errors.extend(std::iter::repeat_n(error, unfit_resources.count(scope)));
    }
    errors.extend(conflicting(&scopes, "spec.scopes", object));
    errors
}

const UNFIT: &str = "unsupported scope applied to resource";

/// Counts the limited standard resources that do not fit a scope, once per scope.
struct UnfitResources<'a> {
    limited: Vec<&'a str>,
    counted: HashMap<&'a str, usize>,
}

impl<'a> UnfitResources<'a> {
    fn of(object: &'a Document) -> Self {
        let hard = object.get(&["spec", "hard"]).and_then(Value::as_object).into_iter().flatten();
        Self {
            limited: hard
                .map(|(resource, _)| resource.as_str())
                .filter(|resource| is_standard(resource))
                .collect(),
            counted: HashMap::new(),
        }
    }

    fn count(&mut self, scope: &'a str) -> usize {
        if !SCOPES.contains(&scope) {
            return 0;
        }
        let limited = &self.limited;
        *self.counted.entry(scope).or_insert_with(|| {
            limited.iter().filter(|resource| !fits(scope, resource)).take(MAX_ERRORS).count()
        })
    }
}

fn fits(scope: &str, resource: &str) -> bool {
    let compute = matches!(
        resource,
        "cpu" | "memory" | "requests.cpu" | "requests.memory" | "limits.cpu" | "limits.memory"
    );
    match scope {
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => resource == "pods" || compute,
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        _ => true,
    }
}

/// kube-apiserver shows the list of scopes also if those of the selector conflict.
fn conflicting(scopes: &[&str], field: &str, object: &Document) -> Vec<FieldError> {
    let pairs = [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")];
    let both = pairs.iter().filter(|(one, other)| scopes.contains(one) && scopes.contains(other));
    both.map(|_| FieldError::invalid(field, object.get(&["spec", "scopes"]), "conflicting scopes"))
        .collect()
}

fn scope_selector(object: &Document) -> Vec<FieldError> {
    const FIELD: &str = "spec.scopeSelector.matchExpressions";
    let requirements = object.list(&["spec", "scopeSelector", "matchExpressions"]);
    let mut errors = Vec::new();
    let mut scopes = Vec::new();
    let mut unfit_resources = UnfitResources::of(object);
    let mut shown = None;
    for requirement in requirements {
        if errors.len() >= MAX_ERRORS {
            break;
        }
        let scope = text(requirement, "scopeName");
        if !SCOPES.contains(&scope) {
            errors.push(FieldError::invalid(
                format!("{FIELD}.scopeName"),
                Word(scope),
                "unsupported scope",
            ));
        }
        let unfit = unfit_resources.count(scope);
        if unfit > 0 {
            let shown = &*shown.get_or_insert_with(|| selector_shown(requirements));
            errors.extend(std::iter::repeat_n(FieldError::invalid(FIELD, shown, UNFIT), unfit));
        }
        errors.extend(operator_errors(requirement, scope, FIELD));
        scopes.push(scope);
    }
    errors.extend(conflicting(&scopes, FIELD, object));
    errors
}

/// As kube-apiserver formats the internal type.
fn selector_shown(requirements: &[Value]) -> FormattedValue {
    let word =
        |requirement: &Value, field: &str| FormattedValue::new(Word(text(requirement, field)));
    let shown = |requirement: &Value| {
        let values =
            FormattedValue::new(requirement.get("values").filter(|values| !values.is_null()));
        FormattedValue::object([
            ("ScopeName", word(requirement, "scopeName")),
            ("Operator", word(requirement, "operator")),
            ("Values", values),
        ])
    };
    FormattedValue::object([(
        "MatchExpressions",
        FormattedValue::list(requirements.iter().map(shown)),
    )])
}

fn operator_errors(requirement: &Value, scope: &str, field: &str) -> Vec<FieldError> {
    let operator = text(requirement, "operator");
    let values = items(requirement, "values");
    let mut errors = Vec::new();
    if operator != "Exists"
        && matches!(
            scope,
            "BestEffort"
                | "NotBestEffort"
                | "Terminating"
                | "NotTerminating"
                | "CrossNamespacePodAffinity"
        )
    {
        let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
            ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
        errors.push(FieldError::invalid(format!("{field}.operator"), Word(operator), why));
    }
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            let why =
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
            errors.push(FieldError::required(format!("{field}.values"), why));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why =
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
            errors.push(FieldError::invalid(
                format!("{field}.values"),
                requirement.get("values"),
                why,
            ));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.push(FieldError::invalid(
            format!("{field}.operator"),
            Word(other),
            "not a valid selector operator",
        )),
    }
    errors
}
