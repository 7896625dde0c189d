//! LIST: versions, pages, selectors.

use crate::support::*;
use ferrokube_apimachinery::document::json;
use ferrokube_apimachinery::selector::FieldSelector;
use ferrokube_registry::{ListOptions, ListPage, VersionMatch};
use ferrokube_storage::{Config, Prefix, Revision};
use proptest::prelude::*;

async fn letters(server: &TestRegistry, names: &str) {
    for (index, name) in names.chars().enumerate() {
        let odd = if index % 2 == 0 { "yes" } else { "no" };
        server.post(CONFIGMAPS, labeled(&name.to_string(), odd)).await.unwrap();
    }
}

fn at(version: impl ToString) -> ListOptions {
    ListOptions { resource_version: version.to_string(), ..ListOptions::default() }
}

fn exact(version: impl ToString) -> ListOptions {
    ListOptions { version_match: VersionMatch::Exact, ..at(version) }
}

fn page(limit: u64, token: &str) -> ListOptions {
    ListOptions { limit, continue_token: token.to_owned(), ..ListOptions::default() }
}

#[tokio::test]
async fn pages_share_a_snapshot() {
    let server = TestRegistry::new();
    letters(&server, "abcde").await;
    let first = server.list(CONFIGMAPS, &page(2, "")).await.unwrap();
    assert_eq!((names(&first), first.remaining), (vec!["a", "b"], Some(3)));
    server.delete(CONFIGMAPS, "c").await.unwrap();
    server.post(CONFIGMAPS, labeled("bb", "yes")).await.unwrap();
    let second = server.list(CONFIGMAPS, &page(2, &first.continue_token)).await.unwrap();
    assert_eq!(
        (names(&second), second.remaining, second.revision),
        (vec!["c", "d"], Some(1), first.revision)
    );
    let third = server.list(CONFIGMAPS, &page(2, &second.continue_token)).await.unwrap();
    assert_eq!(
        (names(&third), third.remaining, third.continue_token.as_str()),
        (vec!["e"], None, "")
    );
    // Any state is allowed: kube-apiserver then returns all remaining items.
    let rest = server
        .list(
            CONFIGMAPS,
            &ListOptions { resource_version: "0".to_owned(), ..page(1, &first.continue_token) },
        )
        .await
        .unwrap();
    assert_eq!((names(&rest), rest.continue_token.as_str()), (vec!["c", "d", "e"], ""));
}

#[tokio::test]
async fn fault_23_pages_outlive_the_history_in_memory() {
    let server = TestRegistry::on(Config { history_bytes: 4096, ..Config::memory() });
    letters(&server, "abcde").await;
    let whole = server.list(CONFIGMAPS, &page(2, "")).await.unwrap();
    let abandoned = server.list(CONFIGMAPS, &page(1, "")).await.unwrap();
    for round in 0..100 {
        let object = json!({"metadata": {"name": "c", "labels": {"round": round.to_string()}}, "data": {"k": "x".repeat(100)}});
        server.put(CONFIGMAPS, "c", object).await.unwrap();
    }
    server.delete(CONFIGMAPS, "e").await.unwrap();
    refused(&server.list(CONFIGMAPS, &exact(whole.revision)).await, "Expired", &[]);
    let second = server.list(CONFIGMAPS, &page(2, &whole.continue_token)).await.unwrap();
    assert_eq!((names(&second), second.revision), (vec!["c", "d"], whole.revision));
    let third = server.list(CONFIGMAPS, &page(2, &second.continue_token)).await.unwrap();
    assert_eq!((names(&third), third.revision), (vec!["e"], whole.revision));
    assert_eq!(
        names(&server.list(CONFIGMAPS, &page(9, &abandoned.continue_token)).await.unwrap()),
        ["b", "c", "d", "e"]
    );
    // Both lists are complete: their snapshot is released.
    refused(&server.list(CONFIGMAPS, &page(2, &whole.continue_token)).await, "Expired", &[]);
}

