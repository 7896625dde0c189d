//! The policies and bindings of the store, compiled once per revision.

use super::PolicyInputs;
use super::compiled::{CompiledBinding, CompiledPolicy};
use crate::candidate::CandidateWrite;
use ferrokube_apimachinery::work;
use ferrokube_registry::{Attributes, view};
use ferrokube_storage::{Entry, Prefix, Presence, Revision, Snapshot};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// A policy that has a binding.
pub(super) struct BoundPolicy {
    pub(super) policy: Arc<CompiledPolicy>,
    pub(super) bindings: Vec<Arc<CompiledBinding>>,
}

/// Policies with their bindings at one point in time.
pub(super) struct PolicySet {
    policies: Snapshot,
    bindings: Snapshot,
    /// Those that have a binding, in the order of their names.
    bound: Vec<BoundPolicy>,
    /// Unchanged ones are not compiled again.
    compiled: CompiledByName<CompiledPolicy>,
    compiled_bindings: CompiledByName<CompiledBinding>,
}

/// Compiled objects with their revisions.
type CompiledByName<T> = HashMap<String, (Revision, Arc<T>)>;

/// The compiled form of an object, unless it has changed since.
fn known<T>(before: Option<&CompiledByName<T>>, entry: &Entry) -> Option<Arc<T>> {
    let (revision, compiled) = before?.get(entry.key.name())?;
    (*revision == entry.revision).then(|| Arc::clone(compiled))
}

impl PolicySet {
    pub(super) fn bound(&self) -> &[BoundPolicy] {
        &self.bound
    }
}

/// Policies of one kind in the store.
pub(super) struct PolicySource {
    inputs: PolicyInputs,
    policies: (Prefix, &'static str),
    bindings: (Prefix, &'static str),
    /// Whether there are bindings.
    presence: Presence,
    current: Mutex<Option<Arc<PolicySet>>>,
}

impl PolicySource {
    pub(super) fn validating(inputs: PolicyInputs) -> Self {
        Self::new(inputs, "validatingadmissionpolicies", "validatingadmissionpolicybindings")
    }

    pub(super) fn mutating(inputs: PolicyInputs) -> Self {
        Self::new(inputs, "mutatingadmissionpolicies", "mutatingadmissionpolicybindings")
    }

    fn new(inputs: PolicyInputs, policies: &'static str, bindings: &'static str) -> Self {
        let prefix = |plural: &'static str| {
            (Prefix::new(plural).expect("a constant without a slash"), plural)
        };
        let (policies, bindings) = (prefix(policies), prefix(bindings));
        let presence = inputs.store.presence(&bindings.0);
        Self { inputs, policies, bindings, presence, current: Mutex::new(None) }
    }

    /// Whether a policy may apply to a write, judging by resource and operation alone.
    pub(super) fn may_match(&self, attributes: &Attributes<'_>) -> bool {
        // Most servers have no policies: no write pays for their snapshots then.
        if !self.presence.has_any(None) {
            return false;
        }
        let PolicyInputs { catalog, store, .. } = &self.inputs;
        let write = CandidateWrite::new(*attributes, catalog, store);
        self.current().bound.iter().any(|bound| bound.policy.may_match(&write))
    }

    /// The state of the store.
    pub(super) fn current(&self) -> Arc<PolicySet> {
        let store = &self.inputs.store;
        let policies = store.snapshot(&self.policies.0);
        let bindings = store.snapshot(&self.bindings.0);
        let mut current = self.current.lock();
        if let Some(set) = &*current
            && set.policies.is_same(&policies)
            && set.bindings.is_same(&bindings)
        {
            return Arc::clone(set);
        }
        // Other writes wait for it, on workers.
        let compile = || self.compile(policies, bindings, current.as_deref());
        let set = Arc::new(work::uninterrupted(compile));
        *current = Some(Arc::clone(&set));
        set
    }

    fn compile(
        &self,
        policies: Snapshot,
        bindings: Snapshot,
        before: Option<&PolicySet>,
    ) -> PolicySet {
        let served =
            |plural: &str| self.inputs.catalog.find("admissionregistration.k8s.io", "v1", plural);
        let mut set = PolicySet {
            policies,
            bindings,
            bound: Vec::new(),
            compiled: HashMap::new(),
            compiled_bindings: HashMap::new(),
        };
        let mut by_policy: HashMap<String, Vec<Arc<CompiledBinding>>> = HashMap::new();
        if let Some(served) = served(self.bindings.1) {
            let before = before.map(|before| &before.compiled_bindings);
            for entry in set.bindings.range(None, None) {
                let binding = known(before, entry)
                    .unwrap_or_else(|| Arc::new(CompiledBinding::compile(&view(entry, &served))));
                let compiled = (entry.revision, Arc::clone(&binding));
                set.compiled_bindings.insert(entry.key.name().to_owned(), compiled);
                by_policy.entry(binding.policy.clone()).or_default().push(binding);
            }
        }
        let Some(served) = served(self.policies.1) else { return set };
        let before = before.map(|before| &before.compiled);
        for entry in set.policies.range(None, None) {
            let name = entry.key.name();
            let Some(bindings) = by_policy.remove(name) else { continue };
            let policy = known(before, entry)
                .unwrap_or_else(|| Arc::new(CompiledPolicy::of(&view(entry, &served))));
            set.compiled.insert(name.to_owned(), (entry.revision, Arc::clone(&policy)));
            set.bound.push(BoundPolicy { policy, bindings });
        }
        set
    }
}
