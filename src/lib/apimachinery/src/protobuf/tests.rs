//! Tests of the protobuf codec, with the tables of the served kinds.

use super::special::{Special, duration_text, parse_duration};
use super::table::{Cardinality, FieldType};
use super::*;
use crate::document::{Map, json};
use crate::json::MAX_DEPTH;
use crate::json::tests::any_value;
use base64::Engine as _;
use proptest::prelude::*;
use std::sync::LazyLock;

static MESSAGES: LazyLock<Messages> = LazyLock::new(|| {
    Messages::parse(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../resources/data/protobuf.tsv"
    )))
    .expect("the committed table parses")
});

const CONFIG_MAP: &str = "k8s.io.api.core.v1.ConfigMap";
const SCHEMA: &str = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
const WEBHOOKS: &str = "k8s.io.api.admissionregistration.v1.ValidatingWebhookConfiguration";

fn document(value: Value) -> Document {
    Document::from_value(value).expect("an object")
}

/// Encodes and decodes an object.
fn there_and_back(message: &str, value: &Value) -> Value {
    let body = MESSAGES.write(message, &document(value.clone())).expect("writes");
    MESSAGES.read(message, &body).expect("reads").into_value()
}

#[test]
fn reads_what_go_wrote() {
    // From the parity corpus (crud/protobuf), with its namespace placeholder.
    let body = base64::engine::general_purpose::STANDARD
        .decode("azhzAAoPCgJ2MRIJQ29uZmlnTWFwEhsKEQoCcGIaC25zLXt7dW5pcX19EgYKAWsSAXYaACIA")
        .expect("base64");
    let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "pb", "namespace": "ns-{{uniq}}"}, "data": {"k": "v"}});
    assert_eq!(
        Messages::type_of(&body).expect("an envelope"),
        (Cow::Borrowed("v1"), Cow::Borrowed("ConfigMap"))
    );
    assert_eq!(MESSAGES.read(CONFIG_MAP, &body).expect("reads").into_value(), object);
    assert_eq!(MESSAGES.write(CONFIG_MAP, &document(object)).expect("writes"), body);
}

/// A config map as a kube-apiserver 1.36 stored it.
#[test]
fn writes_what_kube_apiserver_stores() {
    let stored = b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap\x12\x9e\x01\n\x93\x01\n\x02n1\x12\0\x1a\x07default\"\0*$d0dcfeb5-5123-43f5-904b-eb35040010ca2\08\0B\x08\x08\x91\xe0\xa0\xd8\x06\x10\0\x8a\x01K\n\x07interop\x12\x06Update\x1a\x02v1\"\x08\x08\x91\xe0\xa0\xd8\x06\x10\x002\x08FieldsV1:\x1e\n\x1c{\"f:data\":{\".\":{},\"f:a\":{}}}B\0\x12\x06\n\x01a\x12\x01b\x1a\0\"\0";
    let time = "2026-11-26T13:11:45Z";
    let managed = json!({"manager": "interop", "operation": "Update", "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {".": {}, "f:a": {}}}});
    let metadata = json!({"name": "n1", "namespace": "default", "uid": "d0dcfeb5-5123-43f5-904b-eb35040010ca", "creationTimestamp": time, "managedFields": [managed]});
    let object =
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"a": "b"}});
    let written = MESSAGES.write_as_go(CONFIG_MAP, &document(object)).expect("writes");
    assert_eq!(written.escape_ascii().to_string(), stored.escape_ascii().to_string());
}

#[test]
fn zero_values_on_the_wire_are_kept() {
    // ObjectMeta as Go encodes it: empty strings, generation 0, an empty creation time.
    let metadata =
        [b"\x0a\x01a\x12\x00\x1a\x00\x22\x00\x2a\x00\x32\x00\x38\x00".as_slice(), b"\x42\x00"]
            .concat();
    let raw = [&[0x0a, metadata.len() as u8][..], &metadata, &[0x20, 0x00]].concat();
    let object = MESSAGES.read(CONFIG_MAP, &envelope("v1", "ConfigMap", &raw)).expect("reads");
    let metadata = json!({"name": "a", "generateName": "", "namespace": "", "selfLink": "", "uid": "", "resourceVersion": "", "generation": 0});
    assert_eq!(
        object.into_value(),
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "immutable": false})
    );
}

