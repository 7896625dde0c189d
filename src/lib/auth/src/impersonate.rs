//! Impersonation: parses the `Impersonate-*` headers, authorizes them, builds the user.
//!
//! Constrained impersonation (KEP-5284) is tried first: it takes the right to impersonate a user of
//! one kind, and the right to perform this request as such a user. If none of its modes allows the
//! request, the legacy verb `impersonate`, which covers all requests, decides.

use crate::access::{
    ANONYMOUS, Access, Authorizer, Decision, ResourceAccess, UNAUTHENTICATED, add_authenticated,
    forbidden,
};
use crate::clock_cache::ClockCache;
use ferrokube_apimachinery::name;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lower-case prefix of extra headers.
const EXTRA_PREFIX: &str = "impersonate-extra-";
/// Max groups and extra values of a request.
const MAX_VALUES: usize = 1_000;
/// API group of uids and extras, and of every resource in the constrained modes.
const AUTHENTICATION: &str = "authentication.k8s.io";
/// Prefix of a node's user name.
const NODE: &str = "system:node:";
/// The extra attribute of a service account's token with its pod's node.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// From this many values on, the right to all of them (`*`) is checked first.
const WILDCARD_FIRST: usize = 4;
/// Max users whose last mode is remembered.
const MAX_REMEMBERED: usize = 10_000;

/// Kinds of impersonation, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// A service account impersonates the node that its pod runs on.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    /// Any other user.
    UserInfo,
    /// The verb `impersonate`, for any user and request.
    Legacy,
}

impl Mode {
    const ALL: [Self; 5] = [
        Self::AssociatedNode,
        Self::ArbitraryNode,
        Self::ServiceAccount,
        Self::UserInfo,
        Self::Legacy,
    ];

    fn verb(self) -> &'static str {
        match self {
            Self::AssociatedNode => "impersonate:associated-node",
            Self::ArbitraryNode => "impersonate:arbitrary-node",
            Self::ServiceAccount => "impersonate:serviceaccount",
            Self::UserInfo => "impersonate:user-info",
            Self::Legacy => "impersonate",
        }
    }

    /// The verb's suffix; `None` for the legacy verb, which does not constrain the request.
    fn constraint(self) -> Option<&'static str> {
        self.verb().strip_prefix("impersonate:")
    }
}

/// The mode that last worked for each user: it is tried first, and its refusal is the one returned.
pub struct ImpersonationModes(Mutex<ClockCache<Arc<str>, Mode>>);

impl Default for ImpersonationModes {
    fn default() -> Self {
        Self(Mutex::new(ClockCache::new(MAX_REMEMBERED)))
    }
}

impl ImpersonationModes {
    fn of(&self, user: &str) -> Option<Mode> {
        self.0.lock().get(user).copied()
    }

    fn remember(&self, user: &str, mode: Mode) {
        self.0.lock().insert(user.into(), mode);
    }
}

/// The result of an authorized impersonation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonated {
    /// The impersonated user.
    pub user: UserInfo,
    /// The constrained verb that allowed it; empty for the legacy verb.
    pub constraint: &'static str,
}

