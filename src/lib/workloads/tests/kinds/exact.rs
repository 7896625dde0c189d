//! Rules that requests to kube-apiserver showed, and that were found by reading what it validates.

use super::{create, update, write_part};
use ferrokube_apimachinery::document::{Document, Value, json};

const NONE: [&str; 0] = [];

fn object(kind: &str, fields: Value) -> Value {
    let mut object = json!({"kind": kind, "metadata": {"name": "a", "namespace": "n"}});
    for (field, value) in fields.as_object().expect("fields") {
        object[field.as_str()] = value.clone();
    }
    object
}

fn stored(name: &str, object: &Value) -> Value {
    let (stored, errors) = create(name, object.clone());
    assert_eq!(errors, NONE, "{name}");
    stored
}

fn pod(more: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    for (field, value) in more.as_object().expect("fields") {
        spec[field.as_str()] = value.clone();
    }
    object("Pod", json!({ "spec": spec }))
}

#[test]
fn zero_values_are_given() {
    let one = |more: Value| {
        let mut container = json!({"name": "i", "image": "i"});
        for (field, value) in more.as_object().expect("fields") {
            container[field.as_str()] = value.clone();
        }
        let source = json!({"configMap": {"name": "m", "items": [{"key": "k", "path": "p"}]}});
        let volumes = json!([{"name": "v", "projected": {"sources": [source]}}]);
        pod(json!({"initContainers": [container], "volumes": volumes}))
    };
    let before = stored("pods", &one(json!({})));
    let same = json!({"resources": {}, "env": [], "stdin": false, "workingDir": ""});
    assert_eq!(update("pods", &before, one(same)).1, NONE);
    let context = one(json!({"securityContext": {}}));
    assert_eq!(update("pods", &before, context).1, ["Forbidden spec"]);
    let mut readable = one(json!({}));
    readable["spec"]["volumes"][0]["projected"]["sources"][0]["configMap"]["items"][0]["mode"] =
        json!(0);
    assert_eq!(update("pods", &before, readable).1, ["Forbidden spec"]);

    let set = |claim: Value| {
        let labels = json!({"a": "b"});
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let storage =
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}});
        let mut spec = storage;
        for (field, value) in claim.as_object().expect("fields") {
            spec[field.as_str()] = value.clone();
        }
        let claims = json!([{"metadata": {"name": "v"}, "spec": spec}]);
        object(
            "StatefulSet",
            json!({"spec": {"selector": {"matchLabels": labels}, "template": template, "volumeClaimTemplates": claims}}),
        )
    };
    let before = stored("statefulsets.apps", &set(json!({})));
    assert_eq!(update("statefulsets.apps", &before, set(json!({}))).1, NONE);
    let selecting = set(json!({"selector": {"matchExpressions": []}}));
    assert_eq!(update("statefulsets.apps", &before, selecting).1, ["Forbidden spec"]);
}

#[test]
fn zero_values_make_a_generation_of_a_daemon_sets_template() {
    let set = |metadata: Value, priority: Option<i64>| {
        let mut pod = json!({"containers": [{"name": "c", "image": "i"}]});
        if let Some(priority) = priority {
            pod["priority"] = priority.into();
        }
        let template = json!({"metadata": metadata, "spec": pod});
        object(
            "DaemonSet",
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}),
        )
    };
    let labels = json!({"labels": {"a": "b"}});
    let before = stored("daemonsets.apps", &set(labels.clone(), None));
    let generation = |object: Value| {
        let (made, errors) = update("daemonsets.apps", &before, object);
        assert_eq!(errors, NONE);
        made["metadata"]["annotations"]["deprecated.daemonset.template.generation"].clone()
    };
    assert_eq!(generation(set(labels.clone(), None)), "1");
    assert_eq!(generation(set(labels.clone(), Some(0))), "2");
    let mut graced = labels;
    graced["deletionGracePeriodSeconds"] = json!(0);
    assert_eq!(generation(set(graced, None)), "2");
}

