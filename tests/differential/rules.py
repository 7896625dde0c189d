"""Validation rules, made from types: for `--kinds rules`. Most compile, and fail now and then when they run."""

import functools
import json
import re

TEXT = {"type": "string", "maxLength": 10}
SPEC = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"},
        "j": {"type": "integer", "format": "int32"},
        "n": {"type": "number"},
        "b": {"type": "boolean"},
        "s": TEXT,
        "u": {"type": "string", "maxLength": 40},
        "w": {"type": "string"},
        "en": {"type": "string", "enum": ["a", "ab"]},
        "t": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "dur": {"type": "string", "format": "duration"},
        "by": {"type": "string", "format": "byte", "maxLength": 16},
        "p": {"x-kubernetes-int-or-string": True},
        "nu": {"type": "integer", "nullable": True},
        "x-y": {"type": "integer"},
        "l": {"type": "array", "maxItems": 4, "items": TEXT},
        "li": {"type": "array", "maxItems": 4, "items": {"type": "integer"}},
        "ln": {"type": "array", "maxItems": 4, "items": {"type": "number"}},
        "lb": {"type": "array", "maxItems": 3, "items": {"type": "boolean"}},
        "ll": {"type": "array", "maxItems": 3, "items": {"type": "array", "maxItems": 3, "items": {"type": "integer"}}},
        "lp": {"type": "array", "maxItems": 3, "items": {"x-kubernetes-int-or-string": True}},
        "set": {"type": "array", "maxItems": 4, "x-kubernetes-list-type": "set", "items": TEXT},
        "lo": {"type": "array", "maxItems": 3, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "required": ["k"], "properties": {"k": TEXT, "v": {"type": "integer"}}}},
        "m": {"type": "object", "maxProperties": 4, "additionalProperties": {"type": "integer"}},
        "ms": {"type": "object", "maxProperties": 4, "additionalProperties": TEXT},
        # Loops over these show what the estimated cost of a rule is.
        "many": {"type": "array", "maxItems": 30_000, "items": {"type": "integer"}},
        "most": {"type": "array", "maxItems": 1_000_000, "items": {"type": "integer"}},
        "o": {"type": "object", "properties": {"x": {"type": "boolean"}, "y": {"type": "integer"}, "z": {"type": "object", "properties": {"w": TEXT}}}},
    },
}
LEAVES = {
    "int": "self.i self.j self.nu self.o.y self.x__dash__y self.m.a self.lo[0].v 0 1 2 3 -1 7 9223372036854775807 -9223372036854775808 0x1f size(self.l)".split(),
    "small": "1 2 7 -3 1000 size(self.l)".split(),
    "uint": "0u 1u 5u 18446744073709551615u".split(),
    "double": "self.n 0.0 1.5 -2.25 1e300 1e-7 1e21 3.0 0.1 123456789.125".split(),
    "bool": "self.b self.o.x true false has(self.i) has(self.o.z.w) has(self.m.a)".split(),
    "string": [f"'{text}'" for text in ("", "a", "ab", "b", "A-b c", "é€", "1", "-1", "1.5", "true", "x.y", "%d", "a\\nb", "a\\tb\\\"")] + "self.s self.u self.en self.ms.a self.o.z.w self.l[0] self.lo[0].k self.w".split(),
    "number text": "'1' '-1' '1.5' '1e3' 'x' '' ' 1' '1 ' '+1' '0x1' '1_0' 'Inf' 'NaN' '9223372036854775808' '18446744073709551616' 'true' 'T' 'yes' self.u self.s".split(" "),
    "time text": "'2020-01-01T00:00:00Z' '2024-02-29T12:34:56.789Z' '2020-01-01T00:00:00+02:00' '9999-12-31T23:59:59Z' '0001-01-01T00:00:00Z' '2020-01-01' '2020-13-01T00:00:00Z' 'x' self.u".split(),
    "span text": "'1h' '1h30m' '-1.5s' '300ms' '1us' '1d' '' 'x' '9999999h' '1' self.u".split(),
    "url text": "'http://a.example.com:80/b/c%20d?q=1&q=2&r' 'https://[::1]:443/' '/a/b' 'a' '' 'http://u:p@h/x#f' 'http://a b/' 'mailto:a@b' '://x' 'http://h:x/' '%zz' self.u".split(" "),
    "ip text": "'10.0.0.1' '127.0.0.1' '::1' 'fe80::1' '224.0.0.1' '255.255.255.255' '0.0.0.0' '::ffff:1.2.3.4' '10.0.0.01' 'fe80::1%eth0' '2001:DB8::1' 'x' '' self.u".split(),
    "net text": "'10.0.0.0/8' '10.1.2.3/16' '::/0' '2001:db8::/32' '10.0.0.0/33' '10.0.0.0' 'x/8' '10.0.0.0/08' '::ffff:1.2.3.4/112' self.u".split(),
    "amount text": "'1' '1Gi' '100m' '-5' '1.5Gi' '1e3' '0.5' 'x' '' '1 Gi' '9223372036854775807' '10E' '1n' self.u".split(" "),
    "version text": "'1.2.3' '1.2.3-rc.1' 'v1.2.3' '1.2' '01.2.3' '1.2.3+b' '1.0.0-alpha' '10.20.30' 'x' '' self.u".split(),
    "pattern": "'a' '^[a-z]+$' '[0-9]+' '(' 'b*' '(a)(b)?' '\\\\d' '' '(?i)A' self.s".split(),
    "zone": "'UTC' 'America/New_York' '-08:00' '02:30' 'x' '' '+25:00' '1' self.s".split(),
    "template": "'%s' '%d' '%f' '%.2f' '%e' '%x' '%X' '%b' '%o' '%s %s' '%%' '%' '%q' '%.3s' '%y' 'a' '' self.s".split(" "),
    "name": "'dns1123Label' 'uuid' 'date' 'x' '' self.u".split(),
    "bytes": "self.by b'a' b'' b'\\xff' b'ab'".split(),
    "time": "self.t self.day timestamp('2020-01-01T00:00:00Z') timestamp('2024-02-29T12:34:56.789Z') timestamp(0) timestamp('9999-12-31T23:59:59Z')".split(),
    "span": "self.dur duration('1h') duration('-1.5s') duration('0') duration('2540400h')".split(),
    "null": ["null"],
    "type": "int string bool double uint list map bytes null_type type google.protobuf.Timestamp google.protobuf.Duration".split(),
    "dyn": "self.p dyn(self.i) dyn('a') dyn([1]) dyn(1.0) dyn({'a':1}) self.lp[0] dyn(null) dyn(1u)".split(),
    "list(string)": "self.l self.set ['a','b'] ['a'] ['b','a','b']".split(),
    "list(int)": "self.li self.ll[0] [1,2,3] [3,1,2] [1] [0,0]".split(),
    "list(double)": "self.ln [1.0,0.5] [0.1]".split(),
    "list(bool)": "self.lb [true,false] [true]".split(),
    "list(list(int))": "self.ll [[1],[2,3]] [[1]]".split(),
    "list(dyn)": "self.lp [dyn(1),dyn('a')] []".split(),
    "list(item)": ["self.lo"],
    "list(span)": "[duration('1s'),duration('1m')] [duration('1s')]".split(),
    "map(string,int)": "self.m {'a':1} {'a':1,'b':2} {}".split(),
    "map(string,string)": "self.ms {'a':'b'}".split(),
    "map(int,string)": "{1:'a',2:'b'} {1:'a'}".split(),
    "item": "self.lo[0] self.lo[1]".split(),
    "object": ["self.o"],
    "opt(int)": "self.?i self.?o.y self.?m.a self.m[?'a'] self.li[?0] optional.of(1) optional.none()".split(),
    "opt(string)": "self.?s self.?o.z.w self.l[?1] self.ms[?'b'] optional.ofNonZeroValue('') optional.of('a') self.?lo[0].k".split(),
    "self": ["self", "oldSelf"],
}
# What gives a type, and of what. `{T}` is an expression of a type, A and B are any; `{bool;x:A}` may use the variable `x`, which gets a name of its own.
FORMS = """
bool | {A} == {A}
bool | {A} != {A}
bool | {int} < {int}
bool | {double} >= {double}
bool | {string} > {string}
bool | {time} <= {time}
bool | {span} < {span}
bool | {bytes} < {bytes}
bool | {bool} > {bool}
bool | {uint} >= {uint}
bool | {int} < {double}
bool | {uint} > {int}
bool | {dyn} < {int}
bool | {dyn} > {string}
bool | {dyn} == {A}
bool | {bool} && {bool}
bool | {bool} || {bool}
bool | !{bool}
bool | {bool} ? {bool} : {bool}
bool | {A} in {list(A)}
bool | {string} in {map(string,A)}
bool | {dyn} in {list(dyn)}
bool | {list(A)}.all(x, {bool;x:A})
bool | {list(A)}.exists(x, {bool;x:A})
bool | {list(A)}.exists_one(x, {bool;x:A})
bool | {list(A)}.all(x, y, {bool;x:int,y:A})
bool | {list(A)}.exists(x, y, {bool;x:int,y:A})
bool | {list(A)}.existsOne(x, y, {bool;x:int,y:A})
bool | {map(A,B)}.all(x, {bool;x:A})
bool | {map(A,B)}.exists(x, {bool;x:A})
bool | {map(A,B)}.all(x, y, {bool;x:A,y:B})
bool | {map(A,B)}.exists(x, y, {bool;x:A,y:B})
bool | {dyn}.all(x, {bool;x:dyn})
bool | {opt(A)}.hasValue()
bool | {opt(A)} == {opt(A)}
bool | {string}.startsWith({string})
bool | {string}.endsWith({string})
bool | {string}.contains({string})
bool | {string}.matches({pattern})
bool | {list(A)}.isSorted()
bool | sets.contains({list(A)}, {list(A)})
bool | sets.intersects({list(A)}, {list(A)})
bool | sets.equivalent({list(A)}, {list(A)})
bool | isURL({url text})
bool | isIP({ip text})
bool | ip.isCanonical({ip text})
bool | isCIDR({net text})
bool | isQuantity({amount text})
bool | isSemver({version text})
bool | isSemver({version text}, {bool})
bool | {ip}.isLoopback()
bool | {ip}.isGlobalUnicast()
bool | {ip}.isUnspecified()
bool | {ip}.isLinkLocalUnicast()
bool | {ip}.isLinkLocalMulticast()
bool | {net}.containsIP({ip text})
bool | {net}.containsIP({ip})
bool | {net}.containsCIDR({net text})
bool | {net}.containsCIDR({net})
bool | {amount}.isInteger()
bool | {amount}.isGreaterThan({amount})
bool | {amount}.isLessThan({amount})
bool | {version}.isGreaterThan({version})
bool | {version}.isLessThan({version})
bool | {format}.validate({string}).hasValue()
bool | bool({number text})
bool | bool({bool})
bool | type({A}) == {type}
bool | type({dyn}) == type({dyn})
bool | self.all(x, {bool;x:string})
int | {int} + {int}
int | {int} - {int}
int | {int} * {int}
int | {int} / {int}
int | {int} % {int}
int | -({int})
int | {bool} ? {int} : {int}
int | size({string})
int | size({list(A)})
int | size({map(A,B)})
int | size({bytes})
int | {string}.size()
int | {list(A)}.size()
int | {map(A,B)}.size()
int | {dyn}.size()
int | int({double})
int | int({uint})
int | int({number text})
int | int({time})
int | int({span})
int | int({dyn})
int | {string}.indexOf({string})
int | {string}.indexOf({string}, {int})
int | {string}.lastIndexOf({string})
int | {string}.lastIndexOf({string}, {int})
int | {list(A)}.indexOf({A})
int | {list(A)}.lastIndexOf({A})
int | {list(int)}.sum()
int | {list(int)}.min()
int | {list(int)}.max()
int | {list(int)}[{int}]
int | {map(string,int)}[{string}]
int | {opt(int)}.value()
int | {opt(int)}.orValue({int})
int | {time}.getFullYear()
int | {time}.getMonth()
int | {time}.getDayOfYear()
int | {time}.getDayOfMonth()
int | {time}.getDate()
int | {time}.getDayOfWeek()
int | {time}.getHours({zone})
int | {time}.getMinutes({zone})
int | {time}.getSeconds()
int | {time}.getMilliseconds()
int | {time}.getDate({zone})
int | {span}.getHours()
int | {span}.getMinutes()
int | {span}.getSeconds()
int | {span}.getMilliseconds()
int | {ip}.family()
int | {net}.prefixLength()
int | sign({amount})
int | {amount}.asInteger()
int | {amount}.compareTo({amount})
int | {version}.major()
int | {version}.minor()
int | {version}.patch()
int | {version}.compareTo({version})
int | {item}.v
int | {object}.y
uint | uint({int})
uint | uint({double})
uint | uint({number text})
uint | {uint} + {uint}
uint | {uint} - {uint}
uint | {uint} * {uint}
uint | {uint} / {uint}
uint | {uint} % {uint}
double | {double} + {double}
double | {double} - {double}
double | {double} * {double}
double | {double} / {double}
double | -({double})
double | double({int})
double | double({uint})
double | double({number text})
double | {list(double)}.sum()
double | {list(double)}.max()
double | {list(double)}[{int}]
double | {amount}.asApproximateFloat()
string | {string} + {string}
string | {bool} ? {string} : {string}
string | string({int})
string | string({uint})
string | string({double})
string | string({bool})
string | string({bytes})
string | string({time})
string | string({span})
string | string({dyn})
string | string({ip})
string | string({net})
string | {string}.charAt({int})
string | {string}.substring({int})
string | {string}.substring({int}, {int})
string | {string}.lowerAscii()
string | {string}.upperAscii()
string | {string}.trim()
string | {string}.replace({string}, {string})
string | {string}.replace({string}, {string}, {int})
string | {string}.find({pattern})
string | {list(string)}.join()
string | {list(string)}.join({string})
string | {list(string)}[{int}]
string | {list(string)}.min()
string | {list(string)}.max()
string | {map(string,string)}[{string}]
string | strings.quote({string})
string | {template}.format([{A}])
string | {template}.format([{A}, {B}])
string | {template}.format([{dyn}])
string | {opt(string)}.value()
string | {opt(string)}.orValue({string})
string | {url}.getScheme()
string | {url}.getHost()
string | {url}.getHostname()
string | {url}.getPort()
string | {url}.getEscapedPath()
string | {item}.k
bytes | bytes({string})
bytes | {bytes} + {bytes}
time | timestamp({time text})
time | timestamp({int})
time | {time} + {span}
time | {time} - {span}
span | duration({span text})
span | duration({int})
span | {span} + {span}
span | {span} - {span}
span | {time} - {time}
span | {list(span)}.sum()
type | type({A})
dyn | dyn({A})
dyn | {list(dyn)}[{int}]
dyn | {dyn}[{int}]
dyn | {dyn}.a
dyn | {dyn} + {dyn}
dyn | {dyn} - {int}
list(A) | {list(A)} + {list(A)}
list(A) | {list(A)}.filter(x, {bool;x:A})
list(A) | {list(B)}.map(x, {A;x:B})
list(A) | {list(B)}.map(x, {bool;x:B}, {A;x:B})
list(A) | {map(B,C)}.map(x, {A;x:B})
list(A) | {list(B)}.transformList(x, y, {A;x:int,y:B})
list(A) | {map(B,C)}.transformList(x, y, {A;x:B,y:C})
list(A) | {map(B,C)}.transformList(x, y, {bool;x:B,y:C}, {A;x:B,y:C})
list(A) | [{A}, {A}]
list(A) | [{A}]
list(A) | {list(A)}.slice({int}, {int})
list(A) | {list(A)}.distinct()
list(A) | {list(A)}.reverse()
list(A) | {list(A)}.sort()
list(A) | {list(A)}.sortBy(x, {int;x:A})
list(A) | {list(list(A))}.flatten()
list(dyn) | {list(list(A))}.flatten({int})
list(int) | lists.range({int})
list(string) | {string}.split({string})
list(string) | {string}.split({string}, {int})
list(string) | {string}.findAll({pattern})
list(string) | {string}.findAll({pattern}, {int})
list(string) | {url}.getQuery()[{string}]
list(string) | {format}.validate({string}).value()
map(A,B) | {{A}: {B}}
map(A,B) | {{A}: {B}, {A}: {B}}
map(A,B) | {map(A,C)}.transformMap(x, y, {B;x:A,y:C})
map(int,B) | {list(C)}.transformMap(x, y, {B;x:int,y:C})
map(A,B) | {map(A,C)}.transformMapEntry(x, y, {{A;x:A,y:C}: {B;x:A,y:C}})
opt(A) | optional.of({A})
opt(A) | optional.ofNonZeroValue({A})
opt(A) | {opt(A)}.or({opt(A)})
opt(A) | {opt(B)}.optMap(x, {A;x:B})
opt(A) | {opt(B)}.optFlatMap(x, {opt(A);x:B})
opt(A) | {list(A)}[?{int}]
opt(A) | {map(string,A)}[?{string}]
opt(A) | {list(A)}.first()
opt(A) | {list(A)}.last()
url | url({url text})
ip | ip({ip text})
ip | {net}.ip()
net | cidr({net text})
net | {net}.masked()
amount | quantity({amount text})
amount | {amount}.add({amount})
amount | {amount}.add({small})
amount | {amount}.sub({amount})
amount | {amount}.sub({small})
version | semver({version text})
version | semver({version text}, {bool})
format | format.dns1123Label()
format | format.qualifiedName()
format | format.labelValue()
format | format.dns1035LabelPrefix()
format | format.uri()
format | format.date()
format | format.byte()
format | format.uuid()
format | format.datetime()
format | format.named({name}).value()
"""
# A hole is `{T}` or `{T;x:T,y:T}`; braces of a map literal stay.
HOLE = re.compile(r"\{([a-zA-Z][a-zA-Z ]*(?:\([^{};]*\))?)(?:;([^{}]*))?\}")
SIMPLE = ["int", "string", "double", "bool", "dyn", "time", "span", "uint", "bytes"]
NOISE = [" ", ")", "(", "]", "[", "'", "@", "=", "&", ".", ",", "?", ":", "!", "-", " x", "1", "_", "\\", "\n", "é", "in", "{", "}"]


