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


def main():
    with server(sys.argv[1]) as cluster, tempfile.TemporaryDirectory() as directory:
        chart(directory)

        def helm(*arguments, fails=False):
            environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig, "HOME": directory, "HELM_CACHE_HOME": directory + "/cache"}
            done = subprocess.run([os.environ["HELM"], *arguments], env=environment, capture_output=True, text=True, timeout=120)
            assert (done.returncode != 0) == fails, (arguments, done.stdout, done.stderr)
            return done.stdout + done.stderr

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
        print("helm: ok")


main()
