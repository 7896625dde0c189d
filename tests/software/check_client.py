"""The Python client: typed, custom objects, the dynamic client with discovery, apply and watch."""

import sys
import threading

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException
from support import definition, server, wait_until

SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {"size": {"type": "integer", "minimum": 1}, "color": {"type": "string", "default": "blue"}},
            "x-kubernetes-validations": [{"rule": "self.size < 100 || self.color != 'red'", "message": "red is small"}],
        },
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
    },
}


def box(name, **spec):
    return {"apiVersion": "software.example/v1", "kind": "Box", "metadata": {"name": name}, "spec": spec}


def watched(resource, seen, stop):
    for event in resource.watch(namespace="default", timeout=180):
        seen.append((event["type"], event["object"].metadata.name))
        if stop.is_set():
            return


def main():
    with server(sys.argv[1]) as cluster:
        api = config.new_client_from_config(cluster.kubeconfig)
        extensions = client.ApiextensionsV1Api(api)
        subresources = {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"}}
        extensions.create_custom_resource_definition(definition("boxes", "Box", SCHEMA, subresources=subresources))

        def established():
            found = extensions.read_custom_resource_definition("boxes.software.example")
            return any(condition.type == "Established" and condition.status == "True" for condition in found.status.conditions or [])

        wait_until("established", established)
        boxes = dynamic.DynamicClient(api).resources.get(api_version="software.example/v1", kind="Box")
        assert boxes.namespaced and boxes.name == "boxes"
        seen, stop = [], threading.Event()
        watching = threading.Thread(target=watched, args=(boxes, seen, stop), daemon=True)
        watching.start()
        made = boxes.create(namespace="default", body=box("a", size=2))
        assert made.spec.color == "blue" and made.metadata.generation == 1
        boxes.patch(namespace="default", name="a", body={"spec": {"size": 3}}, content_type="application/merge-patch+json")
        applied = boxes.server_side_apply(namespace="default", name="b", body=box("b", size=5), field_manager="check")
        assert applied.metadata.managedFields[0].manager == "check"
        status = boxes.status.patch(namespace="default", name="a", body={"status": {"replicas": 3}}, content_type="application/merge-patch+json")
        assert status.status.replicas == 3 and status.metadata.generation == 2
        custom = client.CustomObjectsApi(api)
        place = {"group": "software.example", "version": "v1", "namespace": "default", "plural": "boxes"}
        scale = custom.get_namespaced_custom_object_scale(**place, name="a")
        assert scale["spec"]["replicas"] == 3 and scale["status"]["replicas"] == 3, scale
        for bad in (box("c"), box("c", size=0), box("c", size=100, color="red")):
            try:
                custom.create_namespaced_custom_object(**place, body=bad)
                raise AssertionError(f"accepted: {bad}")
            except ApiException as error:
                assert error.status == 422, error
        assert len(boxes.get(namespace="default").items) == 2
        boxes.delete(namespace="default", name="a")
        wanted = [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]
        wait_until("events", lambda: all(event in seen for event in wanted))
        stop.set()
        names = [event["object"]["metadata"]["name"] for event in watch.Watch().stream(custom.list_namespaced_custom_object, **place, timeout_seconds=1)]
        assert names == ["b"], names
        extensions.delete_custom_resource_definition("boxes.software.example")
        wait_until("gone", lambda: not extensions.list_custom_resource_definition().items)
        print("client: ok")


main()
