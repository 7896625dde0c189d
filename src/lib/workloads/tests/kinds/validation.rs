//! Rules found by reading what kube-apiserver validates.

use super::{create, definition, update, write_part};
use ferrokube_apimachinery::document::{Document, Value, json};

fn object(kind: &str, mut fields: Value) -> Value {
    fields["kind"] = kind.into();
    fields["metadata"] = json!({"name": "a", "namespace": "n"});
    fields
}

fn errors(name: &str, kind: &str, fields: Value) -> Vec<String> {
    create(name, object(kind, fields)).1
}

fn with(mut object: Value, more: Value) -> Value {
    for (field, value) in more.as_object().expect("fields") {
        object[field.as_str()] = value.clone();
    }
    object
}

fn pod(more: Value) -> Vec<String> {
    let spec = with(json!({"containers": [{"name": "c", "image": "i"}]}), more);
    errors("pods", "Pod", json!({ "spec": spec }))
}

fn container(more: Value) -> Vec<String> {
    let container = with(json!({"name": "c", "image": "i"}), more);
    pod(json!({"containers": [container]}))
}

/// The messages of an object's errors.
fn messages(name: &str, kind: &str, fields: Value) -> Vec<String> {
    let definition = definition(name);
    let mut object = Document::from_value(object(kind, fields)).expect("an object");
    let at = definition.storage_version;
    let extra = std::collections::BTreeMap::new();
    let change = ferrokube_resource::Change {
        old: None,
        subresource: "",
        version: &definition.versions[at].name,
        user: "bob",
        user_uid: "",
        groups: &[],
        user_extra: &extra,
        now: super::now(),
    };
    definition.set_defaults(at, &mut object);
    definition.prepare(at, &change, &mut object);
    let errors = definition.hooks.validate(&change, &object).into_iter();
    errors.map(|error| format!("{}: {}", error.field, error.message)).collect()
}

const NONE: [&str; 0] = [];

#[test]
fn pods() {
    let env = |variable: Value| container(json!({"env": [with(json!({"name": "A"}), variable)]}));
    let from = "Invalid spec.containers[0].env[0].valueFrom";
    let name = json!({"fieldRef": {"fieldPath": "metadata.name"}});
    let both = with(name.clone(), json!({"configMapKeyRef": {"name": "m", "key": "k"}}));
    for (variable, expected) in [
        (json!({"valueFrom": {}}), &[from][..]),
        (json!({"value": "x", "valueFrom": {}}), &[from]),
        (json!({"value": "x", "valueFrom": name}), &[from]),
        (json!({"value": "x", "valueFrom": both}), &[from]),
        (json!({"valueFrom": both}), &[from]),
        (json!({"value": "", "valueFrom": name}), &[]),
    ] {
        assert_eq!(env(variable.clone()), expected, "{variable}");
    }
    let port = |name: &str| json!({"name": name, "containerPort": 1});
    let at = |place: &str| format!("spec.containers[0].{place}");
    let twice = container(json!({"ports": [port("a"), port("a")]}));
    assert_eq!(twice, [format!("Duplicate {}", at("ports[1].name"))]);
    let malformed = container(json!({"ports": [port("A"), port("A")]}));
    assert!(malformed.iter().all(|error| error.starts_with("Invalid")), "{malformed:?}");
    let profile =
        |kind: &str, profile: Value| container(json!({"securityContext": {kind: profile}}));
    let place = at("securityContext.appArmorProfile.localhostProfile");
    let given = |file: &str| json!({"type": "Localhost", "localhostProfile": file});
    assert_eq!(profile("appArmorProfile", given(" a")), [format!("Invalid {place}")]);
    let unneeded = json!({"type": "Unconfined", "localhostProfile": ""});
    assert_eq!(profile("appArmorProfile", unneeded.clone()), [format!("Invalid {place}")]);
    let place = at("securityContext.seccompProfile.localhostProfile");
    assert_eq!(profile("seccompProfile", unneeded), [format!("Invalid {place}")]);
    let divisor = |resource: &str| {
        let field = json!({"resource": resource, "divisor": "2"});
        env(json!({"valueFrom": {"resourceFieldRef": field}}))
    };
    let place = at("env[0].valueFrom.resourceFieldRef");
    let (unknown, amount) =
        (format!("NotSupported {place}.resource"), format!("Invalid {place}.divisor"));
    assert_eq!(divisor("limits.cpu"), [amount]);
    assert_eq!(divisor("a.cpu"), [unknown]);
    let hook = |seconds: i64| {
        let action = json!({"exec": {"command": ["a"]}, "sleep": {"seconds": seconds}});
        container(json!({"lifecycle": {"preStop": action}}))
    };
    assert_eq!(hook(-1), [format!("Forbidden {}", at("lifecycle.preStop.sleep"))]);
}