/// Parsed `Impersonate-*` headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Impersonation {
    /// Parses a request's headers (lower-case names; others are ignored). `None` without any.
    ///
    /// # Errors
    /// 400 for groups, a uid or extras without a user, or too many values.
    pub fn parse<'a>(
        headers: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Option<Self>, Failure> {
        let mut asked = Self::default();
        let (mut any, mut values) = (false, 0);
        for (name, value) in headers.filter(|(name, _)| name.starts_with("impersonate-")) {
            match name {
                "impersonate-user" if asked.user.is_empty() => asked.user = value.to_owned(),
                "impersonate-uid" if asked.uid.is_empty() => asked.uid = value.to_owned(),
                "impersonate-group" => asked.groups.push(value.to_owned()),
                _ => match name.strip_prefix(EXTRA_PREFIX) {
                    Some(key) => asked
                        .extra
                        .entry(percent_decode_str(key).decode_utf8_lossy().to_lowercase())
                        .or_default()
                        .push(value.to_owned()),
                    None => continue,
                },
            }
            any = true;
            values += 1;
        }
        if values > MAX_VALUES {
            return Err(Failure::bad_request(
                "too many values are requested in impersonation headers",
            ));
        }
        if any && asked.user.is_empty() && asked != Self::default() {
            return Err(Failure::bad_request(
                "requested groups, a uid or extra attributes without impersonating a user",
            ));
        }
        Ok((!asked.user.is_empty()).then_some(asked))
    }

    /// Checks that the caller may impersonate the user for this request, and returns that user.
    /// `request` is the request as its real caller.
    ///
    /// # Errors
    /// 403 with the refusal of the first mode tried: the one that last worked for this caller.
    pub fn authorize(
        self,
        authorizer: &dyn Authorizer,
        modes: &ImpersonationModes,
        request: &Access<'_>,
    ) -> Result<Impersonated, Failure> {
        let last = modes.of(&request.user.name);
        let others = Mode::ALL.into_iter().filter(|mode| Some(*mode) != last);
        let mut refused = None;
        for mode in last.into_iter().chain(others).filter(|mode| self.fits(*mode, request.user)) {
            match self.check(mode, authorizer, request) {
                Ok(()) => {
                    if last != Some(mode) {
                        modes.remember(&request.user.name, mode);
                    }
                    let constraint = if mode == Mode::Legacy { "" } else { mode.verb() };
                    return Ok(Impersonated { user: self.into_user(mode), constraint });
                }
                Err(failure) => drop(refused.get_or_insert(failure)),
            }
        }
        Err(refused.expect("the legacy verb fits every user"))
    }

    fn into_user(self, mode: Mode) -> UserInfo {
        let mut groups = self.groups;
        if matches!(mode, Mode::AssociatedNode | Mode::ArbitraryNode) {
            groups = vec!["system:nodes".to_owned()];
        } else if let Some((namespace, _)) =
            service_account(&self.user).filter(|_| groups.is_empty())
        {
            groups = vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ];
        }
        let is_in = |name: &str| groups.iter().any(|group| group == name);
        if self.user == ANONYMOUS && !is_in(UNAUTHENTICATED) {
            groups.push(UNAUTHENTICATED.to_owned());
        }
        let mut user = UserInfo { name: self.user, uid: self.uid, groups, extra: self.extra };
        add_authenticated(&mut user);
        user
    }

    /// Whether the mode applies to the requested user. For nodes and service accounts the
    /// constrained modes accept only the name; the rest follows from it.
    fn fits(&self, mode: Mode, real: &UserInfo) -> bool {
        let only_name = self.uid.is_empty() && self.groups.is_empty() && self.extra.is_empty();
        let (node_name, account) = (node_name(&self.user), service_account(&self.user));
        match mode {
            Mode::AssociatedNode => {
                only_name
                    && node_name.is_some()
                    && service_account(&real.name).is_some()
                    && single(real, NODE_NAME) == node_name
            }
            Mode::ArbitraryNode => only_name && node_name.is_some(),
            Mode::ServiceAccount => only_name && account.is_some(),
            Mode::UserInfo => node_name.is_none() && account.is_none(),
            Mode::Legacy => true,
        }
    }

    fn check(
        &self,
        mode: Mode,
        authorizer: &dyn Authorizer,
        request: &Access<'_>,
    ) -> Result<(), Failure> {
        if let Some(constraint) = mode.constraint() {
            let verb = format!("impersonate-on:{constraint}:{}", request.verb);
            require_access(authorizer, &Access { verb: &verb, ..request.clone() })?;
        }
        let check = ModeCheck { authorizer, real: request.user, mode };
        check.name(&self.user)?;
        if !self.uid.is_empty() {
            check.require(check.authentication("uids", &self.uid))?;
        }
        check.groups(&self.groups)?;
        check.extra(&self.extra)
    }
}

/// Checks the rights that one mode requires.
struct ModeCheck<'a> {
    authorizer: &'a dyn Authorizer,
    real: &'a UserInfo,
    mode: Mode,
}