#[tokio::test]
async fn pages_of_a_selection() {
    let server = TestRegistry::new();
    letters(&server, "abcde").await;
    let select = |token: &str| ListOptions {
        limit: 2,
        continue_token: token.to_owned(),
        ..selecting("s=yes", "")
    };
    let first = server.list(CONFIGMAPS, &select("")).await.unwrap();
    assert_eq!((names(&first), first.remaining), (vec!["a", "c"], None));
    let second = server.list(CONFIGMAPS, &select(&first.continue_token)).await.unwrap();
    assert_eq!((names(&second), second.continue_token.as_str()), (vec!["e"], ""));
    let one = server
        .list(CONFIGMAPS, &ListOptions { limit: 1, ..selecting("", "metadata.name=c") })
        .await
        .unwrap();
    assert_eq!((names(&one), one.continue_token.as_str(), one.remaining), (vec!["c"], "", None));
}

#[tokio::test]
async fn every_resource_version_and_match() {
    let server = TestRegistry::new();
    letters(&server, "ab").await;
    let rv = server.list(CONFIGMAPS, &ListOptions::default()).await.unwrap().revision;
    server.post(CONFIGMAPS, labeled("z", "yes")).await.unwrap();
    server.delete(CONFIGMAPS, "a").await.unwrap();
    let old = server.list(CONFIGMAPS, &exact(rv)).await.unwrap();
    assert_eq!((names(&old), old.revision), (vec!["a", "b"], rv));
    let paged = server.list(CONFIGMAPS, &ListOptions { limit: 1, ..exact(rv) }).await.unwrap();
    assert_eq!((names(&paged), paged.revision, paged.remaining), (vec!["a"], rv, Some(1)));
    assert_eq!(
        names(&server.list(CONFIGMAPS, &page(1, &paged.continue_token)).await.unwrap()),
        ["b"]
    );
    let legacy = server.list(CONFIGMAPS, &ListOptions { limit: 5, ..at(rv) }).await.unwrap();
    assert_eq!(
        (names(&legacy), legacy.revision),
        (vec!["a", "b"], rv),
        "a version with a limit is exact"
    );
    for options in [
        at(rv),
        at(0),
        ListOptions { version_match: VersionMatch::NotOlderThan, limit: 9, ..at(rv) },
    ] {
        assert_eq!(names(&server.list(CONFIGMAPS, &options).await.unwrap()), ["b", "z"]);
    }
    assert_eq!(
        names(&server.list(CONFIGMAPS, &ListOptions { limit: 1, ..at(0) }).await.unwrap()),
        ["b", "z"],
        "the limit is ignored"
    );
    let not_older = ListOptions { version_match: VersionMatch::NotOlderThan, limit: 1, ..at(rv) };
    assert_eq!(names(&server.list(CONFIGMAPS, &not_older).await.unwrap()), ["b"]);
}

#[tokio::test]
async fn options_that_cannot_be_combined() {
    let server = TestRegistry::new();
    letters(&server, "ab").await;
    let token = server.list(CONFIGMAPS, &page(1, "")).await.unwrap().continue_token;
    let matching = |version_match| ListOptions { version_match, ..ListOptions::default() };
    let forbidden = ["Forbidden resourceVersionMatch"];
    refused(&server.list(CONFIGMAPS, &matching(VersionMatch::Exact)).await, "Invalid", &forbidden);
    refused(
        &server.list(CONFIGMAPS, &matching(VersionMatch::NotOlderThan)).await,
        "Invalid",
        &forbidden,
    );
    refused(&server.list(CONFIGMAPS, &exact(0)).await, "Invalid", &forbidden);
    refused(
        &server.list(CONFIGMAPS, &ListOptions { continue_token: token.clone(), ..exact("") }).await,
        "Invalid",
        &forbidden,
    );
    let near = ListOptions { version_match: VersionMatch::parse("Near"), ..at(5) };
    refused(
        &server.list(CONFIGMAPS, &near).await,
        "Invalid",
        &["NotSupported resourceVersionMatch"],
    );
    let initial = ListOptions { initial_events: Some(true), ..ListOptions::default() };
    refused(&server.list(CONFIGMAPS, &initial).await, "Invalid", &["Forbidden sendInitialEvents"]);
    for junk in ["abc", "-1", "1.5", "+1", "18446744073709551616"] {
        refused(&server.list(CONFIGMAPS, &at(junk)).await, "BadRequest", &[]);
    }
    refused(
        &server
            .list(CONFIGMAPS, &ListOptions { resource_version: "1".to_owned(), ..page(1, &token) })
            .await,
        "BadRequest",
        &[],
    );
}

