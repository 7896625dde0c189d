//! What expressions may cost, in upstream's units: about one for a step, a tenth for a byte that is
//! looked at.

use crate::machine::Failure;

/// One rule, evaluated once, as far as the schema bounds it.
pub(crate) const MAX_RULE: u64 = 10_000_000;
/// All rules of a schema, each as often as its place can occur.
pub(crate) const MAX_SCHEMA: u64 = 100_000_000;
/// One evaluation.
pub(crate) const MAX_CALL: u64 = 1_000_000;
/// All evaluations for one object.
pub(crate) const MAX_OBJECT: u64 = 10_000_000;

/// What it costs to look at so many bytes or items once.
pub(crate) fn traversal(size: u64) -> u64 {
    size.div_ceil(10)
}

/// What evaluation may still cost: of the object, and of the expression that runs.
#[derive(Debug)]
pub struct Meter {
    object: u64,
    call: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self { object: MAX_OBJECT, call: MAX_CALL }
    }
}

impl Meter {
    /// Another expression begins.
    pub(crate) fn begin(&mut self) {
        self.call = MAX_CALL.min(self.object);
    }

    /// Whether nothing more may be evaluated for the object.
    pub fn is_spent(&self) -> bool {
        self.object == 0
    }

    /// Nothing more is evaluated for the object.
    pub(crate) fn exhaust(&mut self) {
        self.object = 0;
    }

    /// Takes so much.
    pub(crate) fn spend(&mut self, cost: u64) -> Result<(), Failure> {
        self.object = self.object.saturating_sub(cost);
        match self.call.checked_sub(cost) {
            Some(left) => {
                self.call = left;
                Ok(())
            }
            None => {
                self.call = 0;
                Err(Failure::Budget)
            }
        }
    }
}
