//! Conversion webhooks: an external HTTPS server that converts objects between versions.
//!
//! Requests are batched; time, response bytes and concurrent calls are bounded, and responses are
//! validated. A faulty webhook only affects its own definition's objects, where they are read or
//! written in another version than the stored one.

use super::fields::text;
use super::review::{self, ReviewRequest};
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_apimachinery::{heap, json};
use ferrokube_flow::{Away, AwayError};
use ferrokube_registry::offload::{INLINE_BYTES, caller, compute_shared, return_to_worker};
use ferrokube_resource::conversion::{Conversion, ConversionFuture, Converter, WaitFuture};
use ferrokube_webhook::{
    CallError, CallLimits, Webhook, WebhookAccess, WebhookAddress, WebhookCall, unless_revoked,
};
use std::any::Any;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::time::Duration;

/// Max time of one call.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Limits of one definition.
const LIMITS: CallLimits = CallLimits { calls: 8, waiting: 256 };
/// Overhead of a call, and of a request that waits for another one's call.
const CALL_BYTES: usize = 16 * 1024;
const WAIT_BYTES: usize = 1024;
/// Max bytes of a response, on top of four times those of the request.
const RESPONSE_BYTES: usize = 4 << 20;

/// The conversion webhook of one definition.
#[derive(Debug)]
pub(super) struct ConversionWebhook {
    /// Stands for the definition, across its changes.
    number: u64,
    webhook: Webhook,
    kind: String,
    /// The first review version that this server supports.
    review_version: &'static str,
}

impl ConversionWebhook {
    /// `None` unless there are several versions and the strategy is `Webhook`.
    pub(super) fn of(definition: &Document, access: &WebhookAccess) -> Option<Self> {
        let conversion = definition.get(&["spec", "conversion"])?;
        let several = definition.list(&["spec", "versions"]).len() > 1;
        if text(conversion, "strategy") != "Webhook" || !several {
            return None;
        }
        let config = conversion
            .get("webhook")
            .and_then(|webhook| webhook.get("clientConfig"))
            .unwrap_or(&Value::Null);
        let mut hasher = DefaultHasher::new();
        definition.name().hash(&mut hasher);
        Some(Self {
            number: hasher.finish(),
            webhook: Webhook::new(WebhookAddress::of(config, access), LIMITS),
            kind: definition.str(&["spec", "names", "kind"]).unwrap_or_default().to_owned(),
            review_version: review_version(definition),
        })
    }

    async fn convert_all(
        &self,
        api_version: &str,
        objects: &[Bytes],
    ) -> Result<Conversion, Failure> {
        return_to_worker().await;
        let Some(admitted) = self.webhook.try_admit(caller()) else {
            return Err(self.too_many(api_version));
        };
        // The objects, and their copy in the request.
        let bytes = CALL_BYTES + 2 * objects.iter().map(Bytes::len).sum::<usize>();
        let mut away =
            Away::begin(self.number, bytes).await.map_err(|why| self.no_room(api_version, why))?;
        let request = ReviewRequest {
            uid: uuid::Uuid::new_v4().to_string(),
            api_version,
            objects,
            review_version: self.review_version,
        };
        let failed = |why: String| {
            Failure::internal(format!(
                "conversion webhook for {api_version}, Kind={} failed: {why}",
                self.kind
            ))
        };
        let body = request.review();
        let call = WebhookCall {
            span: ("convert", &self.kind),
            timeout: TIMEOUT,
            announces_timeout: false,
            answer_bytes: RESPONSE_BYTES + 4 * body.len(),
            body,
        };
        let answer =
            self.webhook.call(admitted, call, &mut away).await.map_err(|why| match why {
                CallError::Failed(why) => failed(why.to_string()),
                CallError::NoRoom | CallError::NoTurn => self.too_many(api_version),
            })?;
        let room = match away.end(heap::json_bound(&answer)).await {
            Err(AwayError::TooLarge) => {
                return Err(failed("its answer holds too many values".to_owned()));
            }
            room => room.map_err(|why| self.no_room(api_version, why))?,
        };
        let is_long = answer.len() > INLINE_BYTES;
        let read = || {
            let read = json::read(&answer)
                .map(|decoded| decoded.document)
                .map_err(|_| "its answer is no JSON object".to_owned());
            drop(answer);
            read.and_then(|answer| review::read(&request, answer))
        };
        // Other callers wait for the result, and its room is the webhook's.
        let read = if is_long { compute_shared(self.number, read).await } else { read() };
        let objects = read.map_err(failed)?;
        Ok(Conversion {
            objects,
            room: room.map(|room| Box::new(room) as Box<dyn Any + Send + Sync>),
        })
    }

