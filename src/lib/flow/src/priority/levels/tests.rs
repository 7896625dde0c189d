//! Tests of assignment, of seats by shares, and of lending.

use super::*;
use crate::priority::matching::tests::TestAction;
use ferrokube_apimachinery::document::{Document, Value, json};
use futures::FutureExt;

fn document(value: Value) -> Document {
    Document::from_value(value).unwrap()
}

fn level(name: &str, shares: u32, lendable: u32) -> LevelConfig {
    let spec = json!({"type": "Limited", "limited": {
        "nominalConcurrencyShares": shares, "lendablePercent": lendable,
        "limitResponse": {"type": "Queue", "queuing": {"queues": 64, "handSize": 6, "queueLengthLimit": 50}},
    }});
    let metadata = json!({"name": name, "uid": format!("{name}-uid")});
    LevelConfig::read(&document(json!({"metadata": metadata, "spec": spec}))).unwrap()
}

/// All requests of a user.
fn schema(name: &str, level: &str, user: &str, method: &str) -> SchemaConfig {
    let rule = json!({
        "subjects": [{"kind": "User", "user": {"name": user}}],
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}],
    });
    SchemaConfig::read(&document(json!({
        "metadata": {"name": name, "uid": format!("{name}-uid")},
        "spec": {
            "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": 500,
            "distinguisherMethod": {"type": method}, "rules": [rule],
        },
    })))
}

fn levels() -> Levels {
    Levels::new(&Limits { readonly_inflight: 60, mutating_inflight: 40, ..Limits::default() })
}

fn assign(levels: &Levels, name: &str, namespace: &'static str, seats: usize) -> Assignment {
    let groups = vec!["system:authenticated".to_owned()];
    let user = UserInfo { name: name.to_owned(), groups, ..UserInfo::default() };
    let resource = Some(["", "pods", "", namespace]);
    let action = Arc::new(TestAction { verb: "get", resource, ..TestAction::default() });
    let action: Arc<dyn FlowAction> = action;
    let timeout = Duration::from_secs(60);
    let seats = &|| seats;
    levels.assign(&FlowRequest { user: &user, action: &action, mutates: false, timeout, seats })
}

fn limits(levels: &Levels, name: &str) -> [usize; 4] {
    levels.figures().0.iter().find(|level| level.name == name).expect("there is one").limits
}

fn take(assignment: &Assignment) -> Option<SeatGrant> {
    assignment.start("u").seats().now_or_never().flatten()
}

/// Those that were granted, of futures that were all pending.
fn granted<F: Future<Output = Option<SeatGrant>> + Unpin>(waiting: &mut [F]) -> Vec<SeatGrant> {
    let ready = waiting.iter_mut().map(|seats| seats.now_or_never());
    ready.filter_map(Option::flatten).collect()
}

#[test]
fn seats_are_divided_by_shares() {
    let levels = levels();
    levels.configure(FlowConfig::new([], [level("a", 35, 40), level("b", 60, 0)]));
    assert_eq!(limits(&levels, "a")[..3], [35, 21, 135]);
    assert_eq!(limits(&levels, "b")[..3], [60, 60, 160]);
    assert_eq!(limits(&levels, "catch-all")[..3], [5, 5, 105]);
    assert_eq!(limits(&levels, "exempt")[..3], [0, 0, 100]);
}

#[tokio::test(start_paused = true)]
async fn a_busy_level_borrows_what_an_idle_one_lends() {
    let levels = levels();
    let schemas = ["a", "b"].map(|name| schema(name, name, name, "ByUser"));
    levels.configure(FlowConfig::new(schemas, [level("a", 45, 100), level("b", 50, 0)]));
    assert_eq!((limits(&levels, "a")[3], limits(&levels, "b")[3]), (0, 91));
    let busy = assign(&levels, "b", "ns", 1);
    let held: Vec<_> = (0..45).map(|_| take(&busy).expect("half of what it borrows")).collect();
    let mut waiting: Vec<_> = (0..60).map(|_| Box::pin(busy.start("b").seats())).collect();
    assert!(granted(&mut waiting).is_empty());
    // The lender gets its seats back when it has work itself.
    let lender = assign(&levels, "a", "ns", 1);
    let mut own: Vec<_> = (0..45).map(|_| Box::pin(lender.start("a").seats())).collect();
    assert!(granted(&mut own).is_empty());
    tokio::time::advance(Duration::from_secs(10)).await;
    levels.adjust();
    assert_eq!((limits(&levels, "a")[3], limits(&levels, "b")[3]), (45, 50));
    assert_eq!(granted(&mut own).len(), 22, "half of its level");
    drop((held, waiting, own));
    assert_eq!(levels.inflight(), [(0, 0), (0, 0)]);
}

