"""What admission decides: a policy or webhooks for one namespace, and writes there. For `--kinds policies` and `--kinds webhooks`."""

import base64
import http.server
import json
import re
import ssl
import subprocess
import tempfile
import threading

import grammar
import rules
from values import null_some

ADMISSION = f"/apis/{grammar.ADMISSION}/v1"
# In the response to what only the last policy or webhook refuses: those before it are in effect, too.
IN_EFFECT = "in-effect"


# Configurations of lists with keys and without.
KEYED = [
    "Object{spec: Object.spec{lo: [Object.spec.lo{v: 1}]}}", "Object{spec: Object.spec{lo: [Object.spec.lo{k: 'a', v: 1}]}}", "Object{spec: Object.spec{lo: [Object.spec.lo{k: 'a'}, Object.spec.lo{k: 'a'}]}}", "Object{spec: Object.spec{set: ['a', 'b']}}", "Object{spec: Object.spec{set: ['a', 'a']}}",
    "Object{spec: Object.spec{l: ['a']}}", "Object{spec: Object.spec{o: Object.spec.o{y: 1}}}", "Object{kind: 'X'}", "Object{}", "Object{status: Object.status{a: 1}}", "Object{metadata: Object.metadata{finalizers: ['x.example.com/y']}}",
]


def definition(seed):
    """The kind that is written: one of many types."""
    made = rules.definition(f"a{seed}.example.com", 0, [])
    del made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"]
    return made


def kind(made, verbs):
    names = made["spec"]["names"]
    return grammar.Kind(made["spec"]["group"], "v1", names["plural"], names["kind"], True, rules.spec, verbs=verbs, strategic=False)


def native(random, verbs):
    """A kind that is decoded as its type."""
    one = random.choice([one for one in grammar.KINDS if one.resource in ("secrets", "leases", "serviceaccounts")])
    return grammar.Kind(one.group, one.version, one.resource, one.kind, True, one.base, verbs=verbs)


