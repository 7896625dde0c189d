//! Feature: desired and current state of a cluster feature, and its users (KEP-3920).
//!
//! Users set `spec.desired` of dynamic features; components add to `status.uses` by the subresource
//! of that name; the rest of the status is the server's.

use crate::cells;
use crate::checks::{ErrorList, keep_stored, text};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::time::rfc3339_seconds;
use ferrokube_resource::native::{KindBody, NativeColumn, NativeSubresource};
use ferrokube_resource::{Change, FinalizerDomain, Hooks, Policy, Verbs};
use std::sync::Arc;
use std::time::SystemTime;

/// As the transitions assume (`transition::MAX_USES`).
const MAX_USES: usize = 32;
/// Namespace of the server's own features.
const SERVERS: &str = "kube-system";
/// The server's own loops.
const SERVER: &str = "system:apiserver";
const USES: [&str; 2] = ["status", "uses"];

pub(crate) fn body() -> KindBody {
    KindBody {
        subresources: &[
            NativeSubresource::STATUS,
            NativeSubresource {
                name: "uses",
                kind: None,
                verbs: Verbs::GET_PATCH_UPDATE,
                reset: &["spec", "metadata"],
            },
        ],
        reset: &["status"],
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text("State", "On, Off, TurningOn or TurningOff."),
                NativeColumn::text("Default", "Value unless set."),
                NativeColumn::text("Source", "Where the configured value comes from."),
                NativeColumn::text("Stage", "Stability at this version."),
                NativeColumn::text("Uses", "Values that components have reported, by version."),
                NativeColumn::AGE,
                NativeColumn::wide("Task", "What the transition waits for."),
            ]
        },
        storage: Some("features"),
        policy: Policy { finalizer_domain: FinalizerDomain::Optional, ..Policy::DEFAULT },
        hooks: Arc::new(Feature),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct Feature;

impl Hooks for Feature {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        let Some(old) = change.old else {
            object.set(&["status"], json!({}));
            return;
        };
        if change.subresource == "uses" {
            let reported = object.list(&USES).to_vec();
            keep_stored(old, object, "status");
            add_uses(change, &reported, object);
        }
    }

    /// Names of gates have capital letters.
    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
        let is_valid = name.bytes().all(is_plain)
            && name.len() <= 253
            && name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic())
            && !name.contains("..");
        let why = "must begin with a letter and consist of letters, digits, '-' or '.'";
        Some(if is_valid { Vec::new() } else { vec![why.to_owned()] })
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        match change.subresource {
            "status" if object.namespace() == SERVERS && change.user != SERVER => {
                vec![FieldError::forbidden("status", "only the API server writes it")]
            }
            "status" => status(object),
            "uses" => uses(object),
            _ => desired(change, object),
        }
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let field = |name: &str| Value::from(object.str(&["status", name]).unwrap_or_default());
        let uses: Vec<String> = object.list(&USES).iter().map(shown).collect();
        let task = object.list(&["status", "transitionTasks"]).first().and_then(Value::as_str);
        vec![
            Value::from(object.name()),
            field("state"),
            field("default"),
            field("source"),
            field("stability"),
            Value::from(uses.join(",")),
            Value::from(cells::age(object, now)),
            Value::from(task.unwrap_or_default()),
        ]
    }
}

/// `1.36=on`
fn shown(reported: &Value) -> String {
    let value = if is_enabled(reported) == Some(true) { "on" } else { "off" };
    format!("{}={value}", text(reported, "version"))
}

fn is_enabled(reported: &Value) -> Option<bool> {
    reported.get("enabled").and_then(Value::as_bool)
}

/// Appends missing reports: components that agree with others cause no writes, and none can remove
/// another's report. Reporter and time are the request's.
fn add_uses(change: &Change<'_>, reported: &[Value], object: &mut Document) {
    let mut uses = object.list(&USES).to_vec();
    for one in reported.iter().take(MAX_USES) {
        let key = |one: &Value| {
            // A typed `false` is a field that is not there.
            (text(one, "version").to_owned(), is_enabled(one).unwrap_or(false))
        };
        if uses.len() <= MAX_USES && !uses.iter().any(|known| key(known) == key(one)) {
            uses.push(json!({
                "version": text(one, "version"),
                "enabled": is_enabled(one).unwrap_or(false),
                "reportTime": rfc3339_seconds(change.now),
                "reporter": change.user,
            }));
        }
    }
    if !uses.is_empty() {
        object.set(&USES, uses);
    }
}

fn uses(object: &Document) -> Vec<FieldError> {
    const FIELD: &str = "status.uses";
    let uses = object.list(&USES);
    let mut errors = ErrorList::default();
    if uses.len() > MAX_USES {
        errors.extend([FieldError::too_many(FIELD, uses.len(), MAX_USES)]);
    }
    errors.check_each(uses.iter().enumerate(), |(index, one)| {
        let version = text(one, "version");
        (!is_version(version)).then(|| {
            let why = "must be a version of the form 1.36";
            FieldError::invalid(format!("{FIELD}[{index}].version"), version, why)
        })
    });
    errors.into_vec()
}

fn is_version(text: &str) -> bool {
    let is_number = |part: &str| {
        (1..=4).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    text.split_once('.').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

fn status(object: &Document) -> Vec<FieldError> {
    let state = object.str(&["status", "state"]).unwrap_or_default();
    let states = ["On", "Off", "TurningOn", "TurningOff"];
    let mut errors = uses(object);
    if !state.is_empty() && !states.contains(&state) {
        errors.push(FieldError::not_supported("status.state", Word(state), states));
    }
    errors
}

/// Only features whose status allows it can be set here: a value without effect would mislead.
fn desired(change: &Change<'_>, object: &Document) -> Vec<FieldError> {
    const FIELD: &str = "spec.desired";
    const CANARY: &str = "spec.canaryPercent";
    let of = |object: &Document| object.str(&["spec", "desired"]).unwrap_or_default().to_owned();
    let percent =
        |object: &Document| object.get(&["spec", "canaryPercent"]).and_then(Value::as_i64);
    let value = of(object);
    let values = ["Enabled", "Disabled"];
    let mut set = Vec::new();
    if !value.is_empty() && change.old.is_none_or(|old| of(old) != value) {
        set.push(FIELD);
    }
    if percent(object).is_some() && change.old.is_none_or(|old| percent(old) != percent(object)) {
        set.push(CANARY);
    }
    let mut errors = Vec::new();
    if set.contains(&FIELD) && !values.contains(&value.as_str()) {
        errors.push(FieldError::not_supported(FIELD, Word(&value), values));
    }
    if let Some(percent) = percent(object).filter(|percent| !(0..=100).contains(percent)) {
        errors.push(FieldError::invalid(CANARY, percent, "must be between 0 and 100, inclusive"));
    }
    let is_dynamic = object.get(&["status", "dynamic"]).and_then(Value::as_bool) == Some(true);
    if errors.is_empty() && !is_dynamic && object.namespace() == SERVERS {
        let why = "the feature is not dynamic; set --feature-gates of the components that use it";
        errors.extend(set.iter().map(|field| FieldError::forbidden(*field, why)));
    }
    errors
}
