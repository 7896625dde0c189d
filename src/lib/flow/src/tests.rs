//! Tests of callers and seats.

use super::*;
use crate::priority::{FlowAction, FlowConfig, FlowResource, SchemaConfig};
use ferrokube_apimachinery::document::{Document, json};
use futures::FutureExt;

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
    with_budgets(Arc::clone(&flow), async {
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

#[tokio::test(start_paused = true)]
async fn a_schema_for_the_exempt_level_frees_of_seats_but_not_of_bytes() {
    let flow = Flow::new(&Limits { lists_bytes: 4 << 20, ..Limits::default() });
    let schema = json!({"metadata": {"name": "all"}, "spec": {"matchingPrecedence": 2,
        "priorityLevelConfiguration": {"name": "exempt"}, "rules": [{
            "subjects": [{"kind": "Group", "group": {"name": "*"}}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}});
    let schema = SchemaConfig::read(&Document::from_value(schema).unwrap());
    flow.levels().configure(FlowConfig::new([schema], []));
    let one = assign(&flow, &user("one", "a"), "/", false);
    let master = assign(&flow, &user("master", "system:masters"), "/", false);
    assert!(one.is_exempt && master.is_exempt);
    let room = |class| flow.take_list_grant(class, 1 << 20, None);
    let mut held = Vec::new();
    let end = loop {
        match room(one).await {
            Ok(Some(grant)) => held.push(grant),
            end => break end,
        }
    };
    assert!(end.is_err() && !held.is_empty());
    while let Some(grant) = room(master).await.unwrap() {
        held.push(grant);
    }
}

/// All that it holds counts once: for one webhook after the other, also the same one again.
#[tokio::test]
async fn a_request_does_not_compete_with_itself_for_room_at_webhooks() {
    let flow = Arc::new(Flow::new(&Limits::default()));
    let (tree, review) = (11 << 20, 3 << 20);
    with_budgets(Arc::clone(&flow), async {
        let class = classify(&flow, &user("jane", "writers"), None);
        flow.tree(class, tree).await.unwrap();
        for webhook in [1, 2, 1, 1, 3] {
            assert_eq!(carried_bytes(), tree);
            let begun = Away::begin(webhook, review).now_or_never();
            let away = begun.expect("nobody else is there").unwrap();
            assert_eq!(flow.bytes()[1..3], [0, tree + review]);
            away.end(0).await.unwrap();
            assert_eq!(flow.bytes()[1..3], [0, tree]);
        }
    })
    .await;
    assert_eq!(flow.bytes(), [0; 5]);
}

#[tokio::test]
async fn bytes_of_a_failed_call_stay_counted() {
    let flow = Arc::new(Flow::new(&Limits::default()));
    with_budgets(Arc::clone(&flow), async {
        let class = classify(&flow, &user("jane", "writers"), None);
        flow.tree(class, 9 << 20).await.unwrap();
        drop(Away::begin(1, 1 << 20).await.unwrap());
        assert_eq!(flow.bytes()[1..3], [0, 9 << 20]);
    })
    .await;
    assert_eq!(flow.bytes(), [0; 5]);
}

/// What others wait for is not taken by an exchange, nor is more than there is.
#[tokio::test]
async fn an_exchange_that_does_not_fit_keeps_what_there_was() {
    let share = Share::new(100, QueueLimit { per_caller: 8, total: 8 });
    let [one, two] = [1, 2].map(|id| BudgetCaller { id, is_anonymous: false });
    let mut held = vec![share.try_take(one, 40).unwrap()];
    let other = share.try_take(two, 30).unwrap();
    assert!(share.try_exchange(&mut held, one, 80).is_none());
    assert_eq!((share.usage().0, held.len()), (70, 1));
    let grant = share.try_exchange(&mut held, one, 60).expect("it fits");
    assert_eq!((share.usage().0, held.len(), grant.amount()), (90, 0, 60));
    drop((grant, other));
    assert_eq!(share.usage(), (0, 0));
}
