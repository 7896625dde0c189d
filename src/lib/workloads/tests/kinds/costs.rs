//! Objects made to cost more than their bytes.

use super::{cells, create, definition, now};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::work;
use ferrokube_resource::Change;
use std::collections::BTreeMap;

fn many(count: usize, item: impl Fn(usize) -> Value) -> Value {
    Value::from((0..count).map(item).collect::<Vec<_>>())
}

fn pod(mut spec: Value, count: usize, annotations: Value) -> Value {
    let containers = many(count, |at| json!({"name": format!("c{at}"), "image": "i"}));
    spec["containers"] = containers;
    json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "n", "annotations": annotations}, "spec": spec})
}

/// Objects of a size.
fn hostile(count: usize) -> Vec<(&'static str, &'static str, Value)> {
    let name = |at: usize| format!("n{at}");
    let words = || many(count, |at| name(at).into());
    let named = || many(count, |at| json!({"name": name(at)}));
    let none = || json!({});
    let term = |field: &str| {
        let mut term = json!({"topologyKey": "k", "labelSelector": {"matchExpressions":
            many(count, |at| json!({"key": name(at), "operator": "Exists"}))}});
        term["matchLabelKeys"] = words();
        if field == "both" {
            term["mismatchLabelKeys"] = many(count, |at| format!("m{at}").into());
        }
        json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    };
    let mut annotations = json!({});
    for at in 0..count {
        let key = format!("container.apparmor.security.beta.kubernetes.io/c{at}");
        annotations[key.as_str()] = "unconfined".into();
    }
    let claims = json!({"resourceClaims": many(count, |at| json!({"name": name(at),
        "resourceClaimName": "c"}))});
    let mut claimed = pod(claims.clone(), 1, none());
    claimed["spec"]["containers"][0]["resources"] = json!({"claims": named()});
    let targets = many(
        count,
        |at| json!({"name": format!("e{at}"), "image": "i", "targetContainerName": format!("c{at}")}),
    );
    let registry = json!({"volumes": [{"name": "v", "quobyte": {"registry": ",".repeat(count),
        "volume": "v"}}]});
    let stateful = json!({
        "kind": "StatefulSet", "apiVersion": "apps/v1", "metadata": {"name": "s", "namespace": "n"},
        "spec": {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}},
            "volumeClaimTemplates": many(count, |at| json!({"metadata": {"name": format!("c{at}")},
                "spec": {"accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1"}}}})),
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
                "containers": [{"name": "c", "image": "i"}], "volumes": named()}}}});
    let topologies =
        many(count, |at| json!({"matchLabelExpressions": [{"key": "k", "values": [name(at)]}]}));
    let class = json!({"kind": "StorageClass", "apiVersion": "storage.k8s.io/v1",
        "metadata": {"name": "s"}, "provisioner": "p", "allowedTopologies": topologies});
    vec![
        ("pods", "keys of affinities", pod(term("one"), 1, none())),
        ("pods", "keys of both kinds", pod(term("both"), 1, none())),
        ("pods", "profiles of containers", pod(none(), count, annotations)),
        ("pods", "claims of containers", pod(claims, count, none())),
        ("pods", "claims of a container", claimed),
        ("pods", "targets", pod(json!({"ephemeralContainers": targets}), count, none())),
        ("pods", "a long text with many errors", pod(registry, 1, none())),
        ("statefulsets.apps", "claims and volumes", stateful),
        ("storageclasses.storage.k8s.io", "topologies", class),
    ]
}

#[test]
fn validation_costs_as_much_as_its_object_is_large() {
    const SMALL: usize = 300;
    let steps = |count: usize| -> Vec<u64> {
        let cost = |(kind, _, object)| work::counted(|| create(kind, object)).1;
        hostile(count).into_iter().map(cost).collect()
    };
    let (small, large) = (steps(SMALL), steps(8 * SMALL));
    for (at, (_, what, _)) in hostile(1).into_iter().enumerate() {
        assert!(small[at] > 0, "{what} is not counted");
        let (small, large) = (small[at], large[at]);
        assert!(
            large < 16 * small + 100_000,
            "{what}: {small} steps, eight times as large {large}"
        );
    }
}

