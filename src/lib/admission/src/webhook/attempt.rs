//! One review by one webhook.

use super::answer::{self, ReviewAnswer};
use super::hook::Hook;
use super::matching::ReviewedWrite;
use super::review::PendingReview;
use crate::objects::ReviewedObjects;
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::heap;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_flow::{Away, AwayError, BudgetGrant, response_part};
use ferrokube_registry::RequestContext;
use ferrokube_registry::offload::{caller, compute_shared, is_costly, return_to_worker};
use ferrokube_webhook::{CallError, CallFault, WebhookCall};
use std::time::Duration;
use tokio::time::Instant;

/// All reviews of a request together, so that a chain of slow webhooks that may fail open leaves
/// time for the request itself.
const BUDGET: Duration = Duration::from_secs(50);
/// Overhead of a call.
const CALL_BYTES: usize = 16 * 1024;
/// Max bytes of an answer, on top of twice those of the review.
const ANSWER_BYTES: usize = 4 << 20;

/// Why a review does not allow the write.
#[derive(Debug)]
pub(super) enum ReviewFault {
    /// The call failed: the webhook's failure policy decides. kube-apiserver's message.
    Call(String),
    /// The webhook denied the write.
    Denied(Failure),
    /// Rejected regardless of the failure policy.
    Failed(Failure),
}

impl ReviewFault {
    /// The label of metrics.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Call(_) => "calling_webhook_error",
            Self::Denied(_) => "no_error",
            Self::Failed(_) => "apiserver_internal_error",
        }
    }
}

/// The failure of a request whose webhook failed.
pub(super) fn failed_closed(hook: &Hook, why: &str) -> Failure {
    Failure::internal(format!("failed calling webhook {}: {why}", quote(&hook.name)))
}

/// When the reviews of a request must end; the first review begins it.
///
/// # Errors
/// 504: it has passed.
pub(super) fn deadline(context: &RequestContext) -> Result<Instant, Failure> {
    let deadline = context.reviews_began() + BUDGET;
    if deadline <= Instant::now() {
        let why = "Timeout: request did not complete within requested timeout";
        return Err(Failure::new(Reason::Timeout, why));
    }
    Ok(deadline)
}

/// A review that allows the write.
pub(super) struct FinishedReview {
    pub(super) answer: ReviewAnswer,
    /// Memory of the response, and of the values of its patch.
    _memory: [Option<BudgetGrant>; 2],
}

/// Bytes needed by a call with objects of `length` bytes, in addition to those held by the request.
pub(super) const fn review_bytes(length: usize) -> usize {
    CALL_BYTES + 2 * length
}