#[test]
fn tolerations_of_a_stored_pod_are_judged_twice() {
    let tolerations = |key: &str| {
        pod(
            json!({"tolerations": [{"key": "a", "operator": "Exists"}, {"key": key, "operator": "Exists"}]}),
        )
    };
    let before = stored("pods", &pod(json!({"tolerations": [{"key": "a", "operator": "Exists"}]})));
    assert_eq!(update("pods", &before, tolerations("b")).1, NONE);
    let malformed = "Invalid spec.tolerations[1].key";
    assert_eq!(create("pods", tolerations("-a")).1, [malformed]);
    assert_eq!(update("pods", &before, tolerations("-a")).1, [malformed; 2]);
    // Not after one was removed.
    let removed = pod(json!({"tolerations": [{"key": "-a", "operator": "Exists"}]}));
    let found = update("pods", &before, removed).1;
    assert_eq!(found, ["Invalid spec.tolerations[0].key", "Forbidden spec.tolerations"]);
}

#[test]
fn tolerations_in_an_annotation_are_judged() {
    let errors = |text: &str| {
        let mut pod = pod(json!({}));
        pod["metadata"]["annotations"] = json!({"scheduler.alpha.kubernetes.io/tolerations": text});
        create("pods", pod).1
    };
    let (notes, place) =
        ("metadata.annotations", "metadata.annotations.scheduler.alpha.kubernetes.io/tolerations");
    for fine in ["", "null", "[]", r#"[{"key":"a","operator":"Exists"}]"#] {
        assert_eq!(errors(fine), NONE, "{fine}");
    }
    for malformed in ["x", "{}", "[1]", r#"[{"key":1}]"#, r#"[{"tolerationSeconds":"1"}]"#] {
        assert_eq!(errors(malformed), [format!("Invalid {notes}")], "{malformed}");
    }
    let odd = r#"[null,{"key":"-a","operator":"Exists"}]"#;
    assert_eq!(
        errors(odd),
        [format!("Invalid {place}[0].operator"), format!("Invalid {place}[1].key")]
    );
}

#[test]
fn names_of_a_pod_without_servers_are_not_judged() {
    let errors = |policy: &str, config: Value| {
        create("pods", pod(json!({"dnsPolicy": policy, "dnsConfig": config}))).1
    };
    let unnamed = json!({"searches": ["A_"], "options": [{}]});
    assert_eq!(errors("None", unnamed.clone()), ["Required spec.dnsConfig.nameservers"]);
    let judged = ["Invalid spec.dnsConfig.searches[0]", "Required spec.dnsConfig.options[0]"];
    assert_eq!(errors("Default", unnamed.clone()), judged);
    let mut served = unnamed;
    served["nameservers"] = json!(["10.0.0.1"]);
    assert_eq!(errors("None", served), judged);
}

#[test]
fn pods_of_a_kubelets_files_have_neither_claims_nor_ephemeral_containers() {
    let mirror = |more: Value| {
        let mut pod = pod(more);
        pod["spec"]["nodeName"] = "n".into();
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        pod
    };
    let claims = json!({"resourceClaims": [{}, {"name": "A_"}]});
    assert_eq!(create("pods", mirror(claims)).1, ["Forbidden []"; 2]);
    let before = stored("pods", &mirror(json!({})));
    let old = Document::from_value(before.clone()).expect("an object");
    let write = |part: &str, more: Value| {
        let mut new = before.clone();
        for (field, value) in more.as_object().expect("fields") {
            new["spec"][field.as_str()] = value.clone();
        }
        write_part("pods", part, Some(&old), new).1
    };
    let more = json!({"ephemeralContainers": [{"name": "A_", "image": "i"}]});
    assert_eq!(write("ephemeralcontainers", more), ["Forbidden []"]);
    let more = json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "-1"}}}]});
    assert_eq!(write("resize", more), ["Forbidden []"]);
}

#[test]
fn ephemeral_containers_are_judged_as_containers() {
    let before = stored("pods", &pod(json!({})));
    let old = Document::from_value(before.clone()).expect("an object");
    let write = |container: Value| {
        let mut new = before.clone();
        new["spec"]["ephemeralContainers"] = json!([container]);
        write_part("pods", "ephemeralcontainers", Some(&old), new).1
    };
    let at = |field: &str| format!("spec.ephemeralContainers[0].{field}");
    assert_eq!(write(json!({"name": "Bad", "image": "i"})), [format!("Invalid {}", at("name"))]);
    assert_eq!(write(json!({"name": "e"})), [format!("Required {}", at("image"))]);
}