#[test]
fn warnings_about_files_cost_as_much_as_the_object_is_large() {
    let volumes = many(200, |at| {
        let items = many(200, |file| json!({"key": "k", "path": format!("{file}/")}));
        json!({"name": format!("v{at}"), "configMap": {"name": "c", "items": items}})
    });
    let object = pod(json!({"volumes": volumes}), 1, json!({}));
    let object = Document::from_value(object).expect("an object");
    let warnings = definition("pods").hooks.warnings(&change(None, ""), &object);
    assert!(warnings.is_empty(), "{warnings:?}");
}

pub(super) fn change<'a>(old: Option<&'a Document>, subresource: &'a str) -> Change<'a> {
    static EXTRA: BTreeMap<String, Vec<String>> = BTreeMap::new();
    Change {
        old,
        subresource,
        version: "v1",
        user: "bob",
        user_uid: "",
        groups: &[],
        user_extra: &EXTRA,
        now: now(),
    }
}

#[test]
fn a_cell_of_endpoints_makes_only_what_it_shows() {
    const MANY: usize = 20_000;
    let addresses = many(MANY, |at| json!({"ip": format!("10.0.{}.{}", at / 256, at % 256)}));
    let ports = many(MANY, |at| json!({"port": at + 1}));
    let subsets = json!([
        {"addresses": [], "ports": ports.clone()},
        {"addresses": addresses, "ports": ports},
    ]);
    let cells = cells("endpoints", json!({"metadata": {"name": "e"}, "subsets": subsets}));
    assert_eq!(cells[1], "10.0.0.0:1,10.0.0.1:1,10.0.0.2:1 + 399999997 more...");
    for (subsets, shown) in [
        (json!([]), "<none>"),
        (
            json!([{"addresses": [{"ip": "::1"}], "ports": [{"port": 1}, {"port": 2}]}]),
            "[::1]:1,[::1]:2",
        ),
        (json!([{"addresses": [{"ip": "a"}]}, {"addresses": [{"ip": "b"}]}]), "a,b"),
        (
            json!([{"addresses": [{"ip": "a"}, {"ip": "b"}], "ports": [{"port": 1}, {"port": 2}]}]),
            "a:1,b:1,a:2 + 1 more...",
        ),
    ] {
        let cells =
            super::cells("endpoints", json!({"metadata": {"name": "e"}, "subsets": subsets}));
        assert_eq!(cells[1], shown);
    }
}

#[test]
fn items_far_back_in_a_list_are_checked() {
    let service = |bad: &str| {
        let mut addresses: Vec<Value> = (0..20_000).map(|_| "10.0.0.1".into()).collect();
        addresses.push(bad.into());
        json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "s", "namespace": "n"},
            "spec": {"ports": [{"port": 1}], "externalIPs": addresses}})
    };
    assert_eq!(create("services", service("10.0.0.1")).1, [""; 0]);
    assert_eq!(create("services", service("127.0.0.1")).1, ["Invalid spec.externalIPs[20000]"]);
}

#[test]
fn a_status_of_many_containers_is_compared_by_name() {
    const COUNT: usize = 3000;
    let of = |state: &str| {
        let mut object = pod(json!({"restartPolicy": "Never"}), COUNT, json!({}));
        let statuses =
            many(COUNT, |at| json!({"name": format!("c{at}"), "state": {state: {"exitCode": 0}}}));
        object["status"] = json!({"containerStatuses": statuses});
        Document::from_value(object).expect("an object")
    };
    let (old, new) = (of("terminated"), of("running"));
    let validate = || definition("pods").hooks.validate(&change(Some(&old), "status"), &new);
    let (errors, steps) = work::counted(validate);
    assert_eq!(errors.len(), 100);
    assert!(steps < 20 * COUNT as u64, "{steps}");
}

