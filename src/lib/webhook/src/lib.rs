//! Calls webhooks: external HTTPS servers, which may be slow, broken or hostile. Time, bytes and
//! concurrent calls are bounded, redirects are never followed, and a request that waits for an
//! answer holds no seat.
//!
//! Must never know what a webhook decides or converts. Start reading at [`Webhook`].

mod call;
mod certificates;
mod config;
mod credentials;
mod fault;
mod service;
mod trust;

pub use call::{AdmittedCall, CallError, CallLimits, Webhook, WebhookCall, unless_revoked};
pub use certificates::CertificateFaults;
pub use config::{WebhookAccess, WebhookAddress};
pub use credentials::{CredentialsError, WebhookCredentials};
pub use fault::CallFault;
pub use service::{NoServices, Resolution, ServiceError, ServiceResolver};
pub use trust::bundle_verifier;
