//! The kinds over the generic bundle: definitions, defaults, cells.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_resource::{Cell, Change, Composition, Definition, MetadataRules, Scope, Verbs};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

#[path = "kinds/costs.rs"]
mod costs;
#[path = "kinds/differences.rs"]
mod differences;
#[path = "kinds/exact.rs"]
mod exact;
#[path = "kinds/given.rs"]
mod given;
#[path = "kinds/refusals.rs"]
mod refusals;
#[path = "kinds/resizes.rs"]
mod resizes;
#[path = "kinds/validation.rs"]
mod validation;

static SERVED: LazyLock<Composition> = LazyLock::new(|| {
    let bundles = [ferrokube_resources::bundle(), ferrokube_workloads::bundle()];
    ferrokube_resources::compose(&bundles).expect("the bundles fit")
});

fn workloads() -> impl Iterator<Item = &'static Arc<Definition>> {
    SERVED.definitions.iter().skip(ferrokube_resources::generic().len())
}

fn definition(name: &str) -> &'static Arc<Definition> {
    workloads()
        .find(|definition| definition.group_resource().to_string() == name)
        .expect("in the table")
}

/// 2024-01-02T03:04:05Z
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_704_164_645)
}

fn words(verbs: Verbs) -> String {
    verbs.words().collect::<Vec<_>>().join(",")
}

/// Discovery of a definition, as rows of the facts.
fn discovered(definition: &Definition) -> Vec<String> {
    let scope = match definition.scope {
        Scope::Namespaced => "Namespaced",
        Scope::Cluster => "Cluster",
    };
    let mut rows = Vec::new();
    for version in &definition.versions {
        let head = format!("{}\t{}\t{}", definition.group, version.name, definition.plural);
        rows.push(format!(
            "{head}\t{}\t{}\t{scope}\t{}\t{}\t{}",
            definition.singular,
            definition.kind,
            definition.short_names.join(","),
            definition.categories.join(","),
            words(definition.verbs)
        ));
        for part in &version.subresources {
            let own = part.kind.group == definition.group && part.kind.version == version.name;
            let api = if own { "/".to_owned() } else { part.kind.api_version() };
            rows.push(format!(
                "{head}/{}\t\t{api} {}\t{scope}\t\t\t{}",
                part.name,
                part.kind.kind,
                words(part.verbs)
            ));
        }
    }
    rows
}

#[test]
fn discovery_is_as_recorded() {
    let rows = include_str!("../data/resources.tsv").lines().skip(1);
    let mut recorded: Vec<&str> = rows.collect();
    let mut made: Vec<String> = workloads().flat_map(|definition| discovered(definition)).collect();
    recorded.sort_unstable();
    made.sort_unstable();
    assert_eq!(made, recorded);
}

#[test]
fn every_kind_has_types_and_as_many_cells_as_columns() {
    let (bytes, layout) = ferrokube_apimachinery::json::write(&Document::new());
    let object = ferrokube_resource::Printable::new(&bytes, &layout, 0);
    for definition in workloads() {
        for version in &definition.versions {
            assert!(version.schema.native && !version.schema.properties.is_empty());
            let message = version.message.as_deref().expect("native kinds have protobuf");
            assert!(SERVED.messages.contains(message), "{message}");
            let mut row = ferrokube_resource::TableRow::at(now());
            definition.hooks.print(&object, &mut row);
            assert_eq!(row.cells().count(), version.columns.len(), "{}", definition.plural);
        }
    }
}

/// For `kubectl explain`.
#[test]
fn kinds_and_fields_of_specs_and_statuses_are_described() {
    let mut bare: Vec<String> = Vec::new();
    for definition in workloads() {
        for version in &definition.versions {
            let schema = &version.schema;
            if schema.description.is_none() {
                bare.push(definition.kind.clone());
            }
            let parts = ["spec", "status"].into_iter().filter_map(|part| schema.child(part));
            for whole in [&**schema].into_iter().chain(parts) {
                let fields = whole.properties.iter();
                let fields = fields.filter(|(_, field)| field.description.is_none());
                bare.extend(fields.map(|(name, _)| format!("{} {name}", definition.kind)));
            }
        }
    }
    assert!(bare.is_empty(), "{bare:?}");
}

