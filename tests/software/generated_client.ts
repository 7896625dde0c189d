// Uses clients generated from the server's OpenAPI documents, with a token: objects are made, read, listed, changed, refused and deleted.
import assert from "node:assert/strict";
import * as core from "./api_v1";
import { client as coreClient } from "./api_v1/client.gen";
import * as apps from "./apis_apps_v1";
import { client as appsClient } from "./apis_apps_v1/client.gen";
import * as example from "./apis_software.example_v1";
import { client as exampleClient } from "./apis_software.example_v1/client.gen";

const { SERVER, TOKEN } = process.env;
for (const client of [coreClient, appsClient, exampleClient]) {
  client.setConfig({ baseUrl: SERVER, headers: { Authorization: `Bearer ${TOKEN}` } });
  // Bodies have the type */* in the documents, as in kube-apiserver's; both servers refuse it. Of a patch's types, the generator takes the first.
  client.interceptors.request.use(request => {
    if (request.method === "PATCH") request.headers.set("Content-Type", "application/merge-patch+json");
    else if (request.headers.get("Content-Type") === "*/*") request.headers.set("Content-Type", "application/json");
    return request;
  });
}

// An answer's object; anything but success is thrown.
function succeeded<T>(answer: { data?: T; error?: unknown; response?: Response }, code = 200): T {
  assert.equal(answer.response?.status, code, JSON.stringify(answer.error));
  assert(answer.data !== undefined);
  return answer.data;
}

function refused(answer: { error?: unknown; response?: Response }, code: number, reason: string) {
  const status = answer.error as core.IoK8sApimachineryPkgApisMetaV1Status;
  assert.equal(answer.response?.status, code);
  assert.deepEqual([status.kind, status.status, status.code, status.reason], ["Status", "Failure", code, reason]);
  return status;
}

const namespace = "default";
const path = { namespace, name: "one" };

// Types of fields: a line below @ts-expect-error must not compile.
const span: example.ExampleSoftwareV1Kite = { spec: { span: 1 } };
// @ts-expect-error
span.spec = { span: "wide" };
// @ts-expect-error
span.spec = { color: "red" };
// @ts-expect-error
span.spec = { span: 1, color: "green" };
// @ts-expect-error
const data: core.IoK8sApiCoreV1ConfigMap = { data: { a: 1 } };
// @ts-expect-error
const deployment: apps.IoK8sApiAppsV1DeploymentSpec = { replicas: 1, selector: {} };
const claim: core.IoK8sApiCoreV1PersistentVolumeClaimStatus = { allocatedResourceStatuses: { storage: "NodeResizePending" } };
void [span, data, deployment, claim];

async function configMaps() {
  const made = succeeded(await core.createCoreV1NamespacedConfigMap({ path: { namespace }, body: { metadata: { name: "one" }, data: { a: "b" } } }), 201);
  assert(made.metadata?.uid && made.metadata.creationTimestamp);
  refused(await core.createCoreV1NamespacedConfigMap({ path: { namespace }, body: { metadata: { name: "one" } } }), 409, "AlreadyExists");
  const read = succeeded(await core.readCoreV1NamespacedConfigMap({ path }));
  assert.deepEqual(read.data, { a: "b" });
  const replaced = succeeded(await core.replaceCoreV1NamespacedConfigMap({ path, body: { ...read, data: { a: "c" } } }));
  assert.deepEqual(replaced.data, { a: "c" });
  refused(await core.replaceCoreV1NamespacedConfigMap({ path, body: read }), 409, "Conflict");
  const patched = succeeded(await core.patchCoreV1NamespacedConfigMap({ path, query: { fieldManager: "generated" }, body: { data: { d: "e" } } }));
  assert.deepEqual(patched.data, { a: "c", d: "e" });
  const list = succeeded(await core.listCoreV1NamespacedConfigMap({ path: { namespace }, query: { fieldSelector: "metadata.name=one", limit: 5 } }));
  assert.deepEqual(list.items.map(item => item.data), [{ a: "c", d: "e" }]);
  const deleted = succeeded(await core.deleteCoreV1NamespacedConfigMap({ path, body: { preconditions: { uid: made.metadata.uid } } }));
  assert.deepEqual([deleted.status, deleted.details?.name], ["Success", "one"]);
  refused(await core.readCoreV1NamespacedConfigMap({ path }), 404, "NotFound");
}

