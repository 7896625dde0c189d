//! kube-rs as ferrokube's components use it: identities, trace ids on every request, leader
//! election.
//!
//! Usable by any kube-rs controller: log tracking needs only [`tracked`]. Must never know storage
//! or the API server. Start at [`connect`].

pub mod action;
mod candidacy;
mod central;
pub mod connect;
pub mod discovery;
pub mod features;
pub mod identity;
pub mod kubeconfig;
pub mod leader;
mod lease_uses;
pub mod outage;
mod pool;
pub mod probe;
pub mod traced;
mod transport;

pub use action::{ReconcileTrace, add_cause, cause, tracked};
pub use candidacy::CandidateVersions;
pub use connect::{Connection, ConnectionError};
pub use discovery::{Discovered, DiscoveredResource};
pub use features::{FeatureReports, report_uses, report_uses_in};
pub use identity::ServiceAccountIdentity;
pub use leader::{Elector, LeadershipLost, LeaseTiming, LeaseTimingError};
pub use lease_uses::LeaseUses;
pub use outage::{Outage, is_unanswered};
pub use traced::traced;