impl<'a> ModeCheck<'a> {
    fn authentication(&self, resource: &'static str, name: &'a str) -> ResourceAccess<'a> {
        ResourceAccess {
            group: AUTHENTICATION,
            version: "v1",
            resource,
            name,
            ..ResourceAccess::default()
        }
    }

    /// The legacy verb has users, groups and service accounts in the core group.
    fn subject(&self, resource: &'static str, name: &'a str) -> ResourceAccess<'a> {
        ResourceAccess {
            group: if self.mode == Mode::Legacy { "" } else { AUTHENTICATION },
            ..self.authentication(resource, name)
        }
    }

    fn name(&self, user: &'a str) -> Result<(), Failure> {
        match (service_account(user), node_name(user)) {
            (Some((namespace, name)), _) => {
                self.require(ResourceAccess { namespace, ..self.subject("serviceaccounts", name) })
            }
            // The right to an associated node does not name the node: it covers whichever one is
            // associated.
            (None, Some(_)) if self.mode == Mode::AssociatedNode => {
                self.require(self.subject("nodes", "*"))
            }
            (None, Some(name)) if self.mode != Mode::Legacy => {
                self.require(self.subject("nodes", name))
            }
            _ => self.require(self.subject("users", user)),
        }
    }

    fn groups(&self, groups: &'a [String]) -> Result<(), Failure> {
        if self.mode != Mode::Legacy {
            if groups.iter().any(String::is_empty) {
                return Err(self.refuse(
                    self.subject("groups", ""),
                    "impersonating the empty string group is not allowed",
                ));
            }
            if groups.iter().any(|group| group == "system:masters") {
                return Err(self.refuse(
                    self.subject("groups", "system:masters"),
                    "impersonating the system:masters group is not allowed",
                ));
            }
            if groups.len() >= WILDCARD_FIRST && self.require(self.subject("groups", "*")).is_ok() {
                return Ok(());
            }
        }
        groups.iter().try_for_each(|group| self.require(self.subject("groups", group)))
    }

    fn extra(&self, extra: &'a BTreeMap<String, Vec<String>>) -> Result<(), Failure> {
        let of = |key: &'a str, value: &'a str| ResourceAccess {
            subresource: key,
            ..self.authentication("userextras", value)
        };
        if self.mode != Mode::Legacy {
            if let Some(why) = extra.iter().find_map(|(key, values)| extra_error(key, values)) {
                return Err(self.refuse(of("", ""), &why));
            }
            if extra.values().map(Vec::len).sum::<usize>() >= WILDCARD_FIRST
                && self.require(of("*", "*")).is_ok()
            {
                return Ok(());
            }
        }
        extra
            .iter()
            .flat_map(|(key, values)| values.iter().map(move |value| (key, value)))
            .try_for_each(|(key, value)| self.require(of(key, value)))
    }

    fn require(&self, resource: ResourceAccess<'_>) -> Result<(), Failure> {
        require_access(self.authorizer, &self.access(resource))
    }

    fn refuse(&self, resource: ResourceAccess<'_>, why: &str) -> Failure {
        forbidden(&self.access(resource), why)
    }

    fn access<'b>(&'b self, resource: ResourceAccess<'b>) -> Access<'b> {
        Access { user: self.real, verb: self.mode.verb(), resource: Some(resource), path: "" }
    }
}

fn require_access(authorizer: &dyn Authorizer, access: &Access<'_>) -> Result<(), Failure> {
    match authorizer.authorize(access) {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => Err(forbidden(access, &reason)),
    }
}

/// Why the constrained modes refuse an extra attribute.
fn extra_error(key: &str, values: &[String]) -> Option<String> {
    let is_path = |path: &str| {
        !path.is_empty()
            && path
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte))
    };
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".to_owned());
    }
    if !key
        .split_once('/')
        .is_some_and(|(domain, path)| name::dns1123_subdomain(domain).is_empty() && is_path(path))
    {
        return Some(format!(
            "impersonating an invalid key in extra is not allowed: {key:?} must be a domain-prefixed path (such as \"acme.io/foo\")"
        ));
    }
    if values.iter().any(String::is_empty) {
        return Some("impersonating the empty string value in extra is not allowed".to_owned());
    }
    None
}

