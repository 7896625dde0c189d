//! Rules end to end: results, refusals, and bounded costs (fault 42).

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::work;
use ferrokube_cel::Rules;
use ferrokube_schema::Schema;
use ferrokube_schema::custom::{SchemaContext, from_json_schema};
use std::sync::Arc;

fn schema(spec: &Value) -> Arc<Schema> {
    let root = json!({"type": "object", "properties": {"spec": spec}});
    Arc::new(
        from_json_schema(&root, &SchemaContext { path: "s", ..SchemaContext::default() })
            .expect("a structural fixture"),
    )
}

fn compile(spec: &Value) -> Result<Rules, Vec<FieldError>> {
    Rules::compile(&schema(spec), "s").map(|rules| rules.expect("the fixture has rules"))
}

fn object(spec: Value) -> Document {
    Document::from_value(
        json!({"apiVersion": "e/v1", "kind": "T", "metadata": {"name": "n"}, "spec": spec}),
    )
    .expect("an object")
}

/// A schema with some fields and one rule.
fn with_rule(rule: &str) -> Value {
    json!({
        "type": "object",
        "properties": {
            "s": {"type": "string", "maxLength": 50},
            "n": {"type": "integer"},
            "f": {"type": "number"},
            "x-y": {"type": "string", "maxLength": 5},
            "namespace": {"type": "string", "maxLength": 5},
            "when": {"type": "string", "format": "date-time"},
            "l": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 9}},
            "m": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "integer"}},
            "k": {"type": "array", "maxItems": 9, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
                  "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string", "maxLength": 9}, "v": {"type": "integer"}}}},
        },
        "x-kubernetes-validations": [{"rule": rule}],
    })
}

fn holds(rule: &str, spec: Value) -> bool {
    let rules = compile(&with_rule(rule)).unwrap_or_else(|errors| panic!("{rule}: {errors:?}"));
    let errors = rules.validate(None, &object(spec));
    assert!(errors.iter().all(|error| error.message.contains("failed rule")), "{rule}: {errors:?}");
    errors.is_empty()
}

#[test]
fn rules_hold_or_not() {
    let spec = || json!({"s": "h\u{e9}llo", "n": 3, "f": 1, "x-y": "a", "namespace": "b", "when": "2024-01-01T00:00:00Z", "l": ["a", "b"], "m": {"a-b": 1}});
    let cases = [
        ("size(self.s) == 5 && self.s.size() == 5", true),
        ("self.n + 1 == 4", true),
        ("self.f < 1.5", true),
        ("self.f > self.n", false),
        ("self.x__dash__y == 'a'", true),
        ("self.__namespace__ == 'b' && self.namespace == 'b' && has(self.namespace)", true),
        ("self.when < timestamp('2025-01-01T00:00:00Z')", true),
        ("self.l.exists(x, x == 'b') && self.l.all(x, x.size() == 1)", true),
        ("self.l.map(x, x + '!').filter(x, x.startsWith('a')).size() == 1", true),
        ("self.m.all(k, self.m[k] > 0) && 'a-b' in self.m", true),
        ("has(self.k) ? self.k.size() > 0 : self.n == 3", true),
        ("self.n == 3 ? self.s == 'x' : true", false),
    ];
    for (rule, expected) in cases {
        assert_eq!(holds(rule, spec()), expected, "{rule}");
    }
}