#[test]
fn ephemeral_containers() {
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let (stored, none) = create("pods", object("Pod", json!({ "spec": spec })));
    assert_eq!(none, NONE);
    let old = Document::from_value(stored.clone()).expect("an object");
    let errors = |more: Value| {
        let mut new = stored.clone();
        let container = with(json!({"name": "e", "image": "i"}), more);
        new["spec"]["ephemeralContainers"] = json!([container]);
        write_part("pods", "ephemeralcontainers", Some(&old), new).1
    };
    let forbidden = |field: &str| vec![format!("Forbidden spec.ephemeralContainers[0].{field}")];
    assert_eq!(errors(json!({})), NONE);
    assert_eq!(errors(json!({"livenessProbe": {}})), forbidden("livenessProbe"));
    assert_eq!(errors(json!({"lifecycle": {}})), forbidden("lifecycle"));
    assert_eq!(errors(json!({"restartPolicy": "Always"})), forbidden("restartPolicy"));
    assert_eq!(errors(json!({"resources": {}})), NONE);
}

#[test]
fn volumes() {
    let errors = |source: Value| pod(json!({"volumes": [with(json!({"name": "v"}), source)]}));
    let at = |place: &str| format!("spec.volumes[0].{place}");
    let iscsi = |name: &str| {
        let iscsi = json!({"targetPortal": "p", "iqn": "iqn.2024-01.a:b", "initiatorName": name});
        errors(json!({ "iscsi": iscsi }))
    };
    let initiator = format!("Invalid {}", at("iscsi.initiatorname"));
    assert_eq!(iscsi(""), std::slice::from_ref(&initiator));
    assert_eq!(iscsi("a"), [initiator]);
    let token = |seconds: i64| {
        let token = json!({"path": "t", "expirationSeconds": seconds});
        errors(json!({"projected": {"sources": [{"serviceAccountToken": token}]}}))
    };
    let seconds = at("projected.sources[0].serviceAccountToken.expirationSeconds");
    assert_eq!(token(1 << 32), NONE);
    assert_eq!(token((1 << 32) + 1), [format!("Invalid {seconds}")]);
    let host = errors(json!({"hostPath": {"type": "x"}}));
    assert_eq!(host, [format!("Required {}", at("hostPath.path"))]);
    let quobyte = |tenant: String| {
        errors(json!({"quobyte": {"registry": "a:1", "volume": "v", "tenant": tenant}}))
    };
    assert_eq!(quobyte("x".repeat(64)), NONE);
    assert_eq!(quobyte("x".repeat(65)), [format!("Required {}", at("quobyte.tenant"))]);
}

#[test]
fn services() {
    let spec = |more: Value| with(json!({"ports": [{"port": 1}]}), more);
    let found = |more: Value| errors("services", "Service", json!({ "spec": spec(more) }));
    let config = |seconds: i64| json!({"clientIP": {"timeoutSeconds": seconds}});
    let affinity = json!({"sessionAffinity": "x", "sessionAffinityConfig": config(-1)});
    assert_eq!(found(affinity), ["NotSupported spec.sessionAffinity"]);
    let affinity = json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config(-1)});
    assert_eq!(found(affinity), ["Invalid spec.sessionAffinityConfig.clientIP.timeoutSeconds"]);
    assert_eq!(
        found(json!({"externalIPs": ["::ffff:127.0.0.1"]})),
        ["Invalid spec.externalIPs[0]"]
    );
    // An update repeats what is wrong with the class.
    let service = |class: &str, kind: &str| {
        object("Service", json!({"spec": spec(json!({"type": kind, "loadBalancerClass": class}))}))
    };
    let (stored, none) = create("services", service("a/b", "LoadBalancer"));
    assert_eq!(none, NONE);
    let class = "Invalid spec.loadBalancerClass";
    assert_eq!(update("services", &stored, service("A b", "LoadBalancer")).1, [class; 3]);
    let found = update("services", &stored, service("c", "NodePort")).1;
    assert_eq!(found, ["Forbidden spec.loadBalancerClass"; 2]);
}

