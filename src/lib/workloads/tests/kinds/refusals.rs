//! What kube-apiserver was seen to refuse, and to accept.

use super::{create, update, write_part};
use ferrokube_apimachinery::document::{Document, Value, json};

fn spec_errors(name: &str, kind: &str, spec: Value) -> Vec<String> {
    let metadata = json!({"name": "a", "namespace": "n"});
    create(name, json!({"kind": kind, "metadata": metadata, "spec": spec})).1
}

fn pod(more: Value) -> Vec<String> {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    for (field, value) in more.as_object().expect("fields") {
        spec[field.as_str()] = value.clone();
    }
    spec_errors("pods", "Pod", spec)
}

#[test]
fn volumes_have_a_capacity_of_storage() {
    let errors = |capacity: Value| {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}});
        spec["capacity"] = capacity;
        spec_errors("persistentvolumes", "PersistentVolume", spec)
    };
    assert_eq!(errors(json!({"storage": "1"})), [""; 0]);
    assert_eq!(errors(json!({})), ["Required spec.capacity", "NotSupported spec.capacity"]);
    assert_eq!(errors(json!({"cpu": "1"})), ["NotSupported spec.capacity"]);
    assert_eq!(errors(json!({"storage": "1", "cpu": "1"})), ["NotSupported spec.capacity"]);
    assert_eq!(errors(json!({"storage": "0"})), ["Invalid spec.capacity[storage]"]);
    assert_eq!(errors(json!({"storage": "-1"})), ["Invalid spec.capacity[storage]"; 2]);
}

#[test]
fn metrics_are_judged_by_the_first_of_their_sources() {
    let errors = |more: Value| {
        let mut spec = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "D", "name": "d"}, "maxReplicas": 1});
        for (field, value) in more.as_object().expect("fields") {
            spec[field.as_str()] = value.clone();
        }
        spec_errors("horizontalpodautoscalers.autoscaling", "HorizontalPodAutoscaler", spec)
    };
    let at_most = "spec.maxReplicas";
    let none = errors(json!({"maxReplicas": 0}));
    assert_eq!(none, [format!("Required {at_most}"), format!("Invalid {at_most}")]);
    let metric = |metric: Value| errors(json!({"metrics": [metric]}));
    let (kind, at) = ("spec.metrics[0].type", "spec.metrics[0].containerResource");
    assert_eq!(
        metric(json!({"type": "x"})),
        [format!("NotSupported {kind}"), format!("NotSupported {kind}")]
    );
    let target = json!({"type": "Utilization", "averageUtilization": 5});
    let container = |name: &str| json!({"name": name, "container": "c", "target": target.clone()});
    assert_eq!(
        metric(json!({"type": "ContainerResource", "containerResource": container("cpu")})),
        [""; 0]
    );
    let unknown = metric(json!({"type": "ContainerResource", "containerResource": container("a")}));
    assert_eq!(unknown, [format!("Invalid {at}.name"), format!("Invalid {at}.name")]);
    let both = json!({"type": "ContainerResource", "resource": {"name": "cpu", "target": target}, "containerResource": {}});
    assert_eq!(metric(both), ["Forbidden spec.metrics[0].resource"]);
    let none =
        json!({"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"averageValue": "1"}}});
    let place = "spec.metrics[0].pods.target.type";
    assert_eq!(metric(none), [format!("Required {place}"), format!("Invalid {place}")]);
}

#[test]
fn empty_texts_are_given() {
    let windows = |options: Value| pod(json!({"securityContext": {"windowsOptions": options}}));
    let at = |field: &str| format!("Invalid spec.securityContext.windowsOptions.{field}");
    assert_eq!(windows(json!({"gmsaCredentialSpecName": ""})), [at("gmsaCredentialSpecName")]);
    assert_eq!(windows(json!({"gmsaCredentialSpec": ""})), [at("gmsaCredentialSpec")]);
    let long = "x".repeat((64 << 10) + 1);
    assert_eq!(windows(json!({"gmsaCredentialSpec": long})), [at("gmsaCredentialSpec")]);
    let claims = |claim: Value| pod(json!({"resourceClaims": [claim]}));
    let empty = json!({"name": "a", "resourceClaimName": "", "resourceClaimTemplateName": ""});
    let found = claims(empty);
    assert!(found.contains(&"Invalid spec.resourceClaims[0]".to_owned()), "{found:?}");
    assert_eq!(claims(json!({"name": "a"})), ["Invalid spec.resourceClaims[0]"]);
    let volume = json!({"name": "v", "glusterfs": {"endpoints": "e", "path": "p"}});
    assert_eq!(pod(json!({"volumes": [volume]})), [""; 0]);
    let service = json!({"ports": [{"port": 80}], "clusterIP": "None", "externalIPs": [""]});
    assert_eq!(spec_errors("services", "Service", service), ["Invalid spec.externalIPs[0]"]);
}

#[test]
fn domains_are_counted_only_when_they_keep_pods_away() {
    let errors = |when: &str| {
        pod(
            json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "minDomains": 1, "whenUnsatisfiable": when}]}),
        )
    };
    assert_eq!(errors("DoNotSchedule"), [""; 0]);
    let place = "spec.topologySpreadConstraints[0]";
    assert_eq!(errors("ScheduleAnyway"), [format!("Invalid {place}.minDomains")]);
    assert_eq!(
        errors("x"),
        [format!("NotSupported {place}.whenUnsatisfiable"), format!("Invalid {place}.minDomains")]
    );
}