/// At least one passing rule per library function.
const LIBRARIES: &str = r#"
size('h\u00e9') == 2 && 'h\u00e9llo'.size() == 5 && size([1, 2]) == 2 && size({'a': 1}) == 1 && size(b'ab') == 2
'hello'.contains('ell') && 'hello'.startsWith('he') && 'hello'.endsWith('lo') && 'hello'.matches('^h.*o$') && matches('a1', r'\w\d')
'abc'.charAt(1) == 'b' && 'abc'.charAt(3) == '' && 'hello'.indexOf('l') == 2 && 'hello'.indexOf('l', 3) == 3 && 'hello'.lastIndexOf('l') == 3 && 'hello'.lastIndexOf('l', 2) == 2
'aBc'.lowerAscii() == 'abc' && 'aBc'.upperAscii() == 'ABC' && ' x '.trim() == 'x'
'a-b-c'.replace('-', '') == 'abc' && 'a-b-c'.replace('-', '+', 1) == 'a+b-c' && 'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'ab'.split('') == ['a', 'b']
'hello'.substring(1) == 'ello' && 'h\u00e9llo'.substring(1, 2) == '\u00e9' && self.l.join('-') == 'a-b' && self.l.join() == 'ab' && strings.quote('a"b') == '"a\\"b"'
'%s has %d items, %.2f %x %X %o %b %e %%'.format(['x', 3, 1.5, 255, 255, 8, 5, 1200.0]) == 'x has 3 items, 1.50 ff FF 10 101 1.200000\u202f\u00d7\u202f10\u2070\u00b3 %'
'%s %s %s'.format([[1, 2], {'a': 'b'}, duration('90s')]) == '[1, 2] {"a":"b"} 90s'
'abc 123'.find('[0-9]+') == '123' && '1 22 333'.findAll('[0-9]+') == ['1', '22', '333'] && '1 22 333'.findAll('[0-9]+', 1) == ['1']
[1, 2, 3].isSorted() && [1, 2].sum() == 3 && [1.5, 2.5].sum() == 4.0 && [3, 1, 2].min() == 1 && [3, 1, 2].max() == 3 && [1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2
[1, 2, 3].slice(1, 3) == [2, 3] && [1, 1, 2].distinct() == [1, 2] && [1, 2].reverse() == [2, 1] && [2, 1].sort() == [1, 2] && [[1], [2, 3]].flatten() == [1, 2, 3] && lists.range(3) == [0, 1, 2]
[1, 2].first().value() == 1 && [1, 2].last() == optional.of(2) && !([] + [1]).slice(0, 0).first().hasValue() && ['bb', 'a'].sortBy(x, x.size()) == ['a', 'bb']
sets.contains([1, 2, 3], [2]) && sets.intersects([1], [1, 2]) && sets.equivalent([1, 2, 2], [2, 1])
isURL('https://u@h:8/p%20q?k=v&k=w') && url('https://h:8/p q').getEscapedPath() == '/p%20q' && url('https://h:8/').getHost() == 'h:8' && url('https://[::1]:8/').getHostname() == '::1'
url('https://h:8/').getPort() == '8' && url('HTTPS://h/').getScheme() == 'https' && url('/p?k=v&k=w').getQuery() == {'k': ['v', 'w']} && !isURL('p') && !isURL('../p')
ip('10.0.0.1').family() == 4 && ip('::1').isLoopback() && isIP('::1') && !isIP('1.2.3') && !isIP('::ffff:1.2.3.4') && ip.isCanonical('::1') && !ip.isCanonical('0::1') && ip('8.8.8.8').isGlobalUnicast() && ip('169.254.1.1').isLinkLocalUnicast() && ip('0.0.0.0').isUnspecified() && string(ip('::1')) == '::1'
cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsIP(ip('10.1.2.3')) && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8')) && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.0/8').prefixLength() == 8 && cidr('10.0.0.0/8').ip() == ip('10.0.0.0') && isCIDR('::/0') && !isCIDR('10.0.0.0/33')
quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('1').isLessThan(quantity('2')) && quantity('1k').compareTo(quantity('1000')) == 0 && quantity('50k').add(20).sub(quantity('20')).asInteger() == 50000 && quantity('1500m').asApproximateFloat() == 1.5 && sign(quantity('-1')) == -1 && !quantity('100m').isInteger() && isQuantity('1Mi') && !isQuantity('x') && quantity('1000m') == quantity('1')
semver('1.2.3').isLessThan(semver('2.0.0')) && semver('1.0.0').isGreaterThan(semver('1.0.0-rc.1')) && semver('1.2.3').minor() == 2 && semver('v1.2', true).patch() == 0 && isSemver('1.0.0+x') && !isSemver('01.0.0') && semver('1.0.0-a.2').compareTo(semver('1.0.0-a.10')) == -1
!format.dns1123Label().validate('ok').hasValue() && format.dns1123Label().validate('No').hasValue() && format.named('uuid').value().validate('x').hasValue() && !format.named('none').hasValue() && !format.qualifiedName().validate('a.b/c').hasValue() && !format.dns1123LabelPrefix().validate('ab-').hasValue()
duration('1h') > duration('1m') && duration('90m').getHours() == 1 && duration('90m').getMinutes() == 90 && duration('1s') + duration('1s') == duration('2s') && string(duration('1m')) == '60s'
timestamp('2024-02-03T04:05:06.7Z').getFullYear() == 2024 && timestamp('2024-02-03T04:05:06Z').getMonth() == 1 && timestamp('2024-02-03T04:05:06Z').getDate() == 3 && timestamp('2024-02-03T04:05:06Z').getDayOfMonth() == 2 && timestamp('2024-02-04T04:05:06Z').getDayOfWeek() == 0
timestamp('2024-02-03T04:05:06Z').getHours('-08:00') == 20 && timestamp('2024-01-01T00:00:00Z') + duration('1h') == timestamp('2024-01-01T01:00:00Z') && timestamp('2024-01-01T01:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('1h') && timestamp(0) == timestamp('1970-01-01T00:00:00Z') && int(timestamp('1970-01-01T00:01:00Z')) == 60
int('5') == 5 && uint(5) == 5u && double('1.5') == 1.5 && string(1.5) == '1.5' && string(true) == 'true' && bytes('ab') == b'ab' && string(b'ab') == 'ab' && bool('true') && int(1.9) == 1 && type(1) == int && type('a') == string && type([]) == list
1 < 1.5 && 2u > 1 && dyn(1) == 1.0 && 7 % 3 == 1 && 7 / 2 == 3 && -7 / 2 == -3 && 0x10 == 16 && 1e3 == 1000.0 && -(-1) == 1
'a' in ['a'] && 'k' in {'k': 1} && {'k': 1}['k'] == 1 && [1, 2][1] == 2 && {'a': 1, ?'b': optional.none()} == {'a': 1} && [?optional.of(1), ?optional.none()] == [1]
{'k': 1}[?'k'].hasValue() && !{'k': 1}[?'x'].hasValue() && {'k': 1}[?'x'].orValue(5) == 5 && optional.of(1).or(optional.none()).value() == 1 && optional.of(2).optMap(x, x * 2).value() == 4 && optional.ofNonZeroValue(0) == optional.none() && optional.of(2).optFlatMap(x, optional.of(x)).value() == 2
[1, 2].all(x, x > 0) && [1, 2].exists(x, x > 1) && [1, 2].exists_one(x, x > 1) && [1, 2].map(x, x * 2) == [2, 4] && [1, 2].map(x, x > 1, x * 2) == [4] && [1, 2].filter(x, x > 1) == [2]
[1, 2].all(i, v, i < v) && {'a': 1}.exists(k, v, k == 'a' && v == 1) && {'a': 1}.existsOne(k, v, v == 1) && [1, 2].transformList(i, v, i + v) == [1, 3] && {'a': 1}.transformMap(k, v, v + 1) == {'a': 2} && {'a': 'b'}.transformMapEntry(k, v, {v: k}) == {'b': 'a'} && [1, 2].transformList(i, v, i > 0, v) == [2]
cel.bind(x, self.n + 1, x * x == 16) && has(self.s) && !has(self.absent) && self.?absent.orValue('d') == 'd' && self.?s.value() == 'a' && self.?o.?deep.hasValue() == false
[1, 0].exists(x, 1 / x == 1) && !(1 / 0 in []) && optional.of(1).orValue(1 / 0) == 1 && (true || 1 / 0 == 1) && !(false && 1 / 0 == 1) && (1 / 0 == 1 || true)
true ? 'a' == 'a' : false
[1.5].slice(0, 0).sum() == 0.0 && string([1.5].slice(0, 0).sum()) == '0' && [dyn(1), dyn('a')].isSorted() && [dyn('b'), dyn(1)].max() == 'b'
(self.n == 3 && self.f < 2.0) || self.s == "no" // a comment
"#;

#[test]
fn library_functions_work() {
    let mut spec = with_rule("");
    spec["properties"]["absent"] = json!({"type": "string"});
    spec["properties"]["o"] = json!({"type": "object", "properties": {"deep": {"type": "string"}}});
    for rule in LIBRARIES.lines().filter(|line| !line.is_empty()) {
        spec["x-kubernetes-validations"][0]["rule"] = json!(rule);
        let rules = compile(&spec).unwrap_or_else(|errors| panic!("{rule}: {errors:?}"));
        let errors =
            rules.validate(None, &object(json!({"s": "a", "n": 3, "f": 1, "l": ["a", "b"]})));
        assert!(errors.is_empty(), "{rule}: {errors:?}");
    }
}

#[test]
fn invalid_rules_are_refused() {
    let refused = [
        "self.none == 1",
        "self.n",
        "self.n == 'x'",
        "self.s + 1 == 'a'",
        "self.n.startsWith('a')",
        "undeclared > 1",
        "nofunction(self.n)",
        "Message{a: 1}.a == 1",
        "self.metadata.name == 'x'",
        "self.n >",
        "[1, 'a'].size() == 2",
        "1 == 1.0",
        "self.s == null",
        "self.s.matches('(')",
        "duration('x') > duration('1s')",
        "timestamp('2024') > timestamp(0)",
        "self.l.all(1, true)",
        "has(self)",
        "self.l.all(x, x)",
        "if == 1",
        "self.n ? true : false",
        "self.l[0].k == 1",
        "self.m.a.b == 1",
        "{'a': 1, 2: 'b'}.size() == 2",
        "true ? 1 == 1 : 'a'",
        "self.l.all(x, y, z, true)",
        "1 +",
        "'a",
        "self.?x.hasValue()",
    ];
    for rule in refused {
        let errors = compile(&with_rule(rule)).expect_err(rule);
        assert_eq!(
            errors[0].field, "s.properties[spec].x-kubernetes-validations[0].rule",
            "{rule}"
        );
    }
}

#[test]
fn runtime_errors_are_reported() {
    let failing = [
        "self.n / (self.n - self.n) == 1",
        "self.l[9] == 'x'",
        "self.m['none'] == 1",
        "int(self.s) == 1",
        "dyn(self.s) + 1 == 2",
        "self.s == 'a' && dyn(self.n)",
        "self.n + 9223372036854775807 > 0",
        "[1].map(x, x / 0).size() == 1",
        "quantity(self.s).isInteger()",
        "self.s.matches(self.s + '(')",
        "optional.none().value() == 1",
        "self.s.substring(5) == ''",
    ];
    for rule in failing {
        let rules = compile(&with_rule(rule)).unwrap_or_else(|errors| panic!("{rule}: {errors:?}"));
        let errors = rules.validate(None, &object(json!({"s": "a", "n": 3, "l": [], "m": {}})));
        assert!(
            errors.len() == 1
                && [
                    " evaluating rule: ",
                    "did not match a supported operator, function or macro signature for rule: "
                ]
                .iter()
                .any(|why| errors[0].message.contains(why)),
            "{rule}: {errors:?}"
        );
    }
}

/// Rules that fail at run time, each with upstream's error.
const FAILURES: &str = r#"
int(self.s) == 1 | type conversion error from 'string' to 'int'
uint(self.n - 9) == 1u | unsigned integer overflow
int(self.f * 1e300) == 1 | integer overflow
timestamp(self.s) == self.when | type conversion error from 'string' to 'google.protobuf.Timestamp'
timestamp(self.n * 1000000000000) == self.when | timestamp overflow
duration('2540400h') + duration('2540400h') > duration('1s') | integer overflow
string(bytes(self.s) + b'\xff') == '' | invalid UTF-8 in bytes, cannot convert to string
dyn(self.n) == 3 && self.n * 9223372036854775807 > 0 | integer overflow
5u - uint(self.n) * 2u > 0u | unsigned integer overflow
self.n % (self.n - 3) == 1 | modulus by zero
self.l.slice(self.n, 1).size() == 0 | cannot slice(3, 1), start index must be less than or equal to end index
self.l.slice(0, 3).size() == 0 | cannot slice(0, 3), list is length 1
self.l.slice(-1, 3).size() == 0 | cannot slice(-1, 3), negative indexes not supported
[[self.n]].flatten(-1).size() == 1 | level must be non-negative
self.s.charAt(self.n) == '' | index out of range: 3
self.s.substring(2, 1) == '' | invalid substring range. start: 2, end: 1
self.s.indexOf('x', -1) == 1 | index out of range: -1
ip(self.s).family() == 4 | IP Address "a" parse error during conversion from string: ParseAddr("a"): unable to parse IP
ip('::ffff:1.2.3.4').family() == 4 | IPv4-mapped IPv6 address "::ffff:1.2.3.4" is not allowed
ip('fe80::1%' + self.s).family() == 4 | IP address "fe80::1%a" with zone value is not allowed
cidr(self.s + '/8').prefixLength() == 8 | network address parse error during conversion from string: network address parse error during conversion from string: netip.ParsePrefix("a/8"): ParseAddr("a"): unable to parse IP
url(self.s).getHost() == '' | URL parse error during conversion from string: parse "a": invalid URI for request
url('http://a b/' + self.s).getHost() == '' | URL parse error during conversion from string: parse "http://a b/a": invalid character " " in host name
url('http://h:x/' + self.s).getHost() == '' | URL parse error during conversion from string: parse "http://h:x/a": invalid port ":x" after host
url('://' + self.s).getHost() == '' | URL parse error during conversion from string: parse "://a": missing protocol scheme
url('/%zz' + self.s).getHost() == '' | URL parse error during conversion from string: parse "/%zza": invalid URL escape "%zz"
semver(self.s).major() == 1 | No Major.Minor.Patch elements found
semver('01.2.' + self.s).major() == 1 | Major number must not contain leading zeroes "01"
semver('1.2.' + self.s).major() == 1 | Invalid character(s) found in patch number "a"
quantity(self.s).isInteger() | quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'
double('NaN') >= self.f | NaN values cannot be ordered
uint(self.f - 1.5) == 1u | unsigned integer overflow
quantity('1.5' + (self.n == 3 ? '' : self.s)).asInteger() == 1 | cannot convert value to integer
self.s.matches('(' + self.s) | error parsing regexp: missing closing ): `(a`
self.s.find('(' + self.s) == '' | Illegal regex: error parsing regexp: missing closing ): `(a`
self.when.getHours(self.s) == 1 | unknown time zone a
self.when.getHours(self.s + ':0') == 1 | strconv.Atoi: parsing "a": invalid syntax
('%d' + self.s).format([dyn(self.s)]) == '' | error during formatting: decimal clause can only be used on integers, was given string
self.m['none'] == 1 | no such key: none
self.l[9] == 'x' | index out of bounds: 9
dyn(self.l)[self.s] == 'x' | unsupported index type 'string' in list
dyn(self.l)[self.f + 0.5] == 'x' | unsupported index value 1.5 in list
dyn(self.s)[1] == 'x' | no such key: 1
{self.n: 1, 2: 3}.transformMapEntry(k, v, {1: v}).size() == 1 | insert failed: key 1 already exists
[].max() == 1 | max called on empty list
optional.none().value() == 1 | optional.none() dereference
dyn(self.n).size() == 1 | 'no such overload: size'
dyn(self.l) < 1 | 'no such overload: _<_'
dyn(self.l) - 1 == 2 | 'no such overload: _-_'
dyn(self.s) - 1 == 2 | 'no such overload'
dyn(self.s) + 1 == 2 | 'no such overload'
int(dyn(self.l)) == 2 | 'no such overload: int(list)'
cidr('10.0.0.0/8').containsIP(self.s) | 'no such overload'
"#;

