"""One server: kept connections, requests with placeholders, answers."""

import http.client
import json
import random
import re
import ssl
import time
import urllib.parse

import wire

try:
    import yaml
except ImportError:
    yaml = None

PLACEHOLDER = re.compile(r"\{\{(rv|uid|name|continue):([a-z0-9-]+)\}\}")
# Seconds that a server has to come back after it went away.
PATIENCE = 900


class Interrupted(Exception):
    """The server went away and is back: what it was sent before may be lost."""


class Server:
    def __init__(self, url, token, ca=None):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port, self.token = parts.hostname, parts.port, token
        self.context = ssl.create_default_context(cafile=ca) if ca else ssl._create_unverified_context()
        self.connection, self.state = None, None

    def send(self, method, path, headers, body):
        """One request: status, headers, body. A kept connection that was closed is opened again, once; raises `Interrupted` after a restart."""
        headers = {"Authorization": f"Bearer {self.token}", **headers}
        # A header without a value is left out, also one that every request has.
        headers = {name: value.encode() for name, value in headers.items() if value is not None}
        for attempt in (0, 1):
            if self.connection is None:
                self.check_state()
            try:
                return self.exchange(method, path, headers, body)
            except (http.client.HTTPException, OSError) as error:
                self.close()
                if attempt or isinstance(error, TimeoutError):
                    self.check_state()
                    raise
        raise AssertionError("unreachable")

    def exchange(self, method, path, headers, body=None):
        if self.connection is None:
            self.connection = http.client.HTTPSConnection(self.host, self.port, context=self.context, timeout=70)
        self.connection.request(method, path, body=body, headers=headers)
        response = self.connection.getresponse()
        return Answer(response.status, response.headers, response.read())

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def check_state(self):
        """Waits for the server. Its first namespace is another one after a restart that lost the state."""
        before, away = self.state, False
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                answer = self.exchange("GET", "/api/v1/namespaces/default", {"Authorization": f"Bearer {self.token}".encode()})
                self.state = answer.json()["metadata"]["uid"] if answer.status == 200 else None
            except (http.client.HTTPException, OSError):
                self.close()
                self.state = None
            if self.state:
                break
            away = True
            if time.monotonic() > deadline:
                raise SystemExit(f"the server at port {self.port} did not come back within {PATIENCE} s")
            time.sleep(0.5)
        if before and (away or self.state != before):
            raise Interrupted(f"port {self.port}")

    def get_json(self, path):
        answer = self.send("GET", path, {}, None)
        if answer.status != 200:
            raise SystemExit(f"GET {path} at port {self.port}: {answer.status} {answer.body[:300]!r}")
        return json.loads(answer.body)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        if self.headers.get("content-type", "").startswith(wire.TYPE):
            try:
                return wire.document(self.body)
            except (ValueError, IndexError):
                return None
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def yaml(self):
        """The document of a YAML answer, where a reader is installed."""
        if yaml is None or not self.headers.get("content-type", "").startswith("application/yaml"):
            return None
        try:
            return yaml.safe_load(self.body)
        except yaml.YAMLError:
            return None

    def events(self):
        """The events of a watch; `None` of anything else."""
        if self.headers.get("content-type", "").startswith(f"{wire.TYPE};stream=watch"):
            try:
                return wire.events(self.body) or None
            except (ValueError, IndexError):
                return None
        lines = self.body.splitlines()
        if not all(line.startswith(b'{"type":') for line in lines):
            return None
        try:
            return [json.loads(line) for line in lines] or None
        except ValueError:
            return None


class Session:
    """What one server said so far in one sequence: it fills the placeholders of later requests."""

    def __init__(self, server):
        self.server, self.known = server, {}
        # What the sequence waited for.
        self.settled = []
        # Whether it did not come into effect in time.
        self.is_late = False

    def fill(self, text):
        return PLACEHOLDER.sub(lambda match: self.known.get((match[1], match[2]), f"no-{match[1]}"), text)

    def run(self, request):
        path = self.fill(request["path"])
        body = request.get("body")
        data = self.fill(body).encode("utf-8", "surrogateescape") if body is not None else None
        headers = dict(request.get("headers", {}))
        if request.get("protobuf"):
            data, headers["Content-Type"] = in_protobuf(data, request["protobuf"])
        answer = self.server.send(request["method"], path, headers, data)
        self.learn(request.get("as", ""), answer)
        return answer

    def learn(self, alias, answer):
        document = answer.json()
        if not isinstance(document, dict):
            return
        meta = document.get("metadata")
        if not isinstance(meta, dict):
            return
        for key, field in (("rv", "resourceVersion"), ("uid", "uid"), ("name", "name"), ("continue", "continue")):
            if isinstance(meta.get(field), str) and meta[field]:
                self.known[(key, alias)] = meta[field]


def in_protobuf(data, seed):
    """A body of JSON in protobuf, if it can be said there, and its media type; with a seed other than 1 one that is wrong somewhere."""
    try:
        document = json.loads(data)
        return wire.body(document) if seed == 1 else wire.spoiled(random.Random(seed), document), wire.TYPE
    except (ValueError, RecursionError, wire.Misfit):
        return data, "application/json"
