//! Authentication and authorization of requests by cached TokenReviews and SubjectAccessReviews.

use super::cache::ExpiringCache;
use super::failure::ServerFailure;
use crate::config::ServerConfig;
use ferrokube_serve::Peer;
use http::Method;
use http::header::AUTHORIZATION;
use http::request::Parts;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Max concurrent reviews, so that a caller with many tokens cannot flood the API server.
pub(super) const REVIEWS: usize = 16;
/// Timeout of a review, including the wait for a permit.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Max bytes of a reviewed token.
const TOKEN_BYTES: usize = 16 << 10;
/// TTL of a rejected token.
const REFUSED: Duration = Duration::from_secs(10);

/// An authenticated user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct KubeletUser {
    pub(super) name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl KubeletUser {
    /// The user of a verified client certificate; `None` if it has no common name.
    fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        // The last one, as for the API server.
        let name = subject.iter_common_name().last()?.as_str().ok()?.to_owned();
        let organizations =
            subject.iter_organization().map(|name| name.as_str().map(str::to_owned));
        let mut groups = organizations.collect::<Result<Vec<_>, _>>().ok()?;
        groups.push("system:authenticated".to_owned());
        (!name.is_empty()).then(|| Self { name, groups, ..Self::default() })
    }
}

/// The permission that a request needs: a verb on one of several subresources of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NeededRight {
    pub(super) verb: &'static str,
    pub(super) subresources: &'static [&'static str],
}

impl NeededRight {
    /// Maps method and path as kubelet does, except that exec and port-forward need `create` for
    /// any method: websockets use GET, and readers must not execute commands.
    pub(super) fn of(method: &Method, path: &str) -> Self {
        let verb = match *method {
            Method::POST => "create",
            Method::GET | Method::HEAD => "get",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        };
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let runs = matches!(first, "exec" | "attach" | "portForward" | "run");
        let verb = if runs { "create" } else { verb };
        let subresources: &[&str] = match first {
            "stats" => &["stats"],
            "metrics" => &["metrics"],
            "logs" => &["log"],
            "healthz" => &["healthz", "proxy"],
            "configz" => &["configz", "proxy"],
            "pods" | "runningpods" => &["pods", "proxy"],
            _ => &["proxy"],
        };
        Self { verb, subresources }
    }
}

type RightKey = (KubeletUser, &'static str, &'static str);

/// Authentication and authorization by the API server.
pub(super) struct KubeletAccess {
    client: Client,
    node: String,
    reviews_tokens: bool,
    token_ttl: Duration,
    /// TTLs of denied and allowed reviews.
    right_ttl: [Duration; 2],
    /// By digest.
    tokens: ExpiringCache<[u8; 32], Option<Arc<KubeletUser>>>,
    rights: ExpiringCache<RightKey, bool>,
    turns: Semaphore,
}

impl KubeletAccess {
    pub(super) fn new(client: Client, node: &str, config: &ServerConfig) -> Self {
        Self {
            client,
            node: node.to_owned(),
            reviews_tokens: config.reviews_tokens,
            token_ttl: config.token_ttl,
            right_ttl: [config.denied_ttl, config.allowed_ttl],
            tokens: ExpiringCache::new(),
            rights: ExpiringCache::new(),
            turns: Semaphore::new(REVIEWS),
        }
    }