/// A create through the hooks as the pipeline calls them: the object, and reasons and fields.
fn create(name: &str, object: Value) -> (Value, Vec<String>) {
    write(name, None, object)
}

/// An update of a stored object, likewise.
fn update(name: &str, old: &Value, object: Value) -> (Value, Vec<String>) {
    let mut old = Document::from_value(old.clone()).expect("an object");
    let definition = definition(name);
    definition.restore(definition.storage_version, &mut old);
    write(name, Some(&old), object)
}

fn write(name: &str, old: Option<&Document>, object: Value) -> (Value, Vec<String>) {
    write_part(name, "", old, object)
}

/// A write through a subresource, or of the whole object.
fn write_part(
    name: &str,
    subresource: &str,
    old: Option<&Document>,
    object: Value,
) -> (Value, Vec<String>) {
    let definition = definition(name);
    let mut object = Document::from_value(object).expect("an object");
    let extra = BTreeMap::new();
    let at = definition.storage_version;
    let change = Change {
        old,
        subresource,
        version: &definition.versions[at].name,
        user: "bob",
        user_uid: "",
        groups: &[],
        user_extra: &extra,
        now: now(),
    };
    definition.set_defaults(at, &mut object);
    definition.prepare(at, &change, &mut object);
    let errors = definition.hooks.validate(&change, &object);
    let errors = errors.iter().map(|error| {
        format!("{} {}", error.reason.as_str().trim_start_matches("FieldValue"), error.field)
    });
    (object.into_value(), errors.collect())
}

fn cells(name: &str, object: Value) -> Vec<Value> {
    let (bytes, layout) =
        ferrokube_apimachinery::json::write(&Document::from_value(object).expect("an object"));
    let mut row = ferrokube_resource::TableRow::at(now());
    let object = ferrokube_resource::Printable::new(&bytes, &layout, 0);
    definition(name).hooks.print(&object, &mut row);
    let shown = |cell| match cell {
        Cell::Json(text) => ferrokube_apimachinery::json::read_value(text).expect("a cell is JSON"),
        Cell::Since(then) => ferrokube_resource::print::age(then, now()).into(),
    };
    row.cells().map(shown).collect()
}

#[test]
fn a_pod_gets_its_defaults_and_status() {
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "n"},
        "spec": {"containers": [{"name": "c", "image": "nginx", "resources": {"limits": {"cpu": "1"}}}]},
    });
    let (made, errors) = create("pods", pod);
    assert!(errors.is_empty(), "{errors:?}");
    let expected = json!({
        "containers": [{
            "name": "c", "image": "nginx", "imagePullPolicy": "Always",
            "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        }],
        "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
        "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
    });
    assert_eq!(made["spec"], expected);
    assert_eq!(made["status"], json!({"phase": "Pending", "qosClass": "Burstable"}));
}

#[test]
fn cells_are_those_of_kube_apiserver() {
    let deployment = json!({
        "metadata": {"name": "d", "creationTimestamp": "2024-01-02T02:59:05Z"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
        "status": {"readyReplicas": 1, "updatedReplicas": 2},
    });
    let expected = json!(["d", "1/3", 2, 0, "5m", "c", "i", "a=b"]);
    assert_eq!(Value::from(cells("deployments.apps", deployment)), expected);
    let service = json!({
        "metadata": {"name": "s", "creationTimestamp": "2024-01-02T02:59:05Z"},
        "spec": {"type": "NodePort", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "nodePort": 30000, "protocol": "TCP"}]},
    });
    let expected = json!(["s", "NodePort", "10.0.0.1", "<none>", "80:30000/TCP", "5m", "<none>"]);
    assert_eq!(Value::from(cells("services", service)), expected);
    // Ports without number and name.
    let slice = |ports: Value| {
        let slice = json!({"metadata": {"name": "e"}, "addressType": "IPv4", "ports": ports});
        cells("endpointslices.discovery.k8s.io", slice)[2].clone()
    };
    assert_eq!(slice(json!([{"name": ""}])), "<unset>");
    assert_eq!(slice(json!([{"name": ""}, {"name": "a"}])), ",a");
}

