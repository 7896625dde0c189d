"""Definitions of custom resources that both servers should accept, each with another schema: formats, bounds, lists, maps, unions, defaults, rules."""

import re

FORMATS = ["date-time", "date", "uuid", "uuid4", "byte", "ipv4", "ipv6", "cidr", "mac", "hostname", "email", "uri", "duration", "password", "hexcolor", "rgbcolor", "ssn", "isbn", "creditcard", "bsonobjectid", "k8s-short-name", "k8s-long-name", "int-or-string", "other"]
TEXT_RULES = [
    ("self != 'a'", {}), ("self.size() < 4", {"message": "too long"}), ("self == oldSelf", {"reason": "FieldValueForbidden"}), ("!self.startsWith('x')", {"messageExpression": "'is ' + self"}), ("self.matches('^[a-z0-9.:/-]*$')", {}),
    ("oldSelf.orValue('') != 'ab' || self == 'ab'", {"optionalOldSelf": True}), ("self.lowerAscii() == self", {"reason": "FieldValueInvalid"}), ("self in ['', 'a', 'ab', 'x']", {"reason": "FieldValueDuplicate"}), ("int(self) > 0", {}), ("isURL(self) || self.size() < 2", {}), ("quantity(self).isGreaterThan(quantity('1'))", {}),
]
NUMBER_RULES = [("self > 1", {}), ("self >= oldSelf", {"message": "it shrinks"}), ("self % 2 == 0", {"messageExpression": "'odd: ' + string(self)"}), ("12 / self > 1", {}), ("self + 9223372036854775807 > 0", {}), ("self != 3", {"reason": "FieldValueRequired"})]
FLOAT_RULES = [("self > 1.0", {}), ("self < oldSelf * 2.0", {}), ("double(int(self)) == self", {"messageExpression": "'%f'.format([self])"})]
LIST_RULES = [("self.size() != 2", {}), ("self == oldSelf || self.size() > oldSelf.size()", {}), ("self.all(x, self.exists_one(y, x == y))", {"message": "twice"}), ("oldSelf.hasValue() || self.size() < 3", {"optionalOldSelf": True})]
MAP_RULES = [("self.all(k, k != 'v')", {}), ("'k' in self", {"reason": "FieldValueRequired"}), ("self.size() <= oldSelf.size()", {}), ("self.transformList(k, v, k).all(k, k.size() < 4)", {})]
BOUND = {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}


def fit(random, schema):
    """A value that a schema may have as a default."""
    if "enum" in schema:
        return random.choice(schema["enum"])
    kind = schema.get("type", "string")
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return {name: fit(random, schema["additionalProperties"]) for name in random.sample(["k", "v"], random.choice([0, 1]))}
    if kind == "object":
        wanted = set(schema.get("required", []))
        return {name: fit(random, part) for name, part in schema.get("properties", {}).items() if name in wanted or random.random() < 0.4}
    if kind == "array":
        return [fit(random, schema.get("items", {})) for _ in range(schema.get("minItems", random.choice([0, 1])))]
    return {"string": random.choice(["a", "ab"]), "integer": random.choice([1, 2, 6]), "number": random.choice([1, 2.5]), "boolean": True}[kind]


def some(random, share, made, **choices):
    for name, values in choices.items():
        if random.random() < share:
            made[name] = random.choice(values)


def shape(random, depth=0, small=False):
    """A structural schema; `small` ones are bounded, so that rules around them are cheap enough."""
    kinds = ["string"] * 4 + ["integer"] * 3 + ["number", "boolean", "either"] + (["object"] * 3 + ["array"] * 3 + ["map"] * 2 + ["open", "any", "embedded", "union", "closed"] if depth < 3 else [])
    kind = random.choice(kinds)
    made = globals()[f"{kind}_shape"](random, depth, small)
    if random.random() < 0.08 and kind not in ("any", "closed"):
        made["nullable"] = True
    if random.random() < 0.12 and kind in ("object", "array", "map", "union") and "default" not in made:
        made["default"] = random.choice([fit(random, made), fit(random, made), None])
    some(random, 0.03, made, description=["d"], title=["t"], example=[{"a": 1}, "x"], externalDocs=[{"url": "http://a"}])
    return made


def ruled(random, made, rules, share=0.25):
    if random.random() < share:
        made["x-kubernetes-validations"] = [{"rule": rule, **more} for rule, more in random.sample(rules, random.choice([1, 1, 2]))]
    return made


