//! Watches with an exact key or field: they get what they would get among all events, and are not
//! woken for others'.

use crate::support::*;
use crate::watch::{from, word};
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_registry::{Target, Watch, WatchItem};
use ferrokube_resource::Definition;
use ferrokube_storage::testing::settle;
use ferrokube_storage::{Entry, Revision};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// ConfigMaps can be selected by their node.
fn server() -> TestRegistry {
    let server = TestRegistry::new();
    let mut definition = Definition::clone(&server.target(CONFIGMAPS, "").served.definition);
    definition.versions[0].selectable = vec!["data.mode".to_owned(), "data.node".to_owned()];
    server.registry.catalog().put(Arc::new(definition));
    server
}

fn on_node(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"s": node}}, "data": {"node": node}})
}

async fn bind(server: &TestRegistry, name: &str, node: &str) {
    let change = json!({"metadata": {"labels": {"s": node}}, "data": {"node": node}});
    server.patch(CONFIGMAPS, name, merge(change)).await.unwrap();
}

async fn watch(server: &TestRegistry, target: &Target, fields: &str, version: Revision) -> Watch {
    let mut options = from(version.0);
    options.list.fields = selecting("", fields).fields;
    server.registry.watch(target, options).await.unwrap()
}

/// Counts the wake-ups of a task.
#[derive(Default)]
struct WatchWakes(AtomicUsize);

impl Wake for WatchWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type NextItems = Pin<Box<dyn Future<Output = (Watch, Vec<WatchItem>)>>>;

/// A watch whose task runs when the test says so.
struct PolledWatch {
    next: NextItems,
    wakes: Arc<WatchWakes>,
}

fn next(mut watch: Watch) -> NextItems {
    Box::pin(tokio::task::unconstrained(async move {
        let items = watch.next().await.expect("it lasts");
        (watch, items)
    }))
}

impl PolledWatch {
    fn new(watch: Watch) -> Self {
        Self { next: next(watch), wakes: Arc::default() }
    }

    /// Runs until it waits. Returns what it sends.
    fn run(&mut self) -> Vec<WatchItem> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let mut sent = Vec::new();
        while let Poll::Ready((watch, items)) =
            self.next.as_mut().poll(&mut Context::from_waker(&waker))
        {
            sent.extend(items);
            self.next = next(watch);
        }
        self.wakes.0.store(0, Ordering::SeqCst);
        sent
    }

    fn words(&mut self) -> String {
        self.run().iter().map(word).collect::<Vec<_>>().join(" ")
    }
}

/// Indexes of the watches that were woken.
fn woken(watches: &[PolledWatch], server: &TestRegistry) -> Vec<usize> {
    settle(server.registry.store());
    let is_woken = |at: &usize| watches[*at].wakes.0.load(Ordering::SeqCst) > 0;
    (0..watches.len()).filter(is_woken).collect()
}

#[tokio::test]
async fn a_write_wakes_the_watches_that_select_it() {
    let server = server();
    server.post(CONFIGMAPS, on_node("first", "n0")).await.unwrap();
    let now = server.registry.store().revision();
    let mut watches = Vec::new();
    let mut start = async |target: Target, fields: String| {
        let watch = watch(&server, &target, &fields, now).await;
        let mut counted = PolledWatch::new(watch);
        assert_eq!(counted.words(), "");
        watches.push(counted);
    };
    for node in 0..100 {
        start(server.target(CONFIGMAPS, ""), format!("data.node=n{node}")).await;
    }
    for name in 0..50 {
        start(server.target(CONFIGMAPS, ""), format!("metadata.name=p{name}")).await;
    }
    for name in 0..50 {
        start(server.target(CONFIGMAPS, &format!("p{name}")), String::new()).await;
    }
    let elsewhere =
        Target { namespace: Some("elsewhere".to_owned()), ..server.target(CONFIGMAPS, "") };
    start(elsewhere, String::new()).await;
    let everywhere = Target { namespace: None, ..server.target(CONFIGMAPS, "") };
    start(everywhere.clone(), "metadata.name=p7".to_owned()).await;
    start(everywhere, "metadata.name!=p7".to_owned()).await;

    server.post(CONFIGMAPS, on_node("p7", "")).await.unwrap();
    assert_eq!(woken(&watches, &server), [107, 157, 201, 202], "unbound: the name's, and all");
    assert_eq!(
        [107, 157, 201, 202].map(|at: usize| watches[at].words()),
        ["+p7", "+p7", "+p7", ""]
    );
    bind(&server, "p7", "n3").await;
    assert_eq!(woken(&watches, &server), [3, 107, 157, 201, 202]);
    assert_eq!([3, 107, 157, 201, 202].map(|at: usize| watches[at].words())[..2], ["+p7", "~p7"]);
    bind(&server, "p7", "n4").await;
    assert_eq!(woken(&watches, &server), [3, 4, 107, 157, 201, 202]);
    assert_eq!([3, 4].map(|at: usize| watches[at].words()), ["-p7", "+p7"]);
    server.delete(CONFIGMAPS, "p7").await.unwrap();
    settle(server.registry.store());
    assert_eq!([3, 4].map(|at: usize| watches[at].words()), ["", "-p7"]);
    assert_eq!([107, 157, 201].map(|at: usize| watches[at].words()), ["~p7 -p7"; 3]);
}

