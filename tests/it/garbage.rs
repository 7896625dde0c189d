//! The garbage collector and namespace controller with wrong, stuck or circular references and
//! finalizers.

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Client, Cluster, wait_until};
use reqwest::Method;
use serde_json::{Value, json};

const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";

fn configmap(name: &str, metadata: &Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    for (field, value) in metadata.as_object().unwrap() {
        object["metadata"][field.as_str()] = value.clone();
    }
    object
}

fn owner(api_version: &str, kind: &str, name: &str, uid: &Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid})
}

async fn create(admin: &Client, path: &str, object: &Value) -> Value {
    let answer = admin.post(path, object).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.body
}

async fn status(admin: &Client, path: &str) -> u16 {
    admin.get(path).await.unwrap().status
}

async fn gone(admin: &Client, what: &str, path: &str) {
    wait_until(what, BOUND, async || match admin.get(path).await.unwrap() {
        answer if answer.status == 404 => Ok(()),
        answer => Err(answer.text),
    })
    .await;
}

async fn patch(admin: &Client, path: &str, body: &Value) {
    let request =
        admin.request(Method::PATCH, path).header("content-type", "application/merge-patch+json");
    let answer = admin.send(request.body(body.to_string())).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_25_only_a_proven_absence_of_the_owner_costs_a_dependent() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let keeper = create(&admin, CONFIGMAPS, &configmap("keeper", &json!({}))).await;
    let uid = &keeper["metadata"]["uid"];
    let nobody = json!("00000000-0000-0000-0000-000000000000");
    let dependent = async |name: &str, owners: Value| {
        create(&admin, CONFIGMAPS, &configmap(name, &json!({ "ownerReferences": owners }))).await
    };

    dependent("owned", json!([owner("v1", "ConfigMap", "keeper", uid)])).await;
    // Whether an object of a kind that is not served exists is unknown.
    dependent("of-an-unknown-kind", json!([owner("example.com/v1", "Unknown", "keeper", uid)]))
        .await;
    dependent(
        "of-two",
        json!([
            owner("v1", "ConfigMap", "keeper", uid),
            owner("v1", "ConfigMap", "ghost", &nobody)
        ]),
    )
    .await;
    // A cluster-scoped object cannot have a namespaced owner: the namespace would be ambiguous.
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [],
        "metadata": {"name": "of-a-namespaced-owner", "ownerReferences": [owner("v1", "ConfigMap", "keeper", uid)]}});
    create(&admin, CLUSTER_ROLES, &role).await;
    // These owners do not exist: wrong uid, wrong kind, wrong namespace.
    dependent("wrong-uid", json!([owner("v1", "ConfigMap", "keeper", &nobody)])).await;
    dependent("wrong-kind", json!([owner("v1", "Secret", "keeper", uid)])).await;
    let elsewhere = configmap(
        "wrong-namespace",
        &json!({"ownerReferences": [owner("v1", "ConfigMap", "keeper", uid)]}),
    );
    create(&admin, "/api/v1/namespaces/kube-public/configmaps", &elsewhere).await;

    for name in ["wrong-uid", "wrong-kind"] {
        gone(&admin, name, &format!("{CONFIGMAPS}/{name}")).await;
    }
    gone(&admin, "wrong-namespace", "/api/v1/namespaces/kube-public/configmaps/wrong-namespace")
        .await;
    wait_until("the reference across scopes is an event", BOUND, async || {
        let events = admin
            .get("/api/v1/events?fieldSelector=reason%3DOwnerRefInvalidNamespace")
            .await
            .unwrap();
        if events.text.contains("of-a-namespaced-owner") { Ok(()) } else { Err(events.text) }
    })
    .await;
    wait_until("so is the one into another namespace, there", BOUND, async || {
        let events = admin.get("/api/v1/namespaces/kube-public/events?fieldSelector=reason%3DOwnerRefInvalidNamespace").await.unwrap();
        if events.text.contains("\"wrong-namespace\"") { Ok(()) } else { Err(events.text) }
    })
    .await;
    wait_until("the reference to nobody is dropped", BOUND, async || {
        let object = admin.get(&format!("{CONFIGMAPS}/of-two")).await.unwrap();
        if object.body["metadata"]["ownerReferences"].as_array().map(Vec::len) == Some(1) {
            Ok(())
        } else {
            Err(object.text)
        }
    })
    .await;
    for name in ["keeper", "owned", "of-an-unknown-kind", "of-two"] {
        assert_eq!(status(&admin, &format!("{CONFIGMAPS}/{name}")).await, 200, "{name}");
    }
    assert_eq!(status(&admin, &format!("{CLUSTER_ROLES}/of-a-namespaced-owner")).await, 200);
    // Again with a collector that starts from scratch.
    let mut cluster = cluster;
    cluster.restart().unwrap();
    let admin = cluster.admin().unwrap();
    create(
        &admin,
        CONFIGMAPS,
        &configmap(
            "later",
            &json!({"ownerReferences": [owner("v1", "ConfigMap", "ghost", &nobody)]}),
        ),
    )
    .await;
    gone(&admin, "a dependent of nobody after a restart", &format!("{CONFIGMAPS}/later")).await;
    for path in [
        format!("{CONFIGMAPS}/owned"),
        format!("{CONFIGMAPS}/of-an-unknown-kind"),
        format!("{CLUSTER_ROLES}/of-a-namespaced-owner"),
    ] {
        assert_eq!(status(&admin, &path).await, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_28_a_circle_and_a_stuck_finalizer_block_nothing_else() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let namespaces = "/api/v1/namespaces";
    for name in ["stuck", "other"] {
        create(
            &admin,
            namespaces,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        )
        .await;
    }
    let within = "/api/v1/namespaces/stuck/configmaps";
    create(&admin, within, &configmap("held", &json!({"finalizers": ["example.com/nobody"]})))
        .await;
    create(&admin, within, &configmap("free", &json!({}))).await;
    // A circle of two, each blocking the other's deletion.
    let one = create(&admin, CONFIGMAPS, &configmap("one", &json!({}))).await;
    let reference = |name: &str, object: &Value| {
        let mut reference = owner("v1", "ConfigMap", name, &object["metadata"]["uid"]);
        reference["blockOwnerDeletion"] = json!(true);
        json!({"metadata": {"ownerReferences": [reference]}})
    };
    let two =
        create(&admin, CONFIGMAPS, &configmap("two", &reference("one", &one)["metadata"])).await;
    patch(&admin, &format!("{CONFIGMAPS}/one"), &reference("two", &two)).await;

    // The second delete changes nothing.
    for _ in 0..2 {
        let answer = admin.delete(&format!("{namespaces}/stuck")).await.unwrap();
        assert!(matches!(answer.status, 200 | 202 | 409), "{}", answer.text);
    }
    assert_eq!(
        admin
            .delete(&format!("{CONFIGMAPS}/one?propagationPolicy=Foreground"))
            .await
            .unwrap()
            .status,
        200
    );
    let _ = admin.delete(&format!("{CONFIGMAPS}/one?propagationPolicy=Foreground")).await.unwrap();
    gone(&admin, "the circle", &format!("{CONFIGMAPS}/one")).await;
    gone(&admin, "the circle", &format!("{CONFIGMAPS}/two")).await;
    gone(&admin, "what nothing holds", &format!("{within}/free")).await;
    wait_until("the namespace says what holds it", BOUND, async || {
        let namespace = admin.get(&format!("{namespaces}/stuck")).await.unwrap();
        let conditions = namespace.body["status"]["conditions"].to_string();
        if conditions.contains("example.com/nobody") { Ok(()) } else { Err(namespace.text) }
    })
    .await;
    // Other deletions proceed meanwhile.
    assert_eq!(admin.delete(&format!("{namespaces}/other")).await.unwrap().status, 200);
    gone(&admin, "another namespace", &format!("{namespaces}/other")).await;
    patch(&admin, &format!("{within}/held"), &json!({"metadata": {"finalizers": null}})).await;
    gone(&admin, "the namespace", &format!("{namespaces}/stuck")).await;
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GEARS: &str = "namespaces/default/gears";

/// A definition of gears with these versions (name, whether served); the first is the storage
/// version.
fn gears(versions: &[(&str, bool)]) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let row = |(index, (name, served)): (usize, &(&str, bool))| json!({"name": name, "served": served, "storage": index == 0, "schema": schema});
    let versions: Vec<Value> = versions.iter().enumerate().map(row).collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gears.ex.com"},
        "spec": {"group": "ex.com", "scope": "Namespaced", "names": {"plural": "gears", "kind": "Gear"}, "versions": versions}})
}