/// Sends a review and reads the answer; passes its warnings and audit annotations on. Continues on
/// a worker, as its permit must not wait in the queue of one caller.
///
/// # Errors
/// [`ReviewFault`]; also if the webhook denies the write.
pub(super) async fn attempt(
    hook: &Hook,
    write: &ReviewedWrite<'_>,
    objects: &ReviewedObjects<'_>,
    mutates: bool,
) -> Result<FinishedReview, ReviewFault> {
    if write.attributes.dry_run && !hook.allows_dry_run {
        let why = format!("admission webhook {} does not support dry run", quote(&hook.name));
        return Err(ReviewFault::Failed(Failure::bad_request(why)));
    }
    let Some(version) = hook.review_version else {
        return Err(ReviewFault::Call("could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)".to_owned()));
    };
    let context = write.attributes.context;
    let deadline = deadline(context).map_err(ReviewFault::Failed)?;
    let timeout = hook.timeout.min(deadline - Instant::now());
    let uid = uuid::Uuid::new_v4().to_string();
    let review = PendingReview::new(write, objects, &uid, version);
    let length = review.len();
    let busy = || ReviewFault::Failed(too_many(hook));
    return_to_worker().await;
    let Some(admitted) = hook.webhook.try_admit(caller()) else { return Err(busy()) };
    let room = |why: AwayError| match why {
        AwayError::Full => busy(),
        AwayError::TooLarge => ReviewFault::Failed(ferrokube_flow::too_large()),
    };
    let mut away = Away::begin(hook.number, review_bytes(length)).await.map_err(room)?;
    let call = WebhookCall {
        span: ("admit", &write.attributes.target.served.definition.plural),
        timeout,
        announces_timeout: true,
        answer_bytes: ANSWER_BYTES + 2 * length,
        body: review.into_json(),
    };
    // The timeout includes the wait for a free call.
    let calling = tokio::time::timeout(timeout, hook.webhook.call(admitted, call, &mut away));
    let answer = match calling.await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(CallError::NoRoom)) => return Err(busy()),
        Ok(Err(CallError::Failed(fault))) => Err(fault),
        Ok(Err(CallError::NoTurn)) | Err(_) => Err(CallFault::Timeout),
    };
    let answer = answer.map_err(|fault| {
        tracing::warn!(webhook = hook.name, class = %fault, "a webhook failed");
        ReviewFault::Call(format!("failed to call webhook: {}", worded(hook, &fault)))
    })?;
    let too_many_values = "failed to call webhook: the answer holds too many values";
    let tree = |found: Result<Option<BudgetGrant>, AwayError>| match found {
        Err(AwayError::TooLarge) => Err(ReviewFault::Call(too_many_values.to_owned())),
        found => found.map_err(room),
    };
    let of_answer = tree(away.end(heap::json_bound(&answer)).await)?;
    let read = || answer::read(&answer, &uid, version, mutates);
    let read = match is_costly(&answer) {
        // Other reviews of the request hold their permits meanwhile.
        true => compute_shared(hook.number, read).await,
        false => read(),
    };
    let mut read = read.map_err(ReviewFault::Call)?;
    read.note(context, &hook.name);
    if !read.allowed {
        return Err(ReviewFault::Denied(read.denial(&hook.name)));
    }
    let of_patch = match read.patch.is_empty() {
        true => None,
        false => tree(response_part(hook.number, heap::json_bound(&read.patch)).await)?,
    };
    Ok(FinishedReview { answer: read, _memory: [of_answer, of_patch] })
}

/// Never fails open: the server's own load must not switch a webhook off.
fn too_many(hook: &Hook) -> Failure {
    let details = Details { retry_after_seconds: 1, ..Details::default() };
    let message = format!(
        "admission webhook {} has too many requests, please try again later",
        quote(&hook.name)
    );
    Failure::new(Reason::TooManyRequests, message).with_details(details)
}

