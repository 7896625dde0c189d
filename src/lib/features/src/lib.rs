//! Feature gates: versioned specs, the command line's settings, and immutable snapshots of the values that are handed down.
//!
//! Must never know who stores Feature objects. Start reading at [`gate`]; the gates that exist are in [`known`].

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
