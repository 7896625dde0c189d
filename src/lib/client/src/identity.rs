//! Service account identities: a token by TokenRequest, renewed before it expires, on every request of a client.

use http::header::{AUTHORIZATION, HeaderValue};
use http::{Request, Response};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::client::Body;
use std::sync::{Arc, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Layer, Service};

/// How long the asked tokens live; the server may answer with less.
const TOKEN_SECONDS: i64 = 3600;
/// A token is renewed after this part of its life.
const RENEW_AFTER: Duration = Duration::from_secs(TOKEN_SECONDS as u64 * 4 / 5);
/// How long to wait after a failed renewal.
const RETRY: Duration = Duration::from_secs(5);

/// One service account that a client acts as. Cheap to clone; clones share the token.
#[derive(Clone)]
pub struct ServiceAccountIdentity {
    namespace: Arc<str>,
    name: Arc<str>,
    header: Arc<RwLock<HeaderValue>>,
}

impl std::fmt::Debug for ServiceAccountIdentity {
    // Not derived: the header is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServiceAccountIdentity({}/{})", self.namespace, self.name)
    }
}

impl ServiceAccountIdentity {
    /// Makes the service account if it is missing and asks for a first token, with `issuer`'s rights.
    ///
    /// # Errors
    /// What the API server answered.
    pub async fn obtain(issuer: &kube::Client, namespace: &str, name: &str) -> Result<Self, kube::Error> {
        let accounts: Api<ServiceAccount> = Api::namespaced(issuer.clone(), namespace);
        let header = match request_token(&accounts, name).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                create(&accounts, name).await?;
                request_token(&accounts, name).await?
            }
            other => other?,
        };
        Ok(Self { namespace: namespace.into(), name: name.into(), header: Arc::new(RwLock::new(header)) })
    }

    /// Keeps the token fresh; runs until it is dropped.
    pub async fn keep_fresh(self, issuer: kube::Client) {
        let accounts: Api<ServiceAccount> = Api::namespaced(issuer, &self.namespace);
        let mut pause = RENEW_AFTER;
        loop {
            tokio::time::sleep(pause).await;
            pause = match request_token(&accounts, &self.name).await {
                Ok(header) => {
                    *self.header.write().expect("no panic while held") = header;
                    RENEW_AFTER
                }
                Err(error) => {
                    tracing::warn!(error = %error, namespace = %self.namespace, name = %self.name, "cannot renew a service account token");
                    RETRY
                }
            };
        }
    }

    pub(crate) fn layer(&self) -> BearerLayer {
        BearerLayer { header: self.header.clone() }
    }
}

async fn create(accounts: &Api<ServiceAccount>, name: &str) -> Result<(), kube::Error> {
    let account = ServiceAccount { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, ..ServiceAccount::default() };
    match accounts.create(&PostParams::default(), &account).await {
        // Another manager process was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

async fn request_token(accounts: &Api<ServiceAccount>, name: &str) -> Result<HeaderValue, kube::Error> {
    let request =
        TokenRequest { spec: Some(TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() }), ..TokenRequest::default() };
    let answer = accounts.create_token_request(name, &PostParams::default(), &request).await?;
    let token = answer.status.and_then(|status| status.token).unwrap_or_default();
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).map_err(|error| kube::Error::Service(error.into()))?;
    header.set_sensitive(true);
    Ok(header)
}

/// Puts the identity's present token on every request.
#[derive(Clone)]
pub(crate) struct BearerLayer {
    header: Arc<RwLock<HeaderValue>>,
}

impl<S> Layer<S> for BearerLayer {
    type Service = Bearer<S>;

    fn layer(&self, inner: S) -> Bearer<S> {
        Bearer { inner, header: self.header.clone() }
    }
}

/// The service that [`BearerLayer`] makes.
#[derive(Clone)]
pub(crate) struct Bearer<S> {
    inner: S,
    header: Arc<RwLock<HeaderValue>>,
}

impl<S, B> Service<Request<Body>> for Bearer<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> S::Future {
        let header = self.header.read().expect("no panic while held").clone();
        request.headers_mut().insert(AUTHORIZATION, header);
        self.inner.call(request)
    }
}
