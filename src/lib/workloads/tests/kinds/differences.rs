//! What generated requests to kube-apiserver showed.

use super::{create, update};
use ferrokube_apimachinery::document::{Value, json};

fn made(name: &str, kind: &str, fields: Value) -> (Value, Vec<String>) {
    create(name, object(kind, fields))
}

fn object(kind: &str, fields: Value) -> Value {
    let mut object = json!({"kind": kind, "metadata": {"name": "a", "namespace": "n"}});
    for (field, value) in fields.as_object().expect("fields") {
        object[field.as_str()] = value.clone();
    }
    object
}

#[test]
fn addresses_of_endpoints_are_those_of_other_machines() {
    let errors = |kind: &str, address: &str| {
        let fields = json!({"addressType": kind, "endpoints": [{"addresses": [address]}]});
        made("endpointslices.discovery.k8s.io", "EndpointSlice", fields).1
    };
    let (all, first) = ("Invalid endpoints[0].addresses", "Invalid endpoints[0].addresses[0]");
    assert_eq!(errors("IPv4", "10.0.0.1"), [""; 0]);
    // Of the wrong family, and this machine's.
    assert_eq!(errors("IPv4", "::1"), [all, first]);
    assert_eq!(errors("IPv6", "127.0.0.1"), [all, first]);
    for local in ["0.0.0.0", "127.1.2.3", "169.254.0.1", "224.0.0.9"] {
        assert_eq!(errors("IPv4", local), [first], "{local}");
    }
    // No multicast of the link.
    assert_eq!(errors("IPv4", "224.0.1.1"), [""; 0]);
    assert_eq!(errors("IPv6", "ff02::1"), [first]);
    assert_eq!(errors("IPv6", "ff05::1"), [""; 0]);
}

#[test]
fn terms_of_topologies_are_not_empty() {
    let errors = |terms: Value| {
        let fields = json!({"provisioner": "example.com/p", "allowedTopologies": terms});
        made("storageclasses.storage.k8s.io", "StorageClass", fields).1
    };
    let repeated = |at: usize| format!("Duplicate allowedTopologies[{at}].matchLabelExpressions");
    let zones = |values: Value| json!({"matchLabelExpressions": [{"key": "z", "values": values}]});
    assert_eq!(errors(json!([zones(json!(["a"])), zones(json!(["b"]))])), [""; 0]);
    let again = json!([zones(json!(["a", "b"])), zones(json!(["b", "a"]))]);
    assert_eq!(errors(again), [repeated(1)]);
    assert_eq!(errors(json!([{}])), [repeated(0)]);
    let both = [repeated(0), repeated(0), repeated(1), repeated(1), repeated(1)];
    assert_eq!(errors(json!([{}, {}])), both);
}

#[test]
fn updates_of_nodes_are_judged_twice() {
    let node = |spec: Value| object("Node", json!({ "spec": spec }));
    let (stored, none) = create("nodes", node(json!({"externalID": "e"})));
    assert_eq!(none, [""; 0]);
    let tainted = json!({"externalID": "e", "taints": [{"key": "k", "effect": "x"}]});
    let found = update("nodes", &stored, node(tainted.clone())).1;
    assert_eq!(found, ["NotSupported metadata.taints[0].effect"; 2]);
    assert_eq!(create("nodes", node(tainted)).1, ["NotSupported metadata.taints[0].effect"]);
    let renamed = update("nodes", &stored, node(json!({"externalID": "f"}))).1;
    assert_eq!(renamed, ["Forbidden spec.externalID"]);
}

#[test]
fn ranges_of_a_node_that_cannot_be_read_are_no_pair() {
    let node = |ranges: Value| object("Node", json!({"spec": {"podCIDRs": ranges}}));
    let found = create("nodes", node(json!(["10.0.0.0/8", "a-b"]))).1;
    let path = "spec.podCIDRs";
    let expected =
        [format!("Invalid {path}[1]"), format!("InternalError {path}"), format!("Invalid {path}")];
    assert_eq!(found, expected);
    let (stored, none) = create("nodes", node(json!(["10.0.0.0/8", "fd00::/64"])));
    assert_eq!(none, [""; 0]);
    let both = node(json!(["11.0.0.0/8", "fd01::/64"]));
    assert_eq!(update("nodes", &stored, both).1, vec![format!("Forbidden {path}"); 2]);
    let one = node(json!(["10.0.0.0/8"]));
    assert_eq!(update("nodes", &stored, one).1, [format!("Forbidden {path}")]);
}