class Decisions(grammar.Sequence):
    """One policy with its binding, or one configuration of webhooks; then writes."""

    def __init__(self, random, kind, schemas, label, reviewer):
        super().__init__(random, native(random, kind.verbs) if random.random() < 0.25 else kind, schemas, label)
        self.reviewer, self.made = reviewer, []

    def resources(self):
        """Rules are not about the config maps that tell when what was made is in effect."""
        return self.random.choice([self.kind.resource, self.kind.resource, "*", "*/*"]) if self.kind.group else self.kind.resource

    def placed(self, text):
        """Changes of the fields that the kind has."""
        return text.replace("/spec", "/data") if self.kind.resource == "secrets" else text

    def make(self, length):
        if self.kind.verbs == "policies":
            self.policy(self.random.random() < 0.4)
        else:
            self.webhooks(self.random.random() < 0.6)
        while len(self.requests) < length:
            self.write(self.random.choice(["a", "a", "b"]))
        return self.requests

    def write(self, alias):
        random = self.random
        body = self.base(alias)
        body["metadata"].update(random.choice([{}, {}, {"labels": {"a": "b"}}, {"annotations": {"k": "v"}}]))
        query = [("dryRun", "All")] if random.random() < 0.4 else []
        method = random.choice(["POST", "POST", "POST", "PUT", "PATCH", "PATCH", "DELETE"])
        if random.random() < 0.15:
            body.update({part: null_some(random, body[part]) for part in ("spec", "data") if part in body})
        if method == "POST":
            self.add("create", method, self.kind.collection(self.namespace), alias, body, query=query)
        elif method == "PUT":
            body["metadata"]["resourceVersion"] = f"{{{{rv:{alias}}}}}"
            self.add("update", method, self.path(alias), alias, body, query=query)
        elif method == "PATCH":
            form = random.choice(["merge", "apply"])
            query += [("fieldManager", "m")] if form == "apply" else []
            self.add(f"patch-{form}", method, self.path(alias), alias, body, grammar.PATCHES[form], query=query)
        else:
            self.add("delete", method, self.path(alias), alias, query=query)

    def post(self, plural, name, kind, content):
        """Creates an object of admission, which goes when the sequence has ended."""
        name = f"{self.namespace}-{name}"
        body = {"apiVersion": f"{grammar.ADMISSION}/v1", "kind": kind, "metadata": {"name": name}, **content}
        self.add("admission", "POST", f"{ADMISSION}/{plural}", "", body)
        self.made.append(f"{ADMISSION}/{plural}/{name}")

    def here(self):
        return {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}

    def wait(self):
        """The next request waits until what was made is in effect."""
        body = json.dumps({"metadata": {"name": "probe"}})
        self.settle = {"path": f"/api/v1/namespaces/{self.namespace}/configmaps?dryRun=All", "body": body, "until": IN_EFFECT}

    # -- policies

    def policy(self, mutates):
        random = self.random
        kind = "MutatingAdmissionPolicy" if mutates else "ValidatingAdmissionPolicy"
        policies, bindings = f"{kind.lower()[:-1]}ies", f"{kind.lower()}bindings"
        has_params = random.random() < 0.3
        if has_params:
            for name in ("p", "q"):
                params = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"is": name}}, "data": {"a": random.choice(["a", "b", "1"])}}
                self.add("params", "POST", f"/api/v1/namespaces/{self.namespace}/configmaps", "", params)
        spec = self.matching(has_params)
        spec.update(self.mutations() if mutates else self.validations())
        self.post(policies, "p", kind, {"spec": spec})
        self.post(bindings, "b", f"{kind}Binding", {"spec": self.binding(mutates, has_params)})
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"], "resourceNames": ["probe"]}
        probe = {"matchConstraints": {"namespaceSelector": self.here(), "resourceRules": [rule]}, "failurePolicy": "Fail"}
        if mutates:
            label = f"Object{{metadata: Object.metadata{{labels: {{'probe': '{IN_EFFECT}'}}}}}}"
            probe.update(reinvocationPolicy="Never", mutations=[{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": label}}])
        else:
            probe["validations"] = [{"expression": "false", "message": IN_EFFECT}]
        bound = {"policyName": f"{self.namespace}-y"} if mutates else {"policyName": f"{self.namespace}-y", "validationActions": ["Deny"]}
        if has_params:
            # Not in effect before the parameters are known.
            probe["paramKind"] = spec["paramKind"]
            bound["paramRef"] = {"name": "q", "parameterNotFoundAction": "Allow"}
        self.post(policies, "y", kind, {"spec": probe})
        self.post(bindings, "z", f"{kind}Binding", {"spec": bound})
        self.wait()

    def matching(self, has_params):
        random = self.random
        rule = {
            "apiGroups": [self.kind.group], "apiVersions": [random.choice(["v1", "*"])], "resources": [self.resources()],
            "operations": random.choice([["CREATE", "UPDATE"], ["CREATE", "UPDATE"], ["*"], ["UPDATE", "DELETE"]]),
        }
        constraints = {"namespaceSelector": self.here(), "resourceRules": [rule]}
        if random.random() < 0.1:
            constraints["objectSelector"] = {"matchLabels": {"a": "b"}}
        if random.random() < 0.1:
            constraints["excludeResourceRules"] = [{**rule, "resourceNames": ["b"]}]
        spec = {"matchConstraints": constraints, "failurePolicy": random.choice(["Fail", "Fail", "Ignore"])}
        if has_params:
            spec["paramKind"] = {"apiVersion": "v1", "kind": "ConfigMap"}
        if random.random() < 0.4:
            spec["variables"] = [{"name": name, "expression": self.expression(random.choice(["int", "string", "bool", "list(int)"]))} for name in ("a", "b")]
        if random.random() < 0.2:
            spec["matchConditions"] = [{"name": f"c{number}", "expression": self.expression("bool", 0)} for number in range(random.choice([1, 1, 2]))]
        return spec

    def binding(self, mutates, has_params):
        random = self.random
        made = {"policyName": f"{self.namespace}-p"}
        if not mutates:
            made["validationActions"] = random.choice([["Deny"], ["Deny"], ["Deny", "Audit"], ["Warn"], ["Warn", "Audit"]])
        if has_params:
            found = random.choice([{"name": "p"}, {"name": "missing"}, {"selector": {"matchLabels": {"is": "q"}}}, {"selector": {"matchLabels": {"is": "none"}}}])
            made["paramRef"] = {**found, **random.choice([{}, {"namespace": self.namespace}]), "parameterNotFoundAction": random.choice(["Allow", "Deny"])}
        if random.random() < 0.1:
            made["matchResources"] = {"objectSelector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}}
        return made

    def expression(self, kind, wrong=0.02):
        """One about the object that is written, or of what else admission shows."""
        random = self.random
        if kind == "bool" and random.random() < 0.35:
            return grammar.seen(random)
        made = rules.Maker(random, wrong).make(rules.parsed(kind), random.choice([1, 2]), [])
        seen = random.choice(["object", "object", "object", "object", "oldObject"])
        made = re.sub(r"\bself\b", f"{seen}.spec", made).replace("oldSelf", "oldObject.spec")
        return made.replace("'x'", random.choice(["'x'", "variables.b", "params.data.a", "request.name", "namespaceObject.metadata.name"]))

    def validations(self):
        random = self.random
        made = {"validations": []}
        for _ in range(random.choice([1, 1, 2])):
            validation = {"expression": self.expression("bool")}
            if random.random() < 0.3:
                validation["message"] = random.choice(["no", " not so "])
            if random.random() < 0.3:
                validation["messageExpression"] = self.expression("string")
            if random.random() < 0.3:
                validation["reason"] = random.choice(["Forbidden", "Invalid", "Unauthorized", "RequestEntityTooLarge"])
            made["validations"].append(validation)
        if random.random() < 0.1:
            made["auditAnnotations"] = [{"key": "k", "valueExpression": self.expression("string")}]
        return made

    def mutations(self):
        random, made = self.random, []
        fields = {"i": "int", "s": "string", "l": "list(string)", "m": "map(string,int)", "b": "bool", "nope": "int"}
        for _ in range(random.choice([1, 1, 2])):
            field = random.choice(list(fields))
            value = self.expression(fields[field])
            if random.random() < 0.5:
                whole = random.choice([random.choice(KEYED), f"Object{{spec: Object.spec{{{field}: {value}}}}}", f"Object{{metadata: Object.metadata{{labels: {{'l': {self.expression('string')}}}}}}}", f"has(object.spec.{field}) ? Object{{}} : Object{{spec: Object.spec{{{field}: {value}}}}}"])
                made.append({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": whole}})
            else:
                operation = random.choice([f"op: 'add', path: '/spec/{field}', value: {value}", f"op: 'replace', path: '/spec/{field}', value: {value}", f"op: 'remove', path: '/spec/{field}'", f"op: 'test', path: '/spec/{field}', value: {value}", f"op: 'copy', from: '/spec/s', path: '/spec/{field}'", "op: 'replace', path: '/kind', value: 'X'", "op: 'add', path: '/spec/i', value: null", "op: 'add', path: '/spec/lo', value: [{'v': 1}]", "op: 'add', path: '/metadata/labels', value: {'x': 'y'}", "op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a.b/c'), value: 'd'"])
                made.append({"patchType": "JSONPatch", "jsonPatch": {"expression": f"[JSONPatch{{{self.placed(operation)}}}]"}})
        return {"mutations": made, "reinvocationPolicy": random.choice(["Never", "IfNeeded"])}

    # -- webhooks

    def webhooks(self, mutates):
        random = self.random
        kind = "MutatingWebhookConfiguration" if mutates else "ValidatingWebhookConfiguration"
        plural = f"{kind.lower()}s"
        rule = {"apiGroups": [self.kind.group], "apiVersions": ["*"], "resources": [self.resources()], "operations": random.choice([["CREATE", "UPDATE"], ["*"]])}
        hooks = []
        for number in range(random.choice([1, 1, 2, 3])):
            hook = {**self.hook(f"h{number}", answer(random, mutates)), "rules": [rule], "failurePolicy": random.choice(["Fail", "Ignore"]), "timeoutSeconds": 2}
            if mutates:
                hook["reinvocationPolicy"] = random.choice(["Never", "IfNeeded"])
            if random.random() < 0.2:
                hook["matchConditions"] = [{"name": "c", "expression": self.expression("bool", 0)}]
            if random.random() < 0.1:
                hook["objectSelector"] = {"matchLabels": {"a": "b"}}
            if random.random() < 0.1:
                hook["sideEffects"] = "NoneOnDryRun"
            hooks.append(hook)
        self.post(plural, "h", kind, {"webhooks": hooks})
        probe = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
        self.post(plural, "z", kind, {"webhooks": [{**self.hook("probe", {"response": {"allowed": False, "status": {"message": IN_EFFECT}}}), "rules": [probe]}]})
        self.wait()

    def hook(self, name, recipe):
        port, bundle = self.reviewer
        path = base64.urlsafe_b64encode(self.placed(json.dumps(recipe)).encode()).decode().rstrip("=")
        return {
            "name": f"{name}.example.com", "clientConfig": {"url": f"https://127.0.0.1:{port}/{path}", "caBundle": bundle},
            "namespaceSelector": self.here(), "sideEffects": "None", "admissionReviewVersions": self.random.choice([["v1"], ["v1"], ["v1beta1", "v1"]]),
        }


OPERATIONS = [
    {"op": "add", "path": "/metadata/labels", "value": {"h": "1"}}, {"op": "add", "path": "/metadata/labels/h", "value": "2"}, {"op": "replace", "path": "/spec/i", "value": 3}, {"op": "replace", "path": "/spec/i", "value": "x"},
    {"op": "remove", "path": "/spec/s"}, {"op": "test", "path": "/spec/b", "value": True}, {"op": "add", "path": "/spec/nope", "value": 1}, {"op": "add", "path": "/metadata/name", "value": "other"}, {"op": "add", "path": "/metadata/namespace", "value": "other"},
    {"op": "add", "path": "/kind", "value": "X"}, {"op": "add", "path": "/metadata/finalizers", "value": ["x.example.com/y"]}, {"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}, {"op": "add", "path": "/status", "value": {}},
    {"op": "copy", "from": "/spec/s", "path": "/spec/u"}, {"op": "move", "from": "/spec/l", "path": "/spec/set"}, {"op": "add", "path": "/spec/l/-", "value": "z"}, {"op": "x", "path": "/spec"}, {"op": "add", "path": "spec", "value": 1}, {"path": "/spec/i"}, {"op": "replace", "path": "", "value": {}},
    {"op": "remove", "path": "/kind"}, {"op": "replace", "path": "/apiVersion", "value": "x/v1"}, {"op": "remove", "path": "/apiVersion"}, {"op": "add", "path": "/spec/i", "value": None}, {"op": "add", "path": "/spec/lo", "value": [{"v": 1}]}, {"op": "add", "path": "/spec/lo", "value": [{"k": "a"}, {"k": "a"}]},
    {"op": "add", "path": "/spec/o", "value": {"nope": 1, "y": None}}, {"op": "add", "path": "/metadata/labels", "value": {"a": 1}}, {"op": "add", "path": "/spec", "value": None}, {"op": "add", "path": "/spec/nu", "value": None}, {"op": "add", "path": "/metadata/generation", "value": 7},
]


def answer(random, mutates):
    """A recipe of what a webhook answers."""
    place = random.random()
    if place < 0.15:
        return {"echo": mutates, "response": {"allowed": True}}
    if place < 0.25:
        return {"status": random.choice([400, 401, 403, 404, 409, 429, 500, 503, 302, 204]), "text": random.choice(["", "<html>", "{}"])}
    if place < 0.32:
        return {"text": random.choice(["", "{", "[]", "null", "<html>", '{"kind":"AdmissionReview"}', '{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', '{"kind":"Status","apiVersion":"v1"}', '{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v2","response":{}}'])}
    response = {"allowed": random.random() < 0.7}
    if random.random() < 0.2:
        response["warnings"] = random.choice([["a"], ["a", "a", "b"], [""], ['"\\'], ["é€"], ["w" * 300] * 3, ["w" * 5000], ["x" * 300 + str(number) for number in range(30)], ["a" * 4096, "b"]])
    if not response["allowed"] or random.random() < 0.1:
        status = {name: random.choice(values) for name, values in {"message": ["no", "", "a\nb"], "reason": ["Forbidden", "Own", ""], "code": [200, 400, 403, 404, 409, 422, 429, 500, 0], "status": ["Success", "Failure", ""], "details": [{"causes": [{"field": "f", "message": "m", "reason": "r"}]}, {"name": "n", "kind": "k", "retryAfterSeconds": 3}, {}], "metadata": [{}]}.items() if random.random() < 0.4}
        response["status"] = status
    if random.random() < 0.1:
        response["auditAnnotations"] = random.choice([{"a": "b"}, {"a b": "c"}])
    if random.random() < 0.05:
        response["uid"] = random.choice(["x", "", None])
    if random.random() < 0.05:
        response["patchType"] = random.choice(["JSONPatch", "x", ""])
    if mutates and random.random() < 0.6 or random.random() < 0.05:
        response["patch"] = [random.choice(OPERATIONS) for _ in range(random.choice([1, 1, 2, 0]))] if random.random() < 0.95 else random.choice([{}, "x", None])
        response.setdefault("patchType", random.choice(["JSONPatch"] * 9 + [None]))
    return {"response": response}


class Reviewer(http.server.BaseHTTPRequestHandler):
    """Answers a review as the recipe in its path says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        text = self.path.partition("?")[0][1:]
        recipe = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        made = recipe.get("text", "").encode() if "response" not in recipe else json.dumps(reviewed(json.loads(body), recipe)).encode()
        self.send_response(recipe.get("status", 200))
        if recipe.get("status") == 302:
            self.send_header("Location", "/")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "0" if recipe.get("status") == 204 else str(len(made)))
        self.end_headers()
        if recipe.get("status") != 204:
            self.wfile.write(made)

    def log_message(self, *_):
        pass


def reviewed(review, recipe):
    request = review["request"]
    response = {"uid": request["uid"], **recipe["response"]}
    if recipe.get("echo") and request.get("object"):
        response.update(patchType="JSONPatch", patch=[{"op": "add", "path": "/metadata/annotations", "value": {"review": echo(request)}}])
    if "patch" in response:
        response["patch"] = base64.b64encode(json.dumps(response["patch"]).encode()).decode()
    return {"kind": review["kind"], "apiVersion": review["apiVersion"], "response": {name: value for name, value in response.items() if value is not None}}


def echo(request):
    """The request without what each server chooses."""
    kept = {name: value for name, value in request.items() if name not in ("uid", "userInfo")}
    for name in ("object", "oldObject"):
        if kept.get(name):
            metadata = {key: value for key, value in kept[name]["metadata"].items() if key not in ("uid", "creationTimestamp", "resourceVersion", "managedFields")}
            kept[name] = {**kept[name], "metadata": metadata}
    return json.dumps(kept, sort_keys=True)


def reviewer():
    """Starts a server of webhooks on this machine: its port, and its certificate as a caBundle."""
    with tempfile.TemporaryDirectory() as directory:
        certificate, key = f"{directory}/c", f"{directory}/k"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=reviewer", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
        subprocess.run(command, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        bundle = base64.b64encode(open(certificate, "rb").read()).decode()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Reviewer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1], bundle