#[test]
fn rows_of_pods_that_ended_say_so() {
    let completion = |phase: &str| {
        let pod = json!({"kind": "Pod", "metadata": {"name": "p"}, "status": {"phase": phase}});
        let document = Document::from_value(pod).expect("an object");
        let (bytes, layout) = ferrokube_apimachinery::json::write(&document);
        let mut row = ferrokube_resource::TableRow::at(now());
        let object = ferrokube_resource::Printable::new(&bytes, &layout, 0);
        definition("pods").hooks.print(&object, &mut row);
        row.completion().map(|completion| completion.reason)
    };
    assert_eq!(completion("Running"), None);
    assert_eq!(completion("Succeeded"), Some("Succeeded"));
    assert_eq!(completion("Failed"), Some("Failed"));
}

#[test]
fn a_missing_component_is_named_in_the_singular() {
    assert_eq!(definition("componentstatuses").missing_resource().resource, "componentstatus");
    assert_eq!(definition("pods").missing_resource().resource, "pods");
}

#[test]
fn annotations_that_are_numbers_are_read() {
    let conversion_error = |name: &str, key: &str, text: &str| {
        let object = Document::from_value(json!({"metadata": {"annotations": {key: text}}}));
        let conversion_error = definition(name).policy.conversion_error.expect("it has one");
        conversion_error(&object.expect("an object"))
    };
    let generation = |text: &str| {
        conversion_error("daemonsets.apps", "deprecated.daemonset.template.generation", text)
    };
    assert_eq!(generation("7"), None);
    let why = r#"strconv.ParseInt: parsing "x": invalid syntax"#;
    assert_eq!(generation("x").as_deref(), Some(why));
    assert_eq!(
        generation("99999999999999999999").as_deref(),
        Some(r#"strconv.ParseInt: parsing "99999999999999999999": value out of range"#)
    );
    assert!(generation("").is_some());
    let revision = |text: &str| {
        conversion_error("deployments.apps", "deprecated.deployment.rollback.to", text)
    };
    assert_eq!(revision(""), None);
    let whole =
        format!("failed to parse annotation[deprecated.deployment.rollback.to]=x as int64: {why}");
    assert_eq!(revision("x"), Some(whole));
}

#[test]
fn jobs_get_the_labels_of_their_template() {
    let labels = |name: &str, labels: Value| {
        let template = json!({"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        let job = json!({"kind": "Job", "metadata": {"name": name, "uid": "u"}, "spec": {"template": template}});
        create("jobs.batch", job).0["metadata"]["labels"].clone()
    };
    assert_eq!(labels("j", json!({}))["job-name"], "j");
    assert_eq!(labels("j", json!({"a": "b"}))["job-name"], "j");
    // Neither can be stored: the name is no label.
    assert_eq!(labels("-j", json!({})), Value::Null);
    assert_eq!(labels("-j", json!({"a": "b"}))["job-name"], "-j");
}

#[test]
fn autoscalers_of_v1_keep_what_v2_has() {
    let hooks = &definition("horizontalpodautoscalers.autoscaling").hooks;
    let stored = json!({
        "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "metrics": [
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
            {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}},
        ]},
    });
    let mut object = Document::from_value(stored).expect("an object");
    hooks.from_storage("v1", &mut object);
    assert_eq!(object.get(&["spec", "targetCPUUtilizationPercentage"]), Some(&json!(50)));
    let kept = object.annotation("autoscaling.alpha.kubernetes.io/metrics").expect("kept");
    assert_eq!(kept, r#"[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"1"}}]"#);
    hooks.to_storage("v1", &mut object);
    let names: Vec<&str> = object
        .list(&["spec", "metrics"])
        .iter()
        .filter_map(|metric| metric.get("type")?.as_str())
        .collect();
    assert_eq!(names, ["Pods", "Resource"]);
    assert!(object.get(&["metadata", "annotations"]).is_none());
}

#[test]
fn autoscalers_of_v1_scale_by_utilization() {
    let definition = definition("horizontalpodautoscalers.autoscaling");
    let version = definition.versions.iter().position(|version| version.name == "v1");
    let defaulted = |annotations: Value, spec: Value| {
        let object = json!({"metadata": {"annotations": annotations}, "spec": spec});
        let mut object = Document::from_value(object).expect("an object");
        definition.set_defaults(version.expect("v1 is served"), &mut object);
        object.get(&["spec", "targetCPUUtilizationPercentage"]).cloned()
    };
    let bare = json!({"maxReplicas": 3});
    assert_eq!(defaulted(json!({}), bare.clone()), Some(json!(80)));
    let own = json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 7});
    assert_eq!(defaulted(json!({}), own), Some(json!(7)));
    let key = "autoscaling.alpha.kubernetes.io/metrics";
    for (metrics, expected) in
        [("[]", Some(json!(80))), ("x", Some(json!(80))), (r#"[{"type":"Pods"}]"#, None)]
    {
        assert_eq!(defaulted(json!({key: metrics}), bare.clone()), expected, "{metrics}");
    }
}

#[test]
fn no_policies_are_none_of_the_default() {
    let errors = |rules: Value| {
        let spec = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "K", "name": "n"}, "maxReplicas": 3, "behavior": {"scaleUp": rules}});
        let object =
            json!({"kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}, "spec": spec});
        create("horizontalpodautoscalers.autoscaling", object).1
    };
    assert_eq!(errors(json!({})), [""; 0]);
    assert_eq!(errors(json!({"policies": null})), [""; 0]);
    assert_eq!(errors(json!({"policies": []})), ["Required spec.behavior.scaleUp.policies"]);
}

