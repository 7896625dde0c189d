"""helm installs, upgrades, rolls back and removes a chart of definitions and objects."""

import os
import subprocess
import sys
import tempfile

import yaml
from support import definition, server

MUGS = "/apis/software.example/v1/namespaces/default/mugs"
TEMPLATE = """apiVersion: software.example/v1
kind: Mug
metadata:
  name: {{ .Release.Name }}-mug
  labels: {app: {{ .Chart.Name }}}
spec:
  color: {{ .Values.color | quote }}
{{- range $index, $name := .Values.extra }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $.Release.Name }}-{{ $name }}
data:
  index: "{{ $index }}"
{{- end }}
"""


def write(directory, path, text):
    path = os.path.join(directory, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


def chart(directory):
    write(directory, "Chart.yaml", "apiVersion: v2\nname: mugs\nversion: 1.0.0\n")
    write(directory, "values.yaml", "color: white\nextra: [one]\n")
    write(directory, "templates/mug.yaml", TEMPLATE)
    properties = {"spec": {"type": "object", "properties": {"color": {"type": "string", "maxLength": 9}}}}
    write(directory, "crds/mugs.yaml", yaml.safe_dump(definition("mugs", "Mug", {"type": "object", "properties": properties})))


def runner(cluster, directory):
    """helm with a home of its own."""

    def helm(*arguments, fails=False):
        environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig, "HOME": directory, "HELM_CACHE_HOME": directory + "/cache"}
        done = subprocess.run([os.environ["HELM"], *arguments], env=environment, capture_output=True, text=True, timeout=120)
        assert (done.returncode != 0) == fails, (arguments, done.stdout, done.stderr)
        return done.stdout + done.stderr

    return helm


OURS = os.path.join(os.path.dirname(__file__), "../../deploy/helm/ferrokube")
SEVERAL = ("replicas=3", "keysSecret=keys", "etcd.servers={http://etcd:2379}", "etcd.secret=etcd", "tlsSans={api.example.com}")


def our_chart(helm, cluster):
    """Installs the chart of deploy/helm: the server validates what it makes, with and without etcd."""
    helm("lint", "--strict", OURS)
    kinds = lambda: sorted(cluster.request("GET", f"/apis/apps/v1/namespaces/default/{kind}")[1]["items"][0]["metadata"]["name"] for kind in ("statefulsets", "deployments"))
    helm("install", "shop", OURS)
    status, server_set = cluster.request("GET", "/apis/apps/v1/namespaces/default/statefulsets/shop-ferrokube")
    assert status == 200, server_set
    container = server_set["spec"]["template"]["spec"]["containers"][0]
    assert container["image"].endswith("/all-in-one:0.1.0"), container
    assert "--tls-san=shop-ferrokube,shop-ferrokube.default,shop-ferrokube.default.svc" in container["args"], container
    helm("upgrade", "shop", OURS, "--set", "replicas=3", fails=True)
    helm("upgrade", "shop", OURS, *(word for value in SEVERAL for word in ("--set", value)))
    assert kinds() == ["shop-ferrokube", "shop-ferrokube-controller-manager"]
    container = cluster.request("GET", "/apis/apps/v1/namespaces/default/statefulsets/shop-ferrokube")[1]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"].endswith("/apiserver:0.1.0") and "--etcd-servers=http://etcd:2379" in container["args"], container
    helm("uninstall", "shop")


def main():
    with server(sys.argv[1]) as cluster, tempfile.TemporaryDirectory() as directory:
        chart(directory)

        helm = runner(cluster, directory)
        color = lambda: cluster.request("GET", MUGS + "/tea-mug")[1]["spec"]["color"]
        exists = lambda name: cluster.request("GET", f"/api/v1/namespaces/default/configmaps/tea-{name}")[0] == 200
        helm("install", "tea", directory, "--wait")
        assert color() == "white" and exists("one")
        helm("upgrade", "tea", directory, "--set", "color=green", "--set", "extra={two}", "--wait")
        assert color() == "green" and exists("two") and not exists("one")
        refused = helm("upgrade", "tea", directory, "--set", "color=much-too-long", fails=True)
        assert "Too long" in refused or "Invalid" in refused, refused
        assert color() == "green"
        helm("rollback", "tea", "1")
        assert color() == "white" and exists("one")
        assert "tea" in helm("list", "--all")
        helm("uninstall", "tea")
        assert cluster.request("GET", MUGS + "/tea-mug")[0] == 404 and not exists("one")
        assert cluster.request("GET", MUGS)[0] == 200, "helm keeps definitions"
    with server(sys.argv[1], "--profile=kubernetes") as cluster, tempfile.TemporaryDirectory() as directory:
        our_chart(runner(cluster, directory), cluster)
        print("helm: ok")


main()