fn set(claim: &str, template: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    for (field, value) in template.as_object().expect("fields") {
        spec[field.as_str()] = value.clone();
    }
    let labels = json!({"a": "b"});
    let storage =
        json!({"resources": {"requests": {"storage": "1"}}, "accessModes": ["ReadWriteOnce"]});
    object(
        "StatefulSet",
        json!({"spec": {
            "serviceName": "s", "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
            "volumeClaimTemplates": [{"metadata": {"name": claim}, "spec": storage}],
        }}),
    )
}

#[test]
fn claims_of_a_stateful_set_are_judged_as_volumes() {
    let errors = |claim: &str, template: Value| create("statefulsets.apps", set(claim, template)).1;
    let at = "spec.template.spec.volumes[0]";
    assert_eq!(errors("data", json!({})), [""; 0]);
    assert_eq!(errors("-1", json!({})), [format!("Invalid {at}.name")]);
    let none =
        [format!("Required {at}.name"), format!("Required {at}.persistentVolumeClaim.claimName")];
    assert_eq!(errors("", json!({})), none);
    let mounts = json!({"containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]});
    assert_eq!(errors("data", mounts), [""; 0]);
    // They replace volumes of the same name.
    assert_eq!(errors("data", json!({"volumes": [{"name": "data", "hostPath": {}}]})), [""; 0]);
    // The controller overwrites them.
    assert_eq!(errors("data", json!({"hostname": "A_", "subdomain": "A_"})), [""; 0]);
}

#[test]
fn immutable_fields_of_a_stateful_set_are_validated_once() {
    let (stored, none) = create("statefulsets.apps", set("data", json!({})));
    assert_eq!(none, [""; 0]);
    let mut renamed = set("data", json!({}));
    renamed["spec"]["serviceName"] = "/a".into();
    let changed = ["Forbidden spec"];
    assert_eq!(update("statefulsets.apps", &stored, renamed).1, changed);
    let mut smaller = set("data", json!({}));
    smaller["spec"]["volumeClaimTemplates"][0]["spec"] = json!({"accessModes": ["ReadWriteOnce"]});
    assert_eq!(update("statefulsets.apps", &stored, smaller).1, changed);
}

#[test]
fn labels_and_annotations_of_a_stateful_sets_pods_are_judged_twice() {
    let mut object = set("data", json!({}));
    object["spec"]["template"]["metadata"]["labels"]["c"] = "-1".into();
    object["spec"]["template"]["metadata"]["annotations"] = json!({"-": "x"});
    let mut found = create("statefulsets.apps", object).1;
    found.sort_unstable();
    let (labels, annotations) =
        ("Invalid spec.template.labels", "Invalid spec.template.annotations");
    assert_eq!(found, [annotations, annotations, labels, labels]);
}

#[test]
fn ports_of_services_are_allocated_before_anything_else_is_judged() {
    let errors = |kind: &str, ports: Value| {
        made("services", "Service", json!({"spec": {"type": kind, "ports": ports}})).1
    };
    let port = |name: &str, node: i64| json!({"name": name, "port": node.abs() % 1000 + 1, "nodePort": node});
    let low = "Invalid spec.ports[0].nodePort";
    assert_eq!(errors("NodePort", json!([port("a", 30_000)])), [""; 0]);
    assert_eq!(errors("NodePort", json!([port("a", 7), port("b", 8)])), [low]);
    assert_eq!(errors("ClusterIP", json!([port("a", 7)])), ["Forbidden spec.ports[0].nodePort"]);
    assert_eq!(errors("NodePort", json!([port("A_", 7)])), [low]);
    assert_eq!(errors("NodePort", json!([port("A_", 0)])), ["Invalid spec.ports[0].name"]);
    // Another port may not have the same one, unless it has the same number.
    let at = |number: i64, protocol: &str, node: i64| {
        let name = format!("p{number}{}", protocol.to_lowercase());
        json!({"name": name, "port": number, "protocol": protocol, "nodePort": node})
    };
    let taken = json!([at(1, "TCP", 30_000), at(2, "UDP", 30_000)]);
    assert_eq!(errors("NodePort", taken), ["Invalid spec.ports[1].nodePort"]);
    let shared = json!([at(1, "TCP", 0), at(1, "UDP", 30_000)]);
    assert_eq!(errors("NodePort", shared), [""; 0]);
    let first = json!([at(1, "TCP", 0), at(1, "UDP", 7)]);
    assert_eq!(errors("NodePort", first), [low]);
    let service =
        |ports: Value| object("Service", json!({"spec": {"type": "NodePort", "ports": ports}}));
    let (stored, none) = create("services", service(json!([at(1, "TCP", 30_000)])));
    assert_eq!(none, [""; 0]);
    let both = json!([at(1, "TCP", 30_000), at(1, "UDP", 30_000)]);
    assert_eq!(update("services", &stored, service(both)).1, [""; 0]);
    let odd = json!({"type": "NodePort", "clusterIP": "a/b", "externalIPs": ["a"], "ports": [at(1, "TCP", 7)]});
    let found = update("services", &stored, object("Service", json!({ "spec": odd }))).1;
    assert_eq!(found, ["Invalid spec.clusterIPs[0]"]);
}

#[test]
fn some_kinds_word_unknown_fields_of_selectors_differently() {
    let message =
        |name: &str| super::definition(name).policy.unknown_field.map(|message| message("spec.x"));
    assert_eq!(message("pods"), None);
    let of_jobs = "field label \"spec.x\" not supported for Job";
    assert_eq!(message("jobs.batch").as_deref(), Some(of_jobs));
    let of_slices = "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.x";
    assert_eq!(message("resourceslices.resource.k8s.io").as_deref(), Some(of_slices));
}

#[test]
fn taints_of_devices_have_a_time() {
    let slice = json!({"spec": {
        "driver": "d.example.com", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1},
        "devices": [{"name": "d", "taints": [{"key": "k", "effect": "NoExecute"}, {"key": "l", "effect": "NoExecute", "timeAdded": "2020-01-02T03:04:05Z"}]}],
    }});
    let (stored, none) = made("resourceslices.resource.k8s.io", "ResourceSlice", slice);
    assert_eq!(none, [""; 0]);
    let times = |at: usize| stored["spec"]["devices"][0]["taints"][at]["timeAdded"].clone();
    assert_eq!(
        (times(0), times(1)),
        ("2024-01-02T03:04:05Z".into(), "2020-01-02T03:04:05Z".into())
    );
}

#[test]
fn immutable_fields_of_a_claim_are_only_compared() {
    let name = "resourceclaims.resource.k8s.io";
    let claim = |class: &str, status: Value| {
        let request = json!({"name": "r", "exactly": {"deviceClassName": class}});
        let spec = json!({"devices": {"requests": [request]}});
        object("ResourceClaim", json!({"spec": spec, "status": status}))
    };
    let (stored, none) = create(name, claim("c.example.com", json!({})));
    assert_eq!(none, [""; 0]);
    assert_eq!(update(name, &stored, claim("A_", json!({}))).1, ["Invalid spec"]);
    let allocated = |request: &str, devices: Value| {
        let result =
            json!({"request": request, "driver": "d.example.com", "pool": "p", "device": "v"});
        let status = json!({"allocation": {"devices": {"results": [result]}}, "devices": devices});
        claim("c.example.com", status)
    };
    let status = |old: &Value, object: Value| {
        let old = ferrokube_apimachinery::document::Document::from_value(old.clone());
        super::write_part(name, "status", old.as_ref().ok(), object)
    };
    let at = "status.allocation";
    let wrong = status(&stored, allocated("x", json!([]))).1;
    assert_eq!(wrong, [format!("Invalid {at}.devices.results[0].request")]);
    let (stored, none) = status(&stored, allocated("r", json!([])));
    assert_eq!(none, [""; 0]);
    assert_eq!(status(&stored, allocated("x", json!([]))).1, [format!("Invalid {at}")]);
    let device = json!({"driver": "d.example.com", "pool": "p", "device": "v"});
    assert_eq!(status(&stored, allocated("r", json!([device]))).1, [""; 0]);
    let again = status(&stored, allocated("r", json!([device, device]))).1;
    assert_eq!(again, ["Duplicate status.devices[1]"]);
    let other = json!({"driver": "d.example.com", "pool": "p", "device": "A"});
    let found = status(&stored, allocated("r", json!([other]))).1;
    assert_eq!(found, ["Invalid status.devices[0].device", "Invalid status.devices[0]"]);
}

#[test]
fn templates_of_malformed_selectors_are_not_judged() {
    let errors = |name: &str, kind: &str| {
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "x"}]});
        let template = json!({"spec": {"containers": [{"name": "A_"}]}});
        made(name, kind, json!({"spec": {"selector": selector, "template": template}})).1
    };
    let selector = "Invalid spec.selector";
    let operator = "Invalid spec.selector.matchExpressions[0].operator";
    assert_eq!(errors("deployments.apps", "Deployment"), [operator, selector]);
    assert_eq!(errors("replicasets.apps", "ReplicaSet"), [operator, selector]);
    assert_eq!(errors("statefulsets.apps", "StatefulSet"), [operator, selector]);
}

