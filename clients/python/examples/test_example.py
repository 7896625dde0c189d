"""An example with the standard library: python3 -m unittest, with $FERROKUBE set."""

import base64
import json
import os
import ssl
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from ferrokube_testing import ControlPlane, StartError


class Api:
    """Requests as the administrator."""

    def __init__(self, plane: ControlPlane):
        self.url = plane.url
        text = plane.kubeconfig.read_text()
        field = lambda name: base64.b64decode(text.split(name + ": ", 1)[1].split("\n", 1)[0])
        self.tls = ssl.create_default_context(cadata=field("certificate-authority-data").decode())
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(field("client-certificate-data") + field("client-key-data"))
            pair.flush()
            self.tls.load_cert_chain(pair.name)

    def __call__(self, method: str, path: str, body: "dict | None" = None) -> "tuple[int, dict]":
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            # Not JSON where no resource is served.
            error.close()
            return error.code, {}


class Example(unittest.TestCase):
    def test_a_namespace_goes_with_what_is_in_it(self):
        with ControlPlane() as plane:
            api = Api(plane)
            self.assertEqual(api("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})[0], 201)
            maps = "/api/v1/namespaces/shop/configmaps"
            self.assertEqual(api("POST", maps, {"metadata": {"name": "page"}})[0], 201)
            api("DELETE", "/api/v1/namespaces/shop")
            deadline = time.monotonic() + 60
            while api("GET", "/api/v1/namespaces/shop")[0] != 404:
                self.assertLess(time.monotonic(), deadline, plane.log)
                time.sleep(0.01)
            kubeconfig = plane.kubeconfig
        self.assertFalse(kubeconfig.exists())

    def test_two_at_a_time_share_nothing(self):
        with ControlPlane() as one, ControlPlane("--profile=kubernetes") as other:
            self.assertNotEqual(one.url, other.url)
            self.assertEqual(Api(one)("GET", "/apis/apps/v1/deployments")[0], 404)
            self.assertEqual(Api(other)("GET", "/apis/apps/v1/deployments")[0], 200)

    def test_a_failed_start_says_why(self):
        with self.assertRaisesRegex(StartError, "no-such-flag"):
            ControlPlane("--no-such-flag").start()
        with self.assertRaisesRegex(StartError, "cannot start /nowhere"):
            ControlPlane(binary="/nowhere/ferrokube").start()

    def test_a_start_has_an_end(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "ferrokube")
            with open(path, "w") as script:
                script.write("#!/bin/sh\necho waiting >&2\nexec sleep 1000\n")
            os.chmod(path, 0o755)
            with self.assertRaisesRegex(StartError, "not ready: waiting"):
                ControlPlane(binary=path, start_seconds=1).start()

    def test_one_that_runs_is_not_started_again(self):
        with ControlPlane() as plane:
            with self.assertRaisesRegex(StartError, "runs already"):
                plane.start()
            self.assertEqual(Api(plane)("GET", "/api/v1/namespaces/default")[0], 200)


if __name__ == "__main__":
    unittest.main()
