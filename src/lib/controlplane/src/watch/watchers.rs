//! How many watches each user has: no user takes what all share.
//!
//! A watch holds little, but ten thousand times little is much. The bound is far above what any
//! controller needs; components of the cluster have more, and `system:masters` are not counted.

use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_flow::caller;
use ferrokube_registry::UserInfo;
use http::Uri;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Watches of one user at a time.
const USER_WATCHES: usize = 10_000;
/// What a watch keeps of its request counts as one more watch for so many bytes.
const WATCH_BYTES: usize = 4 * 1024;
/// A compiled selector takes so many times its text.
const SELECTOR_FACTOR: usize = 3;
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
    weight: usize,
}

/// What a watch keeps of its request as long as it runs.
pub(super) struct Keeps<'a> {
    /// Path and query, of which the selectors are a part.
    pub(super) uri: &'a Uri,
    /// Who authenticated, and who they act as.
    pub(super) users: [Option<&'a UserInfo>; 2],
}

impl Keeps<'_> {
    fn bytes(&self) -> usize {
        let of_user = |user: &UserInfo| {
            let extra: usize =
                user.extra.iter().map(|(key, values)| key.len() + texts(values)).sum();
            user.name.len() + user.uid.len() + texts(&user.groups) + extra
        };
        let uri = self.uri.path_and_query().map_or(0, |uri| uri.as_str().len());
        uri * SELECTOR_FACTOR + self.users.iter().flatten().map(|user| of_user(user)).sum::<usize>()
    }

    /// As how many watches it counts.
    fn weight(&self) -> usize {
        1 + self.bytes() / WATCH_BYTES
    }
}

fn texts(texts: &[String]) -> usize {
    texts.iter().map(|text| size_of::<String>() + text.len()).sum()
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a watch of who authenticated: nobody can have more by impersonating others, or by
    /// making accounts.
    ///
    /// # Errors
    /// 429 when the user has as many as may be.
    pub(super) fn begin(&self, user: &UserInfo, keeps: &Keeps<'_>) -> Result<Counted, Failure> {
        let Some(most) = bound(user) else {
            return Ok(Counted { of: self.clone(), user: None, weight: 0 });
        };
        let weight = keeps.weight();
        let mut watches = self.lock();
        let name = caller(user);
        let name =
            watches.get_key_value(name).map_or_else(|| name.into(), |(name, _)| Arc::clone(name));
        let count = watches.entry(Arc::clone(&name)).or_default();
        if *count + weight > most {
            if *count == 0 {
                watches.remove(&name);
            }
            let details = Details { retry_after_seconds: 1, ..Details::default() };
            return Err(Failure::new(
                Reason::TooManyRequests,
                "too many watches, please try again later",
            )
            .with_details(details));
        }
        *count += weight;
        Ok(Counted { of: self.clone(), user: Some(name), weight })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Some(user) = &self.user else { return };
        let mut watches = self.of.lock();
        if let Some(count) = watches.get_mut(user) {
            *count -= self.weight;
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
    let is_component = is_in("system:nodes")
        || is_in("system:serviceaccounts:kube-system")
        || user.name.starts_with("system:kube-");
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
        let (jane, joe, node, admin) = (
            user("jane", "system:authenticated"),
            user("joe", ""),
            user("system:node:a", "system:nodes"),
            user("admin", "system:masters"),
        );
        let begin = |user| {
            watchers.begin(
                user,
                &Keeps {
                    uri: &Uri::from_static("/api/v1/pods?watch=1"),
                    users: [Some(user), None],
                },
            )
        };
        let mut held: Vec<Counted> = (0..USER_WATCHES).map(|_| begin(&jane).unwrap()).collect();
        assert_eq!(begin(&jane).unwrap_err().code, 429);
        held.extend([&joe, &node, &admin].map(|user| begin(user).unwrap()));
        held.remove(0);
        held.push(begin(&jane).unwrap());
        held.extend((0..=USER_WATCHES).map(|_| begin(&node).unwrap()));
        assert_eq!((bound(&node), bound(&admin)), (Some(COMPONENT_WATCHES), None));
        drop(held);
        assert!(watchers.lock().is_empty());
    }

    #[test]
    fn what_a_watch_keeps_counts() {
        let watchers = Watchers::default();
        let values: Vec<String> = (0..9_000).map(|at| format!("v{at:04}")).collect();
        let uri: Uri = format!("/api/v1/pods?watch=1&labelSelector=k+in+({})", values.join(","))
            .parse()
            .unwrap();
        let jane = user("jane", "");
        let extra = [("key".to_owned(), vec!["x".repeat(1 << 20)])].into();
        let large = UserInfo { extra, ..user("large", "") };
        for users in [[Some(&jane), None], [Some(&jane), Some(&large)]] {
            let held: Vec<Counted> =
                std::iter::from_fn(|| watchers.begin(&jane, &Keeps { uri: &uri, users }).ok())
                    .collect();
            let each = uri.to_string().len() * SELECTOR_FACTOR + users[1].map_or(0, |_| 1 << 20);
            assert!(
                held.len() * each <= USER_WATCHES * WATCH_BYTES && held.len() > 30,
                "{} watches of {each} bytes",
                held.len()
            );
        }
        assert!(watchers.lock().is_empty());
    }
}
