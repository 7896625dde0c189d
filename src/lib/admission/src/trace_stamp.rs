//! The ids on objects (design section 5, KEP-1668): written by the server after everybody else has changed the object.
//!
//! Three cases: a request with an initial id writes all three annotations; a create without one copies the trace id as initial; any other write
//! keeps the stored initial id. What clients or webhooks put under these keys is replaced by what is stored. A write that changes nothing, or only who
//! owns which field, keeps the stored ids: whoever asks what an apply would change is not told of ids.
//!
//! A delete has no object of its own to write to: its ids go into the last state, where watchers (garbage collection, namespace deletion) find them.
//! There the family stays what it was: it spans the object's whole life, and its end is part of it.

use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_features::{Gates, LOG_TRACKING};
use ferrokube_registry::{Attributes, Operation, is_same_content};
use ferrokube_trace::annotation::{ALL, INITIAL_TRACE_ID, SPAN_ID, TRACE_ID};
use ferrokube_trace::{InitialTraceId, TraceContext};

/// Writes the annotations and says whether it did; nothing while the gate is off. The family is noted for the audit event.
pub fn stamp(gates: &Gates, attributes: &Attributes<'_>, object: &mut Document) -> bool {
    if !gates.enabled(&LOG_TRACKING) {
        return false;
    }
    let target = attributes.target;
    let definition = &target.served.definition;
    let subject = Subject {
        group: &definition.group,
        resource: &definition.plural,
        subresource: &target.subresource,
        operation: if definition.storage_prefix.is_some() { attributes.operation } else { Operation::Connect },
        user: &attributes.context.user.name,
        trace: &attributes.context.trace,
        old: attributes.old,
    };
    let Outcome { stamped, family } = subject.stamp(object);
    if let Some(family) = family {
        attributes.context.note_family(family);
    }
    stamped
}

/// A write, as far as its ids are concerned: one of this server, or what another server's webhook call tells about one.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The resource's group.
    pub group: &'a str,
    /// The plural name.
    pub resource: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// What is done; [`Operation::Connect`] for what is not stored.
    pub operation: Operation,
    /// Who does it.
    pub user: &'a str,
    /// Its ids.
    pub trace: &'a TraceContext,
    /// The stored object of an update.
    pub old: Option<&'a Document>,
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it was given ids.
    pub stamped: bool,
    /// The family that it is of.
    pub family: Option<InitialTraceId>,
}

/// The server itself: nobody's request is behind what it makes at its start, unless it says whose family that belongs to.
const SERVER: &str = "system:apiserver";

impl Subject<'_> {
    /// Writes the ids into the object, or what was stored.
    pub fn stamp(&self, object: &mut Document) -> Outcome {
        if self.operation != Operation::Delete {
            restore(self.old, object);
        }
        let stored: Option<InitialTraceId> = object.annotation(INITIAL_TRACE_ID).and_then(|text| text.parse().ok());
        let stamped = self.is_stamped() && !self.is_bootstrap(object) && !self.old.is_some_and(|old| is_same_content(old, object));
        let family = if stamped { self.write(stored, object) } else { stored };
        Outcome { stamped, family }
    }

    /// Whether this write is one: never status, heartbeats (leases) and events, nor what is not stored.
    fn is_stamped(&self) -> bool {
        if self.user == SERVER && self.trace.initial.is_none() {
            return false;
        }
        let heartbeat = self.resource == "leases" && self.group == "coordination.k8s.io";
        let event = self.resource == "events" && matches!(self.group, "" | "events.k8s.io");
        !matches!(self.subresource, "status" | "finalize") && self.operation != Operation::Connect && !heartbeat && !event
    }

    /// The policy that every cluster begins with is part of no request and no family: the server writes it by itself, again at every upgrade.
    fn is_bootstrap(&self, object: &Document) -> bool {
        self.user == SERVER && object.label("kubernetes.io/bootstrapping").is_some()
    }

    /// Writes the ids; gives the family that the object is of now.
    fn write(&self, stored: Option<InitialTraceId>, object: &mut Document) -> Option<InitialTraceId> {
        let trace = self.trace;
        let initial = match self.operation {
            Operation::Create => Some(trace.initial.unwrap_or(trace.trace_id)),
            Operation::Delete if stored.is_some() => None,
            _ => trace.initial,
        };
        let annotations = annotations_mut(object);
        // In the order of the map, which then only grows at its end.
        match initial {
            Some(initial) => put(annotations, INITIAL_TRACE_ID, &initial.hex()),
            // Edited by hand into garbage, while the gate was off.
            None if stored.is_none() => _ = annotations.remove(INITIAL_TRACE_ID),
            None => {}
        }
        put(annotations, SPAN_ID, &trace.span_id.hex());
        put(annotations, TRACE_ID, &trace.trace_id.hex());
        initial.or(stored)
    }
}

fn annotations(object: &Document) -> Option<&Map<String, Value>> {
    object.get(&["metadata", "annotations"])?.as_object()
}

/// The annotations, made where there are none. (No name is copied for a map that is there, as [`Document::set`] does.)
fn annotations_mut(object: &mut Document) -> &mut Map<String, Value> {
    let metadata = map_mut(object.fields_mut(), "metadata");
    map_mut(metadata, "annotations")
}

fn map_mut<'a>(map: &'a mut Map<String, Value>, field: &str) -> &'a mut Map<String, Value> {
    if !map.get(field).is_some_and(Value::is_object) {
        map.insert(field.to_owned(), Value::Object(Map::new()));
    }
    map.get_mut(field).and_then(Value::as_object_mut).expect("made an object just above")
}

fn put(annotations: &mut Map<String, Value>, key: &str, text: &str) {
    match annotations.get_mut(key) {
        Some(slot) => *slot = Value::from(text),
        None => _ = annotations.insert(key.to_owned(), Value::from(text)),
    }
}

/// The three keys as they are stored.
fn restore(old: Option<&Document>, object: &mut Document) {
    let (stored, given) = (old.and_then(annotations), annotations(object));
    if ALL.iter().all(|key| stored.and_then(|stored| stored.get(*key)) == given.and_then(|given| given.get(*key))) {
        return;
    }
    for key in ALL {
        match old.and_then(|old| old.annotation(key)) {
            Some(value) if object.annotation(key) == Some(value) => {}
            Some(value) => object.set(&["metadata", "annotations", key], value),
            None => drop(object.remove(&["metadata", "annotations", key])),
        }
    }
    if object.get(&["metadata", "annotations"]).and_then(Value::as_object).is_some_and(|annotations| annotations.is_empty()) {
        object.remove(&["metadata", "annotations"]);
    }
}
