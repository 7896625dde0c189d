//! WATCH: where it starts, selectors, bookmarks, how it ends.

use crate::support::*;
use ferrokube_apimachinery::document::json;
use ferrokube_registry::{ListOptions, Notice, VersionMatch, Watch, WatchItem, WatchOptions, view};
use ferrokube_storage::testing::{commit, write};
use ferrokube_storage::{Entry, Prefix, Revision};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) fn from(version: impl ToString) -> WatchOptions {
    let list = ListOptions { resource_version: version.to_string(), ..ListOptions::default() };
    WatchOptions { list, timeout: Duration::from_secs(600), ..WatchOptions::default() }
}

fn streaming(version: impl ToString) -> WatchOptions {
    let mut options = WatchOptions { bookmarks: true, ..from(version) };
    options.list.initial_events = Some(true);
    options.list.version_match = VersionMatch::NotOlderThan;
    options
}

fn selected(labels: &str, version: impl ToString) -> WatchOptions {
    let mut options = from(version);
    options.list.labels = selecting(labels, "").labels;
    options
}

pub(crate) async fn watch(server: &TestRegistry, options: WatchOptions) -> Watch {
    server.registry.watch(&server.target(CONFIGMAPS, ""), options).await.unwrap()
}

/// `+name`, `~name`, `-name`, `bookmark`, `end`, `error`.
pub(crate) fn word(item: &WatchItem) -> String {
    match item {
        WatchItem::Added(entry) => format!("+{}", entry.key.name()),
        WatchItem::Modified(entry) => format!("~{}", entry.key.name()),
        WatchItem::Deleted(entry) => format!("-{}", entry.key.name()),
        WatchItem::Bookmark { initial_events_end: true, .. } => "end".to_owned(),
        WatchItem::Bookmark { .. } => "bookmark".to_owned(),
        WatchItem::Error(failure) => format!("error {}", failure.code),
    }
}

/// The next `count` items.
async fn take(watch: &mut Watch, count: usize) -> Vec<WatchItem> {
    let mut items = Vec::new();
    while items.len() < count {
        items.extend(soon(watch.next()).await.expect("it goes on"));
    }
    assert_eq!(items.len(), count, "{items:?}");
    items
}

async fn words(watch: &mut Watch, count: usize) -> String {
    take(watch, count).await.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn revision(item: &WatchItem) -> Revision {
    match item {
        WatchItem::Added(entry) | WatchItem::Modified(entry) | WatchItem::Deleted(entry) => {
            entry.revision
        }
        WatchItem::Bookmark { revision, .. } => *revision,
        WatchItem::Error(_) => Revision(0),
    }
}

#[tokio::test]
async fn a_watch_starts_at_the_requested_version() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, labeled("a", "1")).await.unwrap();
    let after_a = server.registry.store().revision();
    server.post(CONFIGMAPS, labeled("b", "1")).await.unwrap();
    server.delete(CONFIGMAPS, "a").await.unwrap();
    assert_eq!(words(&mut watch(&server, from(after_a)).await, 2).await, "+b -a");
    assert_eq!(words(&mut watch(&server, from(0)).await, 1).await, "+b");
    assert_eq!(words(&mut watch(&server, from("")).await, 1).await, "+b");
    assert_eq!(words(&mut watch(&server, streaming("")).await, 2).await, "+b end");
    assert_eq!(words(&mut watch(&server, streaming(0)).await, 2).await, "+b end");
    let mut quiet = watch(&server, WatchOptions { bookmarks: false, ..streaming(after_a) }).await;
    assert_eq!(words(&mut quiet, 1).await, "+b");
    let mut none = streaming("");
    none.list.initial_events = Some(false);
    let mut none = watch(&server, none).await;
    server.post(CONFIGMAPS, labeled("c", "1")).await.unwrap();
    assert_eq!(words(&mut none, 1).await, "+c");
    assert_eq!(words(&mut quiet, 1).await, "+c");
}

