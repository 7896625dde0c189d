"""Normalize answers, compare them, group what differs."""

import json
import pathlib
import re

KNOWN = pathlib.Path(__file__).resolve().parent / "known.tsv"
TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SUFFIX = re.compile(r"^(gen-)[bcdfghjklmnpqrstvwxz2456789]{5}$")
AGE = re.compile(r"^(\d+[smhdy])+$|^<unknown>$|^<invalid>$")
STRUCT = re.compile(r'^(Invalid value): (?:\[?\{"(?:Name|ID|Schema)":.*[\]}]|null|\[\])(?=: (?:must (?:contain unique|have exactly|only have a single)|only \[))', re.S)
# An object in a cause about a workload kind: one server shows a Go struct, with all its fields.
OBJECT = re.compile(
    r"(^| is invalid: [^\s{]*?: )(Invalid|Unsupported|Duplicate) value: [{\[].*[}\]]"
    r"(?=: (?:field is immutable|invalid label selector|supported values: |must be 'RollingUpdate' or|`selector` (?:not auto-generated|will be auto-generated)|requires indexed completion mode|can only be set when seccomp type is Localhost|cannot set `allowPrivilegeEscalation`|must specify one of: `resourceClaimName`|minAvailable and maxUnavailable cannot|must have exactly one node selector term|may specify no more than one IP for each IP family$|may only hold up to|only allowed for updateStrategy)|$)",
    re.S,
)
# What one server says instead of all else: an allocator, or the check of a default before that of the rules.
INSTEAD = re.compile(r"failed to allocate IP: |not configured (?:on this cluster|for dual-stack services)|provided port is not in the valid range|default: Invalid value: .*rule compile error", re.S)
REVIEW = re.compile(r"Invalid value: (\{.*\}): must be empty")
APPLY = re.compile(r"(failed to create typed patch object \([^)]*\): )(.*)", re.S)
REVISION = re.compile(r'(resourceVersion\\?"?: ?\\?"?|ResourceVersion in precondition: |ResourceVersion in object meta: |the ResourceVersion in the precondition \()(\d+)')
CONVERTED = re.compile(r"failed to convert new object \([^)]*\) to proper version: unable to convert unstructured object to \S+, Kind=\w+: ")
UNRESOLVED = re.compile(r'RBAC: \[?(?:(?:cluster)?role\.rbac\.authorization\.k8s\.io "[^"]*" not found(?:, )?)+\]?')
MISSING_ROLE = re.compile(r'(?:\[?(?:cluster)?role\.rbac\.authorization\.k8s\.io "[^"]*" not found(?:, )?)+\]?')
SELF = re.compile(r"\bselfType\d+")
HEADERS = ["content-type", "warning", "retry-after", "allow", "location", "vary", "cache-control", "x-content-type-options"]
RECENT = 300
# docs/compatibility.md: of more causes, the first ones are shown.
MAX_CAUSES = 100
# Lists that come out of Go's maps, or are in the order of seconds.
UNORDERED = ("causes", "resourceRules", "nonResourceRules", "managedFields")
QUOTED = re.compile(r'Invalid value: ("\{(?:[^"\\]|\\.)*\}")')
MISSING = re.compile(r"( is missing in ')(\{.*\})(')", re.S)
# What follows a rule's first syntax error is how ANTLR recovers from it.
FURTHER = re.compile(r"(ERROR: <input>:\d+:\d+: Syntax error: .*?)\nERROR: <input>:.*", re.S)
# The difference of two Go structs.
DIFF = re.compile(r"\n(?:@@ .*)?\Z", re.S)
PANIC = re.compile("internal error: interface conversion")
ECHOED = re.compile(r'((?:resourceVersion|finalizers)\\*": ?\\*")\d+(\\*")')


class Names:
    """Numbers for values that each server chooses itself: equal structure means equal numbers."""

    def __init__(self):
        self.numbers = {}

    def number(self, kind, value):
        return self.numbers.setdefault((kind, value), f"<{kind} {sum(1 for key in self.numbers if key[0] == kind) + 1}>")


