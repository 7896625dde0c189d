//! A small HTTP client: JSON requests and responses, watches as lines.

use crate::wait::BOUND;
use anyhow::{Context, anyhow};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Certificate, Identity, Method, RequestBuilder, Response};
use serde_json::Value;
use std::collections::VecDeque;
use std::path::Path;

/// A client of one server with one identity. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
}

/// A response; `body` is null unless it is JSON.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    /// HTTP status.
    pub status: u16,
    /// HTTP headers.
    pub headers: HeaderMap,
    /// Body as text.
    pub text: String,
    /// Body as JSON.
    pub body: Value,
}

impl Client {
    /// With a CA and an optional client certificate and key (PEM), or a token.
    ///
    /// # Errors
    /// Invalid CA, certificate or token.
    pub fn new(
        url: &str,
        ca_pem: &[u8],
        identity_pem: Option<&[u8]>,
        token: Option<&str>,
    ) -> anyhow::Result<Self> {
        // Fails if installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .tls_certs_only([Certificate::from_pem(ca_pem)?])
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(BOUND);
        if let Some(pem) = identity_pem {
            builder = builder.identity(Identity::from_pem(pem)?);
        }
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
            value.set_sensitive(true);
            builder = builder.default_headers(HeaderMap::from_iter([(AUTHORIZATION, value)]));
        }
        Ok(Self { http: builder.build()?, url: url.to_owned() })
    }

    /// From a kubeconfig with embedded data, as written by the server.
    ///
    /// # Errors
    /// The file is malformed.
    pub fn from_kubeconfig(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let field = |name: &str| {
            let value =
                text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
            value.ok_or_else(|| anyhow!("no {name} in {}", path.display()))
        };
        let data = |name: &str| Ok::<_, anyhow::Error>(STANDARD.decode(field(name)?)?);
        let identity = [data("client-certificate-data")?, data("client-key-data")?].concat();
        Self::new(field("server")?, &data("certificate-authority-data")?, Some(&identity), None)
    }

    /// URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Starts a request that the methods below do not cover.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).header(ACCEPT, "application/json")
    }

    /// Sends a request and reads the whole response.
    ///
    /// # Errors
    /// No complete response.
    pub async fn send(&self, request: RequestBuilder) -> anyhow::Result<ApiResponse> {
        let response = request.timeout(BOUND).send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        Ok(ApiResponse {
            status,
            headers,
            body: serde_json::from_str(&text).unwrap_or_default(),
            text,
        })
    }

    /// GET.
    ///
    /// # Errors
    /// See [`Self::send`].
    pub async fn get(&self, path: &str) -> anyhow::Result<ApiResponse> {
        self.send(self.request(Method::GET, path)).await
    }

    /// POST.
    ///
    /// # Errors
    /// See [`Self::send`].
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<ApiResponse> {
        self.send(
            self.request(Method::POST, path)
                .header(CONTENT_TYPE, "application/json")
                .body(body.to_string()),
        )
        .await
    }

    /// PUT.
    ///
    /// # Errors
    /// See [`Self::send`].
    pub async fn put(&self, path: &str, body: &Value) -> anyhow::Result<ApiResponse> {
        self.send(
            self.request(Method::PUT, path)
                .header(CONTENT_TYPE, "application/json")
                .body(body.to_string()),
        )
        .await
    }

    /// PATCH with a merge patch.
    ///
    /// # Errors
    /// See [`Self::send`].
    pub async fn merge(&self, path: &str, body: &Value) -> anyhow::Result<ApiResponse> {
        self.send(
            self.request(Method::PATCH, path)
                .header(CONTENT_TYPE, "application/merge-patch+json")
                .body(body.to_string()),
        )
        .await
    }

    /// DELETE.
    ///
    /// # Errors
    /// See [`Self::send`].
    pub async fn delete(&self, path: &str) -> anyhow::Result<ApiResponse> {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Starts a watch; `path` must include `watch=true`.
    ///
    /// # Errors
    /// The watch was refused.
    pub async fn watch(&self, path: &str) -> anyhow::Result<WatchLines> {
        let response = self.request(Method::GET, path).send().await?.error_for_status()?;
        Ok(WatchLines { response, rest: Vec::new(), lines: VecDeque::new() })
    }
}

/// Events of a watch.
#[derive(Debug)]
pub struct WatchLines {
    response: Response,
    rest: Vec<u8>,
    lines: VecDeque<Value>,
}

impl WatchLines {
    /// The next event; `None` at the end of the stream.
    ///
    /// # Errors
    /// The stream broke, or an event is not JSON.
    pub async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(Some(line));
            }
            let Some(chunk) = self.response.chunk().await? else { return Ok(None) };
            self.rest.extend_from_slice(&chunk);
            let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { continue };
            let rest = self.rest.split_off(end + 1);
            let whole = std::mem::replace(&mut self.rest, rest);
            for line in whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                self.lines.push_back(serde_json::from_slice(line)?);
            }
        }
    }
}
