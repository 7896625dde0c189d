"""Sequences of requests: which verbs on which objects, with which options."""

import hashlib
import json
import urllib.parse

import rules as expressions
from paths import person
from values import ODD, broken, null_some
from watches import watch

JSON = "application/json"
PATCHES = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
ACCEPTS = [JSON] * 6 + [
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
    "application/json;as=Table;v=v2;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
    "application/json;as=Table;v=v1;g=x",
    "*/*",
    "text/html",
    "application/json;q=0.5, */*",
]
PROTOBUF = "application/vnd.kubernetes.protobuf"
PROTOBUF_ACCEPTS = [PROTOBUF] * 6 + [
    f"{PROTOBUF},{JSON}",
    f"{JSON},{PROTOBUF}",
    f"{PROTOBUF};as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    f"{PROTOBUF};as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io",
    f"{PROTOBUF};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    f"{PROTOBUF};as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
    f"{PROTOBUF};as=Table;v=v1;g=meta.k8s.io",
    f"{PROTOBUF};as=Table;v=v1;g=meta.k8s.io,{JSON};as=Table;v=v1;g=meta.k8s.io",
    f"{PROTOBUF};as=PartialObjectMetadata;v=v1;g=meta.k8s.io,{JSON};as=PartialObjectMetadata;v=v1;g=meta.k8s.io,{JSON}",
    f"{PROTOBUF};charset=utf-8",
    "application/vnd.kubernetes.*",
]
# Written as they are after a query.
ODD_QUERIES = [
    "fieldManager=a&fieldManager=b", "fieldManager=", "fieldManager=a%20b", "fieldManager=%C3%A9", "dryRun=All&dryRun=All", "dryRun=All&dryRun=x", "dryRun", "fieldValidation=", "fieldValidation=strict", "fieldValidation=Ignore&fieldValidation=Strict",
    "force=", "force=0", "force=False", "limit=", "limit=01", "limit=%2B1", "limit=1_0", "limit=0x1", "limit=9223372036854775808", "limit=1&limit=x", "timeoutSeconds=", "timeoutSeconds=1.5", "pretty", "pretty=1&pretty=0", "pretty=True",
    "%zz", "a;b", "a=b;dryRun=x", "&&=", "resourceVersion=00", "resourceVersion=-1", "resourceVersion=%20", "resourceVersion=1.0", "resourceVersion=18446744073709551616", "labelSelector=%00", "labelSelector=%20", "labelSelector=a%3Db&labelSelector=x", "labelSelector=+a+",
    "fieldSelector=%20", "fieldSelector=metadata.name%3D", "watch=false", "watch=0", "watch=False", "sendInitialEvents=", "sendInitialEvents=false", "includeObject=metadata", "includeObject=", "export=1", "export=false", "export=x", "exact=true",
    "gracePeriodSeconds=", "gracePeriodSeconds=1&gracePeriodSeconds=x", "propagationPolicy=", "propagationPolicy=background", "orphanDependents=", "orphanDependents=0&propagationPolicy=Background", "uid=x", "uid=", "allowWatchBookmarks=x", "continue=", "continue=%20", "resourceVersionMatch=", "resourceVersionMatch=exact", "timeout=", "timeout=1x", "timeout=+1m", "timeout=1m&timeout=x", "as=Table", "dryrun=All", "DryRun=All",
]
CONTENT_TYPES = [
    "application/yaml", "", "text/plain", "application/json; charset=utf-8", "application/vnd.kubernetes.protobuf", "application/cbor", "application/json;charset=utf-8;charset=utf-8", "application/json;a=b;a=c", "application/json;x", "application/json;x=", "application/json;", "application/json;;",
    'application/json;a="b;c"', 'application/json;a="b', "application/json;a=b c", "APPLICATION/JSON", "application/json,text/plain", "application/json x", "*/*", "application/*", "application/json-patch+json", "json",
]
SELECTORS = ["a in (b,)", "a notin ()", "a=" + "x" * 64, "x" * 64, "a=b c", "a in b", "!", "a!", "=b", "a,b", "a in (b),!c,d=e", "a>x", "a > 5,b < 3", "(a)", "a==b==c", "a=b;c", "\u00e9=a", "a\\=b", "a=b", "a!=b", "a in (b,c)", "!a", "a", "a notin (b)", "a=b,c", "a==b", "A_b=c", "-a=b", "a in ()", "a=b=c", "x/y/z=1", "a>1", "a<x", ",", "a in (b", "seq"]
FIELDS = ["metadata.name==a", "metadata.name=a\\,b", "metadata.name=a,metadata.namespace!=b", "metadata.name>a", "a=b=c", "metadata.name=\\", ",", "involvedObject.kind=ConfigMap", "metadata.labels.a=b", "metadata.name=a", "metadata.name!=a", "metadata.namespace=x", "spec.x=1", "metadata.name", "metadata.name=a,metadata.name=b", "=", "type=Opaque", "reason=x", "status.phase=Active"]
CERTIFICATE_REQUEST = (
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIaE1JR0pBZ0VBTUNjeEZUQVRCZ05WQkFNTURHUnBabVpsY21WdWRHbGhiREVPTUF3R0Ex"
    "VUVDZ3dGZEdWegpkSE13V1RBVEJnY3Foa2pPUFFJQkJnZ3Foa2pPUFFNQkJ3TkNBQVRPa1duWi9tNW15aStiN3RySGcvckd2THdCClNzcTZzSDlCSC9tUERQ"
    "WHZCajZFYWVmRTZiTlpoanpBdWtCS1RUT3FycUwwUEpxZnp1OHZHVTBsMUJza29BQXcKQ2dZSUtvWkl6ajBFQXdJRFJ3QXdSQUlnRXlSV1o4WmhyYlZETlA0"
    "aitSRnZPc2I5TWZxUXlQaWFrbU1XUEpjTQpsVTRDSUVOS3RwdHZSTXp5YUx5VGNJalp2ejZNUm1CNmJlZTdiT2l0MUJtcVpwalkKLS0tLS1FTkQgQ0VSVElG"
    "SUNBVEUgUkVRVUVTVC0tLS0tCg=="
)


# Forms that may have an odd query.
ODDLY_ASKED = {"create", "get", "list", "update", "update-status", "delete", "deletecollection", "patch-json", "patch-merge", "patch-strategic", "patch-apply", "token", "yaml"}


class Kind:
    def __init__(self, group, version, resource, kind, namespaced, base, status=False, subresources=(), verbs="full", strategic=True):
        self.group, self.version, self.resource, self.kind, self.namespaced = group, version, resource, kind, namespaced
        self.base, self.status, self.subresources, self.verbs, self.strategic = base, status, subresources, verbs, strategic

    @property
    def api_version(self):
        return f"{self.group}/{self.version}" if self.group else self.version

    def collection(self, namespace):
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.resource}" if self.namespaced else f"{root}/{self.resource}"


def rules(random):
    rule = {"apiGroups": random.choice([[""], ["apps"], ["*"], []]), "resources": random.choice([["pods"], ["pods", "pods/log"], ["*"]]), "verbs": random.choice([["get"], ["*"], ["get", "list"]])}
    if random.random() < 0.2:
        rule = {"nonResourceURLs": ["/x"], "verbs": ["get"]}
    return {"rules": [rule] * random.choice([0, 1, 1, 2])}