#[test]
fn nodes() {
    let node = |status: Value| object("Node", json!({ "status": status }));
    let found = |status: Value| create("nodes", node(status)).1;
    let capacity = json!({"capacity": {"cpu": "-1", "pods": "1500m"}});
    // What can be allocated is the capacity, unless it says otherwise.
    let expected = ["capacity.cpu", "capacity.pods", "allocatable.cpu", "allocatable.pods"];
    assert_eq!(found(capacity), expected.map(|field| format!("Invalid status.{field}")));
    let swap = json!({"nodeInfo": {"swap": {"capacity": 0}}});
    assert_eq!(found(swap), ["Invalid metadata.nodeSwapStatus.capacity"]);
    let (stored, none) = create("nodes", node(json!({})));
    assert_eq!(none, NONE);
    let old = Document::from_value(stored).expect("an object");
    let status = node(json!({"allocatable": {"cpu": "-1"}}));
    let found = write_part("nodes", "status", Some(&old), status).1;
    assert_eq!(found, ["Invalid status.allocatable.cpu"]);
}

#[test]
fn storage() {
    let volume = |source: Value| {
        let spec = json!({"capacity": {"storage": "1"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}});
        object("PersistentVolume", json!({"spec": with(spec, source)}))
    };
    let (stored, none) = create("persistentvolumes", volume(json!({})));
    assert_eq!(none, NONE);
    // An empty source is one.
    let found = update("persistentvolumes", &stored, volume(json!({"cephfs": {"monitors": []}}))).1;
    assert!(found.contains(&"Forbidden spec.persistentvolumesource".to_owned()), "{found:?}");
    let inline = json!({"csi": {"driver": "d.example.com", "volumeHandle": "h"}, "accessModes": ["ReadWriteOnce"], "volumeAttributesClassName": ""});
    let spec = json!({"attacher": "a.example.com", "nodeName": "n", "source": {"inlineVolumeSpec": inline}});
    let name = "volumeattachments.storage.k8s.io";
    assert_eq!(errors(name, "VolumeAttachment", json!({ "spec": spec })), NONE);
    let class = |parameters: Value| {
        let fields = json!({"provisioner": "a/b", "parameters": parameters});
        errors("storageclasses.storage.k8s.io", "StorageClass", fields)
    };
    assert_eq!(class(json!({"a": "x".repeat(256 << 10)})), ["TooLong parameters"]);
    let mut many = json!({});
    (0..513).for_each(|at| many[format!("k{at}").as_str()] = "v".into());
    assert_eq!(class(many), ["TooLong parameters"]);
}

