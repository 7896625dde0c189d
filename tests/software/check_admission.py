"""An operator made with kopf registers its own webhooks: they default, warn, refuse, and see dry runs and deletes."""

import os
import subprocess
import sys
import tempfile
import urllib.request

from support import definition, server, wait_until

JARS = "/apis/software.example/v1/namespaces/default/jars"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations/jars.software.example"


def certificate(directory):
    key, cert = os.path.join(directory, "key.pem"), os.path.join(directory, "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj", "/CN=webhook"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return {"WEBHOOK_KEY": key, "WEBHOOK_CERTIFICATE": cert}


def check(cluster):
    def jar(name, **spec):
        return {"apiVersion": "software.example/v1", "kind": "Jar", "metadata": {"name": name}, "spec": spec}

    def registered(kind):
        code, found = cluster.request("GET", WEBHOOKS.format(kind))
        return code == 200 and found.get("webhooks")

    for kind in ("mutating", "validating"):
        wait_until(f"the {kind} webhooks are registered", lambda: registered(kind), 60)
    code, made = cluster.request("POST", JARS, jar("one", flavor="plum"))
    assert (code, made["spec"]) == (201, {"flavor": "plum", "lid": "cork"}), made
    code, refused = cluster.request("POST", JARS, jar("two", flavor="mud"))
    assert (code, "mud is no flavor" in refused["message"]) == (422, True), refused
    assert "admission webhook" in refused["message"] and "denied the request" in refused["message"], refused
    code, refused = cluster.request("POST", JARS + "?dryRun=All", jar("two", flavor="mud"))
    assert code == 422, refused
    code, refused = cluster.request("PATCH", JARS + "/one", {"spec": {"flavor": "mud"}}, "application/merge-patch+json")
    assert code == 422, refused
    request = urllib.request.Request(cluster.url + JARS, method="POST", headers={"Content-Type": "application/json"}, data=b'{"metadata":{"name":"three"},"kind":"Jar","apiVersion":"software.example/v1","spec":{"flavor":"garlic","lid":"steel"}}')
    with urllib.request.urlopen(request, context=cluster.context, timeout=60) as answer:
        assert "garlic stays in the jar" in answer.headers["Warning"], answer.headers
    code, refused = cluster.request("DELETE", JARS + "/three")
    assert (code, "steel stays shut" in refused["message"]) == (403, True), refused
    assert cluster.request("DELETE", JARS + "/one")[0] == 200


def main():
    fields = {"flavor": {"type": "string"}, "lid": {"type": "string"}}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}
    with server(sys.argv[1]) as cluster, tempfile.TemporaryDirectory() as directory, tempfile.NamedTemporaryFile("w+") as log:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        assert cluster.request("POST", path, definition("jars", "Jar", schema))[0] == 201
        command = [sys.executable, "-m", "kopf", "run", "--standalone", "--namespace", "default", os.path.join(os.path.dirname(__file__), "admission_operator.py")]
        environment = {**os.environ, **certificate(directory), "KUBECONFIG": cluster.kubeconfig}
        operator = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            check(cluster)
            print("kopf's admission webhooks: ok")
        except BaseException:
            log.seek(0)
            print(log.read()[-3000:])
            raise
        finally:
            operator.terminate()
            operator.wait(30)


main()