#[test]
fn runtime_errors_are_those_of_kube_apiserver() {
    let spec =
        json!({"s": "a", "n": 3, "f": 1, "l": ["a"], "m": {}, "when": "9999-12-31T23:59:59Z"});
    for (rule, why) in FAILURES.lines().filter_map(|line| line.split_once(" | ")) {
        let rules = compile(&with_rule(rule)).unwrap_or_else(|errors| panic!("{rule}: {errors:?}"));
        let errors = rules.validate(None, &object(spec.clone()));
        let told = errors.first().map(|error| error.message.as_str()).unwrap_or_default();
        let told = told.strip_prefix("Invalid value: \"object\": ").unwrap_or(told);
        let rest = told.strip_prefix(why).unwrap_or_else(|| panic!("{rule}: {told}"));
        assert!(rest.starts_with(" evaluating rule: ") || rest.starts_with(": call "), "{told}");
    }
}

/// Rules that do not compile, each with upstream's error.
const CONSTANTS: &str = r#"
int('a') == 1 | program instantiation failed: type conversion error from 'string' to 'int'
true || bool('x') | program instantiation failed: type conversion error from 'string' to 'bool'
int(dyn([1])) == 1 | program instantiation failed: no such overload: int(list)
duration(5) == duration('5ns') | compilation failed: ERROR: <input>:1:10: invalid duration argument
'%d'.format(['a']) == 'a' | compilation failed: ERROR: <input>:1:14: error during formatting: decimal clause can only be used on integers, was given string
'%s'.format([[self.l, quantity('1')]]) == '' | compilation failed: ERROR: <input>:1:31: error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given kubernetes.Quantity
'%s'.format([]) == 'a' | compilation failed: ERROR: <input>:1:12: index 0 out of range
'a'.format([1]) == 'a' | compilation failed: ERROR: <input>:1:11: too many arguments supplied to string.format (expected 0, got 1)
'%y'.format([1]) == 'a' | compilation failed: ERROR: <input>:1:12: could not parse formatting clause: unrecognized formatting clause "y"
'a' == [dyn(1), 2][1] || self.n == 1 | compilation failed: ERROR: <input>:1:17: expected type 'dyn' but found 'int'
[[self.l]].sort().size() == 1 | compilation failed: ERROR: <input>:1:16: found no matching overload for 'sort' applied to 'list(list(list(string))).()'
quantity('1').sign() == 1 | compilation failed: ERROR: <input>:1:19: found no matching overload for 'sign' applied to 'kubernetes.Quantity.()'
quantity('1').foo == 1 | compilation failed: ERROR: <input>:1:14: unexpected failed resolution of 'kubernetes.Quantity'
.none == 1 | compilation failed: ERROR: <input>:1:2: undeclared reference to '.none' (in container '')
duration(int('')) | cel expression must evaluate to a bool
self.l.flatten().size() == 1 | compilation failed: ERROR: <input>:1:15: found no matching overload for 'flatten' applied to 'list(string).()'
has(self.! | compilation failed: ERROR: <input>:1:5: invalid argument to has() macro
has(self:s) | compilation failed: ERROR: <input>:1:5: invalid argument to has() macro
self.&a | no viable alternative at input '.'
self.l.map(!x, 1).size() == 1 | compilation failed: ERROR: <input>:1:12: argument is not an identifier
has(self + ) | compilation failed: ERROR: <input>:1:10: invalid argument to has() macro
has([self.n) | compilation failed: ERROR: <input>:1:5: invalid argument to has() macro
has({'a': 1) | compilation failed: ERROR: <input>:1:5: invalid argument to has() macro
has(self?.n) | compilation failed: ERROR: <input>:1:9: invalid argument to has() macro
[self.n].sortBy(x, {1: x}).size() == 1 | compilation failed: ERROR: <input>:1:16: found no matching overload for '@sortByAssociatedKeys' applied to 'list(int).(list(map(int, int)))'
self.l.all(x, x, true) | compilation failed: ERROR: <input>:1:15: duplicate variable name: x
self.l.all(__result__, true) | compilation failed: ERROR: <input>:1:12: iteration variable overwrites accumulator variable
[1].all(1, self.n.slice(2=3)) | compilation failed: ERROR: <input>:1:9: argument must be a simple name
list == [1] | compilation failed: ERROR: <input>:1:6: found no matching overload for '_==_' applied to '(type(list(dyn)), list(int))'
dyn(1).reverse() == 1 | compilation failed: ERROR: <input>:1:18: found no matching overload for '_==_' applied to '(list(dyn), int)'
self.l in null | compilation failed: ERROR: <input>:1:8: found no matching overload for '@in' applied to '(list(string), null)'
optional.of(self.n).optFlatMap(x, [x]).hasValue() | compilation failed: ERROR: <input>:1:31: found no matching overload for '_?_:_' applied to '(bool, list(int), optional_type(dyn))'
"#;

#[test]
fn compile_errors_are_those_of_kube_apiserver() {
    // Escaped, since sources are ASCII.
    let accented = ("has(self.o.\u{e9})", "token recognition error at: '\u{e9}'");
    let rules = CONSTANTS.lines().filter_map(|line| line.split_once(" | ")).chain([accented]);
    for (rule, why) in rules {
        let errors = compile(&with_rule(rule)).expect_err(rule);
        assert!(errors[0].message.contains(why), "{rule}: {}", errors[0].message);
    }
}

#[test]
fn unnamed_objects_are_named_by_their_place() {
    let item = json!({"type": "object", "properties": {"v": {"type": "integer"}}});
    let place = |kind: &str| match kind {
        "array" => json!({"type": kind, "maxItems": 5, "items": item}),
        _ => json!({"type": kind, "maxProperties": 5, "additionalProperties": item}),
    };
    for (kind, named) in [("array", ".@idx)"), ("object", ".@elem)")] {
        let mut spec = place(kind);
        spec["x-kubernetes-validations"] = json!([{"rule": "string(self) == ''"}]);
        let errors = compile(&spec).expect_err(kind);
        let message = &errors[0].message;
        assert!(message.contains("found no matching overload for 'string'"), "{message}");
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn sets_and_list_maps_compare_without_order() {
    let list = |kind: &str| json!({"type": "array", "maxItems": 5, "x-kubernetes-list-type": kind, "items": {"type": "string", "maxLength": 5}});
    let spec = json!({"type": "object", "properties": {"a": list("set"), "b": list("atomic")}, "x-kubernetes-validations": [{"rule": "self.a == ['y', 'x'] && self.b == ['x', 'y'] && (self.a + ['x', 'z']).size() == 3"}]});
    let rules = compile(&spec).expect("compiles");
    assert_eq!(rules.validate(None, &object(json!({"a": ["x", "y"], "b": ["x", "y"]}))), []);
    assert_eq!(rules.validate(None, &object(json!({"a": ["x", "y"], "b": ["y", "x"]}))).len(), 1);
}

#[test]
fn defaults_must_satisfy_the_rules() {
    let spec = |default: u32| json!({"type": "object", "properties": {"n": {"type": "integer", "default": default, "x-kubernetes-validations": [{"rule": "self < 5"}]}}});
    assert_eq!(compile(&spec(4)).expect("compiles").validate_defaults("s"), []);
    let errors = compile(&spec(5)).expect("compiles").validate_defaults("s");
    assert_eq!(errors[0].field, "s.properties[spec].properties[n].default");
}

#[test]
fn a_broken_rule_is_reported_at_the_default_that_it_would_check() {
    let node = json!({"type": "integer", "default": 1, "x-kubernetes-validations": [{"rule": "undefined"}]});
    let fields = |spec| {
        compile(&spec)
            .map(drop)
            .expect_err("broken")
            .into_iter()
            .map(|error| error.field)
            .collect::<Vec<_>>()
    };
    let in_properties = fields(json!({"type": "object", "properties": {"n": node.clone()}}));
    assert!(in_properties[0].ends_with("[n].default"), "{in_properties:?}");
    let map = fields(json!({"type": "object", "additionalProperties": node}));
    assert!(map[0].ends_with("additionalProperties.x-kubernetes-validations[0].rule"), "{map:?}");
}

#[test]
fn optional_old_self() {
    let spec = json!({"type": "object", "properties": {"n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf.orValue(2)", "optionalOldSelf": true}]}}});
    let rules = compile(&spec).expect("compiles");
    assert_eq!(rules.validate(None, &object(json!({"n": 1}))).len(), 1);
    assert_eq!(rules.validate(Some(&object(json!({"n": 0}))), &object(json!({"n": 1}))), []);
    let list = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}}}});
    assert!(compile(&list).is_err(), "items of a plain list have no old value");
}