#[test]
fn labels_of_selinux_are_changed_by_recursion_alone() {
    let errors = |policy: &str| {
        let spec = json!({"containers": [{"name": "c", "image": "i"}], "securityContext": {"seLinuxChangePolicy": policy}});
        create("pods", json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec})).1
    };
    assert_eq!(errors("Recursive"), [""; 0]);
    assert_eq!(errors("MountOption"), ["NotSupported spec.securityContext.seLinuxChangePolicy"]);
}

#[test]
fn autoscalers_of_v1_show_no_replicas_as_zero() {
    let hooks = &definition("horizontalpodautoscalers.autoscaling").hooks;
    let path = ["status", "currentReplicas"];
    let mut object =
        Document::from_value(json!({"status": {"desiredReplicas": 2}})).expect("an object");
    hooks.from_storage("v1", &mut object);
    assert_eq!(object.get(&path), Some(&json!(0)));
    hooks.to_storage("v1", &mut object);
    assert_eq!(object.get(&path), None);
    let mut bare = Document::new();
    hooks.from_storage("v1", &mut bare);
    assert_eq!(bare.get(&path), None, "no status");
}

/// What a caller with rights to a subresource alone may change.
#[test]
fn subresources_of_pods_change_nothing_else() {
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "n"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "a"}]},
    });
    let definition = definition("pods");
    let old = Document::from_value(pod).expect("an object");
    for (subresource, kept) in [("resize", "resources"), ("ephemeralcontainers", "none")] {
        let mut object = old.clone();
        object.set(&["metadata", "labels", "a"], "b");
        object.set(&["spec", "nodeName"], "other");
        let container =
            json!({"name": "c", "image": "evil", "resources": {"requests": {"cpu": "1"}}});
        object.set(&["spec", "containers"], vec![container]);
        let extra = BTreeMap::new();
        let change = Change {
            old: Some(&old),
            subresource,
            version: "v1",
            user: "bob",
            user_uid: "",
            groups: &[],
            user_extra: &extra,
            now: now(),
        };
        definition.hooks.prepare(&change, &mut object);
        let mut expected = old.clone();
        if kept == "resources" {
            let container =
                json!({"name": "c", "image": "a", "resources": {"requests": {"cpu": "1"}}});
            expected.set(&["spec", "containers"], vec![container]);
        }
        assert_eq!(object, expected, "{subresource}");
    }
}

