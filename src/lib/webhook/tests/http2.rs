//! Calls of a webhook that speaks HTTP/2: one connection for all.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::json;
use ferrokube_flow::Away;
use ferrokube_serve::{
    Handler, ListenerLimits, Peer, Request, Response, Server, ShutdownTrigger, Tls, full, read_body,
};
use ferrokube_webhook::{
    CallLimits, NoServices, Webhook, WebhookAccess, WebhookAddress, WebhookCall,
};
use http::Version;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Barrier;

/// Far beyond what a call takes on the slowest machine.
const BOUND: Duration = Duration::from_secs(60);
/// Calls in flight together.
const CALLS: usize = 16;

/// Answers with the request's body. All but the first request are answered once [`CALLS`] of them
/// have arrived.
struct GatheringEcho {
    together: Barrier,
    /// Protocol and connection of each request.
    received: Mutex<Vec<(Version, SocketAddr)>>,
}

impl Handler for GatheringEcho {
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            let peer = request.extensions().get::<Arc<Peer>>().expect("of the listener");
            let seen = (request.version(), peer.address);
            let count = {
                let mut received = self.received.lock().expect("no panic while held");
                received.push(seen);
                received.len()
            };
            let body = read_body(request.into_body(), 1000, BOUND).await.expect("a short body");
            if count > 1 {
                self.together.wait().await;
            }
            Response::new(full(body))
        })
    }
}

async fn call(webhook: &Webhook, body: String) -> String {
    let call = WebhookCall {
        span: ("admit", "configmaps"),
        body: body.into_bytes(),
        timeout: BOUND,
        announces_timeout: false,
        answer_bytes: 1000,
    };
    let mut away = Away::begin(1, 0).await.expect("outside of requests");
    let admitted = webhook.try_admit(1).expect("it is one of half of the calls");
    let answer = webhook.call(admitted, call, &mut away).await.expect("it answers");
    String::from_utf8(answer).expect("as sent")
}

#[tokio::test]
async fn calls_over_http2_share_a_connection() {
    let pair = ferrokube_pki::self_signed(&["127.0.0.1".to_owned()]).unwrap();
    let tls = Tls::new(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes()).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(address, tls, ListenerLimits::default()).unwrap();
    let (port, stats) = (server.local_address().port(), server.stats());
    let echo =
        Arc::new(GatheringEcho { together: Barrier::new(CALLS), received: Mutex::new(Vec::new()) });
    let (trigger, shutdown) = ShutdownTrigger::new();
    let serving = tokio::spawn(server.serve(Arc::clone(&echo) as Arc<dyn Handler>, shutdown));

    let config = json!({"url": format!("https://127.0.0.1:{port}/"),
        "caBundle": STANDARD.encode(pair.chain_pem)});
    let access = WebhookAccess::anonymous(Arc::new(NoServices));
    let limits = CallLimits { calls: 2 * CALLS, waiting: 0 };
    let webhook = Arc::new(Webhook::new(WebhookAddress::of(&config, &access), limits));
    assert_eq!(call(&webhook, "first".to_owned()).await, "first");
    let calls = (0..CALLS).map(|number| {
        let webhook = Arc::clone(&webhook);
        tokio::spawn(async move {
            assert_eq!(call(&webhook, number.to_string()).await, number.to_string());
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }

    let received = echo.received.lock().unwrap().clone();
    let (_, connection) = received[0];
    assert_eq!(received, vec![(Version::HTTP_2, connection); CALLS + 1]);
    assert_eq!(stats.accepted.load(Ordering::Relaxed), 1);
    drop(webhook);
    trigger.begin();
    serving.await.unwrap();
}