#[test]
fn old_values_and_ratcheting() {
    let mut fixture = with_rule("self.n < 5");
    let rules = compile(&fixture).expect("compiles");
    let old = object(json!({"n": 9, "s": "a"}));
    assert!(rules.validate(Some(&old), &old).is_empty(), "what did not change is not refused");
    assert_eq!(rules.validate(Some(&old), &object(json!({"n": 9, "s": "b"}))).len(), 1);
    fixture["x-kubernetes-validations"][0]["rule"] = json!("self.k == oldSelf.k");
    let rules = compile(&fixture).expect("compiles");
    let [one, two] = [json!({"id": "a", "v": 1}), json!({"id": "b", "v": 2})];
    let old = object(json!({"k": [one, two]}));
    assert!(rules.validate(None, &old).is_empty(), "there is no old value");
    assert!(
        rules.validate(Some(&old), &object(json!({"k": [two, one]}))).is_empty(),
        "a list map has no order"
    );
    assert_eq!(rules.validate(Some(&old), &object(json!({"k": [two]}))).len(), 1);
}

#[test]
fn failures_on_unchanged_values_are_warnings() {
    let rule = json!([{"rule": "self != 'bad'"}]);
    let text = json!({"type": "string", "maxLength": 9, "x-kubernetes-validations": rule});
    let list = json!({"type": "array", "maxItems": 9, "items": text});
    let map = json!({"type": "object", "maxProperties": 9, "additionalProperties": text});
    let rules = compile(&json!({"type": "object", "properties": {"a": text, "b": {"type": "string"}, "l": list, "m": map}})).expect("compiles");
    let old = object(json!({"a": "bad", "b": "1", "l": ["bad"]}));
    let verdict = rules.check(Some(&old), &object(json!({"a": "bad", "b": "2", "l": ["bad"]})));
    assert!(verdict.errors.is_empty() && verdict.warnings.len() == 2, "{verdict:?}");
    // Items of an atomic list have no old values.
    let verdict =
        rules.check(Some(&old), &object(json!({"a": "bad", "b": "1", "l": ["bad", "ok"]})));
    assert_eq!(
        (verdict.errors.len(), verdict.errors[0].field.as_str(), verdict.warnings.len()),
        (1, "spec.l[0]", 1)
    );
    assert_eq!(rules.check(None, &object(json!({"m": {"k": "bad"}}))).errors[0].field, "spec.m[k]");
}