    /// The user of a request.
    ///
    /// # Errors
    /// 401 without valid credentials; 500 if the review fails.
    pub(super) async fn authenticate(
        &self,
        request: &Parts,
    ) -> Result<Arc<KubeletUser>, ServerFailure> {
        let peer = request.extensions.get::<Arc<Peer>>();
        if let Some(certificate) = peer.and_then(|peer| peer.certificate.as_deref()) {
            let user = KubeletUser::of_certificate(certificate);
            return user.map(Arc::new).ok_or(ServerFailure::Unauthorized);
        }
        let header = request.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|header| header.split_once(' '));
        let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let token = token.map(|(_, token)| token.trim()).filter(|token| !token.is_empty());
        match token {
            Some(token) if self.reviews_tokens && token.len() <= TOKEN_BYTES => {
                self.reviewed(token).await?.ok_or(ServerFailure::Unauthorized)
            }
            _ => Err(ServerFailure::Unauthorized),
        }
    }

    async fn reviewed(&self, token: &str) -> Result<Option<Arc<KubeletUser>>, ServerFailure> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.tokens.get(&digest) {
            return Ok(known);
        }
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            status: None,
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let review = self.turn(reviews.create(&PostParams::default(), &review)).await;
        let review = review.ok_or(ServerFailure::Failed("the token could not be reviewed"))?;
        let status = review.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| {
            Arc::new(KubeletUser {
                name: user.username.unwrap_or_default(),
                uid: user.uid.unwrap_or_default(),
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            })
        });
        let life = if user.is_some() { self.token_ttl } else { REFUSED.min(self.token_ttl) };
        self.tokens.insert(digest, user.clone(), life);
        Ok(user)
    }

    /// Checks that a user has the permission.
    ///
    /// # Errors
    /// 403 without it; 500 if the review fails.
    pub(super) async fn authorize(
        &self,
        user: &Arc<KubeletUser>,
        needed: &NeededRight,
    ) -> Result<(), ServerFailure> {
        for subresource in needed.subresources {
            if self.may(user, needed.verb, subresource).await? {
                return Ok(());
            }
        }
        Err(ServerFailure::Forbidden(format!(
            "Forbidden (user={}, verb={}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            needed.verb,
            needed.subresources.join(" ")
        )))
    }

    async fn may(
        &self,
        user: &Arc<KubeletUser>,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, ServerFailure> {
        let key = (KubeletUser::clone(user), verb, subresource);
        if let Some(known) = self.rights.get(&key) {
            return Ok(known);
        }
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("nodes".to_owned()),
            subresource: Some(subresource.to_owned()),
            name: Some(self.node.clone()),
            ..ResourceAttributes::default()
        };
        let list = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
        let review = SubjectAccessReview {
            metadata: ObjectMeta::default(),
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: (!user.uid.is_empty()).then(|| user.uid.clone()),
                groups: list(&user.groups),
                extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            status: None,
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = self.turn(reviews.create(&PostParams::default(), &review)).await;
        let review = review.ok_or(ServerFailure::Failed("the right could not be reviewed"))?;
        let is_allowed = review.status.is_some_and(|status| status.allowed);
        self.rights.insert(key, is_allowed, self.right_ttl[usize::from(is_allowed)]);
        Ok(is_allowed)
    }

    /// Waits for one of the [`REVIEWS`] permits, then runs the review.
    async fn turn<T>(&self, ask: impl Future<Output = Result<T, kube::Error>>) -> Option<T> {
        let asked = async {
            let _turn = self.turns.acquire().await.ok()?;
            ask.await.inspect_err(|error| tracing::warn!(%error, "cannot review a request")).ok()
        };
        tokio::time::timeout(REVIEW_TIMEOUT, asked).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_and_paths_need_kubelets_rights() {
        let needs = |method: Method, path: &str| {
            let right = NeededRight::of(&method, path);
            (right.verb, right.subresources.join(","))
        };
        let want = |verb, subresources: &str| (verb, subresources.to_owned());
        for (method, path, wanted) in [
            (Method::GET, "/healthz", want("get", "healthz,proxy")),
            (Method::GET, "/pods", want("get", "pods,proxy")),
            (Method::GET, "/podsx", want("get", "proxy")),
            (Method::GET, "/metrics/resource", want("get", "metrics")),
            (Method::GET, "/stats/summary", want("get", "stats")),
            (Method::GET, "/logs/x", want("get", "log")),
            (Method::GET, "//logs/x", want("get", "log")),
            (Method::GET, "/containerLogs/n/p/c", want("get", "proxy")),
            (Method::POST, "/exec/n/p/c", want("create", "proxy")),
            (Method::GET, "/portForward/n/p", want("create", "proxy")),
            (Method::GET, "//exec/n/p/c", want("create", "proxy")),
            (Method::OPTIONS, "/pods", want("", "pods,proxy")),
        ] {
            assert_eq!(needs(method, path), wanted, "{path}");
        }
    }
}
