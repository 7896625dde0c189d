#!/usr/bin/env python3
"""Derives the data tables of the bundled kinds from type facts (names, numbers and types of the published API).

    ./generate.py FACTS

FACTS is a directory of type facts: kinds.tsv, openapi.tsv, protobuf.tsv, resources.tsv, columns.tsv. The tables are committed; a build needs
neither the facts nor this script. Rows of definitions and messages that the facts lack are written by hand, and kept. To bundle more kinds of
the published API, add them to SERVED, exceptions of their Go types to EMIT, and run the script again. The same for the workload kinds, whose
tables are in ../../workloads/data: WORKLOADS, and emit.tsv there. They refer to definitions of the tables here, and lack these.

schema.tsv: definition, field, type, required, emit, list_type, list_map_keys, map_type, patch_strategy, patch_merge_key, default, enum.
An empty definition repeats the line above. `emit` says how a typed object encodes the field:
    a  always: if absent, as its zero value (null for lists, maps, bytes and times, {} for structs)
    o  omitted if zero
    p  omitted only if absent or null
    n  null if absent
protobuf.tsv: the columns of the facts, and the JSON name of a field if it differs ("." if the message's fields are inlined in JSON). The label
`always` is of fields that Go writes though they are zero, since they are no pointers: those of `emit` a and o, but no lists, maps and bytes.
descriptions.tsv (what `kubectl explain` prints) is written by hand.
../tests/facts/: the discovery rows and columns of a real server, with the columns of the facts, compared by tests/facts.rs.
"""
import os
import re
import sys

# group -> kinds; None: all kinds of the group.
SERVED = {
    "": ["Namespace", "ConfigMap", "Secret", "ServiceAccount", "Event", "ResourceQuota"],
    "admissionregistration.k8s.io": None,
    "apiextensions.k8s.io": None,
    "apiregistration.k8s.io": None,
    "authentication.k8s.io": None,
    "authorization.k8s.io": None,
    "autoscaling": ["Scale"],
    "certificates.k8s.io": ["CertificateSigningRequest"],
    "coordination.k8s.io": None,
    "events.k8s.io": None,
    "flowcontrol.apiserver.k8s.io": None,
    "internal.apiserver.k8s.io": None,
    "rbac.authorization.k8s.io": None,
    "storagemigration.k8s.io": None,
}
WORKLOADS = {
    "": [
        "Binding", "ComponentStatus", "Endpoints", "LimitRange", "Node", "PersistentVolume", "PersistentVolumeClaim", "Pod", "PodTemplate",
        "ReplicationController", "Service",
    ],
    "apps": None,
    "autoscaling": ["HorizontalPodAutoscaler"],
    "batch": None,
    "discovery.k8s.io": None,
    "networking.k8s.io": None,
    "node.k8s.io": None,
    "policy": None,
    "resource.k8s.io": None,
    "scheduling.k8s.io": None,
    "storage.k8s.io": None,
}
WORKLOAD_VERSIONS = ("v1", "v2")
META = "io.k8s.apimachinery."
MESSAGE_PACKAGES = ("k8s.io.apimachinery.pkg.apis.meta.v1", "k8s.io.apimachinery.pkg.runtime", "k8s.io.apimachinery.pkg.util.intstr", "k8s.io.apimachinery.pkg.api.resource", "k8s.io.api.apidiscovery.v2", "k8s.io.api.apidiscovery.v2beta1")
DEFINITIONS_OF_MESSAGES = {"k8s.io.apiextensions_apiserver.": "io.k8s.apiextensions-apiserver.", "k8s.io.kube_aggregator.": "io.k8s.kube-aggregator.", "k8s.io.": "io.k8s."}