#[test]
fn evaluation_errors_quote_no_values() {
    let rules = compile(&with_rule("self.n / 0 > self.m['secret-key']")).expect("compiles");
    let errors = rules.validate(None, &object(json!({"n": 77_777, "m": {}})));
    assert!(errors.len() == 1 && !errors[0].message.contains("77777"), "{errors:?}");
}

#[test]
fn fault_42_expression_bombs_are_refused_in_time() {
    let nested = format!("{}true{}", "(".repeat(5000), ")".repeat(5000));
    for harmless in [format!("{}true", "!".repeat(9001)), format!("{}1 > 0", "-".repeat(9001))] {
        // The parser folds these; they only need to terminate.
        let _ = compile(&with_rule(&harmless));
    }
    let bombs = [
        nested,
        vec!["self.n"; 2000].join(" + ") + " > 0",
        vec!["true"; 3000].join(" ? true : "),
        format!("{}[]{}.size() > 0", "[".repeat(4000), "]".repeat(4000)),
        format!("self{} == 1", ".a".repeat(7000)),
        "x".repeat(100_000),
    ];
    for bomb in bombs {
        let (compiled, steps) = work::counted(|| compile(&with_rule(&bomb)));
        assert!(compiled.is_err(), "{}", &bomb[..20]);
        let most = 10 * bomb.len() as u64;
        assert!(0 < steps && steps < most, "{}: {steps}", &bomb[..20]);
    }
}