#[test]
fn a_status_keeps_the_generation_that_it_was_of() {
    let before = stored("pods", &pod(json!({})));
    let mut observed = before.clone();
    let ready = |generation: Option<i64>| {
        let mut condition = json!({"type": "Ready", "status": "True"});
        if let Some(generation) = generation {
            condition["observedGeneration"] = generation.into();
        }
        condition
    };
    observed["status"]["observedGeneration"] = json!(2);
    observed["status"]["conditions"] = json!([ready(Some(3)), ready(Some(4))]);
    let old = Document::from_value(observed).expect("an object");
    let mut new = before;
    new["status"]["conditions"] = json!([ready(None), ready(Some(5)), ready(None)]);
    let (kept, errors) = write_part("pods", "status", Some(&old), new);
    assert_eq!(errors, NONE);
    assert_eq!(kept["status"]["observedGeneration"], json!(2));
    let conditions = json!([ready(Some(3)), ready(Some(5)), ready(None)]);
    let generations = |list: &Value| -> Vec<Option<i64>> {
        let list = list.as_array().expect("a list").iter();
        list.map(|one| one.get("observedGeneration").and_then(Value::as_i64)).collect()
    };
    assert_eq!(generations(&kept["status"]["conditions"]), generations(&conditions));
}

fn volume(more: Value) -> Value {
    let mut spec = json!({"capacity": {"storage": "1"}, "accessModes": ["ReadWriteOnce"]});
    for (field, value) in more.as_object().expect("fields") {
        spec[field.as_str()] = value.clone();
    }
    object("PersistentVolume", json!({ "spec": spec }))
}

#[test]
fn volumes() {
    let errors = |more: Value| create("persistentvolumes", volume(more)).1;
    for (path, expected) in [
        ("/", true),
        ("//", true),
        ("/./", true),
        ("/a/..", true),
        ("/a", false),
        ("", false),
        ("a/..", false),
    ] {
        let found =
            errors(json!({"hostPath": {"path": path}, "persistentVolumeReclaimPolicy": "Recycle"}));
        let forbidden = "Forbidden spec.persistentVolumeReclaimPolicy".to_owned();
        assert_eq!(found.contains(&forbidden), expected, "{path:?}: {found:?}");
    }
    // Next to another source, a local one is only one too many.
    let flex = json!({"flexVolume": {"driver": "d"}, "local": {"path": "a"}});
    assert_eq!(errors(flex), ["Forbidden spec.local"]);
    assert_eq!(errors(json!({"local": {"path": "a"}})), ["Required spec.nodeAffinity"]);
    let before = stored("persistentvolumes", &volume(json!({"hostPath": {"path": "/a"}})));
    let classed = volume(json!({"hostPath": {"path": "/a"}, "volumeAttributesClassName": "c"}));
    assert_eq!(update("persistentvolumes", &before, classed).1, ["Required spec.csi"; 2]);
    let mut noted = volume(json!({"hostPath": {"path": "/a"}}));
    noted["metadata"]["annotations"] = json!({"volume.beta.kubernetes.io/mount-options": "ro"});
    let place = "Forbidden metadata.annotations.volume.beta.kubernetes.io/mount-options";
    assert_eq!(create("persistentvolumes", noted.clone()).1, [place]);
    assert_eq!(update("persistentvolumes", &before, noted.clone()).1, [place]);
    noted["spec"]["hostPath"] = Value::Null;
    noted["spec"]["nfs"] = json!({"server": "s", "path": "/p"});
    assert_eq!(create("persistentvolumes", noted).1, NONE);
}

