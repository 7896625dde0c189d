# shellcheck shell=bash
# The workload kinds with one kubectl, against a server of the kubernetes profile without controllers: sourced by tests/smoke, which has
# `check`, $k (kubectl), $ns (a namespace that exists) and $work.

# The header that kubectl prints, or a row, with single spaces.
row() { # what, expected words, arguments of get...
    local what=$1 want=$2
    shift 2
    check "$what" "$want" bash -c "$k -n $ns get $* | tr -s ' '"
}

manifests() {
    cat <<END
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: 'example.com/web:1', ports: [{containerPort: 80}]}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: 'example.com/db:1'}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: agent, image: 'example.com/agent:1'}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: once, image: 'example.com/once:1'}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: 0 3 * * *
  jobTemplate:
    spec:
      template:
        spec: {restartPolicy: OnFailure, containers: [{name: nightly, image: 'example.com/nightly:1'}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80, name: http}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  rules:
  - host: example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk-$ns}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], storageClassName: slow, hostPath: {path: /srv}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: slow, resources: {requests: {storage: 1Gi}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
END
}

# What server-side printing and describe show of new objects.
shown() {
    row "deployment" "NAME READY UP-TO-DATE AVAILABLE AGE" deployments
    row "deployment row" "web 0/2 0 0 " deployments
    row "deployment, wide" "AGE CONTAINERS IMAGES SELECTOR" deployments -o wide
    row "deployment row, wide" " web example.com/web:1 app=web" deployments -o wide
    row "stateful set" "NAME READY AGE" statefulsets
    row "stateful set row" "db 0/1 " statefulsets
    row "daemon set" "NAME DESIRED CURRENT READY UP-TO-DATE AVAILABLE NODE SELECTOR AGE" daemonsets
    row "daemon set row" "agent 0 0 0 0 0 <none> " daemonsets
    row "job" "NAME STATUS COMPLETIONS DURATION AGE" jobs
    row "job row" "once Running 0/1 " jobs
    row "cron job" "NAME SCHEDULE TIMEZONE SUSPEND ACTIVE LAST SCHEDULE AGE" cronjobs
    row "cron job row" "nightly 0 3 * * * <none> False 0 <none> " cronjobs
    row "service" "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE" services
    row "service row" "web ClusterIP None <none> 80/TCP " services
    row "ingress" "NAME CLASS HOSTS ADDRESS PORTS AGE" ingresses
    row "ingress row" "web <none> example.com 80 " ingresses
    row "volume" "NAME CAPACITY ACCESS MODES RECLAIM POLICY STATUS CLAIM STORAGECLASS VOLUMEATTRIBUTESCLASS REASON AGE" persistentvolumes
    row "volume row" "disk-$ns 1Gi RWO Retain Pending slow <unset> " persistentvolumes
    row "claim" "NAME STATUS VOLUME CAPACITY ACCESS MODES STORAGECLASS VOLUMEATTRIBUTESCLASS AGE" persistentvolumeclaims
    row "claim row" "data Pending slow <unset> " persistentvolumeclaims
    row "autoscaler" "NAME REFERENCE TARGETS MINPODS MAXPODS REPLICAS AGE" horizontalpodautoscalers
    row "autoscaler row" "web Deployment/web cpu: <unknown>/80% 1 3 0 " horizontalpodautoscalers
    row "autoscaler row, v1" "web Deployment/web " horizontalpodautoscalers.v1.autoscaling
    row "budget" "NAME MIN AVAILABLE MAX UNAVAILABLE ALLOWED DISRUPTIONS AGE" poddisruptionbudgets
    row "budget row" "web 1 N/A 0 " poddisruptionbudgets
    row "network policy" "NAME POD-SELECTOR AGE" networkpolicies
    row "network policy row" "closed app=web " networkpolicies
    row "all" "deployment.apps/web 0/2" all
    check "describe deployment" "RollingUpdateStrategy:  25% max unavailable, 25% max surge" $k -n "$ns" describe deployment web
    check "describe stateful set" "Update Strategy:    RollingUpdate" $k -n "$ns" describe statefulset db
    check "describe daemon set" "Desired Number of Nodes Scheduled: 0" $k -n "$ns" describe daemonset agent
    check "describe job" "Completion Mode:  NonIndexed" $k -n "$ns" describe job once
    check "describe cron job" "Concurrency Policy:            Allow" $k -n "$ns" describe cronjob nightly
    check "describe service" "Session Affinity:" $k -n "$ns" describe service web
    check "describe ingress" "web:80" $k -n "$ns" describe ingress web
    check "describe volume" "Path:          /srv" $k describe persistentvolume "disk-$ns"
    check "describe claim" "StorageClass:  slow" $k -n "$ns" describe persistentvolumeclaim data
    check "describe autoscaler" "Deployment/web" $k -n "$ns" describe horizontalpodautoscaler web
    check "describe budget" "Min available:" $k -n "$ns" describe poddisruptionbudget web
    check "describe network policy" "PodSelector:     app=web" $k -n "$ns" describe networkpolicy closed
}