#[test]
fn fault_34_a_message_of_many_values_is_not_read() {
    // Three bytes each: empty managedFields, which are maps in a list.
    let metadata = [0x8a, 0x01, 0x00].repeat(500_000);
    let mut raw = Vec::new();
    wire::put_bytes(&mut raw, 1, &metadata);
    let read = MESSAGES.read(CONFIG_MAP, &envelope("v1", "ConfigMap", &raw));
    assert!(matches!(read, Err(ProtobufError::TooLarge)), "{:?}", read.map(|_| ()));
}

#[test]
fn errors_are_those_of_go_s_decoders() {
    for (raw, why) in [
        (b"\x08\x01".as_slice(), "proto: wrong wireType = 0 for field ObjectMeta"),
        (b"\x0f", "proto: wrong wireType = 7 for field ObjectMeta"),
        (b"\x22\x01a", "proto: wrong wireType = 2 for field Immutable"),
        (b"\x0a\x02\x28\x01", "proto: wrong wireType = 0 for field UID"),
        (b"\x10\x01", "proto: wrong wireType = 0 for field Data"),
        (b"\x9f\x06", "proto: illegal wireType 7"),
        (b"\x0a\x05a", "unexpected EOF"),
        (b"\x12\x02\x0a\x05", "unexpected EOF"),
    ] {
        match MESSAGES.read(CONFIG_MAP, &envelope("v1", "ConfigMap", raw)) {
            Err(ProtobufError::Malformed(found)) => assert_eq!(found, why, "{raw:?}"),
            other => panic!("{raw:?}: {other:?}"),
        }
    }
    for (body, why) in [
        (b"".as_slice(), "empty data"),
        (b"k8s\0", "empty body"),
        (b"k8s\0\x12\x05ab", "unexpected EOF"),
        (b"k8s\0\x18\x01", "proto: wrong wireType = 0 for field ContentEncoding"),
    ] {
        match Messages::type_of(body) {
            Err(ProtobufError::Envelope(found)) => assert_eq!(found, why, "{body:?}"),
            other => panic!("{body:?}: {other:?}"),
        }
    }
}

#[test]
fn a_message_that_is_there_twice_is_one() {
    let raw = b"\x0a\x03\x0a\x01a\x12\x06\x0a\x01k\x12\x01v\x0a\x04\x1a\x02ns\x0a\x03\x0a\x01b";
    let read = MESSAGES.read(CONFIG_MAP, &envelope("v1", "ConfigMap", raw)).expect("reads");
    assert_eq!(
        read.into_value(),
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "b", "namespace": "ns"}, "data": {"k": "v"}})
    );
}

/// Tables of messages of the package `a`; a row is message, field, number, type and JSON name.
fn tables(rows: &[(&str, &str, u32, &str, &str)]) -> Messages {
    let mut tables = "package\tmessage\tfield\tnumber\tlabel\ttype\tjson\n".to_owned();
    for (message, field, number, kind, json) in rows {
        tables += &format!("a\t{message}\t{field}\t{number}\toptional\t{kind}\t{json}\n");
    }
    Messages::parse(tables).expect("reads")
}

#[test]
fn fields_may_stand_in_any_order_and_inlined_messages_in_parts() {
    let messages = tables(&[
        ("Volume", "name", 1, "string", ""),
        ("Volume", "source", 2, "a.Source", "."),
        ("Source", "emptyDir", 1, "a.Dir", ""),
        ("Source", "hostPath", 2, "string", ""),
        ("Dir", "medium", 1, "string", ""),
        ("Dir", "limit", 2, "string", ""),
    ]);
    let parts = [
        json!({"name": "v"}),
        json!({"emptyDir": {"medium": "Memory"}}),
        json!({"hostPath": "/"}),
        json!({"emptyDir": {"limit": "1Gi"}}),
    ];
    let parts = parts.map(|part| messages.write_bare("a.Volume", &part).expect("writes"));
    let wanted = json!({"kind": "Volume", "apiVersion": "a/v1", "name": "v", "hostPath": "/", "emptyDir": {"medium": "Memory", "limit": "1Gi"}});
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]] {
        let raw: Vec<u8> = order.iter().flat_map(|at: &usize| parts[*at].clone()).collect();
        let read = messages.read("a.Volume", &envelope("a/v1", "Volume", &raw)).expect("reads");
        let read = read.into_value();
        assert_eq!(read, wanted, "{order:?}");
        assert_eq!(read.to_string(), wanted.to_string(), "in the order of the names");
    }
}

