//! Fuzz targets: the codecs, both schemaless patches, selectors, quantities and times.

use crate::document::{Document, Value, json as value};
use crate::json::{self, forms, scan};
use crate::jsonpath::JsonPath;
use crate::patch::{MAX_COPIED_BYTES, json_patch, merge_patch};
use crate::protobuf::{Messages, envelope};
use crate::quantity::Quantity;
use crate::selector::{CompiledLabels, FieldSelector, LabelSelector};
use crate::work::counted;
use crate::{time, yaml};
use ferrokube_fuzz::{Verdict, run};

const OBJECTS: &[&str] = &[
    r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","labels":{"app":"x","a.b/c":""},"resourceVersion":"5"},"data":{"k":"v\n\u00e9\"\\"}}"#,
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","creationTimestamp":null},"spec":{"containers":[{"name":"c","ports":[{"containerPort":80}]}]}}"#,
    r#" { "a" : [ 1 , -2.5e3, 1e-7, 18446744073709551615, true, null, "\ud83d\ude00" ], "a": {} } "#,
    "[[],{},\"\"]",
];

#[test]
fn json_is_read_and_written() {
    run("json", OBJECTS, |body| {
        let Ok(read) = json::read_any(body) else { return Verdict::Refused };
        assert!(read.duplicates.len() <= 10 && json::depth(&read.value) <= json::MAX_DEPTH);
        let bytes = json::to_vec(&read.value);
        assert_eq!(json::read_value(&bytes).expect("reads what was written"), read.value);
        assert_eq!(
            json::read_value(&json::to_vec_pretty(&read.value)).expect("reads what was written"),
            read.value
        );
        if let Ok(document) = Document::from_value(read.value) {
            canonical_forms(&document);
        }
        Verdict::Accepted
    });
}

/// Slices of canonical bytes equal what a parser finds.
fn canonical_forms(document: &Document) {
    let (bytes, layout) = json::write(document);
    let spliced = forms::splice_revision(&bytes, &layout, 42);
    let parsed = json::read(&spliced).expect("canonical bytes are JSON").document;
    assert_eq!(parsed.str(&["metadata", "resourceVersion"]), Some("42"));
    let metadata = forms::metadata(&spliced, &layout, forms::revision_length(layout.comma(), 42));
    assert_eq!(json::read_value(metadata).ok().as_ref(), parsed.get(&["metadata"]));
    assert_eq!(
        json::read(&[b"{", forms::item(&bytes, &layout)].concat()).is_ok(),
        layout.type_end != 0
    );
    for (name, field) in parsed.fields() {
        let found = scan::field(&spliced, &[name]).expect("every field is found");
        assert_eq!(&json::read_value(found).expect("a value"), field);
    }
    let Some(Value::Object(labels)) = parsed.get(&["metadata", "labels"]) else { return };
    for (key, label) in labels {
        assert_eq!(forms::label(&bytes, &layout, key).as_deref(), label.as_str());
    }
}

#[test]
fn any_bytes_are_scanned() {
    run("scan", OBJECTS, |bytes| {
        let fields = scan::fields(bytes).count();
        assert!(
            fields <= bytes.len()
                && scan::items(bytes).count() <= bytes.len()
                && scan::labels(bytes).count() <= fields
        );
        let (_, _) = (scan::str_field(bytes, &["metadata", "name"]), scan::label(bytes, "app"));
        Verdict::from(fields > 0 || scan::string(bytes).is_some())
    });
}