#[test]
fn the_name_of_an_attached_volume_comes_before_its_spec() {
    let errors = |source: Value| {
        let spec = json!({"attacher": "a.example.com", "nodeName": "n", "source": source});
        made("volumeattachments.storage.k8s.io", "VolumeAttachment", json!({ "spec": spec })).1
    };
    let (source, name) = ("spec.source", "spec.source.persistentVolumeName");
    assert_eq!(errors(json!({"persistentVolumeName": "v"})), [""; 0]);
    let empty = [format!("Required {name}"), format!("Invalid {name}")];
    assert_eq!(errors(json!({"persistentVolumeName": ""})), empty);
    let both = json!({"persistentVolumeName": "v", "inlineVolumeSpec": {"cephfs": {}, "rbd": {}}});
    assert_eq!(errors(both), [format!("Forbidden {source}")]);
}

#[test]
fn addresses_of_services_are_checked_before_anything_else() {
    let errors = |spec: Value| made("services", "Service", json!({ "spec": spec })).1;
    let port = json!([{"port": 1}]);
    let policy = json!({"ipFamilyPolicy": "x", "externalIPs": ["a"], "ports": port});
    assert_eq!(errors(policy), ["NotSupported spec.ipFamilyPolicy"]);
    let address = json!({"type": "A", "clusterIP": "x", "externalIPs": ["a"], "ports": port});
    assert_eq!(errors(address), ["Invalid spec.clusterIPs[0]"]);
    let none =
        json!({"type": "NodePort", "clusterIP": "None", "externalIPs": ["a"], "ports": port});
    assert_eq!(errors(none), ["Invalid spec.externalIPs[0]", "Invalid spec.clusterIPs[0]"]);
    let external = json!({"type": "ExternalName", "externalName": "a.b", "ipFamilyPolicy": "x"});
    assert_eq!(errors(external), ["Forbidden spec.ipFamilyPolicy"]);
}

