//! Metrics of webhooks, with kube-apiserver's names.

use super::attempt::ReviewFault;
use super::hook::Hook;
use crate::candidate::operation_name;
use ferrokube_registry::Operation;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::collections::HashSet;
use std::time::Instant;

/// Max names of webhooks; further ones count as `other`.
const MAX_NAMES: usize = 500;
const BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];

/// Which kind of webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WebhookKind {
    Admit,
    Validating,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct ReviewLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct ReviewCodeLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    code: u16,
    rejected: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct RejectionLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    error_type: &'static str,
    rejection_code: u16,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct FailOpenLabels {
    name: String,
    r#type: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct ExclusionLabels {
    name: String,
    kind: &'static str,
    r#type: &'static str,
    operation: &'static str,
}

/// Counters and durations of all webhooks.
#[derive(Debug)]
pub struct WebhookStats {
    durations: Family<ReviewLabels, Histogram>,
    requests: Family<ReviewCodeLabels, Counter>,
    /// kube-apiserver's names of these do not end as those of counters do.
    rejections: Family<RejectionLabels, Gauge>,
    failed_open: Family<FailOpenLabels, Gauge>,
    exclusions: Family<ExclusionLabels, Counter>,
    names: Mutex<HashSet<String>>,
}

impl Default for WebhookStats {
    fn default() -> Self {
        Self {
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            requests: Family::default(),
            rejections: Family::default(),
            failed_open: Family::default(),
            exclusions: Family::default(),
            names: Mutex::default(),
        }
    }
}

impl WebhookStats {
    /// Exports the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "apiserver_admission_webhook_admission_duration",
            "Time of a review by a webhook",
            Unit::Seconds,
            self.durations.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_request",
            "Reviews by webhooks",
            self.requests.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_rejection_count",
            "Writes that webhooks rejected, or that their failure rejected",
            self.rejections.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_fail_open_count",
            "Reviews that failed and were ignored",
            self.failed_open.clone(),
        );
        registry.register(
            "apiserver_admission_match_condition_exclusions",
            "Reviews left out because of a match condition",
            self.exclusions.clone(),
        );
    }

    fn name(&self, name: &str) -> String {
        let mut names = self.names.lock();
        if !names.contains(name) {
            if names.len() >= MAX_NAMES {
                return "other".to_owned();
            }
            names.insert(name.to_owned());
        }
        name.to_owned()
    }

    /// A match condition left a review out.
    pub(super) fn excluded(&self, kind: WebhookKind, name: &str, operation: Operation) {
        let labels = ExclusionLabels {
            name: self.name(name),
            kind: "webhook",
            r#type: match kind {
                WebhookKind::Admit => "admit",
                WebhookKind::Validating => "validate",
            },
            operation: operation_name(operation),
        };
        self.exclusions.get_or_create(&labels).inc();
    }

    /// A review ended.
    pub(super) fn observe<T>(
        &self,
        kind: WebhookKind,
        hook: &Hook,
        operation: Operation,
        began: Instant,
        answer: &Result<T, ReviewFault>,
    ) {
        let name = self.name(&hook.name);
        let r#type = match kind {
            WebhookKind::Admit => "admit",
            WebhookKind::Validating => "validating",
        };
        let operation = operation_name(operation);
        let (code, refusal) = match answer {
            Ok(_) => (200, None),
            Err(refusal @ ReviewFault::Call(_)) => (500, Some(refusal)),
            Err(refusal @ (ReviewFault::Denied(failure) | ReviewFault::Failed(failure))) => {
                (failure.code, Some(refusal))
            }
        };
        let ignored = matches!(refusal, Some(ReviewFault::Call(_))) && !hook.fails_closed;
        let rejected = if refusal.is_some() && !ignored { "true" } else { "false" };
        let labels = ReviewLabels { name: name.clone(), r#type, operation, rejected };
        self.durations.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
        let labels = ReviewCodeLabels { name: name.clone(), r#type, operation, code, rejected };
        self.requests.get_or_create(&labels).inc();
        match refusal {
            Some(_) if ignored => {
                self.failed_open.get_or_create(&FailOpenLabels { name, r#type }).inc();
            }
            Some(refusal) => {
                let error_type = refusal.kind();
                let labels =
                    RejectionLabels { name, r#type, operation, error_type, rejection_code: code };
                self.rejections.get_or_create(&labels).inc();
            }
            None => {}
        }
    }
}
