//! Feature gates: versioned specs, command line settings, and immutable snapshots of the values,
//! passed down explicitly.
//!
//! Must never know how Feature objects are stored. Start at [`gate`]; [`known`] lists the gates,
//! [`transition`] turns features on and off.

mod coverage;
pub mod descriptor;
mod feature_api;
pub mod gate;
pub mod gates;
mod image_pulls;
pub mod known;
mod leader_election;
mod log_tracking;
mod max_unavailable;
pub mod metrics;
mod openapi_v3;
pub mod page;
mod settings;
pub mod transition;
pub mod version;
mod webhook_conversion;

pub use coverage::CoverageFigures;
pub use descriptor::{Descriptor, FeatureSetting, FeatureTask, PrrAnswer};
pub use feature_api::FEATURE_API;
pub use gate::{Gate, GateSpec, Stage};
pub use gates::{GateState, Gates};
pub use image_pulls::MAX_PARALLEL_IMAGE_PULLS;
pub use leader_election::COORDINATED_LEADER_ELECTION;
pub use log_tracking::{LOG_TRACKING, LOG_TRACKING_INTEROP};
pub use max_unavailable::MAX_UNAVAILABLE_STATEFUL_SET;
pub use openapi_v3::OPENAPI_V3;
pub use settings::{GateSettingError, GateSettings, GateWarning};
pub use version::{EmulatedVersion, EmulatedVersionError, GateVersions, KubernetesVersion};
pub use webhook_conversion::WEBHOOK_CONVERSION;

/// Annotation of the Lease of a component: the values of the gates that it has asked, as
/// `A=true,B=false`.
pub const LEASE_USES: &str = "features.k8s.io/uses";
