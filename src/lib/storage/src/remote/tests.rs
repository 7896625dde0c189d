//! A store on an in-memory engine: what it tells of the engine without a caller.

use super::reach::Reach;
use super::relying;
use super::sole::QUIET;
use super::{
    BoxFuture, FeedItem, ProposalOutcome, RemoteChange, RemoteEngine, RemoteFeed, SoleClaim,
};
use crate::entry::DraftEntry;
use crate::testing::{
    SharedEngine, SharedFault, TextValues, commit, create, delete, key, put, text, write,
};
use crate::{
    CommitError, Environment, Key, Prefix, Revision, Sidecar, Store, Txn, ValueCodec, ValueForm,
};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

async fn attached(engine: &SharedEngine) -> (Store, crate::testing::SharedClient) {
    let client = engine.client();
    let (remote, values) = (Arc::new(client.clone()), Arc::new(TextValues));
    let store = Store::attach(remote, values, 1 << 20, Environment::default()).await;
    (store.expect("the engine answers"), client)
}

/// Waits, for a minute at most.
async fn until(mut is_so: impl FnMut() -> bool) {
    let waited = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("it happens in time");
}

/// Otherwise a watch that hangs is not found before someone reads.
#[tokio::test(start_paused = true)]
async fn the_feed_is_asked_for_its_progress_without_a_reader() {
    let engine = SharedEngine::default();
    let (store, _client) = attached(&engine).await;
    let revision = engine.foreign_revision();
    assert!(store.revision() < revision);
    until(|| store.revision() >= revision).await;
}

/// Probes are answered, and no read is.
#[tokio::test(start_paused = true)]
async fn a_late_feed_is_an_outage_until_it_has_caught_up() {
    let engine = SharedEngine::default();
    let (store, client) = attached(&engine).await;
    client.hold(true);
    for _ in 0..3 {
        engine.foreign_revision();
        assert!(store.barrier().expect("a remote engine").await.is_err());
    }
    until(|| store.trouble().is_some_and(|why| why.contains("late"))).await;
    client.hold(false);
    until(|| store.trouble().is_none()).await;
    // A feed that is never at the end, and never late.
    for _ in 0..60 {
        engine.foreign_revision();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(store.trouble(), None);
    }
}

/// Such as for a user who may only read.
#[tokio::test(start_paused = true)]
async fn an_engine_that_takes_no_writes_is_known_for_it_until_it_takes_one() {
    let engine = SharedEngine::default();
    let (store, _client) = attached(&engine).await;
    let object = key("configmaps", "ns", "a");
    engine.fail_next(&[SharedFault::Unavailable; 1000]);
    let refused = commit(&store, create(&object, "1")).await;
    assert!(matches!(refused, Err(CommitError::Unavailable(_))), "{refused:?}");
    assert!(store.barrier().expect("a remote engine").await.is_ok(), "reads continue");
    assert_eq!((store.trouble(), store.refusal().as_deref()), (None, Some("down")));
    engine.heal();
    commit(&store, create(&object, "1")).await.expect("writes are taken");
    assert_eq!(store.refusal(), None);
}

/// Such as of a key that etcd's role of the server leaves out: the others are served.
#[tokio::test(start_paused = true)]
async fn a_write_that_is_refused_while_another_is_taken_tells_of_no_other() {
    let (reach, began) = (Reach::default(), Instant::now());
    reach.wrote();
    reach.refused("denied", began);
    assert_eq!(reach.refusal(), None);
    tokio::time::advance(Duration::from_secs(1)).await;
    reach.refused("denied", Instant::now());
    assert_eq!(reach.refusal().as_deref(), Some("denied"));
}

/// A full etcd takes them, and refuses the next write.
#[tokio::test(start_paused = true)]
async fn a_delete_does_not_show_that_there_is_space() {
    let engine = SharedEngine::default();
    let (store, _client) = attached(&engine).await;
    let [one, other] = ["one", "other"].map(|name| key("configmaps", "ns", name));
    commit(&store, create(&one, "1")).await.expect("there is space");
    engine.fail_next(&[SharedFault::Full]);
    let refused = commit(&store, create(&other, "1")).await;
    assert!(matches!(refused, Err(CommitError::DiskFull)), "{refused:?}");
    commit(&store, delete(&one)).await.expect("a delete needs no space");
    assert!(!store.has_space());
    commit(&store, create(&other, "1")).await.expect("there is space again");
    assert!(store.has_space());
}

/// An engine that gives its state in pages, after a page of a read that was given up.
struct PagedEngine(crate::testing::SharedClient);

struct PagedFeed {
    feed: Box<dyn RemoteFeed>,
    pages: VecDeque<FeedItem>,
}

impl RemoteEngine for PagedEngine {
    fn open(&self) -> Box<dyn RemoteFeed> {
        Box::new(PagedFeed { feed: self.0.open(), pages: VecDeque::new() })
    }

