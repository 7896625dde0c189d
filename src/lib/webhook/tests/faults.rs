//! Calls that fail below HTTP: their causes are for the log only.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::json;
use ferrokube_flow::Away;
use ferrokube_serve::{
    Handler, ListenerLimits, Request, Response, Server, ShutdownTrigger, Tls, empty,
};
use ferrokube_webhook::{
    CallError, CallLimits, NoServices, Webhook, WebhookAccess, WebhookAddress, WebhookCall,
};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Far beyond what a call takes on the slowest machine.
const BOUND: Duration = Duration::from_secs(60);

/// What is returned of a call of a port, with a CA bundle.
async fn fault(port: u16, ca_pem: &str) -> String {
    let config = json!({"url": format!("https://127.0.0.1:{port}/admit"),
        "caBundle": STANDARD.encode(ca_pem)});
    let access = WebhookAccess::anonymous(Arc::new(NoServices));
    let limits = CallLimits { calls: 1, waiting: 0 };
    let webhook = Webhook::new(WebhookAddress::of(&config, &access), limits);
    let call = WebhookCall {
        span: ("admit", "configmaps"),
        body: b"{}".to_vec(),
        timeout: BOUND,
        announces_timeout: false,
        answer_bytes: 1000,
    };
    let mut away = Away::begin(1, 0).await.expect("outside of requests");
    let admitted = webhook.try_admit(1).expect("there is no other call");
    match webhook.call(admitted, call, &mut away).await {
        Err(CallError::Failed(fault)) => fault.to_string(),
        other => panic!("{other:?}"),
    }
}

struct Teapot;

impl Handler for Teapot {
    fn call(self: Arc<Self>, _: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        let mut response = Response::new(empty());
        *response.status_mut() = http::StatusCode::IM_A_TEAPOT;
        Box::pin(std::future::ready(response))
    }
}

#[tokio::test]
async fn fault_47_neither_address_nor_cause_of_a_failed_call_is_returned() {
    let ours = ferrokube_pki::self_signed(&["127.0.0.1".to_owned()]).unwrap();
    let other = ferrokube_pki::self_signed(&["127.0.0.1".to_owned()]).unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = listener.local_addr().unwrap().port();
    drop(listener);

    let resetting = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let reset = resetting.local_addr().unwrap().port();
    let resets = tokio::spawn(async move {
        loop {
            let (socket, _) = resetting.accept().await.unwrap();
            // Closed with unread bytes: a reset.
            socket.readable().await.unwrap();
        }
    });

    let tls = Tls::new(other.chain_pem.as_bytes(), other.key_pem.as_bytes()).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(address, tls, ListenerLimits::default()).unwrap();
    let wrong = server.local_address().port();
    let (trigger, shutdown) = ShutdownTrigger::new();
    let serving = tokio::spawn(server.serve(Arc::new(Teapot), shutdown));

    for (case, port) in [("closed", closed), ("reset", reset), ("wrong certificate", wrong)] {
        let returned = fault(port, &ours.chain_pem).await;
        assert!(
            ["it could not be reached", "the call failed"].contains(&&*returned),
            "{case}: {returned}"
        );
        for secret in ["127.0.0.1", &port.to_string(), "os error", "certificate", "reset"] {
            assert!(!returned.contains(secret), "{case}: {returned}");
        }
    }
    // With the right certificate it is called.
    assert_eq!(fault(wrong, &other.chain_pem).await, "it answered with status 418");
    resets.abort();
    trigger.begin();
    serving.await.unwrap();
}