#[tokio::test]
async fn the_end_bookmark_follows_a_long_initial_state() {
    let server = TestRegistry::new();
    for n in 0..300 {
        server.post(CONFIGMAPS, labeled(&format!("n{n:03}"), "1")).await.unwrap();
    }
    let mut watch = watch(&server, streaming("")).await;
    let items = take(&mut watch, 301).await;
    assert_eq!(
        (word(&items[0]), word(&items[299]), word(&items[300])),
        ("+n000".to_owned(), "+n299".to_owned(), "end".to_owned())
    );
    assert_eq!(revision(&items[300]), server.registry.store().revision());
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_watch_includes_its_initial_state() {
    let server = TestRegistry::new();
    for at in 0..100 {
        server
            .post(
                CONFIGMAPS,
                json!({"metadata": {"name": format!("c{at}")}, "data": {"k": "v".repeat(1000)}}),
            )
            .await
            .unwrap();
    }
    let mut watch =
        watch(&server, WatchOptions { timeout: Duration::from_secs(10), ..streaming(0) }).await;
    let first = watch.next().await.unwrap();
    assert!(first.len() < 20, "a frame, not {} objects", first.len());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert!(watch.next().await.is_none());
}

/// Events begin right after the state, whatever is written meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_where_its_initial_state_ends() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, labeled("a", "1")).await.unwrap();
    let snapshot = server.registry.store().snapshot(&Prefix::new("configmaps").unwrap());
    let key = snapshot.range(None, None).next().unwrap().key.clone();
    let ended = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (store, ended) = (server.registry.store().clone(), Arc::clone(&ended));
        async move {
            while !ended.load(Ordering::Relaxed) {
                commit(&store, write(&key, "v")).await.unwrap();
            }
        }
    });
    for _ in 0..1000 {
        let mut watch = watch(&server, from(0)).await;
        let mut seen = Vec::new();
        while seen.len() < 2 {
            seen.extend(soon(watch.next()).await.expect("it goes on").iter().map(revision));
        }
        assert_eq!(seen[1], Revision(seen[0].0 + 1), "one writer writes one object");
    }
    ended.store(true, Ordering::Relaxed);
    writer.await.unwrap();
}

type OptionsChange = fn(&mut WatchOptions);

/// kube-apiserver validates options of the deprecated watch paths like those of a list.
#[tokio::test]
async fn a_watch_by_path_has_the_options_of_a_list() {
    let server = TestRegistry::new();
    let by_path = |change: OptionsChange| {
        let mut options = WatchOptions { by_path: true, ..from(0) };
        change(&mut options);
        options
    };
    let target = server.target(CONFIGMAPS, "");
    let cases: [(OptionsChange, &[&str]); 4] = [
        (|options| options.list.initial_events = Some(false), &["Forbidden sendInitialEvents"]),
        (
            |options| options.list.version_match = VersionMatch::Exact,
            &["Forbidden resourceVersionMatch"],
        ),
        (|options| options.list.version_match = VersionMatch::NotOlderThan, &[]),
        (
            |options| {
                (options.list.version_match, options.list.resource_version) =
                    (VersionMatch::NotOlderThan, String::new())
            },
            &["Forbidden resourceVersionMatch"],
        ),
    ];
    for (change, causes) in cases {
        let outcome = server.registry.watch(&target, by_path(change)).await;
        if causes.is_empty() {
            drop(outcome.unwrap())
        } else {
            refused(&outcome.map(drop), "Invalid", causes)
        }
    }
}

#[tokio::test]
async fn options_that_cannot_be_combined() {
    let server = TestRegistry::new();
    let target = server.target(CONFIGMAPS, "");
    let with = |initial: Option<bool>, version_match, version: &str| {
        let mut options = from(version);
        options.list.initial_events = initial;
        options.list.version_match = version_match;
        options
    };
    let both = ["Forbidden resourceVersionMatch", "NotSupported resourceVersionMatch"];
    for (options, causes) in [
        (with(Some(true), VersionMatch::Unset, ""), &both[..1]),
        (with(Some(true), VersionMatch::Exact, "5"), &both[..]),
        (with(None, VersionMatch::NotOlderThan, ""), &both[..1]),
        (with(None, VersionMatch::Exact, "5"), &both[..]),
    ] {
        refused(&server.registry.watch(&target, options).await.map(drop), "Invalid", causes);
    }
    for junk in ["abc", "-1"] {
        refused(&server.registry.watch(&target, from(junk)).await.map(drop), "500", &[]);
    }
    let mut unknown = from("");
    unknown.list.fields = selecting("", "data.x=1").fields;
    refused(&server.registry.watch(&target, unknown).await.map(drop), "BadRequest", &[]);
}

