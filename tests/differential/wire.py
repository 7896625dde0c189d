"""Kubernetes' protobuf: objects to and from bytes by the repository's tables of fields, and what breaks bytes."""

import base64
import datetime
import functools
import json
import pathlib
import re
import struct

LIB = pathlib.Path(__file__).resolve().parents[2] / "src/lib"
TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\0"
META = "k8s.io.apimachinery.pkg.apis.meta.v1"
RUNTIME = "k8s.io.apimachinery.pkg.runtime"
INTS = ("int32", "int64", "uint32", "uint64")
TEXT_OF_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?Z")


class Misfit(Exception):
    """What protobuf cannot say."""


@functools.cache
def messages():
    """Fields of each message: number, name in JSON, whether repeated, type."""
    found = {}
    for crate in ("resources", "workloads"):
        for line in (LIB / crate / "data/protobuf.tsv").read_text().splitlines()[1:]:
            package, message, field, number, label, kind, name = (line.split("\t") + [""])[:7]
            found.setdefault(f"{package}.{message}", []).append((int(number), name or field, label == "repeated", kind.removeprefix(".")))
    return {message: sorted(fields) for message, fields in found.items()}


@functools.cache
def pointers():
    """Fields that are not the same at their zero value as without one: definition without its domain, and name."""
    found, definition = set(), ""
    for crate in ("resources", "workloads"):
        for line in (LIB / crate / "data/schema.tsv").read_text().splitlines()[1:]:
            name, field, _, _, emit = (line.split("\t") + [""] * 4)[:5]
            definition = name or definition
            if emit in ("p", "n"):
                found.add((definition.removeprefix("io.k8s.").replace("-", "_"), field))
    return found


@functools.cache
def message_of(api_version, kind):
    group, _, version = api_version.rpartition("/")
    short = group.partition(".")[0] or "core"
    short = {"internal": "apiserverinternal"}.get(short, short)
    names = [name for name in messages() if name.endswith(f".{short}.{version}.{kind}")]
    if f"{META}.{kind}" in messages() and (not names or group == ""):
        names = [f"{META}.{kind}"]
    if len(names) != 1:
        raise Misfit(f"{api_version} {kind}")
    return names[0]


# -- to bytes


