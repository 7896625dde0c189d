//! What is given, but empty, negative, or next to others.

use super::costs::change;
use super::{create, definition, update, write_part};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_resource::FinalizerDomain;

fn object(kind: &str, mut fields: Value) -> Value {
    fields["kind"] = kind.into();
    fields["metadata"] = json!({"name": "a", "namespace": "n"});
    fields
}

fn errors(name: &str, kind: &str, fields: Value) -> Vec<String> {
    create(name, object(kind, fields)).1
}

#[test]
fn a_negative_grace_period_of_a_pod_is_a_second() {
    let pod = |grace: i64, sleep: i64| {
        let hook = json!({"preStop": {"sleep": {"seconds": sleep}}});
        let container = json!({"name": "c", "image": "i", "lifecycle": hook});
        let spec = json!({"terminationGracePeriodSeconds": grace, "containers": [container]});
        object("Pod", json!({ "spec": spec }))
    };
    let sleep = ["Invalid spec.containers[0].lifecycle.preStop.sleep"];
    assert_eq!(create("pods", pod(-5, 3)).1, sleep);
    let (stored, none) = create("pods", pod(-5, 1));
    assert_eq!(none, [""; 0]);
    assert_eq!(stored["spec"]["terminationGracePeriodSeconds"], 1);
    assert_eq!(update("pods", &stored, pod(-7, 1)).1, [""; 0]);
}

#[test]
fn some_finalizers_need_no_domain() {
    for name in ["poddisruptionbudgets.policy", "runtimeclasses.node.k8s.io"] {
        assert_eq!(definition(name).policy.finalizer_domain, FinalizerDomain::Optional, "{name}");
    }
    assert_eq!(definition("pods").policy.finalizer_domain, FinalizerDomain::Required);
}

#[test]
fn no_replicas_of_an_autoscaler_are_negative() {
    let name = "horizontalpodautoscalers.autoscaling";
    let spec = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "maxReplicas": 3});
    let (mut stored, errors) =
        create(name, object("HorizontalPodAutoscaler", json!({ "spec": spec })));
    assert_eq!(errors, [""; 0]);
    let old = Document::from_value(stored.clone()).expect("an object");
    stored["status"] = json!({"desiredReplicas": -1, "currentReplicas": -1});
    assert_eq!(
        write_part(name, "status", Some(&old), stored).1,
        ["Invalid status.currentReplicas", "Invalid status.desiredReplicas"]
    );
}

#[test]
fn containers_of_metrics_are_named_like_containers() {
    let errors = |container: &str| {
        let target = json!({"type": "Utilization", "averageUtilization": 50});
        let source = json!({"name": "cpu", "container": container, "target": target});
        let metric = json!({"type": "ContainerResource", "containerResource": source});
        let mut spec = json!({"maxReplicas": 3, "metrics": [metric]});
        spec["scaleTargetRef"] =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
        let fields = json!({ "spec": spec });
        errors("horizontalpodautoscalers.autoscaling", "HorizontalPodAutoscaler", fields)
    };
    const CONTAINER: &str = "spec.metrics[0].containerResource.container";
    assert_eq!(errors("c"), [""; 0]);
    assert_eq!(errors(""), [format!("Required {CONTAINER}")]);
    assert_eq!(errors("example.com/a"), [format!("Invalid {CONTAINER}")]);
}

#[test]
fn preferred_nodes_with_impossible_labels_are_warned_of() {
    let warnings = |value: &str| {
        let matched = json!([{"key": "k", "operator": "In", "values": ["v", value]}]);
        let term = json!({"weight": 1, "preference": {"matchExpressions": matched}});
        let affinity = json!({"preferredDuringSchedulingIgnoredDuringExecution": [term]});
        let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
        spec["affinity"] = json!({ "nodeAffinity": affinity });
        let (stored, errors) = create("pods", object("Pod", json!({ "spec": spec })));
        assert_eq!(errors, [""; 0]);
        let stored = Document::from_value(stored).expect("an object");
        definition("pods").hooks.warnings(&change(None, ""), &stored)
    };
    assert_eq!(warnings("w"), [""; 0]);
    let given = warnings("-x");
    assert_eq!(given.len(), 1, "{given:?}");
    assert!(
        given[0].starts_with("spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values[1]: -x is invalid, a valid label must be"),
        "{given:?}"
    );
}

