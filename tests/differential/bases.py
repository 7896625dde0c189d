"""A valid object of each workload kind, with much of it set: what `fields` changes one place of."""

CONTAINER = {
    "name": "c",
    "image": "example.com/app:1",
    "command": ["run"],
    "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
    "env": [
        {"name": "A", "value": "b"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "D", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "E", "valueFrom": {"secretKeyRef": {"name": "m", "key": "k"}}},
    ],
    "envFrom": [{"configMapRef": {"name": "m"}}, {"prefix": "P_", "secretRef": {"name": "s"}}],
    "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "1"}},
    "volumeMounts": [{"name": "e", "mountPath": "/e", "subPath": "a"}, {"name": "cm", "mountPath": "/cm", "readOnly": True}],
    "livenessProbe": {"httpGet": {"path": "/", "port": "http", "httpHeaders": [{"name": "X-A", "value": "b"}]}, "periodSeconds": 5},
    "readinessProbe": {"exec": {"command": ["true"]}},
    "startupProbe": {"tcpSocket": {"port": 80}},
    "lifecycle": {"preStop": {"sleep": {"seconds": 3}}, "postStart": {"exec": {"command": ["true"]}}},
    "securityContext": {"runAsUser": 1, "capabilities": {"add": ["NET_ADMIN"]}, "seccompProfile": {"type": "RuntimeDefault"}, "readOnlyRootFilesystem": True},
}
POD = {
    "containers": [CONTAINER, {"name": "d", "image": "example.com/app:2", "livenessProbe": {"grpc": {"port": 9}}}],
    "initContainers": [{"name": "i", "image": "example.com/init:1"}, {"name": "s", "image": "example.com/side:1", "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["true"]}}}],
    "volumes": [
        {"name": "e", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "cm", "configMap": {"name": "m", "items": [{"key": "k", "path": "p"}], "defaultMode": 420}},
        {"name": "se", "secret": {"secretName": "s", "items": [{"key": "k", "path": "p"}]}},
        {"name": "da", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}, {"path": "c", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}}]}},
        {"name": "pr", "projected": {"sources": [{"secret": {"name": "s"}}, {"configMap": {"name": "m", "items": [{"key": "k", "path": "q"}]}}, {"serviceAccountToken": {"path": "t"}}, {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}},
        {"name": "pvc", "persistentVolumeClaim": {"claimName": "claim"}},
        {"name": "hp", "hostPath": {"path": "/a", "type": "Directory"}},
        {"name": "nfs", "nfs": {"server": "n", "path": "/p"}},
        {"name": "csi", "csi": {"driver": "example.com"}},
        {"name": "eph", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}},
    ],
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 3}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}], "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}],
        },
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}, "namespaces": ["n"]}]},
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}}]},
    },
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}, "minDomains": 2}],
    "securityContext": {"runAsUser": 1, "fsGroup": 2, "sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}], "supplementalGroups": [1], "runAsNonRoot": True},
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["h"]}],
    "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["example.com"], "options": [{"name": "ndots", "value": "2"}]},
    "imagePullSecrets": [{"name": "s"}],
    "readinessGates": [{"conditionType": "example.com/ready"}],
    "terminationGracePeriodSeconds": 5,
    "automountServiceAccountToken": False,
    "serviceAccountName": "default",
}
SMALL = {"containers": [{"name": "c", "image": "example.com/app:1"}]}
META = {"name": "base", "labels": {"a": "b"}, "annotations": {"x": "y"}}
LABELS = {"labels": {"a": "b"}}
SELECTOR = {"matchLabels": {"a": "b"}}


def controller(**extra):
    return {"metadata": META, "spec": {"selector": SELECTOR, "template": {"metadata": LABELS, "spec": SMALL}, **extra}}


JOB = {"template": {"metadata": LABELS, "spec": {**SMALL, "restartPolicy": "Never"}}}
FULL_JOB = {
    **JOB, "completionMode": "Indexed", "completions": 3, "parallelism": 2, "backoffLimitPerIndex": 1, "maxFailedIndexes": 1, "activeDeadlineSeconds": 5, "ttlSecondsAfterFinished": 5,
    "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [1, 2]}}, {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]},
    "successPolicy": {"rules": [{"succeededIndexes": "0-1", "succeededCount": 1}]},
}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "c", "volumeMode": "Filesystem", "selector": SELECTOR}
BUDGET = {"minAvailable": 1, "selector": SELECTOR}
DEVICES = {
    "requests": [{"name": "r", "exactly": {"deviceClassName": "c.example.com", "selectors": [{"cel": {"expression": "device.driver == 'a'"}}], "count": 1, "tolerations": [{"key": "k", "operator": "Exists"}]}}, {"name": "f", "firstAvailable": [{"name": "s", "deviceClassName": "c.example.com"}]}],
    "constraints": [{"requests": ["r"], "matchAttribute": "example.com/a"}],
    "config": [{"requests": ["r"], "opaque": {"driver": "d.example.com", "parameters": {"a": "b"}}}],
}