#[test]
fn networks() {
    let block = |cidr: &str, except: &str| {
        let peers = json!([{"ipBlock": {"cidr": cidr, "except": [except]}}]);
        let spec = json!({"podSelector": {}, "ingress": [{"from": peers}]});
        errors("networkpolicies.networking.k8s.io", "NetworkPolicy", json!({ "spec": spec }))
    };
    let at = |field: &str| format!("Invalid spec.ingress[0].from[0].ipBlock.{field}");
    assert_eq!(block("10.0.0.0/8", "10.1.0.0/16"), NONE);
    assert_eq!(block("x", "y"), [at("cidr")]);
    assert_eq!(block("10.0.0.0/8", "y"), [at("except[0]")]);
    assert_eq!(block("010.0.0.0/8", "11.0.0.0/16"), [at("cidr"), at("except[0]")]);
    let paths = |path: &str| {
        let path = json!({"path": path, "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 1}}}});
        let spec = json!({"rules": [{"http": {"paths": [path]}}]});
        errors("ingresses.networking.k8s.io", "Ingress", json!({ "spec": spec }))
    };
    let path = "Invalid spec.rules[0].http.paths[0].path";
    assert_eq!(paths("a//b"), [path, path]);
    assert_eq!(paths(""), [path]);
    let class = |namespace: Value| {
        let parameters = with(json!({"kind": "K", "name": "n", "scope": "Namespace"}), namespace);
        let spec = json!({"controller": "a.b/c", "parameters": parameters});
        errors("ingressclasses.networking.k8s.io", "IngressClass", json!({ "spec": spec }))
    };
    let namespace = "spec.parameters.namespace";
    assert_eq!(class(json!({})), [format!("Required {namespace}")]);
    assert_eq!(class(json!({"namespace": ""})), [format!("Invalid {namespace}")]);
    assert_eq!(class(json!({"scope": ""})), ["NotSupported spec.parameters.scope"]);
}

#[test]
fn endpoints() {
    let slice = |fields: Value| {
        errors(
            "endpointslices.discovery.k8s.io",
            "EndpointSlice",
            with(json!({"addressType": "IPv4", "endpoints": []}), fields),
        )
    };
    let address = |kind: &str, address: &str| {
        slice(json!({"addressType": kind, "endpoints": [{"addresses": [address]}]}))
    };
    let first = ["Invalid endpoints[0].addresses[0]"];
    assert_eq!(address("IPv4", "::ffff:10.0.0.1"), first);
    assert_eq!(address("IPv6", "fd00:0::1"), first);
    assert_eq!(address("IPv6", "fd00::1"), NONE);
    assert_eq!(slice(json!({"ports": [{"protocol": ""}]})), ["NotSupported ports[0].protocol"]);
    // Of what is too many, nothing else is said.
    let zones = |count: usize, nodes: usize| {
        let hints = json!({"forZones": vec![json!({"name": "A_b!"}); count], "forNodes": vec![json!({"name": "A"}); nodes]});
        slice(json!({"endpoints": [{"addresses": ["10.0.0.1"], "hints": hints}]}))
    };
    let hints = "endpoints[0].hints";
    assert_eq!(zones(9, 9), [format!("TooMany {hints}.forZones")]);
    assert_eq!(zones(0, 9), [format!("TooMany {hints}.forNodes")]);
    assert_eq!(
        zones(1, 1),
        [format!("Invalid {hints}.forNodes[0].name"), format!("Invalid {hints}.forZones[0].name")]
    );
    assert_eq!(slice(json!({"ports": vec![json!({"name": "A"}); 101]})), ["TooMany ports"]);
    let many = json!({"endpoints": vec![json!({"addresses": ["x"]}); 1001]});
    assert_eq!(slice(many), ["TooMany endpoints"]);
    let subset = |ip: &str| {
        errors("endpoints", "Endpoints", json!({"subsets": [{"addresses": [{"ip": ip}]}]}))
    };
    assert_eq!(subset("010.0.0.1"), ["Invalid subsets[0].addresses[0].ip"]);
}

#[test]
fn endpoints_that_stay_are_not_judged() {
    let slice = |kind: &str, address: &str| {
        object(
            "EndpointSlice",
            json!({"addressType": kind, "endpoints": [{"addresses": [address]}]}),
        )
    };
    let name = "endpointslices.discovery.k8s.io";
    let (stored, none) = create(name, slice("IPv4", "10.0.0.1"));
    assert_eq!(none, NONE);
    assert_eq!(update(name, &stored, slice("IPv6", "10.0.0.1")).1, ["Invalid addressType"]);
    let both = ["Invalid addressType", "Invalid endpoints[0].addresses"];
    assert_eq!(update(name, &stored, slice("IPv6", "10.0.0.2")).1, both);
}

#[test]
fn empty_labels_are_labels() {
    let labels = |key: &str| json!({key: ""});
    let set = |key: &str| {
        let pod = json!({"containers": [{"name": "c", "image": "i"}]});
        let template = json!({"metadata": {"labels": labels(key)}, "spec": pod});
        let spec = json!({"selector": {"matchLabels": labels(key)}, "template": template});
        object("Deployment", json!({ "spec": spec }))
    };
    let (stored, none) = create("deployments.apps", set("a"));
    assert_eq!(none, NONE);
    assert_eq!(update("deployments.apps", &stored, set("a")).1, NONE);
    assert_eq!(update("deployments.apps", &stored, set("b")).1, ["Invalid spec.selector"]);
    let class = |parameters: Value| {
        object("StorageClass", json!({"provisioner": "a/b", "parameters": parameters}))
    };
    let name = "storageclasses.storage.k8s.io";
    let (stored, none) = create(name, class(json!({})));
    assert_eq!(none, NONE);
    assert_eq!(update(name, &stored, class(json!({"k": ""}))).1, ["Invalid parameters"]);
    let job = |key: &str| {
        let pod = json!({"restartPolicy": "Never", "nodeSelector": labels(key), "containers": [{"name": "c", "image": "i"}]});
        object("Job", json!({"spec": {"template": {"spec": pod}}}))
    };
    let (stored, none) = create("jobs.batch", job("a"));
    assert_eq!(none, NONE);
    let mut other = stored.clone();
    other["spec"]["template"]["spec"]["nodeSelector"] = labels("b");
    assert_eq!(update("jobs.batch", &stored, other).1, ["Invalid spec.template"]);
}

#[test]
fn controllers() {
    let of = |kind: &str, more: Value| {
        let labels = json!({"a": "b"});
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        object(
            kind,
            json!({"spec": with(json!({"selector": {"matchLabels": labels}, "template": template}), more)}),
        )
    };
    let rolling = |unavailable: Value, surge: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}});
    let place = "spec.strategy.rollingUpdate.maxUnavailable";
    for (unavailable, surge, expected) in [
        (json!(0), json!("00%"), vec![format!("Invalid {place}")]),
        (json!("a"), json!(0), vec![format!("Invalid {place}"), format!("Invalid {place}")]),
        (json!("0%"), json!("1%"), vec![]),
    ] {
        let strategy = json!({"strategy": rolling(unavailable, surge)});
        assert_eq!(create("deployments.apps", of("Deployment", strategy)).1, expected);
    }
    let claim = |status: Value| {
        let storage =
            json!({"resources": {"requests": {"storage": "1"}}, "accessModes": ["ReadWriteOnce"]});
        let claims = json!([with(json!({"metadata": {"name": "v"}, "spec": storage}), status)]);
        of("StatefulSet", json!({"volumeClaimTemplates": claims}))
    };
    let (stored, none) = create("statefulsets.apps", claim(json!({})));
    assert_eq!(none, NONE);
    let same = update("statefulsets.apps", &stored, claim(json!({"status": {}}))).1;
    assert_eq!(same, NONE);
    let other = claim(json!({"status": {"modifyVolumeStatus": {}}}));
    assert_eq!(update("statefulsets.apps", &stored, other).1, ["Forbidden spec"]);
}

