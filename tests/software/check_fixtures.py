"""pytest with the fixtures of clients/python, and the Python client; envtest's assets, started as any starter of etcd and kube-apiserver does."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from kubernetes import client

CLIENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../clients/python")


def fixtures(executable):
    """The examples, with the package installed as its README says."""
    with tempfile.TemporaryDirectory() as directory:
        # pip builds in the folder that it is given.
        package = shutil.copytree(CLIENTS, os.path.join(directory, "package"))
        site = os.path.join(directory, "site")
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, package], check=True)
        environment = {**os.environ, "FERROKUBE": os.path.abspath(executable), "PYTHONPATH": site}
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py", "fixtures_example.py"]
        subprocess.run(pytest, cwd=os.path.join(package, "examples"), env=environment, check=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def healthy(process, url):
    context = ssl._create_unverified_context()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if urllib.request.urlopen(url, context=context, timeout=5).status == 200:
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.01)
    raise SystemExit(f"{url} is not healthy")


def assets(executable, profile, flags):
    """A suite that starts both executables itself, and uses the Python client."""
    with tempfile.TemporaryDirectory() as directory:
        path = lambda name: os.path.join(directory, name)
        made = subprocess.run([executable, "envtest-assets", path("assets"), f"--profile={profile}", *flags], check=True, capture_output=True, text=True)
        assert made.stdout == f"export KUBEBUILDER_ASSETS='{path('assets')}'\n", made.stdout
        with open(os.open(path("tokens"), os.O_CREAT | os.O_WRONLY, 0o640), "w", encoding="utf-8") as tokens:
            tokens.write('secret,admin,1,"system:masters"\n')
        etcd_url, port = f"http://127.0.0.1:{free_port()}", free_port()
        etcd = subprocess.Popen([path("assets/etcd"), f"--listen-client-urls={etcd_url}", f"--advertise-client-urls={etcd_url}", f"--data-dir={path('etcd')}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started = time.monotonic()
        server = subprocess.Popen(
            [path("assets/kube-apiserver"), f"--etcd-servers={etcd_url}", f"--cert-dir={path('certs')}", f"--secure-port={port}", "--bind-address=127.0.0.1", f"--token-auth-file={path('tokens')}", "--authorization-mode=RBAC"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            healthy(server, f"https://127.0.0.1:{port}/readyz")
            took = time.monotonic() - started
            settings = client.Configuration(host=f"https://127.0.0.1:{port}")
            settings.ssl_ca_cert, settings.api_key = path("certs/apiserver.crt"), {"authorization": "Bearer secret"}
            api = client.ApiClient(settings)
            core, apps = client.CoreV1Api(api), client.AppsV1Api(api)
            core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name="shop")))
            core.create_namespaced_config_map("shop", client.V1ConfigMap(metadata=client.V1ObjectMeta(name="page"), data={"a": "b"}))
            if profile == "kubernetes":
                assert apps.list_namespaced_deployment("shop").items == []
            else:
                try:
                    apps.list_namespaced_deployment("shop")
                    raise SystemExit("the generic profile serves deployments")
                except client.ApiException as error:
                    assert error.status == 404, error
            core.delete_namespace("shop")
            names = lambda: [item.metadata.name for item in core.list_namespace().items]
            if flags:
                # As with the real assets: nobody deletes it.
                assert core.read_namespace("shop").status.phase == "Terminating"
            else:
                deadline = time.monotonic() + 60
                while "shop" in names():
                    assert time.monotonic() < deadline, "the namespace stays"
                    time.sleep(0.02)
            return took
        finally:
            for process in (server, etcd):
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0


def main():
    executable = os.path.abspath(sys.argv[1])
    fixtures(executable)
    for profile in ("kubernetes", "generic"):
        took = assets(executable, profile, ())
        print(f"envtest-assets, profile {profile}: ready in {took * 1000:.0f} ms")
    assets(executable, "kubernetes", ("--controllers=-*",))
    print("fixtures: ok")


main()