#[test]
fn yaml_is_read_and_written() {
    let seeds = [
        "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a, labels: &l {x: 'y'}}\ndata:\n  k: |\n    lines\n     more\n  j: >-\n    folded\n    text\n  t: \"\\u00e9\\n\"\n",
        "a: &a [1, 0x1f, 0o17, 1_000, .inf, 1e3, yes, No, ~, null, 2001-01-01]\nb: *a\nc:\n  <<: {d: 1}\n  e: *a\n",
        "- a\n- - b\n  - c: d\n-\n- 'it''s'\n- ? k\n  : v\n",
        "%YAML 1.1\n---\na: !!str 1\n...\n",
        OBJECTS[0],
    ];
    let repeats = "k: &k {k: *j, k: [1], ".repeat(40);
    let deep = format!("{}{}", "[{a: ".repeat(60), "1,".repeat(200));
    let levels: String = (0..60).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    let below = format!("{levels}{}", format!("{}k: 1\n", " ".repeat(60)).repeat(40));
    let merges = format!("b: &b {{k: v}}\n{}", "c: {<<: [*b, *b]}\n".repeat(40));
    let seeds: Vec<&str> = seeds.into_iter().chain([&*repeats, &deep, &below, &merges]).collect();
    run("yaml", &seeds, |body| {
        let (read, steps) = counted(|| yaml::read_any(body));
        assert!(steps <= 64 * body.len() as u64 + 1_200_000, "{steps} steps");
        let Ok(mut read) = read else { return Verdict::Refused };
        assert!(json::depth(&read.value) <= json::MAX_DEPTH);
        // JSON in YAML is read as JSON.
        json::round_trip_floats(&mut read.value);
        let written = yaml::to_vec(&read.value);
        let again = yaml::read_any(&written)
            .unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&written)));
        assert_eq!(again.value, read.value, "{:?}", String::from_utf8_lossy(&written));
        Verdict::Accepted
    });
}

/// The messages of all served kinds.
fn messages() -> Messages {
    Messages::parse(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../resources/data/protobuf.tsv"
    )))
    .expect("the committed table parses")
}

#[test]
fn protobuf_of_every_message_is_read_and_written() {
    let messages = messages();
    let names: Vec<String> = messages.names().collect();
    // Only kinds are bodies: other messages may have other JSON types.
    let mut kinds = std::collections::BTreeSet::new();
    // An input is the number of a message and its bytes.
    let mut seeds: Vec<Vec<u8>> =
        vec![vec![0, 0], b"\x00\x01\x0a\x03\x0a\x01a\x12\x02\x08\x01".to_vec()];
    for (index, name) in names.iter().enumerate() {
        let number = u16::try_from(index).expect("few messages").to_be_bytes();
        let object = value!({"metadata": {"name": "a", "labels": {"k": "v"}, "creationTimestamp": "2026-01-02T03:04:05Z"}});
        let Ok(bytes) = messages.write_bare(name, &object) else { continue };
        seeds.push([&number[..], &bytes].concat());
        if messages.read(name, &envelope("v1", "Kind", &bytes)).is_ok_and(|read| read.name() == "a")
        {
            kinds.insert(name.clone());
        }
    }
    run("protobuf", &seeds, |input| {
        let _ = Messages::type_of(input);
        let Some((number, raw)) = input.split_at_checked(2) else { return Verdict::Refused };
        let name = &names[usize::from(u16::from_be_bytes([number[0], number[1]])) % names.len()];
        let Ok(read) = messages.read(name, &envelope("v1", "Kind", raw)) else {
            return Verdict::Refused;
        };
        if !kinds.contains(name) {
            return Verdict::Accepted;
        }
        let written = messages
            .write(name, &read)
            .unwrap_or_else(|error| panic!("{name}: {error} in {read:?}"));
        let again = messages
            .read(name, &written)
            .unwrap_or_else(|error| panic!("{name}: {error} of {read:?}"));
        let (one, other) = (read.into_value(), again.into_value());
        assert!(json::to_vec(&one).len() <= 64 * raw.len() + 256, "{name}");
        assert_eq!(other, one, "{name}");
        Verdict::Accepted
    });
}

