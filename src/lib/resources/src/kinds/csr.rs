//! CertificateSigningRequest: requested by a user, approved by another, signed by a signer. The
//! server sets the requester.

mod conditions;
mod request;

use crate::cells;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS, Word, quote};
use ferrokube_apimachinery::{name, time};
use ferrokube_resource::native::{KindBody, NativeColumn, NativeSubresource};
use ferrokube_resource::{Change, Hooks, Policy, Verbs};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

/// Minimum validity of a requested certificate.
const MIN_EXPIRATION_SECONDS: i64 = 600;
const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

pub(crate) fn body() -> KindBody {
    KindBody {
        subresources: &[
            NativeSubresource {
                name: "approval",
                kind: None,
                verbs: Verbs::GET_PATCH_UPDATE,
                reset: &["spec", "status.certificate"],
            },
            NativeSubresource {
                name: "status",
                kind: None,
                verbs: Verbs::GET_PATCH_UPDATE,
                reset: &["spec", "status.conditions"],
            },
        ],
        reset: &["spec", "status"],
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::AGE,
                NativeColumn::text(
                    "SignerName",
                    "Requested signer for the request. It is a qualified name in the form: `scope-hostname.io/name`. If empty, it will be defaulted:\n 1. If it's a kubelet client certificate, it is assigned\n    \"kubernetes.io/kube-apiserver-client-kubelet\".\n 2. If it's a kubelet serving certificate, it is assigned\n    \"kubernetes.io/kubelet-serving\".\n 3. Otherwise, it is assigned \"kubernetes.io/legacy-unknown\".\nDistribution of trust for signers happens out of band. You can select on this field using `spec.signerName`.",
                ),
                NativeColumn::text("Requestor", "Base64-encoded PKCS#10 CSR data"),
                NativeColumn::text(
                    "RequestedDuration",
                    "expirationSeconds is the requested duration of validity of the issued certificate. The certificate signer may issue a certificate with a different validity duration so a client must check the delta between the notBefore and and notAfter fields in the issued certificate to determine the actual duration.\n\nThe v1.22+ in-tree implementations of the well-known Kubernetes signers will honor this field as long as the requested duration is not greater than the maximum duration they will honor per the --cluster-signing-duration CLI flag to the Kubernetes controller manager.\n\nCertificate signers may not honor this field for various reasons:\n\n  1. Old signer that is unaware of the field (such as the in-tree\n     implementations prior to v1.22)\n  2. Signer whose configured maximum is shorter than the requested duration\n  3. Signer whose configured minimum is longer than the requested duration\n\nThe minimum valid value for expirationSeconds is 600, i.e. 10 minutes.",
                ),
                NativeColumn::text(
                    "Condition",
                    "Conditions applied to the request, such as approval or denial.",
                ),
            ]
        },
        selectable: &["spec.signerName"],
        storage: Some("certificatesigningrequests"),
        // `prepare` sets the fields that clients cannot.
        policy: Policy {
            untabled_subresources: &["approval"],
            keeps_reset_on_create: true,
            written_unowned: &["status.conditions"],
            selects_namespace: false,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(SigningRequest),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct SigningRequest;

impl Hooks for SigningRequest {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        let Some(old) = change.old else {
            requester(change, object);
            object.set(&["status"], json!({}));
            return;
        };
        match change.subresource {
            "approval" => conditions::stamp(old, object, change.now),
            "status" => {
                conditions::keep_decisions(old, object);
                conditions::stamp(old, object, change.now);
            }
            _ => {}
        }
    }

    /// Any path segment is a valid name.
    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        Some(name::path_segment(name))
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if change.old.is_none() {
            errors.extend(spec(object));
        }
        errors.extend(conditions::validate(object));
        if let Some(old) = change.old {
            errors.extend(conditions::validate_change(
                old,
                object,
                change.subresource == "approval",
            ));
            errors.extend(certificate_change(old, object, change.subresource));
        }
        if let Err(why) =
            request::check_certificate(object.str(&["status", "certificate"]).unwrap_or_default())
        {
            errors.push(FieldError::invalid("status.certificate", "<certificate data>", why));
        }
        errors
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let spec = |field: &str| object.str(&["spec", field]).unwrap_or_default();
        let signer = if spec("signerName").is_empty() { "<none>" } else { spec("signerName") };
        let asked = object.get(&["spec", "expirationSeconds"]).and_then(Value::as_u64);
        let duration = asked.map_or_else(|| "<none>".to_owned(), time::human_age);
        vec![
            Value::from(object.name()),
            Value::from(cells::age(object, now)),
            Value::from(signer),
            Value::from(spec("username")),
            Value::from(duration),
            Value::from(conditions::summary(object)),
        ]
    }
}

