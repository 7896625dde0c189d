//! Validates conversion between versions.

use super::fields::is_established;
use crate::checks::client_config::client_config;
use crate::checks::{all_invalid, is_full, items, text};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name::dns1035_label;
use std::collections::HashSet;

const FIELD: &str = "spec.conversion";
/// Versions of ConversionReview supported by the server.
pub(super) const REVIEWS: [&str; 2] = ["v1", "v1beta1"];

pub(super) fn validate(old: Option<&Document>, object: &Document) -> Vec<FieldError> {
    let nothing = Value::Null;
    let conversion = object.get(&["spec", "conversion"]).unwrap_or(&nothing);
    let webhook =
        conversion.get("webhook").filter(|webhook| !webhook.is_null()).unwrap_or(&nothing);
    let client = webhook.get("clientConfig").filter(|client| !client.is_null());
    let reviews = items(webhook, "conversionReviewVersions");
    let mut errors = Vec::new();
    match text(conversion, "strategy") {
        "None" | "Webhook" => {}
        "" => errors.push(FieldError::required(format!("{FIELD}.strategy"), "")),
        other => errors.push(FieldError::not_supported(
            format!("{FIELD}.strategy"),
            other,
            ["None", "Webhook"],
        )),
    }
    if text(conversion, "strategy") == "Webhook" {
        match client {
            None => errors.push(FieldError::required(
                format!("{FIELD}.webhookClientConfig"),
                "required when strategy is set to Webhook",
            )),
            Some(client) => errors.extend(validate_client(client, may_have_bad_bundle(old))),
        }
        errors.extend(validate_reviews(reviews));
        return errors;
    }
    for (is_set, field) in [
        (client.is_some(), "webhookClientConfig"),
        (!reviews.is_empty(), "conversionReviewVersions"),
    ] {
        if is_set {
            errors.push(FieldError::forbidden(
                format!("{FIELD}.{field}"),
                "should not be set when strategy is not set to Webhook",
            ));
        }
    }
    errors
}

/// Whether the CA bundle is not validated: until the definition is established, or if the stored
/// bundle is invalid too.
fn may_have_bad_bundle(old: Option<&Document>) -> bool {
    let Some(old) = old.filter(|old| is_established(old)) else { return true };
    let bundle =
        old.str(&["spec", "conversion", "webhook", "clientConfig", "caBundle"]).unwrap_or_default();
    !bundle.is_empty() && !is_ca_bundle(bundle)
}

/// Whether it is base64 of PEM with a certificate.
fn is_ca_bundle(bundle: &str) -> bool {
    let decoded = STANDARD.decode(bundle).unwrap_or_default();
    let pem = String::from_utf8_lossy(&decoded);
    let Some((_, rest)) = pem.split_once("-----BEGIN CERTIFICATE-----") else { return false };
    rest.split_once("-----END CERTIFICATE-----").is_some_and(|(body, _)| {
        let body: String = body.split_whitespace().collect();
        // A certificate is a DER sequence.
        STANDARD.decode(body).is_ok_and(|der| der.first() == Some(&0x30))
    })
}

fn validate_client(client: &Value, any_bundle: bool) -> Vec<FieldError> {
    let place = format!("{FIELD}.webhookClientConfig");
    let mut errors = client_config(client, &place);
    let bundle = text(client, "caBundle");
    if !bundle.is_empty() && !any_bundle && !is_ca_bundle(bundle) {
        errors.push(FieldError::invalid_unshown(
            format!("{place}.caBundle"),
            "unable to load root certificates",
        ));
    }
    errors
}

fn validate_reviews(versions: &[Value]) -> Vec<FieldError> {
    let place = format!("{FIELD}.conversionReviewVersions");
    if versions.is_empty() {
        return vec![FieldError::required(place, "")];
    }
    let versions: Vec<&str> = versions.iter().filter_map(Value::as_str).collect();
    let mut errors = Vec::new();
    let mut seen = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        let field = format!("{place}[{index}]");
        if !seen.insert(version) {
            errors.push(FieldError::invalid(field, version, "duplicate version"));
        } else {
            errors.extend(all_invalid(&field, version, dns1035_label(version)));
        }
    }
    if !versions.iter().any(|version| REVIEWS.contains(version)) {
        errors.push(FieldError::invalid(
            place,
            &versions[..],
            format!("must include at least one of {}", REVIEWS.join(", ")),
        ));
    }
    errors
}