#[tokio::test]
async fn fault_23_tokens_are_authentic_and_bound_to_their_list() {
    let server = TestRegistry::new();
    letters(&server, "abc").await;
    server.post(SECRETS, json!({"metadata": {"name": "s"}})).await.unwrap();
    let token = server.list(CONFIGMAPS, &page(1, "")).await.unwrap().continue_token;
    refused(&server.list(SECRETS, &page(1, &token)).await, "BadRequest", &[]);
    let mut elsewhere = server.target(CONFIGMAPS, "");
    elsewhere.namespace = Some("other".to_owned());
    refused(&server.registry.list(&elsewhere, &page(1, &token)).await, "BadRequest", &[]);
    elsewhere.namespace = None;
    refused(&server.registry.list(&elsewhere, &page(1, &token)).await, "BadRequest", &[]);
    refused(&server.list(CONFIGMAPS, &page(1, &format!("{token}A"))).await, "BadRequest", &[]);
    let restarted = server.registry.clone().with_token_key(&[7; 32]);
    refused(
        &restarted.list(&server.target(CONFIGMAPS, ""), &page(1, &token)).await,
        "BadRequest",
        &[],
    );
    let kept =
        restarted.list(&server.target(CONFIGMAPS, ""), &page(1, "")).await.unwrap().continue_token;
    let again = server.registry.clone().with_token_key(&[7; 32]);
    assert_eq!(
        names(&again.list(&server.target(CONFIGMAPS, ""), &page(1, &kept)).await.unwrap()),
        ["b"]
    );
}

#[tokio::test]
async fn fault_23_a_compacted_page_offers_an_inconsistent_token() {
    let before = TestRegistry::on(Config { history_bytes: 4096, ..Config::memory() });
    letters(&before, "abc").await;
    let first = before.list(CONFIGMAPS, &page(1, "")).await.unwrap();
    before.post(CONFIGMAPS, labeled("bb", "yes")).await.unwrap();
    while before.registry.store().history(&Prefix::new("configmaps").unwrap()).listed
        <= first.revision
    {
        before.put(CONFIGMAPS, "c", json!({"metadata": {"name": "c"}, "data": {"k": before.registry.store().revision().to_string()}})).await.unwrap();
    }
    // Another process held the snapshot.
    let server = before.restarted();
    let expired = server.list(CONFIGMAPS, &page(1, &first.continue_token)).await;
    refused(&expired, "Expired", &[]);
    let token = expired.unwrap_err().continue_token.unwrap();
    assert_eq!(names(&server.list(CONFIGMAPS, &page(9, &token)).await.unwrap()), ["b", "bb", "c"]);
    refused(&server.list(CONFIGMAPS, &exact(first.revision)).await, "Expired", &[]);
}

#[tokio::test(start_paused = true)]
async fn fault_19_a_future_version_is_waited_for_and_then_refused() {
    let server = TestRegistry::new();
    letters(&server, "a").await;
    let now = server.registry.store().revision().0;
    let future = server.list(CONFIGMAPS, &at(now + 100)).await;
    refused(&future, "Timeout", &["ResourceVersionTooLarge "]);
    assert_eq!(future.unwrap_err().details.unwrap().retry_after_seconds, 1);
    let target = server.target(CONFIGMAPS, "a");
    refused(
        &server.registry.get(&target, "9223372036854775807").await,
        "Timeout",
        &["ResourceVersionTooLarge "],
    );
    refused(&server.registry.get(&target, "abc").await, "500", &[]);
}