#[test]
fn suspended_jobs_may_get_other_resources() {
    let job = |cpu: &str, command: &str| {
        let container = json!({"name": "c", "image": "i", "command": [command], "resources": {"requests": {"cpu": cpu}}});
        let pod = json!({"restartPolicy": "Never", "containers": [container]});
        json!({"suspend": true, "template": {"spec": pod}})
    };
    let (stored, none) = create("jobs.batch", object("Job", json!({"spec": job("1", "a")})));
    assert_eq!(none, NONE);
    let changed = |stored: &Value, change: &dyn Fn(&mut Value)| {
        let mut new = stored.clone();
        change(&mut new);
        update("jobs.batch", stored, new).1
    };
    let container = |job: &mut Value, field: &str, value: Value| {
        job["spec"]["template"]["spec"]["containers"][0][field] = value;
    };
    let resources = json!({"requests": {"cpu": "2"}});
    assert_eq!(changed(&stored, &|job| container(job, "resources", resources.clone())), NONE);
    let affinity = json!({"nodeAffinity": {}});
    assert_eq!(
        changed(&stored, &|job| job["spec"]["template"]["spec"]["affinity"] = affinity.clone()),
        NONE
    );
    let pod = ["Invalid spec.template.spec"];
    assert_eq!(changed(&stored, &|job| container(job, "command", json!(["b"]))), pod);
    let mut running = stored.clone();
    running["status"] = json!({"active": 1, "startTime": "2024-01-02T03:04:05Z"});
    let template = ["Invalid spec.template"];
    assert_eq!(changed(&running, &|job| container(job, "resources", resources.clone())), template);
    let count = json!({"rules": [{"succeededIndexes": ""}]});
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    let spec = json!({"completionMode": "Indexed", "completions": 1, "successPolicy": count, "template": {"spec": pod}});
    assert_eq!(errors("jobs.batch", "Job", json!({ "spec": spec })), NONE);
}

