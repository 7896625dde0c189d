//! Secret: bytes by key, at most 1 MiB, with an immutable type that may require keys. Errors never
//! contain values.

use crate::checks::{ErrorList, IMMUTABLE, MAX_DATA_BYTES, all_invalid, entries, is_true};
use crate::kinds::configmap::decoded_bytes;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::json::{self, DecodeError};
use ferrokube_apimachinery::name;
use ferrokube_resource::native::{KindBody, NativeColumn};
use ferrokube_resource::{Change, Hooks, Printable, TableRow};
use std::sync::Arc;

const TLS: &str = "kubernetes.io/tls";
const SERVICE_ACCOUNT: &str = "kubernetes.io/service-account.name";

pub(crate) fn body() -> KindBody {
    KindBody {
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text(
                    "Type",
                    "Used to facilitate programmatic handling of secret data. More info: https://kubernetes.io/docs/concepts/configuration/secret/#secret-types",
                ),
                NativeColumn::text(
                    "Data",
                    "Data contains the secret data. Each key must consist of alphanumeric characters, '-', '_' or '.'. The serialized form of the secret data is a base64 encoded string, representing the arbitrary (possibly non-string) data value here. Described in https://tools.ietf.org/html/rfc4648#section-4",
                ),
                NativeColumn::AGE,
            ]
        },
        selectable: &["type"],
        storage: Some("secrets"),
        hooks: Arc::new(Secret),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct Secret;

impl Hooks for Secret {
    fn default(&self, _version: &str, object: &mut Document) {
        if let Some(Value::Object(texts)) = object.remove(&["stringData"]) {
            for (key, text) in texts {
                let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
                object.set(&["data", &key], encoded);
            }
        }
        if object.str(&["type"]).unwrap_or_default().is_empty() {
            object.set(&["type"], "Opaque");
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = ErrorList::default();
        errors.extend(change.old.map_or_else(Vec::new, |old| unchanged(old, object)));
        errors.check_each(entries(object, &["data"]), |(key, _)| {
            all_invalid(&format!("data[{key}]"), key, name::config_key(key)).collect::<Vec<_>>()
        });
        let texts = entries(object, &["data"]).filter_map(|(_, value)| value.as_str());
        if texts.map(decoded_bytes).sum::<usize>() > MAX_DATA_BYTES {
            errors.extend([FieldError::too_long("data", MAX_DATA_BYTES)]);
        }
        errors.extend(demanded(object));
        errors.into_vec()
    }

    fn warnings(&self, _change: &Change<'_>, object: &Document) -> Vec<String> {
        if object.str(&["type"]) != Some(TLS) || is_key_pair(object) {
            return Vec::new();
        }
        let has_pem = |key: &str| {
            STANDARD
                .decode(object.str(&["data", key]).unwrap_or_default())
                .is_ok_and(|bytes| bytes.windows(11).any(|part| part == b"-----BEGIN "))
        };
        let why = match (has_pem("tls.crt"), has_pem("tls.key")) {
            (false, _) => "tls: failed to find any PEM data in certificate input",
            (true, false) => "tls: failed to find any PEM data in key input",
            (true, true) => {
                "tls: the data under tls.crt and tls.key is not a certificate and its key in PEM form"
            }
        };
        vec![why.to_owned()]
    }

    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        row.text(&object.name());
        row.text(&object.str(&["type"]));
        row.value(&object.count(&["data"]).into());
        row.age(object);
    }
}

fn unchanged(old: &Document, object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.get(&["type"]) != object.get(&["type"]) {
        errors.push(FieldError::invalid(
            "type",
            Word(object.str(&["type"]).unwrap_or_default()),
            "field is immutable",
        ));
    }
    if is_true(old, &["immutable"]) {
        if !is_true(object, &["immutable"]) {
            errors.push(FieldError::forbidden("immutable", IMMUTABLE));
        }
        if old.get(&["data"]) != object.get(&["data"]) {
            errors.push(FieldError::forbidden("data", IMMUTABLE));
        }
    }
    errors
}

/// Errors in the keys that the type requires.
fn demanded(object: &Document) -> Vec<FieldError> {
    let has = |key: &str| object.get(&["data", key]).is_some();
    let missing = |key: &str| FieldError::required(format!("data[{key}]"), "");
    match object.str(&["type"]).unwrap_or_default() {
        "kubernetes.io/service-account-token"
            if object.annotation(SERVICE_ACCOUNT).unwrap_or_default().is_empty() =>
        {
            vec![FieldError::required(format!("metadata.annotations[{SERVICE_ACCOUNT}]"), "")]
        }
        "kubernetes.io/dockercfg" => json_object(object, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => json_object(object, ".dockerconfigjson"),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            vec![missing("username"), missing("password")]
        }
        "kubernetes.io/ssh-auth"
            if object.str(&["data", "ssh-privatekey"]).unwrap_or_default().is_empty() =>
        {
            vec![missing("ssh-privatekey")]
        }
        TLS => ["tls.crt", "tls.key"].into_iter().filter(|key| !has(key)).map(missing).collect(),
        _ => Vec::new(),
    }
}

fn json_object(object: &Document, key: &str) -> Vec<FieldError> {
    let field = format!("data[{key}]");
    match object.str(&["data", key]) {
        None => vec![FieldError::required(field, "")],
        Some(text) => match STANDARD.decode(text).ok().map(|bytes| json::read(&bytes)) {
            // kube-apiserver decodes null into an empty map.
            Some(Ok(_) | Err(DecodeError::NotObject("null"))) => Vec::new(),
            _ => {
                vec![FieldError::invalid(field, "<secret contents redacted>", "not a JSON object")]
            }
        },
    }
}

/// Whether both are PEM of the right kind. That they match is not checked.
fn is_key_pair(object: &Document) -> bool {
    let block = |key: &str| {
        let bytes = STANDARD.decode(object.str(&["data", key]).unwrap_or_default()).ok()?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(&bytes).ok()?;
        Some(pem)
    };
    let certificate =
        block("tls.crt").is_some_and(|pem| pem.label == "CERTIFICATE" && pem.parse_x509().is_ok());
    certificate && block("tls.key").is_some_and(|pem| pem.label.ends_with("PRIVATE KEY"))
}
