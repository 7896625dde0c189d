//! Cost limits, in kube-apiserver's units: about one per step, a tenth per byte scanned.

use crate::failure::Failure;

/// One evaluation of a rule, as estimated from the schema.
pub(crate) const MAX_RULE: u64 = 10_000_000;
/// All rules of a schema, each multiplied by the number of values that it applies to.
pub(crate) const MAX_SCHEMA: u64 = 100_000_000;
/// One evaluation, metered.
pub(crate) const MAX_CALL: u64 = 1_000_000;
/// All evaluations for one object, metered.
pub(crate) const MAX_OBJECT: u64 = 10_000_000;

/// The cost of one pass over `size` bytes or items.
pub(crate) fn traversal(size: u64) -> u64 {
    size.div_ceil(10)
}

/// The remaining budgets of the object and of the current expression.
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
    /// Resets the expression's budget.
    pub(crate) fn begin(&mut self) {
        self.call = MAX_CALL.min(self.object);
    }

    /// A meter with another budget for all evaluations.
    pub fn with_budget(object: u64) -> Self {
        Self { object, call: MAX_CALL }
    }

    /// Evaluates another expression in between: it has a budget of its own.
    pub(crate) fn nested<T>(&mut self, evaluate: impl FnOnce(&mut Self) -> T) -> T {
        let call = self.call;
        let answer = evaluate(self);
        self.call = call.min(self.object);
        answer
    }

    /// Rest of the object's budget.
    pub fn left(&self) -> u64 {
        self.object
    }

    /// Whether the object's budget is used up.
    pub fn is_spent(&self) -> bool {
        self.object == 0
    }

    /// Uses up the object's budget.
    pub(crate) fn exhaust(&mut self) {
        self.object = 0;
    }

    /// Charges both budgets.
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