# How fields are written where the rules of emit() guess wrong: field, or Definition.field.
EMIT = {
    "a": """
        Event.reportingComponent@core Event.reportingInstance@core Event.source@core Event.firstTimestamp@core Event.lastTimestamp@core Event.eventTime@core
        Event.regarding@events Event.deprecatedSource@events Event.deprecatedFirstTimestamp@events Event.deprecatedLastTimestamp@events
        EventSeries.lastObservedTime@core NamespaceCondition.lastTransitionTime CustomResourceDefinitionCondition.lastTransitionTime
        APIServiceCondition.lastTransitionTime FlowSchemaCondition.lastTransitionTime PriorityLevelConfigurationCondition.lastTransitionTime
        StorageVersionCondition.lastTransitionTime CertificateSigningRequestCondition.lastUpdateTime CertificateSigningRequestCondition.lastTransitionTime
        FlowSchemaSpec.matchingPrecedence QueuingConfiguration.queues QueuingConfiguration.handSize QueuingConfiguration.queueLengthLimit
        LimitedPriorityLevelConfiguration.limitResponse CustomResourceDefinitionStatus.conditions CustomResourceDefinitionStatus.acceptedNames
        CustomResourceDefinitionStatus.storedVersions TokenRequestSpec.audiences TokenRequestStatus.expirationTimestamp TokenRequestStatus.token
        TokenReviewStatus.user SelfSubjectReviewStatus.userInfo Role.rules ClusterRole.rules RoleRef.apiGroup APIGroup.preferredVersion
    """,
    "n": """
        TokenRequestSpec.expirationSeconds TokenRequestSpec.boundObjectRef LimitedPriorityLevelConfiguration.nominalConcurrencyShares
        MutatingWebhook.sideEffects ValidatingWebhook.sideEffects
    """,
    "o": """
        observedGeneration ObjectMeta.generation ObjectMeta.creationTimestamp Event.count@core EventSeries.count@core Event.deprecatedCount@events
        Status.code StatusDetails.retryAfterSeconds TokenReviewStatus.authenticated SubjectAccessReviewStatus.denied ResourcePolicyRule.clusterScope
        CustomResourceColumnDefinition.priority CustomResourceDefinitionSpec.preserveUnknownFields CustomResourceDefinitionVersion.deprecated
        JSONSchemaProps.exclusiveMaximum JSONSchemaProps.exclusiveMinimum JSONSchemaProps.uniqueItems JSONSchemaProps.nullable
        JSONSchemaProps.x-kubernetes-embedded-resource JSONSchemaProps.x-kubernetes-int-or-string APIServiceSpec.insecureSkipTLSVerify
        ScaleSpec.replicas TokenReviewSpec.token LeaseCandidateSpec.strategy Status.status ValidatingAdmissionPolicyBindingSpec.policyName ValidatingAdmissionPolicyBindingSpec.validationActions
    """,
    "p": """
        LeaseSpec.holderIdentity LeaseSpec.strategy LeaseSpec.preferredHolder ServiceReference.path WebhookClientConfig.url
        RuleWithOperations.scope NamedRuleWithOperations.scope failurePolicy matchPolicy MutatingWebhook.reinvocationPolicy
        ParamRef.parameterNotFoundAction Validation.reason ValidationRule.reason CustomResourceDefinitionVersion.deprecationWarning
        CustomResourceSubresourceScale.labelSelectorPath Preconditions.uid Preconditions.resourceVersion DeleteOptions.propagationPolicy
        JSONSchemaProps.$ref JSONSchemaProps.x-kubernetes-list-type JSONSchemaProps.x-kubernetes-map-type StorageVersionStatus.commonEncodingVersion
    """,
}


def read(folder, name):
    with open(os.path.join(folder, name), encoding="ascii") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return rows[0], rows[1:]


HERE = os.path.dirname(os.path.abspath(__file__))


def own(name, key, known):
    """Rows of the present table whose key the facts lack: written by hand."""
    rows, first = [], ""
    for row in read(HERE, name)[1]:
        first = row[0] or first
        if key([first, *row[1:]]) not in known:
            rows.append(row)
    return rows


def write(name, header, rows):
    path = os.path.join(HERE, name)
    with open(path, "w", encoding="ascii") as file:
        for row in [header, *rows]:
            file.write("\t".join(row).rstrip("\t") + "\n")


def emit_overrides():
    table = {}
    for code, names in EMIT.items():
        for name in names.split():
            name, _, package = name.partition("@")
            table[(name, package)] = code
    return table