def without_structs(message):
    """A Go struct with the names of its fields, as internal types are shown, is not compared."""
    return OBJECT.sub(r"\1\2 value: <object>", STRUCT.sub(r"\1", message, count=1), count=1)


class Normal:
    def __init__(self, started):
        self.names, self.started = Names(), started

    def answer(self, answer):
        headers = {name: ", ".join(answer.headers.get_all(name) or []) for name in HEADERS}
        document = answer.json()
        if document is None:
            document = answer.yaml()
        events = answer.events()
        if events:
            body = [self.event(event) for event in events]
        elif document is None:
            body = self.text(answer.body.decode("utf-8", "replace"))
        else:
            body = self.value(document, "")
        return {"status": answer.status, "headers": {name: self.text(value) for name, value in headers.items() if value}, "body": body}

    def event(self, event):
        made = self.value(event, "")
        if made["type"] == "BOOKMARK" and isinstance(made["object"].get("metadata"), dict):
            # Any revision that nothing came after.
            made["object"]["metadata"]["resourceVersion"] = "<bookmark>"
        return made

    def value(self, value, key):
        if isinstance(value, dict):
            value = of_list(value)
            if isinstance(value.get("nonResourceRules"), list):
                # A rule that a distribution of kube-apiserver adds.
                value = {**value, "nonResourceRules": [rule for rule in value["nonResourceRules"] if rule.get("nonResourceURLs") != ["/.well-known", "/.well-known/*"]]}
            if MISSING_ROLE.fullmatch(str(value.get("evaluationError"))):
                value = {name: part for name, part in value.items() if name != "evaluationError"}
            if "allowed" in value and UNRESOLVED.fullmatch(str(value.get("reason"))):
                # Bindings of other runs name roles that are gone.
                value = {name: part for name, part in value.items() if name != "reason"}
            return {name: self.value(part, name) for name, part in value.items()}
        if isinstance(value, list):
            if key == "causes":
                value = [{**cause, "message": without_structs(cause.get("message", ""))} for cause in value]
            items = [self.value(part, key) for part in value]
            return sorted(items, key=lambda item: json.dumps(item, sort_keys=True)) if key in UNORDERED else items
        if isinstance(value, str):
            return self.string(value, key)
        return value

    def string(self, value, key):
        if key in ("resourceVersion", "metadata.resourceVersion") and value.isdigit() and value != "0":
            return self.names.number("revision", value)
        if key == "uid" and UID.fullmatch(value):
            return self.names.number("uid", value)
        if key in ("continue", "token") and len(value) > 8:
            return f"<{key}>"
        if TIME.match(value) and value[:10] >= self.started[:10]:
            return "<now>"
        if SUFFIX.match(value):
            return self.names.number("generated", value)
        if key == "cells" and AGE.match(value):
            return "<age>"
        if key == "remainingItemCount":
            return value
        if key == "message":
            value = OBJECT.sub(r"\1\2 value: <object>", DIFF.sub("", value), count=1)
        return self.text(value)

    def text(self, text):
        # Each of several causes is compared by itself; their order in the sentence follows Go's maps.
        text = re.sub(r"( is invalid): \[.*", r"\1: [...]", text, flags=re.S)
        text = re.sub(r"( is invalid: [^\[]*?: Invalid value): [\[{].*: (must (?:contain unique|have exactly|only have a single)|only \[)", r"\1: \2", text, flags=re.S)
        text = SELF.sub("selfType", text)
        # A source line, by the path that the build knew.
        text = re.sub(r'scheme "k8s\.io/[\w-]+/', 'scheme "', text)
        text = FURTHER.sub(r"\1", text)
        text = re.sub(r"\b_var\d+\b", "dyn", text)
        # Bindings of other runs name roles that are gone.
        text = re.sub(r': RBAC: (?:cluster)?role\.rbac\.authorization\.k8s\.io "[^"]*" not found', "", text)
        text = REVIEW.sub(of_metadata, text)
        text = APPLY.sub(of_apply, text)
        text = QUOTED.sub(lambda match: "Invalid value: " + in_order(match[1]), text)
        text = MISSING.sub(lambda match: match[1] + in_order(json.dumps(match[2])) + match[3], text)
        text = REVISION.sub(r"\1<revision>", text)
        # An empty list is none.
        text = text.replace('"Values":[]', '"Values":null')
        text = re.sub(r"\bhash=[0-9A-F]{64,128}\b", "hash=<hash>", text)
        # Bytes that are no UTF-8, in a body in protobuf.
        text = re.sub(r"\\x[89a-f][0-9a-f]", "\ufffd", text)
        text = ECHOED.sub(r"\1<revision>\2", text)
        text = re.sub(r"(in record|to be fulfilled:) \(\d+\)", r"\1 (<revision>)", text)
        text = UID.sub(lambda match: self.names.number("uid", match[0]), text)
        text = re.sub(r"\bgen-[bcdfghjklmnpqrstvwxz2456789]{5}\b", lambda match: self.names.number("generated", match[0]), text)
        return re.sub(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>", text)


def of_list(value):
    """A list's revision is that of the whole store, which others write to: only its order to those of the items is compared."""
    items = value.get("items", value.get("rows"))
    meta = value.get("metadata")
    is_list = isinstance(items, list) or "columnDefinitions" in value or str(value.get("kind")).endswith("List")
    if not is_list or not isinstance(meta, dict) or not str(meta.get("resourceVersion", "")).isdigit():
        return value
    late = all(revision_of(item) <= int(meta["resourceVersion"]) for item in items or [])
    field = "items" if "items" in value else "rows"
    return {**value, field: made_in_order(items), "metadata": {**meta, "resourceVersion": "not older than its items" if late else "older than an item"}}


def made_in_order(items):
    """Items with names that each server makes up, in the order in which they were made; some are named after the uid of another."""
    name = lambda item: str(((item.get("object", item) or {}).get("metadata") or {}).get("name", "")) if isinstance(item, dict) else ""
    made = lambda item: bool(SUFFIX.match(name(item)) or UID.fullmatch(name(item)))
    return [item for item in items if not made(item)] + sorted((item for item in items if made(item)), key=revision_of) if items else items


def revision_of(item):
    item = item.get("object", item) if isinstance(item, dict) else {}
    meta = item.get("metadata") if isinstance(item, dict) else None
    text = str((meta or {}).get("resourceVersion", "0"))
    return int(text) if text.isdigit() else 0


# Lists of what a server has: each has other things.
# What each server says of itself.
OWN = ("compiler", "gitCommit", "gitTreeState", "gitVersion", "goVersion", "buildDate", "platform", "issuer", "jwks_uri", "id_token_signing_alg_values_supported", "keys", "serverAddress")
DISCOVERIES = ("APIGroupList", "APIResourceList", "APIGroupDiscoveryList")
# The beginning of a version 2 document as protobuf.
OPENAPI = "\n\x032.0"
CHECK = re.compile(r"^\[[+-]\](\S+) ", re.M)


def entry_name(entry):
    return entry.get("name") or entry.get("resource") or entry.get("version") or entry.get("metadata", {}).get("name", "") if isinstance(entry, dict) else entry


def common(left, right):
    """Both bodies with what both servers have: of discovery documents the groups and resources, of health the checks, of the index the paths."""
    if isinstance(left, str) and isinstance(right, str):
        if left.startswith("# HELP") and right.startswith("# HELP"):
            return "<metrics>", "<metrics>"
        both = set(CHECK.findall(left)) & set(CHECK.findall(right))
        only = lambda text: "".join(sorted(line for line in text.splitlines(True) if not CHECK.match(line) or CHECK.match(line)[1] in both))
        if both:
            # In the order in which each server starts.
            return only(left), only(right)
        if left.startswith(OPENAPI) and right.startswith(OPENAPI):
            return "<openapi>", "<openapi>"
        return left, right
    if not isinstance(left, dict) or not isinstance(right, dict):
        return left, right
    if list(left) == ["paths"] == list(right):
        return {"paths": []}, {"paths": []}
    if {"openapi", "swagger"} & set(left) & set(right):
        # Schemas are compared elsewhere; here it counts that a document comes.
        return "<openapi>", "<openapi>"
    if left.get("kind") != right.get("kind"):
        return left, right
    if left.get("kind") in DISCOVERIES:
        return shared(left, right)
    return without_own(left), without_own(right)


def without_own(value):
    if isinstance(value, dict):
        return {name: "<own>" if name in OWN else without_own(part) for name, part in value.items()}
    return [without_own(part) for part in value] if isinstance(value, list) else value


def shared(left, right):
    """The entries of lists that both have, by their names, and the fields of maps as they are."""
    if isinstance(left, list) and isinstance(right, list):
        names = [[entry_name(entry) for entry in entries] for entries in (left, right)]
        if not all(isinstance(entry, dict) and {"name", "resource", "metadata", "version"} & set(entry) for entry in left + right):
            return left, right
        pairs = [shared(entry, right[names[1].index(name)]) for entry, name in zip(left, names[0]) if name in names[1]]
        # Custom resources come in the random order of Go's maps.
        order = [name for name in names[0] if name in names[1]]
        mine = [pair[0] for pair in pairs]
        theirs = {entry_name(pair[1]): pair[1] for pair in pairs}
        return mine, [theirs[name] for name in order]
    if isinstance(left, dict) and isinstance(right, dict):
        pairs = {name: shared(left[name], right[name]) if name in left and name in right else None for name in {**left, **right}}
        return [{name: pairs[name][side] if pairs[name] else whole[name] for name in whole} for side, whole in enumerate((left, right))]
    return left, right


def in_order(quoted):
    """A quoted JSON object with its keys in order and what is the server's own left out."""
    try:
        value = json.loads(json.loads(quoted))
    except ValueError:
        return quoted
    if isinstance(value, dict) and isinstance(value.get("metadata"), dict):
        for name in ("resourceVersion", "creationTimestamp", "managedFields"):
            value["metadata"].pop(name, None)
    return json.dumps(json.dumps(value, sort_keys=True))


def of_metadata(match):
    """What a review says of its metadata, with keys in order, without the managedFields that only their order tells apart."""
    try:
        value = json.loads(match[1])
    except ValueError:
        return match[0]
    value.pop("managedFields", None)
    return f"Invalid value: {json.dumps(value, sort_keys=True)}: must be empty"


def of_apply(match):
    """Which of several misfits are returned, and in which order, follows Go's maps once a field is unknown."""
    misfits = sorted(set(match[2].removeprefix("errors:").strip().split("\n  ")))
    unknown = [why for why in misfits if why.endswith("field not declared in schema")]
    return match[1] + ("field not declared in schema" if unknown else "; ".join(misfits))


def differences(left, right, path=""):
    """Paths with both values; list positions are left out of the path."""
    if isinstance(left, dict) and isinstance(right, dict):
        found = []
        for name in sorted(set(left) | set(right)):
            found += differences(left.get(name, ABSENT), right.get(name, ABSENT), f"{path}.{name}")
        return found
    if isinstance(left, list) and isinstance(right, list) and path.endswith("causes") and len(left) == MAX_CAUSES < len(right):
        # The left server names no more.
        return [(path + "[]", f"{cause.get('field')}: {cause.get('message')}", ABSENT) for cause in only(left, right)]
    if isinstance(left, list) and isinstance(right, list) and path.endswith("causes") and len(left) != len(right):
        left, right = [[f"{cause.get('field')}: {cause.get('message')}" for cause in side] for side in (left, right)]
        return [(path + "[]", cause, ABSENT) for cause in only(left, right)] + [(path + "[]", ABSENT, cause) for cause in only(right, left)]
    if isinstance(left, list) and isinstance(right, list) and path.endswith("causes"):
        mine, theirs = (sorted(only(*both), key=about) for both in ((left, right), (right, left)))
        if [cause.get("field") for cause in mine] != [cause.get("field") for cause in theirs]:
            # About other fields: what only one side says, each by itself.
            text = lambda cause: f"{cause.get('field')}: {cause.get('message')}"
            return [(path + "[]", text(cause), ABSENT) for cause in mine] + [(path + "[]", ABSENT, text(cause)) for cause in theirs]
        pairs = list(zip(mine, theirs))
        # What is worth a look comes first.
        pairs.sort(key=lambda pair: bool(PANIC.search(str(pair))))
        return [found for a, b in pairs for found in differences(a, b, f"{path}[]")]
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [found for a, b in zip(left, right) for found in differences(a, b, f"{path}[]")]
    if left == right and type(left) is type(right):
        return []
    return [(path, left, right)]


def only(one, other):
    return [cause for cause in one if one.count(cause) > other.count(cause)]


def about(cause):
    """What a cause is about: its field, and the rule that it names."""
    return cause.get("field", ""), re.split(r"(?:evaluating|for|failed) rule: ", cause.get("message", ""))[-1]


class Absent:
    def __repr__(self):
        return "<absent>"


ABSENT = Absent()


def shape(text):
    """A text with what varies between examples taken out."""
    text = json.dumps(text) if not isinstance(text, (str, Absent)) else str(text)
    text = CONVERTED.sub("failed to convert: ", text)
    text = re.sub(r'(conflict with|User) "(unknown|before-first-apply|system:anonymous)"', r"\1 \2", text)
    text = re.sub(r"\"(\\.|[^\"\\])*\"", "Q", text)
    while True:
        flat = re.sub(r"\{[^{}\[\]]*\}|\[[^{}\[\]]*\]", "V", text)
        if flat == text:
            break
        text = flat
    text = re.sub(r"\b(in version Q cannot be handled as a|must be of type|no kind|kind) [A-Z]\w*", r"\1 K", text)
    text = re.sub(r"<[a-z]+ \d+>", "N", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "0", text)
    return re.sub(r"[A-Z]\w+(\.[a-z0-9.]+)? Q is invalid: .*", "K is invalid", text)[:300]


def message(answer):
    body = answer["body"]
    causes = (body.get("details") or {}).get("causes") if isinstance(body, dict) and body.get("kind") == "Status" else None
    if causes:
        return "; ".join(sorted({f"{cause.get('field')}: {shape(cause.get('message', ''))[:90]}" for cause in causes}))
    return shape(body.get("message", "")) if isinstance(body, dict) and body.get("kind") == "Status" else ""


def signatures(request, left, right, found):
    """What differs, each by itself: the same for all examples of one cause, as far as can be told."""
    if left["status"] != right["status"]:
        what = f"path {request['method']}" if request["what"] == "path" else request["what"]
        return [f"{what} status {left['status']}:{message(left)[:260]} | {right['status']}:{message(right)[:260]}"]
    found = [place for place in found if INSTEAD.search(f"{place[1]} {place[2]}")] or found
    if any(place[0].endswith("metadata.managedFields") and place[2] is ABSENT for place in found):
        # The loss of these alone makes a revision.
        found = [place for place in found if not place[0].endswith("metadata.resourceVersion")]
    # The sentence repeats what the causes say.
    places = [place for place in found if not place[0].endswith("body.message")] or found[:1]
    return list(dict.fromkeys(about_place(request, left["status"], *place) for place in places))


def about_place(request, status, path, a, b):
    if path.endswith((".message", "causes[]")):
        return f"{status} {path} {shape(a)[:160]} | {shape(b)[:160]}"
    if request["what"] == "path":
        return f"path {request['method']} {status} {path} {shape(a)[:110]} | {shape(b)[:110]}"
    scalar = lambda value: shape(value)[:50] if not isinstance(value, (dict, list)) else type(value).__name__
    return f"{request['what']} {request['resource']} {status} {path} {scalar(a)} | {scalar(b)}"


def signature(request, left, right, found, reasons):
    """What a difference is about: the first place that is not there on purpose, else the first."""
    every = signatures(request, left, right, found)
    return next((one for one in every if not on_purpose(one, reasons)), every[0])


def known():
    """Pairs of a pattern for signatures and the reason."""
    lines = KNOWN.read_text().splitlines() if KNOWN.exists() else []
    return [(re.compile(line.split("\t")[0]), line.split("\t")[1]) for line in lines if line and not line.startswith("#")]


def on_purpose(signature, reasons):
    return next((reason for pattern, reason in reasons if pattern.search(signature)), None)
