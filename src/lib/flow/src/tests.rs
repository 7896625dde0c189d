//! Tests of callers and seats.

use super::*;
use crate::priority::{FlowAction, FlowResource};

#[derive(Debug)]
struct PathAction(&'static str);

impl FlowAction for PathAction {
    fn verb(&self) -> &str {
        "get"
    }

    fn path(&self) -> &str {
        self.0
    }

    fn resource(&self) -> Option<FlowResource<'_>> {
        None
    }
}

fn user(name: &str, group: &str) -> UserInfo {
    UserInfo { name: name.to_owned(), groups: vec![group.to_owned()], ..UserInfo::default() }
}

fn classify(flow: &Flow, user: &UserInfo, peer: Option<&Peer>) -> Class {
    flow.classify(&Classified { user, peer, is_anonymous: peer.is_some() })
}

#[test]
fn callers_are_users_or_networks() {
    let flow = Flow::new(&Limits::default());
    let peer = |address: &str| Peer {
        address: (address.parse::<IpAddr>().unwrap(), 1).into(),
        certificate: None,
        proxy_certificate: None,
        unverified_certificate: false,
    };
    let nobody = user("system:anonymous", "");
    let of = |address: &str| classify(&flow, &nobody, Some(&peer(address))).caller;
    assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
    assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
    assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    let named = |name: &str| classify(&flow, &user(name, ""), None).caller;
    assert_eq!(named("a"), named("a"));
    assert_ne!(named("a"), named("b"));
    let account = |name: &str| named(&format!("system:serviceaccount:{name}"));
    assert_eq!(
        account("one:a"),
        account("one:b"),
        "a writer of a namespace creates accounts there at will"
    );
    assert_ne!(account("one:a"), account("two:a"));
    assert_ne!(account("kube-system:a"), account("kube-system:b"));
}

/// Assigns a request, as long as there are no schemas.
fn assign(flow: &Flow, user: &UserInfo, path: &'static str, mutates: bool) -> Class {
    let mut class = classify(flow, user, None);
    let action: Arc<dyn FlowAction> = Arc::new(PathAction(path));
    let timeout = Duration::from_secs(60);
    let request = FlowRequest { user, action: &action, mutates, timeout, seats: &|| 1 };
    flow.assign(&mut class, &request);
    class
}

#[test]
fn probes_and_masters_are_exempt() {
    let flow = Flow::new(&Limits::default());
    let is_exempt = |group: &str, path| assign(&flow, &user("u", group), path, false).is_exempt;
    for path in ["/healthz", "/livez/", "/readyz/storage"] {
        assert!(is_exempt("", path), "{path}");
    }
    for path in ["/healthzz", "/", "/version", "/metrics", "//livez"] {
        assert!(!is_exempt("", path), "{path}");
    }
    assert!(is_exempt("system:masters", "/"));
    assert!(!is_exempt("system:master", "/"));
}

#[tokio::test]
async fn a_seat_is_taken_once_and_released_with_the_request() {
    let flow = Arc::new(Flow::new(&Limits::default()));
    assign(&flow, &user("u", ""), "/", true);
    flow.take_seat("u").await.unwrap();
    assert_eq!(flow.inflight()[1].0, 0, "outside of requests there are no seats");
    with_budgets(&flow, async {
        flow.take_seat("u").await.unwrap();
        assert_eq!(flow.inflight()[1].0, 0, "a request that is not assigned needs none");
        assign(&flow, &user("u", ""), "/", true);
        flow.take_seat("u").await.unwrap();
        flow.take_seat("u").await.unwrap();
        assert_eq!(flow.inflight()[1].0, 1);
        leave_seat();
        assert_eq!(flow.inflight()[1].0, 0);
        leave_seat();
        flow.take_seat("u").await.unwrap();
    })
    .await;
    assert_eq!(flow.inflight()[1].0, 0, "it is released with its request");
}
