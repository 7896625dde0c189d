//! Estimated costs of rules, as kube-apiserver has them.

use ferrokube_apimachinery::document::{Value, json};
use ferrokube_cel::Rules;
use ferrokube_schema::custom::{SchemaContext, from_json_schema};
use std::sync::Arc;

fn schema() -> Value {
    let text = |most: u64| json!({"type": "string", "maxLength": most});
    let list = |items: Value| json!({"type": "array", "maxItems": 10, "items": items});
    let map = |most: u64, values: Value| json!({"type": "object", "maxProperties": most, "additionalProperties": values});
    json!({
        "type": "object",
        "properties": {
            "s": text(10),
            "us": {"type": "string"},
            "e": {"type": "string", "enum": ["a", "bbbb"]},
            "n": {"type": "integer"},
            "d": {"type": "number"},
            "b": {"type": "boolean"},
            "l": list(text(10)),
            "ul": {"type": "array", "items": {"type": "string"}},
            "li": {"type": "array", "maxItems": 100, "items": {"type": "integer"}},
            "m": map(10, text(10)),
            "um": {"type": "object", "additionalProperties": {"type": "integer"}},
            "o": {"type": "object", "properties": {"p": text(20), "q": text(30)}},
            "lo": list(json!({
                "type": "object",
                "required": ["k"],
                "properties": {"k": text(40), "v": text(50), "mm": map(5, text(10))},
            })),
            "ulo": {"type": "array", "items": {"type": "object", "required": ["k"], "properties": {"k": text(40)}}},
            "t": {"type": "string", "format": "date-time"},
            "y": {"type": "string", "format": "byte", "maxLength": 50},
            "x": {"x-kubernetes-int-or-string": true},
            "namespace": text(10),
        },
    })
}

/// The error about the cost of a rule that loops over `most` items.
fn cost(rule: &str, most: u64) -> String {
    refusal(&json!({"rule": format!("self.big.all(zz, {rule})")}), most)
}

/// The error about a rule where `big` has `most` items.
fn refusal(rule: &Value, most: u64) -> String {
    let mut spec = schema();
    spec["properties"]["big"] =
        json!({"type": "array", "maxItems": most, "items": {"type": "integer"}});
    spec["x-kubernetes-validations"] = json!([rule]);
    let root = json!({"type": "object", "properties": {"spec": spec}});
    let context = SchemaContext { path: "s", ..SchemaContext::default() };
    let schema = Arc::new(from_json_schema(&root, &context).expect("a structural fixture"));
    let errors = Rules::compile(&schema, "s").map(|_| ()).expect_err("above the limit");
    errors[0].message.clone()
}