    async fn wait_for(&self, other: impl Future<Output = ()>) -> Result<(), Failure> {
        let no_room = |why| self.no_room("other versions", why);
        let mut away = Away::begin(self.number, WAIT_BYTES).await.map_err(no_room)?;
        unless_revoked(&mut away, other).await.map_err(no_room)?;
        away.end(0).await.map(drop).map_err(no_room)
    }

    fn no_room(&self, api_version: &str, why: AwayError) -> Failure {
        match why {
            AwayError::Full => self.too_many(api_version),
            AwayError::TooLarge => ferrokube_flow::too_large(),
        }
    }

    fn too_many(&self, api_version: &str) -> Failure {
        let details = Details { retry_after_seconds: 1, ..Details::default() };
        let message = format!(
            "conversion webhook for {api_version}, Kind={} has too many requests, please try again later",
            self.kind
        );
        Failure::new(Reason::TooManyRequests, message).with_details(details)
    }
}

impl Converter for ConversionWebhook {
    fn convert(&self, api_version: String, objects: Vec<Bytes>) -> ConversionFuture<'_> {
        Box::pin(async move { self.convert_all(&api_version, &objects).await })
    }

    fn wait<'a>(&'a self, other: Pin<Box<dyn Future<Output = ()> + Send + 'a>>) -> WaitFuture<'a> {
        Box::pin(self.wait_for(other))
    }
}