#[test]
fn inline_volumes() {
    let errors = |more: Value| {
        let mut inline = json!({"accessModes": ["ReadWriteOnce"]});
        for (field, value) in more.as_object().expect("fields") {
            inline[field.as_str()] = value.clone();
        }
        let spec =
            json!({"attacher": "a", "nodeName": "n", "source": {"inlineVolumeSpec": inline}});
        create(
            "volumeattachments.storage.k8s.io",
            object("VolumeAttachment", json!({ "spec": spec })),
        )
        .1
    };
    let at = |field: &str| format!("spec.source.inlineVolumeSpec.{field}");
    let found =
        errors(json!({"hostPath": {"path": "/"}, "persistentVolumeReclaimPolicy": "Recycle"}));
    let policy = format!("Forbidden {}", at("persistentVolumeReclaimPolicy"));
    assert_eq!(found.iter().filter(|error| **error == policy).count(), 2, "{found:?}");
    let found = errors(json!({"local": {"path": "a"}}));
    assert!(found.contains(&format!("Required {}", at("nodeAffinity"))), "{found:?}");
}

#[test]
fn groups_of_a_claims_sources() {
    let claim = |group: &str, class: Option<&str>| {
        let source = json!({"apiGroup": group, "kind": "K", "name": "n"});
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}, "dataSourceRef": source});
        if let Some(class) = class {
            spec["volumeAttributesClassName"] = class.into();
        }
        object("PersistentVolumeClaim", json!({ "spec": spec }))
    };
    let name = "persistentvolumeclaims";
    let places = ["Invalid spec.dataSource.apiGroup", "Invalid spec.dataSourceRef.apiGroup"];
    assert_eq!(create(name, claim("A_", None)).1, places);
    // What was stored with a group may keep a malformed one.
    let mut before = stored(name, &claim("example.com", None));
    assert_eq!(update(name, &before, claim("A_", None)).1, ["Forbidden spec"]);
    before["status"]["currentVolumeAttributesClassName"] = "c".into();
    let mut same = claim("example.com", None);
    same["status"] = before["status"].clone();
    assert_eq!(update(name, &before, same.clone()).1, NONE);
    same["spec"]["volumeAttributesClassName"] = "".into();
    let found = update(name, &before, same).1;
    assert!(found.contains(&"Forbidden spec.volumeAttributesClassName".to_owned()), "{found:?}");
}

#[test]
fn labels_that_a_jobs_template_lacks_are_required() {
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let job = object("Job", json!({"spec": {"template": template}}));
    let before = stored("jobs.batch", &job);
    let mut other = before.clone();
    other["spec"]["template"]["metadata"]["labels"] =
        json!({"job-name": "b", "batch.kubernetes.io/job-name": "a"});
    let found = update("jobs.batch", &before, other).1;
    let at = |label: &str| format!("spec.template.metadata.labels[{label}]");
    assert!(found.contains(&format!("Invalid {}", at("job-name"))), "{found:?}");
    assert!(found.contains(&format!("Required {}", at("controller-uid"))), "{found:?}");
    // A malformed selector is refused for that alone.
    let mut odd = before.clone();
    odd["spec"]["selector"] =
        json!({"matchExpressions": [{"key": "controller-uid", "operator": "a"}]});
    let found = update("jobs.batch", &before, odd).1;
    let changed = found.iter().filter(|error| *error == "Invalid spec.selector").count();
    assert_eq!(changed, 1, "only as it cannot change: {found:?}");
}

#[test]
fn an_empty_class_of_a_service_is_one() {
    let spec = json!({"ports": [{"port": 1}], "loadBalancerClass": ""});
    let found = create("services", object("Service", json!({ "spec": spec }))).1;
    assert_eq!(found, ["Forbidden spec.loadBalancerClass"]);
}

