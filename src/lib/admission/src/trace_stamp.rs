//! The ids on objects (design section 5, KEP-1668): written by the server after everybody else has
//! changed the object.
//!
//! Three cases: a request with an initial id writes all three annotations; a create without one
//! copies the trace id as initial; any other write keeps the stored initial id. What clients or
//! webhooks put under these keys is replaced by what is stored. A write that changes nothing, or
//! only who owns which field, keeps the stored ids: whoever asks what an apply would change is not
//! told of ids.
//!
//! A delete has no object of its own to write to: its ids go into the last state, where watchers
//! (garbage collection, namespace deletion) find them. There the family stays what it was: it spans
//! the object's whole life, and its end is part of it.

use ferrokube_apimachinery::document::Document;
use ferrokube_features::{Gates, LOG_TRACKING};
use ferrokube_registry::{Attributes, Operation, is_same_content, keep_ids};
use ferrokube_trace::annotation::{INITIAL_TRACE_ID, Ids};
use ferrokube_trace::{InitialTraceId, TraceContext};

/// The ids that a write gives its object; none while the gate is off. The family is noted for the
/// audit event.
pub fn stamp(gates: &Gates, attributes: &Attributes<'_>, object: &mut Document) -> Option<Ids> {
    if !gates.enabled(&LOG_TRACKING) {
        return None;
    }
    let target = attributes.target;
    let definition = &target.served.definition;
    let subject = Subject {
        group: &definition.group,
        resource: &definition.plural,
        subresource: &target.subresource,
        operation: if definition.storage_prefix.is_some() {
            attributes.operation
        } else {
            Operation::Connect
        },
        user: &attributes.context.user.name,
        trace: &attributes.context.trace,
        old: attributes.old,
    };
    let Outcome { ids, family } = subject.stamp(object);
    if let Some(family) = family {
        attributes.context.set_initial_trace_id(family);
    }
    ids
}

/// A write, as far as its ids are concerned: one of this server, or what another server's webhook
/// call tells about one.
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
    /// The ids that it is given; they are not in the object yet.
    pub ids: Option<Ids>,
    /// The family that it is of.
    pub family: Option<InitialTraceId>,
}

/// The server itself: nobody's request is behind what it makes at its start, unless it says whose
/// family that belongs to.
const SERVER: &str = "system:apiserver";

impl Subject<'_> {
    /// What ids the object is given. What it holds under the three keys becomes what was stored.
    pub fn stamp(&self, object: &mut Document) -> Outcome {
        if self.operation != Operation::Delete {
            keep_ids(self.old, object);
        }
        let stored: Option<InitialTraceId> =
            object.annotation(INITIAL_TRACE_ID).and_then(|text| text.parse().ok());
        let stamped = self.is_stamped()
            && !self.is_bootstrap(object)
            && !self.old.is_some_and(|old| is_same_content(old, object));
        if stamped { self.give(stored, object) } else { Outcome { ids: None, family: stored } }
    }

    /// Whether this write is one: never status, heartbeats (leases) and events, nor what is not
    /// stored.
    fn is_stamped(&self) -> bool {
        if self.user == SERVER && self.trace.initial.is_none() {
            return false;
        }
        let heartbeat = self.resource == "leases" && self.group == "coordination.k8s.io";
        let event = self.resource == "events" && matches!(self.group, "" | "events.k8s.io");
        !matches!(self.subresource, "status" | "finalize")
            && self.operation != Operation::Connect
            && !heartbeat
            && !event
    }

    /// The policy that every cluster begins with is part of no request and no family: the server
    /// writes it by itself, again at every upgrade.
    fn is_bootstrap(&self, object: &Document) -> bool {
        self.user == SERVER && object.label("kubernetes.io/bootstrapping").is_some()
    }

    fn give(&self, stored: Option<InitialTraceId>, object: &mut Document) -> Outcome {
        let trace = self.trace;
        let initial = match self.operation {
            Operation::Create => Some(trace.initial.unwrap_or(trace.trace_id)),
            Operation::Delete if stored.is_some() => None,
            _ => trace.initial,
        };
        if initial.is_none() && stored.is_none() && object.annotation(INITIAL_TRACE_ID).is_some() {
            // Edited by hand into garbage, while the gate was off.
            object.remove(&["metadata", "annotations", INITIAL_TRACE_ID]);
        }
        Outcome { ids: Some(Ids::new(trace, initial)), family: initial.or(stored) }
    }
}
