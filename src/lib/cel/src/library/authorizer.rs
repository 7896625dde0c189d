//! Authorization checks: `authorizer.group('apps').resource('deployments').check('create')`.

use super::function::{Arg, Function, function, method};
use crate::failure::no_overload;
use crate::types::Type;
use crate::value::authorizer::{
    AUTHORIZER, Authorize, AuthorizerValue, CheckDecision, CheckedResource, CheckedSubject,
    DECISION, GROUP_CHECK, PATH_CHECK, RESOURCE_CHECK, Right,
};
use crate::value::library::Library;
use crate::value::{CelResult, Text, Value};
use ferrokube_apimachinery::name;
use std::sync::Arc;

/// Cost of asking the authorizer.
const CHECK: u64 = 350_000;

impl AuthorizerValue {
    fn value<'a>(self) -> Value<'a> {
        Value::library(Library::Authorizer(self))
    }
}

/// The values of `authorizer` and `authorizer.requestResource`.
pub(crate) fn values<'a>(
    authorize: &Arc<dyn Authorize>,
    resource: CheckedResource,
) -> [Value<'a>; 2] {
    [
        AuthorizerValue::Authorizer(Arc::clone(authorize), CheckedSubject::Caller).value(),
        AuthorizerValue::Resource(Arc::clone(authorize), CheckedSubject::Caller, resource).value(),
    ]
}

/// The types of the two variables.
pub(crate) const TYPES: [Type; 2] = [Type::Library(AUTHORIZER), Type::Library(RESOURCE_CHECK)];

/// The value of the library that an argument is.
fn given<'v>(value: &'v Value<'_>) -> Option<&'v AuthorizerValue> {
    match value {
        Value::Library(value) => match &**value {
            Library::Authorizer(value) => Some(value),
            _ => None,
        },
        _ => None,
    }
}

fn owned(text: &Text<'_>) -> Arc<str> {
    (**text).into()
}

function!(path, [authorizer, Value::String(text)] => {
    match given(authorizer) {
        Some(_) if text.trim().is_empty() => Err("path must not be empty".into()),
        Some(AuthorizerValue::Authorizer(authorize, subject)) => {
            Ok(AuthorizerValue::Path(authorize.clone(), subject.clone(), owned(text)).value())
        }
        _ => no_overload(),
    }
});

function!(group, [authorizer, Value::String(text)] => match given(authorizer) {
    Some(AuthorizerValue::Authorizer(authorize, subject)) => {
        Ok(AuthorizerValue::Group(authorize.clone(), subject.clone(), owned(text)).value())
    }
    _ => no_overload(),
});

function!(service_account, [authorizer, Value::String(namespace), Value::String(account)] => {
    match given(authorizer) {
        Some(_) if !name::dns1123_subdomain(account).is_empty() => {
            Err("Invalid service account name".into())
        }
        Some(_) if !name::dns1123_label(namespace).is_empty() => {
            Err("Invalid service account namespace".into())
        }
        Some(AuthorizerValue::Authorizer(authorize, _)) => {
            let subject =
                CheckedSubject::ServiceAccount { namespace: owned(namespace), name: owned(account) };
            Ok(AuthorizerValue::Authorizer(authorize.clone(), subject).value())
        }
        _ => no_overload(),
    }
});

function!(resource, [check, Value::String(text)] => match given(check) {
    Some(_) if text.trim().is_empty() => Err("resource must not be empty".into()),
    Some(AuthorizerValue::Group(authorize, subject, group)) => {
        let resource = CheckedResource {
            group: group.clone(),
            resource: owned(text),
            ..CheckedResource::default()
        };
        Ok(AuthorizerValue::Resource(authorize.clone(), subject.clone(), resource).value())
    }
    _ => no_overload(),
});

/// Sets a part of the checked resource.
fn narrowed<'a>(check: &Value<'a>, set: impl FnOnce(&mut CheckedResource)) -> CelResult<'a> {
    match given(check) {
        Some(AuthorizerValue::Resource(authorize, subject, resource)) => {
            let mut resource = resource.clone();
            set(&mut resource);
            Ok(AuthorizerValue::Resource(authorize.clone(), subject.clone(), resource).value())
        }
        _ => no_overload(),
    }
}