#[test]
fn an_empty_topology_is_not_none() {
    let name = "csistoragecapacities.storage.k8s.io";
    let capacity = |fields: Value| object("CSIStorageCapacity", fields);
    let none = || capacity(json!({"storageClassName": "s"}));
    let empty = || capacity(json!({"storageClassName": "s", "nodeTopology": {}}));
    let (without, with) = (create(name, none()).0, create(name, empty()).0);
    assert_eq!(update(name, &without, empty()).1, ["Invalid nodeTopology"]);
    assert_eq!(update(name, &with, none()).1, ["Invalid nodeTopology"]);
    assert_eq!(update(name, &with, empty()).1, [""; 0]);
    assert_eq!(update(name, &without, none()).1, [""; 0]);
}

#[test]
fn empty_fields_of_a_job_are_not_none() {
    let job = |more: Value| {
        let mut container = json!({"name": "c", "image": "i"});
        if let Some(fields) = more.as_object() {
            fields.iter().for_each(|(field, value)| container[field.as_str()] = value.clone());
        }
        let spec = json!({"restartPolicy": "Never", "containers": [container]});
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": spec});
        let spec = json!({"manualSelector": true, "selector": {"matchLabels": {"a": "b"}}, "template": template});
        object("Job", json!({ "spec": spec }))
    };
    let (stored, none) = create("jobs.batch", job(json!({})));
    assert_eq!(none, [""; 0]);
    assert_eq!(update("jobs.batch", &stored, job(json!({}))).1, [""; 0]);
    assert_eq!(update("jobs.batch", &stored, job(json!({"resources": {}}))).1, [""; 0]);
    let changed = update("jobs.batch", &stored, job(json!({"lifecycle": {}}))).1;
    assert_eq!(changed, ["Invalid spec.template"]);
}

#[test]
fn managed_by_of_a_job_is_a_domain_and_a_path() {
    let errors = |manager: &str| {
        let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": spec});
        let spec = json!({"managedBy": manager, "manualSelector": true, "selector": {"matchLabels": {"a": "b"}}, "template": template});
        errors("jobs.batch", "Job", json!({ "spec": spec }))
    };
    let invalid = "Invalid spec.managedBy";
    assert_eq!(errors(""), ["Required spec.managedBy"]);
    assert_eq!(errors("/a"), [invalid]);
    assert_eq!(errors("A_/b"), [invalid]);
    assert_eq!(errors("A_/b^"), [invalid, invalid]);
    assert_eq!(errors("a.b/c:d"), [""; 0]);
    let class = |controller: &str| {
        let spec = json!({"spec": {"controller": controller}});
        super::create("ingressclasses.networking.k8s.io", object("IngressClass", spec)).1
    };
    assert_eq!(class(""), ["Required spec.controller"]);
    assert_eq!(class("a.b/c@d"), ["Invalid spec.controller"]);
}

#[test]
fn given_texts_are_judged_though_empty() {
    let endpoint = json!([{"addresses": ["10.0.0.1"], "nodeName": ""}]);
    let slice = json!({"addressType": "IPv4", "endpoints": endpoint});
    let found = errors("endpointslices.discovery.k8s.io", "EndpointSlice", slice);
    assert_eq!(found, ["Invalid endpoints[0].nodeName"]);
    let spec = json!({"ports": [{"port": 80}], "ipFamilies": ["IPv4", ""]});
    let found = errors("services", "Service", json!({ "spec": spec }));
    assert_eq!(found, ["NotSupported spec.ipFamilies[1]"]);
    let class =
        |policy: &str| object("PriorityClass", json!({"value": 1, "preemptionPolicy": policy}));
    let name = "priorityclasses.scheduling.k8s.io";
    assert_eq!(create(name, class("")).1, ["Required preemptionPolicy"]);
    let stored = create(name, class("Never")).0;
    assert_eq!(update(name, &stored, class("")).1, ["Invalid preemptionPolicy"]);
}

