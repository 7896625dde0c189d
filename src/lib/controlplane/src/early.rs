//! Requests before the storage has been read once: probes and the version, nothing else.
//!
//! Users and rights cannot be looked up, so the cause of the outage is only logged.

use crate::action::Options;
use crate::encode::Encoder;
use crate::negotiate::Accepted;
use crate::{health, status, version};
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_serve::{CloseConnection, Handler, Request, Response};
use http::{Method, Version};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

/// kube-apiserver's message and Retry-After, in seconds, of a server that does not serve all paths
/// yet.
const NOT_READY: &str =
    "the request has been made before all known HTTP paths have been installed, please retry";
const RETRY_AFTER: u32 = 5;

/// Checks that every probe has, and whether they pass without storage.
const CHECKS: [(&str, bool); 3] = [("ping", true), ("log", true), ("etcd", false)];
/// Additional checks of `/readyz`.
const READY_CHECKS: [(&str, bool); 4] = [
    ("etcd-readiness", false),
    ("informer-sync", false),
    ("poststarthook/storage-readiness", false),
    ("shutdown", true),
];

/// Handles a listener's requests until the API server is ready, then forwards them to it.
pub struct EarlyHandler {
    encoder: Encoder,
    server: OnceLock<Arc<dyn Handler>>,
}

impl EarlyHandler {
    /// A handler without an API server.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { encoder: Encoder::new(Arc::default()), server: OnceLock::new() })
    }

    /// Forwards all further requests to `handler`. Later calls have no effect.
    pub fn hand_over(&self, server: Arc<dyn Handler>) {
        let _ = self.server.set(server);
    }

    fn respond(&self, request: &http::Request<impl Sized>) -> Response {
        let path = request.uri().path();
        let mut response = match path {
            "/healthz" | "/livez" | "/readyz" => {
                let probe = &path[1..];
                let more = if probe == "readyz" { &READY_CHECKS[..] } else { &[] };
                let checks = CHECKS.iter().chain(more).map(|(name, passes)| {
                    let why = "the storage has not been read yet";
                    let outcome = if *passes { Ok(()) } else { Err(why.to_owned()) };
                    ((*name).to_owned(), outcome)
                });
                health::respond(probe, checks.collect(), &Options::parse(request.uri().query()))
            }
            "/version" if request.method() == Method::GET => {
                let version = version::document();
                status::encoded(200, self.encoder.document(&version, Accepted::JSON, None))
            }
            _ => {
                let details = Details { retry_after_seconds: RETRY_AFTER, ..Details::default() };
                let failure =
                    Failure::new(Reason::ServiceUnavailable, NOT_READY).with_details(details);
                status::respond(&failure, &self.encoder, request.headers())
            }
        };
        if request.version() == Version::HTTP_2 {
            // Fault 37: the client has shown no credentials.
            response.extensions_mut().insert(CloseConnection);
        }
        response
    }
}

impl Handler for EarlyHandler {
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        match self.server.get() {
            Some(server) => Arc::clone(server).call(request),
            None => {
                let response = self.respond(&request);
                Box::pin(std::future::ready(response))
            }
        }
    }

    fn panicked(&self) -> Response {
        match self.server.get() {
            Some(server) => server.panicked(),
            None => status::text(500, "internal error\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    async fn get(path: &str) -> (u16, String, Option<String>) {
        let request = http::Request::get(path).body(()).unwrap();
        let response = EarlyHandler::new().respond(&request);
        let code = response.status().as_u16();
        let delay = response.headers().get(http::header::RETRY_AFTER);
        let delay = delay.map(|value| value.to_str().unwrap().to_owned());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.into()).unwrap(), delay)
    }

    #[tokio::test]
    async fn probes_name_the_storage_and_nothing_is_served() {
        for probe in ["livez", "readyz", "healthz"] {
            let (code, text, _) = get(&format!("/{probe}?verbose")).await;
            assert_eq!(code, 500, "{text}");
            assert!(text.contains("[+]ping ok\n[+]log ok\n[-]etcd failed: reason withheld\n"));
            assert!(text.ends_with(&format!("{probe} check failed\n")), "{text}");
        }
        assert_eq!(get("/livez?exclude=etcd").await, (200, "ok".to_owned(), None));
        assert_eq!(get("/readyz?exclude=etcd").await.0, 500);
        assert!(get("/version").await.1.contains("\"gitVersion\""));
        let paths = ["/", "/api", "/apis", "/readyz/etcd", "/metrics", "/openapi/v2", "/livez/"];
        for path in paths.into_iter().chain(["/api/v1/namespaces", "/none"]) {
            let (code, text, delay) = get(path).await;
            assert_eq!((code, delay.as_deref()), (503, Some("5")), "{path}: {text}");
            let words = ["\"reason\":\"ServiceUnavailable\"", "HTTP paths have been installed"];
            assert!(words.into_iter().all(|words| text.contains(words)), "{path}: {text}");
        }
    }
}