@functools.cache
def parsed(text):
    """`map(A,list(B))` as ("map", ("A",), ("list", ("B",)))."""
    name, _, rest = text.strip().partition("(")
    parts, depth, start = [], 0, 0
    rest = rest[:-1]
    for place, letter in enumerate(rest + ","):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(rest[start:place])
            start = place + 1
    return (name, *(parsed(part) for part in parts if part))


def written(kind):
    return kind[0] + (f"({','.join(written(part) for part in kind[1:])})" if kind[1:] else "")


def bound(pattern, kind, variables):
    """Whether a type is of a pattern, whose variables get values."""
    if pattern[0] in "ABC":
        return variables.setdefault(pattern[0], kind) == kind
    return pattern[0] == kind[0] and len(pattern) == len(kind) and all(bound(one, other, variables) for one, other in zip(pattern[1:], kind[1:]))


def filled(pattern, variables):
    return variables[pattern[0]] if pattern[0] in "ABC" else (pattern[0], *(filled(part, variables) for part in pattern[1:]))


@functools.cache
def forms():
    lines = [line.split(" | ", 1) for line in FORMS.strip().splitlines()]
    return [(parsed(kind), form) for kind, form in lines]


@functools.cache
def forms_of(kind):
    return [(pattern, form) for pattern, form in forms() if bound(pattern, kind, {})]


