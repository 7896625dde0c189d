"""Storage version migration: the objects of a resource are written in its present version, and its old one can be dropped."""

import sys
import tempfile

from check_webhook import CRDS, OBJECTS, Webhook, thing, two_versions
from support import definition, server, wait_until

MIGRATIONS = "/apis/storagemigration.k8s.io/v1beta1/storageversionmigrations"


def migration(name, group, resource):
    spec = {"resource": {"group": group, "resource": resource}}
    return {"apiVersion": "storagemigration.k8s.io/v1beta1", "kind": "StorageVersionMigration", "metadata": {"name": name}, "spec": spec}


def condition(cluster, name, kind):
    found = cluster.request("GET", f"{MIGRATIONS}/{name}")[1]
    return any(one["type"] == kind and one["status"] == "True" for one in found.get("status", {}).get("conditions", []))


def refused(cluster):
    """Objects that cannot be written as they are: the migration says so and ends."""
    size = {"type": "integer", "x-kubernetes-validations": [{"rule": "self > oldSelf", "message": "it grows with every write"}]}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": size}}}}
    assert cluster.request("POST", CRDS, definition("growths", "Growth", schema))[0] == 201
    growths = "/apis/software.example/v1/namespaces/default/growths"
    growth = {"apiVersion": "software.example/v1", "kind": "Growth", "metadata": {"name": "g"}, "spec": {"size": 1}}
    assert cluster.request("POST", growths, growth)[0] == 201
    code, answer = cluster.request("PATCH", growths + "/g", {}, "application/merge-patch+json")
    assert code == 422, answer
    assert cluster.request("POST", MIGRATIONS, migration("frozen", "software.example", "growths"))[0] == 201
    wait_until("it fails", lambda: condition(cluster, "frozen", "Failed"), 60)
    ended = {one["type"]: (one["status"], one["reason"]) for one in cluster.request("GET", f"{MIGRATIONS}/frozen")[1]["status"]["conditions"]}
    assert ended == {kind: (value, "StorageVersionMigrationFailed") for kind, value in (("Running", "False"), ("Failed", "True"))}, ended


def main():
    flags = ["--runtime-config", "storagemigration.k8s.io/v1beta1=true,internal.apiserver.k8s.io/v1alpha1=true"]
    with tempfile.TemporaryDirectory() as directory, server(sys.argv[1], *flags) as cluster:
        webhook = Webhook(directory)
        crd = two_versions(webhook)
        assert cluster.request("POST", CRDS, crd)[0] == 201
        v1, v2 = OBJECTS.format("v1"), OBJECTS.format("v2")
        wait_until("served", lambda: cluster.request("GET", v1)[0] == 200)
        for number in range(30):
            assert cluster.request("POST", v1, thing(f"n{number}", "v1", {"size": number + 1}))[0] == 201
        # v2 is the storage version from now on; existing objects stay as they are until they are written.
        stored = {"spec": {"versions": [dict(version, storage=version["name"] == "v2") for version in crd["spec"]["versions"]]}}
        code, answer = cluster.request("PATCH", CRDS + "/things.software.example", stored, "application/merge-patch+json")
        assert code == 200 and answer["status"]["storedVersions"] == ["v1", "v2"], answer
        assert cluster.request("POST", v2, thing("new", "v2", {"amount": {"value": 5}}))[0] == 201
        before = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in cluster.request("GET", v2)[1]["items"]}
        code, answer = cluster.request("POST", MIGRATIONS, migration("things", "software.example", "things"))
        assert code == 201, answer
        wait_until("migrated", lambda: condition(cluster, "things", "Succeeded"), 60)
        status = cluster.request("GET", f"{MIGRATIONS}/things")[1]["status"]
        ended = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
        assert ended == {kind: (value, "StorageVersionMigrationSucceeded") for kind, value in (("Running", "False"), ("Succeeded", "True"))}, status
        assert int(status["resourceVersion"]) >= max(int(version) for version in before.values()), status
        after = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in cluster.request("GET", v2)[1]["items"]}
        assert after["new"] == before["new"], "what is stored in v2 is not written again"
        assert all(after[name] != before[name] for name in before if name != "new"), "everything else is"
        webhook.misbehave = "status"
        code, listed = cluster.request("GET", v2)
        assert code == 200 and len(listed["items"]) == 31, "nobody is needed to read them any more"
        webhook.misbehave = None
        # The old version can go now.
        code, answer = cluster.request("PATCH", CRDS + "/things.software.example/status", {"status": {"storedVersions": ["v2"]}}, "application/merge-patch+json")
        assert code == 200, answer
        only = [dict(version, storage=True) for version in crd["spec"]["versions"] if version["name"] == "v2"]
        code, answer = cluster.request("PATCH", CRDS + "/things.software.example", {"spec": {"versions": only}}, "application/merge-patch+json")
        assert code == 200, answer
        wait_until("still there", lambda: len(cluster.request("GET", v2)[1].get("items", [])) == 31)
        # The first write after a version is gone ends the tracking of who managed what in it, as upstream does; what is written in the present version already is not written again.
        entries = lambda: {entry["apiVersion"] for item in cluster.request("GET", v2)[1]["items"] for entry in item["metadata"].get("managedFields", [])}
        assert entries() == {"software.example/v1", "software.example/v2"}, entries()
        for name in ("again", "third"):
            before = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in cluster.request("GET", v2)[1]["items"]}
            assert cluster.request("POST", MIGRATIONS, migration(name, "software.example", "things"))[0] == 201
            wait_until("migrated again", lambda name=name: condition(cluster, name, "Succeeded"), 60)
            assert entries() == {"software.example/v2"}, entries()
        last = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in cluster.request("GET", v2)[1]["items"]}
        assert last == before, "a migration without a change writes nothing"
        assert cluster.request("POST", MIGRATIONS, migration("core", "", "configmaps"))[0] == 201
        wait_until("native kinds, too", lambda: condition(cluster, "core", "Succeeded"), 60)
        assert cluster.request("POST", MIGRATIONS, {**migration("bad", "", ""), "spec": {"resource": {"group": "", "resource": ""}}})[0] == 422
        code, answer = cluster.request("PATCH", MIGRATIONS + "/core", {"spec": {"resource": {"resource": "secrets"}}}, "application/merge-patch+json")
        assert code == 422, answer
        refused(cluster)
        version = {
            "apiVersion": "internal.apiserver.k8s.io/v1alpha1",
            "kind": "StorageVersion",
            "metadata": {"name": "software.example.things"},
            "spec": {},
            "status": {"storageVersions": [{"apiServerID": "a", "encodingVersion": "v2", "decodableVersions": ["v2"]}], "commonEncodingVersion": "v2"},
        }
        path = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions"
        assert cluster.request("POST", path, version)[0] == 201
        status = {"status": version["status"]}
        code, answer = cluster.request("PATCH", path + "/software.example.things/status", status, "application/merge-patch+json")
        assert code == 200 and answer["status"]["commonEncodingVersion"] == "v2", answer
        status["status"]["commonEncodingVersion"] = "v1"
        code, answer = cluster.request("PATCH", path + "/software.example.things/status", status, "application/merge-patch+json")
        assert code == 422, answer
        print("migration: ok")


main()