#[test]
fn a_nodes_range_is_the_first_of_its_ranges() {
    let ranges = |spec: Value| {
        let (node, _) = create("nodes", json!({"metadata": {"name": "n"}, "spec": spec}));
        (node["spec"]["podCIDR"].clone(), node["spec"]["podCIDRs"].clone())
    };
    let [a, b] = ["10.0.0.0/24", "10.1.0.0/24"];
    for (given, first, all) in [
        (json!({"podCIDR": a}), a, json!([a])),
        (json!({"podCIDRs": [a, b]}), a, json!([a, b])),
        (json!({"podCIDR": b, "podCIDRs": [a]}), b, json!([b])),
    ] {
        assert_eq!(ranges(given), (json!(first), all));
    }
}

#[test]
fn updates_repeat_metadata_errors_as_kube_apiserver() {
    let rules = |name: &str| {
        let policy = &definition(name).policy;
        (policy.metadata_rules, policy.subresource_metadata_rules, policy.metadata_last)
    };
    use MetadataRules::{All, Changes, Nothing, Object, ObjectTwice};
    assert_eq!(rules("pods"), (All, Changes, false));
    assert_eq!(rules("deployments.apps"), (Changes, Changes, false));
    assert_eq!(rules("limitranges"), (Object, Changes, false));
    assert_eq!(rules("persistentvolumes"), (ObjectTwice, Changes, false));
    assert_eq!(rules("poddisruptionbudgets.policy"), (Nothing, Nothing, true));
    assert!(definition("jobs.batch").policy.orphan_warning.starts_with("child pods are preserved"));
    assert!(definition("persistentvolumes").policy.selects_namespace);
}

#[test]
fn rows_refuse_what_kube_apiserver_refuses() {
    let volume = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/d"}, "volumeAttributesClassName": "x"});
    let volume = json!({"kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": volume});
    assert_eq!(create("persistentvolumes", volume).1, ["Required spec.csi"]);
    let term = |key: &str| json!({"matchExpressions": [{"key": key, "operator": "Exists"}]});
    let slice = |terms: Value| {
        let spec = json!({"driver": "d.example.com", "pool": {"name": "p", "resourceSliceCount": 1}, "nodeSelector": {"nodeSelectorTerms": terms}});
        let slice = json!({"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec});
        create("resourceslices.resource.k8s.io", slice).1
    };
    assert!(slice(json!([term("a")])).is_empty());
    let two = json!([term("a"), term("b")]);
    assert_eq!(slice(two), ["Invalid spec.nodeSelector.nodeSelectorTerms"]);
    let class = |expression: &str| {
        let spec = json!({"selectors": [{"cel": {"expression": expression}}]});
        let class = json!({"kind": "DeviceClass", "metadata": {"name": "c"}, "spec": spec});
        create("deviceclasses.resource.k8s.io", class).1
    };
    assert!(class("device.driver == 'd.example.com'").is_empty());
    assert_eq!(class("device.driver =="), ["Invalid spec.selectors[0].cel.expression"]);
}

fn claim(spec: Value) -> Value {
    let mut whole =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}});
    for (field, value) in spec.as_object().expect("fields") {
        whole[field.as_str()] = value.clone();
    }
    json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "n"}, "spec": whole})
}