def string_shape(random, _depth, small):
    made = {"type": "string"}
    some(random, 0.2, made, format=FORMATS)
    some(random, 0.15, made, minLength=[1, 2], pattern=["^[a-z]", "[0-9]$", "^$|b"], enum=[["a", "ab", ""], ["x"]])
    if small or random.random() < 0.5:
        made["maxLength"] = random.choice([3, 5, 40])
    if random.random() < 0.15 and not set(made) - {"type", "maxLength"}:
        made["default"] = random.choice(["", "a", "ab"])
    return ruled(random, made, TEXT_RULES) if "format" not in made and "maxLength" in made else made


def integer_shape(random, _depth, _small):
    made = {"type": "integer"}
    some(random, 0.2, made, format=["int32", "int64"], minimum=[0, 1, 1.5, -3], maximum=[9, 10.5, 2**40])
    some(random, 0.1, made, multipleOf=[2, 3, 0.5, 1.5], enum=[[1, 2, 3], [0]])
    if "minimum" in made:
        some(random, 0.3, made, exclusiveMinimum=[True, False])
    if random.random() < 0.15 and set(made) == {"type"}:
        made["default"] = random.choice([0, 1, 7])
    return ruled(random, made, NUMBER_RULES)


def number_shape(random, _depth, _small):
    made = {"type": "number"}
    some(random, 0.2, made, format=["float", "double"], minimum=[0, 0.5], maximum=[1e6, 9.75], multipleOf=[0.1, 0.25, 2])
    if "maximum" in made:
        some(random, 0.3, made, exclusiveMaximum=[True])
    return ruled(random, made, FLOAT_RULES)


def boolean_shape(random, _depth, _small):
    made = {"type": "boolean"}
    some(random, 0.2, made, default=[True, False])
    return ruled(random, made, [("self", {}), ("!self || oldSelf", {"message": "never again"})])


def either_shape(random, _depth, _small):
    made = {"x-kubernetes-int-or-string": True}
    some(random, 0.3, made, anyOf=[[{"type": "integer"}, {"type": "string"}]], pattern=["^[0-9]+%?$"], minimum=[1], maxLength=[3])
    return ruled(random, made, [("type(self) == int", {}), ("self == 1 || self == 'a'", {}), ("string(self) != 'x'", {"messageExpression": "'is ' + string(self)"})])


def object_shape(random, depth, small):
    names = random.sample(["a", "b", "c", "d", "x-y", "namespace"], random.choice([1, 2, 3, 4]))
    made = {"type": "object", "properties": {name: shape(random, depth + 1, small) for name in names}}
    some(random, 0.2, made, required=[names[:1], names[:2]], minProperties=[1], maxProperties=[2])
    some(random, 0.1, made, **{"x-kubernetes-map-type": ["atomic", "granular"], "x-kubernetes-preserve-unknown-fields": [True]})
    if random.random() < 0.12:
        made["default"] = {}
    first = names[0]
    if not re.match("[a-d]$", first):
        return made
    return ruled(random, made, [(f"has(self.{first})", {"reason": "FieldValueRequired", "fieldPath": f".{first}"}), (f"!has(oldSelf.{first}) || has(self.{first})", {}), (f"!has(self.{first}) || self.{first} == self.{first}", {"message": "never"})], 0.15)


