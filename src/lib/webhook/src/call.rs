//! Calls of one webhook.

use crate::config::WebhookAddress;
use crate::fault::CallFault;
use crate::trust;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_flow::{Away, AwayError, BudgetCaller, BudgetGrant, QueueLimit, Share};
use ferrokube_trace::{Span, SpanInfo, SpanSide, TraceContext, inject};
use http::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Client, Identity};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Max time until connected.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Fields of an answer's head; its bytes over HTTP/2. Over HTTP/1.1 the parser's buffer bounds
/// them, at some 400 KB.
const HEAD_FIELDS: usize = 100;
const HEAD_BYTES: u32 = 64 * 1024;
/// Step by which the memory of a response grows.
const GROWTH: usize = 16 * 1024;

/// Limits of one webhook. One caller has at most half of each, less while others have some.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// Max concurrent calls.
    pub calls: usize,
    /// Max calls that wait for those.
    pub waiting: usize,
}

/// A webhook that can be called. Connections are made when it is first called, and reused.
#[derive(Debug)]
pub struct Webhook {
    address: WebhookAddress,
    client: OnceLock<Result<Client, CallFault>>,
    /// Running calls. The next one is of the caller that has fewest.
    calls: Share,
    /// Calls that are running or waiting.
    admitted: Share,
}

/// A call that may run or wait, until this is dropped.
#[derive(Debug)]
pub struct AdmittedCall {
    caller: BudgetCaller,
    _room: BudgetGrant,
}

/// A call to make: what is sent, and how long it may take.
#[derive(Debug)]
pub struct WebhookCall<'a> {
    /// Name and resource of its span.
    pub span: (&'a str, &'a str),
    /// JSON.
    pub body: Vec<u8>,
    /// From the start of the request to the end of the answer. The wait for other calls may take as
    /// long.
    pub timeout: Duration,
    /// Whether the query tells the webhook the timeout, in seconds.
    pub announces_timeout: bool,
    /// Max bytes of the answer.
    pub answer_bytes: usize,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// Shown to the client.
    Failed(CallFault),
    /// The caller's budget was revoked.
    NoRoom,
    /// Other calls ran until the time of this one was over.
    NoTurn,
}

impl From<CallFault> for CallError {
    fn from(fault: CallFault) -> Self {
        Self::Failed(fault)
    }
}

impl From<AwayError> for CallError {
    fn from(_: AwayError) -> Self {
        Self::NoRoom
    }
}

impl Webhook {
    /// No connection is made yet.
    pub fn new(address: WebhookAddress, limits: CallLimits) -> Self {
        let admitted = limits.calls + limits.waiting;
        Self {
            address,
            client: OnceLock::new(),
            // Admitted calls are not too many for its queue.
            calls: Share::new(limits.calls, QueueLimit { per_caller: admitted, total: admitted }),
            admitted: Share::new(admitted, QueueLimit::NONE),
        }
    }

    /// URL, CA bundle and user of the calls.
    pub fn address(&self) -> &WebhookAddress {
        &self.address
    }

    /// Admits a call for a caller by its number; `None` if there are too many, in all or of this
    /// caller.
    pub fn try_admit(&self, caller: u64) -> Option<AdmittedCall> {
        let caller = BudgetCaller::numbered(caller);
        let room = self.admitted.try_take(caller, 1)?;
        Some(AdmittedCall { caller, _room: room })
    }

    /// Takes the place of all concurrent calls, as running ones do. `None`: some are running.
    pub fn occupy(&self) -> Option<BudgetGrant> {
        self.calls.try_take(BudgetCaller::numbered(u64::MAX), self.calls.limit())
    }

