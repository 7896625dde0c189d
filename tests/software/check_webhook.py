"""Conversion webhooks (faults 22-26): called in batches with a trace, not believed when they lie, and harmful to nobody else when they break."""

import base64
import http.server
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from support import definition, server, wait_until

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OBJECTS = "/apis/software.example/{}/namespaces/default/things"


class Webhook:
    """Turns spec.size (v1) into spec.amount.value (v2) and back; or misbehaves: a word, or a function that changes the answer."""

    def __init__(self, directory):
        key, cert = os.path.join(directory, "key.pem"), os.path.join(directory, "cert.pem")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj", "/CN=webhook"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", cert]
        subprocess.run(command, check=True, capture_output=True)
        self.ca = base64.b64encode(open(cert, "rb").read()).decode()
        self.misbehave = None
        self.reviews = []
        self.headers = []
        self.elsewhere = []
        self.release = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.elsewhere.append(self.path)
                self.send_error(404)

            def do_POST(self):
                if self.path != "/convert":
                    outer.elsewhere.append(self.path)
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.reviews.append(body)
                outer.headers.append(dict(self.headers))
                outer.answer(self, body)

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.http.server_port}/convert"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def convert(self, review):
        request = review["request"]
        out = []
        for given in request["objects"]:
            converted = json.loads(json.dumps(given))
            converted["apiVersion"] = request["desiredAPIVersion"]
            spec = converted.get("spec", {})
            if request["desiredAPIVersion"].endswith("v2") and "size" in spec:
                converted["spec"] = {"amount": {"value": spec["size"]}}
            elif request["desiredAPIVersion"].endswith("v1") and "amount" in spec:
                converted["spec"] = {"size": spec["amount"]["value"]}
            out.append(converted)
        response = {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": out}
        return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response}

    def answer(self, handler, review):
        how = self.misbehave
        answer = self.convert(review)
        code, headers = 200, {}
        if how == "redirect":
            code, headers = 307, {"Location": self.url.replace("/convert", "/elsewhere")}
        elif how == "status":
            code = 500
        elif how == "hang":
            self.release.wait(60)
        elif callable(how):
            how(answer)
        body = b"<html>secret</html>" if how in ("garbage", "status") else json.dumps(answer).encode()
        if how == "endless":
            body = b"[" + b" " * (64 << 20)
        try:
            handler.send_response(code)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        except OSError:
            pass


def two_versions(webhook, url=None):
    size = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}
    amount = {"type": "object", "properties": {"value": {"type": "integer", "minimum": 1}, "unit": {"type": "string", "default": "kg"}}}
    crd = definition("things", "Thing", size)
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"amount": amount}}}}
    crd["spec"]["versions"].append({"name": "v2", "served": True, "storage": False, "schema": {"openAPIV3Schema": schema}})
    config = {"url": url or webhook.url, "caBundle": webhook.ca}
    crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]}}
    return crd


def thing(name, version, spec):
    return {"apiVersion": f"software.example/{version}", "kind": "Thing", "metadata": {"name": name}, "spec": spec}