#[derive(Clone, Debug)]
struct PodStep {
    name: u8,
    /// `None`: delete.
    node: Option<u8>,
}

fn pod_steps() -> impl Strategy<Value = Vec<PodStep>> {
    proptest::collection::vec(
        (0..6u8, proptest::option::weighted(0.8, 0..3u8))
            .prop_map(|(name, node)| PodStep { name, node }),
        1..40,
    )
}

async fn change(server: &TestRegistry, step: &PodStep) {
    let name = format!("p{}", step.name);
    let Some(node) = step.node else {
        _ = server.delete(CONFIGMAPS, &name).await;
        return;
    };
    let node = ["", "n1", "n2"][usize::from(node)];
    if server.post(CONFIGMAPS, on_node(&name, node)).await.is_err() {
        bind(server, &name, node).await;
    }
}

const SELECTORS: &[&str] =
    &["data.node=n1", "data.node=", "metadata.name=p2", "data.node=n2,metadata.name!=p1"];

fn selects(selector: &str, entry: &Entry) -> bool {
    let has_node = |node: &str| {
        let text = format!("\"node\":\"{node}\"");
        String::from_utf8_lossy(&entry.bytes).contains(&text)
    };
    match selector {
        "data.node=n1" => has_node("n1"),
        "data.node=" => has_node(""),
        "metadata.name=p2" => entry.key.name() == "p2",
        _ => has_node("n2") && entry.key.name() != "p1",
    }
}

/// What a watch of everything shows, filtered. `selected` are the names that match at its start.
fn filtered(selector: &str, items: &[WatchItem], selected: &mut BTreeSet<String>) -> Vec<String> {
    let mut words = Vec::new();
    for item in items {
        let (WatchItem::Added(entry) | WatchItem::Modified(entry) | WatchItem::Deleted(entry)) =
            item
        else {
            panic!("{item:?}");
        };
        let name = entry.key.name().to_owned();
        let is_there = !matches!(item, WatchItem::Deleted(_));
        let word = match (selected.contains(&name), is_there && selects(selector, entry)) {
            (false, true) => format!("+{name}"),
            (true, true) => format!("~{name}"),
            (true, false) => format!("-{name}"),
            (false, false) => continue,
        };
        if word.starts_with('-') {
            selected.remove(&name);
        } else {
            selected.insert(name);
        }
        words.push(format!("{word} {}", entry.revision));
    }
    words
}

fn shown(items: &[WatchItem]) -> Vec<String> {
    let shown = items.iter().map(|item| {
        let (WatchItem::Added(entry) | WatchItem::Modified(entry) | WatchItem::Deleted(entry)) =
            item
        else {
            panic!("{item:?}");
        };
        format!("{} {}", word(item), entry.revision)
    });
    shown.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// A watch with an exact selector shows what a watch of everything shows, filtered, also if it
    /// resumes somewhere in the history.
    #[test]
    fn a_watch_of_a_key_is_the_filtered_watch_of_all(before in pod_steps(), after in pod_steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = server();
            for step in &before {
                change(&server, step).await;
            }
            let (mut starts, mut watches) = (Vec::new(), Vec::new());
            for (at, step) in after.iter().enumerate() {
                if at % 8 == 0 {
                    let page = server.list(CONFIGMAPS, &selecting("", "")).await.unwrap();
                    let state: BTreeMap<String, Arc<Entry>> =
                        page.items.iter().map(|entry| (entry.key.name().to_owned(), entry.clone())).collect();
                    starts.push(state);
                    for selector in SELECTORS.iter().chain(&[""]) {
                        let target = server.target(CONFIGMAPS, "");
                        let live = watch(&server, &target, selector, page.revision).await;
                        watches.push((page.revision, PolledWatch::new(live)));
                    }
                }
                change(&server, step).await;
            }
            settle(server.registry.store());
            for (start, watches) in starts.iter().zip(watches.chunks_mut(SELECTORS.len() + 1)) {
                let [selective @ .., (_, all)] = watches else { unreachable!("never empty") };
                let all = all.run();
                for (selector, (since, live)) in SELECTORS.iter().zip(selective) {
                    let matching = start.values().filter(|entry| selects(selector, entry));
                    let mut selected = matching.map(|entry| entry.key.name().to_owned()).collect();
                    let expected = filtered(selector, &all, &mut selected);
                    assert_eq!(shown(&live.run()), expected, "{selector}");
                    let target = server.target(CONFIGMAPS, "");
                    let resumed = watch(&server, &target, selector, *since).await;
                    let mut resumed = PolledWatch::new(resumed);
                    assert_eq!(shown(&resumed.run()), expected, "{selector}, resumed");
                    assert_eq!(shown(&resumed.run()), [""; 0], "once");
                }
            }
        });
    }
}
