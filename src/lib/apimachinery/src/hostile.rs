//! Adversarial bodies of the maximal size: the counted work of each parser and merger is a small
//! multiple of the bytes. Anything quadratic would be a million times that.

use crate::document::{Value, json as value};
use crate::json;
use crate::patch::merge_patch;
use crate::protobuf::{Messages, envelope};
use crate::selector::{CompiledLabels, FieldSelector, LabelSelector};
use crate::work::counted;

/// Bytes of a body, as kube-apiserver accepts them.
const SIZE: usize = 3 << 20;

/// An input, and how many steps each of its bytes may cost.
struct HostileInput {
    name: &'static str,
    bytes: Vec<u8>,
    most: u64,
}

fn input(name: &'static str, most: u64, bytes: impl Into<Vec<u8>>) -> HostileInput {
    HostileInput { name, bytes: bytes.into(), most }
}

/// `begin`, as many of the numbered pieces as fit, `end`.
fn filled(begin: &str, piece: impl Fn(usize) -> String, end: &str) -> String {
    let mut text = begin.to_owned();
    for number in 0.. {
        let piece = piece(number);
        if text.len() + piece.len() + end.len() > SIZE {
            break;
        }
        text.push_str(&piece);
    }
    text + end
}

/// An object with 62 fields in falling order, each of which is inserted before all others.
fn falling() -> String {
    let keys = (b'0'..=b'z').rev().filter(u8::is_ascii_alphanumeric);
    let fields: Vec<String> = keys.map(|key| format!("\"{}\":0", char::from(key))).collect();
    format!("{{{}}}", fields.join(","))
}

fn json_bodies() -> Vec<HostileInput> {
    let (deep, falling) = ("[".repeat(500) + &"]".repeat(500), falling());
    let levels = "{\"k\":".repeat(500);
    let long_key = "k".repeat(SIZE / 2);
    vec![
        input("values", 1, filled("[0", |_| ",0".into(), "]")),
        input("empty maps", 1, filled("[{}", |_| ",{}".into(), "]")),
        input("nesting", 1, filled("[0", |_| format!(",{deep}"), "]")),
        input("one map", 1, filled("{\"\":0", |at| format!(",\"{}\":0", usize::MAX - at), "}")),
        input("falling keys", 6, filled("[0", |_| format!(",{falling}"), "]")),
        input("escapes", 1, filled("[\"", |_| "\\u0041\\n".into(), "\"]")),
        input("digits", 1, filled("[1", |_| "1".into(), "]")),
        input("spaces", 1, filled("[", |_| " ".into(), "1]")),
        input("duplicates", 1, filled("{\"a\":0", |_| ",\"a\":0".into(), "}")),
        input("duplicate maps", 2, filled("[0", |_| ",{\"a\":0,\"a\":0}".into(), "]")),
        input(
            "duplicates far below",
            1,
            filled(&format!("{levels}{{\"a\":0"), |_| ",\"a\":0".into(), &"}".repeat(501)),
        ),
        // The path of each of 64 duplicates is made of the long key.
        input(
            "duplicates below a long key",
            64,
            filled(&format!("{{\"{long_key}\":{{\"a\":0"), |_| ",\"a\":0".into(), "}}"),
        ),
        input("no end", 1, filled("[", |_| "{\"a\":[".into(), "")),
    ]
}

/// A length-delimited protobuf field.
fn field(number: u8, payload: &[u8]) -> Vec<u8> {
    let (mut bytes, mut length) = (vec![number << 3 | 2], payload.len());
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    [bytes.as_slice(), payload].concat()
}

fn many(piece: &[u8]) -> Vec<u8> {
    piece.repeat(SIZE / piece.len())
}

/// Bare ConfigMaps.
fn protobuf_bodies() -> Vec<HostileInput> {
    let label = |at: usize| {
        let key = field(1, format!("{at:06}").as_bytes());
        field(11, &[key, field(2, b"v")].concat())
    };
    let labels: Vec<u8> = (0..SIZE / label(0).len()).flat_map(label).collect();
    let data = |at: usize| field(2, &field(1, format!("{at:06}").as_bytes()));
    vec![
        input("metadata in small parts", 1, many(&field(1, &field(1, b"a")))),
        input("labels of one metadata", 1, field(1, &labels)),
        input(
            "labels in metadata of their own",
            1,
            (0..SIZE / 20).flat_map(|at| field(1, &label(at))).collect::<Vec<u8>>(),
        ),
        input("data", 1, (0..SIZE / 10).flat_map(data).collect::<Vec<u8>>()),
        input("one key", 1, many(&data(0))),
        input("unknown fields", 1, many(&[15 << 3, 0])),
        // Seconds and nanoseconds are searched for separately.
        input("parts of a time", 2, field(1, &field(8, &many(&[1 << 3, 1])))),
        input("managed fields", 1, field(1, &many(&[0x8a, 0x01, 0x00]))),
        input("no end", 1, many(&[0xff])),
    ]
}