def webhooks_convert_and_l28_l29_get_the_ids_of_the_request(cluster, webhook):
    v1, v2 = OBJECTS.format("v1"), OBJECTS.format("v2")
    code, made = cluster.request("POST", v1, thing("a", "v1", {"size": 3}))
    assert code == 201 and not webhook.reviews, (code, made, "the stored version needs no conversion")
    trace, span, family = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "0af7651916cd43dd8448eb211c80319c"
    ids = {"Traceparent": f"00-{trace}-{span}-00", "Initial-Trace-Id": family}
    code, shown = cluster.request("GET", v2 + "/a", more=ids)
    assert code == 200 and shown["spec"] == {"amount": {"value": 3}}, (shown, "it was never written in v2: it has none of its defaults")
    assert shown["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    # L28, L29: both ids of the request, and a span of the call's own.
    sent = {name.lower(): value for name, value in webhook.headers[-1].items()}
    version, sent_trace, sent_span, _ = sent["traceparent"].split("-")
    assert (version, sent_trace, sent["initial-trace-id"]) == ("00", trace, family) and sent_span != span, sent
    before = len(webhook.reviews)
    assert cluster.request("GET", v2 + "/a")[1] == shown
    assert len(webhook.reviews) == before, "a revision is converted once"
    code, made = cluster.request("POST", v2, thing("b", "v2", {"amount": {"value": 7}}))
    assert code == 201 and made["spec"]["amount"]["value"] == 7, made
    assert "unit" not in made["spec"]["amount"], (made, "the webhook keeps none of it, and what is stored is v1")
    assert cluster.request("GET", v1 + "/b")[1]["spec"] == {"size": 7}
    code, changed = cluster.request("PATCH", v2 + "/b", {"spec": {"amount": {"value": 8}}}, "application/merge-patch+json")
    assert code == 200 and changed["spec"]["amount"]["value"] == 8, changed
    code, refused = cluster.request("PATCH", v2 + "/b", {"spec": {"amount": {"value": 0}}}, "application/merge-patch+json")
    assert code == 422, refused
    code, applied = cluster.request(
        "PATCH", v2 + "/c?fieldManager=m", thing("c", "v2", {"amount": {"value": 1}}), "application/apply-patch+yaml"
    )
    assert code == 201 and applied["apiVersion"] == "software.example/v2", applied
    for number in range(40):
        assert cluster.request("POST", v1, thing(f"n{number}", "v1", {"size": number + 1}))[0] == 201
    before = len(webhook.reviews)
    code, listed = cluster.request("GET", v2)
    assert code == 200 and len(listed["items"]) == 43, (code, len(listed.get("items", [])))
    assert {item["apiVersion"] for item in listed["items"]} <= {"software.example/v2"}
    assert len(webhook.reviews) == before + 1, "a list is one call"
    code, table = cluster.request("GET", v2, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert code == 200 and len(table["rows"]) == 43
    events = cluster.watch(v2 + "?watch=1&timeoutSeconds=1&resourceVersion=0")
    assert len(events) == 43 and all("amount" in event["object"]["spec"] for event in events), len(events)


def lies(cluster, webhook):
    """What it says of others' business is refused or put back."""
    v1, v2 = OBJECTS.format("v1"), OBJECTS.format("v2")

    def first(answer):
        return answer["response"]["convertedObjects"][0]

    def uid(answer):
        first(answer)["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"

    def name(answer):
        first(answer)["metadata"]["name"] = "other"

    def fewer(answer):
        answer["response"]["convertedObjects"] = []

    def more(answer):
        answer["response"]["convertedObjects"].append(first(answer))

    def failure(answer):
        answer["response"]["result"] = {"status": "Failure", "message": "cannot convert"}

    def version(answer):
        first(answer)["apiVersion"] = "software.example/v1"

    def review(answer):
        answer["response"]["uid"] = "other"

    for number, lie in enumerate([uid, name, fewer, more, failure, version, review, "status", "garbage", "redirect", "endless"]):
        cluster.request("POST", v1, thing(f"lie{number}", "v1", {"size": 1}))
        webhook.misbehave = lie
        before = len(webhook.reviews)
        code, answer = cluster.request("GET", f"{v2}/lie{number}")
        assert len(webhook.reviews) == before + 1, "it is asked once, and not again"
        assert code == 500 and answer["kind"] == "Status", (lie, code, answer)
        assert "secret" not in json.dumps(answer), answer
        code, answer = cluster.request("PATCH", f"{v2}/lie{number}", {"metadata": {"labels": {"a": "b"}}}, "application/merge-patch+json")
        assert code == 500, (lie, code, answer)
        webhook.misbehave = None
        stored = cluster.request("GET", f"{v1}/lie{number}")[1]
        assert "labels" not in stored["metadata"] and stored["spec"] == {"size": 1}, stored
        code, shown = cluster.request("GET", f"{v2}/lie{number}")
        assert code == 200 and shown["spec"]["amount"]["value"] == 1, "nothing of the lie is kept"
    assert not webhook.elsewhere, "redirects are not followed"

    def metadata(answer):
        first(answer)["metadata"].update(finalizers=["e/x"], ownerReferences=[], labels={"c": "d"}, resourceVersion="1", generation=99)

    cluster.request("POST", v1, thing("meta", "v1", {"size": 1}))
    webhook.misbehave = metadata
    code, shown = cluster.request("GET", v2 + "/meta")
    assert code == 200 and shown["metadata"]["labels"] == {"c": "d"} and "finalizers" not in shown["metadata"], shown
    assert shown["metadata"]["generation"] == 1 and shown["metadata"]["resourceVersion"] != "1"
    webhook.misbehave = None


def breaks(cluster, webhook):
    """A webhook that does not answer stops neither others, nor deletes, nor the namespace's end (fault 26)."""
    webhook.misbehave = "hang"
    v1, v2 = OBJECTS.format("v1"), OBJECTS.format("v2")
    assert cluster.request("POST", v1, thing("slow", "v1", {"size": 1}))[0] == 201
    waiting = threading.Thread(target=cluster.request, args=("GET", v2 + "/slow"))
    waiting.start()
    began = time.monotonic()
    other = definition("others", "Other", {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    assert cluster.request("POST", CRDS, other)[0] == 201
    path = "/apis/software.example/v1/namespaces/default/others"
    for number in range(20):
        body = {"apiVersion": "software.example/v1", "kind": "Other", "metadata": {"name": f"o{number}"}}
        wait_until("others are served", lambda body=body: cluster.request("POST", path, body)[0] in (201, 409))
    assert len(cluster.request("GET", path)[1]["items"]) == 20
    partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    assert len(cluster.request("GET", v2, accept=partial)[1]["items"]) > 40, "metadata needs no conversion"
    assert cluster.request("DELETE", v2 + "/slow")[0] == 200, "a delete needs no conversion"
    assert time.monotonic() - began < 20, "nobody else waits for it"
    webhook.release.set()
    waiting.join()
    webhook.misbehave = "status"
    assert cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "end"}})[0] == 201
    body = thing("held", "v1", {"size": 1})
    assert cluster.request("POST", "/apis/software.example/v1/namespaces/end/things", body)[0] == 201
    cluster.request("DELETE", "/api/v1/namespaces/end")
    wait_until("the namespace goes", lambda: cluster.request("GET", "/api/v1/namespaces/end")[0] == 404, 60)
    cluster.request("DELETE", CRDS + "/things.software.example")
    wait_until("the definition goes with its objects", lambda: cluster.request("GET", CRDS + "/things.software.example")[0] == 404, 60)
    assert len(cluster.request("GET", path)[1]["items"]) == 20, "and nobody else's"


def services(cluster, webhook):
    """There are none yet: it is said where the conversion fails."""
    crd = two_versions(webhook)
    crd["spec"]["conversion"]["webhook"]["clientConfig"] = {"service": {"namespace": "default", "name": "converter"}}
    assert cluster.request("POST", CRDS, crd)[0] == 201
    v1 = OBJECTS.format("v1")
    wait_until("served", lambda: cluster.request("POST", v1, thing("a", "v1", {"size": 3}))[0] == 201)
    code, answer = cluster.request("GET", OBJECTS.format("v2") + "/a")
    assert code == 500 and 'service "converter" not found' in answer["message"], answer


def main():
    with tempfile.TemporaryDirectory() as directory, server(sys.argv[1]) as cluster:
        webhook = Webhook(directory)
        code, answer = cluster.request("POST", CRDS, two_versions(webhook))
        assert code == 201, answer
        wait_until("served", lambda: cluster.request("GET", OBJECTS.format("v2"))[0] == 200)
        for check in (webhooks_convert_and_l28_l29_get_the_ids_of_the_request, lies, breaks, services):
            check(cluster, webhook)
            print(f"webhook: {check.__name__}: ok")


if __name__ == "__main__":
    main()