#[test]
fn fields_of_one_name_are_one() {
    let messages = tables(&[
        ("M", "x", 1, "string", ""),
        ("M", "b", 2, "string", ""),
        ("M", "y", 3, "string", "x"),
    ]);
    let body = envelope("a/v1", "M", b"\x0a\x011\x12\x01b\x1a\x012");
    let read = messages.read("a.M", &body).expect("reads").into_value();
    assert_eq!(read, json!({"kind": "M", "apiVersion": "a/v1", "x": "2", "b": "b"}));
}

#[test]
fn the_content_type_in_an_envelope_means_nothing() {
    let mut body = MAGIC.to_vec();
    wire::put_bytes(&mut body, RAW, b"\x0a\x03\x0a\x01a");
    wire::put_bytes(&mut body, 4, b"application/json");
    let read = MESSAGES.read(CONFIG_MAP, &body).expect("reads");
    assert_eq!(read.into_value(), json!({"metadata": {"name": "a"}}));
}

#[test]
fn special_forms_keep_their_json() {
    let schema = json!({
        "$ref": "#/a", "$schema": "s", "type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-list-map-keys": ["a"],
        "default": {"a": [1, null, 2.5]}, "enum": ["a", null, 5], "maximum": 2.5, "minimum": 3, "maxLength": 7,
        "items": {"type": "string"}, "additionalProperties": false, "additionalItems": {"type": "integer"},
        "properties": {"p": {"items": [{"type": "a"}, {"type": "b"}], "additionalProperties": true}},
        "dependencies": {"a": ["b", "c"], "d": {"type": "string"}},
    });
    assert_eq!(there_and_back(SCHEMA, &schema), schema);
    // Null is an empty message, as Go writes it.
    let null = MESSAGES.write_bare(SCHEMA, &json!({"enum": [null]})).expect("writes");
    assert_eq!(null, [0xa2, 0x01, 0x00]);
    let webhooks = json!({
        "metadata": {"name": "a", "creationTimestamp": "2024-02-29T12:34:56Z", "managedFields": [{"manager": "m", "time": "2024-02-29T12:34:56Z", "fieldsV1": {"f:webhooks": {".": {}}}}]},
        "webhooks": [{"name": "w", "clientConfig": {"caBundle": "AAEC", "service": {"name": "s", "namespace": "n", "port": 443}},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "*"}], "namespaceSelector": {}, "timeoutSeconds": 10}],
    });
    assert_eq!(there_and_back(WEBHOOKS, &webhooks), webhooks);
    let lease = json!({"metadata": {"name": "l"}, "spec": {"renewTime": "2024-02-29T12:34:56.000007Z", "leaseDurationSeconds": 0}});
    assert_eq!(there_and_back("k8s.io.api.coordination.v1.Lease", &lease), lease);
    let quota = json!({"spec": {"hard": {"pods": "4", "requests.cpu": "100m"}}});
    assert_eq!(there_and_back("k8s.io.api.core.v1.ResourceQuota", &quota), quota);
    let review = json!({"status": {"authenticated": true, "user": {"username": "u", "extra": {"scopes": ["a", "b"]}}}});
    assert_eq!(there_and_back("k8s.io.api.authentication.v1.TokenReview", &review), review);
    let secret = json!({"data": {"k": "AAECAw==", "empty": ""}, "type": "Opaque"});
    assert_eq!(there_and_back("k8s.io.api.core.v1.Secret", &secret), secret);
}

#[test]
fn lists_hold_bare_items() {
    let items: Vec<Value> = (0..3)
        .map(|i| json!({"metadata": {"name": format!("a{i}")}, "data": {"k": "v".repeat(i * 100)}}))
        .collect();
    let bare: Vec<Vec<u8>> =
        items.iter().map(|item| MESSAGES.write_bare(CONFIG_MAP, item).expect("writes")).collect();
    let metadata = json!({"resourceVersion": "7", "remainingItemCount": 0});
    let message = "k8s.io.api.core.v1.ConfigMapList";
    let head = ListHead { message, api_version: "v1", kind: "ConfigMapList", metadata: &metadata };
    let body = MESSAGES.write_list(&head, &bare).expect("writes");
    let expected =
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": metadata, "items": items});
    assert_eq!(MESSAGES.read(message, &body).expect("reads").into_value(), expected);
    assert_eq!(MESSAGES.write(message, &document(expected)).expect("writes"), body);
    assert!(MESSAGES.write_list(&ListHead { message: CONFIG_MAP, ..head }, &bare).is_err());
}