#[test]
fn metadata_of_claim_templates_are_labels_and_annotations() {
    let name = "resourceclaimtemplates.resource.k8s.io";
    let template = |metadata: Value| {
        object(
            "ResourceClaimTemplate",
            json!({"spec": {"metadata": metadata, "spec": {"devices": {}}}}),
        )
    };
    let (stored, none) = create(name, template(json!({"labels": {"a": "b"}, "generation": 0})));
    assert_eq!(none, [""; 0]);
    let at = |field: &str| format!("Forbidden spec.metadata.{field}");
    let odd = template(json!({"labels": {"a": "b"}, "deletionGracePeriodSeconds": 0, "uid": "u"}));
    let forbidden = [at("deletionGracePeriodSeconds"), at("uID")];
    assert_eq!(create(name, odd.clone()).1, forbidden);
    let changed = [&forbidden[..], &["Invalid spec".to_owned()]].concat();
    assert_eq!(update(name, &stored, odd).1, changed);
    // An update is judged like a new one.
    let request = json!({"name": "R_", "exactly": {"deviceClassName": "c"}});
    let mut wrong = template(json!({"labels": {"a": "b"}}));
    wrong["spec"]["spec"] = json!({"devices": {"requests": [request]}});
    let found = update(name, &stored, wrong).1;
    assert_eq!(found, ["Invalid spec.spec.devices.requests[0].name", "Invalid spec"]);
}

#[test]
fn updates_of_runtime_classes_are_judged_as_new_ones() {
    let class = |cpu: &str| {
        object("RuntimeClass", json!({"handler": "h", "overhead": {"podFixed": {"cpu": cpu}}}))
    };
    let name = "runtimeclasses.node.k8s.io";
    let (stored, none) = create(name, class("1"));
    assert_eq!(none, [""; 0]);
    assert_eq!(update(name, &stored, class("-1")).1, ["Invalid overhead.limits[cpu]"]);
}