/// By how much a loop over that number of items exceeds the limit of one rule, and the loop's body.
const COSTS: &str = r#"
1.080000 3600000 true
1.227273 2045455 self.s == 'a'
1.250000 2500000 self.n == 3
1.237500 1125000 self.us == self.s
1.227273 2045455 self.e == 'x'
1.265625 1406250 self.s.contains('abc')
1.260000 1800000 self.s.startsWith('abcabcabcabcabc')
1.250000 833333 self.s.matches('^[a-z]+$')
1.227273 2045455 matches(self.s, '^[a-z]+$')
1.258360 40 self.s + self.us == self.s
1.247524 222772 self.l.all(x, x == 'a')
1.247902 189076 self.l.exists(x, x == 'a')
1.251479 266272 self.l.exists_one(x, x == 'a')
1.188000 60000 self.l.map(x, x + 'b').size() == 3
1.308000 60000 self.l.map(x, x == 'b', x + 'b').size() == 3
1.008000 60000 self.l.filter(x, x == 'b').size() == 3
1.422000 60000 self.l.map(x, x + 'b').all(y, y.contains('ab'))
1.246987 271084 self.m.all(k, k == 'a')
1.248691 117801 self.m.all(k, self.m[k] == 'aaaaaaaaaaaaaaaaaaaaaaaaa')
1.248179 164234 self.m.all(k, v, v == 'aaaaaaaaaaaaaaaaaaaaaaaaa')
1.248557 130058 self.l.all(i, v, i > 2 && v == 'aaaaaaaaaaaaaaaaaaaaaaaaa')
1.188000 60000 self.l.transformList(i, v, v + 'a').size() == 3
1.308000 60000 self.l.transformList(i, v, i > 1, v + 'a').size() == 3
1.249459 97614 self.m.transformMap(k, v, v + 'a').size() == 3
1.249494 90543 self.m.transformMap(k, v, k == 'a', v + 'a').size() == 3
1.232620 32609 self.m.transformMapEntry(k, v, {k: v}).size() == 3
1.265230 32609 self.m.transformMapEntry(k, v, k == 'a', {k: v}).size() == 3
1.250000 2500000 has(self.o.p)
1.241380 1551724 has(self.s) ? self.s == 'a' : self.us == 'aaaaaaaaaaaaaaaaaaaa'
1.227273 2045455 self.?s.hasValue()
1.237500 1125000 self.?s.orValue('a') == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
huge 1 self.?s.optMap(x, x + 'a').hasValue()
huge 1 self.?s.optFlatMap(x, optional.of(x + 'a')).hasValue()
1.255815 523256 self.?n.optMap(x, x + 1).orValue(3) == 3
huge 1 self.o.?p.optMap(v, v.contains('aaaaaaaaaaaaaaaaaaaaaaaaaaaaa')).orValue(false)
1.250000 1250000 self.?o.p.orValue('a') == 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
1.237500 1125000 self.?l[0].orValue('x') == 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
1.237500 1125000 self.l[?0].orValue('x') == 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
1.250000 1250000 self.l[0] == 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
1.250000 1250000 self.m['a'] == 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
1.237500 1125000 self.m.a == 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
1.254099 737705 ['a', 'bbbbbbbbbbbbbbbbbbbbb'][0] == 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
1.251880 338346 {'a': 'bbbbbbbbbbbbbbbbbbbbb'}['a'] == 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'
1.260000 1800000 type(self.s) == string
1.260000 1800000 type(self.x) == int
1.227273 2045455 self.x == 'abc'
1.265625 1406250 dyn(self.s) == 'abcabcabcabcabcabcabcabc'
1.260000 900000 string(self.y) == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.250000 833333 bytes(self.s) == b'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.255815 1046512 string(self.n) == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.258336 40 string(self.x) == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.260000 1800000 int(self.s) == 3
1.260000 1800000 self.t == timestamp('2020-01-01T00:00:00Z')
1.260000 1800000 self.t > timestamp('2020-01-01T00:00:00Z')
1.265625 1406250 self.s < 'abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc'
1.241380 775862 self.l == ['a', 'b']
1.257354 661765 self.l + ['a'] == self.l
1.250002 227273 self.l.isSorted()
1.250004 119048 self.li.isSorted()
1.248691 117801 self.li.sum() == 3
1.248691 117801 self.li.max() == 3
1.252358 212264 self.l.max() == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.247524 222772 self.l.indexOf('a') == 1
1.250000 1250000 self.s.indexOf('a') == 1
1.250000 1250000 self.s.lastIndexOf('a', 2) == 1
1.244681 957447 self.s.lowerAscii() == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.243421 592105 self.s.replace('a', 'bb') == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.244680 478723 self.s.replace('', 'bb') == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.254099 737705 self.s.replace('abc', 'b') == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.250000 833333 self.s.split(',').size() == 3
1.044000 60000 self.s.split(',').all(x, x == 'aaaaaaaaaaaaaaaaaa')
1.244680 478723 self.s.split(',', 3).all(x, x == 'aaaaaaaaaaaaaaaaaa')
1.247282 244565 self.l.join(',') == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.250000 250000 self.l.join() == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.260000 900000 self.s.find('a+') == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.255815 1046512 self.s.findAll('a+').size() == 1
1.260000 1800000 self.s.charAt(1) == 'a'
1.244681 957447 self.s.substring(1) == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.250000 1250000 self.s.trim() == 'a'
1.254099 737705 '%s'.format([self.s]) == 'a'
1.246155 692308 strings.quote(self.s) == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.254099 737705 isURL(self.s) && url(self.s).getHost() == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.237500 1125000 url(self.s) == url('http://a')
1.254099 737705 isIP(self.s) && ip(self.s).family() == 4
1.237500 1125000 ip(self.s) == ip('1.2.3.4')
1.244681 957447 ip.isCanonical(self.s)
1.260000 900000 cidr(self.s).containsIP('1.2.3.4')
1.260000 900000 cidr(self.s).containsIP(ip('1.2.3.4'))
1.254099 737705 cidr(self.s).containsCIDR('1.2.3.4/24')
1.255815 1046512 cidr(self.s).ip().family() == 4
1.254099 737705 isQuantity(self.s) && quantity(self.s).isGreaterThan(quantity('1'))
1.237500 1125000 quantity(self.s) == quantity('1')
huge 1 quantity(self.s) != quantity('1')
1.237500 1125000 semver(self.s) == semver('1.2.3')
1.265625 1406250 isSemver(self.s)
1.248984 91837 !format.dns1123Label().validate(self.s).hasValue()
1.260000 1800000 format.named(self.s).hasValue()
1.255815 1046512 format.dns1123Label() == format.uuid()
1.250000 833333 'a' in self.l
1.227273 2045455 'a' in self.m
1.241380 775862 'a' in ['a', 'b', 'c']
1.246155 346154 sets.contains(self.l, ['a', 'b'])
1.247524 222772 sets.equivalent(self.l, ['a', 'b'])
1.249355 115681 sets.intersects(self.l, self.l)
1.243421 592105 self.l.slice(0, 3).size() == 1
1.250001 416667 self.l.slice(0, self.n).size() == 1
1.247526 445545 self.l.reverse().size() == 1
1.308000 60000 self.l.distinct().size() == 1
1.368000 60000 self.l.sort().size() == 1
1.251125 625 self.li.sort().size() == 1
1.242403 32609 self.l.sortBy(x, x.size()).size() == 1
1.243263 28846 self.l.sortBy(x, x + 'a').size() == 1
1.237500 31250 self.lo.sortBy(x, x.k)[0].k == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.252173 391304 [self.l, self.l].flatten().size() == 1
1.251655 298013 [[self.l, self.l]].flatten(2).size() == 1
1.243421 592105 lists.range(5).size() == 5
1.250659 20270 self.l.distinct().all(x, x == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaa')
1.260000 1800000 self.l.first().hasValue()
1.250000 1250000 self.l.first().orValue('a') == 'aaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.416000 60000 self.lo.all(x, x.k == x.v)
1.232839 23438 self.lo.all(x, x.k + x.v == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')
1.249721 5282 self.lo.all(x, self.lo.all(y, x.k == y.k))
1.182000 60000 self.lo.map(x, x.k).all(y, y == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')
1.222069 44118 self.lo.filter(x, x.k == 'a').all(y, y.k == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')
1.104000 60000 self.lo.filter(x, x.k == 'a')[0].k == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.249491 7732 self.lo.all(x, x.mm.all(k, x.mm[k].contains('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')))
1.244680 478723 [self.s, self.us].all(x, x == 'aaaaaaaaaaaaaaaaaaaaaaaaaaa')
1.253164 569620 [1, 2].all(x, x == 1)
1.248175 328467 {'a': 1}.all(k, k == 'aaaaaaaaaaaaaaaa')
1.248175 328467 {'a': 'b'}.all(k, v, v == 'aaaaaaaaaaaaaaaaaaaaaaaaaaa')
1.250000 1250000 self.namespace == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.265625 1406250 self.__namespace__ == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.255815 1046512 (self.b ? self.s : self.us) == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.241380 775862 (self.b ? self.l : ['a'])[0] == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.254099 737705 (self.b ? ['bbb'] : ['a'])[0] == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.255815 1046512 self.d > 1.0 || self.n < 5 && !self.b
1.260000 1800000 self.n + 1 == 3
1.241380 1551724 self.n * 2 - 1 >= 3
1.260000 1800000 -self.n == 3
1.237500 1125000 size(self.l) == 3 && self.s.size() == 3
1.227273 2045455 self.y == b'aaa'
1.078536 3 self.um.all(k, self.um[k] > 3)
1.048577 2 self.ul.all(x, x == 'abc')
1.132462 4 self.ulo.all(x, x.k == 'abcabcabcabcabcabcabcabcabcabcabc')
1.258308 20 self.x + self.x == 'aaa'
1.227273 2045455 self.x < 3
1.241380 775862 self.x in ['a']
1.241380 775862 'a' in dyn(self.l)
1.260000 1800000 dyn(self.l)[0] == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
1.251479 266272 dyn(self.l).all(x, x == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')
1.243421 592105 dyn([self.s]).all(x, x == 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')
1.260000 1800000 self.t.getFullYear() > 2000
1.241380 1551724 duration(self.s) > duration('1h')
"#;

#[test]
fn estimated_costs_are_those_of_kube_apiserver() {
    for line in COSTS.lines().filter(|line| !line.is_empty()) {
        let (factor, rest) = line.split_once(' ').expect("a factor");
        let (most, rule) = rest.split_once(' ').expect("a number of items");
        let factor = if factor == "huge" { "more than 100" } else { factor };
        let wanted =
            format!("Forbidden: estimated rule cost exceeds budget by factor of {factor}x ");
        let message = cost(rule, most.parse().expect("a number"));
        assert!(message.starts_with(&wanted), "{line}: {message}");
    }
}

#[test]
fn the_cost_of_a_message_is_bounded_too() {
    let message = "self.big.all(zz, true) ? 'a' : 'b'";
    let why = refusal(&json!({"rule": "true", "messageExpression": message}), 3_600_000);
    let wanted = "Forbidden: estimated messageExpression cost exceeds budget by factor of 1.08";
    assert!(why.starts_with(wanted), "{why}");
}
