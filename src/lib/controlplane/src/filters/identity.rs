//! Authentication and impersonation.

use crate::exchange::{Authenticated, Incoming, Request};
use crate::rejection::Rejection;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_auth::access::{ANONYMOUS, UNAUTHENTICATED, all};
use ferrokube_auth::impersonate::service_account;
use ferrokube_auth::{
    Authenticator, Authorizer, CatchUp, Credentials, Impersonated, Impersonation,
    ImpersonationModes, RightsScope,
};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use std::sync::Arc;

static IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
/// Max headers handed to a front proxy authenticator.
const MAX_VALUES: usize = 1000;

/// Authentication of callers.
pub(crate) struct Authentication {
    pub(crate) authenticators: Vec<Arc<dyn Authenticator>>,
    /// Whether requests without credentials run as [`ANONYMOUS`].
    pub(crate) anonymous: bool,
}

/// Rights of callers, and impersonation.
pub(crate) struct Authorization {
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) impersonation: ImpersonationModes,
}

/// Asks the authenticators in order; the first to accept the credentials decides, even if others
/// reject them. Only invalid credentials are 401; a request without any is anonymous.
pub(crate) fn authenticate(
    authentication: &Authentication,
    incoming: &mut Incoming,
) -> Result<Authenticated, Rejection> {
    let peer = incoming.peer().cloned();
    let remote = peer
        .as_ref()
        .filter(|peer| peer.proxy_certificate.is_some())
        .map_or_else(Vec::new, |_| texts_of(&incoming.head.headers));
    let credentials = Credentials {
        certificate: peer.as_ref().and_then(|peer| peer.certificate.as_deref()),
        proxy_certificate: peer.as_ref().and_then(|peer| peer.proxy_certificate.as_deref()),
        bearer: bearer(&incoming.head.headers),
        remote: &remote,
    };
    let mut refused = false;
    for authenticator in &authentication.authenticators {
        match authenticator.authenticate(&credentials) {
            Ok(None) => {}
            Ok(Some(identity)) => {
                incoming.head.headers.remove(AUTHORIZATION);
                return Ok(Authenticated::new(identity.user, identity.method));
            }
            Err(_) => refused = true,
        }
    }
    if refused
        || !authentication.anonymous
        || credentials.bearer.is_some()
        || peer.as_ref().is_some_and(|peer| peer.unverified_certificate)
    {
        return Err(unauthorized());
    }
    let user = UserInfo {
        name: ANONYMOUS.to_owned(),
        groups: vec![UNAUTHENTICATED.to_owned()],
        ..UserInfo::default()
    };
    Ok(Authenticated::new(Arc::new(user), ""))
}

fn unauthorized() -> Rejection {
    Failure::new(Reason::Unauthorized, "Unauthorized").into()
}

/// The token of an `Authorization: Bearer` header; other schemes and empty tokens count as none.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// All headers, names in lower case: which of them a front proxy uses is configuration.
fn texts_of(headers: &HeaderMap) -> Vec<(String, String)> {
    let texts = headers.iter().map(|(name, value)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    });
    texts.take(MAX_VALUES).collect()
}

/// Sets the impersonated user, if the caller may impersonate every part of it.
pub(crate) fn impersonate(
    authorization: &Authorization,
    request: &mut Request<'_>,
) -> Result<(), Rejection> {
    let headers =
        request.head.headers.iter().filter(|(name, _)| name.as_str().starts_with("impersonate-"));
    // Skipping a header that is not UTF-8 would run the request with the caller's own rights.
    let texts: Option<Vec<(&str, &str)>> = headers
        .map(|(name, value)| Some((name.as_str(), std::str::from_utf8(value.as_bytes()).ok()?)))
        .collect();
    let texts =
        texts.ok_or_else(|| Failure::bad_request("an impersonation header is not UTF-8 text"))?;
    if texts.is_empty() {
        return Ok(());
    }
    let Some(asked) = Impersonation::parse(texts.into_iter())? else { return Ok(()) };
    let access = request.action.access(&request.authenticated.user);
    let Impersonated { user, constraint } =
        asked.authorize(&*authorization.authorizer, &authorization.impersonation, &access)?;
    request.authenticated.impersonated = Some(Arc::new(user));
    request.authenticated.impersonation_constraint = constraint;
    Ok(())
}

/// Waits until the authorizer has applied all previously acknowledged writes that affect this
/// request, or the impersonation of a service account.
pub(crate) fn rights<'a>(
    authorizer: &'a dyn Authorizer,
    request: &Request<'_>,
) -> Option<CatchUp<'a>> {
    let user = &request.authenticated.user;
    let access = request.action.access(user);
    let own = access.namespace();
    let asked = service_account(request.header(&IMPERSONATE_USER));
    let others = asked.map(|(namespace, _)| namespace).filter(|namespace| *namespace != own);
    let scopes = std::iter::once(own).chain(others).map(RightsScope::Namespace);
    all(scopes.map(|scope| authorizer.catch_up(user, scope)))
}

/// The same for the impersonated user: members of system:masters skipped the first wait.
pub(crate) fn impersonated_rights<'a>(
    authorizer: &'a dyn Authorizer,
    request: &Request<'_>,
) -> Option<CatchUp<'a>> {
    let user = request.authenticated.impersonated.as_ref()?;
    let access = request.action.access(user);
    authorizer.catch_up(user, RightsScope::Namespace(access.namespace()))
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
    fn bearer_tokens_parse_as_in_kube_apiserver() {
        let cases = [
            ("Bearer t", Some("t")),
            ("bearer  t ", Some("t")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic YTpi", None),
            ("Negotiate x", None),
        ];
        for (value, want) in cases {
            assert_eq!(bearer(&headers(&[("authorization", value)])), want, "{value}");
        }
    }
}