#[test]
fn watch_events_are_framed() {
    let object = MESSAGES
        .write(
            CONFIG_MAP,
            &document(
                json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"k": "v".repeat(300)}}),
            ),
        )
        .expect("writes");
    let frame = write_watch_event("ADDED", &object);
    let (length, event) = frame.split_at(4);
    assert_eq!(u32::from_be_bytes(length.try_into().expect("four bytes")) as usize, event.len());
    let fields: Vec<_> = wire::fields(event).map(|field| field.expect("well-formed")).collect();
    assert_eq!(fields[0], (1, wire::WireValue::Bytes(b"ADDED")));
    let (2, wire::WireValue::Bytes(extension)) = fields[1] else { panic!("{fields:?}") };
    assert_eq!(
        wire::fields(extension).next().expect("one field").expect("well-formed"),
        (1, wire::WireValue::Bytes(&object))
    );
}

#[test]
fn malformed_bodies_are_refused() {
    let huge_length =
        base64::engine::general_purpose::STANDARD.decode("azhzABL/////B2FiYw==").expect("base64");
    for body in [
        &huge_length[..],
        b"",
        b"k8s",
        b"{}",
        b"k8s\0\x0a",
        b"k8s\0\x12\x05ab",
        b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"k8s\0\x03",
        b"k8s\0\x00\x00",
    ] {
        assert!(
            matches!(MESSAGES.read(CONFIG_MAP, body), Err(ProtobufError::Envelope(_))),
            "{body:?}"
        );
    }
    for raw in [
        b"\x0a\x05a".as_slice(),
        b"\x08\x01",
        b"\x0a\x02\x0a\x05",
        b"\x12\x02\x0a\x05",
        b"\x22\x01a",
        b"\x0a\x09\x42\x07\x08\xff\xff\xff\xff\xff\x7f",
    ] {
        let result = MESSAGES.read(CONFIG_MAP, &envelope("v1", "ConfigMap", raw));
        assert!(matches!(result, Err(ProtobufError::Malformed(_))), "{raw:?} {result:?}");
    }
    assert!(matches!(MESSAGES.read("a.B", b"k8s\0"), Err(ProtobufError::UnknownMessage(_))));
    assert!(matches!(
        MESSAGES.write(CONFIG_MAP, &document(json!({"data": {"k": 5}}))),
        Err(ProtobufError::DoesNotFit(_))
    ));
    assert!(matches!(
        MESSAGES.write(CONFIG_MAP, &document(json!({"data": []}))),
        Err(ProtobufError::DoesNotFit(_))
    ));
    assert!(
        MESSAGES.contains(CONFIG_MAP) && !MESSAGES.contains("ConfigMap") && !MESSAGES.contains("")
    );
}

#[test]
fn fault_35_depth_is_bounded() {
    // Nested `not`: field 28 of a schema.
    let nested = |levels: usize| {
        (0..levels).fold(Vec::new(), |inner, _| {
            let mut out = Vec::new();
            wire::put_bytes(&mut out, 28, &inner);
            out
        })
    };
    assert!(MESSAGES.read(SCHEMA, &envelope("v1", "A", &nested(100))).is_ok());
    let why = |read: Result<_, ProtobufError>| read.map(|_| ()).expect_err("too deep").to_string();
    let refused = MESSAGES.read(SCHEMA, &envelope("v1", "A", &nested(2_000)));
    assert_eq!(why(refused), "messages nest too deep");
    // A default: JSON in a field.
    let json = |levels: usize| {
        let mut deep = Vec::new();
        wire::put_nested::<()>(&mut deep, 8, |out| {
            let text = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
            wire::put_bytes(out, 1, text.as_bytes());
            Ok(())
        })
        .expect("writes");
        MESSAGES.read(SCHEMA, &envelope("v1", "A", &deep))
    };
    assert!(json(400).is_ok());
    assert_eq!(why(json(MAX_DEPTH + 1)), "the body nests deeper than 512");
}

