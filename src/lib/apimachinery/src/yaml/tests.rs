//! Tests of the YAML codec.

use super::*;
use crate::document::json;
use crate::json::tests::any_value;
use crate::work;
use proptest::prelude::*;

fn value(text: &str) -> Value {
    read_any(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}")).value
}

#[test]
fn reads_documents() {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: |\n    line one\n    line two\n  n: '5'\n  f: >-\n    folded\n    text\nlist:\n- a\n- b: c\n  d: [1, {e: f}]\n";
    let expected = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"},
        "data": {"k": "line one\nline two\n", "false": "5", "f": "folded text"}, "list": ["a", {"b": "c", "d": [1, {"e": "f"}]}]});
    assert_eq!(value(text), expected);
    assert_eq!(
        value("metadata: {name: a}\n---\nmetadata: {name: b}\n"),
        json!({"metadata": {"name": "a"}})
    );
    assert_eq!(value("%YAML 1.1\n---\nmetadata: {name: h}\n"), json!({"metadata": {"name": "h"}}));
    assert_eq!(value("---\n# only this\n...\n"), json!(null));
    assert_eq!(value("\u{feff}a: b"), json!({"a": "b"}));
    assert_eq!(value("{\"a\":\t1}"), json!({"a": 1}));
    assert_eq!(value("{\"a\":1, b: 2}"), json!({"a": 1, "b": 2}));
}

