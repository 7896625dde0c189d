"""Requests of several kinds against a real ferrokube that exports every span to a real receiver, and what the receiver says about them.

Between the two stands a recorder that reads each message with OpenTelemetry's own protobuf classes: the receiver does not keep links.
"""

import http.server
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

BOUND = 120
PARENT_TRACE, PARENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{PARENT_TRACE}-{PARENT_SPAN}-01"
UNSAMPLED = "00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
INITIAL = "0af7651916cd43dd8448eb211c80319c"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
# The receiver's gRPC port would be open to all.
RECEIVER = """
import sys
import grpc.aio._server as server
add = server.Server.add_insecure_port
server.Server.add_insecure_port = lambda self, address: add(self, address.replace("[::]", "127.0.0.1"))
sys.argv = ["phoenix", "serve"]
from phoenix.server.main import main
main()
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait(what, probe):
    deadline = time.monotonic() + BOUND
    last = None
    while time.monotonic() < deadline:
        try:
            answer = probe()
            if answer:
                return answer
        except (OSError, urllib.error.URLError) as error:
            last = error
        time.sleep(0.1)
    raise SystemExit(f"FAILED: {what}: not within {BOUND} s ({last})")


def check(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")
    print(f"ok: {what}")


class Recorder(http.server.BaseHTTPRequestHandler):
    """Reads what it passes on."""

    target = ""
    spans = {}

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        message = ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            names = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans[span.span_id.hex()] = (span, names)
        request = urllib.request.Request(self.target + self.path, body, {"content-type": self.headers["content-type"]})
        with urllib.request.urlopen(request, timeout=30) as answer:
            self.send_response(answer.status)
            self.end_headers()
            self.wfile.write(answer.read())

    def log_message(self, *arguments):
        pass


class Cluster:
    """A ferrokube with tokens for an administrator and for jane."""

    def __init__(self, executable, folder, endpoint, rate=1_000_000):
        os.makedirs(folder)
        tokens, config = os.path.join(folder, "tokens"), os.path.join(folder, "tracing.yaml")
        with open(os.open(tokens, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write('admin,admin,u1,"system:masters"\njane,jane,u2\n')
        with open(config, "w", encoding="ascii") as file:
            file.write(f"apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nendpoint: {endpoint}\nsamplingRatePerMillion: {rate}\n")
        command = [executable, "all-in-one", "--secure-port=0", f"--data-dir={folder}/data", f"--token-auth-file={tokens}", f"--tracing-config-file={config}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=open(os.path.join(folder, "log"), "w"), text=True)
        line = self.process.stdout.readline()
        self.url = re.search(r"https://\S+", line).group(0)
        self.tls = ssl.create_default_context(cafile=f"{folder}/data/pki/ca.crt")

    def send(self, method, path, body=None, token="admin", **headers):
        data = None if body is None else json.dumps(body).encode()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers |= {"authorization": f"Bearer {token}", "content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30, context=self.tls) as answer:
            text = answer.read()
            return json.loads(text) if text.startswith(b"{") else text.decode()

    def end(self):
        self.process.terminate()
        check(self.process.wait(60) == 0, "the server ends well")


def ids(item):
    annotations = item["metadata"]["annotations"]
    return tuple(annotations["trace.kubernetes.io/" + name] for name in ("trace-id", "span-id"))


def config_map(name):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


class Receiver:
    def __init__(self, folder):
        self.port, self.grpc_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environment = os.environ | {
            "PHOENIX_WORKING_DIR": folder,
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(self.port),
            "PHOENIX_GRPC_PORT": str(self.grpc_port),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        log = open(os.path.join(folder, "phoenix.log"), "w")
        self.process = subprocess.Popen([sys.executable, "-c", RECEIVER], env=environment, stdout=log, stderr=log)
        wait("the receiver starts", lambda: self.get("/v1/projects"))

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def spans(self):
        """All spans that it has, by id."""
        found, cursor = {}, ""
        while cursor is not None:
            page = self.get(f"/v1/projects/default/spans?limit=1000{cursor and '&cursor=' + cursor}")
            for span in page["data"]:
                found[span["context"]["span_id"]] = span
            cursor = page.get("next_cursor")
        return found

    def span(self, span_id):
        return wait(f"span {span_id} arrives", lambda: self.spans().get(span_id))


def check_requests(cluster, receiver):
    own = cluster.send("POST", CONFIGMAPS, config_map("own"))
    trace, span_id = ids(own)
    span = receiver.span(span_id)
    check(span["name"] == "create configmaps" and span["context"]["trace_id"] == trace, "a user's request is a span with the ids of the object")
    check(span["parent_id"] is None, "it begins its trace")
    sent, resource = Recorder.spans[span_id]
    check(resource["service.name"] == "ferrokube" and sent.kind == 2 and not sent.links, "it says whose it is")
    steps = [other for other, _ in Recorder.spans.values() if other.parent_span_id.hex() == span_id]
    check([step.name for step in steps] == ["store configmaps"], "the store's transaction is its child")
    step = receiver.span(steps[0].span_id.hex())
    check(step["parent_id"] == span_id and step["context"]["trace_id"] == trace, "also for the receiver")
    check(span["start_time"] <= step["start_time"] <= step["end_time"] <= span["end_time"], "the child is within its parent")

    adopted = cluster.send("POST", CONFIGMAPS, config_map("adopted"), traceparent=PARENT, initial_trace_id=INITIAL)
    trace, span_id = ids(adopted)
    span = receiver.span(span_id)
    check(trace == PARENT_TRACE and span["parent_id"] == PARENT_SPAN, "a trusted sender's span is the parent")
    attributes = {attribute.key: attribute.value.string_value for attribute in Recorder.spans[span_id][0].attributes}
    check(attributes["initial_trace_id"] == INITIAL and attributes["k8s.resource"] == "configmaps", "with the family as attribute")

    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "jane"}, "roleRef": role, "subjects": [subject]}
    cluster.send("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding)
    linked = cluster.send("POST", CONFIGMAPS, config_map("linked"), token="jane", traceparent=PARENT)
    trace, span_id = ids(linked)
    span = receiver.span(span_id)
    check(trace != PARENT_TRACE and span["parent_id"] is None, "another sender's request begins a trace")
    links = [(link.trace_id.hex(), link.span_id.hex()) for link in Recorder.spans[span_id][0].links]
    check(links == [(PARENT_TRACE, PARENT_SPAN)], "with a link to what the sender named")

    unsampled = cluster.send("POST", CONFIGMAPS, config_map("unsampled"), traceparent=UNSAMPLED)
    later = cluster.send("POST", CONFIGMAPS, config_map("later"))
    receiver.span(ids(later)[1])
    check(ids(unsampled)[1] not in Recorder.spans, "a trusted sender who does not sample is followed")


def check_reconcile(cluster, receiver):
    namespace = cluster.send("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}})
    trace, span_id = ids(namespace)
    path = "/api/v1/namespaces/n/serviceaccounts"
    account = wait("its service account is made", lambda: next(iter(cluster.send("GET", path)["items"]), None))
    check(ids(account)[0] == trace, "what a controller makes belongs to the trace of its cause")
    made = receiver.span(ids(account)[1])
    reconcile = receiver.span(made["parent_id"])
    check(reconcile["parent_id"] == span_id, "request, reconcile, request: each the child of its cause")
    check(Recorder.spans[reconcile["context"]["span_id"]][0].kind == 1, "a reconcile is work inside")


def check_metrics(cluster):
    text = cluster.send("GET", "/metrics")
    value = lambda name: int(re.search(rf"^{re.escape(name)} (\d+)$", text, re.M).group(1))
    check(value("ferrokube_trace_spans_exported_total") > 10 and value("ferrokube_trace_spans_dropped_total") == 0, "exported spans are counted")
    check(value('ferrokube_trace_contexts_total{origin="linked"}') == 1, "so are links")


def check_grpc(executable, folder, receiver):
    cluster = Cluster(executable, os.path.join(folder, "grpc"), f"127.0.0.1:{receiver.grpc_port}")
    try:
        made = cluster.send("POST", CONFIGMAPS, config_map("grpc"))
        check(receiver.span(ids(made)[1])["name"] == "create configmaps", "spans arrive over gRPC, too")
    finally:
        cluster.process.terminate()
        cluster.process.wait(60)


def main(executable):
    with tempfile.TemporaryDirectory(prefix="ferrokube-tracing-") as folder:
        receiver = Receiver(folder)
        cluster = None
        try:
            Recorder.target = receiver.url
            recorder = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
            threading.Thread(target=recorder.serve_forever, daemon=True).start()
            cluster = Cluster(executable, os.path.join(folder, "http"), f"http://127.0.0.1:{recorder.server_address[1]}")
            check_requests(cluster, receiver)
            check_reconcile(cluster, receiver)
            check_metrics(cluster)
            last = cluster.send("POST", CONFIGMAPS, config_map("last"))
            cluster.end()
            check(receiver.span(ids(last)[1]), "the last spans are sent at the end")
            check_grpc(executable, folder, receiver)
        finally:
            if cluster and cluster.process.poll() is None:
                cluster.process.kill()
            receiver.process.terminate()
            receiver.process.wait(60)
    print("spans: all checks passed")


main(sys.argv[1])