    fn propose<'a>(
        &'a self,
        txn: &'a Txn,
        relies_on: Option<SoleClaim>,
    ) -> BoxFuture<'a, ProposalOutcome> {
        self.0.propose(txn, relies_on)
    }

    fn settle(&self) -> BoxFuture<'_, Result<Revision, String>> {
        self.0.settle()
    }

    fn barrier(&self) -> BoxFuture<'_, Result<Revision, String>> {
        self.0.barrier()
    }

    fn hurry(&self) {
        self.0.hurry();
    }
}

impl PagedFeed {
    fn split(&mut self, revision: Revision, mut values: Vec<RemoteChange>) {
        let page = |values: Vec<RemoteChange>, is_first| FeedItem::State {
            revision,
            values,
            is_first,
            is_last: false,
        };
        let gone = RemoteChange { key: "/registry/configmaps/ns/gone".into(), ..values[0].clone() };
        self.pages.push_back(page(vec![gone; 700], true));
        let rest = values.split_off(1000);
        self.pages.push_back(page(values, true));
        self.pages.push_back(FeedItem::Lost("between two pages".to_owned()));
        let last = FeedItem::State { revision, values: rest, is_first: false, is_last: true };
        self.pages.push_back(last);
    }
}

impl RemoteFeed for PagedFeed {
    fn next(&mut self) -> BoxFuture<'_, FeedItem> {
        Box::pin(async move {
            if self.pages.is_empty() {
                match self.feed.next().await {
                    FeedItem::State { revision, values, .. } => self.split(revision, values),
                    other => return other,
                }
            }
            self.pages.pop_front().expect("a state has pages")
        })
    }
}

/// Large ones are decoded on several threads.
#[tokio::test]
async fn a_state_in_pages_is_published_whole_and_once() {
    let (engine, prefix) = (SharedEngine::default(), Prefix::new("configmaps").unwrap());
    let names = || (0..1500).map(|number| format!("n{number:04}"));
    for name in names() {
        let object = format!("/registry/configmaps/ns/{name}");
        engine.write_foreign(&object, Some(&format!("={name}")));
    }
    let paged = Arc::new(PagedEngine(engine.client()));
    let store = Store::attach(paged, Arc::new(TextValues), 1 << 20, Environment::default()).await;
    let store = store.expect("the engine answers");
    let check = || {
        assert_eq!(store.snapshot(&prefix).count(None, None), 1500);
        for name in names() {
            let entry = store.get(&key("configmaps", "ns", &name)).expect("it is published");
            assert_eq!(text(&entry), name);
        }
    };
    check();
    // The next state, too, whose unchanged values stay.
    let changed = key("configmaps", "ns", "n0007");
    engine.compact();
    let revision = engine.write_foreign("/registry/configmaps/ns/n0007", Some("=n0007"));
    until(|| store.revision() >= revision).await;
    check();
    assert_eq!(store.get(&changed).map(|entry| entry.revision), Some(revision));
}

/// Such as the history that a start catches up with.
#[tokio::test]
async fn many_changes_at_once_are_published_in_order() {
    let engine = SharedEngine::default();
    let (store, client) = attached(&engine).await;
    client.hold(true);
    let object = |number: usize| key("configmaps", "ns", &format!("n{number:02}"));
    for round in 0..100_usize {
        for number in 0..50 {
            let value = (!(round + number).is_multiple_of(3)).then(|| format!("={round}-{number}"));
            engine.write_foreign(object(number).as_str(), value.as_deref());
        }
        engine.write_foreign("/registry/configmaps/ns/odd", Some("not one of the tests"));
    }
    client.hold(false);
    let last = engine.foreign_revision();
    until(|| store.revision() >= last).await;
    for number in 0..50_usize {
        let is_left = !(99 + number).is_multiple_of(3);
        let present = store.get(&object(number)).map(|entry| text(&entry).to_owned());
        assert_eq!(present, is_left.then(|| format!("99-{number}")));
    }
    assert!(store.get(&key("configmaps", "ns", "odd")).is_none());
}

/// Panics at one value.
struct PanickingCodec;

impl ValueCodec for PanickingCodec {
    fn prefix<'a>(&self, key: &'a str) -> Option<&'a str> {
        TextValues.prefix(key)
    }

    fn read(&self, key: &Key, value: &Bytes) -> Result<(Bytes, Sidecar), String> {
        assert!(key.name() != "bad", "a defect of the codec");
        TextValues.read(key, value)
    }
}

#[test]
fn an_entry_is_fresh_if_its_value_would_be_stored_in_the_same_form() {
    let put = put(&key("configmaps", "ns", "a"), "text");
    for (form, is_fresh) in [
        (ValueForm::OWN, true),
        (ValueForm::STALE, false),
        (ValueForm::of(b"=text"), true),
        (ValueForm::of(b"text"), false),
    ] {
        let sidecar = Sidecar { form, ..put.sidecar.clone() };
        let draft = DraftEntry::new([&put.value, b""], sidecar, Revision(7));
        let entry = draft.finish(put.key.clone(), Revision(7), Revision(7));
        assert_eq!(TextValues.is_fresh(&entry), is_fresh, "{form:?}");
    }
}