#[tokio::test]
async fn a_future_version_is_waited_for() {
    let server = TestRegistry::new();
    letters(&server, "a").await;
    let now = server.registry.store().revision().0;
    let waiting = server.clone();
    let list = tokio::spawn(async move {
        waiting.list(CONFIGMAPS, &at(now + 1)).await.map(|page| page.items.len())
    });
    letters(&server, "b").await;
    assert_eq!(soon(list).await.unwrap().unwrap(), 2);
}

#[tokio::test]
async fn field_and_label_selectors_filter_lists() {
    let server = TestRegistry::new();
    letters(&server, "abcd").await;
    server.post(CONFIGMAPS, json!({"metadata": {"name": "e"}})).await.unwrap();
    for (labels, fields, expected) in [
        ("s", "", "a b c d"),
        ("!s", "", "e"),
        ("s!=yes", "", "b d e"),
        ("s in (yes, no)", "", "a b c d"),
        ("s notin (yes)", "", "b d e"),
        ("", "metadata.name=a", "a"),
        ("", "metadata.name!=a", "b c d e"),
        ("", "metadata.namespace=ns", "a b c d e"),
        ("", "metadata.namespace=other", ""),
        ("", "metadata.name=a,metadata.name=b", ""),
        ("s=no", "metadata.name=a", ""),
    ] {
        assert_eq!(
            names(&server.list(CONFIGMAPS, &selecting(labels, fields)).await.unwrap()).join(" "),
            expected,
            "{labels} {fields}"
        );
    }
    let unknown =
        ListOptions { fields: FieldSelector::parse("data.k=v").unwrap(), ..ListOptions::default() };
    refused(&server.list(CONFIGMAPS, &unknown).await, "BadRequest", &[]);
    server.post(SECRETS, json!({"metadata": {"name": "s"}})).await.unwrap();
    assert_eq!(names(&server.list(SECRETS, &selecting("", "type=Opaque")).await.unwrap()), ["s"]);
    assert_eq!(
        names(&server.list(SECRETS, &selecting("", "type!=Opaque")).await.unwrap()),
        Vec::<&str>::new()
    );
    server.post(NAMESPACES, json!({"metadata": {"name": "n"}})).await.unwrap();
    assert_eq!(
        names(
            &server
                .list(NAMESPACES, &selecting("", "metadata.name=n,status.phase=Active"))
                .await
                .unwrap()
        ),
        ["n"]
    );
}

#[tokio::test]
async fn two_groups_serve_one_store_of_events() {
    let server = TestRegistry::new();
    let event = |name: &str, object: &str| json!({"metadata": {"name": name}, "involvedObject": {"kind": "ConfigMap", "namespace": "ns", "name": object}});
    server.post(("", "events"), event("a", "x")).await.unwrap();
    let new = json!({"metadata": {"name": "b"}, "eventTime": "2024-01-02T03:04:05.000000Z", "reportingController": "example.com/x",
        "reportingInstance": "i", "action": "Act", "reason": "R", "type": "Normal", "regarding": {"kind": "ConfigMap", "namespace": "ns", "name": "y"}});
    server.post(("events.k8s.io", "events"), new).await.unwrap();
    let core = server.get(("", "events"), "b").await.unwrap();
    assert_eq!((core.api_version(), core.str(&["involvedObject", "name"])), ("v1", Some("y")));
    let events = server.get(("events.k8s.io", "events"), "a").await.unwrap();
    assert_eq!(
        (events.api_version(), events.str(&["regarding", "name"])),
        ("events.k8s.io/v1", Some("x"))
    );
    for (group, field) in [("", "involvedObject.name"), ("events.k8s.io", "regarding.name")] {
        let found =
            server.list((group, "events"), &selecting("", &format!("{field}=y"))).await.unwrap();
        assert_eq!(names(&found), ["b"], "{group}");
    }
    refused(
        &server.list(("events.k8s.io", "events"), &selecting("", "involvedObject.name=y")).await,
        "BadRequest",
        &[],
    );
    let label = merge(json!({"metadata": {"labels": {"l": "1"}}}));
    let patched = server.patch(("events.k8s.io", "events"), "a", label).await.unwrap();
    assert_eq!(patched.str(&["regarding", "name"]), Some("x"));
    let core = server.get(("", "events"), "a").await.unwrap();
    assert_eq!((core.label("l"), core.str(&["involvedObject", "name"])), (Some("1"), Some("x")));
}

