//! Type checks of policies: their expressions against the kinds that their rules name.

use crate::matching::{items, text};
use crate::rule::strings;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_cel::Type;
use ferrokube_cel::admission::{AdmissionCompiler, ObjectTypes, OptionalVariables};
use ferrokube_registry::Catalog;
use ferrokube_schema::Schema;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Max kinds that a rule adds, and all rules together.
const MAX_KINDS: usize = 10;
const MAX_ALL_KINDS: usize = 20;
/// Max bytes of all warnings; further ones are left out.
const MAX_BYTES: usize = 64 * 1024;

/// Kinds by group, version and name.
type CheckedKinds = BTreeMap<(String, String, String), Type>;

/// `status.typeChecking` of a ValidatingAdmissionPolicy.
pub(super) fn type_checking(policy: &Document, catalog: &Catalog) -> Value {
    let check = TypeCheck::of(policy, catalog);
    let (mut warnings, mut bytes) = (Vec::new(), 0);
    for (index, validation) in policy.list(&["spec", "validations"]).iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let source = text(validation, field);
            if source.is_empty() {
                continue;
            }
            let found = check.check(source);
            bytes += found.len();
            if !found.is_empty() && bytes <= MAX_BYTES {
                warnings.push(json!({
                    "fieldRef": format!("spec.validations[{index}].{field}"),
                    "warning": found,
                }));
            }
        }
    }
    match warnings.is_empty() {
        true => json!({}),
        false => json!({"expressionWarnings": warnings}),
    }
}

/// A policy with the types that it is checked against.
struct TypeCheck {
    /// A kind as shown, and the compiler of expressions about its objects.
    compilers: Vec<(String, AdmissionCompiler)>,
    variables: OptionalVariables,
}

impl TypeCheck {
    fn of(policy: &Document, catalog: &Catalog) -> Self {
        let spec = policy.get(&["spec"]).unwrap_or(&Value::Null);
        let param = spec.get("paramKind").filter(|kind| !kind.is_null());
        let variables =
            OptionalVariables { params: param.is_some(), authorizer: true, patches: false };
        let params = param.and_then(|kind| param_type(kind, catalog));
        let compiler = |object: Type| {
            let types = ObjectTypes { object: Some(object), params: params.clone() };
            let mut compiler = AdmissionCompiler::checking(types);
            for variable in items(spec, "variables") {
                // Its uses are checked as if it had any type.
                let (name, source) = (text(variable, "name"), text(variable, "expression"));
                let _ = compiler.define(name, source, variables);
            }
            compiler
        };
        let kinds = kinds(spec.get("matchConstraints").unwrap_or(&Value::Null), catalog);
        let compilers = kinds.into_iter().map(|((group, version, kind), object)| {
            let shown = GroupVersionKind { group, version, kind };
            (format!("{}, Kind={}", shown_version(&shown), shown.kind), compiler(object))
        });
        Self { compilers: compilers.collect(), variables }
    }

    /// The warnings about an expression; empty if there are none.
    fn check(&self, source: &str) -> String {
        let warnings: Vec<String> = self
            .compilers
            .iter()
            .filter_map(|(kind, compiler)| {
                let why = compiler.check(source, self.variables).err()?;
                Some(format!("{kind}: {why}\n"))
            })
            .collect();
        warnings.join("\n")
    }
}

/// As Go prints the group and version of a kind: with a slash also for the core group.
fn shown_version(kind: &GroupVersionKind) -> String {
    format!("{}/{}", kind.group, kind.version)
}

/// The type of the parameters, if their kind is served.
fn param_type(kind: &Value, catalog: &Catalog) -> Option<Type> {
    let api_version = text(kind, "apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = text(kind, "kind");
    catalog.all().1.iter().find_map(|definition| {
        let is_kind = definition.group == group && definition.kind == kind;
        let versions = definition.versions.iter().filter(|known| known.served);
        let found = versions.filter(|_| is_kind).find(|known| known.name == version)?;
        Some(typed(&found.schema, kind))
    })
}

fn typed(schema: &Arc<Schema>, kind: &str) -> Type {
    // kube-apiserver appends a varying number.
    Type::of_kind(schema, &format!("{kind}1"))
}

/// The kinds that rules name, without wildcards.
fn kinds(constraints: &Value, catalog: &Catalog) -> CheckedKinds {
    let mut kinds = CheckedKinds::new();
    let (_, definitions) = catalog.all();
    for rule in items(constraints, "resourceRules") {
        let sorted = |field: &str| {
            let mut texts = strings(rule, field);
            texts.sort();
            texts
        };
        let (groups, versions) = (sorted("apiGroups"), sorted("apiVersions"));
        if groups.iter().chain(&versions).any(|text| text.contains('*')) {
            continue;
        }
        let mut resources = sorted("resources");
        resources.retain(|resource| !resource.contains(['*', '/']));
        let mut count = 0;
        for group in &groups {
            for version in &versions {
                for resource in &resources {
                    for definition in &definitions {
                        // The core group stands for any: it has no name to be found by.
                        let is_named = (group.is_empty() || definition.group == *group)
                            && [&definition.plural, &definition.singular].contains(&resource);
                        let mut served = definition.versions.iter().filter(|known| known.served);
                        let Some(found) = served.find(|known| is_named && known.name == *version)
                        else {
                            continue;
                        };
                        let kind = definition.kind.clone();
                        let object = typed(&found.schema, &kind);
                        kinds.insert((definition.group.clone(), version.clone(), kind), object);
                        count += 1;
                        if count == MAX_KINDS || kinds.len() >= MAX_ALL_KINDS {
                            return kinds;
                        }
                    }
                }
            }
        }
    }
    kinds
}
