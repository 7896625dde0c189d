//! Memory of watches, shared fairly among users.
//!
//! A watch holds little, but ten thousand times little is much, and one over HTTP/1.1 holds a
//! connection. As with other bytes, a user has as much as it leaves free for others. Components of
//! the cluster share more among themselves, and `system:masters` are not counted.

use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_flow::{BudgetCaller, BudgetGrant, QueueLimit, Share, too_many};
use http::{Uri, Version};

/// Bound for all users together; one has no more than are left free for others.
const USER_BYTES: usize = 96 << 20;
/// Bound for all components of the cluster: nodes, the scheduler, controllers.
const COMPONENT_BYTES: usize = 256 << 20;
/// Bytes of a watch over HTTP/2, measured with 8,000.
const WATCH_BYTES: usize = 4 * 1024;
/// Additional bytes over HTTP/1.1, where a watch has its own connection; measured with 2,000.
const CONNECTION_BYTES: usize = 20 * 1024;
/// Size of a compiled selector, in multiples of its text.
const SELECTOR_FACTOR: usize = 3;

/// The watches of all users.
#[derive(Debug)]
pub(crate) struct Watchers {
    users: Share,
    components: Share,
}

/// The parts of its request that a watch keeps.
pub(super) struct WatchRequest<'a> {
    /// Path and query, selectors included.
    pub(super) uri: &'a Uri,
    pub(super) version: Version,
    /// The authenticated user, and the impersonated one.
    pub(super) users: [Option<&'a UserInfo>; 2],
}

impl WatchRequest<'_> {
    fn bytes(&self) -> usize {
        let of_user = |user: &UserInfo| {
            let extra: usize =
                user.extra.iter().map(|(key, values)| key.len() + texts(values)).sum();
            user.name.len() + user.uid.len() + texts(&user.groups) + extra
        };
        let uri = self.uri.path_and_query().map_or(0, |uri| uri.as_str().len());
        let connection = if self.version < Version::HTTP_2 { CONNECTION_BYTES } else { 0 };
        WATCH_BYTES
            + connection
            + uri * SELECTOR_FACTOR
            + self.users.iter().flatten().map(|user| of_user(user)).sum::<usize>()
    }
}

fn texts(texts: &[String]) -> usize {
    texts.iter().map(|text| size_of::<String>() + text.len()).sum()
}

impl Default for Watchers {
    fn default() -> Self {
        // Rejected immediately, as only clients decide when watches end.
        let share = |bytes| Share::new(bytes, QueueLimit::NONE);
        Self { users: share(USER_BYTES), components: share(COMPONENT_BYTES) }
    }
}

impl Watchers {
    /// Counts a watch for the authenticated user until the result is dropped: no user gets more by
    /// impersonating others, or by making accounts. `None`: it is not counted.
    ///
    /// # Errors
    /// 429 when the user has as many as may be.
    pub(super) fn begin(
        &self,
        caller: BudgetCaller,
        user: &UserInfo,
        keeps: &WatchRequest<'_>,
    ) -> Result<Option<BudgetGrant>, Failure> {
        let Some(share) = self.share(user) else { return Ok(None) };
        share.try_take(caller, keeps.bytes()).map(Some).ok_or_else(too_many)
    }

