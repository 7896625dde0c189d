//! `ferrokube trace-webhook`: trace ids for another API server, as a mutating admission webhook.

use super::flags::{FeatureFlags, LogFlags};
use super::notify;
use super::process::{self, Signals};
use super::server::report;
use anyhow::{Context, anyhow};
use clap::Args;
use ferrokube_admission::review::{self, ReviewResponse};
use ferrokube_auth::authenticate::X509;
use ferrokube_auth::{Authenticator, Credentials, system_clock};
use ferrokube_features::{Gates, LOG_TRACKING};
use ferrokube_serve::reload::{LoadedFiles, TlsFiles};
use ferrokube_serve::{
    BodyError, Handler, ListenerLimits, Peer, Request, Response, Server, ShutdownTrigger, Tls,
    full, read_body_within,
};
use ferrokube_trace::{TraceContext, extract, extract_initial, in_scope};
use http::{HeaderMap, Method, StatusCode};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

#[derive(Debug, Args)]
pub(crate) struct TraceWebhookFlags {
    /// Address to listen on
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    bind_address: IpAddr,
    /// Port to listen on; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = 9443)]
    secure_port: u16,
    /// Serving certificate chain; reloaded on change
    #[arg(long, value_name = "FILE")]
    tls_cert_file: PathBuf,
    /// Key of --tls-cert-file
    #[arg(long, value_name = "FILE")]
    tls_private_key_file: PathBuf,
    /// CAs of client certificates required for reviews and metrics; reloaded on change [default:
    /// anyone may call]
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Common names allowed for callers; empty: any
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "client_ca_file")]
    client_allowed_names: Vec<String>,
    #[command(flatten)]
    features: FeatureFlags,
    #[command(flatten)]
    log: LogFlags,
}

/// Two objects of the maximum size, plus overhead.
const MAX_BODY_BYTES: usize = 8 << 20;
/// A later body misses the API server's timeout.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Bodies read concurrently; further calls are refused.
const MAX_BODIES: usize = 1_000;
/// Bytes per body that do not count towards [`MAX_BYTES`].
const FREE_BYTES: usize = 16 << 10;
/// Total bytes of bodies received so far; calls beyond it are refused. Bytes not yet received are
/// not reserved.
const MAX_BYTES: usize = 64 << 20;
/// Interval of certificate file checks.
const RELOAD: Duration = Duration::from_secs(2);

/// Runs until a signal.
pub(crate) fn run(flags: &TraceWebhookFlags) -> anyhow::Result<ExitCode> {
    let (gates, warnings) = flags.features.gates()?;
    let (log, files) = (flags.log.config(&gates, None), flags.files());
    process::check_log(&log)?;
    let (chain, key) = files.read_serving()?.ok_or_else(|| anyhow!("no certificate"))?;
    let tls =
        Tls::new(&chain, &key).context("cannot use --tls-cert-file and --tls-private-key-file")?;
    let loaded = files.apply(&tls, &LoadedFiles::default())?;
    let _telemetry = process::set_up(&log, &gates, &warnings, None)?;
    let callers = flags.client_ca_file.is_some().then(|| Callers {
        certificates: X509::new(system_clock()),
        allowed: flags.client_allowed_names.clone(),
    });
    if callers.is_none() && !flags.bind_address.is_loopback() {
        tracing::warn!(address = %flags.bind_address, "anyone who reaches this address may call; --client-ca-file requires client certificates");
    }
    let webhook = TraceWebhook {
        on: gates.enabled(&LOG_TRACKING),
        callers,
        bodies: Semaphore::new(MAX_BODIES),
        bytes: Semaphore::new(MAX_BYTES),
        counts: WebhookCounters::default(),
        gates,
    };
    process::block_on(serve(flags, Arc::new(webhook), files, tls, loaded))
}

impl TraceWebhookFlags {
    fn files(&self) -> TlsFiles {
        let serving = Some((self.tls_cert_file.clone(), self.tls_private_key_file.clone()));
        TlsFiles { serving, client_ca: self.client_ca_file.clone(), ..TlsFiles::default() }
    }
}

async fn serve(
    flags: &TraceWebhookFlags,
    webhook: Arc<TraceWebhook>,
    files: TlsFiles,
    tls: Tls,
    loaded: LoadedFiles,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let address = SocketAddr::new(flags.bind_address, flags.secure_port);
    let server = Server::bind(address, tls.clone(), ListenerLimits::default())
        .context("choose another port with --secure-port (0 takes any free one)")?;
    let (trigger, shutdown) = ShutdownTrigger::new();
    let local = server.local_address();
    let watching = tokio::spawn(files.watch(tls, loaded, RELOAD, shutdown.clone()));
    let serving = tokio::spawn(server.serve(webhook, shutdown));
    notify::ready(&format!("https://{local}/mutate"));
    report(&format!("ready: https://{local}/mutate"));
    let (name, _) = signals.next().await;
    tracing::info!(signal = name, "ending");
    trigger.begin();
    let _ = tokio::join!(watching, serving);
    Ok(ExitCode::SUCCESS)
}

/// Handles admission reviews.
struct TraceWebhook {
    /// Gate `LogTracking`.
    on: bool,
    /// Allowed callers; `None` allows anyone.
    callers: Option<Callers>,
    bodies: Semaphore,
    bytes: Semaphore,
    counts: WebhookCounters,
    gates: Gates,
}

/// A body's share of the bytes.
struct BodyBudget<'a> {
    bytes: &'a Semaphore,
    free: usize,
    held: Option<SemaphorePermit<'a>>,
}

