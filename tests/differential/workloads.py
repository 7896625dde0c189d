"""The kinds of `--profile kubernetes`: for each a small valid object, with some fields set, at their bounds, or wrong."""


def some(random, **choices):
    """Some of the fields, each with one of its values: mostly the first one."""
    return {name: values[0] if random.random() < 0.7 else random.choice(values) for name, values in choices.items() if random.random() < 0.4}


def container(random, name="c"):
    probe = {"httpGet": {"port": random.choice([80, "http", 0])}, **some(random, periodSeconds=[5, 0, -1], successThreshold=[1, 2])}
    return {"name": name, "image": random.choice(["i", "i", "i:1", "i@sha256:0", "", " i"]), **some(
        random,
        command=[["a"], []], env=[[{"name": "A", "value": "b"}], [{"name": "", "value": "b"}], [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}], [{"name": "A", "value": "x", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]],
        envFrom=[[{"configMapRef": {"name": "c"}}], [{"prefix": "a", "secretRef": {"name": "s"}}], [{}]],
        ports=[[{"containerPort": 80}], [{"containerPort": 80, "name": "http", "protocol": "UDP"}], [{"containerPort": 0}], [{"containerPort": 80, "hostPort": 81, "protocol": "x"}]],
        resources=[{"requests": {"cpu": "1"}}, {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}, {"limits": {"memory": "1Gi", "example.com/x": "1"}}, {"requests": {"memory": "-1"}}],
        livenessProbe=[probe], readinessProbe=[probe, {}], startupProbe=[{"exec": {"command": ["a"]}}, {"tcpSocket": {"port": 1}}, {"grpc": {"port": 1}}],
        imagePullPolicy=["Always", "IfNotPresent", "x"], terminationMessagePolicy=["File", "FallbackToLogsOnError", "x"], terminationMessagePath=["/dev/x", "x"], workingDir=["/a"],
        volumeMounts=[[{"name": "v", "mountPath": "/a"}], [{"name": "none", "mountPath": "/a"}], [{"name": "v", "mountPath": "/a", "subPath": "../b"}]],
        securityContext=[{"runAsUser": 1}, {"runAsUser": -1}, {"privileged": True, "allowPrivilegeEscalation": False}, {"capabilities": {"add": ["NET_ADMIN"]}}, {"procMount": "x"}, {"seccompProfile": {"type": "RuntimeDefault"}}],
        lifecycle=[{"preStop": {"exec": {"command": ["a"]}}}, {"postStart": {}}, {"preStop": {"sleep": {"seconds": 1}}}], stdin=[True],
    )}


def pod_spec(random, restart="Always"):
    containers = [container(random)] + ([container(random, random.choice(["d", "c", "D_"]))] if random.random() < 0.2 else [])
    return {"containers": containers if random.random() < 0.97 else [], **some(
        random,
        volumes=[[{"name": "v", "emptyDir": {}}], [{"name": "v", "configMap": {"name": "c", "defaultMode": 511}}, {"name": "v", "secret": {"secretName": "s"}}], [{"name": "v"}], [{"name": "v", "hostPath": {"path": "/a", "type": "x"}}], [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 1}}]}}], [{"name": "v", "persistentVolumeClaim": {"claimName": "p"}, "emptyDir": {}}], [{"name": "v", "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.x"}}]}}]],
        restartPolicy=[restart, "Never", "OnFailure", "x"], terminationGracePeriodSeconds=[30, 0, -1], activeDeadlineSeconds=[10, 0, -1], dnsPolicy=["ClusterFirst", "None", "Default", "x"],
        nodeSelector=[{"a": "b"}, {"-": "x"}], serviceAccountName=["default", "A_"], hostNetwork=[True], hostname=["a", "A_"], subdomain=["a", "."],
        tolerations=[[{"key": "a", "operator": "Exists"}], [{"operator": "Exists", "value": "x"}], [{"key": "a", "effect": "x"}], [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5}]],
        affinity=[{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}}, {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "", "labelSelector": {}}]}}, {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 101, "preference": {}}]}}],
        topologySpreadConstraints=[[{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}], [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "x"}]],
        initContainers=[[container(random, "i")], [{**container(random, "i"), "restartPolicy": random.choice(["Always", "Never", "x"])}]],
        securityContext=[{"fsGroup": 1}, {"runAsUser": -1}, {"sysctls": [{"name": "a", "value": "b"}]}, {"fsGroupChangePolicy": "x"}], imagePullSecrets=[[{"name": "a"}], [{"name": ""}]], priorityClassName=["p", "P_"], runtimeClassName=["r", "R_"],
        schedulerName=["s", ""], hostAliases=[[{"ip": "1.2.3.4", "hostnames": ["a"]}], [{"ip": "x"}]], dnsConfig=[{"nameservers": ["1.2.3.4"]}, {"nameservers": ["x"]}], os=[{"name": "linux"}, {"name": "windows"}, {"name": "x"}], readinessGates=[[{"conditionType": "a"}], [{"conditionType": "-"}]], preemptionPolicy=["Never", "x"], enableServiceLinks=[False], shareProcessNamespace=[True],
    )}