#[tokio::test]
async fn a_value_that_the_codec_cannot_cope_with_is_left_out() {
    let engine = SharedEngine::default();
    engine.write_foreign("/registry/configmaps/ns/bad", Some("=x"));
    let (remote, codec) = (Arc::new(engine.client()), Arc::new(PanickingCodec));
    let store = Store::attach(remote, codec, 1 << 20, Environment::default()).await;
    let store = store.expect("the engine answers");
    engine.write_foreign("/registry/configmaps/ns/bad", Some("=y"));
    let revision = engine.write_foreign("/registry/configmaps/ns/good", Some("=z"));
    until(|| store.revision() >= revision).await;
    assert!(store.get(&key("configmaps", "ns", "bad")).is_none());
    assert!(store.get(&key("configmaps", "ns", "good")).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_writes_alone_claims_the_engine_until_another_one_writes() {
    let engine = SharedEngine::default();
    let (store, client) = attached(&engine).await;
    let (a, b) = (key("configmaps", "ns", "a"), key("configmaps", "ns", "b"));
    commit(&store, create(&a, "1")).await.unwrap();
    assert!(store.rely().is_none() && !store.stats().writes_alone, "others may write");
    until(|| store.rely().is_some()).await;
    assert!(store.stats().writes_alone);
    let reliance = store.rely().unwrap();
    let written = relying(Arc::clone(&reliance), async { commit(&store, write(&a, "2")).await });
    written.await.unwrap();
    assert!(reliance.is_proven());
    // Writes of the store itself change nothing.
    tokio::time::sleep(QUIET).await;
    let reliance = store.rely().expect("it is still alone");
    store.uphold(Arc::clone(&reliance)).unwrap().await.expect("nothing was missed");
    let reliance = store.rely().expect("it is still alone");
    client.hold(true);
    let (other, _) = attached(&engine).await;
    commit(&other, write(&b, "1")).await.unwrap();
    assert!(store.rely().is_some(), "it cannot know");
    let refused = relying(Arc::clone(&reliance), async { commit(&store, write(&a, "3")).await });
    assert!(matches!(refused.await, Err(CommitError::Unavailable(_))));
    assert_eq!(other.get(&a).map(|entry| text(&entry)).as_deref(), Some("2"));
    client.hold(false);
    assert!(store.uphold(reliance).unwrap().await.is_err());
    assert!(store.rely().is_none());
    commit(&store, write(&a, "3")).await.expect("without a claim");
    // While each sees the other write, neither claims.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        for (store, key) in [(&store, &a), (&other, &b)] {
            assert!(store.rely().is_none());
            commit(store, write(key, "4")).await.unwrap();
        }
    }
    drop(other);
    until(|| store.rely().is_some()).await;
    // A program that knows of no claims.
    engine.write_foreign(b.as_str(), Some("=5"));
    until(|| store.rely().is_none()).await;
    for own in [delete(&a), create(&a, "5")] {
        commit(&store, own).await.unwrap();
    }
    until(|| store.rely().is_some()).await;
    commit(&store, delete(&a)).await.unwrap();
    tokio::time::sleep(QUIET).await;
    assert!(store.rely().is_some(), "it was the store's own delete");
    engine.write_foreign(b.as_str(), None);
    until(|| store.rely().is_none()).await;
}

/// The reply is lost, and then the claim: it is not told that nothing was written.
#[tokio::test(start_paused = true)]
async fn a_write_of_unknown_outcome_is_resolved_after_its_claim_is_gone() {
    let engine = SharedEngine::default();
    let (store, client) = attached(&engine).await;
    let (a, b) = (key("configmaps", "ns", "a"), key("configmaps", "ns", "b"));
    commit(&store, create(&a, "1")).await.unwrap();
    let other = attached(&engine).await.0;
    for (fault, applied) in [(SharedFault::LoseReply, true), (SharedFault::LoseRequest, false)] {
        until(|| store.rely().is_some()).await;
        let reliance = store.rely().unwrap();
        client.hold(true);
        engine.fail_next(&[fault]);
        let text_now = format!("{fault:?}");
        let written = relying(reliance, async { commit(&store, write(&a, &text_now)).await });
        let revoked = async {
            // After the first attempt, before the second one.
            tokio::time::sleep(Duration::from_millis(1)).await;
            commit(&other, write(&b, &text_now)).await.unwrap();
            client.hold(false);
        };
        let (written, ()) = tokio::join!(written, revoked);
        assert_eq!(written.is_ok(), applied, "{written:?}");
        assert_eq!(other.get(&a).is_some_and(|entry| text(&entry) == text_now), applied);
    }
}