#[test]
fn a_claims_name_is_judged_where_it_is_first() {
    let claim = |name: &str| json!({"name": name, "resourceClaimName": "r"});
    let names = ["A_b", "A_b", "", "c", "c", ""];
    let found = create("pods", pod(json!({"resourceClaims": names.map(claim)}))).1;
    let at = |reason: &str, index: usize| format!("{reason} spec.resourceClaims[{index}].name");
    let mut wanted = [
        at("Invalid", 0),
        at("Duplicate", 1),
        at("Required", 2),
        at("Duplicate", 4),
        at("Required", 5),
    ];
    let mut found = found;
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

/// Older kubelets write the first address only.
#[test]
fn a_pods_address_is_the_first_of_its_addresses() {
    let before = stored("pods", &pod(json!({})));
    let old = Document::from_value(before.clone()).expect("an object");
    let write = |address: &str, addresses: &[&str]| {
        let all: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
        let mut new = before.clone();
        new["status"]["podIP"] = address.into();
        new["status"]["podIPs"] = json!(all);
        write_part("pods", "status", Some(&old), new)
    };
    let [a, b, c] = ["10.0.0.1", "fd00::1", "10.0.0.2"];
    for (address, addresses, first, all) in [
        (a, &[][..], a, json!([{"ip": a}])),
        ("", &[a, b][..], a, json!([{"ip": a}, {"ip": b}])),
        (a, &[a, b][..], a, json!([{"ip": a}, {"ip": b}])),
        (c, &[a, b][..], c, json!([{"ip": c}])),
    ] {
        let (written, errors) = write(address, addresses);
        assert_eq!(errors, NONE, "{address} {addresses:?}");
        let status = &written["status"];
        assert_eq!((&status["podIP"], &status["podIPs"]), (&json!(first), &all));
    }
    assert_eq!(write("x", &[]).1, ["Invalid status.podIPs[0]"]);
}

#[test]
fn annotations_are_no_init_containers() {
    let notes = json!({"pod.beta.kubernetes.io/init-containers": "[]", "a": "b"});
    let of_pod = |notes: Value| {
        let mut object = pod(json!({}));
        object["metadata"]["annotations"] = notes;
        stored("pods", &object)["metadata"].clone()
    };
    assert_eq!(of_pod(notes.clone())["annotations"], json!({"a": "b"}));
    let only = of_pod(json!({"pod.alpha.kubernetes.io/init-container-statuses": "[]"}));
    assert_eq!(only.get("annotations"), None);
    let labels = json!({"app": "w"});
    let metadata = json!({"labels": labels, "annotations": notes});
    let template = json!({"metadata": metadata, "spec": pod(json!({}))["spec"]});
    let spec = json!({"selector": {"matchLabels": labels}, "template": template});
    let set = stored("replicasets.apps", &object("ReplicaSet", json!({"spec": spec})));
    assert_eq!(set["spec"]["template"]["metadata"]["annotations"], json!({"a": "b"}));
}

#[test]
fn node_affinities_of_volumes_follow_renamed_labels() {
    let volume = |key: &str, values: &[&str]| {
        let need = json!({"key": key, "operator": "In", "values": values});
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [need]}]}});
        let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/d"}, "nodeAffinity": affinity});
        object("PersistentVolume", json!({ "spec": spec }))
    };
    let (old, new) = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone");
    let write = |before: &str, after: Value| {
        update("persistentvolumes", &stored("persistentvolumes", &volume(before, &["a"])), after).1
    };
    assert_eq!(write(old, volume(new, &["a"])), NONE);
    assert_eq!(write(old, volume(old, &["a"])), NONE);
    let refused = ["Invalid nodeAffinity"];
    assert_eq!(write(new, volume(old, &["a"])), refused);
    assert_eq!(write(old, volume(new, &["b"])), refused);
    assert_eq!(write(old, volume("topology.kubernetes.io/region", &["a"])), refused);
}

#[test]
fn topologies_of_endpoints_are_dropped_from_what_changes() {
    let name = "endpointslices.discovery.k8s.io";
    let slice = |endpoint: Value| {
        object("EndpointSlice", json!({"addressType": "IPv4", "endpoints": [endpoint]}))
    };
    let mut old = stored(name, &slice(json!({"addresses": ["10.0.0.1"]})));
    old["endpoints"][0]["deprecatedTopology"] = json!({"kubernetes.io/hostname": "n"});
    let (same, errors) = update(name, &old, old.clone());
    assert_eq!(errors, NONE);
    assert_eq!(same["endpoints"][0]["deprecatedTopology"], json!({"kubernetes.io/hostname": "n"}));
    for (node, kept) in [("n", json!("n")), ("other", Value::Null)] {
        let topology = json!({"kubernetes.io/hostname": node, "A b": ""});
        let new = slice(json!({"addresses": ["10.0.0.2"], "deprecatedTopology": topology}));
        let (written, errors) = update(name, &old, new);
        assert_eq!(errors, NONE);
        let endpoint = &written["endpoints"][0];
        assert_eq!((&endpoint["nodeName"], endpoint.get("deprecatedTopology")), (&kept, None));
    }
}