#[test]
fn selectors_read_what_they_show() {
    run(
        "label selector",
        &[
            "a=b,c in (d,e),!f",
            "a.b/c!=d,e notin (f),g>1,h<2",
            "k==v,x",
            "a in (),b=",
            "x in (a,,b)",
        ],
        |input| {
            let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
            let Ok(selector) = LabelSelector::parse(text) else { return Verdict::Refused };
            assert_eq!(
                LabelSelector::parse(&selector.to_string()).ok().as_ref(),
                Some(&selector),
                "{selector}"
            );
            let labels = value!({"a": "b", "g": "7", "k": "", "f": "x"});
            let bytes = json::to_vec(&labels);
            let matches = selector.matches_value(Some(&labels));
            assert_eq!(matches, CompiledLabels::new(&selector).matches(Some(&bytes)).0);
            Verdict::Accepted
        },
    );
}

#[test]
fn selectors_of_documents_are_checked() {
    let seeds = [
        r#"{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"In","values":["d"]},{"key":"e","operator":"Exists"}]}"#,
    ];
    run("selector document", &seeds, |input| {
        let Ok(read) = json::read_value(input) else { return Verdict::Refused };
        let Ok(selector) = LabelSelector::from_document(&read) else { return Verdict::Refused };
        let _ = (selector.to_string(), selector.matches_value(None));
        Verdict::Accepted
    });
}

#[test]
fn field_selectors_read_what_they_show() {
    run(
        "field selector",
        &["metadata.name=a,status.phase!=Running", "a==b\\,c,d=\\\\\\=", "x=", ",,a=b,"],
        |input| {
            let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
            let Ok(selector) = FieldSelector::parse(text) else { return Verdict::Refused };
            // Terms are sorted as written, so `a==b` may move once when shown as `a=b`.
            let shown = selector.to_string();
            let again = FieldSelector::parse(&shown).expect("what is shown can be read");
            assert_eq!(again.to_string().len(), shown.len(), "{shown}");
            assert_eq!(
                FieldSelector::parse(&again.to_string()).ok().as_ref(),
                Some(&again),
                "{shown}"
            );
            let _ = selector.matches(|_| "a");
            Verdict::Accepted
        },
    );
}

#[test]
fn quantities_have_one_canonical_form() {
    run(
        "quantity",
        &[
            "1",
            "-1.5Gi",
            "100m",
            "1e3",
            "1E-3",
            ".5",
            "9223372036854775807",
            "0.000000001n",
            "12Ei",
            "+1k",
            "1.",
            "5u",
        ],
        |input| {
            let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
            let Ok(quantity) = Quantity::parse(text) else { return Verdict::Refused };
            let canonical = quantity.canonical();
            // Short numbers keep their text, with leading zeros.
            assert!(canonical.len() <= 64 + text.len(), "{canonical}");
            let again =
                Quantity::parse(&canonical).unwrap_or_else(|error| panic!("{error}: {canonical}"));
            assert_eq!(again.canonical(), canonical, "{text}");
            assert_eq!(
                (again.value(), again.milli_value()),
                (quantity.value(), quantity.milli_value()),
                "{canonical}"
            );
            assert!(quantity.sub(&quantity).is_zero());
            assert_eq!(quantity.add(&again).is_negative(), quantity.is_negative());
            Verdict::Accepted
        },
    );
}

#[test]
fn times_round_trip() {
    run(
        "time",
        &[
            "2026-01-02T03:04:05Z",
            "2026-01-02T03:04:05.123456Z",
            "1969-12-31T23:59:59.999999999+01:30",
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:60-23:59",
        ],
        |input| {
            let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
            let parsed = (time::parse_rfc3339(text), time::parse_micros(text));
            if let Some(seconds) = parsed.0 {
                let written = time::rfc3339_seconds(seconds);
                let again = time::parse_rfc3339(&written)
                    .unwrap_or_else(|| panic!("{text} became {written}"));
                assert_eq!(time::rfc3339_seconds(again), written);
                let (seconds, nanos) = time::since_epoch(again);
                assert_eq!(time::from_epoch(seconds, nanos), Some(again));
            }
            if let Some(micros) = parsed.1 {
                let written = time::rfc3339_micros(micros);
                assert_eq!(time::parse_micros(&written).map(time::rfc3339_micros), Some(written));
            }
            Verdict::from(parsed.0.is_some())
        },
    );
}