#[tokio::test]
async fn fault_22_objects_enter_and_leave_a_selection() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, labeled("a", "no")).await.unwrap();
    let mut watch = watch(&server, selected("s=yes", server.registry.store().revision())).await;
    let label = |label: &str, value: &str| merge(json!({"metadata": {"labels": {label: value}}}));
    server.patch(CONFIGMAPS, "a", label("s", "yes")).await.unwrap();
    let inside = server.patch(CONFIGMAPS, "a", label("t", "1")).await.unwrap();
    let left = server.patch(CONFIGMAPS, "a", label("s", "no")).await.unwrap();
    server.patch(CONFIGMAPS, "a", label("t", "2")).await.unwrap();
    server.delete(CONFIGMAPS, "a").await.unwrap();
    server.post(CONFIGMAPS, labeled("b", "yes")).await.unwrap();
    server.delete(CONFIGMAPS, "b").await.unwrap();
    let items = take(&mut watch, 5).await;
    assert_eq!(items.iter().map(word).collect::<Vec<_>>().join(" "), "+a ~a -a +b -b");
    let WatchItem::Deleted(entry) = &items[2] else { panic!() };
    let shown = view(entry, &server.target(CONFIGMAPS, "").served);
    assert_eq!(
        (version(&shown), entry.revision.0),
        (version(&left), version(&left)),
        "the change's version"
    );
    assert_eq!(
        (shown.label("s"), shown.label("t")),
        (inside.label("s"), inside.label("t")),
        "the last state that was selected"
    );
}

#[tokio::test]
async fn a_watch_of_one_object_or_namespace_sees_no_other() {
    let server = TestRegistry::new();
    let mut one =
        server.registry.watch(&server.target(CONFIGMAPS, "later"), from("")).await.unwrap();
    let mut elsewhere = server.target(CONFIGMAPS, "");
    elsewhere.namespace = Some("elsewhere".to_owned());
    let mut other = server.registry.watch(&elsewhere, from("")).await.unwrap();
    elsewhere.namespace = None;
    let mut all = server.registry.watch(&elsewhere, from("")).await.unwrap();
    server.post(CONFIGMAPS, labeled("other", "1")).await.unwrap();
    server.post(CONFIGMAPS, labeled("later", "1")).await.unwrap();
    server.delete(CONFIGMAPS, "later").await.unwrap();
    assert_eq!(words(&mut one, 2).await, "+later -later");
    assert_eq!(words(&mut all, 3).await, "+other +later -later");
    let mut target = server.target(CONFIGMAPS, "");
    target.namespace = Some("elsewhere".to_owned());
    server
        .registry
        .create(&context(), &target, body(labeled("x", "1")), &Default::default())
        .await
        .unwrap();
    assert_eq!(words(&mut other, 1).await, "+x");
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_and_before_the_end() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, labeled("a", "1")).await.unwrap();
    let started = tokio::time::Instant::now();
    let mut watch = watch(
        &server,
        WatchOptions {
            bookmarks: true,
            timeout: Duration::from_secs(150),
            ..from(server.registry.store().revision())
        },
    )
    .await;
    server.post(SECRETS, json!({"metadata": {"name": "s"}})).await.unwrap();
    let mut seconds = Vec::new();
    while let Some(items) = watch.next().await {
        assert_eq!(items.iter().map(word).collect::<Vec<_>>(), ["bookmark"]);
        assert_eq!(
            revision(&items[0]),
            server.registry.store().revision(),
            "also of other resources' writes"
        );
        seconds.push(started.elapsed().as_secs());
    }
    assert_eq!(seconds, [60, 120, 148]);
    assert_eq!(started.elapsed().as_secs(), 150);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_behind_at_its_deadline_ends() {
    let server = TestRegistry::new();
    let options = WatchOptions {
        bookmarks: true,
        timeout: Duration::from_secs(30),
        ..from(server.registry.store().revision())
    };
    let mut watch = watch(&server, options).await;
    server.post(CONFIGMAPS, labeled("a", "1")).await.unwrap();
    tokio::time::advance(Duration::from_secs(31)).await;
    // The unread event may come first.
    for _ in 0..3 {
        if watch.next().await.is_none() {
            return;
        }
    }
    panic!("it goes on after its deadline");
}

