//! Validates conversion between versions.

use crate::checks::{all_invalid, items, text};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name::{dns1035_label, dns1123_subdomain};
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
    let Some(old) = old.filter(|old| super::is_established(old)) else { return true };
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
    let place = |field: &str| format!("{FIELD}.webhookClientConfig{field}");
    let given = |field: &str| client.get(field).filter(|value| !value.is_null());
    let mut errors = match (given("service"), given("url").and_then(Value::as_str)) {
        (None, Some(url)) => validate_url(url, &place(".url")),
        (Some(service), None) => validate_service(service, &place(".service")),
        _ => vec![FieldError::required(place(""), "exactly one of url or service is required")],
    };
    let bundle = text(client, "caBundle");
    if !bundle.is_empty() && !any_bundle && !is_ca_bundle(bundle) {
        errors.push(FieldError::invalid_unshown(
            place(".caBundle"),
            "unable to load root certificates",
        ));
    }
    errors
}

fn validate_service(service: &Value, place: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for field in ["name", "namespace"] {
        if text(service, field).is_empty() {
            errors.push(FieldError::required(format!("{place}.{field}"), ""));
        }
    }
    let port = service.get("port").and_then(Value::as_i64).unwrap_or(443);
    if !(1..=65535).contains(&port) {
        errors.push(FieldError::invalid(
            format!("{place}.port"),
            port,
            "must be between 1 and 65535, inclusive",
        ));
    }
    errors.extend(
        wrong_path(text(service, "path"))
            .map(|why| FieldError::invalid_unshown(format!("{place}.path"), why)),
    );
    errors
}

/// Errors in the path of a service: its segments must be DNS subdomains.
fn wrong_path(path: &str) -> impl Iterator<Item = String> {
    let is_bare = matches!(path, "" | "/");
    let start =
        (!is_bare && !path.starts_with('/')).then(|| format!("{path:?}: must start with a '/'"));
    // kube-apiserver takes any first byte for the slash.
    let inner = path.get(1..).unwrap_or(path);
    let steps: Vec<&str> = if is_bare {
        Vec::new()
    } else {
        inner.strip_suffix('/').unwrap_or(inner).split('/').collect()
    };
    let of_step = |(index, step): (usize, &str)| match step {
        "" => vec![format!("{index}: a segment may not be empty")],
        step => dns1123_subdomain(step).into_iter().map(|why| format!("{index}: {why}")).collect(),
    };
    let wrong: Vec<String> = steps.into_iter().enumerate().flat_map(of_step).collect();
    start.into_iter().chain(wrong)
}

fn validate_url(url: &str, place: &str) -> Vec<FieldError> {
    let before_colon =
        url.split('/').next().unwrap_or_default().split_once(':').map(|(scheme, _)| scheme);
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && !scheme
                .contains(|letter: char| !letter.is_ascii_alphanumeric() && !"+-.".contains(letter))
    };
    if url.contains(|letter: char| letter.is_control() || letter == ' ')
        || before_colon.is_some_and(|scheme| !is_scheme(scheme))
    {
        return vec![FieldError::required(
            place,
            format!("url must be a valid URL; desired format: https://host[/path]: {url:?}"),
        )];
    }
    let rest = url.split_once("//").map_or("", |(_, rest)| rest);
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (before_fragment, fragment) = url.split_once('#').unwrap_or((url, ""));
    let query = before_fragment.split_once('?').map_or("", |(_, query)| query);
    let wrong = [
        (!url.starts_with("https://"), "'https' is the only allowed URL scheme"),
        (host.is_empty(), "host must be specified"),
        (host.contains('@'), "user information is not permitted in the URL"),
        (!fragment.is_empty(), "fragments are not permitted in the URL"),
        (!query.is_empty(), "query parameters are not permitted in the URL"),
    ];
    let wrong = wrong.into_iter().filter(|(is_wrong, _)| *is_wrong);
    wrong
        .map(|(_, why)| {
            FieldError::invalid(place, url, format!("{why}; desired format: https://host[/path]"))
        })
        .collect()
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
