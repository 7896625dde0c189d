//! Decisions: whether a user's grants allow a request.
//!
//! Roles and bindings of a namespace are written by its administrators, and every request there,
//! also one that is refused, compares them on a worker. So a decision reads a bounded part of
//! them. Those of the cluster are its administrators'.

use super::index::{CompiledRole, Grant, RbacView};
use ferrokube_apimachinery::user::UserInfo;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Max texts of rules of the roles bound in a namespace that a decision compares: 0.5 ms. Long ones
/// count as several.
const MAX_TEXTS: usize = 100_000;
/// A binding counts as this many.
const BINDING_TEXTS: usize = 16;
/// Roles with more are compared once, however often they are bound.
const FEW_TEXTS: usize = 64;

/// More is bound to the user in the namespace than a decision compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyRoles;

/// Texts that a decision may still compare, and the large roles that it need not compare again.
struct DecisionBudget {
    texts: usize,
    /// Large roles that were compared.
    compared: HashSet<*const CompiledRole>,
}

impl DecisionBudget {
    /// Whether the role of a binding remains to be compared.
    fn admit(&mut self, role: Option<&Arc<CompiledRole>>) -> Result<bool, TooManyRoles> {
        let is_new = role
            .is_some_and(|role| role.texts <= FEW_TEXTS || self.compared.insert(Arc::as_ptr(role)));
        // The largest role that can be stored has more, and may be bound.
        let texts = role.filter(|_| is_new).map_or(0, |role| role.texts.min(MAX_TEXTS / 2));
        self.texts = self.texts.checked_sub(BINDING_TEXTS + texts).ok_or(TooManyRoles)?;
        Ok(is_new)
    }
}

impl RbacView {
    /// The first of a user's grants whose role allows something, cluster-wide or in the namespace.
    pub(super) fn find<'a>(
        &'a self,
        user: &'a UserInfo,
        allows: impl Fn(&CompiledRole) -> bool,
    ) -> Result<Option<Grant<'a>>, TooManyRoles> {
        let in_cluster = self.visit_in(&self.cluster, user, |grant, role| {
            break_if(role.is_some_and(|role| allows(role)), grant)
        });
        if let ControlFlow::Break(grant) = in_cluster {
            return Ok(Some(grant));
        }
        let Some(own) = &self.own else { return Ok(None) };
        let mut budget = DecisionBudget { texts: MAX_TEXTS, compared: HashSet::new() };
        let found = self.visit_in(own, user, |grant, role| match budget.admit(role) {
            Ok(is_new) => break_if(is_new && role.is_some_and(|role| allows(role)), Ok(grant)),
            Err(error) => ControlFlow::Break(Err(error)),
        });
        found.break_value().transpose()
    }
}

fn break_if<T>(stop: bool, with: T) -> ControlFlow<T> {
    if stop { ControlFlow::Break(with) } else { ControlFlow::Continue(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rbac::PolicyRule;

    #[test]
    fn fault_34_a_few_long_texts_are_compared_once_too() {
        let role = |length: usize| {
            let names = vec!["x".repeat(length); 20];
            Arc::new(CompiledRole::new(vec![PolicyRule { names, ..PolicyRule::default() }]))
        };
        let (short, long) = (role(10), role(60_000));
        let mut budget = DecisionBudget { texts: MAX_TEXTS, compared: HashSet::new() };
        let compared = [&short, &short, &long, &long].map(|role| budget.admit(Some(role)));
        assert_eq!(compared, [Ok(true), Ok(true), Ok(true), Ok(false)]);
    }
}
