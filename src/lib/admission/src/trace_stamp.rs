//! Trace ids in object annotations (KEP-1668), set after all other changes of the object.
//!
//! Three cases: a request with an initial id sets all three annotations; a create without one
//! copies its trace id as the initial id; any other write keeps the stored initial id. Values that
//! clients or webhooks set are replaced by the stored ones. A write that changes nothing, or only
//! managedFields, keeps the stored ids: a preview of an apply does not show them as changes.
//!
//! The ids of a delete are set in the last state, for watchers (garbage collection, namespace
//! deletion). The initial id is kept there: it spans the object's life, its end included.

use ferrokube_apimachinery::document::Document;
use ferrokube_features::{Gates, LOG_TRACKING};
use ferrokube_registry::{Attributes, Operation, is_same_content, keep_ids};
use ferrokube_trace::annotation::{INITIAL_TRACE_ID, Ids};
use ferrokube_trace::{InitialTraceId, TraceContext};

/// Ids of a write; none while the gate is off. Records the initial id for the audit event.
pub fn stamp(gates: &Gates, attributes: &Attributes<'_>, object: &mut Document) -> Option<Ids> {
    if !gates.enabled(&LOG_TRACKING) {
        return None;
    }
    let target = attributes.target;
    let definition = &target.served.definition;
    let subject = StampedWrite {
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
    let StampResult { ids, family } = subject.stamp(object);
    if let Some(family) = family {
        attributes.context.set_initial_trace_id(family);
    }
    ids
}

/// A write of this server, or of another server that calls the webhook.
#[derive(Clone, Copy, Debug)]
pub struct StampedWrite<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// Plural name.
    pub resource: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// [`Operation::Connect`] if nothing is stored.
    pub operation: Operation,
    /// User name.
    pub user: &'a str,
    /// Ids of the request.
    pub trace: &'a TraceContext,
    /// Stored object of an update.
    pub old: Option<&'a Document>,
}

/// Ids of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampResult {
    /// Ids to set; not in the object yet.
    pub ids: Option<Ids>,
    /// Initial trace id of the object.
    pub family: Option<InitialTraceId>,
}

/// The server itself: without an initial id, objects that it creates at startup belong to no
/// request.
const SERVER: &str = "system:apiserver";

impl StampedWrite<'_> {
    /// Computes the ids. The object's three keys are reset to the stored values.
    pub fn stamp(&self, object: &mut Document) -> StampResult {
        if self.operation != Operation::Delete {
            keep_ids(self.old, object);
        }
        let stored: Option<InitialTraceId> =
            object.annotation(INITIAL_TRACE_ID).and_then(|text| text.parse().ok());
        let stamped = self.is_stamped()
            && !self.is_bootstrap(object)
            && !self.old.is_some_and(|old| is_same_content(old, object));
        if stamped { self.give(stored, object) } else { StampResult { ids: None, family: stored } }
    }

    /// Whether the write gets ids: not status updates, Leases, Events and unstored objects.
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

    /// The server writes the bootstrap policy by itself, again at every upgrade: it belongs to no
    /// request.
    fn is_bootstrap(&self, object: &Document) -> bool {
        self.user == SERVER && object.label("kubernetes.io/bootstrapping").is_some()
    }

    fn give(&self, stored: Option<InitialTraceId>, object: &mut Document) -> StampResult {
        let trace = self.trace;
        let initial = match self.operation {
            Operation::Create => Some(trace.initial.unwrap_or(trace.trace_id)),
            Operation::Delete if stored.is_some() => None,
            _ => trace.initial,
        };
        if initial.is_none() && stored.is_none() && object.annotation(INITIAL_TRACE_ID).is_some() {
            // Edited into an invalid id while the gate was off.
            object.remove(&["metadata", "annotations", INITIAL_TRACE_ID]);
        }
        StampResult { ids: Some(Ids::new(trace, initial)), family: initial.or(stored) }
    }
}
