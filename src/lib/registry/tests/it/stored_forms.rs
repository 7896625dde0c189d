//! Values of every kind in the forms of a storage that others share.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::json;
use ferrokube_registry::{Catalog, StorageMediaType, StoredValues};
use ferrokube_resource::{Composition, Definition, Scope};
use ferrokube_schema::{Kind, Schema};
use ferrokube_storage::{Key, Prefix, ValueCodec, ValueForm};
use std::collections::BTreeSet;
use std::sync::Arc;

const PROTOBUF: &[u8] = b"k8s\0";

/// Deeper values are left out: some types contain themselves.
const DEPTH: usize = 12;

/// Makes values of a schema: of all fields, or of some, some of them empty.
struct StoredObjectMaker {
    state: u64,
    is_full: bool,
}

impl StoredObjectMaker {
    fn below(&mut self, bound: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % bound
    }

    fn is_left_out(&mut self) -> bool {
        !self.is_full && self.below(3) == 0
    }

    fn number(&mut self) -> u64 {
        1 + self.below(100)
    }

    fn count(&mut self) -> u64 {
        if self.is_full { 1 } else { self.below(3) }
    }

    fn value(&mut self, schema: &Schema, depth: usize) -> Option<Value> {
        if depth == 0 {
            return None;
        }
        if let Some(inside) = &schema.inside {
            return self.value(inside, depth);
        }
        Some(match schema.kind {
            Kind::Any => json!({"f:any": {}}),
            Kind::Object => self.object(schema, depth)?,
            Kind::Array => {
                let items = schema.items.as_ref()?;
                let count = self.count();
                let items = (0..count).map(|_| self.value(items, depth - 1));
                items.collect::<Option<Vec<Value>>>()?.into()
            }
            Kind::String => self.text(schema),
            Kind::Integer => self.number().into(),
            Kind::Number => 1.5.into(),
            Kind::Boolean => (self.is_full || self.below(2) == 0).into(),
            Kind::IntOrString if schema.format.as_deref() == Some("quantity") => "100m".into(),
            Kind::IntOrString if self.below(2) == 0 => self.number().into(),
            Kind::IntOrString => "25%".into(),
        })
    }

    fn object(&mut self, schema: &Schema, depth: usize) -> Option<Value> {
        let mut object = Map::new();
        if let Some(values) = &schema.additional {
            for at in 0..self.count() {
                object.insert(format!("k{at}"), self.value(values, depth - 1)?);
            }
        }
        for (name, property) in &schema.properties {
            if self.is_left_out() {
                continue;
            }
            if let Some(value) = self.value(&property.schema, depth - 1) {
                object.insert(&**name, value);
            }
        }
        Some(Value::Object(object))
    }

    fn text(&mut self, schema: &Schema) -> Value {
        if let Some(first) = schema.enumeration.first() {
            return first.clone();
        }
        match (schema.format.as_deref(), schema.short_name()) {
            (Some("date-time"), "MicroTime") => "2024-01-02T03:04:05.000006Z".into(),
            (Some("date-time"), _) => "2024-01-02T03:04:05Z".into(),
            (Some("byte"), _) => "eA==".into(),
            (Some("quantity"), _) => "100m".into(),
            (_, "Duration") => "1m0s".into(),
            _ if !self.is_full && self.below(4) == 0 => "".into(),
            _ => format!("text{}", self.number()).into(),
        }
    }

    /// An object of a definition's storage version.
    fn stored(&mut self, definition: &Definition, key: &Key) -> Bytes {
        let schema = &definition.versions[definition.storage_version].schema;
        let Some(Value::Object(mut object)) = self.value(schema, DEPTH) else {
            panic!("{} is no object", definition.kind);
        };
        let gvk = definition.gvk(definition.storage_version);
        object.insert("kind", definition.kind.as_str().into());
        object.insert("apiVersion", gvk.api_version().as_str().into());
        let mut metadata = match object.remove("metadata") {
            Some(Value::Object(metadata)) => metadata,
            _ => Map::new(),
        };
        metadata.remove("namespace");
        metadata.insert("name", key.name().into());
        if let Some(namespace) = key.namespace() {
            metadata.insert("namespace", namespace.into());
        }
        object.insert("metadata", Value::Object(metadata));
        json::to_vec(&Value::Object(object)).into()
    }
}

