"""Objects from OpenAPI schemas, and what breaks them."""

import json

# Values of a wrong type or form, put where a schema wants something else.
ODD = [None, True, 0, -1, 1, 1.5, 1e30, 2**31, 2**63, "", " ", "a", "A_b", "-x", "x" * 64, "x" * 300, "0", "é", "a/b", "a/b/c", ".", "..", [], {}, [None], [1], ["a", "a"], {"a": None}, {"a": 1}, {"": ""}]
WORDS = ["a", "b", "web", "app", "x1", "a-b", "example.com/a", "kubernetes.io/metadata.name"]
TIMES = ["2024-01-02T03:04:05Z", "2024-01-02T03:04:05.123456Z", "2024-01-02T03:04:05+01:00", "2024-13-01T00:00:00Z", "x", ""]
QUANTITIES = ["1", "1Gi", "100m", "0.5", "1e3", "-1", "1.5Gi", "", "x", "1 Gi", 1, 1.5]


class Schemas:
    """The schemas of one group version's document."""

    def __init__(self, document):
        self.components = document.get("components", {}).get("schemas", {})

    def kind(self, group, version, kind):
        for schema in self.components.values():
            for gvk in schema.get("x-kubernetes-group-version-kind", []):
                if (gvk.get("group", ""), gvk.get("version"), gvk.get("kind")) == (group, version, kind):
                    return schema
        return None

    def resolve(self, schema):
        seen = 0
        while seen < 10:
            seen += 1
            if "$ref" in schema:
                schema = self.components.get(schema["$ref"].rsplit("/", 1)[-1], {})
            elif len(schema.get("allOf", [])) == 1:
                schema = {**schema["allOf"][0], **{key: value for key, value in schema.items() if key != "allOf"}}
            else:
                break
        return schema

    def value(self, random, schema, depth=0, name=""):
        """A value that fits, mostly."""
        schema = self.resolve(schema)
        if random.random() < 0.02:
            return random.choice(ODD)
        if "enum" in schema and random.random() < 0.9:
            return random.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object" or "properties" in schema or "additionalProperties" in schema:
            return self.object(random, schema, depth)
        if kind == "array":
            count = random.choice([0, 1, 1, 2, 3]) if depth < 6 else 0
            return [self.value(random, schema.get("items", {}), depth + 1, name) for _ in range(count)]
        return scalar(random, schema, name)

    def object(self, random, schema, depth):
        properties = schema.get("properties", {})
        if not properties:
            values = schema.get("additionalProperties", {"type": "string"})
            values = values if isinstance(values, dict) else {"type": "string"}
            return {random.choice(WORDS): self.value(random, values, depth + 1) for _ in range(random.choice([0, 1, 2]))}
        required = set(schema.get("required", []))
        share = 0.5 if depth < 3 else 0.25
        chosen = {}
        for name, part in properties.items():
            if name in ("managedFields", "selfLink", "ownerReferences") and random.random() < 0.9:
                continue
            if depth > 7 and name not in required:
                continue
            if random.random() < (0.95 if name in required else share):
                chosen[name] = self.value(random, part, depth + 1, name)
        if random.random() < 0.03:
            chosen[random.choice(["unknown", "Kind", "spec2", ""])] = random.choice(ODD)
        return chosen


def scalar(random, schema, name):
    form = schema.get("format")
    kind = schema.get("type")
    if kind == "integer":
        return random.choice([0, 1, 2, 10, 3600, -1, 2**31 - 1, 2**31])
    if kind == "number":
        return random.choice([0, 1, 0.5, -1, 1e9])
    if kind == "boolean":
        return random.choice([True, False])
    if form == "date-time":
        return random.choice(TIMES[:3] if random.random() < 0.8 else TIMES)
    if form == "byte":
        return random.choice(["YQ==", "", "YWJj", "not base64", "YQ"])
    if "quantity" in json.dumps(schema).lower() or form == "int-or-string":
        return random.choice(QUANTITIES)
    if kind == "string":
        if name.lower().endswith("name") or name in ("kind", "namespace", "uid"):
            return random.choice(["a", "b", "web", "Kind", "x.example.com", "system:a", ""])
        return random.choice(WORDS + ["", "some text", "A", "10"])
    return random.choice(ODD)


def broken(random, document):
    """The document with one thing changed, dropped or added somewhere; often at the top."""
    document = json.loads(json.dumps(document))
    places = []

    def walk(value, depth):
        if isinstance(value, dict):
            for key in value:
                places.append((value, key, depth))
                walk(value[key], depth + 1)
        elif isinstance(value, list):
            for index in range(len(value)):
                places.append((value, index, depth))
                walk(value[index], depth + 1)

    walk(document, 0)
    if not places:
        return document
    parent, key, _ = random.choices(places, weights=[1 / (1 + depth) for _, _, depth in places])[0]
    kind = random.random()
    if kind < 0.25 and isinstance(parent, dict):
        del parent[key]
    elif kind < 0.75:
        parent[key] = random.choice(ODD)
    elif isinstance(parent[key], list):
        parent[key] = parent[key] + parent[key]
    elif isinstance(parent, dict):
        parent[random.choice(["unknown", "status", "spec", "metadata", "x" * 70])] = random.choice(ODD)
    return document


def null_some(random, value):
    """The document with some values null: deletions in merge patches."""
    if isinstance(value, dict):
        return {name: None if random.random() < 0.2 else null_some(random, part) for name, part in value.items()}
    return value
