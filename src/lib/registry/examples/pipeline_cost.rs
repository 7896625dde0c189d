//! CPU time of the pipeline without HTTP: `cargo run --release -p ferrokube-registry --example
//! pipeline_cost`.
//!
//! Budgets: a create of a 1 KiB configmap 40 us, a merge patch 60 us, a get 5 us, each with a
//! commit of the memory engine.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_registry::admission::AllowAll;
use ferrokube_registry::{
    Body, Catalog, ListOptions, Patch, Registry, RequestContext, Target, WatchItem, WatchOptions,
    WriteOptions,
};
use ferrokube_storage::{Config, Store};
use ferrokube_trace::TraceContext;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const ROUNDS: usize = 20_000;

/// User and system time of all threads.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("there is a /proc");
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

async fn measure(what: &str, rounds: usize, mut run: impl AsyncFnMut(usize)) {
    let (before, started) = (cpu(), std::time::Instant::now());
    for round in 0..rounds {
        run(round).await;
    }
    let each = |total: Duration| total.as_secs_f64() * 1e6 / rounds as f64;
    println!(
        "{what:<32} {:>8.1} us CPU  {:>8.1} us wall",
        each(cpu() - before),
        each(started.elapsed())
    );
}

fn context() -> RequestContext {
    RequestContext::new(
        UserInfo::default(),
        TraceContext::root(),
        "cost/1.0".to_owned(),
        SystemTime::now(),
    )
}

fn object(name: usize, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("n{name}"), "labels": {"app": "cost", "tier": "x"}},
        "data": {"a": value, "b": value, "c": value, "d": value}})
}

fn body(value: &Value) -> Body {
    Body { lenient: false, ..Document::from_value(value.clone()).expect("an object").into() }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let catalog = Arc::new(Catalog::default());
    for definition in ferrokube_resources::definitions(ferrokube_resources::tables()) {
        catalog.put(definition);
    }
    let registry = Registry::new(
        Store::open(Config::memory()).expect("memory opens"),
        catalog.clone(),
        Arc::new(AllowAll),
    );
    let served = catalog.find("", "v1", "configmaps").expect("bundled");
    let target =
        Target { served, namespace: Some("ns".to_owned()), name: None, subresource: String::new() };
    let named = |name: usize| Target { name: Some(format!("n{name}")), ..target.clone() };
    let options = WriteOptions { field_manager: "m".to_owned(), ..WriteOptions::default() };
    let value = "x".repeat(220);

    measure("create 1 KiB", ROUNDS, async |n| {
        registry
            .create(&context(), &target, body(&object(n, &value)), &options)
            .await
            .expect("created");
    })
    .await;
    measure("merge patch", ROUNDS, async |n| {
        let patch = Patch::Merge(body(&json!({"data": {"a": n.to_string()}})));
        registry.patch(&context(), &named(n), patch, &options).await.expect("patched");
    })
    .await;
    measure("merge patch of one object", ROUNDS, async |n| {
        let patch = Patch::Merge(body(&json!({"data": {"a": n.to_string()}})));
        registry.patch(&context(), &named(1), patch, &options).await.expect("patched");
    })
    .await;
    measure("apply", ROUNDS, async |n| {
        let patch = Patch::Apply(body(&object(n, &n.to_string())));
        let options = WriteOptions {
            force: true,
            field_manager: "applier".to_owned(),
            ..WriteOptions::default()
        };
        registry.patch(&context(), &named(n), patch, &options).await.expect("applied");
    })
    .await;
    measure("update", ROUNDS, async |n| {
        registry
            .update(&context(), &named(n), body(&object(n, "y")), &options)
            .await
            .expect("updated");
    })
    .await;
    measure("update, no-op", ROUNDS, async |n| {
        registry
            .update(&context(), &named(n), body(&object(n, "y")), &options)
            .await
            .expect("updated");
    })
    .await;
    measure("get", ROUNDS, async |n| {
        registry.get(&named(n), "").await.expect("there");
    })
    .await;
    measure("list 20,000", 100, async |_| {
        registry.list(&target, &ListOptions::default()).await.expect("listed");
    })
    .await;
    measure("list 20,000 by label", 100, async |_| {
        let labels =
            ferrokube_apimachinery::selector::LabelSelector::parse("tier=y").expect("valid");
        registry
            .list(&target, &ListOptions { labels, ..ListOptions::default() })
            .await
            .expect("listed");
    })
    .await;
    measure("watch 20,000 from 0", 20, async |_| {
        let options = WatchOptions { timeout: Duration::from_secs(60), ..WatchOptions::default() };
        let mut watch = registry.watch(&target, options).await.expect("watching");
        let mut seen = 0;
        while seen < ROUNDS {
            seen += watch
                .next()
                .await
                .expect("more")
                .iter()
                .filter(|item| matches!(item, WatchItem::Added(_)))
                .count();
        }
    })
    .await;
    measure("delete", ROUNDS, async |n| {
        registry.delete(&context(), &named(n), &Default::default()).await.expect("deleted");
    })
    .await;
}