#[test]
fn declared_features_of_nodes_are_sorted_paths() {
    let node = |features: Value| {
        let status = json!({"declaredFeatures": features});
        json!({"kind": "Node", "metadata": {"name": "n"}, "spec": {}, "status": status})
    };
    let errors = |features: Value| create("nodes", node(features)).1;
    let at = |reason: &str, index: usize| format!("{reason} status.declaredFeatures[{index}]");
    assert_eq!(errors(json!(["A", "A/b", "B1"])), [""; 0]);
    let found = errors(json!(["b", "A", "A", "C//d"]));
    assert_eq!(found, [at("Invalid", 0), at("Invalid", 1), at("Duplicate", 2), at("Invalid", 3)]);
    // An update of the whole object keeps the stored status, and checks it twice.
    let (stored, _) = create("nodes", node(json!(["b"])));
    assert_eq!(update("nodes", &stored, node(json!([]))).1, [at("Invalid", 0), at("Invalid", 0)]);
}

#[test]
fn statuses_of_pods_say_what_containers_asked_for() {
    let pod = json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (stored, _) = create("pods", pod);
    let stored = Document::from_value(stored).expect("an object");
    let errors = |list: &str| {
        let mut object = stored.clone();
        let status = json!([{"name": "c", "image": "i", "imageID": "", "allocatedResourcesStatus": [{"name": "x"}]}]);
        object.set(&["status", list], status);
        write_part("pods", "status", Some(&stored), object.into_value()).1
    };
    let place = "allocatedResourcesStatus";
    assert_eq!(
        errors("containerStatuses"),
        [format!("Invalid status.containerStatuses[0].{place}[0].name")]
    );
    assert_eq!(
        errors("ephemeralContainerStatuses"),
        [format!("Forbidden status.ephemeralContainerStatuses[0].{place}")]
    );
}

#[test]
fn a_difference_of_form_alone_is_a_generation_of_a_daemon_sets_template() {
    let set = |pod: Value| {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod});
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
        json!({"kind": "DaemonSet", "metadata": {"name": "s", "namespace": "n"}, "spec": spec})
    };
    let containers = json!([{"name": "c", "image": "i"}]);
    let (stored, errors) =
        create("daemonsets.apps", set(json!({"containers": containers.clone()})));
    assert_eq!(errors, [""; 0]);
    let generation = |object: &Value| {
        object["metadata"]["annotations"]["deprecated.daemonset.template.generation"].clone()
    };
    let same = set(json!({"containers": containers.clone()}));
    assert_eq!(generation(&update("daemonsets.apps", &stored, same).0), json!("1"));
    let given = set(json!({"containers": containers, "affinity": {}}));
    assert_eq!(generation(&update("daemonsets.apps", &stored, given.clone()).0), json!("2"));
    let old = Document::from_value(stored).expect("an object");
    let (kept, _) = write_part("daemonsets.apps", "status", Some(&old), given);
    assert_eq!(generation(&kept), json!("1"));
}