    /// Posts the body and returns the answer, which has status 200. The call has a span of its own
    /// in the request's trace, and carries its ids.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(
        &self,
        admitted: AdmittedCall,
        call: WebhookCall<'_>,
        away: &mut Away,
    ) -> Result<Vec<u8>, CallError> {
        let (name, resource) = call.span;
        let info = SpanInfo { name, resource, namespace: "", object: "" };
        let (context, mut span) = Span::part(SpanSide::Client, &info);
        let answer = self.exchange(&admitted, call, context, away).await;
        if answer.is_err() {
            span.fail();
        }
        answer
    }

    async fn exchange(
        &self,
        admitted: &AdmittedCall,
        call: WebhookCall<'_>,
        context: Option<TraceContext>,
        away: &mut Away,
    ) -> Result<Vec<u8>, CallError> {
        let turn = self.calls.take(admitted.caller, 1, call.timeout);
        let _running = unless_revoked(away, turn).await?.ok_or(CallError::NoTurn)?;
        let mut request = self
            .client()?
            .post(self.url(&call))
            .timeout(call.timeout)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, */*")
            .body(call.body);
        if let Some(user) = &self.address.user {
            request = request.headers(user.headers.clone());
        }
        if let Some(context) = context {
            let mut headers = http::HeaderMap::new();
            inject(&context, &mut headers);
            request = request.headers(headers);
        }
        let fault = |error: reqwest::Error| {
            self.address.certificates.count(&error);
            CallFault::from(&error)
        };
        let mut response = unless_revoked(away, request.send()).await?.map_err(fault)?;
        let status = response.status();
        if status != http::StatusCode::OK {
            // The response body is neither returned nor logged.
            return Err(CallFault::Status(status.as_u16()).into());
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = unless_revoked(away, response.chunk()).await?.map_err(fault)? {
            if bytes.len() + chunk.len() > call.answer_bytes {
                return Err(CallFault::TooLong(call.answer_bytes).into());
            }
            if bytes.len() + chunk.len() > bytes.capacity() {
                let more = (bytes.capacity()).max(chunk.len()).max(GROWTH);
                away.grow(more).await?;
                bytes.reserve_exact(more);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    fn url(&self, call: &WebhookCall<'_>) -> String {
        let url = &self.address.url;
        if !call.announces_timeout {
            return url.clone();
        }
        let seconds = call.timeout.as_secs() + u64::from(call.timeout.subsec_nanos() > 0);
        format!("{url}?timeout={seconds}s")
    }

    fn client(&self) -> Result<&Client, CallFault> {
        self.client.get_or_init(|| client(&self.address)).as_ref().map_err(Clone::clone)
    }
}

/// Runs `work` unless the memory of the waiting request is needed elsewhere.
///
/// # Errors
/// [`AwayError::Full`].
pub async fn unless_revoked<T>(
    away: &mut Away,
    work: impl Future<Output = T>,
) -> Result<T, AwayError> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = away.revoked() => Err(AwayError::Full),
    }
}

fn client(address: &WebhookAddress) -> Result<Client, CallFault> {
    trust::ensure_provider();
    let mut builder = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .https_only(true)
        .http1_max_headers(HEAD_FIELDS)
        .http2_max_header_list_size(HEAD_BYTES)
        .no_proxy();
    let wrong = |why: &str| CallFault::Config(why.to_owned());
    let certificate = address.user.as_ref().and_then(|user| user.certificate.as_ref());
    if !address.ca_bundle.is_empty() {
        let pem =
            STANDARD.decode(&address.ca_bundle).map_err(|_| wrong("its caBundle is not base64"))?;
        let identity = certificate.map(|certificate| &certificate.key);
        let config = trust::client_config(&pem, identity).map_err(CallFault::Config)?;
        builder = builder.tls_backend_preconfigured(config);
    } else if let Some(certificate) = certificate {
        let identity = Identity::from_pem(&certificate.pem)
            .map_err(|_| wrong("its client certificate cannot be used"))?;
        builder = builder.identity(identity);
    }
    if let Some(service) = &address.service {
        builder = builder.dns_resolver(Arc::new(service.clone()));
    }
    builder.build().map_err(|error| {
        CallFault::Config(format!("no client could be made: {}", CallFault::from(&error)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NoServices, Resolution, ServiceResolver, WebhookAccess};
    use ferrokube_apimachinery::document::json;

    /// Far beyond what the calls take on the slowest machine.
    const BOUND: Duration = Duration::from_secs(60);

    /// Without a caBundle the client verifies as the process does.
    #[test]
    fn a_program_need_not_set_up_cryptography() {
        let access = WebhookAccess::anonymous(Arc::new(NoServices));
        let address = WebhookAddress::of(&json!({"url": "https://localhost/"}), &access);
        let webhook = Webhook::new(address, CallLimits { calls: 1, waiting: 0 });
        assert!(webhook.client().is_ok());
    }

    #[derive(Debug)]
    struct SilentService;

    impl ServiceResolver for SilentService {
        fn resolve<'a>(&'a self, _: &'a str, _: &'a str, _: u16) -> Resolution<'a> {
            Box::pin(std::future::pending())
        }
    }

    async fn until_calls(webhook: &Webhook, running: usize, waiting: usize) {
        let reached = async {
            while webhook.calls.usage() != (running, waiting) {
                tokio::task::yield_now().await;
            }
        };
        let reached = tokio::time::timeout(BOUND, reached).await;
        reached.unwrap_or_else(|_| panic!("running and waiting: {:?}", webhook.calls.usage()));
    }

    #[tokio::test]
    async fn fault_33_one_caller_leaves_half_of_a_slow_webhook_to_others() {
        let access = WebhookAccess::anonymous(Arc::new(SilentService));
        let address =
            WebhookAddress::of(&json!({"service": {"namespace": "n", "name": "s"}}), &access);
        let webhook = Arc::new(Webhook::new(address, CallLimits { calls: 4, waiting: 12 }));
        let begin = |caller: u64| {
            let admitted = webhook.try_admit(caller)?;
            let webhook = Arc::clone(&webhook);
            Some(tokio::spawn(async move {
                let mut away = Away::begin(1, 0).await.expect("outside of requests");
                let call = WebhookCall {
                    span: ("admit", "configmaps"),
                    body: b"{}".to_vec(),
                    timeout: BOUND,
                    announces_timeout: false,
                    answer_bytes: 1000,
                };
                webhook.call(admitted, call, &mut away).await
            }))
        };
        let mut many: Vec<_> = std::iter::from_fn(|| begin(1)).collect();
        assert_eq!(many.len(), 8);
        until_calls(&webhook, 2, 6).await;
        let _other = begin(2).expect("half of all is free");
        until_calls(&webhook, 3, 6).await;
        many.drain(..2).for_each(|call| call.abort());
        // With two, more would not be left free.
        until_calls(&webhook, 2, 5).await;
        assert!(begin(1).is_some(), "fewer than half are waiting");
    }
}