#[test]
fn fault_42_cost_is_bounded_before_and_while_it_runs() {
    let mut spec = json!({"type": "object", "properties": {"l": {
        "type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y || x.contains(y)))"}],
    }}});
    let errors = compile(&spec).expect_err("unbounded");
    assert!(
        errors
            .iter()
            .all(|error| error.reason == ferrokube_apimachinery::field::FieldReason::Forbidden),
        "{errors:?}"
    );
    // The estimate trusts the schema's bound, the meter does not: the object may be older.
    spec["properties"]["l"]["maxItems"] = json!(10);
    spec["properties"]["l"]["items"]["maxLength"] = json!(10);
    let rules = compile(&spec).expect("bounded");
    let many: Vec<String> = (0..5000).map(|number| format!("item-{number}")).collect();
    spec["properties"]["l"]["x-kubernetes-validations"][0]["rule"] =
        json!("self.all(x, self.exists(y, x == y && y != 'none'))");
    let all = compile(&spec).expect("bounded").validate(None, &object(json!({"l": many})));
    assert!(
        all.len() == 1 && all[0].message.contains("call cost exceeds limit for rule: "),
        "{all:?}"
    );
    for growing in [
        "self.l.map(x, self.l.map(y, self.l.map(z, x + y + z)))",
        "self.l.map(x, self.l).map(y, y.map(z, self.l))",
    ] {
        let rule = format!("cel.bind(a, {growing}, a.map(b, a.map(c, a)).size() >= 0)");
        let rules = compile(
            &json!({"type": "object", "properties": {"l": spec["properties"]["l"]}, "x-kubernetes-validations": [{"rule": rule}]}),
        );
        let errors = rules.expect("compiles").validate(None, &object(json!({"l": many})));
        assert!(!errors.is_empty(), "{errors:?}");
    }
    assert_eq!(rules.validate(None, &object(json!({"l": ["a", "ab"]}))).len(), 1);
}