async fn served(admin: &Client, version: &str) {
    wait_until("the version is served", BOUND, async || {
        match admin.get(&format!("/apis/ex.com/{version}/{GEARS}")).await.unwrap() {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    })
    .await;
}

async fn gear(admin: &Client, version: &str, name: &str, owners: &Value) -> Value {
    let gear = json!({"apiVersion": format!("ex.com/{version}"), "kind": "Gear", "metadata": {"name": name, "ownerReferences": owners}});
    create(admin, &format!("/apis/ex.com/{version}/{GEARS}"), &gear).await
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_25_an_unserved_version_deletes_no_dependent() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    create(&admin, DEFINITIONS, &gears(&[("v1", true), ("v2", true)])).await;
    served(&admin, "v2").await;
    let keeper = gear(&admin, "v1", "keeper", &json!([])).await;
    let nobody = json!("00000000-0000-0000-0000-000000000000");
    let owners = json!([
        owner("ex.com/v1", "Gear", "keeper", &keeper["metadata"]["uid"]),
        owner("v1", "ConfigMap", "ghost", &nobody)
    ]);
    let mut made = 0;
    for round in 0..6 {
        patch(
            &admin,
            &format!("{DEFINITIONS}/gears.ex.com"),
            &gears(&[("v1", round % 2 == 1), ("v2", round % 2 == 0)]),
        )
        .await;
        for _ in 0..30 {
            create(
                &admin,
                CONFIGMAPS,
                &configmap(&format!("tooth-{made}"), &json!({ "ownerReferences": owners })),
            )
            .await;
            made += 1;
        }
    }
    wait_until("every dependent was judged and kept its living owner", BOUND, async || {
        let list = admin.get(CONFIGMAPS).await.unwrap();
        let teeth: Vec<&Value> =
            list.body["items"].as_array().unwrap().iter().map(|item| &item["metadata"]).collect();
        let teeth: Vec<&&Value> = teeth
            .iter()
            .filter(|metadata| {
                metadata["name"].as_str().is_some_and(|name| name.starts_with("tooth-"))
            })
            .collect();
        assert_eq!(teeth.len(), made, "a dependent of a living owner was deleted");
        let open = teeth
            .iter()
            .filter(|metadata| metadata["ownerReferences"].as_array().map(Vec::len) != Some(1))
            .count();
        if open == 0 { Ok(()) } else { Err(format!("{open} still refer to nobody")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_25_dependents_are_deleted_in_any_served_version() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let boss = async |name: &str| {
        create(&admin, CONFIGMAPS, &configmap(name, &json!({}))).await["metadata"]["uid"].clone()
    };
    let owned = |name: &str, uid: &Value| json!([owner("v1", "ConfigMap", name, uid)]);
    let [first, second, third] = [boss("first").await, boss("second").await, boss("third").await];
    create(&admin, DEFINITIONS, &gears(&[("v1", true), ("v2", true)])).await;
    served(&admin, "v1").await;
    gear(&admin, "v1", "of-first", &owned("first", &first)).await;
    gear(&admin, "v1", "of-second", &owned("second", &second)).await;
    // The collector uses the version that it has discovered.
    assert_eq!(admin.delete(&format!("{CONFIGMAPS}/first")).await.unwrap().status, 200);
    gone(&admin, "a dependent", &format!("/apis/ex.com/v2/{GEARS}/of-first")).await;
    patch(&admin, &format!("{DEFINITIONS}/gears.ex.com"), &gears(&[("v1", false), ("v2", true)]))
        .await;
    assert_eq!(admin.delete(&format!("{CONFIGMAPS}/second")).await.unwrap().status, 200);
    gone(&admin, "a dependent in a new version", &format!("/apis/ex.com/v2/{GEARS}/of-second"))
        .await;
    // Deleted and recreated with yet another version.
    assert_eq!(admin.delete(&format!("{DEFINITIONS}/gears.ex.com")).await.unwrap().status, 200);
    gone(&admin, "the definition", &format!("{DEFINITIONS}/gears.ex.com")).await;
    create(&admin, DEFINITIONS, &gears(&[("v3", true)])).await;
    served(&admin, "v3").await;
    gear(&admin, "v3", "of-third", &owned("third", &third)).await;
    // The right uid under a wrong name is not an owner.
    create(
        &admin,
        CONFIGMAPS,
        &configmap(
            "wrong-name",
            &json!({"ownerReferences": [owner("v1", "ConfigMap", "fourth", &third)]}),
        ),
    )
    .await;
    gone(
        &admin,
        "a dependent of an owner that has another name",
        &format!("{CONFIGMAPS}/wrong-name"),
    )
    .await;
    assert_eq!(status(&admin, &format!("/apis/ex.com/v3/{GEARS}/of-third")).await, 200);
    assert_eq!(admin.delete(&format!("{CONFIGMAPS}/third")).await.unwrap().status, 200);
    gone(
        &admin,
        "a dependent of a definition made again",
        &format!("/apis/ex.com/v3/{GEARS}/of-third"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_28_a_version_that_changes_during_a_namespace_deletion_leaves_nothing_behind() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    create(&admin, DEFINITIONS, &gears(&[("v1", true), ("v2", true)])).await;
    served(&admin, "v2").await;
    let mut version = "v1";
    for round in 0..5 {
        let name = format!("round-{round}");
        create(
            &admin,
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        )
        .await;
        for number in 0..3 {
            let gear = json!({"apiVersion": format!("ex.com/{version}"), "kind": "Gear", "metadata": {"name": format!("gear-{number}")}});
            create(&admin, &format!("/apis/ex.com/{version}/namespaces/{name}/gears"), &gear).await;
        }
        let path = format!("/api/v1/namespaces/{name}");
        let deletion = async { assert_eq!(admin.delete(&path).await.unwrap().status, 200) };
        version = if version == "v1" { "v2" } else { "v1" };
        let definition = gears(&[("v1", version == "v1"), ("v2", version == "v2")]);
        let gears_path = format!("{DEFINITIONS}/gears.ex.com");
        tokio::join!(deletion, patch(&admin, &gears_path, &definition));
        gone(&admin, "the namespace", &path).await;
        served(&admin, version).await;
        let left = admin.get(&format!("/apis/ex.com/{version}/gears")).await.unwrap();
        assert_eq!(left.body["items"].as_array().map(Vec::len), Some(0), "{}", left.text);
    }
}

/// An object in foreground deletion and its namespace are both deleted soon.
async fn deletions_complete(admin: &Client, namespace: &str) {
    create(
        admin,
        "/api/v1/namespaces",
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
    )
    .await;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let mine = create(admin, &path, &configmap("mine", &json!({}))).await;
    create(
        admin,
        &path,
        &configmap("below", &json!({"ownerReferences": [blocking("mine", &mine)]})),
    )
    .await;
    assert_eq!(
        admin.delete(&format!("{path}/mine?propagationPolicy=Foreground")).await.unwrap().status,
        200
    );
    gone(admin, "the owner", &format!("{path}/mine")).await;
    assert_eq!(admin.delete(&format!("/api/v1/namespaces/{namespace}")).await.unwrap().status, 200);
    gone(admin, "the namespace", &format!("/api/v1/namespaces/{namespace}")).await;
}

fn blocking(name: &str, object: &Value) -> Value {
    let mut reference = owner("v1", "ConfigMap", name, &object["metadata"]["uid"]);
    reference["blockOwnerDeletion"] = json!(true);
    reference
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_another_namespace_delays_no_deletion() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let mine = create(&admin, CONFIGMAPS, &configmap("mine", &json!({}))).await;
    let held =
        json!({"finalizers": ["example.com/keep"], "ownerReferences": [blocking("mine", &mine)]});
    create(&admin, "/api/v1/namespaces/kube-public/configmaps", &configmap("blocker", &held)).await;
    assert_eq!(
        admin
            .delete(&format!("{CONFIGMAPS}/mine?propagationPolicy=Foreground"))
            .await
            .unwrap()
            .status,
        200
    );
    gone(&admin, "the owner", &format!("{CONFIGMAPS}/mine")).await;
    assert_eq!(
        status(&admin, "/api/v1/namespaces/kube-public/configmaps/blocker").await,
        200,
        "its finalizer holds it"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_paths_cannot_name_delays_no_deletion() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    for plural in ["watch", "proxy", "status", "finalize"] {
        let mut definition = gears(&[("v1", true)]);
        definition["metadata"]["name"] = json!(format!("{plural}.ex.com"));
        definition["spec"]["names"] = json!({"plural": plural, "kind": format!("Kind{plural}")});
        create(&admin, DEFINITIONS, &definition).await;
        wait_until("the kind is described", BOUND, async || {
            match admin.get("/apis/ex.com/v1").await.unwrap() {
                answer if answer.text.contains(&format!("\"Kind{plural}\"")) => Ok(()),
                answer => Err(answer.text),
            }
        })
        .await;
    }
    deletions_complete(&admin, "unrelated").await;
    // A collector that starts with these kinds.
    let mut cluster = cluster;
    cluster.restart().unwrap();
    deletions_complete(&cluster.admin().unwrap(), "later").await;
}
