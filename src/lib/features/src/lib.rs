//! Feature gates: versioned specs, command line settings, and immutable snapshots of the values,
//! passed down explicitly.
//!
//! Must never know how Feature objects are stored. Start at [`gate`]; [`known`] lists the gates.

pub mod descriptor;
pub mod gate;
pub mod known;
mod log_tracking;
pub mod page;
mod settings;

pub use descriptor::{Descriptor, PrrAnswer};
pub use gate::{Gate, GateSpec, Gates, KubernetesVersion, Stage};
pub use log_tracking::{LOG_TRACKING, LOG_TRACKING_INTEROP};
pub use settings::{GateSettingError, GateSettings, GateWarning};