#[test]
fn sources_of_claims_are_two_fields_with_one_value() {
    const CLAIMS: &str = "persistentvolumeclaims";
    let of_claim = json!({"apiGroup": null, "kind": "PersistentVolumeClaim", "name": "a"});
    let of_other = json!({"apiGroup": "example.com", "kind": "Thing", "name": "a"});
    let elsewhere = json!({"kind": "PersistentVolumeClaim", "name": "a", "namespace": "x"});
    let both = |source: Value| json!([source, source]);
    for (given, expected) in [
        (json!({"dataSource": of_claim}), both(of_claim.clone())),
        (json!({"dataSourceRef": of_claim}), both(of_claim)),
        (json!({"dataSourceRef": of_other}), both(of_other.clone())),
        (json!({"dataSource": of_other}), both(json!(null))),
        (json!({"dataSourceRef": elsewhere}), both(json!(null))),
    ] {
        let (made, errors) = create(CLAIMS, claim(given.clone()));
        assert!(errors.is_empty(), "{given}: {errors:?}");
        let spec = &made["spec"];
        assert_eq!(json!([spec["dataSource"], spec["dataSourceRef"]]), expected, "{given}");
    }
    let errors = |spec: Value| create(CLAIMS, claim(spec)).1;
    let (source, reference) = ("Invalid spec.dataSource", "Invalid spec.dataSourceRef");
    assert_eq!(errors(json!({"dataSourceRef": {"kind": "Pod", "name": "a"}})), [source, reference]);
    let odd = json!({"apiGroup": "A_", "kind": "x", "name": "a"});
    assert_eq!(
        errors(json!({"dataSourceRef": odd})),
        [format!("{source}.apiGroup"), format!("{reference}.apiGroup")]
    );
}

#[test]
fn claims_change_only_where_kube_apiserver_lets_them() {
    let mut bound = claim(json!({"volumeMode": "Filesystem", "storageClassName": "s"}));
    bound["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}, "currentVolumeAttributesClassName": "a"});
    bound["spec"]["volumeAttributesClassName"] = json!("a");
    let change = |field: &str, value: Value| {
        let mut new = bound.clone();
        new["spec"][field] = value;
        update("persistentvolumeclaims", &bound, new).1
    };
    let storage = |amount: &str| json!({"requests": {"storage": amount}});
    let size = "Forbidden spec.resources.requests.storage";
    assert_eq!(change("resources", storage("1500Mi")), [""; 0]);
    assert_eq!(change("resources", storage("1Gi")), [size]);
    assert_eq!(change("resources", storage("3Gi")), [""; 0]);
    assert_eq!(change("volumeMode", json!("Block")), ["Forbidden spec", "Invalid volumeMode"]);
    let class = "Forbidden spec.volumeAttributesClassName";
    assert_eq!(change("volumeAttributesClassName", json!("b")), [""; 0]);
    assert_eq!(change("volumeAttributesClassName", json!(null)), [class]);
    assert_eq!(change("volumeAttributesClassName", json!("")), [class]);
    let noted = |value: &str| {
        let mut object = claim(json!({}));
        object["metadata"]["annotations"] =
            json!({"volume.beta.kubernetes.io/storage-class": value});
        object
    };
    let of_class = |name: &str| claim(json!({"storageClassName": name}));
    let note = "Invalid metadata.annotations.volume.beta.kubernetes.io/storage-class";
    let errors = |new: Value| update("persistentvolumeclaims", &noted("s"), new).1;
    assert_eq!(errors(of_class("s")), [""; 0]);
    assert_eq!(errors(of_class("t")), [note, "Forbidden spec"]);
    assert_eq!(errors(noted("t")), [note]);
}

#[test]
fn attribute_classes_of_volumes_are_of_csi() {
    let volume = |more: Value| {
        let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]});
        for (field, value) in more.as_object().expect("fields") {
            spec[field.as_str()] = value.clone();
        }
        json!({"kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": spec})
    };
    let csi = |class: &str| {
        volume(
            json!({"csi": {"driver": "d", "volumeHandle": "h"}, "volumeAttributesClassName": class}),
        )
    };
    let errors = |object: Value| create("persistentvolumes", object).1;
    let class = "spec.volumeAttributesClassName";
    assert_eq!(errors(csi("a")), [""; 0]);
    assert_eq!(errors(csi("")), [format!("Required {class}")]);
    assert_eq!(errors(csi("A_")), [format!("Invalid {class}")]);
    let local = volume(json!({"hostPath": {"path": "/a"}, "volumeAttributesClassName": "a"}));
    assert_eq!(errors(local), ["Required spec.csi"]);
    let secret = |mut object: Value, name: &str| {
        object["spec"]["csi"]["controllerExpandSecretRef"] =
            json!({"name": name, "namespace": "n"});
        object
    };
    let change = |old: &Value, new: Value| update("persistentvolumes", old, new).1;
    assert_eq!(change(&csi("a"), secret(csi("a"), "s")), [""; 0]);
    let source = "Forbidden spec.persistentvolumesource";
    assert_eq!(change(&secret(csi("a"), "s"), secret(csi("a"), "t")), [source]);
    let bare = volume(json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
    assert_eq!(change(&csi("a"), bare), [format!("Forbidden {class}")]);
}