def binding(kind):
    def base(random, namespace):
        subject = random.choice([{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}, {"kind": "ServiceAccount", "name": "s", "namespace": namespace}, {"kind": "Group", "name": "g"}])
        return {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": random.choice(kind), "name": "r"}, "subjects": [subject] * random.choice([0, 1, 1, 2])}
    return base


def secret(random, _):
    return random.choice([
        {"data": {"a": "YQ=="}},
        {"stringData": {"a": "b"}, "type": "Opaque"},
        {"type": "kubernetes.io/basic-auth", "stringData": {"username": "u", "password": "p"}},
        {"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}},
        {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{}"}},
        {"type": "kubernetes.io/ssh-auth", "stringData": {"ssh-privatekey": "k"}},
        {"immutable": True, "data": {"a": "YQ=="}},
    ])


def event(random, namespace):
    reference = {"kind": "ConfigMap", "namespace": namespace, "name": "a", "apiVersion": "v1"}
    if random.random() < 0.5:
        return {"involvedObject": reference, "reason": "r", "message": "m", "type": "Normal", "source": {"component": "c"}, "count": 1}
    return {"involvedObject": reference, "reason": "r", "action": "a", "eventTime": "2024-01-02T03:04:05.000006Z", "reportingComponent": "example.com/c", "reportingInstance": "i", "type": "Warning"}


def new_event(random, namespace):
    reference = {"kind": "ConfigMap", "namespace": namespace, "name": "a", "apiVersion": "v1"}
    return {"regarding": reference, "reason": "r", "action": "a", "eventTime": "2024-01-02T03:04:05.000006Z", "reportingController": "example.com/c", "reportingInstance": "i", "type": "Normal", "note": "n"}


def quota(random, _):
    hard = random.choice([{"configmaps": "50"}, {"count/configmaps": "9", "secrets": "7"}, {"requests.cpu": "1", "limits.memory": "1Gi"}, {"pods": "3"}, {}])
    spec = {"hard": hard}
    if random.random() < 0.4:
        spec["scopes"] = random.choice([["Terminating"], ["BestEffort"], ["NotBestEffort", "NotTerminating"], ["Terminating", "NotTerminating"], ["x"]])
    if random.random() < 0.3:
        spec["scopeSelector"] = {"matchExpressions": [{"scopeName": random.choice(["PriorityClass", "Terminating", "x"]), "operator": random.choice(["In", "Exists", "DoesNotExist", "x"]), "values": random.choice([[], ["a"]])}]}
    return {"spec": spec}


def lease(random, _):
    spec = {"holderIdentity": "h", "leaseDurationSeconds": random.choice([15, 15, 0, -1]), "acquireTime": "2024-01-02T03:04:05.000006Z", "renewTime": "2024-01-02T03:04:05.000006Z", "leaseTransitions": random.choice([0, 1, -1])}
    made = {key: value for key, value in spec.items() if random.random() < 0.8}
    if random.random() < 0.3:
        # Of coordinated leader election, which is off unless both servers have it on.
        made.update(random.choice([{"strategy": "OldestEmulationVersion"}, {"strategy": "x"}, {"strategy": ""}, {"strategy": "OldestEmulationVersion", "preferredHolder": "i"}, {"preferredHolder": "i"}, {"preferredHolder": ""}, {"strategy": None}]))
    return {"spec": made}


def signing(random, _):
    signer = random.choice(["kubernetes.io/kube-apiserver-client", "example.com/s", "kubernetes.io/legacy-unknown", "x", "kubernetes.io/kubelet-serving"])
    return {"spec": {"request": CERTIFICATE_REQUEST, "signerName": signer, "usages": random.choice([["client auth"], ["digital signature", "client auth"], [], ["x"], ["server auth"]]), **({"expirationSeconds": random.choice([600, 3600, 1])} if random.random() < 0.5 else {})}}


FORMATS = ["date-time", "date", "uuid", "byte", "ipv4", "ipv6", "cidr", "mac", "hostname", "email", "uri", "duration", "password", "hexcolor", "int-or-string", "unknown", "k8s-short-name", "bsonobjectid", "isbn", "creditcard"]
OPERATORS = ["==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "&&", "||", "in"]
METHODS = ["size()", "startsWith('a')", "contains('a')", "matches('^a+$')", "matches('(')", "all(x, x > 1)", "exists(x, x == 'a')", "map(x, x + 1)", "filter(x, x)", "split(',')", "lowerAscii()", "isSorted()", "foo()", "all(1, true)", "exists_one(x, x == 'a')"]
NOISE = [" ", ")", "(", "]", "[", "'", "@", "=", "&", ".", ",", "?", ":", "!", "-", " x", "1"]


def expression(random, depth=0):
    """A CEL expression, which may have no type, and sometimes is none."""
    kind = random.random()
    if depth > 2 or kind < 0.3:
        return random.choice(["self", "oldSelf", "self.a", "self.b", "self.a.b", "1", "1.5", "'a'", "true", "null", "[]", "[1, 2]", "[1, 'a']", "{'a': 1}", "self[0]", "self['a']", "undefined", "b'x'", "1u", "self.?a", "-1"])
    if kind < 0.6:
        made = f"{expression(random, depth + 1)} {random.choice(OPERATORS)} {expression(random, depth + 1)}"
    elif kind < 0.75:
        made = f"{expression(random, depth + 1)}.{random.choice(METHODS)}"
    elif kind < 0.85:
        made = f"{random.choice(['size', 'string', 'int', 'double', 'type', 'dyn', 'duration', 'timestamp', 'quantity', 'has', 'bool', 'f', '!', '-'])}({expression(random, depth + 1)})"
    elif kind < 0.9:
        made = f"{expression(random, depth + 1)} ? {expression(random, depth + 1)} : {expression(random, depth + 1)}"
    else:
        made = f"({expression(random, depth + 1)})"
    if depth == 0 and random.random() < 0.2:
        place = random.randrange(len(made) + 1)
        made = made[:place] + random.choice(NOISE) + made[place + random.choice([0, 1]):]
    return made


def schema(random, depth=0):
    """A structural schema, more or less."""
    kind = random.choice(["string", "integer", "number", "boolean", "object", "array"] if depth < 3 else ["string", "integer"])
    made = {"type": kind}
    if kind == "object":
        made["properties"] = {name: schema(random, depth + 1) for name in random.sample(["a", "b", "c", "d"], random.choice([1, 2, 3]))}
        if random.random() < 0.2:
            made["required"] = random.choice([["a"], ["z"], []])
        if random.random() < 0.15:
            made["x-kubernetes-preserve-unknown-fields"] = random.choice([True, False])
        if random.random() < 0.15:
            made = {"type": "object", "additionalProperties": schema(random, depth + 1)}
    elif kind == "array":
        made["items"] = schema(random, depth + 1)
        if random.random() < 0.4:
            made["x-kubernetes-list-type"] = random.choice(["atomic", "set", "map", "x"])
            if made["x-kubernetes-list-type"] == "map":
                made["x-kubernetes-list-map-keys"] = random.choice([["a"], ["a", "b"], []])
        if random.random() < 0.3:
            made["maxItems"] = random.choice([1, 3, 100])
    elif kind == "string":
        for name, values in (("enum", [["a", "b"], ["a", "a"], []]), ("pattern", ["^[a-z]+$", "("]), ("maxLength", [1, 10]), ("minLength", [1, 5]), ("format", FORMATS)):
            if random.random() < 0.15:
                made[name] = random.choice(values)
    elif kind in ("integer", "number"):
        for name, values in (("minimum", [0, 1, 1.5]), ("maximum", [10, 0]), ("multipleOf", [2, 0.1, 0]), ("exclusiveMinimum", [True]), ("format", ["int32", "int64", "float", "double"])):
            if random.random() < 0.15:
                made[name] = random.choice(values)
    if random.random() < 0.04:
        made = random.choice([{"x-kubernetes-int-or-string": True}, {"x-kubernetes-preserve-unknown-fields": True}, {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}, {"type": "object", "x-kubernetes-embedded-resource": True}, {"type": "object", "x-kubernetes-map-type": random.choice(["atomic", "granular", "x"])}, {"type": "object", "additionalProperties": random.choice([True, False])}, {"type": "string", "uniqueItems": random.choice([True, False])}, {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}, {"type": "object", "minProperties": 1, "maxProperties": 0}, {"type": "array", "items": [{"type": "string"}]}, {"type": "x"}, {}])
    for name, values in (("nullable", [True]), ("description", ["d"]), ("default", ["a", 1, {}, [], None, True]), ("anyOf", [[{"minimum": 1}], [{"required": ["a"]}]]), ("not", [{"required": ["b"]}])):
        if random.random() < 0.07:
            made[name] = random.choice(values)
    if random.random() < 0.15:
        rule = random.choice(["self == self", "self.a > 1", "self.size() > 0", "has(self.a)", "self > 0", "oldSelf == self", "self.all(x, x > 0)", "1 +", "undefined", "self.a.b == 1", "size(self) < 10 && self.exists(x, x == 'a')"])
        rule = expression(random) if random.random() < 0.7 else rule
        made["x-kubernetes-validations"] = [{"rule": rule, **random.choice([{}, {"message": "m"}, {"messageExpression": "'x' + string(self)"}, {"messageExpression": expression(random)}, {"message": " "}, {"message": "a\nb"}, {"reason": "x"}, {"fieldPath": "a"}, {"optionalOldSelf": True}, {"optionalOldSelf": False}, {"reason": "FieldValueForbidden"}, {"fieldPath": ".a"}])}]
    return made


def definition(random, _):
    group = "d.example.com"
    plural = random.choice(["widgets", "gadgets"]) + "".join(random.choice("abcdefgh") for _ in range(4))
    names = {"plural": plural, "kind": plural[:1].upper() + plural[1:-1], **random.choice([{}, {"singular": plural[:-1], "listKind": "L" + plural}, {"shortNames": ["w"], "categories": ["all"]}])}
    spec_schema = schema(random)
    versions = [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec_schema}}}}]
    if random.random() < 0.3:
        versions.append({"name": random.choice(["v2", "v1beta1", "v1"]), "served": random.random() < 0.8, "storage": random.random() < 0.1, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}, **random.choice([{}, {"deprecated": True, "deprecationWarning": "old"}])})
    if random.random() < 0.4:
        versions[0]["subresources"] = random.choice([{"status": {}}, {"scale": {"specReplicasPath": ".spec.a", "statusReplicasPath": ".status.b"}}, {"status": {}, "scale": {"specReplicasPath": "spec.a", "statusReplicasPath": ".status.b"}}])
    if random.random() < 0.3:
        versions[0]["additionalPrinterColumns"] = [{"name": "A", "type": random.choice(["string", "integer", "date", "x"]), "jsonPath": random.choice([".spec.a", ".metadata.creationTimestamp", "spec", ".spec["])}]
    if random.random() < 0.2:
        versions[0]["selectableFields"] = [{"jsonPath": random.choice([".spec.a", ".metadata.name", "spec.a", ".spec"])}]
    return {"metadata": {"name": f"{plural}.{group}"}, "spec": {"group": group, "scope": random.choice(["Namespaced", "Cluster"]), "names": names, "versions": versions, **random.choice([{}, {}, {"preserveUnknownFields": False}, {"conversion": {"strategy": "None"}}])}}