/// All that `--profile kubernetes` stores, by key prefix, and LeaseCandidates.
fn stored_kinds(served: &Composition) -> Vec<(&Definition, Key)> {
    let mut seen = BTreeSet::new();
    let stored = served.definitions.iter().filter_map(|definition| {
        let prefix = definition.storage_prefix.as_ref()?;
        let namespace = (definition.scope == Scope::Namespaced).then_some("ns");
        let key = Prefix::new(prefix).unwrap().key(namespace, "name").unwrap();
        seen.insert(prefix.clone()).then_some((&**definition, key))
    });
    stored.collect()
}

fn served() -> Composition {
    let generic = ferrokube_resources::bundle().with(["leasecandidates.coordination.k8s.io"]);
    ferrokube_resources::compose(&[generic, ferrokube_workloads::bundle()]).unwrap()
}

fn codec(served: &Composition, media_type: StorageMediaType) -> StoredValues {
    let catalog = Arc::new(Catalog::default());
    served.definitions.iter().for_each(|definition| catalog.put(Arc::clone(definition)));
    StoredValues::new(catalog, Arc::clone(&served.messages), media_type)
}

#[test]
fn protobuf_holds_every_field_of_every_kind() {
    let served = served();
    let codec = codec(&served, StorageMediaType::Protobuf);
    let (mut in_json, mut kinds) = (Vec::new(), 0);
    for (definition, key) in stored_kinds(&served) {
        let made = StoredObjectMaker { state: 7, is_full: true }.stored(definition, &key);
        let name = definition.group_resource().to_string();
        let (value, _) = codec.read(&key, &made).unwrap_or_else(|why| panic!("{name}: {why}"));
        let stored = codec.write(&key, &value);
        if !stored.starts_with(PROTOBUF) {
            in_json.push(name);
            continue;
        }
        kinds += 1;
        assert!(stored.len() < value.len(), "{name}");
        let (again, sidecar) = codec.read(&key, &stored).unwrap();
        assert_eq!(again, value, "{name}");
        assert_eq!(sidecar.form, ValueForm::of(&stored), "{name}");
    }
    // As kube-apiserver; it does not know the last ones.
    let expected =
        ["apiservices.apiregistration.k8s.io", "customresourcedefinitions.apiextensions.k8s.io"];
    in_json.sort();
    assert_eq!(in_json, expected);
    assert!(kinds > 50, "{kinds}");
}

#[test]
fn every_value_is_read_as_it_was_written() {
    let served = served();
    let codecs = [StorageMediaType::Protobuf, StorageMediaType::Json]
        .map(|media_type| codec(&served, media_type));
    let mut in_protobuf = 0;
    for (definition, key) in stored_kinds(&served) {
        let name = definition.group_resource().to_string();
        for state in 1..16 {
            let made = StoredObjectMaker { state: (state << 20) | 1, is_full: false }
                .stored(definition, &key);
            let (value, _) = codecs[0].read(&key, &made).unwrap();
            let stored = codecs.each_ref().map(|codec| codec.write(&key, &value));
            assert_eq!(stored[1], value, "{name}: JSON is the store's own form");
            in_protobuf += usize::from(stored[0].starts_with(PROTOBUF));
            for (writer, stored) in stored.iter().enumerate() {
                for (reader, codec) in codecs.iter().enumerate() {
                    let (again, sidecar) = codec.read(&key, stored).unwrap();
                    assert_eq!(again, value, "{name} {state}");
                    // A no-op write is a write for a server that has another form.
                    let is_other = writer != reader && stored != &codec.write(&key, &value);
                    let own = ValueForm::of(&codec.write(&key, &again));
                    assert_eq!(sidecar.form != own, is_other, "{name} {state}");
                }
            }
        }
    }
    assert!(in_protobuf > 500, "{in_protobuf}");
}

/// What a kube-apiserver 1.36 stored for an object of each kind, and served for it, as recorded by
/// `tests/differential/interop`.
#[test]
fn every_kind_is_stored_in_the_bytes_of_kube_apiserver() {
    let codec = codec(&served(), StorageMediaType::Protobuf);
    let (mut others, mut kinds) = (Vec::new(), 0);
    for line in include_str!("../fixtures/interop.jsonl").lines() {
        let recorded: Value = json::read_value(line.as_bytes()).unwrap();
        let text = |name: &str| recorded.get(name).and_then(Value::as_str).unwrap();
        let value: Bytes = STANDARD.decode(text("value_base64")).unwrap().into();
        let prefix = codec.prefix(text("key")).unwrap_or_else(|| panic!("{}", text("key")));
        let resource = prefix.trim_start_matches("/registry/").trim_end_matches('/');
        let rest = &text("key")[prefix.len()..];
        let (namespace, name) =
            rest.split_once('/').map_or((None, rest), |(n, name)| (Some(n), name));
        let key = Prefix::new(resource).unwrap().key(namespace, name).unwrap();
        let (read, sidecar) =
            codec.read(&key, &value).unwrap_or_else(|why| panic!("{rest}: {why}"));
        let mut shown = Document::from_value(recorded.get("object").unwrap().clone()).unwrap();
        shown.remove(&["metadata", "resourceVersion"]);
        let object = json::read(&read).unwrap().document;
        if object.api_version() == shown.api_version() {
            assert_eq!(object, shown, "{resource}");
        }
        let written = codec.write(&key, &read);
        let is_stale = sidecar.form != ValueForm::of(&written);
        assert_eq!(written != value, is_stale, "{resource}");
        if is_stale {
            others.push(resource.to_owned());
        }
        kinds += 1;
    }
    assert!(kinds > 60, "{kinds}");
    // It stores all but the last as v1beta1; and JSON of its types has the order of their fields.
    let expected = [
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "apiextensions.k8s.io/customresourcedefinitions",
        "apiregistration.k8s.io/apiservices",
    ];
    assert_eq!(others, expected);
}

