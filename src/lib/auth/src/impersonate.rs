//! Impersonation: who is asked for, what that takes, who it becomes.

use crate::access::{Access, Authorizer, Decision, ResourceAccess};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::UserInfo;
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;

/// The prefix of extra headers, lower case.
const EXTRA_PREFIX: &str = "impersonate-extra-";
/// Most groups and extra values of a request.
const MAX_VALUES: usize = 1_000;
/// The group of uids and extras.
const AUTHENTICATION: &str = "authentication.k8s.io";

/// What the `Impersonate-*` headers ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Impersonation {
    /// Reads the headers of a request (lower-case names; others are skipped). `None` without any.
    ///
    /// # Errors
    /// 400 when something but no user is asked for, or too much.
    pub fn parse<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Option<Self>, Failure> {
        let mut asked = Self::default();
        let (mut any, mut values) = (false, 0);
        for (name, value) in headers.filter(|(name, _)| name.starts_with("impersonate-")) {
            match name {
                "impersonate-user" if asked.user.is_empty() => asked.user = value.to_owned(),
                "impersonate-uid" if asked.uid.is_empty() => asked.uid = value.to_owned(),
                "impersonate-group" => asked.groups.push(value.to_owned()),
                _ => match name.strip_prefix(EXTRA_PREFIX) {
                    Some(key) => asked.extra.entry(percent_decode_str(key).decode_utf8_lossy().to_lowercase()).or_default().push(value.to_owned()),
                    None => continue,
                },
            }
            any = true;
            values += 1;
        }
        if values > MAX_VALUES {
            return Err(Failure::bad_request("too many values are requested in impersonation headers"));
        }
        if any && asked.user.is_empty() && asked != Self::default() {
            return Err(Failure::bad_request("requested groups, a uid or extra attributes without impersonating a user"));
        }
        Ok((!asked.user.is_empty()).then_some(asked))
    }

    /// Checks that the real user may become the asked one, and makes it.
    ///
    /// # Errors
    /// 403, without details, for the first thing that is not allowed.
    pub fn become_user(self, authorizer: &dyn Authorizer, real: &UserInfo) -> Result<UserInfo, Failure> {
        self.check(authorizer, real)?;
        let mut groups = self.groups;
        if let Some((namespace, _)) = service_account(&self.user).filter(|_| groups.is_empty()) {
            groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        }
        let is_in = |name: &str| groups.iter().any(|group| group == name);
        if self.user == "system:anonymous" {
            if !is_in("system:unauthenticated") {
                groups.push("system:unauthenticated".to_owned());
            }
        } else if !is_in("system:authenticated") && !is_in("system:unauthenticated") {
            groups.push("system:authenticated".to_owned());
        }
        Ok(UserInfo { name: self.user, uid: self.uid, groups, extra: self.extra })
    }

    fn check(&self, authorizer: &dyn Authorizer, real: &UserInfo) -> Result<(), Failure> {
        let core = ResourceAccess { version: "v1", ..ResourceAccess::default() };
        let user = match service_account(&self.user) {
            Some((namespace, name)) => ResourceAccess { resource: "serviceaccounts", namespace, name, ..core },
            None => ResourceAccess { resource: "users", name: &self.user, ..core },
        };
        may(authorizer, real, user)?;
        for group in &self.groups {
            may(authorizer, real, ResourceAccess { resource: "groups", name: group, ..core })?;
        }
        let authentication = ResourceAccess { group: AUTHENTICATION, ..core };
        if !self.uid.is_empty() {
            may(authorizer, real, ResourceAccess { resource: "uids", name: &self.uid, ..authentication })?;
        }
        for (key, values) in &self.extra {
            for value in values {
                may(authorizer, real, ResourceAccess { resource: "userextras", subresource: key, name: value, ..authentication })?;
            }
        }
        Ok(())
    }
}

fn may(authorizer: &dyn Authorizer, real: &UserInfo, resource: ResourceAccess<'_>) -> Result<(), Failure> {
    let access = Access { user: real, verb: "impersonate", resource: Some(resource), path: "" };
    match authorizer.authorize(&access) {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => Err(Failure::new(Reason::Forbidden, crate::access::forbidden(&access, &reason).message)),
    }
}

