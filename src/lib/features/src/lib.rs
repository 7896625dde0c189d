//! Feature gates: versioned specs, and immutable snapshots of their values that are handed down.
//!
//! Must never know who stores Feature objects.

/// The gates' values in one component.
#[derive(Clone, Debug, Default)]
pub struct Gates {}
