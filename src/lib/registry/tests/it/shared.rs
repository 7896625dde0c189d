//! Several servers on one storage.

use crate::support::*;
use base64::Engine;
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::json;
use ferrokube_registry::{
    Catalog, Deleted, ListOptions, StorageMediaType, StoredValues, VersionMatch,
};
use ferrokube_resource::{Definition, Dialect, Hooks};
use ferrokube_schema::custom::{SchemaContext, from_json_schema};
use ferrokube_storage::testing::{SharedClient, SharedEngine, SharedFault};
use ferrokube_storage::{Environment, Key, Prefix, Sidecar, Store, ValueCodec, ValueForm};
use std::sync::Arc;

fn codec(media_type: StorageMediaType) -> StoredValues {
    let catalog = Arc::new(Catalog::default());
    for definition in ferrokube_resources::definitions(ferrokube_resources::tables()) {
        catalog.put(definition);
    }
    StoredValues::new(catalog, ferrokube_resources::messages(), media_type)
}

async fn server(client: &SharedClient) -> TestRegistry {
    let engine = Arc::new(client.clone());
    let codec = Arc::new(codec(StorageMediaType::Protobuf));
    let store = Store::attach(engine, codec, 64 << 20, Environment::default()).await.unwrap();
    TestRegistry::over(store)
}

async fn two() -> (SharedEngine, [SharedClient; 2], [TestRegistry; 2]) {
    let engine = SharedEngine::default();
    let clients = [engine.client(), engine.client()];
    let servers = [server(&clients[0]).await, server(&clients[1]).await];
    (engine, clients, servers)
}

fn object_key(name: &str) -> Key {
    Prefix::new("configmaps").unwrap().key(Some("ns"), name).unwrap()
}

#[tokio::test]
async fn servers_read_each_others_writes() {
    let (engine, _, [one, other]) = two().await;
    let made = one.post(CONFIGMAPS, configmap("a", "1")).await.unwrap();
    assert_eq!(other.get(CONFIGMAPS, "a").await.unwrap(), made, "the same to the byte");
    let stored = engine.value(&object_key("a")).unwrap();
    assert!(stored.starts_with(b"k8s\0"), "as kube-apiserver stores it: {stored:?}");
    let [here, there] = [&one, &other].map(|server| {
        let entry = server.registry.store().get(&object_key("a")).unwrap();
        assert!(server.registry.store().is_fresh(&entry));
        (entry.bytes.clone(), Sidecar { form: ValueForm::OWN, ..entry.sidecar.clone() })
    });
    assert_eq!(here, there);
    other.put(CONFIGMAPS, "a", configmap("a", "1")).await.unwrap();
    assert_eq!(engine.events_of(&object_key("a")), 1, "stored as it would be, by the other");
    let patched = other.patch(CONFIGMAPS, "a", merge(json!({"data": {"l": "2"}}))).await.unwrap();
    let page = one.list(CONFIGMAPS, &ListOptions::default()).await.unwrap();
    assert_eq!(page.items[0].revision.0, version(&patched));
    assert!(matches!(other.delete(CONFIGMAPS, "a").await.unwrap(), Deleted::Gone(_)));
    refused(&one.get(CONFIGMAPS, "a").await, "NotFound", &[]);
    refused(&one.delete(CONFIGMAPS, "a").await, "NotFound", &[]);
}

/// As kube-apiserver: rewriting all objects unchanged brings them into the current form.
#[tokio::test]
async fn an_unchanged_object_is_written_once_in_another_form() {
    let (engine, _, [one, other]) = two().await;
    let key = object_key("a");
    let text = r#"{"apiVersion":"v1","kind":"ConfigMap","data":{"k":"v"},"metadata":{"name":"a","namespace":"ns"}}"#;
    engine.write_foreign(key.as_str(), Some(text));
    for server in [&one, &other, &one] {
        let object = server.get(CONFIGMAPS, "a").await.unwrap().into_value();
        server.put(CONFIGMAPS, "a", object).await.unwrap();
        assert_eq!(engine.events_of(&key), 2);
    }
    assert!(engine.value(&key).unwrap().starts_with(b"k8s\0"));
}

