"""An oracle for RBAC in another language: replays the audit log of a run and decides every request again.

The log gives each request with who asked, about what, and how the server decided; writes of roles and bindings come with the object that
they left. The oracle scans all bindings for every request; the server answers from an index. A write counts from some moment between its
arrival and its answer, so a request next to it may be decided by the state before or after.
"""

import json
import urllib.parse

KINDS = ("roles", "clusterroles", "rolebindings", "clusterrolebindings")
GROUP = "rbac.authorization.k8s.io"
POLICY = f"""apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - group: {GROUP}
- level: Metadata
"""


def key(kind, item):
    meta = item["metadata"]
    return kind, meta.get("namespace", ""), meta["name"]


def rule_allows(rule, ask):
    def has(field, value):
        words = rule.get(field) or []
        return "*" in words or value in words

    if not has("verbs", ask["verb"]):
        return False
    if ask["resource"] is None:
        urls = rule.get("nonResourceURLs") or []
        return any(url in ("*", ask["path"]) or (url.endswith("*") and ask["path"].startswith(url.rstrip("*"))) for url in urls)
    whole = ask["resource"] + ("/" + ask["subresource"] if ask["subresource"] else "")
    wanted = {"*", whole} | ({"*/" + ask["subresource"]} if ask["subresource"] else set())
    names = rule.get("resourceNames") or [ask["name"]]
    return has("apiGroups", ask["group"]) and bool(wanted & set(rule.get("resources") or [])) and ask["name"] in names


def binds(binding, ask):
    own = binding["metadata"].get("namespace", "")
    for subject in binding.get("subjects") or []:
        kind, name = subject["kind"], subject["name"]
        if kind == "User" and name == ask["user"] or kind == "Group" and name in ask["groups"]:
            return True
        if kind == "ServiceAccount" and ask["user"] == f"system:serviceaccount:{subject.get('namespace') or own}:{name}":
            return True
    return False


def allowed(state, ask):
    if "system:masters" in ask["groups"]:
        return True
    for (kind, namespace, _), binding in state.items():
        here = kind == "clusterrolebindings" or (kind == "rolebindings" and ask["resource"] is not None and namespace and namespace == ask["namespace"])
        if not here or not binds(binding, ask):
            continue
        ref = binding["roleRef"]
        role = state.get(("roles", namespace, ref["name"]) if ref["kind"] == "Role" else ("clusterroles", "", ref["name"]))
        if role and any(rule_allows(rule, ask) for rule in role.get("rules") or []):
            return True
    return False


def question(event):
    """What was asked, or None when the authorizer was not."""
    decision = event.get("annotations", {}).get("authorization.k8s.io/decision")
    user = event.get("impersonatedUser") or event["user"]
    if decision is None or (user.get("username") == "system:anonymous" and "impersonatedUser" not in event):
        return None
    path = urllib.parse.unquote(event["requestURI"].split("?")[0])
    ref = event.get("objectRef")
    ask = {"user": user.get("username", ""), "groups": user.get("groups") or [], "verb": event["verb"], "path": path, "resource": None}
    if ref:
        ask.update({field: ref.get(field, "") for field in ("resource", "subresource", "namespace", "name")}, group=ref.get("apiGroup", ""))
        if ask["verb"] == "create" and not ask["subresource"]:
            # The audit names what was made; the authorizer was asked before it had a name.
            ask["name"] = ""
    return ask, decision == "allow"


def write(event, start):
    """The change that an answered write made: a list of (key, object or None)."""
    ref = event.get("objectRef") or {}
    code = event.get("responseStatus", {}).get("code", 0)
    if ref.get("apiGroup") != GROUP or ref.get("resource") not in KINDS or code >= 300 or "dryRun" in event["requestURI"]:
        return []
    kind, response = ref["resource"], event.get("responseObject") or {}
    if event["verb"] == "deletecollection":
        return [(key(kind, item), None) for item in response.get("items") or []]
    if event["verb"] == "delete":
        return [] if response.get("metadata", {}).get("deletionTimestamp") else [((kind, ref.get("namespace", ""), ref["name"]), None)]
    if event["verb"] not in ("create", "update", "patch"):
        return []
    if int(response["metadata"]["resourceVersion"]) <= start:
        return []
    return [(key(kind, response), response)]


def check(audit_log, lists):
    """Gives the number of questions and the disagreements. `lists`: kind -> what the server listed before the run."""
    state, start = {}, min(int(listed["metadata"]["resourceVersion"]) for listed in lists.values())
    for kind, listed in lists.items():
        state.update({key(kind, item): item for item in listed["items"]})
    with open(audit_log, encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines]
    events.sort(key=lambda event: event["stageTimestamp"])
    states, writes = [state], []
    for event in events:
        changes = write(event, start)
        if changes:
            state = dict(state)
            for at, item in changes:
                state.pop(at, None) if item is None else state.update({at: item})
            states.append(state)
            writes.append((event["requestReceivedTimestamp"], event["stageTimestamp"]))
    questions, wrong = 0, []
    for event in events:
        asked = question(event)
        if asked is None:
            continue
        questions += 1
        ask, decision = asked
        first = sum(1 for _, ended in writes if ended < event["requestReceivedTimestamp"])
        last = max([first] + [index + 1 for index, (began, _) in enumerate(writes) if began <= event["stageTimestamp"]])
        if all(allowed(one, ask) != decision for one in states[first : last + 1]):
            wrong.append(f"{'allowed' if decision else 'refused'}: {json.dumps(ask)}")
    return questions, wrong
