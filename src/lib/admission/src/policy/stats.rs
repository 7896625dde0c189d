//! Metrics of policies, with kube-apiserver's names.

use crate::condition::OUT_OF_BUDGET;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::collections::HashSet;
use std::time::Duration;

/// Max pairs of policy and binding; further ones count as `other`.
const MAX_BINDINGS: usize = 500;
const BUCKETS: [f64; 5] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0];
/// Upper bounds, in seconds, of compilations and evaluations.
const CEL_BUCKETS: [f64; 11] =
    [0.000_01, 0.000_1, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];

/// Outcome of a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enforcement {
    /// An error was ignored.
    Allow,
    Deny,
    Warn,
    Audit,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct ValidationLabels {
    policy: String,
    policy_binding: String,
    error_type: &'static str,
    enforcement_action: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct MutationLabels {
    policy: String,
    policy_binding: String,
    error_type: &'static str,
}

/// Counters and durations of all policies.
#[derive(Debug)]
pub struct PolicyStats {
    validations: Family<ValidationLabels, Counter>,
    validation_times: Family<ValidationLabels, Histogram>,
    mutations: Family<MutationLabels, Counter>,
    mutation_times: Family<MutationLabels, Histogram>,
    compilations: Histogram,
    evaluations: Histogram,
    names: Mutex<HashSet<(String, String)>>,
}

impl Default for PolicyStats {
    fn default() -> Self {
        Self {
            validations: Family::default(),
            validation_times: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            mutations: Family::default(),
            mutation_times: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            compilations: Histogram::new(CEL_BUCKETS),
            evaluations: Histogram::new(CEL_BUCKETS),
            names: Mutex::default(),
        }
    }
}

/// The label of an error, by its message, as in kube-apiserver.
fn error_type(message: &str) -> &'static str {
    match message {
        "" => "no_error",
        compilation if compilation.starts_with("compilation") => "compile_error",
        budget if budget.starts_with(OUT_OF_BUDGET) => "out_of_budget",
        _ => "invalid_error",
    }
}

impl PolicyStats {
    /// Exports the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let (validations, mutations) = (self.validations.clone(), self.mutations.clone());
        registry.register(
            "apiserver_validating_admission_policy_check",
            "Validations that failed, and those whose errors were ignored",
            validations,
        );
        registry.register("apiserver_mutating_admission_policy_check", "Mutations", mutations);
        let mut time = |name: &str, help: &str, times: Histogram| {
            registry.register_with_unit(name, help, Unit::Seconds, times);
        };
        let (compilations, evaluations) = (self.compilations.clone(), self.evaluations.clone());
        time("apiserver_cel_compilation_duration", "CEL compilation time", compilations);
        time("apiserver_cel_evaluation_duration", "CEL evaluation time", evaluations);
        registry.register_with_unit(
            "apiserver_validating_admission_policy_check_duration",
            "Time of validations that failed, and of those whose errors were ignored",
            Unit::Seconds,
            self.validation_times.clone(),
        );
        registry.register_with_unit(
            "apiserver_mutating_admission_policy_check_duration",
            "Time of mutations",
            Unit::Seconds,
            self.mutation_times.clone(),
        );
    }

    fn names(&self, policy: &str, binding: &str) -> (String, String) {
        let pair = (policy.to_owned(), binding.to_owned());
        let mut names = self.names.lock();
        if !names.contains(&pair) {
            if names.len() >= MAX_BINDINGS {
                return ("other".to_owned(), "other".to_owned());
            }
            names.insert(pair.clone());
        }
        pair
    }

    /// The expressions of a policy were compiled.
    pub(super) fn compiled(&self, elapsed: Duration) {
        self.compilations.observe(elapsed.as_secs_f64());
    }

    /// The expressions of a policy were evaluated.
    pub(super) fn evaluated(&self, elapsed: Duration) {
        self.evaluations.observe(elapsed.as_secs_f64());
    }

    /// A validation had a consequence. `message` is empty without an error.
    pub(super) fn validated(
        &self,
        policy: &str,
        binding: &str,
        message: &str,
        enforcement: Enforcement,
        elapsed: Duration,
    ) {
        let (policy, policy_binding) = self.names(policy, binding);
        let enforcement_action = match enforcement {
            Enforcement::Allow => "allow",
            Enforcement::Deny => "deny",
            Enforcement::Warn => "warn",
            Enforcement::Audit => "audit",
        };
        let error_type = error_type(message);
        let labels = ValidationLabels { policy, policy_binding, error_type, enforcement_action };
        self.validations.get_or_create(&labels).inc();
        self.validation_times.get_or_create(&labels).observe(elapsed.as_secs_f64());
    }

    /// A mutation ended. `message` is empty without an error.
    pub(super) fn mutated(&self, policy: &str, binding: &str, message: &str, elapsed: Duration) {
        let (policy, policy_binding) = self.names(policy, binding);
        let labels = MutationLabels { policy, policy_binding, error_type: error_type(message) };
        self.mutations.get_or_create(&labels).inc();
        self.mutation_times.get_or_create(&labels).observe(elapsed.as_secs_f64());
    }
}