#[test]
fn fault_34_claims_in_a_status_are_looked_up() {
    const COUNT: usize = 3000;
    let claims = many(COUNT, |at| json!({"name": "a", "request": format!("r{at}")}));
    let of = |allocated: Value| {
        let claim = json!({"name": "a", "resourceClaimName": "c"});
        let mut object = pod(json!({"resourceClaims": [claim]}), 1, json!({}));
        object["spec"]["containers"][0]["resources"] = json!({"claims": claims.clone()});
        let status = json!({"name": "c0", "allocatedResourcesStatus": allocated});
        object["status"] = json!({"containerStatuses": [status]});
        Document::from_value(object).expect("an object")
    };
    let allocated =
        |request: &str| many(COUNT, |at| json!({"name": format!("claim:a/{request}{at}")}));
    let (old, new) = (of(json!([])), of(allocated("r")));
    let validate =
        |new: &Document| definition("pods").hooks.validate(&change(Some(&old), "status"), new);
    let (errors, steps) = work::counted(|| validate(&new));
    assert!(errors.is_empty(), "{errors:?}");
    // Each claim is put into a set, and each status looks up two.
    assert!((COUNT as u64..20 * COUNT as u64).contains(&steps), "{steps}");
    assert_eq!(validate(&of(allocated("s"))).len(), 100);
}

#[test]
fn the_generation_of_a_template_does_not_overflow() {
    let annotation = "deprecated.daemonset.template.generation";
    let set = |image: &str| {
        let set = json!({"kind": "DaemonSet", "apiVersion": "apps/v1",
            "metadata": {"name": "d", "annotations": {annotation: i64::MAX.to_string()}},
            "spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
        Document::from_value(set).expect("an object")
    };
    let (old, mut new) = (set("a"), set("b"));
    definition("daemonsets.apps").hooks.prepare(&change(Some(&old), ""), &mut new);
    assert_eq!(new.annotation(annotation), Some(i64::MAX.to_string().as_str()));
}

#[test]
fn defaults_add_no_more_than_an_object_may_have() {
    let defaulted = |object: Value| {
        let mut object = Document::from_value(object).expect("an object");
        let definition = definition("pods");
        let before = object.heap_bytes();
        definition.set_defaults(definition.storage_version, &mut object);
        (object.heap_bytes().saturating_sub(before), object)
    };
    let mut bomb = pod(json!({}), 0, json!({}));
    bomb["spec"]["containers"] = many(500_000, |_| json!({}));
    let (added, _) = defaulted(bomb);
    assert!(added < 16 << 20, "{added}");
    // All that is stored has all of them.
    let (_, largest) = defaulted(pod(json!({}), 9000, json!({})));
    let containers = largest.list(&["spec", "containers"]);
    let has_all = |one: &Value| {
        ["imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"]
            .iter()
            .all(|field| one.get(field).is_some())
    };
    assert!(containers.iter().all(has_all));
    let (bytes, _) = ferrokube_apimachinery::json::write(&largest);
    assert!(bytes.len() > 1 << 20, "{}", bytes.len());
}

#[test]
fn a_selector_that_is_too_long_is_not_compiled() {
    let class = |expression: String| {
        let object = json!({"kind": "DeviceClass", "apiVersion": "resource.k8s.io/v1",
            "metadata": {"name": "c"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
        create("deviceclasses.resource.k8s.io", object).1
    };
    let place = "spec.selectors[0].cel.expression";
    assert_eq!(class("1 +".repeat(500_000)), [format!("TooLong {place}")]);
    assert_eq!(class("1 +".repeat(1000)), [format!("Invalid {place}")]);
    assert_eq!(class("true".to_owned()), [""; 0]);
}