class Maker:
    """Makes expressions; `wrong` of the parts have another type than they should."""

    def __init__(self, random, wrong=0.0):
        self.random, self.wrong, self.names = random, wrong, 0

    def simple(self):
        return parsed(self.random.choice(SIMPLE))

    def key(self):
        return parsed(self.random.choice(["string", "string", "int", "bool"]))

    def make(self, kind, depth, scope):
        random = self.random
        if random.random() < self.wrong:
            kind = parsed(random.choice(list(LEAVES)))
        near = [name for name, known in scope if known == kind]
        if near and random.random() < 0.5:
            return random.choice(near)
        leaves, made = LEAVES.get(written(kind), []), forms_of(kind)
        if leaves and (depth <= 0 or not made or random.random() < 0.25):
            return random.choice(leaves)
        if depth < -1 or not made:
            return self.plain(kind)
        pattern, form = random.choice(made)
        return self.fill(pattern, form, kind, depth, scope)

    def plain(self, kind):
        """A short one: a leaf, or a literal of leaves."""
        if written(kind) in LEAVES:
            return self.random.choice(LEAVES[written(kind)])
        parts = [self.plain(part) for part in kind[1:]]
        brackets = {"list": "[{}]", "map": "{{{}: {}}}", "opt": "optional.of({})"}.get(kind[0])
        given = {"url": "url('/a')", "ip": "ip('::1')", "net": "cidr('::/0')", "amount": "quantity('1')", "version": "semver('1.2.3')", "format": "format.date()"}
        return brackets.format(*parts) if brackets else given.get(kind[0], "dyn(1)")

    def fill(self, pattern, form, kind, depth, scope):
        variables, names = {}, {}
        bound(pattern, kind, variables)
        for name in "ABC":
            variables.setdefault(name, self.key() if f"map({name}," in form else self.simple())
        for name in ("x", "y"):
            if re.search(rf"\b{name}, ", form):
                self.names += 1
                names[name] = f"{name}{self.names}"

        def hole(match):
            more = [(names[part.split(":", 1)[0]], filled(parsed(part.split(":", 1)[1]), variables)) for part in split(match[2])] if match[2] else []
            made = self.make(filled(parsed(match[1]), variables), depth - 1, scope + more)
            around = form[match.start() - 1:match.start()], form[match.end():match.end() + 1]
            return f"({made})" if re.search(r" [^\w.]+ | in ", made) and (around[1] in (".", "[") or around[0] not in ("(", "[", "{")) else made

        # Names first: what is filled in has names of its own.
        plain = re.sub(r"(?<=\()(x)(?:, (y))?(?=, )", lambda match: ", ".join(names[name] for name in match.groups() if name), form)
        form = plain
        return HOLE.sub(hole, plain)


