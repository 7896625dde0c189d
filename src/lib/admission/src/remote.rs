//! Steps that run outside the key's turn: webhooks, and the policies ordered among them.

use crate::objects::Room;
use ferrokube_apimachinery::document::Document;
use ferrokube_registry::Attributes;
use ferrokube_registry::admission::RemoteFuture;
use std::collections::{BTreeMap, BTreeSet};

/// A step outside of the key's turn. It may wait; the write starts again if the object changes
/// meanwhile.
pub trait RemoteStep: Send + Sync {
    /// One of [`crate::PLUGINS`], or a name of its own.
    fn name(&self) -> &'static str;

    /// Whether the step may apply to this write, whose objects are not known yet. If none does, the
    /// write runs in its key's turn. Called for every write, so it must be cheap.
    fn matches(&self, attributes: &Attributes<'_>) -> bool;

    /// Changes the object or rejects the write. A change calls [`Mutation::ran`]. Also called
    /// for deletes, without an object. Only called for writes that match, as is `validate`.
    fn mutate<'a>(
        &'a self,
        _attributes: Attributes<'a>,
        _mutation: &'a mut Mutation,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Rejects the write. `object` is `None` for a delete.
    fn validate<'a>(
        &'a self,
        _attributes: Attributes<'a>,
        _object: Option<&'a Document>,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// An object passing through the mutating steps. If any step changes it, all run a second round, in
/// which a step repeats the webhooks or policies that require reinvocation.
#[derive(Debug, Default)]
pub struct Mutation {
    /// `None` for a delete.
    pub object: Option<Document>,
    /// Whether this is the second round.
    pub is_second: bool,
    /// Whether there is a second round.
    pub(crate) is_needed: bool,
    memories: BTreeMap<&'static str, StepMemory>,
    /// Memory of the object, if it was converted.
    pub(crate) room: Room,
}

/// A step's memory of the first round, by ids of its webhooks or policies.
#[derive(Debug, Default)]
struct StepMemory {
    /// Ran, and are to run again after a change.
    repeatable: BTreeSet<String>,
    /// Run in the second round.
    due: BTreeSet<String>,
    /// Last output of the step.
    output: Option<Document>,
}

impl Mutation {
    pub(crate) fn new(object: Option<Document>) -> Self {
        Self { object, ..Self::default() }
    }

    /// Begins a round of a step: if others have changed the object since its last one, all that is
    /// repeatable becomes due.
    pub fn begin(&mut self, step: &'static str) {
        let memory = self.memories.entry(step).or_default();
        if self.is_second && memory.output != self.object {
            memory.require();
        }
    }

    /// Whether a webhook or policy runs in this round. In the second round, nothing runs for the
    /// first time.
    pub fn is_due(&self, step: &'static str, id: &str) -> bool {
        !self.is_second || self.memories.get(step).is_some_and(|memory| memory.due.contains(id))
    }

    /// After a webhook or policy of the step has run.
    pub fn ran(&mut self, step: &'static str, id: &str, changed: bool, repeatable: bool) {
        let memory = self.memories.entry(step).or_default();
        if changed {
            memory.require();
            self.is_needed = true;
        }
        if repeatable {
            memory.repeatable.insert(id.to_owned());
        }
    }

    /// Marks everything repeatable as due, including the webhook or policy that changed the object.
    pub fn repeat_all(&mut self, step: &'static str) {
        self.memories.entry(step).or_default().require();
        self.is_needed = true;
    }

    /// Ends a round of a step.
    pub fn end(&mut self, step: &'static str) {
        let memory = self.memories.entry(step).or_default();
        // Only compared if something is repeatable.
        memory.output = if memory.repeatable.is_empty() { None } else { self.object.clone() };
    }
}

impl StepMemory {
    fn require(&mut self) {
        self.due.append(&mut self.repeatable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    const STEP: &str = "MutatingAdmissionWebhook";

    #[test]
    fn a_later_change_repeats_what_asked_for_it() {
        let mut mutation = Mutation::new(Some(Document::new()));
        mutation.begin(STEP);
        mutation.ran(STEP, "a", true, true);
        assert!(mutation.is_needed);
        mutation.ran(STEP, "b", true, false);
        mutation.ran(STEP, "c", false, true);
        mutation.end(STEP);
        mutation.is_second = true;
        mutation.begin(STEP);
        let due = |id: &str| mutation.is_due(STEP, id);
        assert_eq!((due("a"), due("b"), due("c")), (true, false, false));
    }

    #[test]
    fn a_change_by_another_step_repeats_too() {
        let mut mutation = Mutation::new(Some(Document::new()));
        mutation.begin(STEP);
        mutation.ran(STEP, "a", false, true);
        mutation.end(STEP);
        mutation.is_second = true;
        mutation.begin(STEP);
        assert!(!mutation.is_due(STEP, "a"), "nothing has changed");
        mutation.object = Document::from_value(json!({"data": {}})).ok();
        mutation.begin(STEP);
        assert!(mutation.is_due(STEP, "a"));
    }
}