#[test]
fn names_that_are_missing_are_the_same() {
    let drivers = json!([{"name": "", "nodeID": "a"}, {"name": "", "nodeID": "b"}]);
    let found = spec_errors("csinodes.storage.k8s.io", "CSINode", json!({"drivers": drivers}));
    assert!(found.contains(&"Duplicate spec.drivers[1].name".to_owned()), "{found:?}");
    let devices = json!({"requests": [{}, {}]});
    let spec = json!({"devices": devices});
    let found = spec_errors("resourceclaims.resource.k8s.io", "ResourceClaim", spec);
    assert!(found.contains(&"Duplicate spec.devices.requests[1]".to_owned()), "{found:?}");
    let unnamed = json!({"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": ""}});
    let found = spec_errors("volumeattachments.storage.k8s.io", "VolumeAttachment", unnamed);
    let name = "spec.source.persistentVolumeName";
    assert_eq!(found, [format!("Required {name}"), format!("Invalid {name}")]);
}

#[test]
fn endpoints_are_domains_of_two_labels() {
    let errors = |address: &str| {
        let endpoints = json!([{"addresses": [address]}]);
        let slice = json!({"kind": "EndpointSlice", "metadata": {"name": "a", "namespace": "n"}, "addressType": "FQDN", "endpoints": endpoints});
        create("endpointslices.discovery.k8s.io", slice).1
    };
    assert_eq!(errors("a.example.com."), [""; 0]);
    assert_eq!(errors(""), ["Required endpoints[0].addresses[0]"]);
    for wrong in ["a", "A_", &format!("{}.a", "x".repeat(64))] {
        assert_eq!(errors(wrong), ["Invalid endpoints[0].addresses[0]"], "{wrong}");
    }
}

#[test]
fn jobs_that_are_not_indexed_have_no_limits_for_indexes() {
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    let job = json!({"maxFailedIndexes": 1, "backoffLimitPerIndex": 1, "template": {"spec": pod}});
    let spec = json!({"schedule": "@daily", "jobTemplate": {"spec": job}});
    let at = |field: &str| format!("Invalid spec.jobTemplate.spec.{field}");
    let found = spec_errors("cronjobs.batch", "CronJob", spec);
    assert_eq!(found, [at("backoffLimitPerIndex"), at("maxFailedIndexes")]);
}

#[test]
fn rolling_updates_are_judged_only_when_updates_roll() {
    let errors = |name: &str, kind: &str, field: &str, strategy: Value| {
        let containers = json!([{"name": "c", "image": "i"}]);
        let labels = json!({"a": "b"});
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
        let mut spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
        spec[field] = strategy;
        spec_errors(name, kind, spec)
    };
    let zero = json!({"maxUnavailable": 0, "maxSurge": 0});
    let deployment = |kind: &str| {
        let strategy = json!({"type": kind, "rollingUpdate": zero.clone()});
        errors("deployments.apps", "Deployment", "strategy", strategy)
    };
    let most = "rollingUpdate.maxUnavailable";
    assert_eq!(deployment("RollingUpdate"), [format!("Invalid spec.strategy.{most}")]);
    assert_eq!(deployment("x"), ["NotSupported spec.strategy"]);
    assert_eq!(deployment("Recreate"), ["Forbidden spec.strategy.rollingUpdate"]);
    let set = |kind: &str| {
        let strategy = json!({"type": kind, "rollingUpdate": zero.clone()});
        errors("daemonsets.apps", "DaemonSet", "updateStrategy", strategy)
    };
    assert_eq!(set("RollingUpdate"), [format!("Required spec.updateStrategy.{most}")]);
    assert_eq!(set("OnDelete"), [""; 0]);
    assert_eq!(set("x"), ["NotSupported spec.updateStrategy"]);
}

#[test]
fn only_new_priority_classes_have_a_known_policy() {
    let class = |policy: &str| json!({"kind": "PriorityClass", "metadata": {"name": "a"}, "value": 1, "preemptionPolicy": policy});
    assert_eq!(
        create("priorityclasses.scheduling.k8s.io", class("x")).1,
        ["NotSupported preemptionPolicy"]
    );
    let (stored, none) = create("priorityclasses.scheduling.k8s.io", class("Never"));
    assert_eq!(none, [""; 0]);
    let found = update("priorityclasses.scheduling.k8s.io", &stored, class("x")).1;
    assert_eq!(found, ["Invalid preemptionPolicy"]);
}