#[test]
fn a_limit_range_needs_no_name() {
    let named = workloads().filter(|definition| definition.policy.names_itself);
    assert_eq!(
        named.map(|definition| definition.plural.as_str()).collect::<Vec<_>>(),
        ["limitranges"]
    );
}

#[test]
fn addresses_of_services_have_families() {
    let service = |more: Value| {
        let mut spec = json!({"ports": [{"port": 80}], "selector": {"a": "b"}});
        for (field, value) in more.as_object().expect("fields") {
            spec[field.as_str()] = value.clone();
        }
        json!({"kind": "Service", "metadata": {"name": "s", "namespace": "n"}, "spec": spec})
    };
    let errors = |spec: Value| create("services", service(spec)).1;
    let addresses = |all: Value| json!({"clusterIP": all[0], "clusterIPs": all});
    let [all, second] = ["Invalid spec.clusterIPs", "Invalid spec.clusterIPs[1]"];
    assert_eq!(errors(addresses(json!(["10.0.0.1"]))), [""; 0]);
    assert_eq!(errors(addresses(json!(["None", "10.0.0.1"]))), [all]);
    assert_eq!(errors(addresses(json!(["10.0.0.1", "None"]))), [second]);
    assert_eq!(errors(addresses(json!(["10.0.0.1", "10.0.0.2"]))), [all]);
    assert_eq!(
        errors(json!({"clusterIP": "10.0.0.1", "ipFamilies": ["IPv6"]})),
        ["Invalid spec.clusterIPs[0]"]
    );
    assert_eq!(
        errors(json!({"clusterIP": "None", "type": "NodePort"})),
        ["Invalid spec.clusterIPs[0]"]
    );
    let dual = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"});
    let (stored, none) = create("services", service(dual));
    assert_eq!(none, [""; 0]);
    let change = |changes: Value| {
        let mut new = stored.clone();
        for (field, value) in changes.as_object().expect("fields") {
            new["spec"][field.as_str()] = value.clone();
        }
        update("services", &stored, new)
    };
    let less = json!({"clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"]});
    let policy = "Invalid spec.ipFamilyPolicy";
    assert_eq!(change(less).1, [policy, policy]);
    // The policy alone releases the second address.
    let (single, none) = change(json!({"ipFamilyPolicy": "SingleStack"}));
    assert_eq!((none, &single["spec"]["clusterIPs"]), (vec![], &json!(["10.0.0.1"])));
    assert_eq!(single["spec"]["ipFamilies"], json!(["IPv4"]));
    let other = json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2", "fd00::1"]});
    assert_eq!(change(other).1, ["Invalid spec.clusterIPs[0]"]);
}