def varint(number):
    number &= 2**64 - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def part(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def text(value):
    if not isinstance(value, str):
        raise Misfit(value)
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise Misfit(value) from error


def compact(value):
    return json.dumps(value, separators=(",", ":")).encode()


def time_of(value, nanos):
    match = TEXT_OF_TIME.fullmatch(value) if isinstance(value, str) else None
    if value is None:
        return b""
    if not match:
        raise Misfit(value)
    try:
        seconds = int(datetime.datetime.fromisoformat(match[1] + "+00:00").timestamp())
    except ValueError as error:
        raise Misfit(value) from error
    fraction = int((match[2] or ".0")[1:].ljust(9, "0")) if nanos else 0
    return b"\x08" + varint(seconds) + b"\x10" + varint(fraction)


def int_or_string(value):
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise Misfit(value)
    if isinstance(value, int):
        if not -(2**31) <= value < 2**31:
            raise Misfit(value)
        return b"\x08\0\x10" + varint(value) + b"\x1a\0"
    return b"\x08\x01\x10\0" + part(3, text(value))


def quantity(value):
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise Misfit(value)
    return part(1, text(value if isinstance(value, str) else json.dumps(value)))


SPECIAL = {
    f"{META}.Time": lambda value: time_of(value, False),
    f"{META}.MicroTime": lambda value: time_of(value, True),
    f"{META}.FieldsV1": lambda value: part(1, compact(value)),
    f"{RUNTIME}.RawExtension": lambda value: part(1, compact(value)),
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": int_or_string,
    "k8s.io.apimachinery.pkg.api.resource.Quantity": quantity,
    "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSON": lambda value: part(1, compact(value)),
}


def encode(message, value):
    if message in SPECIAL:
        return SPECIAL[message](value)
    if message not in messages():
        raise Misfit(message)
    fields = messages()[message]
    if isinstance(value, list) and len(fields) == 1 and fields[0][2]:
        value = {fields[0][1]: value}
    if not isinstance(value, dict):
        raise Misfit(value)
    out, known = b"", {"apiVersion", "kind"}
    for number, name, repeated, kind in fields:
        if name == ".":
            inner = {field: value[field] for field in inlined(kind) if field in value}
            known |= set(inner)
            out += part(number, encode(kind, inner))
            continue
        known.add(name)
        if value.get(name) is not None:
            out += field_bytes(number, repeated, kind, value[name])
    if set(value) - known:
        raise Misfit(f"unknown fields of {message}")
    return out


def inlined(message):
    """JSON names of a message's fields, with those of messages within it that JSON does not show."""
    return [inner for _, name, _, kind in messages()[message] for inner in (inlined(kind) if name == "." else [name])]


def field_bytes(number, repeated, kind, value):
    if kind.startswith("map<"):
        inner = kind[4:-1].partition(", ")[2].removeprefix(".")
        if not isinstance(value, dict):
            raise Misfit(value)
        return b"".join(part(number, part(1, text(key)) + one(2, inner, entry)) for key, entry in value.items())
    if repeated:
        if not isinstance(value, list):
            raise Misfit(value)
        return b"".join(one(number, kind, item) for item in value)
    return one(number, kind, value)


def one(number, kind, value):
    if kind in INTS:
        bits = int(kind[-2:])
        if isinstance(value, bool) or not isinstance(value, int) or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise Misfit(value)
        return varint(number << 3) + varint(value)
    if kind == "bool":
        if not isinstance(value, bool):
            raise Misfit(value)
        return varint(number << 3) + varint(value)
    if kind == "double":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Misfit(value)
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if kind == "string":
        return part(number, text(value))
    if kind == "bytes":
        try:
            return part(number, base64.b64decode(text(value), validate=True))
        except ValueError as error:
            raise Misfit(value) from error
    return part(number, encode(kind, value))


def envelope(api_version, kind, raw):
    return MAGIC + part(1, part(1, text(api_version)) + part(2, text(kind))) + part(2, raw) + part(3, b"") + part(4, b"")


def body(document):
    """An object as a request body."""
    if not isinstance(document, dict):
        raise Misfit(document)
    api_version, kind = document.get("apiVersion"), document.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str):
        raise Misfit("no type")
    return envelope(api_version, kind, encode(message_of(api_version, kind), document))


def spoiled(random, document):
    """A body that is wrong in one way."""
    good = body(document)
    api_version, kind = document["apiVersion"], document["kind"]
    raw = encode(message_of(api_version, kind), document)
    place = random.randrange(4, len(good))
    return random.choice([
        lambda: good[:place],
        lambda: good[: len(good) - 1],
        lambda: good[4:],
        lambda: b"k8s\1" + good[4:],
        lambda: MAGIC,
        lambda: b"",
        lambda: envelope(api_version, kind, raw[: random.randrange(len(raw) + 1)]),
        lambda: envelope(api_version, kind, raw + part(200, b"unknown")),
        lambda: envelope(api_version, kind, raw + varint(201 << 3) + varint(7)),
        lambda: envelope(api_version, kind, raw + raw),
        lambda: envelope(api_version, kind, b""),
        lambda: envelope(api_version, "Nothing", raw),
        lambda: envelope(api_version, "ConfigMap", raw),
        lambda: envelope("", "", raw),
        lambda: envelope("v1", kind, raw),
        lambda: envelope("x/y/z", kind, raw),
        lambda: MAGIC + part(2, raw),
        lambda: MAGIC + part(1, part(1, text(api_version)) + part(2, text(kind))) + part(2, raw) + part(3, b"gzip") + part(4, b"application/json"),
        lambda: MAGIC + part(1, part(1, text(api_version)) + part(2, text(kind))) + part(2, json.dumps(document).encode()) + part(4, b"application/json"),
        lambda: envelope(api_version, kind, varint(1 << 3) + varint(5)),
        lambda: envelope(api_version, kind, varint(1 << 3 | 7)),
        lambda: envelope(api_version, kind, part(1, part(1, b"\xff\xfe"))),
        lambda: envelope(api_version, kind, raw + part(1, part(1, b"second"))),
        lambda: json.dumps(document).encode(),
    ])()