THING = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.diff.example.com"},
    "spec": {
        "group": "diff.example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList", "shortNames": ["th"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
                "additionalPrinterColumns": [{"name": "Color", "type": "string", "jsonPath": ".spec.color"}, {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1}],
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["color"],
                                "properties": {
                                    "color": {"type": "string", "enum": ["red", "blue", ""], "default": "red"},
                                    "size": {"type": "integer", "minimum": 1, "maximum": 10},
                                    "ratio": {"type": "number", "multipleOf": 0.5},
                                    "replicas": {"type": "integer", "format": "int32", "minimum": 0},
                                    "when": {"type": "string", "format": "date-time"},
                                    "port": {"x-kubernetes-int-or-string": True},
                                    "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "x-kubernetes-list-type": "set", "maxItems": 3},
                                    "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "count": {"type": "integer", "default": 1}}}},
                                    "labels": {"type": "object", "additionalProperties": {"type": "string", "pattern": "^[a-z]*$"}},
                                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    "maybe": {"type": "string", "nullable": True},
                                    "one": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
                                },
                                "x-kubernetes-validations": [{"rule": "!has(self.size) || self.size != 7", "message": "size must not be seven"}, {"rule": "!has(self.replicas) || !has(oldSelf.replicas) || self.replicas >= oldSelf.replicas", "messageExpression": "'replicas ' + 'shrank'"}],
                            },
                            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}, "phase": {"type": "string", "enum": ["A", "B"]}}},
                        },
                    }
                },
            }
        ],
    },
}


GIZMO = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gizmos.diff.example.com"},
    "spec": {
        "group": "diff.example.com",
        "scope": "Namespaced",
        "names": {"plural": "gizmos", "singular": "gizmo", "kind": "Gizmo", "listKind": "GizmoList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    **{name.replace("-", "_"): {"type": "string", "format": name} for name in FORMATS if name != "unknown"},
                                    "int32": {"type": "integer", "format": "int32", "minimum": -5},
                                    "half": {"type": "integer", "minimum": 1.5},
                                    "step": {"type": "integer", "multipleOf": 3, "maximum": 9, "exclusiveMaximum": True},
                                    "float": {"type": "number", "format": "float", "maximum": 1e6},
                                    "double": {"type": "number", "format": "double", "multipleOf": 0.25, "minimum": -1},
                                    "flag": {"type": "boolean", "default": False},
                                    "word": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
                                    "codes": {"type": "integer", "enum": [1, 2, 3]},
                                    "matrix": {"type": "array", "maxItems": 2, "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "maximum": 5}}},
                                    "map": {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "object", "required": ["v"], "properties": {"v": {"type": "integer"}, "w": {"type": "string", "default": "d"}}}},
                                    "ports": {"type": "array", "maxItems": 9, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"], "items": {"type": "object", "required": ["port"], "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "name": {"type": "string", "maxLength": 5}}}},
                                    "atomic": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
                                    "closed": {"type": "object", "additionalProperties": False},
                                    "open": {"type": "object", "additionalProperties": True},
                                    "mixed": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"a": {"type": "integer"}, "deep": {"type": "object", "properties": {"b": {"type": "string"}}}}},
                                    "raw": {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True},
                                    "either": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^[0-9]+%?$"},
                                    "union": {"type": "object", "properties": {"kind": {"type": "string"}, "a": {"type": "integer"}, "b": {"type": "string"}}, "anyOf": [{"required": ["a"], "properties": {"kind": {"enum": ["A"]}}}, {"required": ["b"], "properties": {"kind": {"enum": ["B"]}}}]},
                                    "both": {"type": "string", "allOf": [{"minLength": 2}, {"maxLength": 3}, {"pattern": "^x"}]},
                                    "not": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "not": {"required": ["a", "b"]}},
                                    "nested": {"type": "object", "default": {"x": "dx"}, "properties": {"x": {"type": "string", "default": "dx2"}, "y": {"type": "array", "items": {"type": "object", "properties": {"z": {"type": "integer", "default": 5}}}}}},
                                    "null": {"type": "object", "nullable": True, "properties": {"a": {"type": "string", "nullable": True, "enum": ["a", None]}}},
                                    "any": {"x-kubernetes-preserve-unknown-fields": True},
                                    "once": {"type": "string", "maxLength": 9, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "once is immutable", "reason": "FieldValueForbidden"}]},
                                    "even": {"type": "integer", "x-kubernetes-validations": [{"rule": "self % 2 == 0", "messageExpression": "'not even: %d'.format([self])"}, {"rule": "10 / self > 0"}]},
                                    "dup": {"type": "string", "maxLength": 5, "x-kubernetes-validations": [{"rule": "self != 'dup'", "reason": "FieldValueDuplicate"}]},
                                    "need": {"type": "object", "properties": {"a": {"type": "string"}}, "x-kubernetes-validations": [{"rule": "has(self.a)", "reason": "FieldValueRequired", "fieldPath": ".a", "message": "a is needed"}]},
                                    "grow": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 5}, "x-kubernetes-validations": [{"rule": "oldSelf.all(x, x in self)", "message": "only grows"}, {"rule": "!oldSelf.hasValue() || self.size() >= oldSelf.value().size()", "optionalOldSelf": True}]},
                                    "key": {"type": "object", "maxProperties": 3, "additionalProperties": {"type": "integer"}, "x-kubernetes-validations": [{"rule": "self['k'] > 0"}, {"rule": "self.all(k, k.size() < 3)"}]},
                                },
                            },
                            "status": {"type": "object", "properties": {"count": {"type": "integer", "minimum": 0}, "phase": {"type": "string", "enum": ["A", "B"]}}},
                        },
                        "x-kubernetes-validations": [{"rule": "!has(self.spec) || !has(self.spec.word) || self.spec.word != self.metadata.name"}],
                    }
                },
                "subresources": {"status": {}},
            }
        ],
    },
}
TEXTS = ["", "a", "ab", "abcd", "abcde", "x", "xy", "2024-01-02T03:04:05Z", "2024-01-02", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "YQ==", "10.0.0.1", "::1", "10.0.0.0/8", "aa:bb:cc:dd:ee:ff", "a.example.com", "a@b.c", "http://a/b", "1h", "2 days", "#fff", "50%", "507f1f77bcf86cd799439011", "0321751043", "4111111111111111", "A_b", "dup", "k", "\u00e9"]
NUMBERS = [0, 1, 2, 3, 4, 6, 9, 12, -1, -6, 1.5, 0.3, 0.25, 2**31, 2**53 + 1, 2**63, 1e300, 1e30, 1e6, 2e6, 3.0]


def fitting(random, node, depth=0):
    """A value of a custom schema, or of something else."""
    if random.random() < 0.06:
        return random.choice([None, True, 1, 1.5, "a", [], {}, ["a"], {"a": 1}, [None]])
    if "enum" in node and random.random() < 0.8:
        return random.choice(node["enum"])
    kind = node.get("type") or ("mixed" if "x-kubernetes-int-or-string" in node else "any")
    if kind == "object":
        parts = {name: fitting(random, part, depth + 1) for name, part in node.get("properties", {}).items() if random.random() < (0.12 if depth == 0 else 0.6)}
        if "additionalProperties" in node or random.random() < 0.04:
            inner = node.get("additionalProperties")
            inner = inner if isinstance(inner, dict) else {"type": random.choice(["string", "integer"])}
            parts.update({random.choice(["k", "v", "key", "a.b"]): fitting(random, inner, depth + 1) for _ in range(random.choice([0, 1, 1, 2, 3]))})
        if node.get("x-kubernetes-embedded-resource"):
            parts = {"apiVersion": random.choice(["v1", "a/b/c", "", 1]), "kind": random.choice(["K", "a_b", ""]), "metadata": random.choice([{"name": "a"}, {"name": "a/b"}, {"labels": {"-": "x"}}, {}, {"bogus": 1}]), "x": 1}
            for name in list(parts):
                if random.random() < 0.2:
                    del parts[name]
        return parts
    if kind == "array":
        return [fitting(random, node.get("items", {}), depth + 1) for _ in range(random.choice([0, 1, 1, 2, 3]))]
    if kind in ("integer", "number"):
        return random.choice(NUMBERS)
    if kind == "boolean":
        return random.choice([True, False])
    return random.choice(TEXTS) if kind == "string" or random.random() < 0.6 else random.choice(NUMBERS)