# Commands that change a template, its replicas or its metadata.
changed() {
    check "apply again" "deployment.apps/web unchanged" $k -n "$ns" apply -f "$1"
    check "server-side apply" "deployment.apps/web serverside-applied" $k -n "$ns" apply --server-side --force-conflicts -f "$1"
    check "diff" "+  replicas: 9" bash -c "sed 's/replicas: 2/replicas: 9/' $1 | $k -n $ns diff -f -; true"
    check "edit" "edited" env KUBE_EDITOR="sed -i 's,web:1,web:2,'" $k -n "$ns" edit deployment web
    check "edit is stored" "example.com/web:2" $k -n "$ns" get deployment web -o jsonpath='{.spec.template.spec.containers[0].image}'
    check "edit a status" "edited" env KUBE_EDITOR="sed -i 's/^status: {}/status: {observedGeneration: 1}/'" $k -n "$ns" edit deployment web --subresource=status
    check "set image" "deployment.apps/web image updated" $k -n "$ns" set image deployment/web web=example.com/web:3
    check "set env" "deployment.apps/web env updated" $k -n "$ns" set env deployment/web COLOR=blue
    check "set resources" "deployment.apps/web resource requirements updated" $k -n "$ns" set resources deployment/web --limits=cpu=1,memory=64Mi
    check "set serviceaccount" "deployment.apps/web serviceaccount updated" $k -n "$ns" set serviceaccount deployment/web robot
    check "set selector" "service/web selector updated" $k -n "$ns" set selector service/web app=web
    check "set is stored" "example.com/web:3 COLOR 64Mi robot" $k -n "$ns" get deployment web -o jsonpath='{.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].env[0].name} {.spec.template.spec.containers[0].resources.limits.memory} {.spec.template.spec.serviceAccountName}'
    for kind in deployment/web statefulset/db; do
        check "scale $kind" "scaled" $k -n "$ns" scale "$kind" --replicas=4
        check "scale $kind from another number" "Expected replicas to be 9, was 4" bash -c "$k -n $ns scale $kind --current-replicas=9 --replicas=1; [ \$? = 1 ]"
        check "scale of $kind" "4" $k -n "$ns" get "$kind" --subresource=scale -o jsonpath='{.spec.replicas}'
    done
    check "label" "labeled" $k -n "$ns" label deployment/web tier=front
    check "annotate" "annotate" $k -n "$ns" annotate daemonset/agent note=read
    check "get by label" "deployment.apps/web" $k -n "$ns" get deployments -l tier=front -o name
    check "immutable selector" "field is immutable" bash -c "$k -n $ns patch deployment web --type=merge -p '{\"spec\":{\"selector\":{\"matchLabels\":{\"app\":\"x\"}}}}'; [ \$? = 1 ]"
    check "patch by name of a container" "patched" $k -n "$ns" patch deployment web -p '{"spec":{"template":{"spec":{"containers":[{"name":"web","imagePullPolicy":"Never"}]}}}}'
    check "merged by name" "example.com/web:3 Never" $k -n "$ns" get deployment web -o jsonpath='{.spec.template.spec.containers[*].image} {.spec.template.spec.containers[*].imagePullPolicy}'
    check "sort" "agent" $k -n "$ns" get daemonsets --sort-by=.metadata.creationTimestamp
    check "custom columns" "web    RollingUpdate" $k -n "$ns" get deployments -o custom-columns=NAME:.metadata.name,BY:.spec.strategy.type
}

# A replica set as the controller would make it.
replica_set() { # uid of the deployment, revision
    cat <<END
apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: web-$2
  labels: {app: web, pod-template-hash: r$2}
  annotations: {deployment.kubernetes.io/revision: '$2'}
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: $1, controller: true}]
spec:
  replicas: 0
  selector: {matchLabels: {app: web, pod-template-hash: r$2}}
  template:
    metadata: {labels: {app: web, pod-template-hash: r$2}}
    spec: {containers: [{name: web, image: 'example.com/web:r$2'}]}
END
}