#[test]
fn three_types_of_network_policies_are_too_many_to_look_at() {
    let errors = |types: Value| {
        let spec = json!({"podSelector": {}, "policyTypes": types});
        errors("networkpolicies.networking.k8s.io", "NetworkPolicy", json!({ "spec": spec }))
    };
    assert_eq!(errors(json!(["Ingress", "x"])), ["NotSupported spec.policyTypes[1]"]);
    assert_eq!(errors(json!(["x", "y", "z"])), ["Invalid spec.policyTypes"]);
}

#[test]
fn a_flex_volume_is_judged_next_to_another_source() {
    let flex = |driver: &str, source: &str| {
        let mut spec = json!({"capacity": {"storage": "1"}, "accessModes": ["ReadWriteOnce"], "flexVolume": {"driver": driver}});
        spec[source] = json!({"pdName": "", "secretName": "", "shareName": ""});
        errors("persistentvolumes", "PersistentVolume", json!({ "spec": spec }))
    };
    let (driver, disk) = ("Required spec.flexVolume.driver", "Required spec.persistentDisk.pdName");
    assert_eq!(flex("d", "gcePersistentDisk"), [disk]);
    assert_eq!(flex("", "gcePersistentDisk"), [driver, disk]);
    // Those after it are one too many.
    assert_eq!(flex("d", "azureFile"), ["Forbidden spec.azureFile"]);
}

#[test]
fn slices_of_devices_are_not_selected_by_namespace() {
    assert!(!definition("resourceslices.resource.k8s.io").policy.selects_namespace);
}

#[test]
fn keys_of_a_new_pods_labels_become_expressions() {
    let pod = |selector: Value| {
        let term = json!({"topologyKey": "k", "labelSelector": selector, "matchLabelKeys": ["a", "z"], "mismatchLabelKeys": ["c"]});
        let preferred = json!([{"weight": 1, "podAffinityTerm": term}]);
        let spread = json!([{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector, "matchLabelKeys": ["a", "z"]}]);
        let mut pod = object(
            "Pod",
            json!({"spec": {
                "containers": [{"name": "c", "image": "i"}],
                "affinity": {
                    "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
                    "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
                },
                "topologySpreadConstraints": spread,
            }}),
        );
        pod["metadata"]["labels"] = json!({"a": "b", "c": "d"});
        pod
    };
    let (stored, none) = create("pods", pod(json!({"matchLabels": {"x": "y"}})));
    assert_eq!(none, [""; 0]);
    let same = json!({"key": "a", "operator": "In", "values": ["b"]});
    let other = json!({"key": "c", "operator": "NotIn", "values": ["d"]});
    let (spec, both) = (&stored["spec"], json!([same, other]));
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let expressions = |term: &Value| term["labelSelector"]["matchExpressions"].clone();
    assert_eq!(expressions(&spec["affinity"]["podAffinity"][required][0]), both);
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let weighted = &spec["affinity"]["podAntiAffinity"][preferred][0];
    assert_eq!(expressions(&weighted["podAffinityTerm"]), both);
    assert_eq!(expressions(&spec["topologySpreadConstraints"][0]), json!([same]));
    // A selector that has the key, too, contradicts or repeats it.
    let found = create("pods", pod(json!({"matchLabels": {"a": "b"}}))).1;
    assert_eq!(found.len(), 3, "{found:?}");
    // Pods of a template get them when they are made.
    let mut template = json!({"template": pod(json!({}))});
    template["template"].as_object_mut().expect("an object").remove("kind");
    let stored = create("podtemplates", object("PodTemplate", template)).0;
    let term = &stored["template"]["spec"]["topologySpreadConstraints"][0];
    assert_eq!(expressions(term), Value::Null);
}

