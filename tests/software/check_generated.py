"""A client in TypeScript is generated from each OpenAPI document, with one of a custom group; all compile, and three are used."""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile

from support import definition, server, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = os.path.abspath(os.environ["NODE_MODULES"])
GENERATOR = os.path.join(MODULES, "@hey-api/openapi-ts/bin/run.js")
COMPILER = os.path.join(MODULES, "typescript/bin/tsc")
GROUP = "apis/software.example/v1"
KITE = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["span"],
            "properties": {
                "span": {"type": "integer", "minimum": 1},
                "color": {"type": "string", "enum": ["red", "blue"], "default": "blue"},
                "port": {"x-kubernetes-int-or-string": True},
                "marks": {"type": "object", "additionalProperties": {"type": "integer"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "since": {"type": "string", "format": "date-time", "nullable": True},
            },
        },
        "status": {"type": "object", "properties": {"up": {"type": "boolean"}}},
    },
}


def run(command, directory, **environment):
    done = subprocess.run(command, cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def documents(cluster):
    """All, by path, when the custom group is among them."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    made = cluster.request("POST", crds, definition("kites", "Kite", KITE, subresources={"status": {}}))
    assert made[0] == 201, made
    paths = lambda: cluster.request("GET", "/openapi/v3")[1]["paths"]
    found = wait_until("the document of the custom group", lambda: GROUP in (all := paths()) and all, 60)
    answers = {path: cluster.request("GET", place["serverRelativeURL"]) for path, place in found.items()}
    assert all(code == 200 for code, _ in answers.values()), answers.keys()
    return {path: document for path, (_, document) in answers.items()}


def operations(document):
    return sum("operationId" in operation for path in document["paths"].values() for operation in path.values() if isinstance(operation, dict))


def generate(found, directory):
    """A client of each document in a folder of its name; all have a function for each operation."""
    jobs = []
    for path, document in found.items():
        name = path.strip("/").replace("/", "_")
        with open(os.path.join(directory, name + ".json"), "w", encoding="utf-8") as out:
            json.dump(document, out)
        plugins = ["@hey-api/client-fetch", "@hey-api/sdk", "@hey-api/typescript"]
        jobs.append({"input": f"./{name}.json", "output": f"./{name}", "plugins": plugins})
    with open(os.path.join(directory, "openapi-ts.config.mjs"), "w", encoding="utf-8") as out:
        out.write("export default " + json.dumps(jobs))
    run(["node", GENERATOR, "--no-log-file"], directory)
    total = 0
    for job, document in zip(jobs, found.values()):
        with open(os.path.join(directory, job["output"], "sdk.gen.ts"), encoding="utf-8") as file:
            functions = len(re.findall(r"^export const \w+ = <", file.read(), re.MULTILINE))
        assert functions == operations(document), (job["output"], functions, operations(document))
        total += functions
    assert total > 500, total
    return total


def compile_all(directory):
    """Type-checks every generated file and the program that uses them, which is then in `out`."""
    shutil.copy(os.path.join(HERE, "generated_client.ts"), directory)
    options = {"strict": True, "noEmitOnError": True, "skipLibCheck": True, "target": "es2022", "lib": ["es2022", "dom", "dom.iterable"]}
    options |= {"module": "commonjs", "moduleResolution": "node10", "esModuleInterop": True, "types": ["node"], "rootDir": ".", "outDir": "out"}
    with open(os.path.join(directory, "tsconfig.json"), "w", encoding="utf-8") as out:
        json.dump({"compilerOptions": options, "include": ["*.ts", "*/*.ts"], "exclude": ["node_modules"]}, out)
    run(["node", COMPILER, "--project", "."], directory)


def token(cluster):
    """A token of an account that may do everything."""
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    assert cluster.request("POST", accounts, {"metadata": {"name": "user"}})[0] == 201
    subject = {"kind": "ServiceAccount", "name": "user", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"metadata": {"name": "user"}, "subjects": [subject], "roleRef": role}
    assert cluster.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)[0] == 201
    code, made = cluster.request("POST", accounts + "/user/token", {"spec": {"expirationSeconds": 600}})
    assert code == 201, made
    return made["status"]["token"]


def main():
    for needed in (GENERATOR, COMPILER):
        assert os.path.exists(needed), f"{needed} is missing: run tests/software/install"
    with server(sys.argv[1], "--profile=kubernetes") as cluster, tempfile.TemporaryDirectory() as directory:
        os.symlink(MODULES, os.path.join(directory, "node_modules"))
        found = documents(cluster)
        functions = generate(found, directory)
        compile_all(directory)
        authority = os.path.join(directory, "ca.crt")
        with open(authority, "w", encoding="utf-8") as out:
            out.writelines(map(ssl.DER_cert_to_PEM_cert, cluster.context.get_ca_certs(binary_form=True)))
        program = ["node", os.path.join("out", "generated_client.js")]
        said = run(program, directory, SERVER=cluster.url, TOKEN=token(cluster), NODE_EXTRA_CA_CERTS=authority)
        assert said == "calls: ok\n", said
    print(f"generated clients: ok, {len(found)} documents, {functions} functions")


main()
