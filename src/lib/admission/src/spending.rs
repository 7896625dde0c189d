//! Evaluations whose cost is not known beforehand: they begin on the worker, and are done again off
//! it if they turn out to be long.

use ferrokube_cel::Meter;
use ferrokube_registry::offload::{has_slot, leave_worker};

/// Cost of a request's evaluations that stay on the worker, together: some 0.2 ms.
const SHORT: u64 = 10_000;
/// At least, for each evaluation.
const EACH: u64 = 100;

/// The remaining cost that a request's evaluations may spend on its worker.
#[derive(Debug)]
pub(crate) struct WorkerBudget(u64);

impl Default for WorkerBudget {
    fn default() -> Self {
        Self(SHORT)
    }
}

impl WorkerBudget {
    /// Evaluates expressions; a second time, off the worker, if they cost more than the rest.
    pub(crate) async fn spend<T>(&mut self, evaluate: impl Fn(&mut Spending) -> T) -> T {
        if !has_slot() && self.0 > 0 {
            let mut short = Spending { left: Some(self.0) };
            let found = evaluate(&mut short);
            self.0 = short.left.unwrap_or(0);
            if self.0 > 0 {
                return found;
            }
        }
        leave_worker().await;
        evaluate(&mut Spending { left: None })
    }
}

/// Limits the cost of an evaluation.
#[derive(Debug)]
pub(crate) struct Spending {
    /// `None`: only by its own budget.
    left: Option<u64>,
}

impl Spending {
    /// Evaluates expressions that have a budget of their own.
    pub(crate) fn metered<T>(&mut self, own: Meter, evaluate: impl FnOnce(&mut Meter) -> T) -> T {
        let mut meter = self.left.map_or(own, Meter::with_budget);
        let found = evaluate(&mut meter);
        self.left = self.left.map(|_| meter.left().saturating_sub(EACH));
        found
    }
}