# -- from bytes


def read_varint(data, at):
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at


def wire_fields(data):
    """Number, wire type and payload of each field."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, form = tag >> 3, tag & 7
        if form == 0:
            value, at = read_varint(data, at)
        elif form == 1:
            value, at = data[at : at + 8], at + 8
        elif form == 2:
            length, at = read_varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"wire type {form}")
        yield number, form, value


def signed(number):
    return number - 2**64 if number >= 2**63 else number


def decode(message, data):
    """What the bytes say; what is unknown, and what is out of order, under names that no field has. kube-apiserver writes every field that is no
    pointer, also at its zero value; it may as well be missing."""
    if message == f"{META}.Time" or message == f"{META}.MicroTime":
        found = {number: value for number, _, value in wire_fields(data)}
        if not found:
            return None
        made = datetime.datetime.fromtimestamp(signed(found.get(1, 0)), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
        return made + (f".{found.get(2, 0) // 1000:06d}" if message.endswith("MicroTime") else "") + "Z"
    if message in (f"{META}.FieldsV1", f"{RUNTIME}.RawExtension") or message.endswith("apiextensions.v1.JSON"):
        raw = dict((number, value) for number, _, value in wire_fields(data)).get(1, b"")
        if raw.startswith(MAGIC):
            return document(raw)
        return {"(json)": json.loads(raw) if raw else None}
    fields = {number: (name, repeated, kind) for number, name, repeated, kind in messages().get(message, ())}
    made, last = {}, 0
    for number, form, value in wire_fields(data):
        if number < last:
            made["(order)"] = True
        last = number
        name, repeated, kind = fields.get(number, (f"({number})", True, "bytes"))
        if kind.startswith("map<"):
            entry = {at: inner for at, _, inner in wire_fields(value)}
            made.setdefault(name, {})[entry.get(1, b"").decode()] = scalar(kind[4:-1].partition(", ")[2].removeprefix("."), entry.get(2, b""))
        elif repeated:
            made.setdefault(name, []).append(scalar(kind, value))
        elif name == ".":
            made.update(decode(kind, value))
        else:
            made[name] = scalar(kind, value)
    zero = lambda name, value: value in (0, "", {}, None) and (message.removeprefix("k8s.io."), name) not in pointers()
    return {name: value for name, value in made.items() if not zero(name, value)}


def scalar(kind, value):
    if kind in INTS:
        return signed(value)
    if kind == "bool":
        return bool(value)
    if kind == "double":
        return struct.unpack("<d", value)[0]
    if kind == "string":
        return value.decode("utf-8", "replace")
    if kind == "bytes":
        return base64.b64encode(value if isinstance(value, bytes) else varint(value)).decode()
    return decode(kind, value)


def document(data):
    """An answer with its type; `None` of what is none."""
    if not data.startswith(MAGIC):
        return None
    unknown = {number: value for number, _, value in wire_fields(data[len(MAGIC) :])}
    types = {number: value.decode() for number, _, value in wire_fields(unknown.get(1, b""))}
    api_version, kind = types.get(1, ""), types.get(2, "")
    raw = unknown.get(2, b"")
    if api_version == "meta.k8s.io/v1beta1" and kind == "PartialObjectMetadataList":
        # Items have the number 1 there, and metadata 2.
        raw = b"".join(sorted((part(3 - number, value) for number, _, value in wire_fields(raw)), key=lambda field: field[0]))
    extra = {f"(envelope {number})": base64.b64encode(value).decode() for number, value in unknown.items() if number > 2 and value}
    try:
        message = message_of("v1" if api_version.startswith("meta.k8s.io/") else api_version, kind)
    except Misfit:
        return {"apiVersion": api_version, "kind": kind, "(raw)": base64.b64encode(raw).decode()}
    return {"apiVersion": api_version, "kind": kind, **decode(message, raw), **extra}


def events(data):
    """The events of a watch: frames with their length before them."""
    at, made = 0, []
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        frame, at = data[at + 4 : at + 4 + length], at + 4 + length
        made.append(decode(f"{META}.WatchEvent", frame))
    return made