async function deployments() {
  const labels = { app: "one" };
  const container = { name: "web", image: "web:1", ports: [{ containerPort: 80 }], resources: { limits: { cpu: 1, memory: "64Mi" } } };
  const body: apps.IoK8sApiAppsV1Deployment = {
    metadata: { name: "one", labels },
    spec: { replicas: 0, selector: { matchLabels: labels }, template: { metadata: { labels }, spec: { containers: [container] } } },
  };
  const made = succeeded(await apps.createAppsV1NamespacedDeployment({ path: { namespace }, body }), 201);
  assert.equal(made.spec?.strategy?.rollingUpdate?.maxSurge, "25%");
  assert.equal(made.spec?.template.spec?.containers[0]?.resources?.limits?.cpu, "1");
  const wrong = await apps.createAppsV1NamespacedDeployment({ path: { namespace }, body: { ...body, spec: { ...body.spec!, replicas: -1 } } });
  assert.equal(refused(wrong, 422, "Invalid").details?.causes?.[0]?.field, "spec.replicas");
  const patched = succeeded(await apps.patchAppsV1NamespacedDeployment({ path, body: { spec: { minReadySeconds: 3, strategy: { rollingUpdate: { maxSurge: 2 } } } } }));
  assert.deepEqual([patched.spec?.minReadySeconds, patched.spec?.strategy?.rollingUpdate?.maxSurge], [3, 2]);
  const scaled = succeeded(await apps.patchAppsV1NamespacedDeploymentScale({ path, body: { spec: { replicas: 1 } } }));
  assert.equal(scaled.spec?.replicas, 1);
  const list = succeeded(await apps.listAppsV1DeploymentForAllNamespaces({ query: { labelSelector: "app=one" } }));
  assert.deepEqual(list.items.map(item => [item.metadata?.name, item.spec?.replicas]), [["one", 1]]);
  succeeded(await apps.readAppsV1NamespacedDeploymentStatus({ path }));
  const deleted = succeeded(await apps.deleteAppsV1NamespacedDeployment({ path, query: { propagationPolicy: "Background" } }));
  assert.equal(deleted.status, "Success");
  refused(await apps.readAppsV1NamespacedDeployment({ path }), 404, "NotFound");
}

async function kites() {
  const make = (spec: example.ExampleSoftwareV1Kite["spec"]) =>
    example.createSoftwareExampleV1NamespacedKite({
      path: { namespace },
      body: { apiVersion: "software.example/v1", kind: "Kite", metadata: { name: "one" }, spec },
    });
  assert.equal(refused(await make({ span: 0 }), 422, "Invalid").details?.causes?.[0]?.field, "spec.span");
  const made = succeeded(await make({ span: 2, port: "http", marks: { stripes: 3 }, free: { any: [1] }, since: null }), 201);
  assert.deepEqual(made.spec, { span: 2, color: "blue", port: "http", marks: { stripes: 3 }, free: { any: [1] }, since: null });
  const replaced = succeeded(await example.replaceSoftwareExampleV1NamespacedKite({ path, body: { ...made, spec: { span: 3, port: 80 } } }));
  assert.equal(replaced.metadata?.generation, 2);
  const status = succeeded(await example.patchSoftwareExampleV1NamespacedKiteStatus({ path, body: { status: { up: true } } }));
  assert.deepEqual([status.status?.up, status.metadata?.generation], [true, 2]);
  const list = succeeded(await example.listSoftwareExampleV1NamespacedKite({ path: { namespace } }));
  assert.deepEqual(list.items.map(item => item.spec), [{ span: 3, color: "blue", port: 80 }]);
  assert.equal(succeeded(await example.deleteSoftwareExampleV1NamespacedKite({ path })).status, "Success");
  refused(await example.readSoftwareExampleV1NamespacedKite({ path }), 404, "NotFound");
}

async function main() {
  await configMaps();
  await deployments();
  await kites();
  const anonymous = await core.listCoreV1NamespacedConfigMap({ path: { namespace }, headers: { Authorization: null } });
  refused(anonymous, 403, "Forbidden");
  console.log("calls: ok");
}

main().catch(error => {
  console.error(error);
  process.exitCode = 1;
});
