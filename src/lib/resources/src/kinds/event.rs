//! Event: reports about an object. Served in the core group and in `events.k8s.io`, stored in the
//! core form.

mod convert;
mod validate;

use crate::cells;
use crate::checks::text;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
use ferrokube_resource::native::{KindBody, NAME_DESCRIPTION, NativeColumn};
use ferrokube_resource::{Change, FinalizerDomain, Hooks, MetadataRules, Policy};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Lifetime of an event since its last write.
pub const TTL: Duration = Duration::from_secs(3600);

const COLUMNS: &[NativeColumn] = &[
    NativeColumn::text(
        "Last Seen",
        "The time at which the most recent occurrence of this event was recorded.",
    ),
    NativeColumn::text(
        "Type",
        "Type of this event (Normal, Warning), new types could be added in the future",
    ),
    NativeColumn::text(
        "Reason",
        "This should be a short, machine understandable string that gives the reason for the transition into the object's current status.",
    ),
    NativeColumn::text("Object", "The object that this event is about."),
    NativeColumn::wide(
        "Subobject",
        "If referring to a piece of an object instead of an entire object, this string should contain a valid JSON/Go field access statement, such as desiredState.manifest.containers[2]. For example, if the object reference is to a container within a pod, this would take on a value like: \"spec.containers{name}\" (where \"name\" refers to the name of the container that triggered the event) or if no container name is specified \"spec.containers[2]\" (container with index 2 in this pod). This syntax is chosen only to have some well-defined way of referencing a part of an object.",
    ),
    NativeColumn::wide(
        "Source",
        "The component reporting this event. Should be a short machine understandable string.",
    ),
    NativeColumn::text("Message", "A human-readable description of the status of this operation."),
    NativeColumn::wide(
        "First Seen",
        "The time at which the event was first recorded. (Time of server receipt is in TypeMeta.)",
    ),
    NativeColumn::wide("Count", "The number of times this event has occurred."),
    NativeColumn {
        name: "Name",
        kind: "string",
        format: "name",
        description: NAME_DESCRIPTION,
        priority: 1,
    },
];
const POLICY: Policy = Policy {
    metadata_rules: MetadataRules::Changes,
    create_on_update: true,
    garbage_collected: false,
    invalid_group: Some(""),
    ..Policy::DEFAULT
};

/// Field names of an event's form.
#[derive(Debug)]
struct EventForm {
    involved: &'static str,
    message: &'static str,
    source: &'static str,
    first: &'static str,
    last: &'static str,
    count: &'static str,
    controller: &'static str,
}

const CORE: EventForm = EventForm {
    involved: "involvedObject",
    message: "message",
    source: "source",
    first: "firstTimestamp",
    last: "lastTimestamp",
    count: "count",
    controller: "reportingComponent",
};
const EVENTS: EventForm = EventForm {
    involved: "regarding",
    message: "note",
    source: "deprecatedSource",
    first: "deprecatedFirstTimestamp",
    last: "deprecatedLastTimestamp",
    count: "deprecatedCount",
    controller: "reportingController",
};

impl EventForm {
    /// Form of an object.
    fn of(object: &Document) -> &'static Self {
        if object.api_version().starts_with("events.k8s.io/") { &EVENTS } else { &CORE }
    }
}

pub(crate) fn core() -> KindBody {
    KindBody {
        columns: COLUMNS,
        // In the same positions for both groups, which share the stored sidecars; fields of the
        // core group only come last.
        selectable: &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "type",
            "source",
        ],
        storage: Some("events"),
        // Nor does the core group validate finalizers.
        policy: Policy {
            metadata_last: true,
            metadata_rules: MetadataRules::Nothing,
            finalizer_domain: FinalizerDomain::Optional,
            ..POLICY
        },
        hooks: Arc::new(EventHooks { form: &CORE }),
        ..KindBody::default()
    }
}