#[test]
fn tables_are_checked() {
    let head = "package\tmessage\tfield\tnumber\tlabel\ttype\n";
    for (row, line) in [
        ("a\tB\tc\tx\toptional\tstring\n", 2),
        ("a\tB\tc\t1\toptional\n", 2),
        ("a\tB\tc\t1\tsome\tstring\n", 2),
        ("a\tB\tc\t1\toptional\tstring\na\n", 3),
    ] {
        let error = Messages::parse(format!("{head}{row}")).expect_err(row);
        assert!(error.starts_with(&format!("line {line}:")), "{error}");
    }
    let apart = "a\tB\tc\t1\toptional\tstring\na\tC\tc\t1\toptional\tstring\na\tB\td\t2\toptional\tstring\n";
    assert!(Messages::parse(format!("{head}{apart}")).is_err());
    let dangling = Messages::parse(format!("{head}a\tB\tc\t1\toptional\ta.None\n"))
        .expect("an absent message is left out");
    assert_eq!(dangling.write_bare("a.B", &json!({"c": {"d": 1}})).expect("writes"), b"");
}

#[test]
fn durations_are_formatted_like_go() {
    for (nanos, text) in [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5\u{b5}s"),
        (2_000_000, "2ms"),
        (1_000_000_000, "1s"),
        (90_500_000_000, "1m30.5s"),
        (3_600_000_000_000, "1h0m0s"),
        (-5_400_000_000_000, "-1h30m0s"),
        (i64::MAX, "2562047h47m16.854775807s"),
    ] {
        assert_eq!(duration_text(nanos), text);
        assert_eq!(parse_duration(text), Some(nanos), "{text}");
    }
    assert_eq!(parse_duration("1h"), Some(3_600_000_000_000));
    for text in ["", "1", "h", "1x", ".s", "-", "9999999h", "1h 2m"] {
        assert_eq!(parse_duration(text), None, "{text}");
    }
}

/// Generates objects of a message from a seed.
struct Maker(u64);

impl Maker {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }

    fn object(&mut self, index: usize, depth: usize) -> Map {
        let mut map = Map::new();
        for field in &MESSAGES.message(index).fields {
            if let (Cardinality::Inline, FieldType::Message(inner)) = (field.shape, field.kind) {
                map.extend(self.object(inner, depth));
                continue;
            }
            let is_message = matches!(field.kind, FieldType::Message(inner) if MESSAGES.message(inner).special == Special::None);
            if field.kind == FieldType::Absent || self.next(2) == 0 || (is_message && depth > 3) {
                continue;
            }
            let count = 1 + self.next(3);
            let value = match field.shape {
                Cardinality::List => {
                    Value::Array((0..count).map(|_| self.value(field.kind, depth + 1)).collect())
                }
                Cardinality::Map => Value::Object(
                    (0..count)
                        .map(|i| (format!("k{i}"), self.value(field.kind, depth + 1)))
                        .collect(),
                ),
                _ => self.value(field.kind, depth + 1),
            };
            map.insert(field.name.to_string(), value);
        }
        map
    }

    fn value(&mut self, kind: FieldType, depth: usize) -> Value {
        match kind {
            FieldType::Bool => Value::Bool(self.next(2) == 0),
            FieldType::Int32 => Value::from(self.next(1 << 32) as u32 as i32),
            FieldType::Int64 => Value::from(self.0 as i64),
            FieldType::Double => Value::from(self.next(1_000) as f64 + 0.5),
            FieldType::String => Value::from("\u{e9}x".repeat(self.next(90) as usize)),
            FieldType::Bytes => {
                Value::from(base64::engine::general_purpose::STANDARD.encode(self.0.to_be_bytes()))
            }
            FieldType::Message(index) => self.message(index, depth),
            FieldType::Absent => Value::Null,
        }
    }

    fn message(&mut self, index: usize, depth: usize) -> Value {
        let schema = |maker: &mut Self| {
            let schema = MESSAGES.index_of(SCHEMA).expect("served");
            Value::Object(if depth > 3 { Map::new() } else { maker.object(schema, depth + 1) })
        };
        match MESSAGES.message(index).special {
            Special::None => Value::Object(self.object(index, depth + 1)),
            Special::Time => json!(format!("20{:02}-01-02T03:04:05Z", self.next(99))),
            Special::MicroTime => {
                json!(format!("2024-01-02T03:04:05.{:06}Z", self.next(1_000_000)))
            }
            Special::Duration => json!(duration_text(self.0 as i64)),
            Special::IntOrString if self.next(2) == 0 => json!("50%"),
            Special::IntOrString => json!(self.next(1_000) as i32 - 500),
            Special::Quantity => json!(format!("{}m", 1 + self.next(999))),
            Special::Raw => json!({"a": [self.next(5), null], "b": {}}),
            Special::Strings => json!(["a", "", "b"]),
            Special::SchemaOrBool if self.next(2) == 0 => json!(self.next(2) == 0),
            Special::SchemaOrArray if self.next(2) == 0 => json!([schema(self)]),
            Special::SchemaOrStrings if self.next(2) == 0 => json!(["a"]),
            Special::SchemaOrArray | Special::SchemaOrBool | Special::SchemaOrStrings => {
                schema(self)
            }
        }
    }
}

