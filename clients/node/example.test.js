// node --test, with $FERROKUBE set.

import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { ControlPlane } from "./index.js";

/** Requests as the administrator. */
function api(plane) {
  const text = readFileSync(plane.kubeconfig, "utf8");
  const field = (name) => Buffer.from(new RegExp(`${name}: (.*)`).exec(text)[1], "base64");
  const tls = {
    ca: field("certificate-authority-data"),
    cert: field("client-certificate-data"),
    key: field("client-key-data"),
    agent: false,
  };
  return (method, path, body) =>
    new Promise((resolve, reject) => {
      const sent = request(plane.url + path, { ...tls, method, headers: { "content-type": "application/json" } });
      sent.on("error", reject);
      sent.on("response", (response) => {
        response.resume();
        response.on("end", () => resolve(response.statusCode));
      });
      sent.end(body && JSON.stringify(body));
    });
}

test("a namespace goes with what is in it", async () => {
  const plane = await ControlPlane.start();
  const call = api(plane);
  assert.equal(await call("POST", "/api/v1/namespaces", { metadata: { name: "shop" } }), 201);
  assert.equal(await call("POST", "/api/v1/namespaces/shop/configmaps", { metadata: { name: "page" } }), 201);
  await call("DELETE", "/api/v1/namespaces/shop");
  const deadline = Date.now() + 60_000;
  while ((await call("GET", "/api/v1/namespaces/shop")) !== 404) {
    assert.ok(Date.now() < deadline, plane.log);
    await pause(10);
  }
  const { kubeconfig } = plane;
  await plane.stop();
  await plane.stop();
  assert.ok(!existsSync(kubeconfig));
});

test("a failed start says why", async () => {
  await assert.rejects(ControlPlane.start(["--no-such-flag"]), /no-such-flag/);
  await assert.rejects(ControlPlane.start([], { binary: "/nowhere/ferrokube" }), /cannot start \/nowhere/);
});

test("a start has an end", async () => {
  const directory = mkdtempSync(join(tmpdir(), "ferrokube-"));
  const binary = join(directory, "ferrokube");
  writeFileSync(binary, "#!/bin/sh\necho waiting >&2\nexec sleep 1000\n", { mode: 0o755 });
  await assert.rejects(ControlPlane.start([], { binary, start: 1000 }), /not ready: waiting/);
  rmSync(directory, { recursive: true });
});