rolled() {
    local uid generation
    check "rollout pause" "paused" $k -n "$ns" rollout pause deployment/web
    check "rollout resume" "resumed" $k -n "$ns" rollout resume deployment/web
    for kind in deployment/web statefulset/db daemonset/agent; do
        check "rollout restart $kind" "restarted" $k -n "$ns" rollout restart "$kind"
    done
    uid=$($k -n "$ns" get deployment web -o jsonpath='{.metadata.uid}')
    for revision in 1 2; do
        replica_set "$uid" "$revision" >"$work/revision.yaml"
        check "revision $revision" "created" $k -n "$ns" create -f "$work/revision.yaml"
    done
    check "rollout history" "REVISION  CHANGE-CAUSE" $k -n "$ns" rollout history deployment/web
    check "rollout history of a revision" "example.com/web:r2" $k -n "$ns" rollout history deployment/web --revision=2
    check "rollout undo" "rolled back" $k -n "$ns" rollout undo deployment/web --to-revision=1
    check "undone" "example.com/web:r1" $k -n "$ns" get deployment web -o jsonpath='{.spec.template.spec.containers[0].image}'
    generation=$($k -n "$ns" get deployment web -o jsonpath='{.metadata.generation}')
    check "status" "patched" $k -n "$ns" patch deployment web --subresource=status --type=merge -p "{\"status\":{\"observedGeneration\":$generation,\"replicas\":4,\"updatedReplicas\":4,\"readyReplicas\":4,\"availableReplicas\":4,\"conditions\":[{\"type\":\"Available\",\"status\":\"True\"}]}}"
    check "status keeps the generation" "$generation" $k -n "$ns" get deployment web -o jsonpath='{.metadata.generation}'
    check "rollout status" 'deployment "web" successfully rolled out' $k -n "$ns" rollout status deployment/web --timeout=180s
    check "wait for a condition" "condition met" $k -n "$ns" wait --for=condition=Available deployment/web --timeout=180s
    row "ready deployment" "web 4/4 4 4 " deployments
}

# Commands that create objects, and act on pods and nodes.
acted() {
    check "create deployment" "created" $k -n "$ns" create deployment made --image=example.com/made:1 --replicas=3
    check "create job" "created" $k -n "$ns" create job made --image=example.com/made:1
    check "create job from a cron job" "created" $k -n "$ns" create job tonight --from=cronjob/nightly
    check "create cron job" "created" $k -n "$ns" create cronjob made --image=example.com/made:1 --schedule='@daily'
    check "create budget" "created" $k -n "$ns" create poddisruptionbudget made --selector=app=made --min-available=50%
    check "create ingress" "created" $k -n "$ns" create ingress made --rule='made.example.com/*=web:80'
    check "create priority class" "created" $k create priorityclass "$ns" --value=100
    check "autoscale" "autoscaled" $k -n "$ns" autoscale deployment made --min=2 --max=5 --cpu-percent=50
    check "expose" "exposed" $k -n "$ns" expose deployment made --port=80 --cluster-ip=None
    check "run" "pod/alone created" $k -n "$ns" run alone --image=example.com/alone:1 --labels=app=alone
    row "pod" "NAME READY STATUS RESTARTS AGE" pods
    row "pod row" "alone 0/1 Pending 0 " pods
    check "describe pod" "Image:        example.com/alone:1" $k -n "$ns" describe pod alone
    printf 'apiVersion: v1\nkind: Node\nmetadata: {name: node-%s}\n' "$ns" >"$work/node.yaml"
    check "create node" "node/node-$ns created" $k create -f "$work/node.yaml"
    check "cordon" "cordoned" $k cordon "node-$ns"
    check "uncordon" "uncordoned" $k uncordon "node-$ns"
    check "taint" "tainted" $k taint node "node-$ns" slow=disk:NoSchedule
    row "node row" "node-$ns Unknown <none> " nodes
    check "bind" "\"status\":\"Success\"" $k create --raw "/api/v1/namespaces/$ns/pods/alone/binding" -f - <<<"{\"metadata\":{\"name\":\"alone\"},\"target\":{\"kind\":\"Node\",\"name\":\"node-$ns\"}}"
    row "bound" "alone 0/1 Pending 0 " pods --field-selector "spec.nodeName=node-$ns"
    check "create serviceaccount" "created" $k -n "$ns" create serviceaccount robot
    bound_token
    check "drain" "node/node-$ns drained" $k drain "node-$ns" --force --grace-period=0 --timeout=180s
    check "drained" "No resources found" $k -n "$ns" get pods -l app=alone
}

# A token lives as long as the secret that it is bound to.
bound_token() {
    local url token as_robot
    check "create secret" "created" $k -n "$ns" create secret generic holder
    url=$($k config view --minify -o jsonpath='{.clusters[0].cluster.server}')
    token=$($k -n "$ns" create token robot --bound-object-kind Secret --bound-object-name holder)
    as_robot="$kubectl --cache-dir=$work/cache-bound-$ns --kubeconfig=/dev/null --server=$url --certificate-authority=$work/kubernetes/pki/ca.crt --token=$token"
    check "bound token" "cannot list resource" bash -c "$as_robot -n $ns get pods; [ \$? = 1 ]"
    check "delete its secret" "deleted" $k -n "$ns" delete secret holder
    check "bound token without its object" "Unauthorized" bash -c "$as_robot -n $ns get pods; [ \$? = 1 ]"
    check "bind to a missing pod" "pods \"nobody\" not found" bash -c "$k -n $ns create token robot --bound-object-kind Pod --bound-object-name nobody; [ \$? = 1 ]"
}

workloads() {
    local manifest=$work/workloads-$ns.yaml
    manifests >"$manifest"
    check "apply" "networkpolicy.networking.k8s.io/closed created" $k -n "$ns" apply -f "$manifest"
    shown
    changed "$manifest"
    rolled
    acted
    check "delete" "deployment.apps \"web\" deleted" $k -n "$ns" delete -f "$manifest" --timeout=180s
}
