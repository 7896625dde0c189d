//! The ids on objects (design section 5, KEP-1668): written by the server after everybody else has changed the object.
//!
//! Three cases: a request with an initial id writes all three annotations; a create without one copies the trace id as initial; any other write
//! keeps the stored initial id. What clients or webhooks put under these keys is replaced by what is stored.
//!
//! A delete has no object of its own to write to: its ids go into the last state, where watchers (garbage collection, namespace deletion) find them.
//! There the family stays what it was: it spans the object's whole life, and its end is part of it.

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_features::{Gates, LOG_TRACKING};
use ferrokube_registry::{Attributes, Operation};
use ferrokube_trace::InitialTraceId;
use ferrokube_trace::annotation::{ALL, INITIAL_TRACE_ID, SPAN_ID, TRACE_ID};

/// Writes the annotations and says whether it did; nothing while the gate is off. The family is noted for the audit event.
pub fn stamp(gates: &Gates, attributes: &Attributes<'_>, object: &mut Document) -> bool {
    if !gates.enabled(&LOG_TRACKING) {
        return false;
    }
    if attributes.operation != Operation::Delete {
        restore(attributes.old, object);
    }
    let stored: Option<InitialTraceId> = object.annotation(INITIAL_TRACE_ID).and_then(|text| text.parse().ok());
    let stamped = is_stamped(attributes) && !is_bootstrap(attributes, object);
    let family = if stamped { write(attributes, stored, object) } else { stored };
    if let Some(family) = family {
        attributes.context.note_family(family);
    }
    stamped
}

/// The server itself: nobody's request is behind what it makes at its start, unless it says whose family that belongs to.
const SERVER: &str = "system:apiserver";

/// Whether this write is one: never status, heartbeats (leases) and events, nor what is not stored.
fn is_stamped(attributes: &Attributes<'_>) -> bool {
    let target = attributes.target;
    if attributes.context.user.name == SERVER && attributes.context.trace.initial.is_none() {
        return false;
    }
    let definition = &target.served.definition;
    let heartbeat = definition.plural == "leases" && definition.group == "coordination.k8s.io";
    let event = definition.plural == "events" && matches!(definition.group.as_str(), "" | "events.k8s.io");
    definition.storage_prefix.is_some()
        && !matches!(target.subresource.as_str(), "status" | "finalize")
        && attributes.operation != Operation::Connect
        && !heartbeat
        && !event
}

/// The policy that every cluster begins with is part of no request and no family: the server writes it by itself, again at every upgrade.
fn is_bootstrap(attributes: &Attributes<'_>, object: &Document) -> bool {
    attributes.context.user.name == "system:apiserver" && object.label("kubernetes.io/bootstrapping").is_some()
}

/// The three keys as they are stored.
fn restore(old: Option<&Document>, object: &mut Document) {
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

/// Writes the ids; gives the family that the object is of now.
fn write(attributes: &Attributes<'_>, stored: Option<InitialTraceId>, object: &mut Document) -> Option<InitialTraceId> {
    let trace = &attributes.context.trace;
    object.set(&["metadata", "annotations", TRACE_ID], &*trace.trace_id.hex());
    object.set(&["metadata", "annotations", SPAN_ID], &*trace.span_id.hex());
    let initial = match attributes.operation {
        Operation::Create => Some(trace.initial.unwrap_or(trace.trace_id)),
        Operation::Delete if stored.is_some() => None,
        _ => trace.initial,
    };
    if let Some(initial) = initial {
        object.set(&["metadata", "annotations", INITIAL_TRACE_ID], &*initial.hex());
    }
    initial.or(stored)
}