/// The value of an extra attribute that has exactly one.
fn single<'a>(user: &'a UserInfo, key: &str) -> Option<&'a str> {
    match user.extra.get(key).map(Vec::as_slice) {
        Some([value]) => Some(value),
        _ => None,
    }
}

/// The node name in a node's user name.
fn node_name(user: &str) -> Option<&str> {
    user.strip_prefix(NODE).filter(|name| name::dns1123_subdomain(name).is_empty())
}

/// Namespace and name in a service account's user name.
pub fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (name::dns1123_label(namespace).is_empty() && name::dns1123_subdomain(name).is_empty())
        .then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MastersOnly;
    use crate::testing::user;

    /// Allows the listed rights and records all checks, as `verb group/resource/subresource
    /// namespace/name`.
    #[derive(Default)]
    struct RecordingAuthorizer {
        allowed: Vec<&'static str>,
        asked: Mutex<Vec<String>>,
    }

    impl Authorizer for RecordingAuthorizer {
        fn authorize(&self, access: &Access<'_>) -> Decision {
            let resource = access.resource.expect("a resource");
            let text = format!(
                "{} {}/{}/{} {}/{}",
                access.verb,
                resource.group,
                resource.resource,
                resource.subresource,
                resource.namespace,
                resource.name
            );
            let allowed = self.allowed.iter().any(|allowed| {
                text.strip_prefix(allowed)
                    .is_some_and(|rest| rest.is_empty() || allowed.ends_with(' '))
            });
            self.asked.lock().push(text);
            if allowed {
                Decision::Allow(String::new())
            } else {
                Decision::NoOpinion(String::new())
            }
        }
    }

    fn parse(headers: &[(&str, &str)]) -> Result<Option<Impersonation>, Failure> {
        Impersonation::parse(headers.iter().copied())
    }

    fn impersonate(
        authorizer: &dyn Authorizer,
        real: &UserInfo,
        headers: &[(&str, &str)],
    ) -> Result<Impersonated, Failure> {
        impersonate_with(authorizer, &ImpersonationModes::default(), real, headers)
    }

    fn impersonate_with(
        authorizer: &dyn Authorizer,
        modes: &ImpersonationModes,
        real: &UserInfo,
        headers: &[(&str, &str)],
    ) -> Result<Impersonated, Failure> {
        let pods = ResourceAccess {
            version: "v1",
            resource: "pods",
            namespace: "n",
            ..ResourceAccess::default()
        };
        let request = Access {
            user: real,
            verb: "list",
            resource: Some(pods),
            path: "/api/v1/namespaces/n/pods",
        };
        parse(headers).expect("well-formed").expect("asked").authorize(authorizer, modes, &request)
    }

    fn become_user(headers: &[(&str, &str)]) -> UserInfo {
        impersonate(&MastersOnly, &user("admin", &["system:masters"]), headers)
            .expect("allowed")
            .user
    }

    /// Code, resource and name of a refusal.
    fn about(failure: Failure) -> (u16, String, String) {
        let details = failure.details.expect("details");
        (failure.code, details.kind, details.name)
    }

    #[test]
    fn implied_groups_are_added() {
        assert_eq!(become_user(&[("impersonate-user", "jane")]).groups, ["system:authenticated"]);
        assert_eq!(
            become_user(&[("impersonate-user", "jane"), ("impersonate-group", "g")]).groups,
            ["g", "system:authenticated"]
        );
        assert_eq!(
            become_user(&[
                ("impersonate-user", "jane"),
                ("impersonate-group", "system:unauthenticated")
            ])
            .groups,
            ["system:unauthenticated"]
        );
        assert_eq!(
            become_user(&[("impersonate-user", "system:anonymous")]).groups,
            ["system:unauthenticated"]
        );
        let robot = become_user(&[("impersonate-user", "system:serviceaccount:n:robot")]);
        assert_eq!(
            robot.groups,
            ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"]
        );
        assert_eq!(
            become_user(&[("impersonate-user", "system:serviceaccount:N:robot")]).groups,
            ["system:authenticated"],
            "not a service account name"
        );
        assert_eq!(
            become_user(&[("impersonate-user", "system:node:a")]).groups,
            ["system:nodes", "system:authenticated"]
        );
        let extra = become_user(&[
            ("impersonate-user", "j"),
            ("impersonate-uid", "u"),
            ("impersonate-extra-example.com%2fKey", "v"),
        ]);
        assert_eq!(
            (extra.uid.as_str(), extra.extra["example.com/key"].as_slice()),
            ("u", &["v".to_owned()][..])
        );
        let masters = become_user(&[
            ("impersonate-user", "jane"),
            ("impersonate-group", "system:masters"),
            ("impersonate-extra-scopes", "s"),
        ]);
        assert_eq!(
            masters.groups,
            ["system:masters", "system:authenticated"],
            "the legacy verb has no such limits"
        );
    }

    #[test]
    fn fault_52_every_requested_attribute_is_checked() {
        let headers = [
            ("impersonate-user", "jane"),
            ("impersonate-group", "system:masters"),
            ("impersonate-uid", "u"),
            ("impersonate-extra-scopes", "s"),
            ("host", "ignored"),
        ];
        let everything = [
            "impersonate /users/ /jane",
            "impersonate authentication.k8s.io/uids/ /u",
            "impersonate /groups/ /system:masters",
            "impersonate authentication.k8s.io/userextras/scopes /s",
        ];
        let real = user("real", &[]);
        let authorizer =
            RecordingAuthorizer { allowed: everything.to_vec(), ..RecordingAuthorizer::default() };
        assert_eq!(impersonate(&authorizer, &real, &headers).expect("allowed").constraint, "");
        let asked = authorizer.asked.into_inner();
        assert_eq!(asked[0], "impersonate-on:user-info:list /pods/ n/");
        assert_eq!(asked[1..], everything);
        for refused in everything {
            let allowed = everything.into_iter().filter(|right| *right != refused).collect();
            let failure = impersonate(
                &RecordingAuthorizer { allowed, ..RecordingAuthorizer::default() },
                &real,
                &headers,
            )
            .expect_err("refused");
            assert_eq!(
                about(failure),
                (403, "pods".to_owned(), String::new()),
                "the first mode's refusal is returned"
            );
        }
    }

    #[test]
    fn the_last_successful_mode_is_tried_first_and_its_refusal_returned() {
        let (modes, real) = (ImpersonationModes::default(), user("real", &[]));
        let authorizer = RecordingAuthorizer {
            allowed: vec!["impersonate /users/ /jane"],
            ..RecordingAuthorizer::default()
        };
        impersonate_with(&authorizer, &modes, &real, &[("impersonate-user", "jane")])
            .expect("allowed");
        let failure = impersonate_with(
            &authorizer,
            &modes,
            &real,
            &[("impersonate-user", "jane"), ("impersonate-group", "g")],
        )
        .expect_err("refused");
        assert_eq!(about(failure), (403, "groups".to_owned(), "g".to_owned()));
        let failure = impersonate_with(&authorizer, &modes, &real, &[("impersonate-user", "joe")])
            .expect_err("refused");
        assert_eq!(about(failure), (403, "users".to_owned(), "joe".to_owned()));
    }

    #[test]
    fn constrained_modes_need_rights_to_the_user_and_the_request() {
        let real = user("real", &[]);
        let may = |allowed: &[&'static str], who: &str| {
            let authorizer =
                RecordingAuthorizer { allowed: allowed.to_vec(), ..RecordingAuthorizer::default() };
            impersonate(&authorizer, &real, &[("impersonate-user", who)])
                .map(|became| became.constraint)
        };
        let jane = [
            "impersonate-on:user-info:list /pods/ n/",
            "impersonate:user-info authentication.k8s.io/users/ /jane",
        ];
        assert_eq!(may(&jane, "jane").expect("both rights"), "impersonate:user-info");
        assert!(may(&jane[..1], "jane").is_err() && may(&jane[1..], "jane").is_err());
        assert!(
            may(&["impersonate-on:user-info:get /pods/ n/", jane[1]], "jane").is_err(),
            "another verb"
        );
        let robot = [
            "impersonate-on:serviceaccount:list /pods/ n/",
            "impersonate:serviceaccount authentication.k8s.io/serviceaccounts/ n/robot",
        ];
        assert_eq!(
            may(&robot, "system:serviceaccount:n:robot").expect("both rights"),
            "impersonate:serviceaccount"
        );
        let node = [
            "impersonate-on:arbitrary-node:list /pods/ n/",
            "impersonate:arbitrary-node authentication.k8s.io/nodes/ /a",
        ];
        assert_eq!(may(&node, "system:node:a").expect("both rights"), "impersonate:arbitrary-node");
        assert!(may(&node, "system:node:b").is_err());
    }

    #[test]
    fn a_service_account_may_impersonate_only_its_own_node() {
        let mut real = user("system:serviceaccount:n:agent", &[]);
        real.extra.insert(NODE_NAME.to_owned(), vec!["a".to_owned()]);
        let allowed = [
            "impersonate-on:associated-node:list /pods/ n/",
            "impersonate:associated-node authentication.k8s.io/nodes/ /*",
        ];
        let may = |who: &str| {
            impersonate(
                &RecordingAuthorizer {
                    allowed: allowed.to_vec(),
                    ..RecordingAuthorizer::default()
                },
                &real,
                &[("impersonate-user", who)],
            )
        };
        assert_eq!(
            may("system:node:a").expect("its own").constraint,
            "impersonate:associated-node"
        );
        assert!(may("system:node:b").is_err());
    }

    #[test]
    fn constrained_modes_refuse_unsafe_attributes() {
        let real = user("real", &[]);
        let allowed = vec!["impersonate-on:user-info:list /pods/ n/", "impersonate:user-info "];
        let may = |header: (&str, &str)| {
            let authorizer =
                RecordingAuthorizer { allowed: allowed.clone(), ..RecordingAuthorizer::default() };
            impersonate(&authorizer, &real, &[("impersonate-user", "jane"), header]).is_ok()
        };
        assert!(
            may(("impersonate-group", "g"))
                && may(("impersonate-extra-ex.com%2fkey", "v"))
                && may(("impersonate-uid", "u"))
        );
        let never = [
            ("impersonate-group", "system:masters"),
            ("impersonate-group", ""),
            ("impersonate-extra-scopes", "s"),
            ("impersonate-extra-ex.com%2fkey", ""),
        ];
        for header in never {
            assert!(!may(header), "{header:?}");
        }
    }

    #[test]
    fn one_wildcard_check_covers_many_groups() {
        let allowed = vec![
            "impersonate-on:user-info:list /pods/ n/",
            "impersonate:user-info authentication.k8s.io/users/ /jane",
            "impersonate:user-info authentication.k8s.io/groups/ /*",
        ];
        let headers = [
            ("impersonate-user", "jane"),
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-group", "c"),
            ("impersonate-group", "d"),
        ];
        let may = |headers: &[(&str, &str)]| {
            impersonate(
                &RecordingAuthorizer { allowed: allowed.clone(), ..RecordingAuthorizer::default() },
                &user("real", &[]),
                headers,
            )
            .is_ok()
        };
        assert!(may(&headers) && !may(&headers[..4]));
    }

    #[test]
    fn headers_without_a_user_are_refused() {
        assert_eq!(parse(&[("host", "x")]), Ok(None));
        assert_eq!(parse(&[("impersonate-group", "g")]).expect_err("refused").code, 400);
        assert_eq!(parse(&[("impersonate-uid", "u")]).expect_err("refused").code, 400);
        assert_eq!(parse(&[("impersonate-extra-a", "b")]).expect_err("refused").code, 400);
    }
}
