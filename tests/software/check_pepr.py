"""Pepr, a policy engine and operator framework, deploys its own webhooks: policies written with it default, label, refuse and approve, and its watch writes."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from support import definition, server, wait_until

JARS = "/apis/software.example/v1/namespaces/default/jars"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations/pepr-jars"
MERGE = "application/merge-patch+json"


def check(cluster, engine):
    def jar(name, **spec):
        return {"apiVersion": "software.example/v1", "kind": "Jar", "metadata": {"name": name}, "spec": spec}

    def paper():
        code, found = cluster.request("GET", f"{CONFIG_MAPS}/label-of-one")
        return code == 200 and found

    def is_reviewing():
        if engine.poll() is not None:
            raise SystemExit(f"Pepr ended with {engine.returncode}")
        return cluster.request("POST", f"{JARS}?dryRun=All", jar("probe", flavor="mud"))[0] == 422

    wait_until("the policies are asked", is_reviewing, 600)
    code, made = cluster.request("POST", JARS, jar("one", flavor="plum"))
    assert (code, made["spec"]) == (201, {"flavor": "plum", "lid": "cork"}), made
    assert made["metadata"]["labels"] == {"pantry": "yes"}, made
    found = wait_until("the watch writes a config map", paper)
    assert found["data"] == {"flavor": "plum", "lid": "cork"}, found
    assert found["metadata"]["managedFields"][0]["operation"] == "Apply", found
    code, refused = cluster.request("PATCH", f"{JARS}/one", {"spec": {"flavor": "mud"}}, MERGE)
    assert code == 422 and "mud is no flavor" in refused["message"], refused
    assert "admission webhook" in refused["message"] and "denied the request" in refused["message"], refused
    code, changed = cluster.request("PATCH", f"{JARS}/one", {"spec": {"lid": "steel"}}, MERGE)
    assert code == 200, changed
    wait_until("the watch sees the change", lambda: paper()["data"]["lid"] == "steel")
    code, refused = cluster.request("DELETE", f"{JARS}/one")
    assert code == 422 and "steel stays shut" in refused["message"], (code, refused)
    code, refused = cluster.request("POST", CONFIG_MAPS, {"metadata": {"name": "sealed"}})
    assert code == 422 and "no seal" in refused["message"], (code, refused)
    code, made = cluster.request("POST", CONFIG_MAPS, {"metadata": {"name": "sealed", "annotations": {"seal": "wax"}}})
    assert code == 201, made


def main():
    if not os.environ.get("OWN_NETWORK"):
        # Pepr listens at a fixed port.
        inside = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv]
        os.execvpe("unshare", ["unshare", "--net", *inside], {**os.environ, "OWN_NETWORK": "1"})
    fields = {"flavor": {"type": "string"}, "lid": {"type": "string"}}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}
    with server(sys.argv[1]) as cluster, tempfile.TemporaryDirectory() as directory, tempfile.NamedTemporaryFile("w+") as log:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        assert cluster.request("POST", path, definition("jars", "Jar", schema))[0] == 201
        os.symlink(os.path.abspath(os.environ["NODE_MODULES"]), os.path.join(directory, "node_modules"))
        pepr = ["node", os.path.join(directory, "node_modules", "pepr", "dist", "cli.js")]
        scaffold = [*pepr, "init", "--yes", "--skip-post-init", "--name", "jars", "--description", "jars", "--error-behavior", "reject", "--uuid", "jars"]
        subprocess.run(scaffold, cwd=directory, check=True, capture_output=True)
        module = os.path.join(directory, "jars")
        shutil.copy(os.path.join(os.path.dirname(__file__), "jars_policies.ts"), os.path.join(module, "pepr.ts"))
        os.symlink("../node_modules", os.path.join(module, "node_modules"))
        command = [*pepr, "dev", "--yes", "--host", "localhost"]
        environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig, "TZ": "UTC"}
        engine = subprocess.Popen(command, cwd=module, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            check(cluster, engine)
            print("policies and an operator on Pepr: ok")
        except BaseException:
            log.seek(0)
            print(log.read()[-6000:])
            raise
        finally:
            # With the processes it started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(engine.pid, signal.SIGKILL)
            engine.wait(30)


main()