#[test]
fn profiles_and_kinds_are_judged_though_empty() {
    let errors = |context: Value| {
        let spec = json!({"securityContext": context, "containers": [{"name": "c", "image": "i"}]});
        errors("pods", "Pod", json!({ "spec": spec }))
    };
    let localhost = json!({"type": "Localhost", "localhostProfile": ""});
    let at = "spec.securityContext.appArmorProfile.localhostProfile";
    assert_eq!(errors(json!({"appArmorProfile": localhost})), [format!("Required {at}")]);
    assert_eq!(errors(json!({"seccompProfile": localhost})), [""; 0]);
    let disk = json!({"diskName": "d", "diskURI": "a", "kind": ""});
    let volumes = json!([{"name": "v", "azureDisk": disk}]);
    let spec = json!({"volumes": volumes, "containers": [{"name": "c", "image": "i"}]});
    let found = super::create("pods", object("Pod", json!({ "spec": spec }))).1;
    let at = "NotSupported spec.volumes[0].azureDisk";
    assert_eq!(found, [format!("{at}.kind"), format!("{at}.diskURI")]);
}

#[test]
fn an_image_whose_name_is_too_long_has_no_tag() {
    let policy = |image: String| {
        let spec = json!({"containers": [{"name": "c", "image": image}]});
        create("pods", object("Pod", json!({ "spec": spec }))).0["spec"]["containers"][0]
            ["imagePullPolicy"]
            .clone()
    };
    assert_eq!(policy("x".repeat(247)), "Always");
    assert_eq!(policy("x".repeat(248)), "IfNotPresent");
    assert_eq!(policy(format!("a.b/{}", "x".repeat(255))), "Always");
    assert_eq!(policy(format!("a.b/{}", "x".repeat(256))), "IfNotPresent");
}

#[test]
fn policies_of_services_are_judged_though_empty() {
    let errors = |field: &str| {
        let mut spec = json!({"ports": [{"port": 80}]});
        spec[field] = "".into();
        errors("services", "Service", json!({ "spec": spec }))
    };
    for field in ["ipFamilyPolicy", "internalTrafficPolicy"] {
        assert_eq!(errors(field), [format!("NotSupported spec.{field}")]);
    }
}