LABELS = {"app": "a"}


def template(random, restart="Always"):
    metadata = {"labels": LABELS if random.random() < 0.93 else {"app": "b"}, **some(random, annotations=[{"a": "b"}, {"-": "x"}])}
    return {"metadata": metadata, "spec": pod_spec(random, restart)}


def selector(random):
    return {"matchLabels": LABELS} if random.random() < 0.93 else random.choice([{}, {"matchExpressions": [{"key": "app", "operator": "Exists"}]}, {"matchExpressions": [{"key": "a", "operator": "x"}]}, None])


def pod(random, _):
    return {"metadata": {"labels": LABELS}, "spec": pod_spec(random)}


def replicated(**fields):
    def base(random, _):
        return {"spec": {"selector": selector(random), "template": template(random), **some(random, replicas=[1, 0, -1], minReadySeconds=[1, -1], revisionHistoryLimit=[1, -1], **fields)}}
    return base


deployment = replicated(strategy=[{"type": "Recreate"}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}, {"type": "Recreate", "rollingUpdate": {}}, {"type": "x"}], progressDeadlineSeconds=[600, 0], paused=[True])
stateful_set = replicated(serviceName=["s", "S_"], podManagementPolicy=["Parallel", "x"], updateStrategy=[{"type": "OnDelete"}, {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}, {"type": "x"}], volumeClaimTemplates=[[{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]], persistentVolumeClaimRetentionPolicy=[{"whenDeleted": "Delete"}, {"whenScaled": "x"}], ordinals=[{"start": 1}, {"start": -1}])
daemon_set = replicated(updateStrategy=[{"type": "OnDelete"}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, {"type": "x"}])


def controller(random, _):
    return {"spec": {"selector": LABELS, "template": template(random), **some(random, replicas=[1, 0, -1], minReadySeconds=[1, -1])}}


def job_spec(random):
    return {"template": template(random, random.choice(["Never", "OnFailure"])) if random.random() < 0.95 else template(random), **some(
        random, parallelism=[1, 0, -1], completions=[1, 2, -1], backoffLimit=[3, -1], activeDeadlineSeconds=[5, -1], ttlSecondsAfterFinished=[5, -1], completionMode=["Indexed", "NonIndexed", "x"], suspend=[True], backoffLimitPerIndex=[1], maxFailedIndexes=[1],
        podFailurePolicy=[{"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}, {"rules": [{"action": "x"}]}], podReplacementPolicy=["Failed", "x"], manualSelector=[True], selector=[{"matchLabels": LABELS}], managedBy=["example.com/x", "x"],
    )}


def job(random, _):
    return {"spec": job_spec(random)}


def cron_job(random, _):
    return {"spec": {"schedule": random.choice(["* * * * *", "@daily", "x", "", "TZ=UTC * * * * *"]), "jobTemplate": {"spec": job_spec(random)}, **some(random, concurrencyPolicy=["Forbid", "Replace", "x"], startingDeadlineSeconds=[5, -1], suspend=[True], successfulJobsHistoryLimit=[1, -1], failedJobsHistoryLimit=[1, -1], timeZone=["UTC", "x", ""])}}


def service(random, _):
    kind = random.choice(["ClusterIP", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "x"])
    ports = random.choice([[{"port": 80}], [{"port": 80, "name": "a"}, {"port": 81, "name": "b", "protocol": "UDP"}], [{"port": 80}, {"port": 81}], [{"port": 0}], [{"port": 80, "targetPort": "A_"}], [], [{"port": 80, "appProtocol": "x y"}]])
    # No addresses are handed out here.
    return {"spec": {"type": kind, "ports": ports, "clusterIP": "None" if kind != "ExternalName" else "", **({"externalName": random.choice(["a.b", "A_"])} if kind == "ExternalName" else {}), **some(random, selector=[LABELS, {"-": "x"}], sessionAffinity=["None", "ClientIP", "x"], externalIPs=[["1.2.3.4"], ["x"]], publishNotReadyAddresses=[True], externalTrafficPolicy=["Local", "x"], internalTrafficPolicy=["Local", "x"], loadBalancerSourceRanges=[["1.2.3.0/24"], ["x"]], ipFamilyPolicy=["SingleStack", "x"], trafficDistribution=["PreferClose", "x"])}}


def endpoints(random, _):
    return random.choice([{}, {"subsets": [{"addresses": [{"ip": random.choice(["1.2.3.4", "x", "127.0.0.1"]), **some(random, hostname=["a", "A_"], nodeName=["n"])}], "ports": [{"port": random.choice([80, 0]), **some(random, name=["a", "A_"], protocol=["TCP", "x"])}]}]}])


def endpoint_slice(random, _):
    return {"addressType": random.choice(["IPv4", "IPv4", "IPv6", "FQDN", "x"]), "endpoints": [{"addresses": random.choice([["1.2.3.4"], ["x"], [], ["::1"]]), **some(random, conditions=[{"ready": True}], hostname=["a", "A_"], zone=["z"], nodeName=["n"], deprecatedTopology=[{"a": "b"}])}], "ports": [some(random, name=["a", "A_"], protocol=["UDP", "x"], port=[80, 0], appProtocol=["a.b/c", "x y"])]}


def volume(random, _):
    source = random.choice([{"hostPath": {"path": "/a"}}, {"nfs": {"server": "s", "path": "/"}}, {"csi": {"driver": "d", "volumeHandle": "h"}}, {}, {"hostPath": {"path": "../a"}}, {"local": {"path": "/a"}}])
    return {"spec": {"capacity": random.choice([{"storage": "1Gi"}, {}, {"storage": "-1"}, {"cpu": "1"}]), "accessModes": random.choice([["ReadWriteOnce"], [], ["x"], ["ReadWriteOncePod", "ReadOnlyMany"]]), **source, **some(random, persistentVolumeReclaimPolicy=["Retain", "Recycle", "x"], storageClassName=["s", "S_"], volumeMode=["Block", "x"], mountOptions=[["ro"]], claimRef=[{"name": "c", "namespace": "n"}])}}


def claim(random, _):
    return {"spec": {"accessModes": random.choice([["ReadWriteOnce"], [], ["x"]]), "resources": random.choice([{"requests": {"storage": "1Gi"}}, {"requests": {"storage": "0"}}, {}, {"requests": {"storage": "2Gi"}, "limits": {"storage": "1Gi"}}]), **some(random, storageClassName=["s", "", "S_"], volumeMode=["Block", "x"], volumeName=["v"], selector=[{"matchLabels": LABELS}, {"matchExpressions": [{"key": "a", "operator": "x"}]}], dataSource=[{"kind": "PersistentVolumeClaim", "name": "p"}, {"kind": "x", "name": ""}])}}


def limit_range(random, _):
    limit = {"type": random.choice(["Container", "Pod", "PersistentVolumeClaim", "x"]), **some(random, max=[{"cpu": "2"}, {"cpu": "-1"}], min=[{"cpu": "1"}, {"cpu": "3"}], default=[{"cpu": "1"}], defaultRequest=[{"cpu": "1"}, {"cpu": "5"}], maxLimitRequestRatio=[{"cpu": "2"}, {"cpu": "0"}])}
    return {"spec": {"limits": [limit] * random.choice([1, 1, 2])}}


def node(random, _):
    return {"spec": some(random, podCIDR=["10.0.0.0/24", "x"], podCIDRs=[["10.0.0.0/24"]], providerID=["p"], unschedulable=[True], taints=[[{"key": "a", "effect": "NoSchedule"}], [{"key": "a", "effect": "x"}], [{"key": "", "effect": "NoSchedule"}]])}


def autoscaler(random, _):
    metric = random.choice([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": random.choice([50, 0])}}}, {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}}, {"type": "x"}, {"type": "Object"}])
    return {"spec": {"scaleTargetRef": {"kind": "Deployment", "name": random.choice(["d", "", "a/b"]), "apiVersion": "apps/v1"}, "maxReplicas": random.choice([3, 3, 0]), **some(random, minReplicas=[1, 0, 5], metrics=[[metric]], behavior=[{"scaleDown": {"stabilizationWindowSeconds": 5}}, {"scaleUp": {"policies": [{"type": "x", "value": 0, "periodSeconds": 0}]}}])}}


def old_autoscaler(random, _):
    return {"spec": {"scaleTargetRef": {"kind": "Deployment", "name": random.choice(["d", ""])}, "maxReplicas": random.choice([3, 0]), **some(random, minReplicas=[1, 0], targetCPUUtilizationPercentage=[50, 0])}}


def ingress(random, _):
    backend = random.choice([{"service": {"name": "s", "port": {"number": 80}}}, {"service": {"name": "S_", "port": {}}}, {"resource": {"kind": "x", "name": "y"}}, {}])
    rule = {"host": random.choice(["a.b", "*.b", "A_", ""]), "http": {"paths": [{"path": random.choice(["/a", "a", "", "/a//b"]), "pathType": random.choice(["Prefix", "Exact", "ImplementationSpecific", "x"]), "backend": backend}]}}
    return {"spec": some(random, rules=[[rule], [rule, rule]], defaultBackend=[backend], ingressClassName=["c", "C_"], tls=[[{"hosts": ["a.b"], "secretName": "s"}], [{"hosts": ["A_"], "secretName": "S_"}]])}


def network_policy(random, _):
    peer = random.choice([{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": [random.choice(["10.1.0.0/16", "11.0.0.0/8"])]}}, {"ipBlock": {"cidr": "x"}}, {}, {"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}])
    return {"spec": {"podSelector": random.choice([{}, {"matchLabels": LABELS}, {"matchExpressions": [{"key": "a", "operator": "x"}]}]), **some(random, policyTypes=[["Ingress"], ["Egress", "Ingress"], ["x"]], ingress=[[{"from": [peer], "ports": [{"port": random.choice([80, "http", 0]), **some(random, protocol=["TCP", "x"], endPort=[90, 1])}]}]], egress=[[{"to": [peer]}]])}}


def budget(random, _):
    return {"spec": {"selector": random.choice([{"matchLabels": LABELS}, {}]), **some(random, minAvailable=[1, "50%", -1, "x"], maxUnavailable=[1, "101%"], unhealthyPodEvictionPolicy=["AlwaysAllow", "x"])}}


def storage_class(random, _):
    return {"provisioner": random.choice(["p", "example.com/p", "", "P_ "]), **some(random, reclaimPolicy=["Retain", "x"], volumeBindingMode=["WaitForFirstConsumer", "x"], parameters=[{"a": "b"}, {"": ""}], allowVolumeExpansion=[True], mountOptions=[["ro"]], allowedTopologies=[[{"matchLabelExpressions": [{"key": "a", "values": ["b"]}]}], [{"matchLabelExpressions": [{"key": "a", "values": []}]}]])}


def priority_class(random, _):
    return {"value": random.choice([1, 1000000000, 1000000001, -1]), **some(random, globalDefault=[False], description=["d"], preemptionPolicy=["Never", "x"])}


def attachment(random, _):
    return {"spec": {"attacher": random.choice(["a", "A_", ""]), "nodeName": random.choice(["n", ""]), "source": random.choice([{"persistentVolumeName": "p"}, {}, {"persistentVolumeName": ""}])}}


def slice_of_devices(random, _):
    return {"spec": {"driver": random.choice(["d.example.com", "D_"]), "pool": {"name": random.choice(["p", ""]), "generation": random.choice([1, -1]), "resourceSliceCount": random.choice([1, 0])}, **random.choice([{"nodeName": "n"}, {"allNodes": True}, {}, {"nodeName": "n", "allNodes": True}]), **some(random, devices=[[{"name": "a"}], [{"name": "a"}, {"name": "a"}], [{"name": "A_"}], [{"name": "a", "attributes": {"x": {"string": "y"}}, "capacity": {"m": {"value": "1Gi"}}}], [{"name": "a", "attributes": {"x": {}}}]])}}


def device_spec(random):
    request = {"name": random.choice(["r", "R_", ""]), **random.choice([{"exactly": {"deviceClassName": random.choice(["c", "C_", ""]), **some(random, allocationMode=["ExactCount", "All", "x"], count=[1, 0], selectors=[[{"cel": {"expression": "true"}}], [{"cel": {"expression": "1"}}], [{}]])}}, {}, {"firstAvailable": [{"name": "s", "deviceClassName": "c"}]}])}
    return {"devices": some(random, requests=[[request], [request, request]], constraints=[[{"matchAttribute": "d.example.com/a"}], [{"matchAttribute": "x"}]], config=[[{"opaque": {"driver": "d", "parameters": {"a": 1}}}], [{}]])}


def device_class(random, _):
    return {"spec": some(random, selectors=[[{"cel": {"expression": "device.driver == 'a'"}}], [{"cel": {"expression": "x"}}]], config=[[{"opaque": {"driver": "d", "parameters": {}}}]])}


def kinds(kind):
    """Rows of the table: `kind` makes one."""
    return [
        kind("", "v1", "pods", "Pod", True, pod, status=True, subresources=("eviction", "binding", "ephemeralcontainers", "resize")),
        kind("", "v1", "podtemplates", "PodTemplate", True, lambda random, _: {"template": template(random)}),
        kind("", "v1", "services", "Service", True, service, status=True),
        kind("", "v1", "endpoints", "Endpoints", True, endpoints),
        kind("", "v1", "limitranges", "LimitRange", True, limit_range),
        kind("", "v1", "replicationcontrollers", "ReplicationController", True, controller, status=True, subresources=("scale",)),
        kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, claim, status=True),
        kind("", "v1", "persistentvolumes", "PersistentVolume", False, volume, status=True),
        kind("", "v1", "nodes", "Node", False, node, status=True),
        kind("apps", "v1", "deployments", "Deployment", True, deployment, status=True, subresources=("scale",)),
        kind("apps", "v1", "replicasets", "ReplicaSet", True, replicated(), status=True, subresources=("scale",)),
        kind("apps", "v1", "statefulsets", "StatefulSet", True, stateful_set, status=True, subresources=("scale",)),
        kind("apps", "v1", "daemonsets", "DaemonSet", True, daemon_set, status=True),
        kind("apps", "v1", "controllerrevisions", "ControllerRevision", True, lambda random, _: {"revision": random.choice([1, 0, -1]), "data": random.choice([{"a": {"b": 1}}, {}, None, [1]])}),
        kind("batch", "v1", "jobs", "Job", True, job, status=True),
        kind("batch", "v1", "cronjobs", "CronJob", True, cron_job, status=True),
        kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, autoscaler, status=True),
        kind("autoscaling", "v1", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, old_autoscaler, status=True),
        kind("networking.k8s.io", "v1", "ipaddresses", "IPAddress", False, lambda random, _: {"spec": random.choice([{"parentRef": {"resource": "services", "name": "s", "namespace": "n"}}, {"parentRef": {"group": "A_", "resource": "", "name": ""}}, {}])}),
        kind("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", False, lambda random, _: {"spec": {"cidrs": random.choice([["192.168.0.0/24"], ["192.168.0.1/24"], ["x"], [], ["192.168.0.0/24", "fd00::/64"], ["192.168.0.0/24", "192.168.1.0/24"]])}}, status=True),
        kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, endpoint_slice),
        kind("networking.k8s.io", "v1", "ingresses", "Ingress", True, ingress, status=True),
        kind("networking.k8s.io", "v1", "ingressclasses", "IngressClass", False, lambda random, _: {"spec": some(random, controller=["example.com/c", "x", ""], parameters=[{"kind": "K", "name": "n"}, {"kind": "K", "name": "n", "scope": "Namespace"}])}),
        kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, network_policy),
        kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False, lambda random, _: {"handler": random.choice(["h", "H_", ""]), **some(random, overhead=[{"podFixed": {"cpu": "1"}}, {"podFixed": {"cpu": "-1"}}], scheduling=[{"nodeSelector": {"a": "b"}}, {"nodeSelector": {"-": "x"}}])}),
        kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, budget, status=True),
        kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, priority_class),
        kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, storage_class),
        kind("storage.k8s.io", "v1", "csidrivers", "CSIDriver", False, lambda random, _: {"spec": some(random, attachRequired=[True], podInfoOnMount=[True], volumeLifecycleModes=[["Persistent"], ["Ephemeral", "x"]], fsGroupPolicy=["File", "x"], tokenRequests=[[{"audience": "a"}], [{"audience": "a"}, {"audience": "a"}], [{"audience": "a", "expirationSeconds": 1}]], requiresRepublish=[True], storageCapacity=[True], seLinuxMount=[True])}),
        kind("storage.k8s.io", "v1", "csinodes", "CSINode", False, lambda random, _: {"spec": {"drivers": random.choice([[], [{"name": "d", "nodeID": "n"}], [{"name": "d", "nodeID": "n", "topologyKeys": ["a", "a"]}], [{"name": "D_", "nodeID": ""}], [{"name": "d", "nodeID": "n", "allocatable": {"count": -1}}]])}}),
        kind("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", True, lambda random, _: {"storageClassName": random.choice(["s", "S_", ""]), **some(random, capacity=["1Gi", "-1"], maximumVolumeSize=["1Gi", "-1"], nodeTopology=[{}, {"matchExpressions": [{"key": "a", "operator": "x"}]}])}),
        kind("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", False, attachment, status=True),
        kind("storage.k8s.io", "v1", "volumeattributesclasses", "VolumeAttributesClass", False, lambda random, _: {"driverName": random.choice(["d", "D_", ""]), **some(random, parameters=[{"a": "b"}, {}])}),
        kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False, device_class),
        kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True, lambda random, _: {"spec": device_spec(random)}, status=True),
        kind("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True, lambda random, _: {"spec": {"spec": device_spec(random), **some(random, metadata=[{"labels": {"a": "b"}}, {"labels": {"-": "x"}}])}}),
        kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False, slice_of_devices),
    ]
