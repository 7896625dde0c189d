"""An operator made with kopf: a finalizer, children that it owns, and a status."""

import kopf
import kubernetes


@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = True
    settings.persistence.finalizer = "software.example/kopf"


@kopf.on.create("software.example", "v1", "jars")
@kopf.on.update("software.example", "v1", "jars")
def fill(spec, name, namespace, **_):
    body = {"metadata": {"name": f"{name}-jam"}, "data": {"flavor": spec["flavor"]}}
    kopf.adopt(body)
    api = kubernetes.client.CoreV1Api()
    try:
        api.create_namespaced_config_map(namespace, body)
    except kubernetes.client.ApiException as error:
        if error.status != 409:
            raise
        api.patch_namespaced_config_map(body["metadata"]["name"], namespace, body)
    return {"filled": spec["flavor"]}


@kopf.on.delete("software.example", "v1", "jars")
def empty(name, namespace, **_):
    kubernetes.client.CoreV1Api().create_namespaced_config_map(namespace, {"metadata": {"name": f"{name}-washed"}})