def array_shape(random, depth, small):
    made = {"type": "array", "maxItems": random.choice([2, 3, 5])}
    some(random, 0.15, made, minItems=[1, 2])
    kind = random.random()
    if kind < 0.25:
        made.update({"x-kubernetes-list-type": "set", "items": random.choice([{"type": "string", "maxLength": 5}, {"type": "integer"}, {"type": "array", "maxItems": 2, "x-kubernetes-list-type": "atomic", "items": {"type": "integer"}}, {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string", "maxLength": 3}}}])})
    elif kind < 0.6:
        keys = random.choice([["name"], ["port", "protocol"]])
        values = {"name": {"type": "string", "maxLength": 5}, "port": {"type": "integer"}, "protocol": {"type": "string", "maxLength": 5, "default": "TCP"}}
        made.update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": {"type": "object", "required": keys[:1], "properties": {**{key: values[key] for key in keys}, "v": shape(random, depth + 1, True)}}})
    else:
        made["items"] = shape(random, depth + 1, True)
    return ruled(random, made, LIST_RULES)


def map_shape(random, depth, small):
    made = {"type": "object", "maxProperties": random.choice([1, 2, 4]), "additionalProperties": shape(random, depth + 1, True)}
    some(random, 0.15, made, minProperties=[1])
    return ruled(random, made, MAP_RULES)


def open_shape(random, depth, small):
    made = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if random.random() < 0.5:
        made["properties"] = {"a": shape(random, depth + 1, small), "b": {"type": "object", "properties": {"c": {"type": "integer"}}}}
    return made


def any_shape(_random, _depth, _small):
    return {"x-kubernetes-preserve-unknown-fields": True}


def closed_shape(random, _depth, _small):
    return {"type": "object", "additionalProperties": random.choice([True, False])}


def embedded_shape(random, _depth, _small):
    made = {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}
    if random.random() < 0.4:
        made["properties"] = {"spec": {"type": "object", "properties": {"a": {"type": "integer", "default": 2}}}, "metadata": {"type": "object"}}
    return made


def union_shape(random, _depth, _small):
    parts = [{"required": ["a"]}, {"required": ["b"], "properties": {"b": {"minimum": 2}}}, {"properties": {"c": {"enum": ["x", "ab"]}}}]
    word = random.choice(["anyOf", "oneOf", "allOf", "not"])
    made = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "string"}, "l": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 4}}}, word: parts[0] if word == "not" else random.sample(parts, random.choice([2, 3]))}
    # Compositions within compositions, and of lists.
    some(random, 0.25, made, allOf=[[{"not": {"required": ["a", "c"]}}], [{"anyOf": [{"required": ["a"]}, {"properties": {"b": {"maximum": 5}}}]}], [{"properties": {"l": {"items": {"pattern": "^a"}, "minItems": 1}}}], [{"minProperties": 1}, {"maxProperties": 2}]])
    return made


def scalars(schema, path=""):
    """Paths to fields that can be selected or printed."""
    for name, part in schema.get("properties", {}).items():
        if part.get("type") in ("string", "boolean", "integer") and re.fullmatch("[a-z]+", name):
            yield f"{path}.{name}", part["type"]
        yield from scalars(part, f"{path}.{name}")


def definition(random, group, number):
    """A definition with one version, or two that share their objects."""
    spec = {"type": "object", "properties": {name: shape(random) for name in ("a", "b", "c", "d", "e", "f", "g", "h")}}
    status = {"type": "object", "properties": {"n": {"type": "integer"}, "s": shape(random, 2), "sel": {"type": "string"}}}
    root = {"type": "object", "properties": {"spec": spec, "status": status}}
    some(random, 0.2, root, required=[["spec"]], **{"x-kubernetes-validations": [[{"rule": "!has(self.spec) || self.metadata.name != 'b' || has(self.spec.a)"}]]})
    spec["properties"]["n"] = {"type": "integer", **random.choice([{}, {"minimum": 0}, {"default": 1}])}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": root}}
    found = list(scalars(spec, ".spec"))
    if random.random() < 0.6:
        version["additionalPrinterColumns"] = [{"name": f"C{place}", "type": random.choice([kind, kind, "string"]), "jsonPath": path, **random.choice([{}, {"priority": 1}, {"description": "d"}, {"format": "int32"}])} for place, (path, kind) in enumerate(random.sample(found, min(3, len(found))))]
        some(random, 0.5, version["additionalPrinterColumns"][0] if version["additionalPrinterColumns"] else {}, jsonPath=[".metadata.creationTimestamp", ".metadata.labels.a", ".spec", ".spec.e[*].v", ".spec.e[0]", ".status.n"], type=["date", "string", "number", "boolean", "integer"])
    if random.random() < 0.5:
        version["selectableFields"] = [{"jsonPath": path} for path, _ in random.sample(found, 1)]
    if random.random() < 0.7:
        version["subresources"] = {"status": {}, **random.choice([{}, {"scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n", "labelSelectorPath": ".status.sel"}}, {"scale": {"specReplicasPath": ".spec.zz", "statusReplicasPath": ".status.zz"}}])}
    versions = [version]
    if random.random() < 0.4:
        versions.append({**version, "name": "v2", "storage": False, **random.choice([{}, {"deprecated": True}, {"deprecated": True, "deprecationWarning": "old"}, {"subresources": {}}, {"additionalPrinterColumns": []}, {"schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {**spec["properties"], "n": {"type": "integer", "default": 4}, "more": {"type": "string", "default": "m"}}}, "status": status}}}}])})
    plural = f"gen{number}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": random.choice(["Namespaced", "Namespaced", "Cluster"]), "names": {"plural": plural, "kind": f"Gen{number}", "listKind": f"Gen{number}List", "singular": f"gen{number}"}, "versions": versions},
    }