#[test]
fn statuses() {
    let autoscaler = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "D", "name": "d"}, "maxReplicas": 1});
    let status = |name: &str, kind: &str, spec: Value, status: Value| {
        let (stored, none) = create(name, object(kind, json!({ "spec": spec })));
        assert_eq!(none, NONE, "{name}");
        let old = Document::from_value(stored.clone()).expect("an object");
        write_part(name, "status", Some(&old), with(stored, json!({ "status": status }))).1
    };
    let metric = json!({"type": "Pods", "pods": {"metric": {"name": "a/b"}, "current": {}}});
    let name = "horizontalpodautoscalers.autoscaling";
    let found =
        status(name, "HorizontalPodAutoscaler", autoscaler, json!({"currentMetrics": [metric]}));
    assert_eq!(found, NONE);
    let condition =
        json!({"type": "a", "status": "x", "lastTransitionTime": "2024-01-02T03:04:05Z"});
    let name = "poddisruptionbudgets.policy";
    let found = status(
        name,
        "PodDisruptionBudget",
        json!({"selector": {}}),
        json!({"conditions": [condition]}),
    );
    let at = "status.conditions[0]";
    assert_eq!(found, [format!("NotSupported {at}.status"), format!("Required {at}.reason")]);
    let claim =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}});
    let amounts = json!({"capacity": {"storage": "-1"}, "allocatedResources": {"storage": "-1", "A b": "-1"}});
    let found = status("persistentvolumeclaims", "PersistentVolumeClaim", claim, amounts);
    let allocated = "Invalid status.allocatedResources";
    assert_eq!(
        found,
        [
            "Invalid status.capacity[storage]".to_owned(),
            allocated.to_owned(),
            format!("{allocated}[storage]")
        ]
    );
    let balanced = json!({"type": "LoadBalancer", "ports": [{"port": 1}]});
    let ingress = json!({"loadBalancer": {"ingress": [{"hostname": "*.example.com"}]}});
    let found = status("services", "Service", balanced, ingress);
    assert_eq!(found, ["Invalid status.loadBalancer.ingress[0].hostname"]);
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let found = status("pods", "Pod", spec, json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "x"}]}));
    let ips = "status.podIPs";
    assert_eq!(
        found,
        [format!("Invalid {ips}[1]"), format!("InternalError {ips}"), format!("Invalid {ips}")]
    );
}

#[test]
fn claims_of_devices() {
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c"}});
    let claim = |devices: Value| {
        let devices = with(json!({"requests": [request.clone()]}), devices);
        errors(
            "resourceclaims.resource.k8s.io",
            "ResourceClaim",
            json!({"spec": {"devices": devices}}),
        )
    };
    let at = |place: &str| format!("spec.devices.{place}");
    let many = |one: Value| vec![one; 33];
    assert_eq!(
        claim(json!({"requests": many(json!({}))})),
        [format!("TooMany {}", at("requests"))]
    );
    assert_eq!(
        claim(json!({"config": many(json!({"requests": ["x"]}))})),
        [format!("TooMany {}", at("config"))]
    );
    let alternative =
        json!({"name": "s", "deviceClassName": "c", "allocationMode": "All", "count": 1});
    let found = claim(json!({"requests": [{"name": "f", "firstAvailable": [alternative]}]}));
    assert_eq!(found, [format!("Invalid {}", at("requests[0].firstAvailable[0].count"))]);
    let name = "resourceclaims.resource.k8s.io";
    let spec = json!({"spec": {"devices": {"requests": [request.clone()]}}});
    let (stored, none) = create(name, object("ResourceClaim", spec));
    assert_eq!(none, NONE);
    let old = Document::from_value(stored.clone()).expect("an object");
    let result = json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": "v", "bindingConditions": ["a"]});
    let allocation = json!({"devices": {"results": [result], "config": [{"source": "FromClaim"}]}});
    let found = write_part(
        name,
        "status",
        Some(&old),
        with(stored, json!({"status": {"allocation": allocation}})),
    )
    .1;
    let at = "status.allocation.devices";
    assert_eq!(
        found,
        [
            format!("Required {at}.config[0].opaque"),
            format!("Invalid {at}.results[0].bindingFailureConditions")
        ]
    );
}