/// Namespace and name of a service account's user name.
pub fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MastersOnly;
    use crate::testing::user;
    use std::sync::Mutex;

    /// Allows everything but one resource, and notes what it was asked.
    struct Noting {
        refused: &'static str,
        asked: Mutex<Vec<String>>,
    }

    impl Authorizer for Noting {
        fn authorize(&self, access: &Access<'_>) -> Decision {
            let resource = access.resource.expect("a resource");
            let text = format!("{} {}/{} {}/{} {}", access.verb, resource.group, resource.resource, resource.subresource, resource.namespace, resource.name);
            self.asked.lock().expect("lock").push(text);
            if resource.resource == self.refused { Decision::NoOpinion(String::new()) } else { Decision::Allow(String::new()) }
        }
    }

    fn parse(headers: &[(&str, &str)]) -> Result<Option<Impersonation>, Failure> {
        Impersonation::parse(headers.iter().copied())
    }

    fn become_user(headers: &[(&str, &str)]) -> UserInfo {
        parse(headers).expect("well-formed").expect("asked").become_user(&MastersOnly, &user("admin", &["system:masters"])).expect("allowed")
    }

    #[test]
    fn groups_that_come_along() {
        assert_eq!(become_user(&[("impersonate-user", "jane")]).groups, ["system:authenticated"]);
        assert_eq!(become_user(&[("impersonate-user", "jane"), ("impersonate-group", "g")]).groups, ["g", "system:authenticated"]);
        assert_eq!(become_user(&[("impersonate-user", "jane"), ("impersonate-group", "system:unauthenticated")]).groups, ["system:unauthenticated"]);
        assert_eq!(become_user(&[("impersonate-user", "system:anonymous")]).groups, ["system:unauthenticated"]);
        let robot = become_user(&[("impersonate-user", "system:serviceaccount:n:robot")]);
        assert_eq!(robot.groups, ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"]);
        let extra = become_user(&[("impersonate-user", "j"), ("impersonate-uid", "u"), ("impersonate-extra-example.com%2fKey", "v")]);
        assert_eq!((extra.uid.as_str(), extra.extra["example.com/key"].as_slice()), ("u", &["v".to_owned()][..]));
    }

    #[test]
    fn fault_52_everything_that_is_asked_for_is_checked() {
        let headers = [
            ("impersonate-user", "jane"),
            ("impersonate-group", "system:masters"),
            ("impersonate-uid", "u"),
            ("impersonate-extra-scopes", "s"),
            ("host", "ignored"),
        ];
        let everything = ["impersonate /users / jane", "impersonate /groups / system:masters", "impersonate authentication.k8s.io/uids / u"];
        let real = user("real", &[]);
        let authorizer = Noting { refused: "nothing", asked: Mutex::default() };
        parse(&headers).expect("well-formed").expect("asked").become_user(&authorizer, &real).expect("allowed");
        let asked = authorizer.asked.into_inner().expect("lock");
        assert_eq!(asked[..3], everything);
        assert_eq!(asked[3], "impersonate authentication.k8s.io/userextras scopes/ s");
        for refused in ["users", "groups", "uids", "userextras"] {
            let authorizer = Noting { refused, asked: Mutex::default() };
            let failure = parse(&headers).expect("well-formed").expect("asked").become_user(&authorizer, &real).expect_err("refused");
            assert_eq!((failure.code, failure.details), (403, None));
        }
    }

    #[test]
    fn nothing_without_a_user() {
        assert_eq!(parse(&[("host", "x")]), Ok(None));
        assert_eq!(parse(&[("impersonate-group", "g")]).expect_err("refused").code, 400);
        assert_eq!(parse(&[("impersonate-uid", "u")]).expect_err("refused").code, 400);
        assert_eq!(parse(&[("impersonate-extra-a", "b")]).expect_err("refused").code, 400);
    }
}
