//! Many writers of one object, on several threads.

use crate::support::*;
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_registry::Deleted;
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn patches_of_one_object_all_succeed() {
    let server = Server::new();
    server.post(CONFIGMAPS, json!({"metadata": {"name": "a"}})).await.unwrap();
    let writers: Vec<_> = (0..64)
        .map(|n| {
            let server = server.clone();
            tokio::spawn(async move { server.patch(CONFIGMAPS, "a", merge(json!({"data": {format!("k{n}"): "v"}}))).await })
        })
        .collect();
    let mut versions = BTreeSet::new();
    for writer in writers {
        versions.insert(version(&soon(writer).await.unwrap().expect("a patch never conflicts")));
    }
    assert_eq!(versions.len(), 64, "each has a revision of its own");
    assert_eq!(server.get(CONFIGMAPS, "a").await.unwrap().get(&["data"]).and_then(Value::as_object).unwrap().len(), 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_writers_with_one_version_exactly_one_wins() {
    let server = Server::new();
    let first = server.post(CONFIGMAPS, configmap("a", "0")).await.unwrap();
    let writers: Vec<_> = (1..33)
        .map(|n| {
            let (server, mut object) = (server.clone(), configmap("a", &n.to_string()));
            object["metadata"]["resourceVersion"] = json!(first.meta("resourceVersion"));
            tokio::spawn(async move { outcome(&server.put(CONFIGMAPS, "a", object).await).0 })
        })
        .collect();
    let mut outcomes = Vec::new();
    for writer in writers {
        outcomes.push(soon(writer).await.unwrap());
    }
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "ok").count(), 1, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome == "ok" || outcome == "Conflict"), "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_creates_and_deletes_wins() {
    let server = Server::new();
    for _ in 0..8 {
        let creators: Vec<_> = (0..16)
            .map(|n| {
                let server = server.clone();
                tokio::spawn(async move { server.post(CONFIGMAPS, configmap("a", &n.to_string())).await })
            })
            .collect();
        let mut created = 0;
        for creator in creators {
            match soon(creator).await.unwrap() {
                Ok(_) => created += 1,
                // An answer tells only of what everybody can read.
                Err(failure) => {
                    refused::<()>(&Err(failure), "AlreadyExists", &[]);
                    server.get(CONFIGMAPS, "a").await.unwrap();
                }
            }
        }
        assert_eq!(created, 1);
        let deleters: Vec<_> = (0..16)
            .map(|_| {
                let server = server.clone();
                tokio::spawn(async move { server.delete(CONFIGMAPS, "a").await })
            })
            .collect();
        let mut deleted = 0;
        for deleter in deleters {
            match soon(deleter).await.unwrap() {
                Ok(Deleted::Gone(_)) => deleted += 1,
                other => refused(&other.map(drop), "NotFound", &[]),
            }
            refused(&server.get(CONFIGMAPS, "a").await, "NotFound", &[]);
        }
        assert_eq!(deleted, 1);
    }
}