/// A change between two pages.
#[derive(Clone, Debug)]
enum PagingStep {
    Put(u8),
    Delete(u8),
    Page,
}

fn steps() -> impl Strategy<Value = Vec<PagingStep>> {
    let step = prop_oneof![
        (0..20u8).prop_map(PagingStep::Put),
        (0..20u8).prop_map(PagingStep::Delete),
        Just(PagingStep::Page)
    ];
    proptest::collection::vec(step, 1..60)
}

async fn change(server: &TestRegistry, step: &PagingStep) {
    match step {
        PagingStep::Put(name) => {
            let object = labeled(&format!("n{name}"), if name % 3 == 0 { "yes" } else { "no" });
            if server.post(CONFIGMAPS, object).await.is_err() {
                server
                    .patch(
                        CONFIGMAPS,
                        &format!("n{name}"),
                        merge(json!({"metadata": {"labels": {"s": "yes"}}})),
                    )
                    .await
                    .unwrap();
            }
        }
        PagingStep::Delete(name) => _ = server.delete(CONFIGMAPS, &format!("n{name}")).await,
        PagingStep::Page => {}
    }
}

fn shape(page: &ListPage) -> Vec<(String, Revision)> {
    page.items.iter().map(|entry| (entry.key.name().to_owned(), entry.revision)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// Whatever happens between them, the pages add up to the list at the revision of the first.
    #[test]
    fn fault_23_pages_together_are_one_list(before in steps(), between in steps(), limit in 1..5u64, selected: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = TestRegistry::new();
            server.post(CONFIGMAPS, labeled("first", "yes")).await.unwrap();
            for step in &before {
                change(&server, step).await;
            }
            let select = || if selected { selecting("s=yes", "") } else { ListOptions::default() };
            let mut page = server.list(CONFIGMAPS, &ListOptions { limit, ..select() }).await.unwrap();
            let revision = page.revision;
            let mut found = shape(&page);
            let mut changes = between.iter().cycle();
            while !page.continue_token.is_empty() {
                for step in changes.by_ref().take(3) {
                    change(&server, step).await;
                }
                page = server.list(CONFIGMAPS, &ListOptions { limit, continue_token: page.continue_token.clone(), ..select() }).await.unwrap();
                assert_eq!(page.revision, revision);
                found.extend(shape(&page));
            }
            let whole = server.list(CONFIGMAPS, &ListOptions { version_match: VersionMatch::Exact, resource_version: revision.to_string(), ..select() }).await.unwrap();
            assert_eq!(found, shape(&whole));
        });
    }
}

#[tokio::test]
async fn a_long_selection_yields() {
    let server = TestRegistry::new();
    for number in 0..20 {
        let labels: ferrokube_apimachinery::document::Map =
            (0..500).map(|label| (format!("l{label}"), json!("v"))).collect();
        server
            .post(CONFIGMAPS, json!({"metadata": {"name": format!("c{number}"), "labels": labels}}))
            .await
            .unwrap();
    }
    let terms: Vec<String> = (0..700).map(|number| format!("k{number}!=v")).collect();
    let (target, options) = (
        server.target(CONFIGMAPS, ""),
        selecting(&terms.join(","), "metadata.name!=a,metadata.name!=c7,metadata.namespace=ns"),
    );
    let mut listing = std::pin::pin!(server.registry.list(&target, &options));
    let mut pauses = 0;
    let page = loop {
        match futures::poll!(listing.as_mut()) {
            std::task::Poll::Ready(page) => break page.unwrap(),
            std::task::Poll::Pending => pauses += 1,
        }
    };
    assert_eq!(
        (page.items.len(), pauses),
        (19, 3),
        "10,000 labels are looked at; what is looked for does not count"
    );
    let nothing =
        server.list(CONFIGMAPS, &selecting("", "metadata.name=c1,metadata.name=c2")).await.unwrap();
    assert!(nothing.items.is_empty());
}