/// Whether what was read is what was written, or nothing (`None`), but for fields that are always
/// written.
fn is_same_but_zeros(written: Option<&Value>, read: &Value) -> bool {
    let member = |name: &str| written.and_then(|written| written.get(name));
    match (written, read) {
        (Some(Value::Array(written)), Value::Array(read)) => {
            written.len() == read.len()
                && written.iter().zip(read).all(|(one, other)| is_same_but_zeros(Some(one), other))
        }
        (None | Some(Value::Object(_)), Value::Object(read)) => {
            let fields = written.and_then(Value::as_object).into_iter().flatten();
            fields.map(|(name, _)| name).all(|name| read.contains_key(name))
                && read.iter().all(|(name, read)| is_same_but_zeros(member(name), read))
        }
        (None, read) => {
            [json!(null), json!(""), json!(0), json!(0.0), json!(false), json!("0"), json!("0s")]
                .contains(read)
        }
        (Some(written), read) => written == read,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn json_to_protobuf_to_json_is_identity_for_every_message(seed in 1..u64::MAX) {
        for name in MESSAGES.names() {
            let index = MESSAGES.index_of(&name).expect("listed");
            if MESSAGES.message(index).special != Special::None || name.starts_with("k8s.io.apimachinery.pkg.runtime") {
                continue;
            }
            let object = Value::Object(Maker(seed).object(index, 0));
            let raw = MESSAGES.write_bare(&name, &object).map_err(|error| TestCaseError::fail(format!("{name}: {error} {object}")))?;
            let back = read::object(&MESSAGES, index, &raw, Default::default()).map_err(|error| TestCaseError::fail(format!("{name}: {error} {object}")))?;
            prop_assert_eq!(&Value::Object(back), &object, "{}", name);
            let written = MESSAGES.write_as_go(&name, &document(object.clone())).expect("writes");
            let back = MESSAGES.read(&name, &written).expect("reads");
            prop_assert_eq!(MESSAGES.write_as_go(&name, &back).expect("writes"), written, "{}", name);
            let back = back.into_value();
            prop_assert!(is_same_but_zeros(Some(&object), &back), "{}: {} {}", name, object, back);
        }
    }
}

proptest! {
    #[test]
    fn fuzz_bodies_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..120), flip in any::<(u16, u8)>(), seed in 1..u64::MAX) {
        for name in [CONFIG_MAP, SCHEMA, WEBHOOKS, "k8s.io.api.core.v1.Event"] {
            let _ = MESSAGES.read(name, &raw);
            let _ = MESSAGES.read(name, &envelope("v1", "A", &raw));
            let index = MESSAGES.index_of(name).expect("served");
            let mut bytes = MESSAGES.write_bare(name, &Value::Object(Maker(seed).object(index, 2))).expect("writes");
            if !bytes.is_empty() {
                let at = usize::from(flip.0) % bytes.len();
                bytes[at] ^= flip.1;
                let _ = read::object(&MESSAGES, index, &bytes, Default::default());
            }
        }
    }

    #[test]
    fn fuzz_values_never_panic(value in any_value(), text in any::<String>()) {
        let _ = parse_duration(&text);
        for name in [CONFIG_MAP, SCHEMA] {
            let _ = MESSAGES.write_bare(name, &json!({"metadata": value, "data": value, "items": value, "default": value}));
        }
    }
}