#[test]
fn other_kinds() {
    let limits = json!({"spec": {"limits": [{}, {}]}});
    let found = errors("limitranges", "LimitRange", limits);
    assert!(found.contains(&"Duplicate spec.limits[1].type".to_owned()), "{found:?}");
    let spec = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "D", "name": "d"}});
    let found = errors(
        "horizontalpodautoscalers.autoscaling",
        "HorizontalPodAutoscaler",
        json!({ "spec": spec }),
    );
    assert_eq!(found, ["Required spec.maxReplicas", "Invalid spec.maxReplicas"]);
    // The message names another limit.
    let long = json!({"message": "x".repeat(1025)});
    let spec = json!({"attacher": "a.example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}});
    let name = "volumeattachments.storage.k8s.io";
    let (stored, none) = create(name, object("VolumeAttachment", json!({ "spec": spec })));
    assert_eq!(none, NONE);
    let old = Document::from_value(stored.clone()).expect("an object");
    let status = with(stored, json!({"status": {"attached": false, "attachError": long}}));
    assert_eq!(
        write_part(name, "status", Some(&old), status).1,
        ["TooLong status.attachError.message"]
    );
    let pod = json!({"spec": {"containers": [{"name": "c", "image": "i", "securityContext": {"seccompProfile": {"type": "Unconfined", "localhostProfile": "a"}}}]}});
    let place = "spec.containers[0].securityContext.seccompProfile.localhostProfile";
    let shown = messages("pods", "Pod", pod);
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert!(shown[0].starts_with(&format!("{place}: Invalid value: {{")), "{shown:?}");
}

/// The warnings about a write through a subresource, or of the whole object.
fn warnings(name: &str, subresource: &str, old: Option<&Value>, object: Value) -> Vec<String> {
    let definition = definition(name);
    let document = |value: &Value| Document::from_value(value.clone()).expect("an object");
    let at = definition.storage_version;
    let defaulted = |value: &Value| {
        let mut object = document(value);
        definition.set_defaults(at, &mut object);
        object
    };
    let (old, object) = (old.map(defaulted), defaulted(&object));
    let extra = std::collections::BTreeMap::new();
    let change = ferrokube_resource::Change {
        old: old.as_ref(),
        subresource,
        version: &definition.versions[at].name,
        user: "bob",
        user_uid: "",
        groups: &[],
        user_extra: &extra,
        now: super::now(),
    };
    definition.hooks.warnings(&change, &object)
}

#[test]
fn addresses_in_a_status_are_commented() {
    let ip = "010.0.0.1";
    let why = format!("non-standard IP address {ip:?} is invalid: use \"10.0.0.1\"");
    let points = json!({"loadBalancer": {"ingress": [{"ip": ip}]}});
    for (name, kind, status, place) in [
        ("services", "Service", points.clone(), "loadBalancer.ingress[0]"),
        ("ingresses.networking.k8s.io", "Ingress", points, "loadBalancer.ingress[0]"),
        ("pods", "Pod", json!({"podIPs": [{"ip": ip}]}), "podIPs[0].ip"),
        ("pods", "Pod", json!({"hostIPs": [{"ip": ip}]}), "hostIPs[0].ip"),
    ] {
        let object = object(kind, json!({"spec": {}, "status": status}));
        let expected = [format!("status.{place}: {why}")];
        assert_eq!(warnings(name, "status", Some(&object), object.clone()), expected, "{name}");
        assert_eq!(warnings(name, "", Some(&object), object.clone()), NONE, "{name}");
    }
}

#[test]
fn updates_of_pods_are_not_commented() {
    let port = json!({"containerPort": 1, "name": "p"});
    let own = json!({"name": "c", "image": "i", "ports": [port.clone()]});
    let first = json!({"name": "d", "image": "i", "ports": [port]});
    let spec = json!({"containers": [own], "initContainers": [first]});
    let pod = object("Pod", json!({ "spec": spec }));
    let found = warnings("pods", "", None, pod.clone());
    // Those of the start come first.
    let (port, other) = ("spec.containers[0].ports[0]", "spec.initContainers[0].ports[0]");
    assert!(
        found[0].starts_with(&format!("{port}: duplicate port definition with {other}")),
        "{found:?}"
    );
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(warnings("pods", "", Some(&json!({"kind": "Pod", "spec": {}})), pod), NONE);
    let peers = json!([{"ipBlock": {"cidr": "10.0.0.1/8"}}]);
    let spec = json!({"podSelector": {}, "ingress": [{"from": peers}]});
    let policy = object("NetworkPolicy", json!({ "spec": spec }));
    let name = "networkpolicies.networking.k8s.io";
    assert_eq!(warnings(name, "", Some(&policy), policy.clone()).len(), 1);
}

#[test]
fn an_unchanged_stateful_set_is_commented_without_its_template() {
    let labels = json!({"a": "b"});
    let ports = json!([{"containerPort": 1, "name": "p"}, {"containerPort": 1, "name": "q"}]);
    let containers = json!([{"name": "c", "image": "i", "ports": ports}]);
    let set = object(
        "StatefulSet",
        json!({"spec": {
            "serviceName": "s",
            "revisionHistoryLimit": -1,
            "selector": {"matchLabels": labels.clone()},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        }}),
    );
    assert_eq!(warnings("statefulsets.apps", "", None, set.clone()).len(), 2);
    assert_eq!(
        warnings("statefulsets.apps", "", Some(&set), set.clone()),
        [
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
        ]
    );
}

#[test]
fn lists_with_a_bound_and_malformed_parts() {
    let families = |families: Value| {
        let spec = json!({"ports": [{"port": 1}], "ipFamilies": families});
        create("services", object("Service", json!({ "spec": spec }))).1
    };
    let (odd, again) = ("NotSupported spec.ipFamilies", "Duplicate spec.ipFamilies[1]");
    let expected = [format!("{odd}[0]"), format!("{odd}[1]"), again.to_owned()];
    assert_eq!(families(json!(["", ""])), expected);
    let ranges = |ranges: Value| {
        let object = object("ServiceCIDR", json!({"spec": {"cidrs": ranges}}));
        create("servicecidrs.networking.k8s.io", object).1
    };
    assert_eq!(ranges(json!(["a", "b", "c"])), ["Invalid spec.cidrs"]);
    assert_eq!(ranges(json!(["a", "b"])), ["Invalid spec.cidrs[0]", "Invalid spec.cidrs[1]"]);
    let volume = json!({"csi": {"driver": "d", "volumeHandle": "h"}, "nodeAffinity": {}, "accessModes": ["ReadWriteOnce"]});
    let source = json!({"inlineVolumeSpec": volume});
    let spec = json!({"attacher": "a", "nodeName": "n", "source": source});
    let attachment = object("VolumeAttachment", json!({ "spec": spec }));
    let found = create("volumeattachments.storage.k8s.io", attachment).1;
    assert_eq!(found, ["Forbidden spec.source.inlineVolumeSpec.nodeAffinity"]);
    let spec = json!({"capacity": {"storage": "1"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}, "nodeAffinity": {}});
    let found = create("persistentvolumes", object("PersistentVolume", json!({ "spec": spec }))).1;
    assert_eq!(found, ["Required spec.nodeAffinity.required"]);
    let template =
        json!({"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}});
    let spec = json!({"selector": {"matchLabels": {"app": "some text"}}, "template": template});
    let found = create("jobs.batch", object("Job", json!({ "spec": spec }))).1;
    assert_eq!(found.iter().filter(|why| *why == "Invalid spec.selector").count(), 0, "{found:?}");
}