#[test]
fn flows_are_told_apart_by_the_schema_s_method() {
    let levels = levels();
    let schemas = [
        schema("by-user", "a", "*", "ByUser"),
        SchemaConfig { precedence: 400, ..schema("by-namespace", "a", "system:x", "ByNamespace") },
        SchemaConfig {
            precedence: 400,
            distinguisher: Distinguisher::None,
            ..schema("one", "a", "system:y", "")
        },
    ];
    levels.configure(FlowConfig::new(schemas, [level("a", 30, 0)]));
    let flow = |user: &str, namespace| assign(&levels, user, namespace, 1).flow;
    assert_eq!(flow("u", "one"), flow("u", "two"));
    assert_ne!(flow("u", "one"), flow("v", "one"));
    assert_ne!(flow("system:x", "one"), flow("system:x", "two"));
    assert_eq!(flow("system:y", "one"), flow("system:y", "two"));
    let account = |name: &str| flow(&format!("system:serviceaccount:{name}"), "one");
    assert_eq!(account("ns:a"), account("ns:b"), "as many as a tenant likes");
}

#[test]
fn a_list_takes_a_part_of_its_level_at_most() {
    let levels = levels();
    let schemas = [schema("s", "a", "*", "ByUser")];
    levels.configure(FlowConfig::new(schemas, [level("a", 95, 0)]));
    assert_eq!(assign(&levels, "u", "ns", 500).seats, 15);
    assert_eq!(assign(&levels, "u", "ns", 0).seats, 1);
    assert_eq!(max_seats(Discipline::Queue { queues: 9, hand: 8, length: 9 }, 49), 6);
    assert_eq!(max_seats(Discipline::Queue { queues: 9, hand: 8, length: 9 }, 3), 1);
}

#[test]
fn the_uids_of_schema_and_level_are_shown_if_they_are_objects() {
    let levels = levels();
    let uids = |user| assign(&levels, user, "ns", 1).uids().cloned();
    assert_eq!(uids("u"), None, "without schemas");
    levels.configure(FlowConfig::new([schema("s", "a", "u", "ByUser")], [level("a", 5, 0)]));
    let found = uids("u").map(|uids| uids.map(|uid| uid.to_str().unwrap().to_owned()));
    assert_eq!(found, Some(["s-uid".to_owned(), "a-uid".to_owned()]));
    assert_eq!(uids("other"), None, "the catch-all is not an object here");
}

#[tokio::test(start_paused = true)]
async fn a_removed_level_serves_those_that_are_in_it() {
    let levels = levels();
    levels.configure(FlowConfig::new([schema("s", "a", "u", "ByUser")], [level("a", 5, 0)]));
    let assignment = assign(&levels, "u", "ns", 1);
    let held = take(&assignment).expect("a seat");
    levels.configure(FlowConfig::new([], []));
    assert!(levels.dump_levels().contains("a,"), "{}", levels.dump_levels());
    assert!(levels.entries().iter().any(|(name, _, is_quiescing)| name == "a" && *is_quiescing));
    assert!(take(&assignment).is_some(), "one that was assigned before");
    assert_eq!(&*assign(&levels, "u", "ns", 1).schema.name, "catch-all");
    drop(held);
    levels.adjust();
    assert!(!levels.entries().iter().any(|(name, ..)| name == "a"));
}

#[tokio::test(start_paused = true)]
async fn dumps_show_levels_queues_and_requests() {
    let levels = levels();
    levels.configure(FlowConfig::new([schema("s", "a", "u", "ByUser")], [level("a", 5, 0)]));
    let assignment = assign(&levels, "u", "ns", 1);
    let _held = take(&assignment).expect("a seat");
    let line = |text: String, start: &str| {
        let lines = text.lines().filter(|line| line.starts_with(start));
        lines.map(|line| line.split(',').map(|cell| cell.trim().to_owned()).collect()).next()
    };
    let row: Vec<String> = line(levels.dump_levels(), "a,").expect("a row");
    assert_eq!(row, ["a", "0", "false", "false", "0", "1", "1", "0", "0", "0"]);
    let row: Vec<String> = line(levels.dump_queues(), "a,").expect("a row");
    assert_eq!((row.len(), row[3].as_str(), row[4].as_str()), (9, "1", "1"));
    let row: Vec<String> = line(levels.dump_requests(true), "a,").expect("a row");
    assert_eq!(row.len(), 18);
    assert_eq!([&*row[1], &*row[3], &*row[4], &*row[11]], ["s", "-1", "u", "get"]);
    for (method, flow) in [("ByNamespace", "ns"), ("", "")] {
        let levels = self::levels();
        levels.configure(FlowConfig::new([schema("s", "a", "u", method)], [level("a", 5, 0)]));
        let assignment = assign(&levels, "u", "ns", 1);
        let _held = take(&assignment).expect("a seat");
        let row: Vec<String> = line(levels.dump_requests(true), "a,").expect("a row");
        assert_eq!([&*row[4], &*row[10]], [flow, "u"], "{method}");
    }
}

/// With few seats, a level may have lent all of its own before it had any demand.
#[test]
fn a_level_with_shares_has_a_seat_from_the_start() {
    let levels =
        Levels::new(&Limits { readonly_inflight: 1, mutating_inflight: 1, ..Limits::default() });
    let names = ["a", "b", "c", "d", "e"];
    let all = names.map(|name| level(name, 20, 90));
    let schemas = names.map(|name| schema(name, name, name, "ByUser"));
    levels.configure(FlowConfig::new(schemas, all));
    for name in names {
        let assignment = assign(&levels, name, "n", 1);
        assert!(take(&assignment).is_some(), "{name}: {:?}", limits(&levels, name));
    }
}