/// Sets the requester; the client's values are ignored.
fn requester(change: &Change<'_>, object: &mut Document) {
    let set = |object: &mut Document, field: &str, value: Option<Value>| match value {
        Some(value) => object.set(&["spec", field], value),
        None => drop(object.remove(&["spec", field])),
    };
    let filled = |text: &str| (!text.is_empty()).then(|| Value::from(text));
    set(object, "username", filled(change.user));
    set(object, "uid", filled(change.user_uid));
    set(object, "groups", (!change.groups.is_empty()).then(|| Value::from(change.groups.to_vec())));
    set(object, "extra", (!change.user_extra.is_empty()).then(|| json!(change.user_extra)));
}

fn spec(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Err(why) = request::check_request(object.str(&["spec", "request"]).unwrap_or_default()) {
        errors.push(FieldError::invalid("spec.request", object.get(&["spec", "request"]), why));
    }
    errors.extend(usages(object));
    let signer = object.str(&["spec", "signerName"]).unwrap_or_default();
    if signer == "kubernetes.io/legacy-unknown" {
        errors.push(FieldError::invalid(
            "spec.signerName",
            signer,
            "the legacy signerName is not allowed via this API version",
        ));
    } else {
        errors.extend(signer_name(signer));
    }
    if let Some(seconds) = object
        .get(&["spec", "expirationSeconds"])
        .and_then(Value::as_i64)
        .filter(|seconds| *seconds < MIN_EXPIRATION_SECONDS)
    {
        errors.push(FieldError::invalid(
            "spec.expirationSeconds",
            seconds,
            "may not specify a duration less than 600 seconds (10 minutes)",
        ));
    }
    errors
}

fn usages(object: &Document) -> Vec<FieldError> {
    let usages: Vec<&str> = object
        .list(&["spec", "usages"])
        .iter()
        .map(|usage| usage.as_str().unwrap_or_default())
        .collect();
    let mut errors = Vec::new();
    if usages.is_empty() {
        errors.push(FieldError::required("spec.usages", ""));
    }
    for (index, usage) in
        usages.iter().enumerate().filter(|(_, usage)| !USAGES.contains(usage)).take(MAX_ERRORS)
    {
        errors.push(FieldError::not_supported(
            format!("spec.usages[{index}]"),
            Word(usage),
            USAGES,
        ));
    }
    let mut seen = HashSet::new();
    for (index, usage) in
        usages.iter().enumerate().filter(|(_, usage)| !seen.insert(*usage)).take(MAX_ERRORS)
    {
        errors.push(FieldError::duplicate(format!("spec.usages[{index}]"), Word(usage)));
    }
    errors
}

/// A domain of at least two labels, a slash, and a dotted path.
fn signer_name(signer: &str) -> Vec<FieldError> {
    const FIELD: &str = "spec.signerName";
    const MAX_DOMAIN_BYTES: usize = 253;
    const MAX_BYTES: usize = MAX_DOMAIN_BYTES + 1 + 253 + 63 + 1;
    if signer.is_empty() {
        return vec![FieldError::required(FIELD, "")];
    }
    let Some((domain, path)) = signer.split_once('/').filter(|(_, path)| !path.contains('/'))
    else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return vec![FieldError::invalid(FIELD, signer, why)];
    };
    let mut errors = Vec::new();
    if domain.len() > MAX_DOMAIN_BYTES {
        errors.push(FieldError::too_long(FIELD, MAX_DOMAIN_BYTES));
    }
    errors.extend(first_wrong(domain, name::dns1123_label));
    if !domain.contains('.') {
        errors.push(FieldError::invalid(
            FIELD,
            domain,
            "should be a domain with at least two segments separated by dots",
        ));
    }
    errors.extend(first_wrong(path, name::dns1123_subdomain));
    if signer.len() > MAX_BYTES {
        errors.push(FieldError::too_long(FIELD, MAX_BYTES));
    }
    errors
}

/// Errors in the first invalid label of one side of a signer name.
fn first_wrong(side: &str, rule: fn(&str) -> Vec<String>) -> Vec<FieldError> {
    let found = side
        .split('.')
        .map(|label| (label, rule(label)))
        .find(|(_, sentences)| !sentences.is_empty());
    let (label, sentences) = found.unwrap_or_default();
    let error = |sentence| {
        FieldError::invalid(
            "spec.signerName",
            side,
            format!("validating label {}: {sentence}", quote(label)),
        )
    };
    sentences.into_iter().map(error).collect()
}

/// A certificate is set once, through `status`.
fn certificate_change(old: &Document, object: &Document, subresource: &str) -> Option<FieldError> {
    let was = old.str(&["status", "certificate"]).unwrap_or_default();
    if was == object.str(&["status", "certificate"]).unwrap_or_default() {
        return None;
    }
    match subresource {
        "status" if was.is_empty() => None,
        "status" => Some(FieldError::forbidden(
            "status.certificate",
            "updates may not modify existing certificate content",
        )),
        _ => Some(FieldError::forbidden(
            "status.certificate",
            "updates may not set certificate content",
        )),
    }
}
