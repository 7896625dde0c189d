//! Who asks: credentials, then impersonation.

use super::admit::ANONYMOUS;
use crate::exchange::{Exchange, Stop};
use crate::server::Shared;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_auth::{Access, Credentials, Decision, ResourceAccess};
use ferrokube_registry::UserInfo;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;

const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// At most so many impersonated groups and extra values.
const MAX_VALUES: usize = 1000;

/// Asks the authenticators in order. Wrong credentials are 401 on every path; none at all are anonymous.
pub(crate) fn authenticate(shared: &Shared, exchange: &mut Exchange) -> Result<(), Stop> {
    let peer = exchange.peer().cloned();
    let remote = remote_headers(&exchange.head.headers);
    let credentials = Credentials {
        certificates: peer.as_ref().map_or(&[], |peer| &peer.certificates),
        proxy_certificates: peer.as_ref().map_or(&[], |peer| &peer.proxy_certificates),
        bearer: bearer(&exchange.head.headers),
        remote: &remote,
    };
    for authenticator in &shared.authenticators {
        match authenticator.authenticate(&credentials) {
            Ok(None) => {}
            Ok(Some(identity)) => {
                let mut user = identity.user;
                add_group(&mut user, AUTHENTICATED);
                exchange.real_user = user;
                exchange.method = identity.method;
                exchange.head.headers.remove(AUTHORIZATION);
                return Ok(());
            }
            Err(_) => return Err(unauthorized()),
        }
    }
    if credentials.bearer.is_some() || peer.as_ref().is_some_and(|peer| peer.unverified_certificate) {
        return Err(unauthorized());
    }
    exchange.real_user = UserInfo { name: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()], ..UserInfo::default() };
    Ok(())
}

fn unauthorized() -> Stop {
    Failure::new(Reason::Unauthorized, "Unauthorized").into()
}

/// The token of an `Authorization: Bearer` header; an empty one is none, as is another scheme.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn remote_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with("x-remote-"))
        .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())))
        .take(MAX_VALUES)
        .collect()
}

fn add_group(user: &mut UserInfo, group: &str) {
    if !user.groups.iter().any(|other| other == group) {
        user.groups.push(group.to_owned());
    }
}

/// Replaces the identity, if the caller may impersonate every part of it.
pub(crate) fn impersonate(shared: &Shared, exchange: &mut Exchange) -> Result<(), Stop> {
    if !exchange.head.headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        return Ok(());
    }
    let Some(mut user) = requested(&exchange.head.headers)? else { return Ok(()) };
    for part in parts(&user) {
        let access = Access { user: &exchange.real_user, verb: "impersonate", resource: Some(part), path: "" };
        if !matches!(shared.authorizer.authorize(&access), Decision::Allow(_)) {
            return Err(ferrokube_auth::forbidden(&access, "").into());
        }
    }
    complete(&mut user);
    exchange.acting = Some(user);
    Ok(())
}

/// The asked identity; `None` when no header asks for one.
fn requested(headers: &HeaderMap) -> Result<Option<UserInfo>, Failure> {
    let all = |name: &str| headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).take(MAX_VALUES).map(str::to_owned).collect::<Vec<_>>();
    let first = |name: &str| all(name).into_iter().next().unwrap_or_default();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers.iter().take(MAX_VALUES) {
        if let (Some(key), Ok(value)) = (name.as_str().strip_prefix("impersonate-extra-"), value.to_str()) {
            extra.entry(percent_decode_str(key).decode_utf8_lossy().into_owned()).or_default().push(value.to_owned());
        }
    }
    let user = UserInfo { name: first("impersonate-user"), uid: first("impersonate-uid"), groups: all("impersonate-group"), extra };
    if user.name.is_empty() {
        if user.groups.is_empty() && user.uid.is_empty() && user.extra.is_empty() {
            return Ok(None);
        }
        return Err(Failure::bad_request("requested groups, uid or extra without impersonating a user"));
    }
    Ok(Some(user))
}

/// `system:serviceaccount:<namespace>:<name>`, taken apart.
fn service_account(name: &str) -> Option<(&str, &str)> {
    let (namespace, name) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// Everything that must be allowed.
fn parts(user: &UserInfo) -> Vec<ResourceAccess<'_>> {
    const AUTHENTICATION: &str = "authentication.k8s.io";
    let of = |group, resource, name| ResourceAccess { group, version: "v1", resource, name, ..ResourceAccess::default() };
    let mut parts = vec![match service_account(&user.name) {
        Some((namespace, name)) => ResourceAccess { namespace, ..of("", "serviceaccounts", name) },
        None => of("", "users", &user.name),
    }];
    parts.extend(user.groups.iter().map(|group| of("", "groups", group)));
    if !user.uid.is_empty() {
        parts.push(of(AUTHENTICATION, "uids", &user.uid));
    }
    for (key, values) in &user.extra {
        parts.extend(values.iter().map(|value| ResourceAccess { subresource: key, ..of(AUTHENTICATION, "userextras", value) }));
    }
    parts
}

/// Adds the groups that the impersonated user would have had by itself.
fn complete(user: &mut UserInfo) {
    if user.name == ANONYMOUS {
        add_group(user, UNAUTHENTICATED);
        return;
    }
    if user.groups.is_empty()
        && let Some((namespace, _)) = service_account(&user.name)
    {
        user.groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
    if !user.groups.iter().any(|group| group == UNAUTHENTICATED) {
        add_group(user, AUTHENTICATED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn bearer_tokens_read_as_recorded() {
        let cases = [("Bearer t", Some("t")), ("bearer  t ", Some("t")), ("Bearer", None), ("Bearer ", None), ("Basic YTpi", None), ("Negotiate x", None)];
        for (value, want) in cases {
            assert_eq!(bearer(&headers(&[("authorization", value)])), want, "{value}");
        }
    }

    #[test]
    fn impersonated_users_get_their_groups() {
        let asked = |pairs: &[(&'static str, &'static str)]| {
            let mut user = requested(&headers(pairs)).unwrap().unwrap();
            complete(&mut user);
            user
        };
        let user =
            asked(&[("impersonate-user", "jane"), ("impersonate-group", "g1"), ("impersonate-group", "g2"), ("impersonate-extra-example.com%2fkey", "v")]);
        assert_eq!(user.groups, ["g1", "g2", "system:authenticated"]);
        assert_eq!(user.extra["example.com/key"], ["v"]);
        assert_eq!(
            asked(&[("impersonate-user", "system:serviceaccount:n:r")]).groups,
            ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"]
        );
        assert_eq!(asked(&[("impersonate-user", ANONYMOUS)]).groups, [UNAUTHENTICATED]);
        assert_eq!(requested(&headers(&[("impersonate-group", "g")])).unwrap_err().code, 400);
        assert!(requested(&headers(&[("impersonate-junk", "g")])).unwrap().is_none());
    }

    #[test]
    fn fault_52_every_part_is_asked_for() {
        let user = requested(&headers(&[
            ("impersonate-user", "system:serviceaccount:n:r"),
            ("impersonate-group", "system:masters"),
            ("impersonate-uid", "u"),
            ("impersonate-extra-scopes", "a"),
        ]));
        let user = user.unwrap().unwrap();
        let asked: Vec<String> =
            parts(&user).iter().map(|part| format!("{}/{}/{}/{}/{}", part.group, part.namespace, part.resource, part.subresource, part.name)).collect();
        assert_eq!(
            asked,
            ["/n/serviceaccounts//r", "//groups//system:masters", "authentication.k8s.io//uids//u", "authentication.k8s.io//userextras/scopes/a"]
        );
    }
}