impl BodyBudget<'_> {
    fn take(&mut self, bytes: usize) -> bool {
        let counted = bytes.saturating_sub(self.free);
        self.free -= bytes - counted;
        let Ok(more) = self.bytes.try_acquire_many(u32::try_from(counted).unwrap_or(u32::MAX))
        else {
            return false;
        };
        match &mut self.held {
            Some(held) => held.merge(more),
            none => *none = Some(more),
        }
        true
    }
}

/// Allowed callers: certificates verified by the client CA, optionally with one of these names.
struct Callers {
    certificates: X509,
    allowed: Vec<String>,
}

impl Callers {
    fn may_call(&self, peer: Option<&Arc<Peer>>) -> bool {
        let certificate = peer.and_then(|peer| peer.certificate.as_deref());
        let known =
            self.certificates.authenticate(&Credentials { certificate, ..Credentials::default() });
        known.is_ok_and(|known| {
            known.is_some_and(|known| {
                self.allowed.is_empty() || self.allowed.contains(&known.user.name)
            })
        })
    }
}

/// Monotonic counters.
#[derive(Default)]
struct WebhookCounters {
    stamped: AtomicU64,
    skipped: AtomicU64,
    unreadable: AtomicU64,
}

impl Handler for TraceWebhook {
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            match (request.method(), request.uri().path()) {
                (&Method::GET, "/healthz" | "/livez" | "/readyz") => {
                    text(StatusCode::OK, "ok".to_owned())
                }
                _ if !self.may_call(&request) => {
                    text(StatusCode::UNAUTHORIZED, "client certificate required\n".to_owned())
                }
                (&Method::GET, "/metrics") => {
                    let mut metrics = self.counts.metrics();
                    ferrokube_features::metrics::write(&mut metrics, &self.gates);
                    text(StatusCode::OK, metrics)
                }
                (&Method::POST, "/" | "/mutate") => self.review(request).await,
                (_, "/" | "/mutate") => {
                    text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n".to_owned())
                }
                _ => text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
            }
        })
    }
}

impl TraceWebhook {
    fn may_call(&self, request: &Request) -> bool {
        self.callers.as_ref().is_none_or(|callers| callers.may_call(request.extensions().get()))
    }

    async fn review(&self, request: Request) -> Response {
        let Ok(_reading) = self.bodies.try_acquire() else {
            return text(StatusCode::TOO_MANY_REQUESTS, format!("{}\n", BodyError::NoRoom));
        };
        let mut room = BodyBudget { bytes: &self.bytes, free: FREE_BYTES, held: None };
        let (head, body) = request.into_parts();
        let body = match read_body_within(body, MAX_BODY_BYTES, BODY_TIME, |bytes| room.take(bytes))
            .await
        {
            Ok(body) => body,
            Err(error) => {
                self.counts.unreadable.fetch_add(1, Ordering::Relaxed);
                let status = match error {
                    BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                    BodyError::NoRoom => StatusCode::TOO_MANY_REQUESTS,
                    BodyError::Slow => StatusCode::REQUEST_TIMEOUT,
                    BodyError::Broken(_) => StatusCode::BAD_REQUEST,
                };
                return text(status, format!("{error}\n"));
            }
        };
        let trace = context(&head.headers);
        match review::answer(&body, &trace, self.on) {
            Ok(answered) => self.answer(&trace, answered),
            Err(error) => {
                self.counts.unreadable.fetch_add(1, Ordering::Relaxed);
                text(StatusCode::BAD_REQUEST, format!("{error}\n"))
            }
        }
    }

    fn answer(&self, trace: &TraceContext, answered: ReviewResponse) -> Response {
        let ReviewResponse { body, stamped, about } = answered;
        let counter = if stamped { &self.counts.stamped } else { &self.counts.skipped };
        counter.fetch_add(1, Ordering::Relaxed);
        in_scope(trace, || {
            tracing::debug!(
                operation = about.operation,
                k8s.resource = about.resource,
                k8s.namespace = about.namespace,
                k8s.name = about.name,
                stamped,
                "review"
            );
        });
        respond(StatusCode::OK, "application/json", body)
    }
}

/// Trace context of the API server's request, from its headers: the call is not an action of its
/// own. Without headers, each write starts a new trace.
fn context(headers: &HeaderMap) -> TraceContext {
    extract(headers).unwrap_or_else(TraceContext::root).with_initial(extract_initial(headers))
}

fn text(status: StatusCode, text: String) -> Response {
    respond(status, "text/plain; charset=utf-8", text.into_bytes())
}

fn respond(status: StatusCode, media_type: &'static str, body: Vec<u8>) -> Response {
    let response = http::Response::builder()
        .status(status)
        .header(http::header::CONTENT_TYPE, media_type)
        .body(full(body));
    response.expect("a constant head is well-formed")
}

impl WebhookCounters {
    fn metrics(&self) -> String {
        let [stamped, skipped, unreadable] = [&self.stamped, &self.skipped, &self.unreadable]
            .map(|count| count.load(Ordering::Relaxed));
        format!(
            "# HELP ferrokube_trace_stamps_total Reviews that gave an object ids, and reviews that did not.\n\
             # TYPE ferrokube_trace_stamps_total counter\n\
             ferrokube_trace_stamps_total{{outcome=\"stamped\"}} {stamped}\n\
             ferrokube_trace_stamps_total{{outcome=\"skipped\"}} {skipped}\n\
             # HELP ferrokube_trace_unreadable_reviews_total Bodies that were no review.\n\
             # TYPE ferrokube_trace_unreadable_reviews_total counter\n\
             ferrokube_trace_unreadable_reviews_total {unreadable}\n"
        )
    }
}
