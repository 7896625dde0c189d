"""Watches: each ends by itself, so that its answer is a list of events."""

SHORT = "1"
SELECTORS = ["a=b", "a!=b", "!a", "a in (", "a"]
FIELDS = ["metadata.name=a", "metadata.name!=a", "metadata.name=b", "x=y", "metadata.name"]
ACCEPTS = [
    "application/json", "application/json", "application/json;stream=watch", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1beta1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "text/html", "*/*", "application/yaml;stream=watch",
]
PROTOBUF_ACCEPTS = [accept.replace("json", "vnd.kubernetes.protobuf") for accept in ACCEPTS] + ["application/vnd.kubernetes.protobuf;stream=watch,application/json"]


def watch(sequence, alias):
    """Adds one request to a sequence of a kind."""
    random, kind = sequence.random, sequence.kind
    query = []
    for name, share, values in (
        ("resourceVersion", 0.7, ["0", "0", "{{rv:a}}", "{{rv:a}}", "{{rv:b}}", "x", "", "-1", "00"]),
        ("resourceVersionMatch", 0.3, ["NotOlderThan", "NotOlderThan", "Exact", "x"]),
        ("sendInitialEvents", 0.35, ["true", "true", "false", "x", ""]),
        ("allowWatchBookmarks", 0.4, ["true", "true", "false", "x"]),
        ("labelSelector", 0.2, SELECTORS),
        ("fieldSelector", 0.2, FIELDS),
        ("limit", 0.05, ["1", "x"]),
        ("continue", 0.03, ["x"]),
        ("includeObject", 0.15, ["None", "Metadata", "Object", "x"]),
        ("pretty", 0.05, ["true"]),
        ("timeout", 0.05, ["1s", "x", "0"]),
    ):
        if random.random() < share:
            query.append((name, random.choice(values)))
    if not kind.namespaced and not any(name in ("labelSelector", "fieldSelector") for name, _ in query):
        query.append(("labelSelector", f"seq={sequence.label}"))
    collection = kind.collection(sequence.namespace)
    legacy = collection.replace(f"/{kind.version}/", f"/{kind.version}/watch/", 1)
    path = random.choice([collection] * 6 + [f"{collection}/{sequence.name(alias)}", legacy, legacy, f"{legacy}/{sequence.name(alias)}", f"{legacy}/{sequence.name(alias)}/status"])
    if path.startswith(collection) or random.random() < 0.1:
        query.append(("watch", random.choice(["true", "true", "1", "true", "", "x", "True"])))
    # Without an end of its own a watch would last for minutes.
    query.append(("timeoutSeconds", SHORT))
    method = "GET" if random.random() < 0.95 else random.choice(["HEAD", "POST", "DELETE"])
    accepts = PROTOBUF_ACCEPTS if sequence.protobuf else ACCEPTS
    sequence.add("watch", method, path, "", None, accept=random.choice(accepts), query=query)