pub(crate) fn events() -> KindBody {
    KindBody {
        columns: COLUMNS,
        selectable: &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        storage: Some("events"),
        stored_as: Some(("core", "io.k8s.api.core.v1.Event")),
        policy: POLICY,
        hooks: Arc::new(EventHooks { form: &EVENTS }),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct EventHooks {
    /// Form of the requested group.
    form: &'static EventForm,
}

impl Hooks for EventHooks {
    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        validate::validate(self.form, change, object)
    }

    /// The core group accepts any path segment.
    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        (self.form.involved == CORE.involved).then(|| name::path_segment(name))
    }

    fn ttl(&self, _object: &Document) -> Option<Duration> {
        Some(TTL)
    }

    fn to_storage(&self, _version: &str, object: &mut Document) {
        convert::to_core(object);
    }

    fn from_storage(&self, _version: &str, object: &mut Document) {
        convert::from_core(object);
    }

    /// In the order of the core group's paths, for either form.
    fn selectable(&self, _paths: &[String], object: &Document) -> Vec<String> {
        let form = EventForm::of(object);
        let involved =
            |field: &str| object.str(&[form.involved, field]).unwrap_or_default().to_owned();
        let own = |field: &str| object.str(&[field]).unwrap_or_default().to_owned();
        let mut values: Vec<String> =
            ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"]
                .map(involved)
                .into();
        values.extend([own("reason"), own(form.controller), own("type")]);
        let component = object.str(&[form.source, "component"]).unwrap_or_default();
        values.push(if component.is_empty() { own(form.controller) } else { component.to_owned() });
        values
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let form = EventForm::of(object);
        let own = |field: &str| object.str(&[field]).unwrap_or_default();
        let involved = |field: &str| object.str(&[form.involved, field]).unwrap_or_default();
        let times = EventTimes::of(form, object, now);
        let kind = involved("kind").to_ascii_lowercase();
        let target =
            if involved("name").is_empty() { kind } else { format!("{kind}/{}", involved("name")) };
        vec![
            Value::from(times.last),
            Value::from(own("type")),
            Value::from(own("reason")),
            Value::from(target),
            Value::from(involved("fieldPath")),
            Value::from(source(form, object)),
            Value::from(own(form.message).trim()),
            Value::from(times.first),
            Value::from(times.count),
            Value::from(object.name()),
        ]
    }
}

/// Times and count of an event, from whichever fields the reporter set.
struct EventTimes {
    first: String,
    last: String,
    count: i64,
}

impl EventTimes {
    fn of(form: &EventForm, object: &Document, now: SystemTime) -> Self {
        let or = |text: String, other: &str| {
            if text == cells::UNKNOWN { other.to_owned() } else { text }
        };
        let time = |field: &str| cells::since(object.str(&[field]).unwrap_or_default(), now);
        let first = or(time(form.first), &time("eventTime"));
        let Some(series) = object.get(&["series"]).filter(|series| series.is_object()) else {
            let count = object
                .get(&[form.count])
                .and_then(Value::as_i64)
                .filter(|count| *count != 0)
                .unwrap_or(1);
            return Self { last: or(time(form.last), &first), first, count };
        };
        let count = series.get("count").and_then(Value::as_i64).unwrap_or(0);
        Self { last: cells::since(text(series, "lastObservedTime"), now), first, count }
    }
}

/// Component and host (or instance), as far as known.
fn source(form: &EventForm, object: &Document) -> String {
    let own = |field: &str| object.str(&[field]).unwrap_or_default();
    let of_source = |field: &str| object.str(&[form.source, field]).unwrap_or_default();
    let or = |one: &'_ str, other: &'_ str| {
        if one.is_empty() { other.to_owned() } else { one.to_owned() }
    };
    let component = or(of_source("component"), own(form.controller));
    let instance = or(of_source("host"), own("reportingInstance"));
    if instance.is_empty() { component } else { format!("{component}, {instance}") }
}