#[test]
fn json_paths_look_at_few_nodes() {
    let wide =
        value!({"l": [vec![value!({"a": 1, "b": [1, 2]}); 200]], "m": {"a": {"a": {"a": 1}}}});
    let seeds = [
        ".l[0,0,0][?(@.a==1)].b[*]",
        "..[*]..[*]..a",
        ".m..a..a..a",
        ".l[0][?(@..a>=1)]..b[::2]",
        "{.m['a'].a}",
        ".l[-1:][0:100:3].b[0,1,*]",
    ];
    run("json path", &seeds, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
        let Some(path) = JsonPath::parse(text) else { return Verdict::Refused };
        let (_, steps) =
            counted(|| path.first(&wide, &mut { crate::jsonpath::MAX_NODES }).is_some());
        assert!(steps <= 100_000, "{steps} steps");
        Verdict::Accepted
    });
}

/// Two values, one per line of the input.
fn two(input: &[u8]) -> Option<(Value, Value)> {
    let at = input.iter().position(|byte| *byte == b'\n')?;
    Some((json::read_value(&input[..at]).ok()?, json::read_value(&input[at + 1..]).ok()?))
}

#[test]
fn json_patches_stay_bounded() {
    let seeds = [
        "{\"a\":[1,2,{\"b\":3}],\"c\":{}}\n[{\"op\":\"add\",\"path\":\"/a/-\",\"value\":{}},{\"op\":\"remove\",\"path\":\"/a/0\"},{\"op\":\"test\",\"path\":\"/c\",\"value\":{}}]",
        "{\"a\":{\"b\":[1]}}\n[{\"op\":\"copy\",\"from\":\"/a\",\"path\":\"/a/c\"},{\"op\":\"move\",\"from\":\"/a/b\",\"path\":\"/d\"},{\"op\":\"replace\",\"path\":\"/d/-1\",\"value\":7}]",
        "{\"a/b~\":1}\n[{\"op\":\"replace\",\"path\":\"/a~1b~0\",\"value\":null},{\"op\":\"add\",\"path\":\"\",\"value\":{}}]",
    ];
    run("json patch", &seeds, |input| {
        let Some((mut target, patch)) = two(input) else { return Verdict::Refused };
        let (patched, steps) = counted(|| json_patch(&mut target, &patch));
        assert!(steps <= 25_000_000, "{steps} steps");
        let Ok(warnings) = patched else { return Verdict::Refused };
        assert!(
            json::depth(&target) <= json::MAX_DEPTH
                && json::to_vec(&target).len() <= 8 * input.len() + MAX_COPIED_BYTES
                && warnings.len() <= 10
        );
        Verdict::Accepted
    });
}

#[test]
fn merge_patches_twice_are_merge_patches_once() {
    let seeds = [
        "{\"a\":{\"b\":1,\"c\":[null]},\"d\":\"e\"}\n{\"a\":{\"b\":null,\"x\":{\"y\":null}},\"d\":[{\"z\":null}]}",
        "{}\n[1]",
        "[]\n{\"a\":null}",
    ];
    run("merge patch", &seeds, |input| {
        let Some((mut target, patch)) = two(input) else { return Verdict::Refused };
        merge_patch(&mut target, &patch);
        assert!(json::depth(&target) <= json::MAX_DEPTH);
        let once = target.clone();
        merge_patch(&mut target, &patch);
        // Nulls stay in a list that replaces an object, and are dropped when it replaces a list, as
        // in kube-apiserver.
        assert!(target == once || input.contains(&b'['), "{target}");
        Verdict::Accepted
    });
}
