//! Admission webhooks: reviews of writes by other servers.
//!
//! [`hooks`](self) of all configurations are compiled once per change, in the order of the names of
//! their configurations. A write that matches none of their rules stays in its key's turn.

mod answer;
mod attempt;
mod hook;
mod hooks;
mod matching;
mod mutating;
mod review;
mod stats;
mod validating;

pub use mutating::{MutatingWebhooks, NAME as MUTATING};
pub use stats::WebhookStats;
pub use validating::{NAME as VALIDATING, ValidatingWebhooks};

use crate::step::Permits;
use ferrokube_registry::Catalog;
use ferrokube_storage::Store;
pub use ferrokube_webhook::{CertificateFaults, ServiceResolver, WebhookCredentials};
use std::sync::Arc;

/// Server state that webhooks use.
#[derive(Clone)]
pub struct WebhookEnvironment {
    /// Store of the configurations and namespaces.
    pub store: Store,
    /// Finds equivalent versions.
    pub catalog: Arc<Catalog>,
    /// Answers `authorizer` in match conditions.
    pub permits: Arc<dyn Permits>,
    /// Finds the addresses of webhooks behind services.
    pub services: Arc<dyn ServiceResolver>,
    /// Counters of all webhooks.
    pub stats: Arc<WebhookStats>,
    /// Counts certificates of webhooks that are refused.
    pub certificates: CertificateFaults,
}