#[test]
fn services_are_exposed_as_their_type_allows() {
    let service = |kind: &str, more: Value, notes: Value| {
        let mut spec = json!({"type": kind, "ports": [{"port": 80}]});
        for (field, value) in more.as_object().expect("fields") {
            spec[field.as_str()] = value.clone();
        }
        json!({"kind": "Service", "metadata": {"name": "s", "namespace": "n", "annotations": notes}, "spec": spec})
    };
    let errors = |kind: &str, more: Value| create("services", service(kind, more, json!({}))).1;
    let name = |text: &str| errors("ExternalName", json!({"externalName": text}));
    assert_eq!(name("a.example.com."), [""; 0]);
    assert_eq!(name("."), ["Required spec.externalName"]);
    assert_eq!(name("A_"), ["Invalid spec.externalName"]);
    let ranges =
        |kind: &str, range: &str| errors(kind, json!({"loadBalancerSourceRanges": [range]}));
    assert_eq!(ranges("LoadBalancer", " 10.0.0.0/8 "), [""; 0]);
    assert_eq!(ranges("LoadBalancer", "x"), ["Invalid spec.LoadBalancerSourceRanges[0]"]);
    assert_eq!(ranges("ClusterIP", "10.0.0.0/8"), ["Forbidden spec.LoadBalancerSourceRanges"]);
    let check = |kind: &str| errors(kind, json!({"healthCheckNodePort": 30000}));
    assert_eq!(check("NodePort"), ["Invalid spec.healthCheckNodePort"]);
    assert_eq!(check("LoadBalancer"), ["Invalid spec.healthCheckNodePort"]);
    let noted = |notes: Value| create("services", service("ClusterIP", json!({}), notes)).1;
    const SOURCES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let place = format!("metadata.annotations[{SOURCES}]");
    assert_eq!(
        noted(json!({SOURCES: "x"})),
        [format!("Forbidden {place}"), format!("Invalid {place}")]
    );
    let modes = json!({"service.kubernetes.io/topology-aware-hints": "Auto", "service.kubernetes.io/topology-mode": "x"});
    assert_eq!(noted(modes), ["Invalid metadata.annotations[service.kubernetes.io/topology-mode]"]);
    let local = |more: Value| {
        let mut spec = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 30001});
        for (field, value) in more.as_object().expect("fields") {
            spec[field.as_str()] = value.clone();
        }
        service("LoadBalancer", spec, json!({}))
    };
    let ported = json!({"ports": [{"name": "a", "port": 80, "nodePort": 30002}]});
    let (stored, none) = create("services", local(ported));
    assert_eq!(none, [""; 0]);
    let later = json!({"healthCheckNodePort": 0, "ports": [{"name": "a", "port": 81}]});
    let (kept, none) = update("services", &stored, local(later));
    assert_eq!(none, [""; 0]);
    assert_eq!(kept["spec"]["healthCheckNodePort"], json!(30001));
    assert_eq!(kept["spec"]["ports"][0]["nodePort"], json!(30002));
    let class = json!({"healthCheckNodePort": 30003, "loadBalancerClass": "example.com/a"});
    assert_eq!(
        update("services", &stored, local(class)).1,
        ["Forbidden spec.healthCheckNodePort", "Invalid spec.loadBalancerClass"]
    );
}

#[test]
fn a_zero_time_in_a_map_is_null_in_json_and_empty_in_protobuf() {
    let message = "k8s.io.api.policy.v1.PodDisruptionBudget";
    let budget = json!({"kind": "PodDisruptionBudget", "apiVersion": "policy/v1", "status": {"disruptedPods": {"p": null}}});
    let bytes = SERVED.messages.write_bare(message, &budget).unwrap();
    // status { disruptedPods { key: "p" value {} } }
    assert_eq!(bytes, b"\x1a\x07\x12\x05\x0a\x01p\x12\x00");
    let object = Document::from_value(budget.clone()).unwrap();
    let body = SERVED.messages.write(message, &object).unwrap();
    assert_eq!(SERVED.messages.read(message, &body).unwrap().into_value(), budget);
}
