"""An operator made with kopf whose webhooks default and check jars; kopf registers them itself."""

import os

import kopf


@kopf.on.startup()
def configure(settings, **_):
    certificate = os.environ["WEBHOOK_CERTIFICATE"]
    settings.posting.enabled = False
    settings.admission.managed = "jars.software.example"
    settings.admission.server = kopf.WebhookServer(addr="127.0.0.1", host="127.0.0.1", certfile=certificate, pkeyfile=os.environ["WEBHOOK_KEY"], cafile=certificate)


@kopf.on.mutate("software.example", "v1", "jars", id="lid")
def lid(spec, patch, operation, **_):
    if operation == "CREATE" and "lid" not in spec:
        patch.spec["lid"] = "cork"


@kopf.on.validate("software.example", "v1", "jars", id="flavor")
def flavor(spec, warnings, dryrun, **_):
    if spec["flavor"] == "mud":
        raise kopf.AdmissionError("mud is no flavor", code=422)
    if spec["flavor"] == "garlic":
        warnings.append("garlic stays in the jar")


@kopf.on.validate("software.example", "v1", "jars", id="keep", operation="DELETE")
def keep(spec, **_):
    if spec.get("lid") == "steel":
        raise kopf.AdmissionError("steel stays shut", code=403)