/// The class of a failed call, with client-go's message where it has one.
fn worded(hook: &Hook, fault: &CallFault) -> String {
    let posting = |why: &str| format!("Post {}: {why}", quote(&hook.webhook.address().shown()));
    match fault {
        CallFault::Config(why) => why.clone(),
        CallFault::Service(why) => posting(why),
        CallFault::Timeout => "context deadline exceeded".to_owned(),
        CallFault::Unreachable => "the webhook could not be reached".to_owned(),
        CallFault::Broken => "the connection to the webhook broke".to_owned(),
        CallFault::TooLong(limit) => format!("the answer is longer than {limit} bytes"),
        CallFault::Status(code) => match code {
            400 => "the server rejected our request for an unknown reason".to_owned(),
            401 => "the server has asked for the client to provide credentials".to_owned(),
            404 => "the server could not find the requested resource".to_owned(),
            405 => {
                "the server does not allow this method on the requested resource".to_owned()
            }
            503 => "the server is currently unable to handle the request".to_owned(),
            504 => "the server was unable to return a response in the time allotted, but may still be processing the request".to_owned(),
            code if *code >= 500 => {
                "an error on the server (\"unknown\") has prevented the request from succeeding"
                    .to_owned()
            }
            code => format!(
                "the server responded with the status code {code} but did not return more information"
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::WebhookEnvironment;
    use super::super::stats::WebhookKind;
    use super::*;
    use crate::objects::ObjectVersions;
    use crate::step::{PermitQuery, Permits};
    use ferrokube_apimachinery::document::{Document, json};
    use ferrokube_apimachinery::user::UserInfo;
    use ferrokube_cel::{CheckDecision, Right};
    use ferrokube_registry::offload::{Offload, has_slot, leave_worker};
    use ferrokube_registry::{AdmissionOptions, Attributes, Catalog, Local, Operation, Target};
    use ferrokube_storage::{Config, Store};
    use ferrokube_webhook::{CertificateFaults, NoServices, WebhookAccess};
    use std::sync::Arc;

    struct NoPermits;

    impl Permits for NoPermits {
        fn decide(&self, _user: &UserInfo, _right: &Right) -> CheckDecision {
            CheckDecision::default()
        }

        fn permits(&self, _user: &UserInfo, _question: &PermitQuery<'_>) -> bool {
            false
        }
    }

    /// Runs `check` with a webhook whose calls wait until their time is over.
    async fn with_hung_webhook(
        check: impl AsyncFnOnce(&Hook, &ReviewedWrite<'_>, &ReviewedObjects<'_>),
    ) {
        let catalog = Arc::new(Catalog::default());
        let tables = ferrokube_resources::tables();
        ferrokube_resources::definitions(tables).into_iter().for_each(|one| catalog.put(one));
        let served = catalog.find("", "v1", "configmaps").expect("it is bundled");
        let environment = WebhookEnvironment {
            store: Store::open(Config::memory()).expect("it is in memory"),
            catalog,
            permits: Arc::new(NoPermits),
            services: Arc::new(NoServices),
            stats: Arc::default(),
            certificates: CertificateFaults::default(),
        };
        let context = Local::context();
        let (namespace, name) = (Some("n".to_owned()), Some("a".to_owned()));
        let target = Target { served: served.clone(), namespace, name, subresource: String::new() };
        let attributes = Attributes {
            context: &context,
            target: &target,
            operation: Operation::Create,
            old: None,
            options: AdmissionOptions::Connect,
            dry_run: false,
        };
        let write = ReviewedWrite::new(&environment, WebhookKind::Validating, attributes);
        let mut versions = ObjectVersions::default();
        let objects = versions.get(&write.write, served, [None, None]).await.expect("none");
        let webhooks = json!([{"name": "a.example.com", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://localhost:1/"}}]);
        let configuration = json!({"metadata": {"name": "c"}, "webhooks": webhooks});
        let configuration = Document::from_value(configuration).expect("an object");
        let access = WebhookAccess::anonymous(Arc::new(NoServices));
        let hook = Hook::all(&configuration, &access).swap_remove(0);
        let _occupied = hook.webhook.occupy().expect("no call is running");
        check(&hook, &write, &objects).await;
    }

    /// Other reviews of the request hold their permits when it continues.
    #[tokio::test(start_paused = true)]
    async fn fault_34_a_review_ends_on_a_worker() {
        with_hung_webhook(async |hook, write, objects| {
            let review = async {
                leave_worker().await;
                let found = attempt(hook, write, objects, false).await;
                (matches!(found, Err(ReviewFault::Call(_))), has_slot())
            };
            assert_eq!(Offload::default().run(1, Box::pin(review)).await, (true, false));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn fault_33_reviews_of_one_caller_leave_room_for_those_of_another() {
        with_hung_webhook(async |hook, write, objects| {
            let _reviews: Vec<_> = std::iter::from_fn(|| hook.webhook.try_admit(1)).collect();
            let offload = Offload::default();
            let review =
                |caller| offload.run(caller, Box::pin(attempt(hook, write, objects, false)));
            let refused = review(1).await.err();
            let code = |fault: Option<ReviewFault>| match fault {
                Some(ReviewFault::Failed(failure)) => Some(failure.code),
                _ => None,
            };
            assert_eq!(code(refused), Some(429));
            let waited = review(2).await.err();
            assert!(matches!(waited, Some(ReviewFault::Call(_))), "{waited:?}");
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn all_reviews_of_a_request_share_one_budget() {
        let context = Local::context();
        let first = deadline(&context).expect("nothing is spent");
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(deadline(&context).expect("20 s are left"), first);
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(deadline(&context).expect_err("it is spent").code, 504);
        assert!(deadline(&Local::context()).is_ok(), "of another request");
    }
}