#[test]
fn only_the_first_source_of_a_volume_is_judged() {
    let errors = |more: Value| {
        let mut spec = json!({"capacity": {"storage": "1"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/a"}});
        for (field, value) in more.as_object().expect("fields") {
            spec[field.as_str()] = value.clone();
        }
        made("persistentvolumes", "PersistentVolume", json!({ "spec": spec })).1
    };
    assert_eq!(errors(json!({})), ["Required spec.nodeAffinity"]);
    assert_eq!(errors(json!({"hostPath": {"path": "/a"}})), ["Forbidden spec.local"]);
}

#[test]
fn ports_of_endpoints_without_a_name_are_two_with_the_same() {
    let slice =
        json!({"addressType": "IPv4", "endpoints": [], "ports": [{"port": 80}, {"port": 81}]});
    let found = made("endpointslices.discovery.k8s.io", "EndpointSlice", slice).1;
    assert_eq!(found, ["Duplicate ports[1].name"]);
}

#[test]
fn an_empty_mode_is_an_unknown_one() {
    let class = json!({"provisioner": "a/b", "volumeBindingMode": ""});
    let found = made("storageclasses.storage.k8s.io", "StorageClass", class).1;
    assert_eq!(found, ["NotSupported volumeBindingMode"]);
}

#[test]
fn tokens_of_a_driver_are_judged_once_for_each_audience() {
    let errors = |requests: Value| {
        let spec = json!({"tokenRequests": requests});
        made("csidrivers.storage.k8s.io", "CSIDriver", json!({ "spec": spec })).1
    };
    let token =
        |audience: &str, seconds: i64| json!({"audience": audience, "expirationSeconds": seconds});
    let at = "spec.tokenRequests[1]";
    let both = json!([token("a", 600), token("a", 0)]);
    assert_eq!(errors(both), [format!("Duplicate {at}.audience")]);
    let short = json!([token("a", 600), token("b", 0)]);
    assert_eq!(errors(short), [format!("Invalid {at}.expirationSeconds")]);
    let long = json!([token("a", 600), token("b", (1 << 32) + 1)]);
    assert_eq!(errors(long), [format!("Invalid {at}.expirationSeconds")]);
}

#[test]
fn other_access_modes_are_those_that_exist() {
    let errors = |modes: Value| {
        let spec =
            json!({"capacity": {"storage": "1"}, "accessModes": modes, "hostPath": {"path": "/a"}});
        made("persistentvolumes", "PersistentVolume", json!({ "spec": spec })).1
    };
    let path = "spec.accessModes";
    assert_eq!(errors(json!(["ReadWriteOncePod", "x"])), [format!("NotSupported {path}")]);
    let both = json!(["ReadWriteOncePod", "ReadWriteOnce"]);
    assert_eq!(errors(both), [format!("Forbidden {path}")]);
}

#[test]
fn empty_names_of_devices_and_resources_are_malformed() {
    let class = json!({"spec": {"extendedResourceName": ""}});
    let found = made("deviceclasses.resource.k8s.io", "DeviceClass", class).1;
    assert_eq!(found, ["Invalid spec.extendedResourceName"]);
    let slice = json!({"spec": {"driver": "d.example.com", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1}, "devices": [{}]}});
    let found = made("resourceslices.resource.k8s.io", "ResourceSlice", slice).1;
    assert_eq!(found, ["Invalid spec.devices[0].name"]);
}

#[test]
fn names_of_hosts_are_not_empty() {
    let aliases = json!([{"ip": "10.0.0.1", "hostnames": ["a", ""]}]);
    let spec = json!({"hostAliases": aliases, "containers": [{"name": "c", "image": "i"}]});
    let found = made("pods", "Pod", json!({ "spec": spec })).1;
    assert_eq!(found, ["Invalid spec.hostAliases[0].hostnames[1]"]);
}

#[test]
fn an_absent_name_that_cannot_change_is_empty() {
    let class =
        |controller: &str| object("IngressClass", json!({"spec": {"controller": controller}}));
    let (stored, none) = create("ingressclasses.networking.k8s.io", class("a.b/c"));
    assert_eq!(none, [""; 0]);
    let without = object("IngressClass", json!({"spec": {}}));
    let definition = super::definition("ingressclasses.networking.k8s.io");
    let old = ferrokube_apimachinery::document::Document::from_value(stored).expect("an object");
    let new = ferrokube_apimachinery::document::Document::from_value(without).expect("an object");
    let extra = std::collections::BTreeMap::new();
    let change = ferrokube_resource::Change {
        old: Some(&old),
        subresource: "",
        version: "v1",
        user: "bob",
        user_uid: "",
        groups: &[],
        user_extra: &extra,
        now: super::now(),
    };
    let errors = definition.hooks.validate(&change, &new);
    let shown: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
    assert!(shown.contains(&"Invalid value: \"\": field is immutable"), "{shown:?}");
}

#[test]
fn policies_of_success_need_indexes() {
    let errors = |mode: &str, rules: Value| {
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
        let spec = json!({"completionMode": mode, "completions": 1, "successPolicy": {"rules": rules}, "template": {"spec": pod}});
        made("jobs.batch", "Job", json!({ "spec": spec })).1
    };
    let policy = "spec.successPolicy";
    assert_eq!(errors("Indexed", json!([{"succeededCount": 1}])), [""; 0]);
    assert_eq!(errors("Indexed", json!([])), [format!("Required {policy}.rules")]);
    let mode = "NotSupported spec.completionMode".to_owned();
    assert_eq!(errors("x", json!([{}])), [mode, format!("Invalid {policy}")]);
    assert_eq!(errors("NonIndexed", json!([])), [format!("Invalid {policy}")]);
}

#[test]
fn references_to_requests_are_names() {
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c"}});
    let errors = |name: &str| {
        let config =
            json!([{"requests": [name], "opaque": {"driver": "d.example.com", "parameters": {}}}]);
        let spec = json!({"devices": {"requests": [request.clone()], "config": config}});
        made("resourceclaims.resource.k8s.io", "ResourceClaim", json!({ "spec": spec })).1
    };
    let at = "Invalid spec.devices.config[0].requests[0]";
    assert_eq!(errors("r"), [""; 0]);
    assert_eq!(errors("s"), [at]);
    assert_eq!(errors("S_"), [at, at]);
    assert_eq!(errors("a/b/c"), [at]);
}

#[test]
fn of_several_given_alternatives_none_is_judged() {
    let service = json!({"name": "A_", "port": {"number": 1}});
    let both = json!({"service": service, "resource": {"kind": "", "name": ""}});
    let found =
        made("ingresses.networking.k8s.io", "Ingress", json!({"spec": {"defaultBackend": both}}));
    assert_eq!(found.1, ["Invalid spec.defaultBackend"]);
    let request = json!({"name": "r", "exactly": {"deviceClassName": "A_"}, "firstAvailable": [{"name": "A_", "deviceClassName": "c"}]});
    let spec = json!({"devices": {"requests": [request]}});
    let found = made("resourceclaims.resource.k8s.io", "ResourceClaim", json!({ "spec": spec })).1;
    assert_eq!(found, ["Invalid spec.devices.requests[0]"]);
    let inline = json!({"accessModes": ["x"], "claimRef": {}});
    let source = json!({"persistentVolumeName": "", "inlineVolumeSpec": inline});
    let spec = json!({"attacher": "a.example.com", "nodeName": "n", "source": source});
    let found =
        made("volumeattachments.storage.k8s.io", "VolumeAttachment", json!({ "spec": spec })).1;
    assert!(!found.iter().any(|error| error.contains("inlineVolumeSpec")), "{found:?}");
}

#[test]
fn an_empty_namespace_of_parameters_is_given() {
    let parameters = json!({"kind": "K", "name": "n", "scope": "Cluster", "namespace": ""});
    let spec = json!({"controller": "a.b/c", "parameters": parameters});
    let found = made("ingressclasses.networking.k8s.io", "IngressClass", json!({ "spec": spec })).1;
    assert_eq!(found, ["Forbidden spec.parameters.namespace"]);
}

#[test]
fn both_of_two_are_too_many_even_if_one_is_empty() {
    let spec = json!({"selector": {}, "minAvailable": 1, "maxUnavailable": ""});
    let errors =
        made("poddisruptionbudgets.policy", "PodDisruptionBudget", json!({ "spec": spec })).1;
    assert!(errors.contains(&"Invalid spec".to_owned()), "{errors:?}");
    let errors = |source: Value| {
        let spec = json!({"attacher": "a", "nodeName": "n", "source": source});
        let name = "volumeattachments.storage.k8s.io";
        made(name, "VolumeAttachment", json!({ "spec": spec })).1
    };
    let required = "Required spec.source.persistentVolumeName".to_owned();
    assert!(errors(json!({"persistentVolumeName": ""})).contains(&required));
    // The choice is judged before the name.
    let both = errors(json!({"persistentVolumeName": "", "inlineVolumeSpec": {}}));
    assert!(!both.contains(&required), "{both:?}");
}
