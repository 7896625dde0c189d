//! How many watches each user has: no user takes what all share.
//!
//! A watch holds little, but ten thousand times little is much. The bound is far above what any controller needs; components of the cluster have more,
//! and `system:masters` are not counted.

use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_registry::UserInfo;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Watches of one user at a time.
const USER_WATCHES: usize = 10_000;
/// Watches of a component of the cluster at a time: nodes, the scheduler, controllers.
const COMPONENT_WATCHES: usize = 50_000;

/// The watches of all users. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watchers(Arc<Mutex<HashMap<Arc<str>, usize>>>);

/// A counted watch; dropping it makes room.
#[derive(Debug)]
pub(super) struct Counted {
    of: Watchers,
    /// `None`: not counted.
    user: Option<Arc<str>>,
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a watch of a user.
    ///
    /// # Errors
    /// 429 when the user has as many as may be.
    pub(super) fn begin(&self, user: &UserInfo) -> Result<Counted, Failure> {
        let Some(most) = bound(user) else { return Ok(Counted { of: self.clone(), user: None }) };
        let mut watches = self.lock();
        let name = watches.get_key_value(user.name.as_str()).map_or_else(|| user.name.as_str().into(), |(name, _)| Arc::clone(name));
        let count = watches.entry(Arc::clone(&name)).or_default();
        if *count >= most {
            let details = Details { retry_after_seconds: 1, ..Details::default() };
            return Err(Failure::new(Reason::TooManyRequests, "too many watches, please try again later").with_details(details));
        }
        *count += 1;
        Ok(Counted { of: self.clone(), user: Some(name) })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Some(user) = &self.user else { return };
        let mut watches = self.of.lock();
        if let Some(count) = watches.get_mut(user) {
            *count -= 1;
            if *count == 0 {
                watches.remove(user);
            }
        }
    }
}

/// How many watches a user may have; `None`: any number.
fn bound(user: &UserInfo) -> Option<usize> {
    let is_in = |group: &str| user.groups.iter().any(|member| member == group);
    if is_in("system:masters") {
        return None;
    }
    let is_component = is_in("system:nodes") || is_in("system:serviceaccounts:kube-system") || user.name.starts_with("system:kube-");
    Some(if is_component { COMPONENT_WATCHES } else { USER_WATCHES })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, group: &str) -> UserInfo {
        UserInfo { name: name.into(), groups: vec![group.into()], ..UserInfo::default() }
    }

    #[test]
    fn each_user_has_a_bound_and_masters_have_none() {
        let watchers = Watchers::default();
        let (jane, joe, node, admin) =
            (user("jane", "system:authenticated"), user("joe", ""), user("system:node:a", "system:nodes"), user("admin", "system:masters"));
        let mut held: Vec<Counted> = (0..USER_WATCHES).map(|_| watchers.begin(&jane).unwrap()).collect();
        assert_eq!(watchers.begin(&jane).unwrap_err().code, 429);
        held.extend([&joe, &node, &admin].map(|user| watchers.begin(user).unwrap()));
        held.remove(0);
        held.push(watchers.begin(&jane).unwrap());
        held.extend((0..=USER_WATCHES).map(|_| watchers.begin(&node).unwrap()));
        assert_eq!((bound(&node), bound(&admin)), (Some(COMPONENT_WATCHES), None));
        drop(held);
        assert!(watchers.lock().is_empty());
    }
}
