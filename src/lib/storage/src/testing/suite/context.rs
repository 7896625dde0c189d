//! The store and the clock of a case.

use crate::Store;
use crate::testing::ManualClock;
use std::sync::Arc;

/// A case's store and clock.
pub(super) struct CaseContext {
    pub(super) store: Store,
    pub(super) clock: Arc<ManualClock>,
}
