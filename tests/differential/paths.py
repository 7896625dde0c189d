"""Requests that are about no object: discovery, health, versions, OpenAPI, and what is next to them."""

import urllib.parse

JSON = "application/json"
AGGREGATED = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
PROBES = ["healthz", "livez", "readyz"]
DISCOVERY = ["/api", "/api/", "/apis", "/apis/", "/api/v1", "/api/v1/", "/api/v2", "/api/v1/nothing", "/apis/none.example.com", "/apis/none.example.com/v1", "/apis/none.example.com/v1/things"]
OTHERS = [
    "/", "/index.html", "/version", "/version/", "/version/x", "/openapi", "/openapi/", "/openapi/v2", "/openapi/v2/", "/openapi/v3", "/openapi/v3/", "/openapi/v3/api/v1", "/openapi/v3/apis/none/v1",
    "/openid", "/openid/v1", "/openid/v1/jwks", "/openid/v1/jwks/", "/.well-known/openid-configuration", "/.well-known/openid-configuration/",
    "/metrics", "/metrics/", "/swagger.json", "/swaggerapi", "/ui", "/nothing", "/nothing/", "//", "//api", "/api//v1", "/apis//v1", "/apis/apps//deployments", "/%2e%2e/api", "/api/v1/../v1", "/api/%761",
    "/healthzx", "/readyz/", "/healthz/", "/livez/ping/", "/readyz/x/y",
]
CHECKS = ["ping", "log", "informer-sync", "shutdown", "autoregister-completion", "nothing", "poststarthook/rbac/bootstrap-roles", "poststarthook/start-system-namespaces-controller", "poststarthook/nothing", "poststarthook"]
ACCEPTS = [
    None, "", JSON, JSON, "*/*", "text/html", "text/plain", "application/yaml", "application/*", "application/json;q=0.5, */*", "application/cbor", "application/jwk-set+json", "application/openmetrics-text", "text/*", "application/json;;", "application/json;a",
    f"application/json;{AGGREGATED}", f"application/json;{AGGREGATED},application/json", f"application/yaml;{AGGREGATED}", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
    f"application/json;{AGGREGATED};profile=nopeer", f"application/json;{AGGREGATED};profile=x", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
]
METHODS = ["GET"] * 12 + ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"]


class Paths:
    """One sequence of such requests, as several users."""

    def __init__(self, random, kind, groups, label, people):
        self.random, self.kind, self.groups, self.label, self.people = random, kind, groups, label, people
        self.namespace = ""

    def path(self):
        random = self.random
        choice = random.random()
        if choice < 0.3:
            probe = random.choice(PROBES)
            path = f"/{probe}" + (f"/{random.choice(CHECKS)}" if random.random() < 0.5 else "")
            query = [(name, value) for name, values in (("verbose", ["", "1", "false"]), ("exclude", CHECKS + ["etcd"]), ("exclude", CHECKS), ("timeout", ["10s", "x", "0"])) for value in [random.choice(values)] if random.random() < 0.3]
            return path + ("?" + urllib.parse.urlencode(query) if query else "")
        if choice < 0.65:
            group, versions = random.choice(self.groups)
            return random.choice(DISCOVERY + [f"/apis/{group}", f"/apis/{group}/", f"/apis/{group}/{random.choice(versions)}", f"/apis/{group}/{random.choice(versions)}/", f"/apis/{group}/v9", f"/apis/{group}/{random.choice(versions)}/nothing", f"/openapi/v3/apis/{group}/{random.choice(versions)}"])
        path = random.choice(OTHERS)
        return path + random.choice(["", "", "", "", "?pretty=true", "?timeout=x", "?watch=true", "?timeout=-1s", "?hash=x"])

    def make(self, length):
        made = []
        for _ in range(length):
            path = self.path()
            headers = {"Accept": self.random.choice(ACCEPTS), **person(self.random, self.people, 0.35)}
            made.append({"what": "path", "resource": path.split("?")[0], "method": self.random.choice(METHODS), "path": path, "headers": headers, "body": None, "as": ""})
        return made


def person(random, people, share):
    """Headers of users other than the administrator: static tokens that both servers know."""
    if random.random() >= share:
        return {}
    kinds = [lambda: {"Authorization": None}, lambda: {"Authorization": "Bearer wrong"}, lambda: impersonation(random)]
    kinds += [lambda token=token: {"Authorization": f"Bearer {token}"} for token in people for _ in range(2)]
    return random.choice(kinds)()


def impersonation(random):
    headers = {"Impersonate-User": random.choice(["alice", "alice", "bob", "system:anonymous", "system:serviceaccount:default:default", "system:serviceaccount:a", "", "é", "system:node:x"])}
    for name, values in (("Impersonate-Group", ["devs", "system:masters", "system:authenticated", "system:unauthenticated", ""]), ("Impersonate-Uid", ["u", ""]), ("Impersonate-Extra-Scopes", ["view", ""]), ("Impersonate-Extra-a%2fb", ["x"])):
        if random.random() < 0.25:
            headers[name] = random.choice(values)
    if "system:anonymous" in headers.values() or "system:unauthenticated" in headers.values():
        # Nothing that would be allowed: who is anonymous may do nothing here, in whatever groups.
        headers = {name: value for name, value in headers.items() if value != "system:masters"}
    if random.random() < 0.1:
        del headers["Impersonate-User"]
    return headers
