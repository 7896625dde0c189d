"""What the checks share: a server in a directory of its own, a client, waiting."""

import contextlib
import json
import os
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import yaml


class Server:
    """One all-in-one process on a free port; its administrator's kubeconfig is `kubeconfig`."""

    def __init__(self, executable, directory, flags=()):
        self.log_path = os.path.join(directory, "server.log")
        self.log = open(self.log_path, "wb")
        command = [executable, "all-in-one", "--data-dir", os.path.join(directory, "data"), "--secure-port", "0", "--log-level", "info", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, stdin=subprocess.DEVNULL)
        line = self.process.stdout.readline().decode()
        if "kubeconfig" not in line:
            raise SystemExit(f"the server did not start: {line!r} {open(self.log_path).read()[-2000:]}")
        self.kubeconfig = line.split("kubeconfig ", 1)[1].strip()
        with open(self.kubeconfig, encoding="utf-8") as config:
            config = yaml.safe_load(config)
        self.url = config["clusters"][0]["cluster"]["server"]
        self.context = self._tls(config, directory)

    def _tls(self, config, directory):
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        import base64

        def file(section, name):
            if name in section:
                return section[name]
            path = os.path.join(directory, name)
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as out:
                out.write(base64.b64decode(section[name + "-data"]))
            return path

        context = ssl.create_default_context(cafile=file(cluster, "certificate-authority"))
        context.load_cert_chain(file(user, "client-certificate"), file(user, "client-key"))
        return context

    def request(self, method, path, body=None, content_type="application/json", accept="application/json", more=None):
        """Status code and JSON answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": accept} | (more or {})
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def watch(self, path):
        """The events of a watch that ends by itself."""
        with urllib.request.urlopen(self.url + path, context=self.context, timeout=60) as answer:
            return [json.loads(line) for line in answer]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self.log.close()
        assert code == 0, f"the server ended with {code}"


@contextlib.contextmanager
def server(executable, *flags):
    with tempfile.TemporaryDirectory() as directory:
        running = Server(executable, directory, flags)
        try:
            yield running
        except BaseException:
            print(open(running.log_path, encoding="utf-8", errors="replace").read()[-4000:])
            raise
        finally:
            running.stop()


def wait_until(what, predicate, seconds=180):
    """Polls until the predicate gives something true, which is returned."""
    end = time.monotonic() + seconds
    last = None
    while time.monotonic() < end:
        last = predicate()
        if last:
            return last
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds} s; last seen: {last!r}")


def definition(plural, kind, schema, group="software.example", **version):
    """A CustomResourceDefinition with one version."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "shortNames": [kind.lower()[:3]]},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}],
        },
    }