def split(text):
    return re.split(r",(?=[a-z]:)", text)


def expression(random, kind="bool"):
    maker = Maker(random, random.choice([0, 0, 0, 0.03, 0.1]))
    made = maker.make(parsed(kind), random.choice([1, 2, 2, 3]), [])
    if random.random() < 0.08:
        place = random.randrange(len(made) + 1)
        made = made[:place] + random.choice(NOISE) + made[place + random.choice([0, 1, 2]):]
    if random.random() < 0.02:
        made = made.replace("self.", random.choice(["self.nope.", "nope.", "oldSelf."]), 1)
    if random.random() < 0.02:
        made = re.sub(r"\b[a-z]\w+\(", random.choice(["nope(", "size(", "has(", "all("]), made, count=1)
    return made


def rule(random):
    made = {"rule": expression(random)}
    if random.random() < 0.1:
        made["rule"] = f"self.{random.choice(['many', 'most'])}.all(q, {made['rule']})"
    if random.random() < 0.15:
        made["messageExpression"] = expression(random, "string")
    return made


def definition(group, number, rules):
    """One whose spec has these rules."""
    plural = f"rule{number}s"
    root = {"type": "object", "properties": {"spec": {**SPEC, "x-kubernetes-validations": rules}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": f"Rule{number}", "listKind": f"Rule{number}List", "singular": f"rule{number}"}, "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": root}}]},
    }


def refused(answer):
    """The places of the rules that a server refuses; `None`: of something else."""
    document = answer.json() or {}
    causes = (document.get("details") or {}).get("causes") or []
    places = {int(found[1]) for cause in causes if (found := re.search(r"validations\[(\d+)\]", cause.get("field", "")))}
    return places if places or answer.status < 300 else None


def accepted(send, random, group, number, count):
    """A definition with rules that both servers take; `send` asks both, without creating anything."""
    rules, tries = [], 0
    while len(rules) < count and tries < 6:
        tries += 1
        candidate = rules + [rule(random) for _ in range(count)]
        bad = [refused(answer) for answer in send(json.dumps(definition(group, number, candidate)))]
        if None in bad:
            continue
        rules = [one for place, one in enumerate(candidate) if not any(place in places for places in bad)][:count]
    return definition(group, number, rules)


INTS = [0, 1, 2, 3, -1, 7, 2**31 - 1, 2**63 - 1, -(2**63), 10]
TEXTS = ["", "a", "ab", "b", "x", "é€", "1", "1.5", "true", "10.0.0.1", "::1", "/a/b", "1Gi", "1.2.3", "1h", "UTC", "%d", "(", "2020-01-01"]


def value(random, schema):
    if random.random() < 0.01:
        return random.choice([None, "a", 1, [], {}])
    kind, form = schema.get("type"), schema.get("format")
    if kind == "object":
        if "additionalProperties" in schema:
            return {name: value(random, schema["additionalProperties"]) for name in random.sample(["a", "b", "c", "k"], random.choice([0, 1, 2, 3]))}
        return {name: value(random, part) for name, part in schema["properties"].items() if random.random() < 0.8}
    if kind == "array":
        return [value(random, schema["items"]) for _ in range(random.choice([0, 1, 2, 3]))]
    if kind == "boolean":
        return random.choice([True, False])
    if kind == "integer":
        return random.choice(INTS[:6] if form else INTS)
    if kind == "number":
        return random.choice([0, 1, 2.5, -1.5, 0.1, 1e21, 1e-7, 3])
    texts = {
        "date-time": ["2024-02-29T12:34:56.789Z", "2020-01-01T00:00:00Z", "1969-12-31T23:59:59+01:00"], "date": ["2024-02-29", "2020-01-01"],
        "duration": ["1h", "-1.5s", "300ms", "0s"], "byte": ["YQ==", "", "YWI="],
    }.get(form, TEXTS)
    text = random.choice([text for text in texts if len(text) <= schema.get("maxLength", 40)])
    if "enum" in schema:
        return random.choice(schema["enum"])
    return random.choice([text, random.choice(INTS)]) if "x-kubernetes-int-or-string" in schema else text


def spec(random, _=None):
    return {"spec": value(random, SPEC)}