/// Merge patches; each meets itself without nulls as the target.
fn merge_patches() -> Vec<HostileInput> {
    let levels = |inner: &str| format!("{}{inner}{}", "{\"k\":".repeat(500), "}".repeat(500));
    let below = levels("null");
    vec![
        input("many fields", 1, filled("{\"\":0", |at| format!(",\"k{at}\":0"), "}")),
        input("removals", 1, filled("{\"\":null", |at| format!(",\"k{at}\":null"), "}")),
        input("deep fields", 1, filled("{\"\":0", |at| format!(",\"{at}\":{below}"), "}")),
        input("nulls in a list", 1, filled("{\"a\":[0", |_| ",{\"b\":null}".into(), "]}")),
        input("values in a list", 1, filled("[0", |_| ",[]".into(), "]")),
    ]
}

fn label_selectors() -> Vec<HostileInput> {
    vec![
        input("requirements", 2, filled("a", |at| format!(",k{at}"), "")),
        input("values", 2, filled("a in (b", |at| format!(",v{at}"), ")")),
        input("empty values", 2, filled("a in (", |_| ",".into(), ")")),
        input("a long key", 2, filled("a", |_| "a".into(), "=b")),
        input("a long value", 2, filled("a=", |_| "b".into(), "")),
        input("spaces", 2, filled("a", |_| " ".into(), "=b")),
        input("signs", 2, filled("!", |_| "!".into(), "a")),
        input("ends", 2, filled("a", |_| "\0".into(), "=b")),
    ]
}

fn field_selectors() -> Vec<HostileInput> {
    vec![
        input("terms", 1, filled("a=b", |at| format!(",k{at}=v"), "")),
        input("empty terms", 1, filled("a=b", |_| ",".into(), "")),
        input("escapes", 1, filled("a=", |_| "\\,".into(), "")),
        input("no sign", 1, filled("a", |_| "a".into(), "")),
    ]
}

/// Runs each input, and asserts that its work was counted and is bounded by its bytes.
fn bounded(of: &str, inputs: Vec<HostileInput>, run: impl Fn(&[u8])) {
    for HostileInput { name, bytes, most } in inputs {
        let ((), steps) = counted(|| run(&bytes));
        let length = bytes.len() as u64;
        assert!(steps > 0, "{of}: {name} is not counted");
        assert!(steps <= most * length + 1_000, "{of}: {name}: {steps} steps for {length} bytes");
    }
}

#[test]
fn fault_34_the_work_of_each_parser_is_a_small_multiple_of_the_bytes() {
    bounded("JSON", json_bodies(), |body| drop(json::read_any(body)));
    let messages = Messages::parse(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../resources/data/protobuf.tsv"
    )))
    .expect("the committed table parses");
    bounded("protobuf", protobuf_bodies(), |raw| {
        let body = envelope("v1", "ConfigMap", raw);
        drop(messages.read("k8s.io.api.core.v1.ConfigMap", &body));
    });
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("a selector is text");
    bounded("label selector", label_selectors(), |input| {
        drop(LabelSelector::parse(&text(input)));
    });
    bounded("field selector", field_selectors(), |input| {
        drop(FieldSelector::parse(&text(input)));
    });
}

#[test]
fn fault_34_the_work_of_a_merge_patch_is_bounded_by_its_bytes() {
    for patch in merge_patches() {
        let body = json::read_value(&patch.bytes).expect("a patch");
        let filled = String::from_utf8(patch.bytes.clone()).expect("JSON").replace("null", "0");
        let filled = json::read_value(filled.as_bytes()).expect("a target");
        for target in [filled, Value::Null, value!({})] {
            let kind = if target.is_null() { "on null" } else { "on an object" };
            let input = input(patch.name, patch.most, patch.bytes.clone());
            bounded(&format!("merge patch {kind}"), vec![input], |_| {
                merge_patch(&mut target.clone(), &body);
            });
        }
    }
}

/// 1,000 terms and 20,000 values: the most that is accepted, against labels of a whole body.
#[test]
fn fault_34_the_work_of_a_match_is_bounded_by_the_labels() {
    let values: Vec<String> = (0..100).map(|at| format!("v{at}")).collect();
    let terms: Vec<String> =
        (0..199).map(|at| format!("k{} notin ({})", at % 7, values.join(","))).collect();
    let text = terms.join(",");
    let parsed = LabelSelector::parse(&text).expect("within the limits");
    let (compiled, steps) = counted(|| CompiledLabels::new(&parsed));
    assert!((19_900..=2 * 19_900).contains(&steps), "{steps} steps to compile");
    let labels = filled("{\"\":\"\"", |at| format!(",\"k{at:07}\":\"v\""), "}");
    let ((matches, seen), steps) = counted(|| compiled.matches(Some(labels.as_bytes())));
    assert!(matches && steps == seen as u64, "{steps} steps for {seen} labels");
    assert!(seen < SIZE / 10, "{seen}");
}