#[test]
fn fault_34_old_items_and_nodes_are_looked_up_not_searched() {
    let rules = compile(&json!({"type": "array", "maxItems": 20000, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
        "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "v": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.v == oldSelf.v"}]}}))
    .expect("bounded");
    let items = |reversed: bool| {
        (0..10_000)
            .map(|n| if reversed { 9_999 - n } else { n })
            .map(|n| json!({"id": n, "v": n}))
            .collect::<Vec<_>>()
    };
    let (errors, steps) = work::counted(|| {
        rules.validate(Some(&object(json!(items(false)))), &object(json!(items(true))))
    });
    assert!(errors.is_empty(), "{errors:?}");
    assert!((1..100_000).contains(&steps), "{steps}");

    // Deep, with a rule only at the bottom.
    let leaf = json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0"}]});
    let wide: ferrokube_apimachinery::document::Map =
        (0..2_000).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    let bottom = json!({"type": "object", "properties": wide});
    let deep = (0..150).fold(
        json!({"type": "object", "properties": {"leaf": leaf, "wide": bottom}}),
        |inner, _| json!({"type": "object", "properties": {"a": inner}}),
    );
    let schema = schema(&deep);
    let (compiled, steps) = work::counted(|| Rules::compile(&schema, "s"));
    assert!(compiled.expect("few rules").is_some());
    assert!(steps < 400_000, "{steps}");
}

