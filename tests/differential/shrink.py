"""The fewest requests and fields that still show a difference."""

import json


def shrink(requests, shows, budget=150):
    """`shows` runs a list of requests and tells whether the difference is still there."""
    spent = 0

    def still(candidate):
        nonlocal spent
        spent += 1
        return spent <= budget and shows(candidate)

    index = len(requests) - 2
    while index >= 0:
        candidate = requests[:index] + requests[index + 1 :]
        if still(candidate):
            requests = candidate
        index -= 1
    for index in range(len(requests) - 1, -1, -1):
        requests = without_query(requests, index, still)
        requests = without_fields(requests, index, still)
    return requests


def replaced(requests, index, **changes):
    return requests[:index] + [{**requests[index], **changes}] + requests[index + 1 :]


def without_query(requests, index, still):
    path, _, query = requests[index]["path"].partition("?")
    options = query.split("&") if query else []
    for option in list(options):
        rest = [other for other in options if other != option]
        candidate = replaced(requests, index, path=path + ("?" + "&".join(rest) if rest else ""))
        if still(candidate):
            requests, options = candidate, rest
    return requests


def without_fields(requests, index, still):
    try:
        body = json.loads(requests[index].get("body") or "null")
    except ValueError:
        return requests
    if not isinstance(body, (dict, list)):
        return requests
    for place in places(body):
        smaller = dropped(json.loads(requests[index]["body"]), place)
        if smaller is None:
            continue
        candidate = replaced(requests, index, body=json.dumps(smaller))
        if still(candidate):
            requests = candidate
    return requests


def places(value, prefix=()):
    """Outer ones first: what goes early takes much with it."""
    found = []
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in list(keys):
        found.append(prefix + (key,))
    for key in list(keys):
        found += places(value[key], prefix + (key,))
    return found


def dropped(body, place):
    parent = body
    try:
        for key in place[:-1]:
            parent = parent[key]
        del parent[place[-1]]
    except (KeyError, IndexError, TypeError):
        return None
    return body