/// kube-apiserver 1.36 stores what it serves as v1.
#[test]
fn policies_are_read_in_the_versions_that_they_are_stored_in() {
    let served = served();
    let codec = codec(&served, StorageMediaType::Protobuf);
    let name = "mutatingadmissionpolicies";
    let key = Prefix::new(name).unwrap().key(None, "name").unwrap();
    let (definition, _) =
        stored_kinds(&served).into_iter().find(|(kind, _)| kind.plural == name).unwrap();
    let made = StoredObjectMaker { state: 7, is_full: true }.stored(definition, &key);
    let (value, _) = codec.read(&key, &made).unwrap();
    let mut former = json::read(&value).unwrap().document;
    former.set(&["apiVersion"], "admissionregistration.k8s.io/v1beta1");
    let message = definition.versions[definition.storage_version].message.as_deref().unwrap();
    let in_protobuf = served.messages.write(message, &former).unwrap();
    for stored in [in_protobuf, json::to_vec(&former.clone().into_value())] {
        let (again, sidecar) = codec.read(&key, &stored.into()).unwrap();
        assert_eq!(again, value);
        let own = ValueForm::of(&codec.write(&key, &again));
        assert_ne!(sidecar.form, own, "the next write is in the storage version");
    }
    former.set(&["apiVersion"], "admissionregistration.k8s.io/v1beta9");
    let unknown = served.messages.write(message, &former).unwrap();
    assert!(codec.read(&key, &unknown.into()).is_err());
}

#[test]
fn leases_of_servers_are_endpoints_without_a_name() {
    let text = "/registry/masterleases/10.1.1.1";
    let kubernetes = codec(&served(), StorageMediaType::Protobuf);
    assert_eq!(kubernetes.prefix(text), Some("/registry/masterleases/"));
    let bundles = [ferrokube_resources::bundle()];
    let generic = ferrokube_resources::compose(&bundles).unwrap();
    assert_eq!(codec(&generic, StorageMediaType::Protobuf).prefix(text), None);
    let key = Prefix::new("masterleases").unwrap().key(None, "10.1.1.1").unwrap();
    let lease = br#"{"kind":"Endpoints","apiVersion":"v1","metadata":{"generation":3},"subsets":[{"addresses":[{"ip":"10.1.1.1"}]}]}"#;
    let (lease, _) = kubernetes.read(&key, &Bytes::from_static(lease)).unwrap();
    let stored = kubernetes.write(&key, &lease);
    assert!(stored.starts_with(PROTOBUF));
    assert_eq!(kubernetes.read(&key, &stored).unwrap().0, lease);
    // Other objects have the name of their key.
    let other = Prefix::new("services/endpoints").unwrap().key(Some("ns"), "a").unwrap();
    assert!(kubernetes.read(&other, &stored).is_err());
}

/// Objects are taken over once kube-apiserver has rewritten them, with the provider `identity`.
#[test]
fn values_that_kube_apiserver_encrypted_are_named_as_such() {
    let codec = codec(&served(), StorageMediaType::Protobuf);
    let key = Prefix::new("secrets").unwrap().key(Some("ns"), "a").unwrap();
    for value in ["k8s:enc:aescbc:v1:key1:\u{1}", "k8s:enc:secretbox:v1:k:", "k8s:enc:kms:v2:p:"] {
        let why = codec.read(&key, &Bytes::from_static(value.as_bytes())).unwrap_err();
        assert!(why.contains("encrypted"), "{value}: {why}");
        assert!(!why.contains("key1"), "nothing of the value: {why}");
    }
}