fn review_version(definition: &Document) -> &'static str {
    let listed = definition.list(&["spec", "conversion", "webhook", "conversionReviewVersions"]);
    listed
        .iter()
        .find_map(|version| ["v1", "v1beta1"].into_iter().find(|known| version == known))
        .unwrap_or("v1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;
    use ferrokube_apimachinery::user::UserInfo;
    use ferrokube_flow::priority::{FlowAction, FlowRequest, FlowResource};
    use ferrokube_flow::{self as flow, Class, Flow, Limits};
    use ferrokube_registry::offload::Offload;
    use ferrokube_webhook::{NoServices, Resolution, ServiceError, ServiceResolver};
    use futures::FutureExt;
    use std::sync::Arc;

    /// A webhook whose calls are all running and never end.
    fn hung() -> ConversionWebhook {
        let definition = json!({"spec": {"names": {"kind": "T"}, "versions": [{}, {}],
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://localhost:1/"}}}}});
        let definition = Document::from_value(definition).expect("an object");
        let access = WebhookAccess::anonymous(Arc::new(NoServices));
        let webhook = ConversionWebhook::of(&definition, &access).expect("a webhook");
        std::mem::forget(webhook.webhook.occupy().expect("no call is running"));
        webhook
    }

    #[derive(Debug)]
    struct OneService;

    impl ServiceResolver for OneService {
        fn resolve<'a>(&'a self, namespace: &'a str, name: &'a str, port: u16) -> Resolution<'a> {
            let found = format!("{name} in {namespace} at {port} was looked up");
            Box::pin(std::future::ready(Err(ServiceError::Unroutable(found))))
        }
    }

    #[tokio::test]
    async fn services_are_looked_up() {
        let service = json!({"name": "s", "namespace": "n", "port": 8443});
        let definition = json!({"spec": {"names": {"kind": "T"}, "versions": [{}, {}],
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"service": service}}}}});
        let access = WebhookAccess::anonymous(Arc::new(OneService));
        let webhook =
            ConversionWebhook::of(&Document::from_value(definition).expect("an object"), &access);
        let refused = webhook
            .expect("a webhook")
            .convert("e/v2".to_owned(), object())
            .await
            .expect_err("no address");
        assert!(refused.message.contains("s in n at 8443 was looked up"), "{}", refused.message);
    }

    fn object() -> Vec<Bytes> {
        vec![Bytes::from_static(b"{}")]
    }

    #[tokio::test]
    async fn a_request_waiting_for_a_webhook_has_no_seat() {
        let flow = Arc::new(Flow::new(&Limits { readonly_inflight: 2, ..Limits::default() }));
        let webhook = hung();
        let mut requests: Vec<_> = (0..20)
            .map(|_| {
                let request = async {
                    take_seat(&flow).await;
                    webhook.convert("e/v2".to_owned(), object()).await
                };
                Box::pin(flow::with_budgets(Arc::clone(&flow), request))
            })
            .collect();
        assert!(requests.iter_mut().all(|request| request.as_mut().now_or_never().is_none()));
        assert_eq!(flow.inflight()[0], (0, 0));
        let follower = flow::with_budgets(Arc::clone(&flow), async {
            take_seat(&flow).await;
            assert!(webhook.wait(Box::pin(std::future::pending())).now_or_never().is_none());
            flow.inflight()[0]
        });
        assert_eq!(follower.await, (0, 0), "nor has one that waits for another's call");
    }

    #[derive(Debug)]
    struct Read;

    impl FlowAction for Read {
        fn verb(&self) -> &str {
            "get"
        }

        fn path(&self) -> &str {
            "/"
        }

        fn resource(&self) -> Option<FlowResource<'_>> {
            None
        }
    }

    /// Takes a seat for reading.
    async fn take_seat(flow: &Flow) {
        let (user, action) = (UserInfo::default(), Arc::new(Read) as Arc<dyn FlowAction>);
        let timeout = Duration::from_secs(60);
        let (action, seats) = (&action, &|| 1);
        let request = FlowRequest { user: &user, action, mutates: false, timeout, seats };
        flow.assign(&mut Class::default(), &request);
        flow.take_seat("").await.expect("a seat is free");
    }

    fn class(id: &str, flow: &Flow) -> Class {
        let user = UserInfo { name: id.to_owned(), ..UserInfo::default() };
        flow.classify(&ferrokube_flow::Classified { user: &user, peer: None, is_anonymous: false })
    }

    #[tokio::test(start_paused = true)]
    async fn requests_waiting_for_a_webhook_do_not_starve_others() {
        let flow = Arc::new(Flow::new(&Limits::default()));
        let webhook = hung();
        let writer = |number: usize| {
            let (flow, webhook) = (&flow, &webhook);
            async move {
                flow.tree(class(&format!("writer-{number}"), flow), 20 << 20)
                    .await
                    .expect("room for its tree");
                flow::shrink_tree(|| 9 << 20);
                webhook.convert("e/v2".to_owned(), vec![vec![b' '; 1 << 20].into()]).await.map(drop)
            }
        };
        let mut writers: Vec<_> = (0..2)
            .map(|number| Box::pin(flow::with_budgets(Arc::clone(&flow), writer(number))))
            .collect();
        assert!(writers.iter_mut().all(|writer| writer.as_mut().now_or_never().is_none()));
        let [_, trees, away, ..] = flow.bytes();
        assert!(trees <= 9 << 20 && away >= 11 << 20, "{trees} {away}");
        flow::with_budgets(Arc::clone(&flow), async {
            flow.tree(class("other", &flow), 20 << 20)
                .now_or_never()
                .expect("room at once")
                .unwrap()
        })
        .await;
        // One finds no room to wait, and gets 429 in time; then everything is given back.
        assert_eq!(writers.pop().expect("two").await.expect_err("there is no room").code, 429);
        drop(writers);
        assert_eq!(flow.bytes(), [0; 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_waiting_for_a_webhook_leaves_its_room_to_others() {
        const ROOM: usize = 4 << 20;
        let flow = Arc::new(Flow::new(&Limits::default()));
        let webhook = hung();
        let list = flow::with_budgets(Arc::clone(&flow), async {
            flow.list(class("reader", &flow), ROOM, None).await.expect("room");
            assert_eq!(flow.bytes()[3], ROOM);
            let ends = webhook.wait(Box::pin(tokio::time::sleep(Duration::from_secs(1))));
            let mut ends = std::pin::pin!(ends);
            assert!(futures::poll!(ends.as_mut()).is_pending());
            let [_, _, away, lists, _] = flow.bytes();
            assert!(lists == 0 && away >= ROOM, "{lists} {away}");
            ends.await.expect("it was not revoked");
            let room =
                flow.take_list_grant(class("reader", &flow), ROOM, None).await.expect("room");
            assert_eq!(room.expect("it is taken again").amount(), ROOM);
        });
        list.await;
        assert_eq!(flow.bytes(), [0; 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn room_of_one_webhook_is_revoked_for_another() {
        let flow = Arc::new(Flow::new(&Limits::default()));
        let (webhook, other) = (hung(), ConversionWebhook { number: 7, ..hung() });
        let object = |_| vec![vec![b' '; 1_400_000].into()];
        let begin = |webhook, count: usize| -> Vec<_> {
            let webhook: &ConversionWebhook = webhook;
            (0..count)
                .map(|number| {
                    Box::pin(flow::with_budgets(
                        Arc::clone(&flow),
                        webhook.convert("e/v2".to_owned(), object(number)),
                    ))
                })
                .collect()
        };
        let mut many = begin(&webhook, 50);
        let refused = many.iter_mut().filter_map(|one| one.as_mut().now_or_never()).count();
        let [_, _, away, ..] = flow.bytes();
        assert!(away <= 12 << 20, "{away}");
        assert!(refused >= 25, "few were rejected: {refused}");
        let mut more: Vec<_> = (0..6)
            .flat_map(|number| begin(&other, 1).into_iter().map(move |one| (number, one)))
            .collect();
        for (_, one) in &mut more {
            let _ = one.as_mut().now_or_never();
        }
        let revoked = many
            .iter_mut()
            .take(4)
            .filter_map(|one| one.as_mut().now_or_never())
            .filter_map(Result::err)
            .count();
        assert!(revoked > 0, "the other webhook has a part");
        let [_, _, away, ..] = flow.bytes();
        assert!(away <= 24 << 20, "{away}");
    }

    /// 500 would also fail the requests of other callers that wait for the same object.
    #[tokio::test(start_paused = true)]
    async fn a_conversion_that_waits_too_long_for_others_may_be_tried_again() {
        let refused = hung().convert("e/v2".to_owned(), object()).await;
        assert_eq!(refused.expect_err("all calls are running").code, 429);
    }

    #[tokio::test]
    async fn the_queue_of_one_webhook_is_bounded() {
        let webhook = hung();
        let begin = || webhook.convert("e/v2".to_owned(), object());
        let half = (LIMITS.calls + LIMITS.waiting) / 2;
        let mut calls: Vec<_> = (0..half).map(|_| begin()).collect();
        assert!(calls.iter_mut().all(|call| call.now_or_never().is_none()));
        let refused = begin().now_or_never().expect("at once");
        let refused = refused.expect_err("one caller has half of the queue");
        assert_eq!((refused.code, refused.reason), (429, Some(Reason::TooManyRequests)));
        let of_another = Offload::default().run(7, begin());
        assert!(of_another.now_or_never().is_none());
        drop(calls.pop());
        assert!(begin().now_or_never().is_none());
    }
}
