//! How objects get from one version to another.

use crate::checks::{forbidden, invalid, items, not_supported, required, text};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;

const FIELD: &str = "spec.conversion";
/// The reviews that this server sends.
const REVIEWS: [&str; 1] = ["v1"];

pub(super) fn validate(object: &Document) -> Vec<FieldError> {
    let nothing = Value::Null;
    let conversion = object.get(&["spec", "conversion"]).unwrap_or(&nothing);
    let webhook = conversion.get("webhook").filter(|webhook| !webhook.is_null());
    let client = webhook.and_then(|webhook| webhook.get("clientConfig"));
    match text(conversion, "strategy") {
        "None" if webhook.is_some() => vec![forbidden(format!("{FIELD}.webhookClientConfig"), "Forbidden: should not be set when strategy is not Webhook")],
        "None" => Vec::new(),
        "Webhook" => {
            let mut errors: Vec<FieldError> = match client {
                None => vec![required(format!("{FIELD}.webhookClientConfig"), "Required value: required when strategy is Webhook")],
                Some(client) => validate_client(client),
            };
            errors.extend(validate_reviews(webhook.map_or(&[], |webhook| items(webhook, "conversionReviewVersions"))));
            errors
        }
        "" => vec![required(format!("{FIELD}.strategy"), "Required value")],
        other => vec![not_supported(format!("{FIELD}.strategy"), other, &["None", "Webhook"])],
    }
}

fn validate_client(client: &Value) -> Vec<FieldError> {
    let place = |field: &str| format!("{FIELD}.webhookClientConfig{field}");
    let service = client.get("service").filter(|service| !service.is_null());
    let url = text(client, "url");
    match (service, url) {
        (None, "") | (Some(_), _) if service.is_some() != url.is_empty() => {
            vec![required(place(""), "Required value: exactly one of url or service is required")]
        }
        (None, url) => validate_url(url, &place(".url")),
        (Some(service), _) => {
            let mut errors = Vec::new();
            for field in ["name", "namespace"] {
                if text(service, field).is_empty() {
                    errors.push(required(place(&format!(".service.{field}")), "Required value"));
                }
            }
            let port = service.get("port").and_then(Value::as_i64).unwrap_or(443);
            if !(1..=65535).contains(&port) {
                errors.push(invalid(place(".service.port"), format!("Invalid value: {port}: must be between 1 and 65535, inclusive")));
            }
            errors
        }
    }
}

fn validate_url(url: &str, place: &str) -> Vec<FieldError> {
    let refuse = |why: &str| vec![invalid(place, format!("Invalid value: {url:?}: {why}"))];
    let Some(rest) = url.strip_prefix("https://") else { return refuse("'https' is the only allowed URL scheme") };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.is_empty() {
        return refuse("host must be specified");
    }
    if host.contains('@') {
        return refuse("user information is not permitted in the URL");
    }
    if url.contains(['?', '#']) {
        return refuse("fragments and query parameters are not permitted in the URL");
    }
    Vec::new()
}

fn validate_reviews(versions: &[Value]) -> Vec<FieldError> {
    let place = format!("{FIELD}.conversionReviewVersions");
    if versions.is_empty() {
        return vec![required(place, "Required value")];
    }
    if versions.iter().any(|version| version.as_str().is_some_and(|version| REVIEWS.contains(&version))) {
        return Vec::new();
    }
    vec![invalid(place, format!("Invalid value: must include at least one of {}", REVIEWS.join(", ")))]
}
