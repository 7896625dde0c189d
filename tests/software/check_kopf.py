"""kopf runs an operator: finalizers hold objects, status is written, owned objects go with their owner."""

import os
import subprocess
import sys
import tempfile

from support import definition, server, wait_until

JARS = "/apis/software.example/v1/namespaces/default/jars"
CONFIG = "/api/v1/namespaces/default/configmaps"


def main():
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"flavor": {"type": "string"}}},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    with server(sys.argv[1]) as cluster, tempfile.NamedTemporaryFile("w+") as log:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        assert cluster.request("POST", path, definition("jars", "Jar", schema, subresources={"status": {}}))[0] == 201
        command = [sys.executable, "-m", "kopf", "run", "--standalone", "--namespace", "default", os.path.join(os.path.dirname(__file__), "jar_operator.py")]
        operator = subprocess.Popen(command, env={**os.environ, "KUBECONFIG": cluster.kubeconfig}, stdout=log, stderr=subprocess.STDOUT)
        try:
            jar = {"apiVersion": "software.example/v1", "kind": "Jar", "metadata": {"name": "one"}, "spec": {"flavor": "plum"}}
            assert cluster.request("POST", JARS, jar)[0] == 201
            filled = lambda: cluster.request("GET", JARS + "/one")[1].get("status", {}).get("fill", {}).get("filled")
            wait_until("the status is written", lambda: filled() == "plum", 60)
            found = cluster.request("GET", JARS + "/one")[1]
            assert found["metadata"]["finalizers"] == ["software.example/kopf"], found
            child = cluster.request("GET", CONFIG + "/one-jam")[1]
            assert child["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]
            cluster.request("PATCH", JARS + "/one", {"spec": {"flavor": "pear"}}, "application/merge-patch+json")
            wait_until("the change is followed", lambda: cluster.request("GET", CONFIG + "/one-jam")[1]["data"]["flavor"] == "pear", 60)
            cluster.request("DELETE", JARS + "/one")
            wait_until("the finalizer lets go", lambda: cluster.request("GET", JARS + "/one")[0] == 404, 60)
            assert cluster.request("GET", CONFIG + "/one-washed")[0] == 200
            wait_until("the child goes with its owner", lambda: cluster.request("GET", CONFIG + "/one-jam")[0] == 404, 60)
            print("kopf: ok")
        except BaseException:
            log.seek(0)
            print(log.read()[-3000:])
            raise
        finally:
            operator.terminate()
            operator.wait(30)


main()
