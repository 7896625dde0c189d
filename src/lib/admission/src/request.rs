//! The AdmissionRequest of a write, as webhooks and expressions see it.

use crate::candidate::{namespace_of, operation_name};
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_registry::{
    AdmissionOptions, Attributes, DeleteOptions, FieldValidation, Operation, Served, WriteOptions,
};

/// An AdmissionRequest without its uid and objects. `matched` is the version that a rule matched.
pub(crate) fn admission_request(attributes: &Attributes<'_>, matched: &Served) -> Document {
    let target = attributes.target;
    let mut request = Map::new();
    let subresource = target.subresource.as_str();
    let mut set = |field: &str, value: Value| _ = request.insert(field.to_owned(), value);
    let mut coordinates = |kind: &str, resource: &str, subfield: &str, served: &Served| {
        set(kind, shown(kind_of(served, subresource)));
        set(resource, resource_of(served));
        if !subresource.is_empty() {
            set(subfield, Value::from(subresource));
        }
    };
    coordinates("kind", "resource", "subResource", matched);
    coordinates("requestKind", "requestResource", "requestSubResource", &target.served);
    if let Some(name) = &target.name {
        set("name", Value::from(name.as_str()));
    }
    let namespace = namespace_of(attributes);
    if !namespace.is_empty() {
        set("namespace", Value::from(namespace));
    }
    set("operation", Value::from(operation_name(attributes.operation)));
    set("userInfo", user(attributes));
    set("dryRun", Value::from(attributes.dry_run));
    set("options", options(attributes));
    Document::from_value(Value::Object(request)).unwrap_or_default()
}

/// The kind of the objects of a resource or subresource.
pub(crate) fn kind_of(served: &Served, subresource: &str) -> GroupVersionKind {
    let subresource = served.definition.subresource(served.version, subresource);
    let own = || served.definition.gvk(served.version);
    subresource.map_or_else(own, |subresource| subresource.kind.clone())
}

fn shown(GroupVersionKind { group, version, kind }: GroupVersionKind) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

fn resource_of(served: &Served) -> Value {
    let definition = &served.definition;
    json!({
        "group": definition.group.as_str(),
        "version": served.version().name.as_str(),
        "resource": definition.plural.as_str(),
    })
}

fn user(attributes: &Attributes<'_>) -> Value {
    let user = &attributes.context.user;
    let mut info = json!({"username": user.name.as_str()});
    if let Value::Object(info) = &mut info {
        if !user.uid.is_empty() {
            info.insert("uid".to_owned(), Value::from(user.uid.as_str()));
        }
        let texts = |list: &[String]| -> Value {
            list.iter().map(|text| Value::from(text.as_str())).collect::<Vec<_>>().into()
        };
        if !user.groups.is_empty() {
            info.insert("groups".to_owned(), texts(&user.groups));
        }
        if !user.extra.is_empty() {
            let extra = user.extra.iter().map(|(key, values)| (key.clone(), texts(values)));
            info.insert("extra".to_owned(), Value::Object(extra.collect()));
        }
    }
    info
}

/// kube-apiserver shows a patch as the create or update that it results in.
fn options(attributes: &Attributes<'_>) -> Value {
    match attributes.options {
        AdmissionOptions::Create(options)
        | AdmissionOptions::Update(options)
        | AdmissionOptions::Patch(options) => {
            let is_create = attributes.operation == Operation::Create;
            write_options(if is_create { "CreateOptions" } else { "UpdateOptions" }, options)
        }
        AdmissionOptions::Delete(options) => delete_options(options),
        AdmissionOptions::Connect => Value::Null,
    }
}

fn write_options(kind: &str, options: &WriteOptions) -> Value {
    let mut fields = head(kind, options.dry_run);
    let mut set = |field: &str, value: Value| _ = fields.insert(field.to_owned(), value);
    if !options.field_manager.is_empty() {
        set("fieldManager", Value::from(options.field_manager.as_str()));
    }
    if let Some(validation) = options.field_validation {
        let name = match validation {
            FieldValidation::Ignore => "Ignore",
            FieldValidation::Warn => "Warn",
            FieldValidation::Strict => "Strict",
        };
        set("fieldValidation", Value::from(name));
    }
    Value::Object(fields)
}

fn delete_options(options: &DeleteOptions) -> Value {
    let mut fields = head("DeleteOptions", options.dry_run);
    let mut set = |field: &str, value: Value| _ = fields.insert(field.to_owned(), value);
    if let Some(seconds) = options.grace_seconds {
        set("gracePeriodSeconds", Value::from(seconds));
    }
    let mut conditions = Map::new();
    let given = [("uid", &options.uid), ("resourceVersion", &options.resource_version)];
    for (field, value) in given {
        if let Some(value) = value {
            conditions.insert(field.to_owned(), Value::from(value.as_str()));
        }
    }
    if !conditions.is_empty() {
        set("preconditions", Value::Object(conditions));
    }
    if let Some(orphan) = options.orphan_dependents {
        set("orphanDependents", Value::from(orphan));
    }
    if let Some(policy) = &options.propagation {
        set("propagationPolicy", Value::from(policy.as_str()));
    }
    Value::Object(fields)
}

fn head(kind: &str, dry_run: bool) -> Map {
    let mut fields = Map::new();
    fields.insert("kind".to_owned(), Value::from(kind));
    fields.insert("apiVersion".to_owned(), Value::from("meta.k8s.io/v1"));
    if dry_run {
        fields.insert("dryRun".to_owned(), Value::from(vec![Value::from("All")]));
    }
    fields
}
