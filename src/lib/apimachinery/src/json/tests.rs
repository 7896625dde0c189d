//! Tests of the JSON codec.

use super::*;
use crate::document::json;
use crate::work;
use proptest::prelude::*;

fn value(text: &str) -> Value {
    read_value(text.as_bytes()).expect(text)
}

/// The value as serde_json's type.
fn theirs(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(integer), _) => integer.into(),
            (_, Some(integer)) => integer.into(),
            _ => number.as_f64().into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(theirs).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.to_string(), theirs(value))).collect()
        }
    }
}

#[test]
fn reads_what_serde_json_reads() {
    for text in [
        r#"{"a":[1,-2,3.5,1e-3,true,false,null,"x\n\u0041\ud83d\ude00",{}],"b":{"c":[]}}"#,
        " [ 1 , 2 ] ",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "18446744073709551615",
        "-9223372036854775808",
        "0.1",
        "123456789012345678901234567890",
    ] {
        assert_eq!(
            theirs(&value(text)),
            serde_json::from_str::<serde_json::Value>(text).expect(text)
        );
    }
    assert_eq!(value("-0"), json!(0));
}

#[test]
fn refuses_malformed_text() {
    let cases = [
        "",
        " ",
        "{",
        "[",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "[1,]",
        "[1 2]",
        "{a:1}",
        "{\"a\" 1}",
        "01",
        "1.",
        ".5",
        "1e",
        "+1",
        "--1",
        "tru",
        "nul",
        "\"",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\n\"",
        "\"\0\"",
        "1 2",
        "{}x",
        "[}",
        "{]",
        "\u{feff}{}",
        "NaN",
        "'a'",
    ];
    for text in cases {
        assert!(matches!(read_value(text.as_bytes()), Err(DecodeError::Syntax(_))), "{text:?}");
    }
}

#[test]
fn only_objects_are_documents() {
    for (text, name) in
        [("null", "null"), ("[]", "array"), ("1", "number"), ("\"\"", "string"), ("true", "bool")]
    {
        assert!(
            matches!(read(text.as_bytes()), Err(DecodeError::NotObject(found)) if found == name),
            "{text}"
        );
    }
}

#[test]
fn the_last_duplicate_wins_and_is_reported() {
    let read = read(br#"{"metadata":{"name":"a","name":"b"},"data":{"k":"1","k":"2","k":"3"},"l":[{},{"x":1,"x":2}]}"#).expect("well-formed");
    assert_eq!(
        read.document.into_value(),
        json!({"metadata": {"name": "b"}, "data": {"k": "3"}, "l": [{}, {"x": 2}]})
    );
    assert_eq!(read.duplicates, ["metadata.name", "data.k", "l[1].x"]);
    let many: String = (0..50).map(|i| format!("\"k{i}\":1,\"k{i}\":2,")).collect();
    let many = format!("{{{many}\"end\":1}}");
    assert_eq!(super::read(many.as_bytes()).expect("well-formed").duplicates.len(), MAX_DUPLICATES);
}

#[test]
fn fault_34_reading_gives_way_at_each_value() {
    for body in ["[0,0,0,0]", r#"{"a":0,"b":0,"c":0,"d":0}"#, "[[[[0]]]]"] {
        let (read, breaths) = work::breaths(|| read_value(body.as_bytes()));
        assert!(read.is_ok() && breaths == 5, "{body}: {breaths}");
    }
}

#[test]
fn fault_35_depth_is_bounded_without_the_stack() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(read_value(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert!(matches!(read_value(nested(MAX_DEPTH + 1).as_bytes()), Err(DecodeError::TooDeep)));
    assert!(matches!(read_value("[".repeat(1_500_000).as_bytes()), Err(DecodeError::TooDeep)));
    assert!(matches!(read_value("{\"a\":".repeat(600_000).as_bytes()), Err(DecodeError::TooDeep)));
    let stored = format!("{{\"x\":{}1{}}}", "{\"a\":".repeat(500), "}".repeat(500));
    assert!(read(stored.as_bytes()).is_ok());
}

#[test]
fn invalid_utf8_becomes_replacement_characters() {
    assert_eq!(
        read_value(b"{\"k\":\"\xff\xfe\"}").expect("read"),
        json!({"k": "\u{fffd}\u{fffd}"})
    );
    assert_eq!(read_value(b"\"\xe2\x82\"").expect("read"), json!("\u{fffd}\u{fffd}"));
    assert_eq!(read_value(b"\"\\ud800\\u0041\\udc00\"").expect("read"), json!("\u{fffd}A\u{fffd}"));
    assert!(read_value(b"\xff{}").is_err());
}

#[test]
fn canonical_bytes_and_their_forms() {
    let object = json!({"data": {"k": "v"}, "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a", "resourceVersion": "7", "labels": {"l": "\"x"}, "uid": "u"}});
    let document = Document::from_value(object).expect("an object");
    let (bytes, layout) = write(&document);
    let text = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","uid":"u","labels":{"l":"\"x"}},"data":{"k":"v"}}"#;
    assert_eq!(std::str::from_utf8(&bytes).expect("utf-8"), text);
    let spliced = forms::splice_revision(&bytes, &layout, 42);
    let splice = forms::revision_length(layout.comma(), 42);
    assert_eq!(spliced.len(), bytes.len() + splice);
    let mut expected = document.into_value();
    expected["metadata"]["resourceVersion"] = json!("42");
    assert_eq!(read_value(&spliced).expect("well-formed"), expected);
    assert_eq!(
        read_value(forms::metadata(&spliced, &layout, splice)).expect("well-formed"),
        expected["metadata"]
    );
    let item = [b"{", forms::item(&spliced, &layout)].concat();
    assert_eq!(
        read_value(&item).expect("well-formed"),
        json!({"data": {"k": "v"}, "metadata": expected["metadata"]})
    );
    assert_eq!(forms::label(&spliced, &layout, "l").expect("there"), "\"x");
    assert_eq!(forms::label(&spliced, &layout, "m"), None);
    assert_eq!(Layout::from_marks(layout.marks(), layout.revision_at), layout);
}