#[test]
fn fault_42_defaults_share_one_budget() {
    // True, and below the cost of a call and of the estimate for the schema.
    let costly = |n: usize| {
        let rule = "self.all(x, self.all(y, x == y))";
        (
            format!("p{n}"),
            json!({"type": "array", "maxItems": 300, "items": {"type": "string", "maxLength": 1}, "default": vec!["x"; 300], "x-kubernetes-validations": [{"rule": rule}]}),
        )
    };
    let errors = |count: usize| {
        let properties: ferrokube_apimachinery::document::Map = (0..count).map(costly).collect();
        let spec = json!({"type": "object", "properties": properties});
        compile(&spec).expect("within the estimate").validate_defaults("s")
    };
    assert_eq!(errors(1), []);
    let spent = errors(60);
    let why = "validation failed due to running out of cost budget, no further validation rules will be run";
    assert!(spent.len() == 1 && spent[0].message.ends_with(why), "{spent:?}");
}

#[test]
fn the_deepest_expression_runs_on_a_small_stack() {
    let run = || {
        let deep = format!("{}self.n{} > 0", "(1 + ".repeat(70), ")".repeat(70));
        assert!(holds(&deep, json!({"n": 1})));
        let sum = vec!["self.n"; 150].join(" + ") + " > 0";
        assert!(holds(&sum, json!({"n": 1})));
        let either = vec!["self.n == 0"; 3000].join(" || ") + " || true";
        assert!(holds(&either, json!({"n": 1})));
        let loops = format!("{}true{}", "[1].all(x, ".repeat(60), ")".repeat(60));
        assert!(holds(&loops, json!({"n": 1})));
        let chosen = format!("{}true", "self.n == 0 ? false : ".repeat(60));
        assert!(holds(&chosen, json!({"n": 1})));
    };
    std::thread::Builder::new()
        .stack_size(1 << 20)
        .spawn(run)
        .expect("a thread")
        .join()
        .expect("it fits a stack of 1 MiB");
}

#[test]
fn types_after_an_error_match_cel_go() {
    let cases: [(&str, &[&str]); 11] = [
        (
            "[1, 'a'].contains('a')",
            &["found no matching overload for 'contains' applied to 'list(dyn).(string)'"],
        ),
        (
            "null / undefined == 1",
            &[
                "found no matching overload for '_/_' applied to '(null, !error!)'",
                "undeclared reference to 'undefined' (in container '')",
            ],
        ),
        (
            "duration(has(self.n.a)) == null",
            &[
                "found no matching overload for 'duration' applied to '(bool)'",
                "type 'int' does not support field selection",
            ],
        ),
        (
            "self.s.?a % null == 1",
            &[
                "type 'string' does not support field selection",
                "found no matching overload for '_%_' applied to '(optional_type(dyn), null)'",
            ],
        ),
        (
            "self.?zz || true",
            &["undefined field 'zz'", "expected type 'bool' but found 'optional_type(!error!)'"],
        ),
        (
            "true || string(true + -1)",
            &[
                "expected type 'bool' but found 'string'",
                "found no matching overload for '_+_' applied to '(bool, int)'",
            ],
        ),
        (".has(self.n) || .size('a') > 0", &["undeclared reference to '.has' (in container '')"]),
        (
            "(true && 'a') / [1] == 1",
            &[
                "expected type 'bool' but found 'string'",
                "found no matching overload for '_/_' applied to '(!error!, list(int))'",
            ],
        ),
        (
            "[1] < string(null)",
            &["found no matching overload for '_<_' applied to '(list(int), string)'"],
        ),
        (
            "type(1) + 1 == 2",
            &["found no matching overload for '_+_' applied to '(type(int), int)'"],
        ),
        (
            "self.s.a.map(x, x + 1) == 'a'",
            &[
                "type 'string' does not support field selection",
                "found no matching overload for '_==_' applied to '(list(int), string)'",
            ],
        ),
    ];
    for (rule, wanted) in cases {
        let errors = compile(&with_rule(rule)).expect_err(rule);
        let message = &errors[0].message;
        let found: Vec<&str> = message
            .split("ERROR: <input>:")
            .skip(1)
            .filter_map(|fault| fault.split_once(": ")?.1.lines().next())
            .collect();
        assert_eq!(found, wanted, "{rule}: {message}");
    }
}

#[test]
fn converting_an_unknown_type_to_string_is_a_string() {
    let spec = json!({"type": "object", "properties": {"port": {"x-kubernetes-int-or-string": true}},
        "x-kubernetes-validations": [{"rule": "self.port != 1", "messageExpression": "string(self.port)"}]});
    assert!(compile(&spec).is_ok());
}

#[test]
fn rules_apply_around_objects_with_unknown_fields() {
    let open = json!({"type": "object", "additionalProperties": true});
    let spec = json!({"type": "object", "maxProperties": 3, "additionalProperties": open, "x-kubernetes-validations": [{"rule": "self.all(k, k != 'v')"}]});
    let rules = compile(&spec).expect("nothing is said of the values");
    assert!(rules.validate(None, &object(json!({"k": {"x": 1}}))).is_empty());
    assert_eq!(rules.validate(None, &object(json!({"v": {}}))).len(), 1);
    assert!(compile(&json!({"type": "object", "additionalProperties": true, "x-kubernetes-validations": [{"rule": "self.x == 1"}]})).is_err());
}