def gizmo(random, _):
    root = GIZMO["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return {"spec": fitting(random, root["spec"]), **({"status": fitting(random, root["status"], 1)} if random.random() < 0.2 else {})}


def generated(definition, version=0):
    """The kind of a generated definition, in one of its versions."""
    names, served = definition["spec"]["names"], definition["spec"]["versions"][version]
    root = served["schema"]["openAPIV3Schema"]["properties"]
    parts = served.get("subresources", {})

    def base(random, _):
        return {"spec": fitting(random, root["spec"], random.choice([0, 1])), **({"status": fitting(random, root["status"], 1)} if random.random() < 0.2 else {})}

    return Kind(definition["spec"]["group"], served["name"], names["plural"], names["kind"], definition["spec"]["scope"] == "Namespaced", base, status="status" in parts, subresources=("scale",) if "scale" in parts else (), strategic=False)


def ruled(definition):
    """The kind of a definition with generated rules."""
    names = definition["spec"]["names"]
    return Kind(definition["spec"]["group"], "v1", names["plural"], names["kind"], True, expressions.spec, verbs="rules", strategic=False)


def thing(random, _):
    values = {
        "color": ["red", "blue", "green"], "size": [1, 5, 7, 11, 1.5], "ratio": [0.5, 0.3, 1], "replicas": [0, 1, 2**31], "when": ["2024-01-02T03:04:05Z", "x"],
        "port": [80, "http", 1.5], "tags": [["a"], ["a", "a"], ["toolong"], ["a", "b", "c", "d"]], "parts": [[{"name": "a"}], [{"name": "a"}, {"name": "a"}], [{"count": 1}], [{"name": "a", "count": 2}, {"name": "b"}]],
        "labels": [{"a": "b"}, {"a": "B"}], "free": [{"x": {"y": [1]}}, {}], "maybe": [None, "x"], "one": [{"a": "x"}, {"b": "x"}, {"a": "x", "b": "y"}, {}], "unknown": [1],
    }
    spec = {name: (choices[0] if random.random() < 0.6 else random.choice(choices)) for name, choices in values.items() if random.random() < 0.3}
    return {"spec": {"color": "red", **spec}}


def review(random, _):
    attributes = {"namespace": "default", "verb": random.choice(["get", "*", ""]), "group": random.choice(["", "apps", "*"]), "resource": random.choice(["pods", "*", ""]), "name": random.choice(["", "a"])}
    if random.random() < 0.2:
        attributes["fieldSelector"] = random.choice([{"rawSelector": "a=b"}, {"requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}, {"rawSelector": "a=b", "requirements": []}])
    spec = {"resourceAttributes": attributes} if random.random() < 0.7 else {"nonResourceAttributes": {"path": "/x", "verb": "get"}}
    if random.random() < 0.1:
        spec["nonResourceAttributes"] = {"path": "/x", "verb": "get"}
    return {"spec": spec}


def subject_review(random, namespace):
    made = review(random, namespace)
    made["spec"].update(random.choice([{"user": "u"}, {"groups": ["g"]}, {"user": "u", "extra": {"a": ["b"]}}, {}]))
    return made


SEEN = ["object.a == 1", "object.spec.a.b > 1", "oldObject == null", "request.name == 'a'", "request.userInfo.groups.all(g, g != 'x')", "namespaceObject.metadata.labels['a'] == 'b'", "request.kind.group in ['apps']", "has(object.spec.a)", "authorizer.group('apps').resource('deployments').subresource('status').namespace('n').name('a').check('get').allowed()", "authorizer.path('/healthz').check('get').reason() == ''", "authorizer.requestResource.check('update').errored()", "authorizer.serviceAccount('n', 'a').group('').resource('pods').check('list').allowed()", "params.a == 'b'", "variables.a", "variables.b == 1", "request.options.kind == ''", "request.nothing", "namespaceObject.spec.x", "object", "1", "'a'", "null", "authorizer", "variables", "string(object.a)", "object.metadata.name.startsWith('a')", "object.l.map(x, x + 1)[0] == dyn(1)", "object.?a.orValue(1) == 1", "[1, 2].exists(x, x == object.a)", "Object{a: 1}", "JSONPatch{op: 'add'}", "[JSONPatch{op: 'add', path: '/a/' + jsonpatch.escapeKey('b/c'), value: Object.a{b: [1]}}]", "[]", "Object{metadata: Object.metadata{labels: {'a': 'b'}}, ?spec: optional.none()}", "JSONPatch{op: 1}", "JSONPatch{x: 'a'}", "Object.a{}", "[JSONPatch{op: 'remove', path: '/a', from: '/b'}, JSONPatch{op: 'test', path: '/c', value: 1}]"]


def seen(random):
    """An expression of admission."""
    kind = random.random()
    if kind < 0.5:
        return random.choice(SEEN)
    if kind < 0.75:
        return f"{random.choice(SEEN)} {random.choice(OPERATORS)} {random.choice(SEEN)}"
    return expression(random).replace("self", random.choice(["object", "oldObject", "object.spec", "request", "params", "variables"])).replace("oldSelf", "oldObject")


def some(random, made, most=3):
    return [made() for _ in range(random.choice([0, 1, 1, 1, 2, most]))]


def matching(random):
    """Matches nothing that is served."""
    def rule():
        made = {
            "apiGroups": random.choice([["none.example.com"], ["none.example.com", "*"], [], ["none.example.com", "b.example.com"]]),
            "apiVersions": random.choice([["v1"], ["*"], ["v1", "*"], [""], []]),
            "operations": random.choice([["CREATE"], ["CREATE", "UPDATE"], ["*"], ["*", "CREATE"], ["DELETE"], ["CONNECT"], ["create"], []]),
            "resources": random.choice([["things"], ["things", "things/status"], ["things/*", "things/status"], ["*/status", "a/status"], ["*", "things"], ["*/*", "a"], [""], ["things/*"], []]),
        }
        if random.random() < 0.3:
            made["scope"] = random.choice(["*", "Cluster", "Namespaced", "x", None])
        if random.random() < 0.2:
            made["resourceNames"] = random.choice([["a"], ["a", "a"], ["a/b"], [""]])
        return made
    made = {"resourceRules": [rule() for _ in range(random.choice([0, 1, 1, 1, 2]))]}
    if random.random() < 0.4:
        made[random.choice(["namespaceSelector", "objectSelector"])] = random.choice([{}, {"matchLabels": {"a": "b"}}, {"matchExpressions": [{"key": "k", "operator": random.choice(["In", "Exists", "x"]), "values": random.choice([[], ["v"]])}]}, {"matchLabels": {"-": "x y"}}])
    if random.random() < 0.2:
        made["matchPolicy"] = random.choice(["Exact", "Equivalent", "x"])
    if random.random() < 0.2:
        made["excludeResourceRules"] = [rule()]
    return made


def policy(random):
    spec = {}
    if random.random() < 0.9:
        spec["matchConstraints"] = matching(random)
    if random.random() < 0.4:
        spec["paramKind"] = random.choice([{"apiVersion": "v1", "kind": "ConfigMap"}, {"apiVersion": "a/b/c", "kind": "X"}, {"apiVersion": "v1"}, {"kind": "a_b"}, {"apiVersion": "/", "kind": "A"}, {"apiVersion": "x_y/v1", "kind": "A"}, {"apiVersion": "x/1", "kind": "A"}])
    if random.random() < 0.3:
        spec["failurePolicy"] = random.choice(["Fail", "Ignore", "x"])
    if random.random() < 0.4:
        spec["variables"] = some(random, lambda: {"name": random.choice(["a", "b", "a", "if", "1", "a-b", ""]), "expression": random.choice([seen(random), "1", ""])})
    if random.random() < 0.3:
        spec["matchConditions"] = some(random, lambda: {"name": random.choice(["a", "b", "a.b/c", "-", ""]), "expression": random.choice([seen(random), "true", ""])})
    return spec


def validating(random, _):
    spec = policy(random)
    def validation():
        made = {"expression": random.choice([seen(random), seen(random), "true", "", " "])}
        for field, values in {"message": ["no", "a\nb", " ", ""], "messageExpression": ["'a'", "1", "'a' + params.b", " ", seen(random)], "reason": ["Forbidden", "Invalid", "x", "Unauthorized"]}.items():
            if random.random() < 0.3:
                made[field] = random.choice(values)
        return made
    if random.random() < 0.9:
        spec["validations"] = some(random, validation)
    if random.random() < 0.3:
        spec["auditAnnotations"] = some(random, lambda: {"key": random.choice(["a", "b", "a/b", ""]), "valueExpression": random.choice(["'a'", "null", "1", "", seen(random)])})
    return {"spec": spec}


def mutating(random, _):
    spec = policy(random)
    def mutation():
        made = {"patchType": random.choice(["JSONPatch", "ApplyConfiguration", "ApplyConfiguration", "x", ""])}
        if random.random() < 0.8:
            made["applyConfiguration"] = {"expression": random.choice([seen(random), "Object{}", "Object{a: object.b}", ""])}
        if random.random() < 0.4:
            made["jsonPatch"] = {"expression": random.choice([seen(random), "[JSONPatch{op: 'add', path: '/a', value: 1}]", ""])}
        return made
    if random.random() < 0.9:
        spec["mutations"] = some(random, mutation)
    if random.random() < 0.9:
        spec["reinvocationPolicy"] = random.choice(["Never", "IfNeeded", "Never", "x", ""])
    return {"spec": spec}


def policy_binding(actions):
    def base(random, _):
        spec = {"policyName": random.choice(["none", "none", "A_", ""])}
        if actions and random.random() < 0.9:
            spec["validationActions"] = random.choice([["Deny"], ["Warn", "Audit"], ["Deny", "Warn"], ["Deny", "Deny"], ["x"], []])
        if random.random() < 0.5:
            spec["matchResources"] = matching(random)
        if random.random() < 0.5:
            spec["paramRef"] = random.choice([{"name": "a", "namespace": "n", "parameterNotFoundAction": "Deny"}, {"selector": {"matchLabels": {"a": "b"}}, "parameterNotFoundAction": "Allow"}, {"name": "a"}, {"parameterNotFoundAction": "x"}, {"name": "a/b", "selector": {}, "parameterNotFoundAction": "Deny"}, {"selector": {"matchExpressions": [{"key": "k", "operator": "x"}]}}])
        return {"spec": spec}
    return base


def flow_rule(random):
    """Of users that do not exist."""
    subject = lambda: random.choice([
        {"kind": "User", "user": {"name": random.choice(["none", "none", ""])}},
        {"kind": "Group", "group": {"name": random.choice(["none", "none:x", ""])}},
        {"kind": "ServiceAccount", "serviceAccount": {"namespace": random.choice(["none", "N_", ""]), "name": random.choice(["none", "*", "N_", ""])}},
        {"kind": "User", "group": {"name": "none"}},
        {"kind": "User", "user": {"name": "none"}, "group": {"name": "none"}},
        {"kind": random.choice(["x", ""])},
    ])
    words = lambda *more: random.choice([["*"], [more[0]], list(more), ["*", more[0]], [], [more[0], more[0]]])
    resource = lambda: {
        "verbs": words("get", "list", "x"), "apiGroups": words("", "apps", "A_"), "resources": words("pods", "pods/log", "A_"),
        **random.choice([{"clusterScope": True}, {"namespaces": words("default", "n", "N_")}, {"clusterScope": True, "namespaces": ["*"]}, {}]),
    }
    path = lambda: {"verbs": words("get", "post", "x"), "nonResourceURLs": words("/healthz", "/a/*", "a", "/a*", "/*/b", " /")}
    return {"subjects": some(random, subject), "resourceRules": some(random, resource, 2), "nonResourceRules": some(random, path, 2)}


def flow_schema(random, _):
    spec = {"priorityLevelConfiguration": {"name": random.choice(["global-default"] * 4 + ["none", "N_", ""])}}
    if random.random() < 0.8:
        spec["matchingPrecedence"] = random.choice([9000, 9001, 10000, 10001, 0, -1, 1])
    if random.random() < 0.6:
        spec["distinguisherMethod"] = random.choice([{"type": "ByUser"}, {"type": "ByNamespace"}, {"type": "x"}, {}, None])
    if random.random() < 0.8:
        spec["rules"] = some(random, lambda: flow_rule(random))
    return {"spec": spec}


def priority_level(random, _):
    numbers = [None, 0, 1, 30, 100, 101, -1]
    shares = lambda: {name: random.choice(numbers) for name in ("nominalConcurrencyShares", "lendablePercent") if random.random() < 0.5}
    queuing = {name: random.choice([None, 0, 1, 8, 50, 64, 10_000_000, 10_000_001, -1]) for name in ("queues", "handSize", "queueLengthLimit") if random.random() < 0.5}
    response = random.choice([{"type": "Reject"}, {"type": "Queue", "queuing": queuing}, {"type": "Queue", "queuing": queuing}, {"type": "Reject", "queuing": queuing}, {"type": "Queue"}, {"type": "x"}, {}])
    limited = {**shares(), **random.choice([{}, {"borrowingLimitPercent": random.choice([0, 50, 1000, -1])}]), "limitResponse": response}
    spec = {"type": random.choice(["Limited"] * 6 + ["Exempt", "x", ""])}
    if random.random() < 0.9:
        spec["limited"] = limited
    if random.random() < 0.15:
        spec["exempt"] = shares()
    return {"spec": spec}


def api_service(random, _):
    spec = {"version": random.choice(["v1"] * 8 + ["v2beta1", "V_", "1"])}
    if random.random() < 0.1:
        spec["group"] = random.choice(["other.example.com", "A_", ""])
    for field, numbers in (("groupPriorityMinimum", [1, 20_000, 20_001, 0, -1]), ("versionPriority", [1, 1000, 1001, 0, -1])):
        if random.random() < 0.9:
            spec[field] = random.choice([1] * 6 + numbers)
    if random.random() < 0.2:
        spec["service"] = {"namespace": random.choice(["none", ""]), "name": random.choice(["none", "N_", ""]), **random.choice([{}, {"port": random.choice([443, 0, 70_000, -1])}])}
    if random.random() < 0.2:
        spec["caBundle"] = random.choice(["YQ==", "", "x"])
    if random.random() < 0.1:
        spec["insecureSkipTLSVerify"] = random.choice([True, False])
    return {"spec": spec}


def client_config(random):
    made = {}
    if random.random() < 0.6:
        made["url"] = random.choice(["https://webhook.example.com/a", "https://webhook.example.com:8443", "http://webhook.example.com", "https://user@webhook.example.com", "https://webhook.example.com?a=b", "https://webhook.example.com#a", "https://", "x", ""])
    if random.random() < 0.5:
        made["service"] = {"name": random.choice(["s", "A_", ""]), "namespace": random.choice(["n", ""]), **random.choice([{}, {"path": "/a"}, {"path": "a//b"}, {"path": "/"}, {"path": "/a?b"}, {"path": "/a/B_c/"}, {"port": 0}, {"port": 65536}, {"port": 8443}])}
    if random.random() < 0.3:
        made["caBundle"] = random.choice(["", "YQ==", "%", "LS0tLS1CRUdJTg=="])
    return made


def webhooks(mutates):
    """Configurations of webhooks that review nothing that is served."""
    def webhook(random):
        made = {"name": random.choice(["a.example.com", "b.example.com", "a.example.com", "short", "A.b.c", "a.b_c.d", ""]), "clientConfig": client_config(random), "rules": matching(random)["resourceRules"]}
        for field, values in {
            "sideEffects": ["None", "NoneOnDryRun", "None", "Some", "Unknown", "x", ""],
            "admissionReviewVersions": [["v1"], ["v1beta1", "v1"], ["v1", "v1"], ["v2"], ["v1", "1"], [""], []],
            "timeoutSeconds": [1, 30, 0, 31, -1, 10],
            "failurePolicy": ["Fail", "Ignore", "x", ""],
            "matchPolicy": ["Exact", "Equivalent", "x"],
            "namespaceSelector": [{}, {"matchLabels": {"a": "b"}}, {"matchExpressions": [{"key": "k", "operator": "In"}]}, {"matchLabels": {"-": "x y"}}],
            "objectSelector": [{}, {"matchExpressions": [{"key": "", "operator": "Exists", "values": ["a"]}]}, {"matchLabels": {"a": "b"}}],
        }.items():
            if random.random() < (0.9 if field in ("sideEffects", "admissionReviewVersions") else 0.25):
                made[field] = random.choice(values)
        if mutates and random.random() < 0.4:
            made["reinvocationPolicy"] = random.choice(["Never", "IfNeeded", "x", ""])
        if random.random() < 0.3:
            made["matchConditions"] = some(random, lambda: {"name": random.choice(["a", "b", "a.b/c", "-", ""]), "expression": random.choice([seen(random), "true", "", " "])})
        return made

    def base(random, _):
        return {"webhooks": some(random, lambda: webhook(random))} if random.random() < 0.95 else {}
    return base


ADMISSION, AUTHORIZATION, RBAC = "admissionregistration.k8s.io", "authorization.k8s.io", "rbac.authorization.k8s.io"
FLOW = "flowcontrol.apiserver.k8s.io"
KINDS = [
    Kind("", "v1", "configmaps", "ConfigMap", True, lambda random, _: {"data": {"a": "1"}, **random.choice([{}, {"binaryData": {"b": "YQ=="}}, {"immutable": True}])}),
    Kind("", "v1", "secrets", "Secret", True, secret),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", True, lambda random, _: random.choice([{}, {"automountServiceAccountToken": False}, {"imagePullSecrets": [{"name": "x"}]}, {"secrets": [{"name": "y"}]}]), subresources=("token",)),
    Kind("", "v1", "resourcequotas", "ResourceQuota", True, quota, status=True),
    Kind("", "v1", "events", "Event", True, event),
    Kind("", "v1", "namespaces", "Namespace", False, lambda random, _: random.choice([{}, {}, {"spec": {"finalizers": ["kubernetes"]}}, {"spec": {"finalizers": ["x.example.com/y"]}}]), status=True, subresources=("finalize",)),
    Kind("events.k8s.io", "v1", "events", "Event", True, new_event),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", True, lease),
    Kind(RBAC, "v1", "roles", "Role", True, lambda random, _: rules(random)),
    Kind(RBAC, "v1", "clusterroles", "ClusterRole", False, lambda random, _: {**rules(random), **random.choice([{}, {}, {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}])}),
    Kind(RBAC, "v1", "rolebindings", "RoleBinding", True, binding(["Role", "ClusterRole", "x"])),
    Kind(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, binding(["ClusterRole", "Role"])),
    Kind("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", False, signing, status=True, subresources=("approval",)),
    Kind(ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False, validating, status=True),
    Kind(ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False, policy_binding(True)),
    Kind(ADMISSION, "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", False, mutating),
    Kind(ADMISSION, "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", False, policy_binding(False)),
    Kind(FLOW, "v1", "flowschemas", "FlowSchema", False, flow_schema, status=True),
    Kind(FLOW, "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration", False, priority_level, status=True),
    Kind("apiregistration.k8s.io", "v1", "apiservices", "APIService", False, api_service, status=True),
    Kind(ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False, webhooks(False)),
    Kind(ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False, webhooks(True)),
    Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, definition, status=True, verbs="definitions"),
    Kind("diff.example.com", "v1", "things", "Thing", True, thing, status=True, subresources=("scale",), strategic=False),
    Kind("diff.example.com", "v1", "gizmos", "Gizmo", True, gizmo, status=True, strategic=False),
    Kind(AUTHORIZATION, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, review, verbs="review"),
    Kind(AUTHORIZATION, "v1", "subjectaccessreviews", "SubjectAccessReview", False, subject_review, verbs="review"),
    Kind(AUTHORIZATION, "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", True, subject_review, verbs="review"),
    Kind(AUTHORIZATION, "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False, lambda random, _: {"spec": random.choice([{"namespace": "default"}, {}])}, verbs="review"),
    Kind("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False, lambda *_: {}, verbs="review"),
    Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, lambda random, _: {"spec": random.choice([{"token": "x"}, {}, {"token": "x", "audiences": ["a"]}])}, verbs="review"),
    # What is no resource: only by its name.
    Kind("", "", "paths", "", False, None, verbs="paths"),
]


def random_yaml(random, kind, name):
    """An object in YAML: anchors, repeated keys, types that other dialects have, several documents."""
    parts = [f"apiVersion: {kind.api_version}", f"kind: {kind.kind}", "metadata:", f"  name: {name}"]
    parts += random.choice([[], ["  labels: {a: b}"], ["  labels:", "    a: yes"], ["  labels: &l", "    a: b", "  annotations: *l"], ["  annotations:", "    a: 1.0"], ["  labels:", "    a: b", "    a: c"], ["  annotations:", "    a: |", "      b"], ["  generation: 0x10"], ["  labels: !!str x"], ["  labels:", "    a: ~"]])
    parts += random.choice([[], [], ["data:", "  a: b"], ["data:", "  a: 010"], ["---", "kind: x"], ["\tdata: x"], ["data: [a"], ["data:", "  <<: {a: b}"], ["? a", ": b"], ["spec: 1e30"], ["# end"]])
    return "\n".join(parts) + "\n"


def directives(random, body):
    """Adds directives of strategic patches to maps and lists that there may or may not be."""
    finalizers = [["x.example.com/y"], ["x.example.com/y", "z.example.com/y"], [], ["z.example.com/y", "x.example.com/y"], "x", [1], [["a"]]]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}
    item = lambda key, value: random.choice([{key: value}, {key: value, "$patch": random.choice(["delete", "replace", "merge", "x", 1])}, {"$patch": random.choice(["replace", "delete", "x"])}, {}, "x", {key: value, "$retainKeys": [key]}])
    whole = lambda: random.choice([{"$patch": random.choice(["replace", "delete", "merge", "x", None])}, {"$patch": random.choice(["replace", "delete"]), "a": "b"}, {"$retainKeys": random.choice([["a"], ["c"], "a", []]), "a": "b"}])
    metadata = body["metadata"] if isinstance(body.get("metadata"), dict) else body.setdefault("metadata", {})
    for _ in range(random.choice([1, 1, 2])):
        place = random.random()
        target = metadata if isinstance(metadata, dict) else {}
        if place < 0.25:
            target[random.choice(["labels", "annotations"])] = whole()
        elif place < 0.5:
            name = random.choice(["finalizers", "$deleteFromPrimitiveList/finalizers", "$setElementOrder/finalizers"])
            target[name] = random.choice(finalizers)
        elif place < 0.65:
            target["ownerReferences"] = [random.choice([owner, item("uid", random.choice(["u", "v"]))]) for _ in range(random.choice([1, 2]))]
            if random.random() < 0.4:
                target["$setElementOrder/ownerReferences"] = random.choice([[{"uid": "u"}], [{"uid": "v"}, {"uid": "u"}], [{}], "x"])
        elif place < 0.8:
            body[random.choice(["data", "spec", "status", "roleRef", "involvedObject"])] = whole()
        else:
            name = random.choice(["secrets", "imagePullSecrets", "subjects", "rules"])
            body[name] = [item("name", random.choice(["x", "y"])) for _ in range(random.choice([1, 2]))]
            # kube-apiserver's handler panics over the order of a list that does not merge.
            if name == "secrets" and random.random() < 0.5:
                body[f"$setElementOrder/{name}"] = random.choice([[{"name": "y"}, {"name": "x"}], [{"name": "x"}], [], ["x"], None])


def added(random, body, name):
    """What the subresources of pods may change: other containers, other resources."""
    spec = body.get("spec") if isinstance(body.get("spec"), dict) else body.setdefault("spec", {})
    if not isinstance(spec, dict):
        return body
    if name == "ephemeralcontainers":
        debugger = {"name": random.choice(["debug", "debug", "c", "D_", ""]), "image": random.choice(["i", "i", ""]), **random.choice([{}, {}, {"targetContainerName": random.choice(["c", "none"])}, {"ports": [{"containerPort": 1}]}, {"resources": {"limits": {"cpu": "1"}}}, {"livenessProbe": {}}, {"stdin": True, "tty": True}])}
        spec["ephemeralContainers"] = [debugger] * random.choice([1, 1, 2])
    else:
        for container in spec.get("containers") or [] if isinstance(spec.get("containers"), list) else []:
            if isinstance(container, dict):
                container["resources"] = random.choice([{"requests": {"cpu": "1"}}, {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}, {"limits": {"memory": "1Gi"}}, {}, {"requests": {"example.com/x": "1"}}, {"requests": {"cpu": "-1"}}])
    return body


class Sequence:
    """Makes one sequence on one kind."""

    def __init__(self, random, kind, schemas, label, people=(), watches=False, protobuf=False):
        self.random, self.kind, self.schemas, self.label, self.people, self.watches = random, kind, schemas, label, people, watches
        self.protobuf = protobuf
        self.namespace = f"d-{label}"
        self.requests = []
        self.last = {}
        # The path of a definition whose controllers are waited for before the next request.
        self.settle = None

    # -- objects

    def name(self, alias):
        name = alias if self.kind.namespaced else f"d-{self.label}-{alias}"
        if self.kind.resource == "ipaddresses":
            digest = hashlib.sha256(name.encode()).digest()
            return f"192.168.{digest[0]}.{digest[1]}"
        return f"v1.{name}.example.com" if self.kind.resource == "apiservices" else name

    def base(self, alias):
        made = {"apiVersion": self.kind.api_version, "kind": self.kind.kind, "metadata": {"name": self.name(alias)}}
        extra = self.kind.base(self.random, self.namespace)
        if self.kind.resource == "apiservices":
            extra["spec"].setdefault("group", self.name(alias).partition(".")[2])
        metadata = {**made["metadata"], **extra.pop("metadata", {})}
        if not self.kind.namespaced and self.kind.verbs == "full":
            metadata["labels"] = {"seq": self.label}
        return {**made, **extra, "metadata": metadata}

    def object(self, alias):
        """A whole object: plain, generated from the schema, or broken."""
        random, made = self.random, self.base(alias)
        if random.random() < 0.5:
            self.decorate(made["metadata"])
        schema = self.schemas.get(self.kind.api_version)
        kind = schema and schema.kind(self.kind.group, self.kind.version, self.kind.kind)
        if kind and random.random() < 0.3:
            generated = schema.value(random, kind)
            if isinstance(generated, dict):
                for name in ("apiVersion", "kind", "metadata"):
                    generated.pop(name, None)
                made = {**made, **generated}
        if random.random() < 0.35:
            made = broken(random, made)
        if random.random() < 0.06 and isinstance(made.get("metadata"), dict):
            made["metadata"].pop("name", None)
            made["metadata"]["generateName"] = "gen-"
        return made

    def decorate(self, metadata):
        random = self.random
        for name, values in {
            "labels": [{**metadata.get("labels", {}), **more} for more in ({"a": "b"}, {"a": "b", "c": "d"}, {"-": "x"}, {"a": "x" * 64}, {})],
            "annotations": [{"a": "b"}, {"A_/x": "y"}, {}],
            "finalizers": [["x.example.com/y"], ["x"], ["foregroundDeletion"], ["x.example.com/y", "x.example.com/y"], []],
            "ownerReferences": [[{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}], [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u", "controller": True, "blockOwnerDeletion": True}] * 2, [{}]],
            "resourceVersion": ["{{rv:a}}", "1", "x", "", "0"],
            "uid": ["{{uid:a}}", "x"],
            "namespace": [self.namespace, "other", ""],
            "creationTimestamp": [None, "2024-01-02T03:04:05Z", "x"],
            "deletionTimestamp": [None, "2024-01-02T03:04:05Z"],
            "deletionGracePeriodSeconds": [0, 5],
            "generation": [0, 7],
            "selfLink": ["x"],
            "managedFields": [[], None, [{}], [{"manager": "m", "operation": "Update", "apiVersion": self.kind.api_version, "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}}}], [{"manager": "m", "operation": "x"}]],
            "generateName": ["gen-"],
        }.items():
            if random.random() < 0.12:
                metadata[name] = random.choice(values)

    def status(self):
        schema = self.schemas.get(self.kind.api_version)
        kind = schema and schema.kind(self.kind.group, self.kind.version, self.kind.kind)
        part = schema.resolve(kind).get("properties", {}).get("status") if kind else None
        return schema.value(self.random, part) if part else {}

    # -- requests

    def add(self, what, method, path, alias="", body=None, content_type=JSON, accept=None, query=None, more=None):
        text = body if isinstance(body, (str, type(None))) else json.dumps(body)
        if query:
            path = path + "?" + "&".join(f"{name}={urllib.parse.quote(value, safe='{}%:=,')}" for name, value in query)
        if what in ODDLY_ASKED and self.random.random() < 0.04:
            path += ("&" if "?" in path else "?") + self.random.choice(ODD_QUERIES)
        headers = {"Accept": accept or JSON, **(more or {})}
        if body is not None:
            headers["Content-Type"] = content_type
        if self.people:
            headers.update(person(self.random, self.people, 0.06))
        as_protobuf = self.protobuf and content_type == JSON and text is not None and self.random.random() < 0.85
        # Where a body is spoiled must not depend on what a server chose.
        seed = self.random.randrange(2, 10**6) if as_protobuf and "{{" not in text and self.random.random() < 0.15 else 1
        self.requests.append({"protobuf": seed if as_protobuf else 0, "what": what, "resource": self.kind.resource + ("." + self.kind.group if self.kind.group else ""), "method": method, "path": path, "headers": headers, "body": text, "as": alias, "settle": self.settle})

    def options(self, *more):
        random, query = self.random, []
        for name, share, values in (
            ("dryRun", 0.06, ["All", "All", "x", "", "all"]),
            ("fieldManager", 0.1, ["m", "m", "x" * 129, "%00"]),
            ("fieldValidation", 0.3, ["Strict", "Strict", "Warn", "Ignore", "x"]),
            ("pretty", 0.03, ["true", "false", "x"]),
            ("timeout", 0.03, ["10s", "x", "-1s", "0", "1", "1h1m", "10", "1.5s", "99999999999h"]),
            *more,
        ):
            if random.random() < share:
                query.append((name, random.choice(values)))
        return query

    def accept(self):
        if self.protobuf:
            return self.random.choice(PROTOBUF_ACCEPTS)
        return self.random.choice(ACCEPTS) if self.random.random() < 0.25 else JSON

    def path(self, alias):
        return f"{self.kind.collection(self.namespace)}/{self.name(alias)}"

    def create(self, alias):
        body = self.object(alias)
        content_type = JSON
        if self.random.random() < 0.08:
            content_type = self.random.choice(CONTENT_TYPES)
        text = self.random.choice(["", "{", "[]", "null", "1", "{}", '{"a":1,"a":2}', "\u0000"]) if self.random.random() < 0.03 else json.dumps(body)
        if self.random.random() < 0.04 and text.startswith('{"'):
            text = '{"kind":"x",' + text[1:]
        self.add("create", "POST", self.kind.collection(self.namespace), alias, text, content_type, self.accept(), self.options())

    def get(self, alias):
        random = self.random
        query = [("resourceVersion", random.choice(["0", "1", "x", "{{rv:a}}", ""]))] if random.random() < 0.15 else []
        self.add("get", "GET", self.path(alias), alias, accept=self.accept(), query=query)

    def list(self):
        random, query = self.random, []
        for name, share, values in (
            ("limit", 0.3, ["1", "2", "0", "-1", "x", "500"]),
            ("labelSelector", 0.4, SELECTORS),
            ("fieldSelector", 0.3, FIELDS),
            ("resourceVersion", 0.2, ["0", "{{rv:a}}", "x", ""]),
            ("resourceVersionMatch", 0.15, ["Exact", "NotOlderThan", "x"]),
            ("continue", 0.12, ["{{continue:list}}", "x", ""]),
            ("includeObject", 0.1, ["None", "Metadata", "Object", "x"]),
            ("timeoutSeconds", 0.03, ["1", "x", "-1"]),
        ):
            if random.random() < share:
                query.append((name, random.choice(values)))
        self.add("list", "GET", self.kind.collection(self.namespace), "list", accept=self.accept(), query=self.own(query))

    def own(self, query):
        """The query with a selector of this sequence's objects, where others make objects of the kind, too."""
        if self.kind.namespaced:
            return query
        mine, selector = f"seq={self.label}", dict(query).get("labelSelector")
        others = [(name, value) for name, value in query if name != "labelSelector"]
        return others + [("labelSelector", f"{selector},{mine}" if selector is not None else mine)]

    def update(self, alias):
        body = self.object(alias)
        if isinstance(body.get("metadata"), dict) and self.random.random() < 0.5:
            body["metadata"]["resourceVersion"] = f"{{{{rv:{alias}}}}}"
        self.add("update", "PUT", self.path(alias), alias, body, accept=self.accept(), query=self.options())

    def patch(self, alias, suffix=""):
        random = self.random
        kind = random.choice(list(PATCHES))
        more = (("force", 0.3 if kind == "apply" else 0.03, ["true", "false", "x"]), ("fieldManager", 0.95 if kind == "apply" else 0, ["m", "n", "kubectl"]))
        if kind == "json":
            body = [self.operation() for _ in range(random.choice([1, 1, 2, 3]))]
            if random.random() < 0.05:
                body = random.choice(ODD)
        elif random.random() < 0.04:
            # Texts are written as they are.
            body = random.choice([json.dumps(odd) for odd in ODD] + ["", " ", "{", "{}x", "[1, {\"a\": null}]", "{\"metadata\": {}, \"metadata\": {\"labels\": {\"a\": \"b\"}}}"])
        elif kind == "apply":
            body = self.object(alias)
        else:
            body = self.object(alias)
            for name in list(body):
                if random.random() < 0.4:
                    del body[name]
            if random.random() < 0.3:
                body = null_some(random, body)
            if kind == "strategic" and random.random() < 0.3:
                directives(random, body)
            if kind == "strategic" and random.random() < 0.1:
                body[random.choice(["$patch", "$retainKeys", "$setElementOrder/x", "$deleteFromPrimitiveList/finalizers"])] = random.choice(["replace", "delete", "merge", "x", ["a"], None, 1])
        content_type = PATCHES[kind] if random.random() < 0.96 else random.choice([JSON, "", "text/plain", PATCHES[kind] + ";charset=utf-8", PATCHES[kind] + ";", PATCHES[kind] + " ", PATCHES[kind].upper(), PATCHES[kind] + ",x"])
        self.add(f"patch-{kind}", "PATCH", self.path(alias) + suffix, alias, body, content_type, self.accept(), self.options(*more))

    def operation(self):
        random = self.random
        paths = ["/metadata/labels", "/metadata/labels/a", "/metadata/annotations", "/metadata/annotations/k", "/metadata/name", "/metadata/finalizers", "/metadata/finalizers/-", "/metadata/finalizers/0", "/data", "/data/a", "/spec", "/rules/0", "/rules/-", "/kind", "/apiVersion", "", "/", "/x", "/metadata", "/metadata/resourceVersion", "/spec/a", "x", "/metadata/labels/a~1b"]
        made = {"op": random.choice(["add", "add", "replace", "remove", "test", "copy", "move", "x"]), "path": random.choice(paths)}
        if made["op"] in ("add", "replace", "test") or random.random() < 0.1:
            made["value"] = random.choice(ODD + ["b", {"a": "b"}, ["x.example.com/y"], None])
        if made["op"] in ("copy", "move"):
            # A version differs between servers, and so would everything that it is copied to.
            made["from"] = random.choice([path for path in paths if path != "/metadata/resourceVersion"])
        if random.random() < 0.03:
            made[random.choice(["unknown", "From"])] = 1
        if random.random() < 0.03:
            made.pop(random.choice(list(made)))
        return made

    def delete(self, alias):
        random = self.random
        body = self.delete_options() if random.random() < 0.6 else None
        query = [(name, random.choice(values)) for name, share, values in (("propagationPolicy", 0.1, ["Background", "x"]), ("gracePeriodSeconds", 0.08, ["0", "x", "-1"]), ("dryRun", 0.05, ["All", "x"]), ("orphanDependents", 0.03, ["true"])) if random.random() < share]
        content_type = JSON if random.random() < 0.95 else random.choice(CONTENT_TYPES)
        self.add("delete", "DELETE", self.path(alias), alias, body, content_type, self.accept(), query)

    def delete_options(self):
        """A body, mostly of options."""
        random = self.random
        body = {"apiVersion": random.choice(["v1", "v1", self.kind.api_version, "x"]), "kind": "DeleteOptions"}
        for name, values in {
            "gracePeriodSeconds": [0, 5, -1, "x"], "propagationPolicy": ["Background", "Foreground", "Orphan", "x"], "orphanDependents": [True, False],
            "preconditions": [{"uid": "{{uid:a}}"}, {"uid": "x"}, {"resourceVersion": "{{rv:a}}"}, {"resourceVersion": "1"}], "dryRun": [["All"], ["x"], []], "unknown": [1],
        }.items():
            if random.random() < 0.2:
                body[name] = random.choice(values)
        return body if random.random() < 0.9 else random.choice([{}, "x", "", [], {"kind": "x"}])

    def delete_collection(self):
        if not self.kind.namespaced:
            return
        random = self.random
        query = []
        for name, share, values in (
            ("labelSelector", 0.5, ["a=b", "a!=b", "a in ("]), ("fieldSelector", 0.2, ["metadata.name=a", "x=y"]), ("dryRun", 0.3, ["All", "x"]), ("limit", 0.1, ["1", "x"]),
            ("continue", 0.05, ["x", "{{continue:list}}"]), ("resourceVersion", 0.15, ["0", "{{rv:a}}", "x"]), ("resourceVersionMatch", 0.1, ["Exact", "NotOlderThan", "x"]), ("propagationPolicy", 0.1, ["Background", "Orphan", "x"]),
            ("gracePeriodSeconds", 0.08, ["0", "x", "-1"]), ("orphanDependents", 0.05, ["true", "x"]), ("timeoutSeconds", 0.05, ["1", "x"]), ("sendInitialEvents", 0.04, ["true", "x"]), ("includeObject", 0.04, ["None"]), ("ignoreStoreReadErrorWithClusterBreakingPotential", 0.03, ["true", "x"]),
        ):
            if random.random() < share:
                query.append((name, random.choice(values)))
        body = self.delete_options() if random.random() < 0.4 else None
        self.add("deletecollection", "DELETE", self.kind.collection(self.namespace), "", body, accept=self.accept(), query=query)

    def put_status(self, alias):
        body = {**self.object(alias), "status": self.status()}
        if self.random.random() < 0.5:
            return self.patch(alias, "/status")
        self.add("update-status", "PUT", self.path(alias) + "/status", alias, body, query=self.options())

    def subresource(self, alias):
        random = self.random
        name = random.choice(list(self.kind.subresources) or ["x"])
        if name == "token":
            body = {"spec": random.choice([{}, {"audiences": ["a"]}, {"expirationSeconds": 600}, {"expirationSeconds": 1}, {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "x"}}])}
            if random.random() < 0.5:
                body["metadata"] = random.choice([{"name": self.name(alias)}, {"name": "other"}, {"namespace": "other"}, {"uid": "{{uid:a}}"}, {"uid": "x"}, {"labels": {"a": "b"}}, {"resourceVersion": "1"}, {"ownerReferences": [{}]}])
            if random.random() < 0.3:
                body.update(random.choice([{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}, {"apiVersion": "v1", "kind": "TokenRequest"}, {"kind": "x"}, {"status": {"token": "x"}}]))
            if random.random() < 0.2:
                body = broken(random, body)
            self.add("token", "POST", f"{self.path(alias)}/token", "", body, query=self.options())
        elif name == "scale":
            body = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": self.name(alias), "namespace": self.namespace}, "spec": {"replicas": random.choice([0, 1, 2, -1, "x"])}}
            self.changed_by_subresource(alias, name, body)
        elif name in ("eviction", "binding"):
            body = {"metadata": {"name": self.name(alias), "namespace": self.namespace}}
            if name == "eviction":
                body = {"apiVersion": random.choice(["policy/v1", "policy/v1", "policy/v1beta1"]), "kind": "Eviction", **body, **random.choice([{}, {}, {"deleteOptions": self.delete_options()}])}
            else:
                target = {"kind": random.choice(["Node", "Node", "", "x"]), "name": random.choice(["n", "n", "", "N_"]), **random.choice([{}, {"apiVersion": "v1"}, {"uid": "u"}])}
                body = {"apiVersion": "v1", "kind": "Binding", **body, "target": target}
                body["metadata"].update(random.choice([{}, {}, {"labels": {"a": "c"}}, {"annotations": {"-": "x"}}, {"name": "other"}, {"uid": "{{uid:a}}"}, {"uid": "x"}]))
            self.add(name, "POST", f"{self.path(alias)}/{name}", "", broken(random, body) if random.random() < 0.3 else body, accept=self.accept(), query=self.options())
        elif name in ("ephemeralcontainers", "resize"):
            self.changed_by_subresource(alias, name, added(random, self.object(alias), name))
        elif name == "approval":
            self.changed_by_subresource(alias, name, {**self.object(alias), "status": self.status()})
        else:
            self.add(f"put-{name}", "PUT", f"{self.path(alias)}/{name}", alias, self.object(alias), query=self.options())

    def changed_by_subresource(self, alias, name, body):
        """Reads or writes a part of the object."""
        random = self.random
        method, form = random.choice(["GET", "PUT", "PATCH"]), random.choice(list(PATCHES))
        if method == "GET":
            return self.add(f"{name}-get", method, f"{self.path(alias)}/{name}", "", accept=self.accept())
        body = broken(random, body) if random.random() < 0.3 else body
        if method == "PATCH" and form == "json":
            body = [self.operation()] if random.random() < 0.5 else [{"op": "replace", "path": "/spec/replicas", "value": random.choice([0, 3, -1, "x"])}]
        more = (("fieldManager", 0.95, ["m", "n"]), ("force", 0.3, ["true"])) if method == "PATCH" and form == "apply" else ()
        self.add(f"{name}-{method.lower()}", method, f"{self.path(alias)}/{name}", "", body, PATCHES[form] if method == "PATCH" else JSON, self.accept(), query=self.options(*more))

    def impersonated(self, alias):
        """A request by a user with few rights, or by an unknown one."""
        random = self.random
        more = random.choice([
            {"Impersonate-User": "u"}, {"Impersonate-User": "system:serviceaccount:a:b"}, {"Impersonate-User": "u", "Impersonate-Group": "g"}, {"Impersonate-Group": "g"}, {"Impersonate-User": ""},
            {"Impersonate-User": "system:serviceaccount:a"}, {"Impersonate-Uid": "x"}, {"Impersonate-Extra-a": "b"}, {"Impersonate-User": "u", "Impersonate-Extra-A%2fb": "c"}, {"Impersonate-User": "system:anonymous"},
            {"Impersonate-User": "u", "Impersonate-Uid": "x"}, {"Impersonate-User": "admin", "Impersonate-Group": "system:masters"},
        ])
        collection = self.kind.collection(self.namespace)
        method, path = random.choice([("GET", self.path(alias)), ("GET", collection), ("POST", collection), ("PUT", self.path(alias)), ("DELETE", self.path(alias)), ("PATCH", self.path(alias)), ("GET", collection + "?watch=1&timeoutSeconds=1"), ("DELETE", collection)])
        if not self.kind.namespaced and path.startswith(collection) and path[len(collection):][:1] in ("", "?"):
            path = path + ("&" if "?" in path else "?") + "&".join(f"{name}={value}" for name, value in self.own([]))
        body = self.object(alias) if method in ("POST", "PUT", "PATCH") else None
        self.add(f"impersonated-{method.lower()}", method, path, "", body, PATCHES["merge"] if method == "PATCH" else JSON, self.accept(), more=more)

    def yaml_patch(self, alias):
        """An apply in YAML that is no JSON."""
        lines = random_yaml(self.random, self.kind, self.name(alias))
        self.add("patch-apply", "PATCH", self.path(alias), alias, lines, PATCHES["apply"], self.accept(), self.options(("force", 0.3, ["true", "false"]), ("fieldManager", 0.95, ["m", "n"])))

    def odd(self, alias):
        random = self.random
        collection = self.kind.collection(self.namespace)
        method, path = random.choice([
            ("POST", self.path(alias)), ("PUT", collection), ("PATCH", collection), ("GET", self.path(alias) + "/nothing"), ("PUT", self.path(alias) + "/nothing"), ("OPTIONS", collection),
            ("HEAD", collection), ("GET", collection + "/"), ("GET", self.path("A_b")), ("GET", self.path("x" * 300)), ("GET", self.path("a%2Fb")), ("GET", self.path("..")), ("GET", self.path("a.b.")), ("DELETE", self.path("A_b")), ("GET", self.path("%25")), ("GET", collection + "//x"), ("GET", self.path(alias) + "/status"), ("DELETE", self.path(alias) + "/status"),
            ("GET", collection.replace("/v1", "/v9")), ("GET", collection[:-1]), ("BREW", collection), ("GET", self.path(alias) + "?watch=true&timeoutSeconds=x"), ("GET", collection + "?watch=x&limit=1&timeoutSeconds=1"),
        ])
        if path.startswith(collection + "?") or (method == "GET" and path in (collection, collection + "/")):
            path = path + ("&" if "?" in path else "?") + "&".join(f"{name}={value}" for name, value in self.own([]))
        self.add(f"odd-{method.lower()}", method, path, "", None if method in ("GET", "HEAD", "OPTIONS", "DELETE", "BREW") else self.object(alias), accept=self.accept())

    def make(self, length):
        random, verbs = self.random, self.kind.verbs
        if verbs == "review":
            for _ in range(length // 2):
                self.create("a")
                if random.random() < 0.1:
                    self.impersonated("a")
            self.odd("a")
            return self.requests
        if verbs == "definitions":
            self.definitions(length)
            return self.requests
        if verbs == "rules":
            self.rules(length)
            return self.requests
        self.create("a")
        actions = [(self.create, 4), (self.get, 3), (lambda _: self.list(), 4), (self.update, 5), (self.patch, 9), (self.delete, 3), (lambda _: self.delete_collection(), 1), (self.odd, 1), (self.impersonated, 0.7), (self.yaml_patch, 0.5)]
        if self.watches:
            actions.append((lambda alias: watch(self, alias), 2))
        if self.kind.status:
            actions.append((self.put_status, 3))
        if self.kind.subresources:
            actions.append((self.subresource, 2))
        while len(self.requests) < length:
            action = random.choices([action for action, _ in actions], weights=[weight for _, weight in actions])[0]
            action(random.choice(["a", "a", "b"]))
        self.requests.append({**self.requests[0], "protobuf": 0, "what": "end", "method": "GET", "path": self.kind.collection(self.namespace) + ("" if self.kind.namespaced else f"?labelSelector=seq={self.label}"), "headers": {"Accept": JSON}, "body": None, "as": ""})
        return self.requests

    def definitions(self, length):
        """Definitions name themselves, so each is made, read, changed and deleted by its own name."""
        random = self.random
        for _ in range(max(1, length // 5)):
            made = definition(random, "")
            # Unique in the run: the server remembers accepted names cluster-wide.
            plural, group = made["spec"]["names"]["plural"], f"d{self.label}.example.com"
            made["spec"]["group"], made["metadata"]["name"] = group, f"{plural}.{group}"
            made = {"apiVersion": self.kind.api_version, "kind": self.kind.kind, **made}
            path = f"{self.kind.collection('')}/{made['metadata']['name']}"
            body = broken(random, made) if random.random() < 0.3 else made
            query = [("dryRun", "All")] if random.random() < 0.5 else []
            self.add("create", "POST", self.kind.collection(""), "a", body, query=query + self.options())
            self.settle = path
            if not query:
                self.add("get", "GET", path, "", accept=self.accept())
                changed = broken(random, made)
                self.add("patch-merge", "PATCH", path, "", changed, PATCHES["merge"], query=self.options())
                self.add("delete", "DELETE", path, "")

    def rules(self, length):
        """Rules that may not compile, in a definition that is not created; and objects that meet those of the kind."""
        random, definitions = self.random, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        while len(self.requests) < length:
            if random.random() < 0.4:
                made = expressions.definition("dry.example.com", 0, [expressions.rule(random) for _ in range(random.choice([1, 2, 5]))])
                self.add("rules", "POST", definitions, "", made, query=[("dryRun", "All")])
            else:
                self.add("create", "POST", self.kind.collection(self.namespace), "", self.base("a"), query=[("dryRun", "All")])