#[test]
fn resolves_scalars_as_go_does() {
    for (text, expected) in [
        ("yes", json!(true)),
        ("On", json!(true)),
        ("y", json!(true)),
        ("n", json!(false)),
        ("OFF", json!(false)),
        ("yEs", json!("yEs")),
        ("~", json!(null)),
        ("null", json!(null)),
        ("nULL", json!("nULL")),
        ("5", json!(5)),
        ("+5", json!(5)),
        ("-0", json!(0)),
        ("0755", json!(493)),
        ("08", json!(8)),
        ("0o17", json!(15)),
        ("0x1F", json!(31)),
        ("0b101", json!(5)),
        ("1_000", json!(1000)),
        ("1e3", json!(1000)),
        ("1.5", json!(1.5)),
        (".5", json!(0.5)),
        ("1.", json!(1)),
        ("1e400", json!("1e400")),
        ("1:30", json!("1:30")),
        ("0x", json!("0x")),
        ("2024-01-01", json!("2024-01-01")),
        ("18446744073709551615", json!(18_446_744_073_709_551_615_u64)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("99999999999999999999", json!(99_999_999_999_999_999_999.0)),
        ("'5'", json!("5")),
        ("\"yes\"", json!("yes")),
        ("!!str 5", json!("5")),
        ("!!int '5'", json!(5)),
        ("!!float 5", json!(5)),
        ("!!binary aGk=", json!("hi")),
        ("!foo 5", json!("5")),
        ("! 5", json!("5")),
        ("+", json!("+")),
        ("1.2.3", json!("1.2.3")),
    ] {
        assert_eq!(value(&format!("a: {text}"))["a"], expected, "{text}");
    }
}

#[test]
fn keys_become_strings() {
    assert_eq!(
        value("{1: x, true: y, 1.5: z, yes: w}"),
        json!({"1": "x", "true": "w", "1.5": "z"})
    );
    assert_eq!(value("&a a: *a"), json!({"a": "a"}));
    assert_eq!(value("a: &k key\n*k : v"), json!({"a": "key", "key": "v"}));
}

#[test]
fn merge_keys_and_aliases() {
    assert_eq!(
        value("base: &b {k: v}\ndata: {<<: *b, l: w}"),
        json!({"base": {"k": "v"}, "data": {"k": "v", "l": "w"}})
    );
    assert_eq!(
        value("x: &x {k: 1}\nz: &z {k: 2, l: 3}\nd:\n  <<: [*x, *z]\n"),
        json!({"x": {"k": 1}, "z": {"k": 2, "l": 3}, "d": {"k": 1, "l": 3}})
    );
    assert_eq!(value("{'<<': 1}"), json!({"<<": 1}));
}

#[test]
fn duplicates_are_named() {
    let read =
        read(b"metadata:\n  name: d\ndata:\n  k: '1'\n  k: '2'\nlist:\n- {}\n- {x: 1, x: 2}\n")
            .expect("well-formed");
    assert_eq!(read.duplicates, ["data.k", "list[1].x"]);
    assert_eq!(read.document.get(&["data", "k"]), Some(&json!("2")));
}

#[test]
fn refuses_malformed_text() {
    for text in [
        "metadata: [oops",
        "a: b: c",
        "a:\n\tb: c",
        "a: *none",
        "&a [*a]",
        "a: &a {b: *a}",
        "{a: b",
        "[a]: b",
        "{{a: b}: c}",
        "? [a]\n: b",
        "null: a",
        "a: 'x",
        "a: .nan",
        "a: !!int x",
        "a: !!binary '*'",
        "<<: 1",
        "<<: [1]",
        "a: \0",
        "a: \u{1}",
        "- a\nb: c",
        "a: b\n}",
        "%YAML",
        "a: \"\\x\"",
    ] {
        assert!(
            matches!(read_any(text.as_bytes()), Err(DecodeError::Syntax(_))),
            "{text:?}: {:?}",
            read_any(text.as_bytes())
        );
    }
    assert!(matches!(read(b"\xff: a"), Err(DecodeError::Syntax(_))));
    assert!(matches!(read(b"- a"), Err(DecodeError::NotObject("array"))));
    assert!(matches!(read(b""), Err(DecodeError::NotObject("null"))));
}

fn bomb(levels: usize) -> String {
    let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..levels {
        let aliases = vec![format!("*a{}", level - 1); 9].join(",");
        text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    text
}

#[test]
fn fault_34_alias_bombs_are_refused_quickly() {
    let ((), steps) = work::counted(read_alias_bombs);
    assert!(steps < 10_000_000, "{steps}");
}

fn read_alias_bombs() {
    assert!(matches!(read(bomb(9).as_bytes()), Err(DecodeError::TooManyAliases(_))));
    assert!(read(bomb(3).as_bytes()).is_ok());
    let long =
        format!("a: &a \"{}\"\nb: [{}]", "x".repeat(1_000_000), vec!["*a"; 10_000].join(","));
    assert!(matches!(read(long.as_bytes()), Err(DecodeError::TooManyAliases(_))));
    let chain: String = (1..3_000).map(|i| format!("a{i}: &a{i} [*a{}]\n", i - 1)).collect();
    let result = read(format!("a0: &a0 [x]\n{chain}").as_bytes());
    assert!(
        matches!(result, Err(DecodeError::TooManyAliases(_) | DecodeError::TooDeep)),
        "{result:?}"
    );
    let nested = format!(
        "a: {}x{} \nb: *a1",
        (1..400).map(|i| format!("[&a{i} ")).collect::<String>(),
        "]".repeat(399)
    );
    let _ = read(nested.as_bytes());
    let merges = format!(
        "b: &b {{{}}}\n{}",
        (0..1_000).map(|i| format!("k{i}: 1,")).collect::<String>(),
        (0..1_000).map(|i| format!("m{i}: {{<<: *b}}\n")).collect::<String>()
    );
    assert!(matches!(read(merges.as_bytes()), Err(DecodeError::TooManyAliases(_))));
}

/// Steps of reading a text, per byte.
fn steps_per_byte(text: &str) -> f64 {
    let (_, steps) = work::counted(|| read_any(text.as_bytes()).is_ok());
    steps as f64 / text.len() as f64
}

#[test]
fn fault_34_work_is_bounded_by_the_bytes() {
    let deep = |inner: &str| format!("{}{inner}{}", "[".repeat(200), "]".repeat(200));
    let levels: String = (0..300).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    let below = " ".repeat(300);
    let shapes = [
        ("repeated keys", format!("x:\n{}", " k:\n".repeat(100_000))),
        ("repeated keys far below", format!("{levels}{}", format!("{below}k:\n").repeat(1_000))),
        ("repeated keys in brackets", deep(&format!("{{{}}}", "k,".repeat(50_000)))),
        ("repeated keys in many lists", format!("[{}]", "{k,k},".repeat(30_000))),
        ("scalars", "- a\n".repeat(50_000)),
        ("merges", format!("b: &b {{k: v}}\n{}", "c: {<<: *b}\n".repeat(20_000))),
        ("anchors", format!("{}z: *a", "k: &a [x]\n".repeat(20_000))),
    ];
    for (name, text) in shapes {
        let steps = steps_per_byte(&text);
        assert!(steps <= 60.0, "{name}: {steps} steps for a byte");
    }
    // 64 paths of 512 keys, for any number of duplicates.
    let (read, steps) = work::counted(|| {
        read_any(format!("{levels}{}", format!("{below}k:\n").repeat(1_000)).as_bytes())
            .map(|read| read.duplicates)
    });
    assert_eq!(read.expect("well-formed").len(), 1);
    assert!(steps < 2 * 300 * 1_300 + 64 * 512, "{steps}");
}

#[test]
fn fault_34_open_collections_times_tokens_are_bounded() {
    let text = format!("{}{}{}", "[".repeat(250), "1,".repeat(10_000), "]".repeat(250));
    let (read, steps) = work::counted(|| read_any(text.as_bytes()).map(|_| ()));
    assert!(matches!(read, Err(DecodeError::TooMuchWork)), "{read:?}");
    assert!(steps < (31 * text.len() as u64).max(1_010_000), "{steps}");
}

#[test]
fn fault_34_depth_is_bounded() {
    for text in
        ["[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000), "? ".repeat(100_000)]
    {
        let result = read(text.as_bytes());
        assert!(
            matches!(result, Err(DecodeError::TooDeep | DecodeError::Syntax(_))),
            "{}: {result:?}",
            &text[..4]
        );
    }
    let block: String = (0..3_000).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    assert!(matches!(read(block.as_bytes()), Err(DecodeError::TooDeep)));
    // The parser itself stops at 255 flow collections.
    let fits = format!("{}1{}", "{a: ".repeat(250), "}".repeat(250));
    assert!(read(fits.as_bytes()).is_ok());
    assert!(read(b"[".repeat(1_500_000).as_slice()).is_err());
}

#[test]
fn fault_34_nothing_is_quadratic() {
    // 60 KiB each: quadratic behavior would take seconds in a debug build.
    for piece in [
        "a: ",
        "? a\n",
        "- - ",
        "&a ",
        "*a ",
        "!a ",
        "'a' ",
        "\"a\" ",
        "a ",
        "a\n",
        "[a, ",
        "[[], ",
        "{a, ",
        "{}: ",
        "# a\n",
        "|\n",
        "%a\n",
        "--- ",
        "...\n",
        "\n",
        " ",
        "\t",
        "a,",
        "::",
        "-\n",
        "x: y\n",
        "\n  a",
        "k: |\n a\n",
        ", ",
    ] {
        let text = piece.repeat(60_000 / piece.len());
        for text in [text.clone(), format!("[{text}"), format!("a: \"{text}")] {
            let steps = steps_per_byte(&text);
            assert!(steps <= 60.0, "{piece:?} {}: {steps} steps for a byte", &text[..3]);
        }
    }
}

#[test]
fn writes_block_style() {
    let object = json!({"kind": "A", "data": {"five": "5", "yes": "yes", "empty": "", "text": "one\ntwo\n", "colon": "a: b", "date": "2024-01-01", "url": "http://a/b#c", "tab": "a\tb",
        "quote": "'", "dash": "- a", "nothing": null}, "list": [{"a": 1, "b": [true, []]}, [1, [2]], {}], "spec": {}});
    let expected = concat!(
        "data:\n  colon: 'a: b'\n  dash: '- a'\n  date: \"2024-01-01\"\n  empty: \"\"\n  five: \"5\"\n  nothing: null\n  quote: ''''\n  tab: \"a\\tb\"\n  text: |\n    one\n    two\n",
        "  url: http://a/b#c\n  \"yes\": \"yes\"\nkind: A\nlist:\n- a: 1\n  b:\n  - true\n  - []\n- - 1\n  - - 2\n- {}\nspec: {}\n"
    );
    assert_eq!(String::from_utf8(to_vec(&object)).expect("utf-8"), expected);
    assert_eq!(value(expected), object);
    assert_eq!(to_vec(&json!("a")), b"a\n");
}

proptest! {
    #[test]
    fn writing_then_reading_is_identity(value in any_value()) {
        let text = to_vec(&value);
        let read = reader::parse(super::text(&text).expect("printable"), crate::heap::yaml_room(&text));
        let read = read.map_err(|error| TestCaseError::fail(format!("{error}: {:?}", String::from_utf8_lossy(&text))))?;
        prop_assert_eq!(read.value, value, "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn strings_keep_their_type(text in "[-+0-9a-fyYnNoOsx.:_~'\"#|>&*!%@`?,\\[\\]{} \n\t=<]{0,12}", key in "[-0-9yn.: '#\n]{0,4}") {
        let object = json!({ key: [text.clone(), {"a": text}] });
        let written = to_vec(&object);
        let read = read_any(&written).map_err(|error| TestCaseError::fail(format!("{error}: {:?}", String::from_utf8_lossy(&written))))?;
        prop_assert_eq!(read.value, object, "{}", String::from_utf8_lossy(&written));
    }

    #[test]
    fn fuzz_arbitrary_text_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100), text in "[ab0:\\-?,\\[\\]{}#&*!|>'\"%@ \t\n\\\\<~.\u{85}\u{2028}\u{e9}]{0,60}") {
        let _ = read(&bytes);
        let _ = read(text.as_bytes());
    }
}

#[test]
fn duplicate_keys_are_reported_with_their_lines() {
    let body = b"a: 1\nb:\n  c: {d: 1, d: 2}\n  c: x\n\n- x\na: [a, {b: 1, b: 1}]\n";
    assert_eq!(
        repeated_keys(body),
        ["line 3: key \"d\" already set in map", "line 4: key \"c\" already set in map"],
        "up to where it is no YAML"
    );
    assert_eq!(
        repeated_keys(b"{\"kind\": \"x\", \"kind\": \"y\"}"),
        ["line 1: key \"kind\" already set in map"]
    );
    assert_eq!(repeated_keys(b"x: &a {b: 1}\ny: *a\nz:\n  <<: *a\n  <<: *a\n"), [""; 0]);
    assert_eq!(repeated_keys(&b"a: 1\n".repeat(4000)), [""; 0]);
}

#[test]
fn fault_41_indentation_is_bounded_however_deep_a_value_is() {
    let leaves = json!(vec![0; 6_000]);
    let deep = (0..100).fold(
        json!({"l": leaves.clone(), "m": "a\n".repeat(6_000)}),
        |inner, _| json!({"a": [inner]}),
    );
    let text = to_vec(&deep);
    assert!(text.len() <= (1 << 20) + 6 * crate::json::to_vec(&deep).len(), "{}", text.len());
    // Flow style reads the same, and is JSON.
    let (list, lines) =
        (String::from_utf8_lossy(&crate::json::to_vec(&leaves)).into_owned(), "a\\n".repeat(6_000));
    let text = String::from_utf8(text).expect("utf-8");
    assert!(text.contains(&format!("l: {list}\n")) && text.ends_with(&format!("m: \"{lines}\"\n")));
    // Shallow values are in block style, however long.
    let flat = to_vec(&json!({ "a": leaves }));
    assert_eq!(flat.len(), "a:\n".len() + 6_000 * "- 0\n".len());
}

#[test]
fn fault_34_a_scan_without_an_event_gives_way() {
    // Anything before the end of the list may be its key: no event comes until the scan is ended.
    let text = format!("# x\n[{}]", "a,".repeat(100_000));
    let given = work::tests::times_given_way(|| {
        assert!(matches!(read_any(text.as_bytes()), Err(DecodeError::TooLarge)));
    });
    assert!(given > 100, "{given}");
}