/// Results without a write do not come from an outdated state.
#[tokio::test]
async fn a_lagging_server_refuses_nothing_for_its_lag() {
    let (_, clients, [one, other]) = two().await;
    let lagging = |act: &'static str| {
        let (one, other, client) = (one.clone(), other.clone(), clients[1].clone());
        async move {
            client.hold(true);
            let made = one.post(CONFIGMAPS, configmap(act, "1")).await.unwrap();
            let acting = tokio::spawn(async move {
                match act {
                    "patch" => {
                        let patch = merge(json!({"data": {"l": "2"}}));
                        other.patch(CONFIGMAPS, act, patch).await.map(|object| version(&object))
                    }
                    "put" => {
                        let mut object = configmap(act, "2");
                        object["metadata"]["resourceVersion"] = made.meta("resourceVersion").into();
                        other.put(CONFIGMAPS, act, object).await.map(|object| version(&object))
                    }
                    "delete" => other.delete(CONFIGMAPS, act).await.map(|_| 0),
                    _ => other.get(CONFIGMAPS, act).await.map(|object| version(&object)),
                }
            });
            tokio::task::yield_now().await;
            client.hold(false);
            soon(acting).await.unwrap().unwrap_or_else(|failure| panic!("{act}: {failure:?}"));
        }
    };
    for act in ["patch", "put", "delete", "get"] {
        lagging(act).await;
    }
    clients[1].hold(true);
    let (first, second) = (one.post(CONFIGMAPS, configmap("b", "1")), clients[1].clone());
    first.await.unwrap();
    let taken = tokio::spawn({
        let other = other.clone();
        async move { other.post(CONFIGMAPS, configmap("b", "2")).await }
    });
    tokio::task::yield_now().await;
    second.hold(false);
    refused(&soon(taken).await.unwrap(), "AlreadyExists", &[]);
}

/// A custom resource of one version.
fn things(server: &TestRegistry, schema: &Value, epoch: u32) -> Arc<Definition> {
    let mut definition = Definition::clone(&server.target(CONFIGMAPS, "").served.definition);
    (definition.group, definition.kind, definition.plural) =
        ("example.com".to_owned(), "Thing".to_owned(), "things".to_owned());
    (definition.dialect, definition.hooks, definition.storage_prefix) =
        (Dialect::Custom, Arc::new(NoHooks), Some("example.com/things".to_owned()));
    definition.epoch = epoch;
    definition.versions[0].schema =
        Arc::new(from_json_schema(schema, &SchemaContext::default()).unwrap());
    Arc::new(definition)
}

/// Default hooks.
#[derive(Debug)]
struct NoHooks;

impl Hooks for NoHooks {}