    /// The share in which a user's watches are counted; `None`: not counted.
    fn share(&self, user: &UserInfo) -> Option<&Share> {
        let is_in = |group: &str| user.groups.iter().any(|member| member == group);
        if is_in("system:masters") {
            return None;
        }
        let is_component = is_in("system:nodes")
            || is_in("system:serviceaccounts:kube-system")
            || user.name.starts_with("system:kube-");
        Some(if is_component { &self.components } else { &self.users })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_flow::{Classified, Flow, Limits};

    fn user(name: &str, group: &str) -> UserInfo {
        UserInfo { name: name.into(), groups: vec![group.into()], ..UserInfo::default() }
    }

    struct WatchFixture {
        flow: Flow,
        watchers: Watchers,
    }

    impl WatchFixture {
        fn new() -> Self {
            Self { flow: Flow::new(&Limits::default()), watchers: Watchers::default() }
        }

        fn begin(
            &self,
            user: &UserInfo,
            keeps: &WatchRequest<'_>,
        ) -> Result<Option<BudgetGrant>, Failure> {
            let subject = Classified { user, peer: None, is_anonymous: false };
            self.watchers.begin(self.flow.classify(&subject).caller, user, keeps)
        }

        fn watch(&self, user: &UserInfo, version: Version) -> Result<Option<BudgetGrant>, Failure> {
            let uri = Uri::from_static("/api/v1/pods?watch=1");
            self.begin(user, &WatchRequest { uri: &uri, version, users: [Some(user), None] })
        }

        /// As many watches as a user may have.
        fn all(&self, user: &UserInfo, version: Version) -> Vec<Option<BudgetGrant>> {
            std::iter::from_fn(|| self.watch(user, version).ok()).collect()
        }

        fn is_empty(&self) -> bool {
            [&self.watchers.users, &self.watchers.components]
                .iter()
                .all(|share| share.usage() == (0, 0))
        }
    }

    #[test]
    fn each_user_leaves_as_much_as_it_has_and_masters_are_not_counted() {
        let fixture = WatchFixture::new();
        let (jane, joe) = (user("jane", "system:authenticated"), user("joe", ""));
        let [held, others] = [&jane, &joe].map(|user| fixture.all(user, Version::HTTP_2));
        assert!((10_000..15_000).contains(&held.len()), "half of all: {}", held.len());
        assert!(others.len() > held.len() / 3, "{} of {}", others.len(), held.len());
        let refused = fixture.watch(&jane, Version::HTTP_2).unwrap_err();
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (429, "too many requests, please try again later")
        );
        let node = user("system:node:a", "system:nodes");
        let nodes = fixture.all(&node, Version::HTTP_2);
        assert!(nodes.len() > 2 * held.len());
        assert!(
            fixture.watch(&user("admin", "system:masters"), Version::HTTP_2).unwrap().is_none()
        );
        drop((held, others, nodes));
        assert!(fixture.is_empty());
    }

    #[test]
    fn fault_18_watches_of_one_user_with_connections_of_their_own_are_bounded_by_bytes() {
        let fixture = WatchFixture::new();
        let jane = user("jane", "system:authenticated");
        let held = fixture.all(&jane, Version::HTTP_11);
        assert!((1_500..2_500).contains(&held.len()), "{}", held.len());
        assert!(held.len() * (WATCH_BYTES + CONNECTION_BYTES) <= USER_BYTES / 2);
        drop(held);
        assert!(fixture.is_empty());
    }

    #[test]
    fn bytes_that_a_watch_holds_count() {
        let fixture = WatchFixture::new();
        let values: Vec<String> = (0..9_000).map(|at| format!("v{at:04}")).collect();
        let uri: Uri = format!("/api/v1/pods?watch=1&labelSelector=k+in+({})", values.join(","))
            .parse()
            .unwrap();
        let jane = user("jane", "");
        let extra = [("key".to_owned(), vec!["x".repeat(1 << 20)])].into();
        let large = UserInfo { extra, ..user("large", "") };
        for users in [[Some(&jane), None], [Some(&jane), Some(&large)]] {
            let keeps = WatchRequest { uri: &uri, version: Version::HTTP_2, users };
            let held: Vec<Option<BudgetGrant>> =
                std::iter::from_fn(|| fixture.begin(&jane, &keeps).ok()).collect();
            let each = uri.to_string().len() * SELECTOR_FACTOR + users[1].map_or(0, |_| 1 << 20);
            assert!(
                held.len() * each <= USER_BYTES / 2 && held.len() > 30,
                "{} watches of {each} bytes",
                held.len()
            );
        }
        assert!(fixture.is_empty());
    }
}