#[test]
fn added_annotations_are_merged_in_order() {
    const ADDED: [(&str, &str); 3] = [("t/a", "1"), ("t/m", "2"), ("t/z", "3")];
    for metadata in [
        json!({"name": "n", "creationTimestamp": "c", "labels": {"l": "v"}}),
        json!({"name": "n", "annotations": {"a": "\"x", "t/m": "old", "t/n": "", "z": "{}"}, "labels": {"l": "v"}, "uid": "u"}),
        json!({"name": "n", "annotations": {"t/a": "o", "t/m": "o", "t/z": "o"}, "generation": 5}),
        json!({"name": "n", "aa": [], "annotations": {"zz": "1"}, "z": {"annotations": 1}}),
        json!({"name": "n"}),
        json!({"name": "n", "annotations": {"a": "1"}}),
        json!({"name": "n", "annotations": {"\n": "1"}, "x": 1}),
        json!({"annotations": 5}),
        json!({}),
        Value::Null,
    ] {
        let document = Document::from_value(
            json!({"kind": "K", "metadata": metadata, "z": {"annotations": {}}}),
        )
        .expect("an object");
        let mut set = document.clone();
        if !set.get(&["metadata", "annotations"]).is_some_and(Value::is_object) {
            set.set(&["metadata", "annotations"], json!({}));
        }
        ADDED.iter().for_each(|(key, text)| set.set(&["metadata", "annotations", key], *text));
        let expected = write(&set);
        assert_eq!(super::write_with(&document, &ADDED), expected, "{metadata}");
        assert_eq!(super::write_with(&document, &[]), write(&document));
        let (bytes, layout) = write(&document);
        let copied = forms::with_annotations(
            &forms::splice_revision(&bytes, &layout, 7),
            &layout,
            forms::revision_length(layout.comma(), 7),
            &ADDED,
        );
        let is_plain = metadata["annotations"]
            .as_object()
            .is_none_or(|own| own.keys().all(|key| super::is_plain(key)));
        let is_last = metadata
            .as_object()
            .is_none_or(|fields| fields.keys().all(|field| matches!(field.as_str(), "name")));
        assert_eq!(
            copied.is_some(),
            is_plain && !is_last && metadata["annotations"] != 5,
            "{metadata}"
        );
        assert!(copied.is_none_or(|copied| copied == expected), "{metadata}");
    }
}