def emit(overrides, definition, row, embeds_metadata):
    _, field, kind, required = row[:4]
    package, short = definition.split(".")[-3], definition.split(".")[-1]
    for key in ((f"{short}.{field}", package), (f"{short}.{field}", ""), (field, "")):
        if key in overrides:
            return overrides[key]
    if required or (embeds_metadata and field in ("metadata", "spec", "status")):
        return "a"
    if kind.startswith(("list<", "map<")) or kind in ("string", "string/byte"):
        return "o"
    return "p"


def enumerations(folder):
    """Allowed values for OpenAPI, which the facts lack: those of the present table."""
    values, first = {}, ""
    for row in read(folder, "schema.tsv")[1]:
        first = row[0] or first
        if len(row) == 12:
            values[first, row[1]] = row[11]
    return values


def served(group, kind, chosen=None):
    kinds = (chosen or SERVED).get(group, [])
    return kinds is None or kind in kinds or (kind.endswith("List") and kind[:-4] in kinds)


def closure(start, references):
    done, todo = set(), list(start)
    while todo:
        name = todo.pop()
        if name in done or name not in references:
            continue
        done.add(name)
        todo.extend(references[name])
    return done


def json_name(names, field, kind):
    """The JSON name of a protobuf field if it is not the field's own, by the names that the definition has."""
    if not names or field in names:
        return ""
    plain = lambda name: name.lower().replace("-", "").lstrip("$")
    alike = [name for name in names if plain(name) == plain(field)]
    return alike[0] if alike else "." if "." in kind and not kind.startswith("map<") else ""


def labelled(row, json, emitted):
    """The label of a protobuf field, by its `emit` as a field of the definition."""
    is_value = row[4] == "optional" and row[5] != "bytes" and not row[5].startswith("map<")
    return [*row[:4], "always", row[5], json] if is_value and emitted in ("a", "o") else [*row, json]


def emitted_fields(rows):
    """`emit` by definition and field, of rows of a schema."""
    table, first = {}, ""
    for row in rows:
        first = row[0] or first
        table[first, row[1]] = row[4]
    return table


def message_rows(name, messages, names, emitted):
    for row in messages[name]:
        json = json_name(names, row[2], row[5])
        yield labelled(row, json, emitted.get((definition_of(name), json or row[2])))


def by_first(rows, key):
    table = {}
    for row in rows:
        table.setdefault(key(row), []).append(row)
    return table


def emit_rows(folder):
    """Exceptions by definition and field."""
    table = {}
    for definition, code, fields in read(folder, "emit.tsv")[1]:
        table.update({(definition, field): code for field in fields.split(",")})
    return table


def schema_rows(wanted, definitions, code, values):
    out = []
    for name in wanted:
        embeds = any(row[1] == "metadata" for row in definitions[name])
        for number, row in enumerate(sorted(definitions[name], key=lambda row: row[1])):
            row = [*row[:10], row[10] or values.get((name, row[1]), "")]
            emitted = "" if row[1] in ("", "(self)") else code(name, row, embeds)
            out.append([name if number == 0 else "", row[1], row[2], row[3], emitted, *row[4:]])
    return out


def definition_of(message):
    for prefix, replacement in DEFINITIONS_OF_MESSAGES.items():
        if message.startswith(prefix):
            return replacement + message[len(prefix):]
    return None