#[tokio::test]
async fn a_custom_object_of_another_server_is_compared_with_its_schema_once() {
    let (engine, _, [one, other]) = two().await;
    let text = json!({"type": "string"});
    let schema = json!({"type": "object", "properties": {"spec": text, "old": text}});
    let fewer = json!({"type": "object", "properties": {"spec": text}});
    for server in [&one, &other] {
        server.registry.catalog().put(things(server, &schema, 3));
    }
    let path = ("example.com", "things");
    let object = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": "1", "old": "2"});
    let made = one.post(path, object).await.unwrap();
    let key = Prefix::new("example.com/things").unwrap().key(Some("ns"), "a").unwrap();
    let stored = String::from_utf8(engine.value(&key).unwrap().to_vec()).unwrap();
    let ends = [r#"{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"creation"#, "\"}\n"];
    assert!(stored.starts_with(ends[0]) && stored.ends_with(ends[1]), "as Go writes it: {stored}");
    let is_direct = |server: &TestRegistry| {
        let entry = server.registry.store().get(&key).unwrap();
        let served = &server.target(path, "").served;
        let both = [served.is_direct(&entry), served.direct()(&entry)];
        assert_eq!(both[0], both[1]);
        both[0]
    };
    assert!(is_direct(&one), "it wrote the object");
    assert_eq!(other.get(path, "a").await.unwrap(), made);
    let entry = other.registry.store().get(&key).unwrap();
    assert!(other.registry.store().is_fresh(&entry), "it would write the same");
    assert!(is_direct(&other), "its schema was found to leave the object as it is");
    other.put(path, "a", made.clone().into_value()).await.unwrap();
    assert_eq!(engine.events_of(&key), 1, "it would store the same");
    for server in [&one, &other] {
        server.registry.catalog().put(things(server, &fewer, 4));
        assert!(!is_direct(server), "another schema");
        assert_eq!(server.get(path, "a").await.unwrap().str(&["old"]), None);
        assert!(!is_direct(server), "it changes the object");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patches_on_two_servers_all_succeed() {
    let (engine, _, servers) = two().await;
    servers[0].post(CONFIGMAPS, configmap("a", "0")).await.unwrap();
    let before = engine.proposals();
    let writers: Vec<_> = (0..32)
        .map(|n| {
            let server = servers[n % 2].clone();
            tokio::spawn(async move {
                server.patch(CONFIGMAPS, "a", merge(json!({"data": {format!("k{n}"): "v"}}))).await
            })
        })
        .collect();
    for writer in writers {
        soon(writer).await.unwrap().expect("a patch never conflicts");
    }
    for server in &servers {
        let object = server.get(CONFIGMAPS, "a").await.unwrap();
        assert_eq!(object.get(&["data"]).and_then(Value::as_object).unwrap().len(), 33);
    }
    assert_eq!(engine.events_of(&object_key("a")), 33, "each was written once");
    // Writers of a key queue in each server: a write costs the other server one retry at most, not
    // one for each of its writers.
    let proposals = engine.proposals() - before;
    assert!(proposals <= 2 * 32, "{proposals} proposals for 32 writes");
}

#[tokio::test(start_paused = true)]
async fn faults_of_the_storage_have_a_status() {
    let (engine, clients, [one, _]) = two().await;
    engine.fail_next(&[SharedFault::LoseReply]);
    one.post(CONFIGMAPS, configmap("a", "1")).await.expect("it was this request's write");
    engine.fail_next(&[SharedFault::Full]);
    refused(&one.post(CONFIGMAPS, configmap("b", "1")).await, "InsufficientStorage", &[]);
    clients[0].cut(true);
    refused(&one.post(CONFIGMAPS, configmap("b", "1")).await, "ServiceUnavailable", &[]);
    refused(&one.get(CONFIGMAPS, "a").await, "ServiceUnavailable", &[]);
    refused(&one.list(CONFIGMAPS, &ListOptions::default()).await, "ServiceUnavailable", &[]);
    let cached = ListOptions {
        resource_version: "0".to_owned(),
        version_match: VersionMatch::NotOlderThan,
        ..ListOptions::default()
    };
    assert_eq!(one.list(CONFIGMAPS, &cached).await.unwrap().items.len(), 1, "at any revision");
}

#[test]
fn values_of_others_are_brought_into_form() {
    let reader = codec(StorageMediaType::Json);
    for (key, prefix) in [
        ("/registry/configmaps/ns/a", Some("/registry/configmaps/")),
        ("/registry/namespaces/a", Some("/registry/namespaces/")),
        ("/registry/example.com/widgets/ns/a", Some("/registry/example.com/widgets/")),
        ("/registry/example.com/widgets/a", Some("/registry/example.com/widgets/")),
        (
            "/registry/apiextensions.k8s.io/customresourcedefinitions/a",
            Some("/registry/apiextensions.k8s.io/customresourcedefinitions/"),
        ),
        ("/registry/unknown/ns/a", None),
        ("/registry/example.com/widgets", None),
        ("/elsewhere/configmaps/ns/a", None),
    ] {
        assert_eq!(reader.prefix(key), prefix, "{key}");
    }
    let key = object_key("a");
    let read = |text: &str| reader.read(&key, &text.to_owned().into());
    let (value, sidecar) = read(
        "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"data\":{\"k\":\"v\"},\"metadata\":{\"name\":\"a\",\"namespace\":\"ns\",\"labels\":{\"l\":\"v\"},\"resourceVersion\":\"7\"}}\n",
    )
    .unwrap();
    let canonical = "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\",\"namespace\":\"ns\",\"labels\":{\"l\":\"v\"}},\"data\":{\"k\":\"v\"}}";
    let own_form = ValueForm::of(&reader.write(&key, &value));
    assert_eq!(&value[..], canonical.as_bytes());
    assert_ne!(sidecar.form, own_form);
    // kube-apiserver ends JSON with a newline.
    for text in [canonical.to_owned(), format!("{canonical}\n")] {
        let (again, sidecar) = read(&text).unwrap();
        assert_eq!((&again, sidecar.form), (&value, own_form));
    }
    for bad in [
        "",
        "[]",
        "{}",
        "k8s\0x",
        "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"b\",\"namespace\":\"ns\"}}",
        "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\"}}",
    ] {
        read(bad).unwrap_err();
    }
}

/// Values recorded from a real kube-apiserver's etcd, and what it served for them.
#[test]
fn values_of_kube_apiserver_are_served_as_by_it() {
    let reader = codec(StorageMediaType::Protobuf);
    let (mut wrong, mut other_bytes, mut compared) = (Vec::new(), Vec::new(), 0);
    for line in include_str!("../fixtures/registry.jsonl").lines() {
        let recorded = json::read(line.as_bytes()).unwrap().document;
        let text = recorded.get(&["key"]).and_then(Value::as_str).unwrap();
        let value = recorded.get(&["value_base64"]).and_then(Value::as_str).unwrap();
        let value = base64::engine::general_purpose::STANDARD.decode(value).unwrap();
        let prefix = reader.prefix(text).unwrap_or_else(|| panic!("{text}"));
        let resource = prefix.trim_start_matches("/registry/").trim_end_matches('/');
        let rest = &text[prefix.len()..];
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, rest),
        };
        let key = Prefix::new(resource).unwrap().key(namespace, name).unwrap();
        let value = Bytes::from(value);
        let (bytes, sidecar) =
            reader.read(&key, &value).unwrap_or_else(|why| panic!("{text}: {why}"));
        let own = reader.write(&key, &bytes);
        assert_eq!(own.starts_with(b"k8s\0"), value.starts_with(b"k8s\0"), "{text}");
        if value.starts_with(b"k8s\0") && own != value {
            other_bytes.push(text.to_owned());
        }
        let (again, of_own) = reader.read(&key, &own).unwrap();
        assert_eq!((&again, of_own.form), (&bytes, ValueForm::of(&own)), "{text}");
        let mut expected =
            Document::from_value(recorded.get(&["object"]).unwrap().clone()).unwrap();
        let shown = expected.meta("resourceVersion").to_owned();
        expected.remove(&["metadata", "resourceVersion"]);
        let object = json::read(&bytes).unwrap().document;
        // It may have changed between the two recordings, or be served in another version.
        let revision = recorded.get(&["mod_revision"]).unwrap().to_string();
        if object.api_version() != expected.api_version() || shown != revision {
            continue;
        }
        compared += 1;
        for (path, one, other) in differences(object.fields(), expected.fields()) {
            wrong.push(format!("{text} {path}: {one:?}, not {other:?}"));
        }
        assert_eq!(&bytes[sidecar.revision_at as usize..][..1], b"}", "{text}");
    }
    assert!(compared > 30, "{compared} values");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(other_bytes.is_empty(), "stored in other bytes: {other_bytes:#?}");
}

/// Paths at which two objects differ, with both values.
fn differences<'a>(
    one: &'a Map,
    other: &'a Map,
) -> Vec<(String, Option<&'a Value>, Option<&'a Value>)> {
    let mut found = Vec::new();
    let keys: std::collections::BTreeSet<&str> =
        one.keys().chain(other.keys()).map(|key| &**key).collect();
    for key in keys {
        match (one.get(key), other.get(key)) {
            (Some(Value::Object(one)), Some(Value::Object(other))) => found.extend(
                differences(one, other)
                    .into_iter()
                    .map(|(path, one, other)| (format!("{key}.{path}"), one, other)),
            ),
            (Some(one), Some(other)) if one == other => {}
            (one, other) => found.push((key.to_owned(), one, other)),
        }
    }
    found
}