/// All writes are of one object, so that each revision follows the one before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_with_a_state_misses_nothing_that_is_written_meanwhile() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, labeled("a", "0")).await.unwrap();
    let writing = server.clone();
    let writer = tokio::spawn(async move {
        for number in 1.. {
            let patch = merge(json!({"metadata": {"labels": {"x": number.to_string()}}}));
            writing.patch(CONFIGMAPS, "a", patch).await.unwrap();
        }
    });
    for _ in 0..300 {
        let mut watch = watch(&server, from("")).await;
        let mut revisions = Vec::new();
        while revisions.len() < 3 {
            let items = soon(watch.next()).await.expect("it goes on");
            revisions.extend(items.iter().map(|item| revision(item).0));
        }
        assert!(revisions.windows(2).all(|two| two[0] + 1 == two[1]), "{revisions:?}");
    }
    writer.abort();
}

/// Waits for a revision that follows soon, and shows nothing from before it.
#[tokio::test]
async fn fault_19_a_watch_waits_for_a_version_that_comes_soon() {
    let server = TestRegistry::new();
    let now = server.registry.store().revision().0;
    let waiting = server.clone();
    let future = tokio::spawn(async move {
        let mut future = watch(&waiting, from(now + 2)).await;
        words(&mut future, 1).await
    });
    for name in ["a", "b", "c"] {
        server.post(CONFIGMAPS, labeled(name, "1")).await.unwrap();
    }
    assert_eq!(future.await.unwrap(), "+c", "what came before is not told");
}

/// A revision that does not follow is from another store: the client must list again.
#[tokio::test(start_paused = true)]
async fn fault_19_a_watch_of_a_future_version_expires() {
    let server = TestRegistry::new();
    let now = server.registry.store().revision();
    let mut too_far = watch(&server, from(now.0 + 100)).await;
    let Some(WatchItem::Error(failure)) = too_far.next().await.and_then(|mut items| items.pop())
    else {
        panic!("one error event");
    };
    assert_eq!(
        failure.message,
        format!("Too large resource version: {}, current: {now}", now.0 + 100)
    );
    refused(&Err::<(), _>(*failure), "Expired", &["ResourceVersionTooLarge "]);
    assert!(too_far.next().await.is_none());
}

/// Without a journal, revisions of an earlier process are lower than any of this one.
#[tokio::test]
async fn fault_09_a_memory_store_begins_above_the_one_before() {
    let before = TestRegistry::new();
    for name in ["a", "b", "c"] {
        before.post(CONFIGMAPS, labeled(name, "1")).await.unwrap();
    }
    let last = before.registry.store().revision();
    let after = TestRegistry::new();
    assert!(
        after.registry.store().revision() > last,
        "{} after {last}",
        after.registry.store().revision()
    );
    let mut old = watch(&after, from(last)).await;
    assert_eq!(words(&mut old, 1).await, "error 410");
    assert!(
        after.registry.store().revision().0 < 1 << 53,
        "exact also for clients that take it for a floating point number"
    );
}

#[tokio::test(start_paused = true)]
async fn fault_19_a_streaming_list_of_a_future_version_is_refused() {
    let server = TestRegistry::new();
    let mut too_far = server
        .registry
        .watch(
            &server.target(CONFIGMAPS, ""),
            streaming(server.registry.store().revision().0 + 100),
        )
        .await
        .unwrap();
    let Some(WatchItem::Error(failure)) = too_far.next().await.and_then(|mut items| items.pop())
    else {
        panic!("one error event");
    };
    refused(&Err::<(), _>(*failure), "Timeout", &["ResourceVersionTooLarge "]);
    assert!(too_far.next().await.is_none());
}

#[tokio::test]
async fn a_watch_marks_the_end_of_its_initial_state() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    for version in ["", "0"] {
        let mut options = from(version);
        options.bookmarks = true;
        let mut watch =
            server.registry.watch(&server.target(CONFIGMAPS, ""), options).await.unwrap();
        assert_eq!(words(&mut watch, 2).await, "+a end");
    }
    let mut over = from("");
    over.timeout = Duration::ZERO;
    assert!(
        server
            .registry
            .watch(&server.target(CONFIGMAPS, ""), over)
            .await
            .unwrap()
            .next()
            .await
            .is_none()
    );
}