# Group version, resource, namespaced, object, status.
BASES = {
    "pods": ("v1", "Pod", True, {"metadata": META, "spec": POD}, {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "hostIPs": [{"ip": "10.0.0.2"}], "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [{"name": "c", "image": "i", "imageID": "x", "ready": True, "restartCount": 1, "state": {"running": {}}}]}),
    "podtemplates": ("v1", "PodTemplate", True, {"metadata": META, "template": {"metadata": LABELS, "spec": POD}}, None),
    "replicationcontrollers": ("v1", "ReplicationController", True, {"metadata": META, "spec": {"replicas": 2, "selector": {"a": "b"}, "template": {"metadata": LABELS, "spec": SMALL}}}, {"replicas": 2, "readyReplicas": 1}),
    "services": ("v1", "Service", True, {"metadata": META, "spec": {"type": "ClusterIP", "clusterIP": "None", "selector": {"a": "b"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}, {"name": "dns", "port": 53, "protocol": "UDP", "appProtocol": "a"}], "sessionAffinity": "ClientIP", "externalIPs": ["1.2.3.4"]}}, {"loadBalancer": {}}),
    "services:lb": ("v1", "Service", True, {"metadata": META, "spec": {"type": "LoadBalancer", "ports": [{"name": "http", "port": 80}], "loadBalancerSourceRanges": ["10.0.0.0/8"], "externalTrafficPolicy": "Local", "healthCheckNodePort": 30005, "loadBalancerClass": "a/b"}}, {"loadBalancer": {"ingress": [{"ip": "10.0.0.1", "ports": [{"port": 80, "protocol": "TCP"}]}]}}),
    "services:name": ("v1", "Service", True, {"metadata": META, "spec": {"type": "ExternalName", "externalName": "a.example.com"}}, None),
    "endpoints": ("v1", "Endpoints", True, {"metadata": META, "subsets": [{"addresses": [{"ip": "10.0.0.1", "hostname": "h", "nodeName": "n"}], "notReadyAddresses": [{"ip": "10.0.0.2"}], "ports": [{"name": "http", "port": 80}, {"name": "b", "port": 53, "protocol": "UDP"}]}]}, None),
    "nodes": ("v1", "Node", False, {"metadata": META, "spec": {"podCIDRs": ["10.0.0.0/24"], "podCIDR": "10.0.0.0/24", "providerID": "a://b", "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}, "status": {"capacity": {"cpu": "4", "memory": "1Gi"}}}, {"capacity": {"cpu": "4"}, "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}], "conditions": [{"type": "Ready", "status": "True"}]}),
    "persistentvolumes": ("v1", "PersistentVolume", False, {"metadata": META, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}, "claimRef": {"namespace": "n", "name": "c"}, "storageClassName": "c", "mountOptions": ["ro"], "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}}}, {"phase": "Bound"}),
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim", True, {"metadata": META, "spec": CLAIM}, {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "conditions": [{"type": "Resizing", "status": "True"}]}),
    "limitranges": ("v1", "LimitRange", True, {"metadata": META, "spec": {"limits": [{"type": "Container", "max": {"cpu": "4"}, "min": {"cpu": "1"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}}, {"type": "Pod", "max": {"cpu": "4"}}, {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]}}, None),
    "controllerrevisions.apps": ("apps/v1", "ControllerRevision", True, {"metadata": META, "data": {"a": "b"}, "revision": 1}, None),
    "daemonsets.apps": ("apps/v1", "DaemonSet", True, controller(updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}, minReadySeconds=1, revisionHistoryLimit=1), {"currentNumberScheduled": 1, "numberMisscheduled": 0, "desiredNumberScheduled": 1, "numberReady": 1}),
    "deployments.apps": ("apps/v1", "Deployment", True, controller(replicas=2, strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "10%"}}, progressDeadlineSeconds=60, minReadySeconds=1), {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 1, "conditions": [{"type": "Available", "status": "True"}]}),
    "replicasets.apps": ("apps/v1", "ReplicaSet", True, controller(replicas=2), {"replicas": 2, "readyReplicas": 1}),
    "statefulsets.apps": ("apps/v1", "StatefulSet", True, controller(replicas=2, serviceName="s", updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}, ordinals={"start": 1}, volumeClaimTemplates=[{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]), {"replicas": 2, "readyReplicas": 1}),
    "horizontalpodautoscalers.autoscaling": ("autoscaling/v2", "HorizontalPodAutoscaler", True, {"metadata": META, "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "minReplicas": 1, "maxReplicas": 3, "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}, {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}}, {"type": "Object", "object": {"describedObject": {"kind": "K", "name": "n", "apiVersion": "v1"}, "metric": {"name": "m"}, "target": {"type": "Value", "value": "1"}}}, {"type": "External", "external": {"metric": {"name": "m", "selector": SELECTOR}, "target": {"type": "AverageValue", "averageValue": "1"}}}, {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": {"type": "Utilization", "averageUtilization": 5}}}], "behavior": {"scaleUp": {"stabilizationWindowSeconds": 1, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 5}]}, "scaleDown": {"selectPolicy": "Min"}}}}, {"currentReplicas": 1, "desiredReplicas": 1}),
    "horizontalpodautoscalers.autoscaling:v1": ("autoscaling/v1", "HorizontalPodAutoscaler", True, {"metadata": META, "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "minReplicas": 1, "maxReplicas": 3, "targetCPUUtilizationPercentage": 50}}, {"currentReplicas": 1, "desiredReplicas": 1}),
    "cronjobs.batch": ("batch/v1", "CronJob", True, {"metadata": META, "spec": {"schedule": "*/5 * * * *", "timeZone": "Etc/UTC", "concurrencyPolicy": "Forbid", "startingDeadlineSeconds": 5, "jobTemplate": {"metadata": LABELS, "spec": FULL_JOB}}}, {"active": [{"name": "a", "kind": "Job"}]}),
    "jobs.batch": ("batch/v1", "Job", True, {"metadata": META, "spec": FULL_JOB}, {"active": 1, "failed": 0, "startTime": "2024-01-02T03:04:05Z"}),
    "jobs.batch:manual": ("batch/v1", "Job", True, {"metadata": META, "spec": {**JOB, "manualSelector": True, "selector": SELECTOR, "suspend": True}}, None),
    "endpointslices.discovery.k8s.io": ("discovery.k8s.io/v1", "EndpointSlice", True, {"metadata": META, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "hostname": "h", "nodeName": "n", "zone": "z", "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]}, "targetRef": {"kind": "Pod", "name": "p"}}], "ports": [{"name": "http", "port": 80, "appProtocol": "a"}]}, None),
    "ingressclasses.networking.k8s.io": ("networking.k8s.io/v1", "IngressClass", False, {"metadata": META, "spec": {"controller": "example.com/c", "parameters": {"apiGroup": "example.com", "kind": "K", "name": "n", "scope": "Namespace", "namespace": "n"}}}, None),
    "ingresses.networking.k8s.io": ("networking.k8s.io/v1", "Ingress", True, {"metadata": META, "spec": {"ingressClassName": "c", "defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}, "tls": [{"hosts": ["a.example.com"], "secretName": "s"}], "rules": [{"host": "*.example.com", "http": {"paths": [{"path": "/a", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"name": "http"}}}}, {"path": "/b", "pathType": "ImplementationSpecific", "backend": {"resource": {"apiGroup": "example.com", "kind": "K", "name": "n"}}}]}}]}}, {"loadBalancer": {"ingress": [{"ip": "10.0.0.1", "ports": [{"port": 80, "protocol": "TCP"}]}]}}),
    "networkpolicies.networking.k8s.io": ("networking.k8s.io/v1", "NetworkPolicy", True, {"metadata": META, "spec": {"podSelector": SELECTOR, "policyTypes": ["Ingress", "Egress"], "ingress": [{"from": [{"podSelector": SELECTOR, "namespaceSelector": SELECTOR}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"port": 80, "endPort": 90, "protocol": "TCP"}]}], "egress": [{"to": [{"podSelector": SELECTOR}], "ports": [{"port": "http"}]}]}}, None),
    "ipaddresses.networking.k8s.io": ("networking.k8s.io/v1", "IPAddress", False, {"metadata": {**META, "name": "192.168.7.9"}, "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "n", "name": "s"}}}, None),
    "servicecidrs.networking.k8s.io": ("networking.k8s.io/v1", "ServiceCIDR", False, {"metadata": META, "spec": {"cidrs": ["10.7.0.0/24"]}}, {"conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": "2024-01-02T03:04:05Z"}]}),
    "runtimeclasses.node.k8s.io": ("node.k8s.io/v1", "RuntimeClass", False, {"metadata": META, "handler": "h", "overhead": {"podFixed": {"cpu": "1"}}, "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "k", "operator": "Exists"}]}}, None),
    "poddisruptionbudgets.policy": ("policy/v1", "PodDisruptionBudget", True, {"metadata": META, "spec": {**BUDGET, "unhealthyPodEvictionPolicy": "AlwaysAllow"}}, {"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptedPods": {"a": "2024-01-02T03:04:05Z"}}),
    "deviceclasses.resource.k8s.io": ("resource.k8s.io/v1", "DeviceClass", False, {"metadata": META, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'a' && device.attributes['a'].x == 1"}}], "config": [{"opaque": {"driver": "d.example.com", "parameters": {"a": "b"}}}], "extendedResourceName": "example.com/gpu"}}, None),
    "resourceclaims.resource.k8s.io": ("resource.k8s.io/v1", "ResourceClaim", True, {"metadata": META, "spec": {"devices": DEVICES}}, {"allocation": {"devices": {"results": [{"request": "r", "driver": "d.example.com", "pool": "p", "device": "dev"}]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}], "devices": [{"driver": "d.example.com", "pool": "p", "device": "dev", "data": {"a": "b"}, "networkData": {"interfaceName": "eth0", "ips": ["10.0.0.1/8"]}}]}),
    "resourceclaimtemplates.resource.k8s.io": ("resource.k8s.io/v1", "ResourceClaimTemplate", True, {"metadata": META, "spec": {"metadata": LABELS, "spec": {"devices": DEVICES}}}, None),
    "resourceslices.resource.k8s.io": ("resource.k8s.io/v1", "ResourceSlice", False, {"metadata": META, "spec": {"driver": "d.example.com", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "dev", "attributes": {"a": {"string": "b"}, "example.com/v": {"version": "1.0.0"}, "i": {"int": 1}, "b": {"bool": True}}, "capacity": {"mem": {"value": "1Gi"}}, "taints": [{"key": "k", "effect": "NoSchedule"}]}]}}, None),
    "resourceslices.resource.k8s.io:counters": ("resource.k8s.io/v1", "ResourceSlice", False, {"metadata": META, "spec": {"driver": "d.example.com", "allNodes": True, "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2}, "sharedCounters": [{"name": "cs", "counters": {"c": {"value": "1"}}}]}}, None),
    "priorityclasses.scheduling.k8s.io": ("scheduling.k8s.io/v1", "PriorityClass", False, {"metadata": META, "value": 5, "preemptionPolicy": "Never", "description": "d"}, None),
    "csidrivers.storage.k8s.io": ("storage.k8s.io/v1", "CSIDriver", False, {"metadata": META, "spec": {"attachRequired": True, "podInfoOnMount": True, "volumeLifecycleModes": ["Persistent"], "fsGroupPolicy": "File", "tokenRequests": [{"audience": "a", "expirationSeconds": 600}], "storageCapacity": True}}, None),
    "csinodes.storage.k8s.io": ("storage.k8s.io/v1", "CSINode", False, {"metadata": META, "spec": {"drivers": [{"name": "d.example.com", "nodeID": "i", "topologyKeys": ["a", "b"], "allocatable": {"count": 1}}]}}, None),
    "csistoragecapacities.storage.k8s.io": ("storage.k8s.io/v1", "CSIStorageCapacity", True, {"metadata": META, "storageClassName": "c", "capacity": "1Gi", "maximumVolumeSize": "1Gi", "nodeTopology": SELECTOR}, None),
    "storageclasses.storage.k8s.io": ("storage.k8s.io/v1", "StorageClass", False, {"metadata": META, "provisioner": "example.com/p", "parameters": {"a": "b"}, "reclaimPolicy": "Retain", "volumeBindingMode": "Immediate", "allowVolumeExpansion": True, "mountOptions": ["ro"], "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]}, None),
    "volumeattachments.storage.k8s.io": ("storage.k8s.io/v1", "VolumeAttachment", False, {"metadata": META, "spec": {"attacher": "d.example.com", "nodeName": "n", "source": {"persistentVolumeName": "p"}}}, {"attached": True, "attachError": {"message": "m", "time": "2024-01-02T03:04:05Z"}}),
    "volumeattributesclasses.storage.k8s.io": ("storage.k8s.io/v1", "VolumeAttributesClass", False, {"metadata": META, "driverName": "d.example.com", "parameters": {"a": "b"}}, None),
}
