#!/usr/bin/env python3
"""Writes src/messages/*.rs from the published `api.proto` of CRI v1: generate.py FILE.

Only what the methods below reach, without Windows. Needs neither protoc nor a network; the result is
committed, so that a build needs neither.
"""

import re
import sys
from pathlib import Path

METHODS = """Version RunPodSandbox StopPodSandbox RemovePodSandbox PodSandboxStatus ListPodSandbox
CreateContainer StartContainer StopContainer RemoveContainer ListContainers ContainerStatus
UpdateContainerResources ReopenContainerLog ExecSync Exec Attach PortForward ListContainerStats ListPodSandboxStats Status
UpdateRuntimeConfig RuntimeConfig ListImages ImageStatus PullImage RemoveImage ImageFsInfo""".split()
SCALARS = {"string": ("string", "String"), "bool": ("bool", "bool"), "int32": ("int32", "i32"),
           "int64": ("int64", "i64"), "uint32": ("uint32", "u32"), "uint64": ("uint64", "u64"),
           "double": ("double", "f64"), "bytes": ("bytes = \"vec\"", "Vec<u8>")}
# Names that mean something else elsewhere in the tree, or too much.
RENAMED = {"KeyValue": "EnvironmentVariable", "Container": "ContainerSummary",
           "Image": "ImageSummary", "Mount": "ContainerMount", "Device": "ContainerDevice",
           "Capability": "Capabilities", "Protocol": "PortProtocol", "Status": "StatusCall",
           "StatusRequest": "RuntimeStatusRequest", "StatusResponse": "RuntimeStatusResponse",
           "AuthConfig": "RegistryAuth", "ContainerState": "ContainerPhase",
           "ContainerStatus": "ContainerReport", "PodSandboxStatus": "PodSandboxReport",
           "ContainerResources": "ContainerLimits", "Namespace": "LinuxNamespaces"}
KEYWORDS = {"type"}


def snake(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def camel(name):
    return "".join(word[0].upper() + (word[1:].lower() if word.isupper() else word[1:])
                   for word in name.split("_"))


def parse(text):
    text = re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))
    messages, enums = {}, {}
    # Enums within messages; each name occurs once.
    text, nested = re.sub(r"^\s+enum \w+\s*\{[^}]*\}", "", text, flags=re.M), re.findall(
        r"^\s+enum (\w+)\s*\{([^}]*)\}", text, flags=re.M)
    enums.update((name, re.findall(r"(\w+)\s*=\s*(\d+)\s*;", body)) for name, body in nested)
    for kind, name, body in re.findall(r"^(message|enum) (\w+)\s*\{([^}]*)\}", text, flags=re.M):
        if kind == "enum":
            enums[name] = re.findall(r"(\w+)\s*=\s*(\d+)\s*;", body)
            continue
        pattern = r"(repeated\s+)?(map\s*<\s*\w+\s*,\s*\w+\s*>|\w+)\s+(\w+)\s*=\s*(\d+)\s*(?:\[[^\]]*\])?;"
        messages[name] = [
            (bool(repeated), re.sub(r"\s", "", type_), field, int(tag))
            for repeated, type_, field, tag in re.findall(pattern, body)
            if not re.match(r"reserved|Windows", type_)
        ]
    calls = re.findall(r"rpc (\w+)\((\w+)\) returns \((\w+)\)", text)
    return messages, enums, calls


def reach(messages, names):
    order, queue = [], list(names)
    while queue:
        name = queue.pop(0)
        if name in order or name not in messages:
            continue
        order.append(name)
        queue += [type_ for _, type_, _, _ in messages[name]]
    return order


def renamed(name):
    return RENAMED.get(name, name)


def field(messages, enums, repeated, type_, name, tag):
    rust = "r#" + name if name in KEYWORDS else name.lower()
    if type_.startswith("map"):
        return [f'#[prost(btree_map = "string, string", tag = "{tag}")]',
                f"pub {rust}: BTreeMap<String, String>,"]
    label = "repeated, " if repeated else ""
    if type_ in SCALARS:
        kind, target = SCALARS[type_]
    elif type_ == "Signal":
        kind, target = "int32", "i32"
    elif type_ in enums:
        kind, target = f'enumeration = "{renamed(type_)}"', "i32"
    else:
        kind, target = "message", renamed(type_)
        label = label or "optional, "
        if not repeated:
            target = f"Option<{target}>"
    if repeated:
        target = f"Vec<{target}>"
    return [f'#[prost({kind}, {label}tag = "{tag}")]', f"pub {rust}: {target},"]


def write(path, doc, blocks, imports):
    lines = [f"//! {doc} Written by `generate.py`.", ""] + imports + [""]
    lines += "\n\n".join("\n".join(block) for block in blocks).split("\n")
    path.write_text("\n".join(lines) + "\n")


def main():
    messages, enums, calls = parse(Path(sys.argv[1]).read_text())
    target = Path(__file__).parent / "src/messages"
    chosen = [call for call in calls if call[0] in METHODS]
    names = reach(messages, [type_ for _, request, response in chosen for type_ in (request, response)])
    used = {type_ for name in names for _, type_, _, _ in messages[name]}
    blocks = []
    for name in sorted(used & set(enums) - {"Signal"}):
        block = ["#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]",
                 "#[repr(i32)]", f"pub enum {renamed(name)} {{"]
        words = [variant.split("_") for variant, _ in enums[name]]
        common = 0
        while len(words) > 1 and all(len(w) > common + 1 and w[common] == words[0][common] for w in words):
            common += 1
        for (variant, number), parts in zip(enums[name], words):
            block.append(f"    {camel('_'.join(parts[common:]))} = {number},")
        blocks.append(block + ["}"])
    for name in names:
        block = ["#[derive(Clone, PartialEq, Message)]"]
        if not messages[name]:
            blocks.append(block + [f"pub struct {renamed(name)} {{}}"])
            continue
        block.append(f"pub struct {renamed(name)} {{")
        for spec in messages[name]:
            block += ["    " + line for line in field(messages, enums, *spec)]
        blocks.append(block + ["}"])
    half = len(blocks) // 2
    imports = ["use prost::{Enumeration, Message};", "use std::collections::BTreeMap;"]
    write(target / "first.rs", "Messages of CRI v1, first half.", blocks[:half], ["use super::*;"] + imports)
    write(target / "second.rs", "Messages of CRI v1, second half.", blocks[half:], ["use super::*;"] + imports[1:] + ["use prost::Message;"])
    services = {}
    for call in chosen:
        service = "ImageService" if "Image" in call[0] else "RuntimeService"
        services[call[0]] = (service, renamed(call[1]), renamed(call[2]))
    rows = [f'    {snake(method)}: "/runtime.v1.{service}/{method}",\n        {request} => {response};'
            for method, (service, request, response) in services.items()]
    (target / "methods.rs").write_text(
        "//! Methods of CRI v1 that are used. Written by `generate.py`.\n\nuse super::*;\nuse crate::runtime::methods;\n\nmethods! {\n"
        + "\n".join(rows) + "\n}\n")


main()
