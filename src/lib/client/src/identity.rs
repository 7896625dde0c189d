//! Service account identities: tokens from TokenRequest, renewed before they expire and when they
//! are refused, attached to every request.

use crate::outage::Outage;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Request, Response, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::client::Body;
use parking_lot::RwLock;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;
use tower::{Layer, Service};

/// Requested token lifetime; the server may grant less.
const TOKEN_SECONDS: i64 = 3600;
/// Age at which a token is renewed.
const RENEW_AFTER: Duration = Duration::from_secs(TOKEN_SECONDS as u64 * 4 / 5);
/// Delay after a failed renewal.
const RETRY: Duration = Duration::from_secs(5);
/// Minimum interval between renewals, however often tokens are refused.
const MIN_RENEW_INTERVAL: Duration = Duration::from_secs(1);

/// A service account to act as. Cheap to clone; clones share the token.
#[derive(Clone)]
pub struct ServiceAccountIdentity {
    namespace: Arc<str>,
    name: Arc<str>,
    token: Arc<CachedToken>,
}

/// Shared by the identity and its requests.
struct CachedToken {
    header: RwLock<HeaderValue>,
    /// Notified when the server refuses the current header.
    refused: Notify,
}

impl CachedToken {
    fn header(&self) -> HeaderValue {
        self.header.read().clone()
    }
}

impl std::fmt::Debug for ServiceAccountIdentity {
    // Not derived: the header is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServiceAccountIdentity({}/{})", self.namespace, self.name)
    }
}

impl ServiceAccountIdentity {
    /// Creates the service account if it is missing, and requests a first token with `issuer`'s
    /// rights.
    ///
    /// # Errors
    /// Any failure of the requests.
    pub async fn obtain(
        issuer: &kube::Client,
        namespace: &str,
        name: &str,
    ) -> Result<Self, kube::Error> {
        let accounts: Api<ServiceAccount> = Api::namespaced(issuer.clone(), namespace);
        let header = RwLock::new(token_of(&accounts, name).await?);
        Ok(Self {
            namespace: namespace.into(),
            name: name.into(),
            token: Arc::new(CachedToken { header, refused: Notify::new() }),
        })
    }

    /// Keeps the token fresh; never returns. A refused token is replaced at once: its account was
    /// deleted (and is recreated), or the server's keys changed.
    pub async fn keep_fresh(self, issuer: kube::Client) {
        let accounts: Api<ServiceAccount> = Api::namespaced(issuer, &self.namespace);
        let mut outage = Outage::new(format!(
            "renew the token of service account {}/{}",
            self.namespace, self.name
        ));
        let mut pause = RENEW_AFTER;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.token.refused.notified() => {}
            }
            pause = match token_of(&accounts, &self.name).await {
                Ok(header) => {
                    outage.works();
                    *self.token.header.write() = header;
                    RENEW_AFTER
                }
                Err(error) => {
                    outage.failed(&error);
                    RETRY
                }
            };
            tokio::time::sleep(MIN_RENEW_INTERVAL).await;
        }
    }

    pub(crate) fn layer(&self) -> BearerLayer {
        BearerLayer { token: Arc::clone(&self.token) }
    }
}

/// Requests a token, creating the account if it is missing.
async fn token_of(accounts: &Api<ServiceAccount>, name: &str) -> Result<HeaderValue, kube::Error> {
    match request_token(accounts, name).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            create(accounts, name).await?;
            request_token(accounts, name).await
        }
        other => other,
    }
}

async fn create(accounts: &Api<ServiceAccount>, name: &str) -> Result<(), kube::Error> {
    let account = ServiceAccount {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..ServiceAccount::default()
    };
    match accounts.create(&PostParams::default(), &account).await {
        // Another manager was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

async fn request_token(
    accounts: &Api<ServiceAccount>,
    name: &str,
) -> Result<HeaderValue, kube::Error> {
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: Some(TOKEN_SECONDS),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let answer = accounts.create_token_request(name, &PostParams::default(), &request).await?;
    let token = answer.status.and_then(|status| status.token).unwrap_or_default();
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|error| kube::Error::Service(error.into()))?;
    header.set_sensitive(true);
    Ok(header)
}

/// Attaches the current token to every request.
#[derive(Clone)]
pub(crate) struct BearerLayer {
    token: Arc<CachedToken>,
}

impl<S> Layer<S> for BearerLayer {
    type Service = BearerService<S>;

    fn layer(&self, inner: S) -> BearerService<S> {
        BearerService { inner, token: Arc::clone(&self.token) }
    }
}

/// Service of [`BearerLayer`].
#[derive(Clone)]
pub(crate) struct BearerService<S> {
    inner: S,
    token: Arc<CachedToken>,
}

impl<S, B> Service<Request<Body>> for BearerService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (token, header) = (Arc::clone(&self.token), self.token.header());
        request.headers_mut().insert(AUTHORIZATION, header.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let response = answer.await?;
            // After an earlier refusal there may be a new token already.
            if response.status() == StatusCode::UNAUTHORIZED && token.header() == header {
                token.refused.notify_one();
            }
            Ok(response)
        })
    }
}