#[tokio::test]
async fn a_compacted_version_gets_an_error_event() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, labeled("a", "1")).await.unwrap();
    let kept = server.registry.store().revision().0;
    for name in ["b", "c"] {
        server.post(CONFIGMAPS, labeled(name, "1")).await.unwrap();
    }
    let mut old = watch(&server, from(1)).await;
    assert_eq!(words(&mut old, 1).await, "error 410");
    assert!(soon(old.next()).await.is_none());
    let mut resumed = watch(&server, from(kept)).await;
    assert_eq!(words(&mut resumed, 2).await, "+b +c");
    let mut definition =
        ferrokube_resource::Definition::clone(&server.target(CONFIGMAPS, "").served.definition);
    definition.since = server.registry.store().revision().0;
    definition.epoch += 1;
    server.registry.catalog().put(Arc::new(definition));
    let mut before = watch(&server, from(kept)).await;
    assert_eq!(words(&mut before, 1).await, "error 410", "from before the resource existed");
}

#[tokio::test]
async fn a_watch_ends_with_its_definition_the_server_or_the_store() {
    let server = TestRegistry::new();
    let mut watches = [
        watch(&server, from("")).await,
        watch(&server, from("")).await,
        watch(&server, from("")).await,
    ];
    let target = server.target(CONFIGMAPS, "");
    server.registry.catalog().put(server.target(SECRETS, "").served.definition.clone());
    server.post(CONFIGMAPS, labeled("a", "1")).await.unwrap();
    for watch in &mut watches {
        assert_eq!(words(watch, 1).await, "+a", "other definitions do not matter");
    }
    let mut changed = ferrokube_resource::Definition::clone(&target.served.definition);
    changed.epoch += 1;
    server.registry.catalog().put(Arc::new(changed));
    for watch in &mut watches {
        assert!(soon(watch.next()).await.is_none());
    }
    let mut removed = watch(&server, from("")).await;
    take(&mut removed, 1).await;
    server.registry.catalog().remove("", "configmaps");
    assert!(soon(removed.next()).await.is_none());
    server.registry.catalog().put(target.served.definition.clone());
    // Recreated at once: a custom resource's epoch is 1 again.
    let mut replaced = watch(&server, from("")).await;
    take(&mut replaced, 1).await;
    server.registry.catalog().remove("", "configmaps");
    let mut recreated = ferrokube_resource::Definition::clone(&target.served.definition);
    recreated.since = server.registry.store().revision().0;
    server.registry.catalog().put(Arc::new(recreated));
    assert!(soon(replaced.next()).await.is_none());
    server.registry.catalog().put(target.served.definition.clone());
    let mut ended = watch(&server, from("")).await;
    server.registry.end_watches();
    assert!(soon(ended.next()).await.is_none());
    assert!(soon(watch(&server, from("")).await.next()).await.is_none(), "also those to come");
    let other = TestRegistry::new();
    let mut closed = watch(&other, from("")).await;
    other.registry.store().close().await;
    assert!(soon(closed.next()).await.is_none());
}