#[test]
fn objects_without_metadata_get_an_empty_one() {
    for object in [
        json!({"kind": "A"}),
        json!({"kind": "A", "metadata": null}),
        json!({"kind": "A", "metadata": {"resourceVersion": "1"}}),
    ] {
        let (bytes, layout) = write(&Document::from_value(object).expect("an object"));
        assert_eq!(bytes, br#"{"kind":"A","metadata":{}}"#);
        assert_eq!(
            forms::splice_revision(&bytes, &layout, 5),
            br#"{"kind":"A","metadata":{"resourceVersion":"5"}}"#
        );
        assert_eq!(forms::labels(&bytes, &layout), None);
    }
}

#[test]
fn scanning_finds_fields() {
    let bytes = to_vec(
        &json!({"a": {"b": "x}\"]", "c": [1, {"d": "]"}]}, "e": 5, "f\n": null, "g": "\u{e9}\t"}),
    );
    assert_eq!(scan::str_field(&bytes, &["a", "b"]).expect("there"), "x}\"]");
    assert_eq!(scan::field(&bytes, &["a", "c"]).expect("there"), br#"[1,{"d":"]"}]"#);
    assert_eq!(scan::field(&bytes, &["e"]).expect("there"), b"5");
    assert_eq!(scan::field(&bytes, &["f\n"]).expect("there"), b"null");
    assert_eq!(scan::str_field(&bytes, &["g"]).expect("there"), "\u{e9}\t");
    assert_eq!(scan::str_field(&bytes, &["e"]), None);
    assert_eq!(scan::field(&bytes, &["a", "z"]), None);
    assert_eq!(scan::field(&bytes, &["e", "z"]), None);
    assert_eq!(scan::items(scan::field(&bytes, &["a", "c"]).expect("there")).count(), 2);
    assert_eq!(scan::items(b"[]").count(), 0);
    assert_eq!(scan::fields(b"{}").count(), 0);
}

#[test]
fn floats_without_a_fraction_become_integers_only_where_no_type_is_known() {
    for (text, whole) in [
        ("1.0", json!(1)),
        ("-0.0", json!(0)),
        ("0e5", json!(0)),
        ("1e3", json!(1000)),
        ("-2.50", json!(-2.5)),
        ("1e19", json!(1e19)),
    ] {
        let mut value = read_value(text.as_bytes()).expect("a number");
        assert!(value.is_f64(), "{text}: a typed integer refuses it");
        let mut nested = json!({"a": [value]});
        super::round_trip_floats(&mut nested);
        super::round_trip_floats(&mut value);
        assert_eq!((&nested["a"][0], &value), (&whole, &whole), "{text}");
    }
}

#[test]
fn numbers_beyond_floats_are_refused_after_syntax() {
    let why = |text: &str| read(text.as_bytes()).expect_err("refused").to_string();
    assert_eq!(
        why(r#"{"a": [-1e400]}"#),
        "json: cannot unmarshal number -1e400 into Go value of type float64"
    );
    assert!(!why(r#"{"a": 1e400, b}"#).contains("1e400"));
    assert!(crate::yaml::read(br#"{"a": 1e400}"#).is_ok(), "an infinity, as in YAML");
}

#[test]
fn pretty_is_indented() {
    let text = to_vec_pretty(&json!({"a": [], "b": {}, "c": [1, {"d": "e"}]}));
    let expected = "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1,\n    {\n      \"d\": \"e\"\n    }\n  ]\n}";
    assert_eq!(std::str::from_utf8(&text).expect("utf-8"), expected);
}

/// Any JSON value of moderate size.
pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e300..1e300f64)
            .prop_map(|number| super::float(number).map_or(Value::Null, Value::Number)),
        (-1e3..1e3f64).prop_map(|number| super::float(number).map_or(Value::Null, Value::Number)),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn writing_then_reading_is_identity(value in any_value()) {
        prop_assert_eq!(&read_value(&to_vec(&value)).expect("own output"), &value);
        prop_assert_eq!(&read_value(&to_vec_pretty(&value)).expect("own output"), &value);
    }

    #[test]
    fn writes_what_serde_json_does(value in any_value()) {
        let bytes = to_vec(&value);
        let theirs = theirs(&value);
        prop_assert_eq!(&serde_json::to_vec(&theirs).expect("a value"), &bytes);
        prop_assert_eq!(&serde_json::to_vec_pretty(&theirs).expect("a value"), &to_vec_pretty(&value));
    }

    #[test]
    fn floats_are_written_as_serde_json_does(float in any::<f64>()) {
        if let Some(number) = Number::from_f64(float) {
            prop_assert_eq!(to_vec(&Value::Number(number)), serde_json::to_vec(&float).expect("a float"));
        }
    }

    #[test]
    fn fuzz_reader_agrees_with_serde_json(body in "[\\[\\]{}\",:0-9eE.\\-\\\\a-u \\x00-\\x1f]{0,40}") {
        let ours = read_value(body.as_bytes());
        if serde_json::from_str::<serde_json::Value>(&body).is_ok() {
            prop_assert!(ours.is_ok());
        } else if let Ok(ours) = ours {
            // The only leniency: half a surrogate pair.
            prop_assert!(body.contains("\\u"), "{:?} {:?}", body, ours);
        }
    }

    #[test]
    fn fuzz_arbitrary_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&body);
        let _ = scan::field(&body, &["a", "b"]);
        let _ = scan::labels(&body).count();
        let _ = scan::items(&body).count();
    }

    #[test]
    fn scanning_agrees_with_reading(value in any_value()) {
        let bytes = to_vec(&value);
        if let Value::Object(map) = &value {
            prop_assert_eq!(scan::fields(&bytes).count(), map.len());
            for (key, value) in map {
                let found = scan::field(&bytes, &[key]).expect("every key is found");
                prop_assert_eq!(&read_value(found).expect("a value"), value);
            }
        }
    }
}