function!(subresource, [check, Value::String(text)] =>
    narrowed(check, |resource| resource.subresource = owned(text)));
function!(namespace, [check, Value::String(text)] =>
    narrowed(check, |resource| resource.namespace = owned(text)));
function!(object_name, [check, Value::String(text)] =>
    narrowed(check, |resource| resource.name = owned(text)));
// RBAC ignores selectors.
function!(selector, [check, Value::String(_)] => narrowed(check, |_| ()));

function!(check_right, [check, Value::String(verb)] => {
    let (authorize, subject, right) = match given(check) {
        Some(AuthorizerValue::Path(authorize, subject, path)) => {
            (authorize, subject, Right::Path { path: path.clone(), verb: owned(verb) })
        }
        Some(AuthorizerValue::Resource(authorize, subject, resource)) => {
            (authorize, subject, Right::Resource { resource: resource.clone(), verb: owned(verb) })
        }
        _ => return no_overload(),
    };
    Ok(AuthorizerValue::Decision(authorize.decide(subject, &right)).value())
});

fn decided<'a>(value: &Value<'a>, read: impl FnOnce(&CheckDecision) -> Value<'a>) -> CelResult<'a> {
    match given(value) {
        Some(AuthorizerValue::Decision(decision)) => Ok(read(decision)),
        _ => no_overload(),
    }
}

function!(allowed, [value] => decided(value, |decision| Value::Bool(decision.allowed)));
function!(reason, [value] => decided(value, |decision| Value::text(decision.reason.as_str())));
function!(errored, [value] => decided(value, |decision| Value::Bool(decision.error.is_some())));
function!(error, [value] =>
    decided(value, |decision| Value::text(decision.error.as_deref().unwrap_or_default())));

fn check_cost(_: &[u64]) -> u64 {
    CHECK
}

fn an_authorizer(_: &[Type]) -> Type {
    Type::Library(AUTHORIZER)
}

fn a_path_check(_: &[Type]) -> Type {
    Type::Library(PATH_CHECK)
}

fn a_group_check(_: &[Type]) -> Type {
    Type::Library(GROUP_CHECK)
}

fn a_resource_check(_: &[Type]) -> Type {
    Type::Library(RESOURCE_CHECK)
}

fn a_decision(_: &[Type]) -> Type {
    Type::Library(DECISION)
}

fn a_bool(_: &[Type]) -> Type {
    Type::Bool
}

fn a_string(_: &[Type]) -> Type {
    Type::String
}

const OF_AUTHORIZER: &[Arg] = &[Arg::Library(AUTHORIZER), Arg::String];
const OF_ACCOUNT: &[Arg] = &[Arg::Library(AUTHORIZER), Arg::String, Arg::String];
const OF_PATH: &[Arg] = &[Arg::Library(PATH_CHECK), Arg::String];
const OF_GROUP: &[Arg] = &[Arg::Library(GROUP_CHECK), Arg::String];
const OF_RESOURCE: &[Arg] = &[Arg::Library(RESOURCE_CHECK), Arg::String];
const OF_DECISION: &[Arg] = &[Arg::Library(DECISION)];

pub(super) const FUNCTIONS: &[Function] = &[
    method("path", OF_AUTHORIZER, a_path_check, path),
    method("group", OF_AUTHORIZER, a_group_check, group),
    method("serviceAccount", OF_ACCOUNT, an_authorizer, service_account),
    method("resource", OF_GROUP, a_resource_check, resource),
    method("subresource", OF_RESOURCE, a_resource_check, subresource),
    method("namespace", OF_RESOURCE, a_resource_check, namespace),
    method("name", OF_RESOURCE, a_resource_check, object_name),
    method("fieldSelector", OF_RESOURCE, a_resource_check, selector),
    method("labelSelector", OF_RESOURCE, a_resource_check, selector),
    Function { cost: check_cost, ..method("check", OF_PATH, a_decision, check_right) },
    Function { cost: check_cost, ..method("check", OF_RESOURCE, a_decision, check_right) },
    method("allowed", OF_DECISION, a_bool, allowed),
    method("reason", OF_DECISION, a_string, reason),
    method("errored", OF_DECISION, a_bool, errored),
    method("error", OF_DECISION, a_string, error),
];