#[tokio::test]
async fn an_informer_follows_and_lists_again() {
    let server = TestRegistry::on(ferrokube_storage::Config {
        history_bytes: 4096,
        ..ferrokube_storage::Config::memory()
    });
    server.post(CONFIGMAPS, labeled("a", "1")).await.unwrap();
    let mut informer =
        ferrokube_registry::Informer::new(&server.registry, "", "v1", "configmaps").unwrap();
    assert_eq!(informer.snapshot().len(), 1);
    server.post(CONFIGMAPS, labeled("b", "1")).await.unwrap();
    server.delete(CONFIGMAPS, "a").await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(soon(informer.next()).await.unwrap().read());
    }
    assert!(
        matches!(&seen[0], Notice::Changed(key, object) if key.name() == "b" && object.label("s") == Some("1")),
        "{seen:?}"
    );
    assert!(matches!(&seen[1], Notice::Removed(key) if key.name() == "a"), "{seen:?}");
    server.post(CONFIGMAPS, labeled("c", "1")).await.unwrap();
    let (store, prefix) =
        (server.registry.store(), ferrokube_storage::Prefix::new("configmaps").unwrap());
    let last = store.revision();
    while store.history(&prefix).listed <= last {
        server.put(CONFIGMAPS, "c", labeled("c", &store.revision().to_string())).await.unwrap();
    }
    let again = soon(informer.next()).await.unwrap().read();
    assert!(matches!(&again[..], [Notice::Replaced(state)] if state.len() == 2), "{again:?}");
    let mut late =
        ferrokube_registry::Informer::new(&server.registry, "", "v1", "configmaps").unwrap();
    assert!(
        matches!(&soon(late.next()).await.unwrap().read()[..], [Notice::Replaced(state)] if state.len() == 2)
    );
    server.registry.store().close().await;
    assert!(soon(late.next()).await.is_none());
}

/// A cache as clients build it.
fn remember(cache: &mut BTreeMap<String, Arc<Entry>>, items: Vec<WatchItem>) -> Option<Revision> {
    let mut seen = None;
    for item in items {
        seen = Some(revision(&item));
        match item {
            WatchItem::Added(entry) => {
                assert!(cache.insert(entry.key.name().to_owned(), entry).is_none(), "added twice")
            }
            WatchItem::Modified(entry) => assert!(
                cache.insert(entry.key.name().to_owned(), entry).is_some(),
                "modified before it was added"
            ),
            WatchItem::Deleted(entry) => {
                assert!(cache.remove(entry.key.name()).is_some(), "deleted before it was added")
            }
            WatchItem::Bookmark { .. } => {}
            WatchItem::Error(failure) => panic!("{failure}"),
        }
    }
    seen
}

#[derive(Clone, Debug)]
struct WriteStep {
    name: u8,
    label: Option<bool>,
}

fn steps() -> impl Strategy<Value = Vec<WriteStep>> {
    proptest::collection::vec(
        (0..8u8, proptest::option::of(any::<bool>()))
            .prop_map(|(name, label)| WriteStep { name, label }),
        1..60,
    )
}

async fn change(server: &TestRegistry, step: &WriteStep) {
    let name = format!("n{}", step.name);
    let Some(label) = step.label else {
        _ = server.delete(CONFIGMAPS, &name).await;
        return;
    };
    let label = if label { "yes" } else { "no" };
    if server.post(CONFIGMAPS, labeled(&name, label)).await.is_err() {
        server.patch(CONFIGMAPS, &name, merge(json!({"metadata": {"labels": {"s": label}}, "data": {"n": step.name.to_string()}}))).await.unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// A cache built from a watch equals the list at every moment, for every selection and starting
    /// point.
    #[test]
    fn fault_22_a_cache_built_from_a_watch_is_the_list(before in steps(), after in steps(), selected: bool, resumed: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = TestRegistry::new();
            for step in &before {
                change(&server, step).await;
            }
            let select = || if selected { selecting("s=yes", "") } else { ListOptions::default() };
            let mut cache = BTreeMap::new();
            let mut options = from("");
            if resumed {
                let page = server.list(CONFIGMAPS, &select()).await.unwrap();
                cache.extend(page.items.iter().map(|entry| (entry.key.name().to_owned(), entry.clone())));
                options.list.resource_version = page.revision.to_string();
            }
            options.list.labels = select().labels;
            let mut watch = watch(&server, options).await;
            for step in &after {
                change(&server, step).await;
            }
            // The last event shows that all were seen.
            server.post(CONFIGMAPS, labeled("zz", "yes")).await.unwrap();
            let end = server.registry.store().revision();
            let mut seen = Revision(0);
            while seen < end {
                seen = remember(&mut cache, soon(watch.next()).await.unwrap()).unwrap_or(seen);
            }
            let page = server.list(CONFIGMAPS, &select()).await.unwrap();
            let expected: Vec<_> = page.items.iter().map(|entry| (entry.key.name().to_owned(), entry.bytes.clone())).collect();
            assert_eq!(cache.into_iter().map(|(name, entry)| (name, entry.bytes.clone())).collect::<Vec<_>>(), expected);
        });
    }
}