def workloads(facts, present):
    """Tables of the workload kinds, without the definitions and messages that are present already."""
    folder = os.path.join(HERE, "..", "..", "workloads", "data")
    header, rows = read(facts, "openapi.tsv")
    definitions = by_first(rows, lambda row: row[0])
    references = {name: {ref for row in rows for ref in re.findall(r"ref:([A-Za-z0-9_.\-]+)", row[2])} for name, rows in definitions.items()}
    kinds = [row for row in read(facts, "kinds.tsv")[1] if row[2] in WORKLOAD_VERSIONS and served(row[1], row[3], WORKLOADS)]
    wanted = sorted(closure([row[0] for row in kinds], references) - present["definitions"])
    overrides, exceptions = emit_overrides(), emit_rows(folder)
    code = lambda name, row, embeds: exceptions.get((name, row[1])) or emit(overrides, name, row, embeds)
    out = schema_rows(wanted, definitions, code, enumerations(folder))
    write(os.path.join(folder, "schema.tsv"), [*header[:4], "emit", *header[4:]], out)

    emitted = emitted_fields(out)
    header, rows = read(facts, "protobuf.tsv")
    messages = by_first(rows, lambda row: f"{row[0]}.{row[1]}")
    references = {name: {part for row in rows for part in re.findall(r"[A-Za-z0-9_.]+", row[5])} for name, rows in messages.items()}
    roots = [name for name in messages if definition_of(name) in wanted]
    keep = closure(roots, references) - present["messages"]
    fields = lambda name: {row[1] for row in definitions.get(definition_of(name), [])} - {"", "(self)"}
    rows = [row for name in sorted(keep) for row in message_rows(name, messages, fields(name), emitted)]
    write(os.path.join(folder, "protobuf.tsv"), [*header, "json"], rows)

    header, rows = read(facts, "resources.tsv")
    mains = {(row[0], row[2]) for row in rows if "/" not in row[2] and served(row[0], row[4], WORKLOADS)}
    rows = [row for row in rows if (row[0], row[2].split("/")[0]) in mains]
    write(os.path.join(folder, "resources.tsv"), header, rows)


def main():
    facts = sys.argv[1]
    header, rows = read(facts, "openapi.tsv")
    definitions = by_first(rows, lambda row: row[0])
    kinds = [row for row in read(facts, "kinds.tsv")[1] if served(row[1], row[3]) and (row[1] != "autoscaling" or row[2] == "v1")]
    references = {name: {ref for row in rows for ref in re.findall(r"ref:([A-Za-z0-9_.\-]+)", row[2])} for name, rows in definitions.items()}
    roots = [row[0] for row in kinds] + [name for name in definitions if name.startswith(META)]
    wanted = sorted(closure(roots, references))

    overrides = emit_overrides()
    out = schema_rows(wanted, definitions, lambda name, row, embeds: emit(overrides, name, row, embeds), enumerations(HERE))
    emitted = emitted_fields(out)
    out += own("schema.tsv", lambda row: row[0], definitions)
    write("schema.tsv", [*header[:4], "emit", *header[4:]], out)

    header, rows = read(facts, "protobuf.tsv")
    messages = by_first(rows, lambda row: f"{row[0]}.{row[1]}")
    references = {name: {part for row in rows for part in re.findall(r"[A-Za-z0-9_.]+", row[5])} for name, rows in messages.items()}
    roots = [name for name in messages if name.rpartition(".")[0] in MESSAGE_PACKAGES]
    fields = {}
    for name in messages:
        definition = definition_of(name)
        if definition is not None:
            fields[name] = {row[1] for row in definitions.get(definition, [])} - {"", "(self)"}
            if definition in wanted:
                roots.append(name)
    keep = closure(roots, references)
    rows = [row for name in sorted(keep) for row in message_rows(name, messages, fields.get(name), emitted)]
    rows += own("protobuf.tsv", lambda row: f"{row[0]}.{row[1]}", messages)
    write("protobuf.tsv", [*header, "json"], rows)

    header, rows = read(facts, "resources.tsv")
    rows = [row for row in rows if served(row[0], row[4].split()[-1]) or (row[0] == "" and row[4].startswith("/ ") and served("", row[4][2:])) or row[2] == "serviceaccounts/token"]
    rows = [row for row in rows if row[2].split("/")[0] in {other[2] for other in rows if "/" not in other[2]}]
    write("../tests/facts/resources.tsv", header, rows)
    names = {(row[0], row[2]) for row in rows}
    header, rows = read(facts, "columns.tsv")
    write("../tests/facts/columns.tsv", header, [row for row in rows if (row[0], row[2]) in names])
    workloads(facts, {"definitions": set(wanted), "messages": keep})


if __name__ == "__main__":
    main()
