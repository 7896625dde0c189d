//! Fault 1: kill -9 of the real process under load, again and again. No acknowledged write is lost, the revision never goes back, nothing wrong is served.

use crate::FERROKUBE;
use ferrokube_testkit::{Client, Cluster};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often the process is killed; `FERROKUBE_KILLS=200` is the long form.
const KILLS: usize = 12;
/// Writers at a time, each with an object of its own.
const WRITERS: usize = 8;
const PATH: &str = "/api/v1/namespaces/default/configmaps";

/// What was acknowledged for one object: the last value, and those sent without an answer since.
#[derive(Clone, Debug, Default)]
struct Expected {
    acknowledged: u64,
    revision: u64,
    maybe: u64,
}

fn revision(value: &Value) -> u64 {
    value["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Writes rising numbers until the server is gone.
async fn writer(client: Client, name: String, expected: Arc<Mutex<BTreeMap<String, Expected>>>) {
    loop {
        let (number, exists) = {
            let mut all = expected.lock().unwrap();
            let own = all.entry(name.clone()).or_default();
            own.maybe = own.maybe.max(own.acknowledged) + 1;
            (own.maybe, own.maybe > 1)
        };
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"number": number.to_string(), "pad": "x".repeat(500)}});
        let path = format!("{PATH}/{name}");
        let answer = if exists { client.put(&path, &object).await } else { client.post(PATH, &object).await };
        let answer = match answer {
            // The create before may not have happened.
            Ok(answer) if answer.status == 404 => client.post(PATH, &object).await,
            Ok(answer) if answer.status == 409 => client.put(&path, &object).await,
            other => other,
        };
        let Ok(answer) = answer else { return };
        assert!(answer.status == 200 || answer.status == 201, "{}", answer.text);
        let mut all = expected.lock().unwrap();
        let own = all.get_mut(&name).unwrap();
        own.acknowledged = number;
        assert!(revision(&answer.body) > own.revision, "the revision went back: {} after {}", revision(&answer.body), own.revision);
        own.revision = revision(&answer.body);
    }
}

async fn check(client: &Client, expected: &Mutex<BTreeMap<String, Expected>>, highest: &mut u64) {
    let list = client.get(PATH).await.unwrap();
    assert_eq!(list.status, 200, "{}", list.text);
    assert!(revision(&list.body) >= *highest, "the revision went back: {} after {highest}", revision(&list.body));
    *highest = revision(&list.body);
    let stored: BTreeMap<_, _> = list.body["items"].as_array().unwrap().iter().map(|item| (item["metadata"]["name"].as_str().unwrap(), item)).collect();
    for (name, expected) in expected.lock().unwrap().iter_mut() {
        let Some(item) = stored.get(name.as_str()) else {
            assert_eq!(expected.acknowledged, 0, "{name} is lost: {expected:?}");
            continue;
        };
        let number: u64 = item["data"]["number"].as_str().unwrap().parse().unwrap();
        assert!((expected.acknowledged..=expected.maybe).contains(&number), "{name} is {number}: {expected:?}");
        assert!(revision(item) >= expected.revision && revision(item) <= *highest, "{name}: {item}");
        // What was read is there from now on.
        (expected.acknowledged, expected.revision) = (number, revision(item));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_01_kill_9_under_load_loses_nothing_acknowledged() {
    let kills = std::env::var("FERROKUBE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let mut cluster = Cluster::start(FERROKUBE).unwrap();
    let expected = Arc::new(Mutex::new(BTreeMap::new()));
    let mut highest = 0;
    for round in 0..kills {
        let client = cluster.admin().unwrap();
        check(&client, &expected, &mut highest).await;
        let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(self::writer(client.clone(), format!("object-{writer}"), expected.clone()))).collect();
        // Not to wait for anything: to be killed at another point of the work each time.
        tokio::time::sleep(Duration::from_millis(20 + (round as u64 * 37) % 200)).await;
        cluster.kill().unwrap();
        for writer in writers {
            writer.await.unwrap();
        }
        cluster.restart().unwrap();
    }
    check(&cluster.admin().unwrap(), &expected, &mut highest).await;
    let written: u64 = expected.lock().unwrap().values().map(|expected| expected.acknowledged).sum();
    assert!(written > kills as u64, "only {written} writes in {kills} rounds");
}