#[test]
fn a_service_frees_a_health_check_that_it_no_longer_needs() {
    let service = |policy: &str| {
        let spec = json!({"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30_001}], "externalTrafficPolicy": policy, "healthCheckNodePort": 30_000});
        object("Service", json!({ "spec": spec }))
    };
    let (stored, none) = create("services", service("Local"));
    assert_eq!(none, [""; 0]);
    let (freed, none) = update("services", &stored, service("Cluster"));
    assert_eq!(none, [""; 0]);
    assert_eq!(freed["spec"].get("healthCheckNodePort"), None);
    let made = create("services", service("Cluster")).1;
    assert_eq!(made, ["Invalid spec.healthCheckNodePort"]);
}

#[test]
fn exit_codes_are_unique_wherever_they_are() {
    let errors = |codes: Value| {
        let rule = json!({"action": "Count", "onExitCodes": {"operator": "In", "values": codes}});
        let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": spec});
        let spec = json!({"manualSelector": true, "selector": {"matchLabels": {"a": "b"}}, "template": template, "podFailurePolicy": {"rules": [rule]}});
        errors("jobs.batch", "Job", json!({ "spec": spec }))
    };
    let at = "spec.podFailurePolicy.rules[0].onExitCodes.values";
    assert_eq!(errors(json!([1, 2])), [""; 0]);
    assert_eq!(errors(json!([1, 2, 1])), [format!("Duplicate {at}[2]"), format!("Invalid {at}")]);
}

#[test]
fn name_servers_are_addresses() {
    let dns = json!({"nameservers": [""]});
    let spec = json!({"dnsConfig": dns, "containers": [{"name": "c", "image": "i"}]});
    let found = errors("pods", "Pod", json!({ "spec": spec }));
    assert_eq!(found, ["Invalid spec.dnsConfig.nameservers[0]"]);
}

#[test]
fn tolerations_of_devices_have_a_value_only_to_compare() {
    let errors = |fields: Value| {
        let mut toleration = json!({"key": "k", "operator": "Exists"});
        for (field, value) in fields.as_object().expect("fields") {
            toleration[field.as_str()] = value.clone();
        }
        let exactly = json!({"deviceClassName": "c", "tolerations": [toleration]});
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": exactly}]}});
        errors("resourceclaims.resource.k8s.io", "ResourceClaim", json!({ "spec": spec }))
    };
    let at = "spec.devices.requests[0].exactly.tolerations[0]";
    assert_eq!(errors(json!({"effect": "None"})), [""; 0]);
    assert_eq!(errors(json!({"effect": "x"})), [format!("NotSupported {at}.effect")]);
    assert_eq!(errors(json!({"value": "v"})), [format!("Invalid {at}.value")]);
    assert_eq!(errors(json!({"operator": "Equal", "value": "v"})), [""; 0]);
    assert_eq!(
        errors(json!({"operator": "Equal", "value": "A_"})),
        [format!("Invalid {at}.value")]
    );
}

#[test]
fn hosts_of_a_certificate_are_not_empty() {
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let spec = json!({"defaultBackend": backend, "tls": [{"hosts": ["", "*.a.b", "a.b"]}]});
    let found = errors("ingresses.networking.k8s.io", "Ingress", json!({ "spec": spec }));
    assert_eq!(found, ["Invalid spec.tls[0].hosts[0]"]);
}

#[test]
fn a_field_of_a_feature_that_is_off_is_dropped() {
    let driver =
        json!({"spec": {"preventPodSchedulingIfMissing": true, "requiresRepublish": true}});
    let (stored, none) = create("csidrivers.storage.k8s.io", object("CSIDriver", driver));
    assert_eq!(none, [""; 0]);
    assert_eq!(stored["spec"].get("preventPodSchedulingIfMissing"), None);
    assert_eq!(stored["spec"]["requiresRepublish"], true);
}

#[test]
fn fields_of_features_that_are_off_are_dropped_from_lists_maps_and_the_status() {
    let attributes = json!({"a": {"int": 1, "ints": [1]}, "b": {"versions": ["1.0.0"]}});
    let mappings = json!({"cpu": {"allocationMultiplier": "1"}});
    let device =
        json!({"name": "d", "attributes": attributes, "nodeAllocatableResourceMappings": mappings});
    let pool = json!({"name": "p", "resourceSliceCount": 1});
    let spec =
        json!({"driver": "d.example.com", "pool": pool, "allNodes": true, "devices": [device]});
    let (stored, found) =
        create("resourceslices.resource.k8s.io", object("ResourceSlice", json!({ "spec": spec })));
    assert_eq!(found, ["Invalid spec.devices[0].attributes[b]"]);
    let device = &stored["spec"]["devices"][0];
    assert_eq!(device["attributes"]["a"], json!({"int": 1}));
    assert_eq!(device.get("nodeAllocatableResourceMappings"), None);

    let pod = object("Pod", json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}));
    let (mut written, _) = create("pods", pod);
    let before = Document::from_value(written.clone()).expect("an object");
    let mount =
        json!({"name": "v", "mountPath": "/m", "volumeStatus": {"image": {"imageRef": "i"}}});
    written["status"]["containerStatuses"] = json!([{"name": "c", "volumeMounts": [mount]}]);
    written["status"]["nodeAllocatableResourceClaimStatuses"] =
        json!([{"resourceClaimName": "r", "containers": ["c"]}]);
    let (stored, found) = write_part("pods", "status", Some(&before), written);
    assert_eq!(found, [""; 0]);
    let status = &stored["status"];
    assert_eq!(status.get("nodeAllocatableResourceClaimStatuses"), None);
    assert_eq!(
        status["containerStatuses"][0]["volumeMounts"][0],
        json!({"name": "v", "mountPath": "/m"})
    );
}
