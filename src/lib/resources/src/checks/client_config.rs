//! Validates where a webhook is: a URL or a service.

use super::{all_invalid, text};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::{FieldError, quote};
use ferrokube_apimachinery::name::dns1123_subdomain;

const FORM: &str = "; desired format: https://host[/path]";

/// Errors in a client config, apart from its CA bundle.
pub(crate) fn client_config(config: &Value, place: &str) -> Vec<FieldError> {
    let given = |field: &str| config.get(field).filter(|value| !value.is_null());
    match (given("service"), given("url").and_then(Value::as_str)) {
        (None, Some(url)) => webhook_url(url, &format!("{place}.url")),
        (Some(service), None) => webhook_service(service, &format!("{place}.service")),
        _ => vec![FieldError::required(place, "exactly one of url or service is required")],
    }
}

fn webhook_service(service: &Value, place: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    // kube-apiserver confuses the two.
    for (given, reported) in [("namespace", "name"), ("name", "namespace")] {
        if text(service, given).is_empty() {
            errors.push(FieldError::required(format!("{place}.{reported}"), ""));
        }
    }
    let port = service.get("port").and_then(Value::as_i64).unwrap_or(443);
    if !(1..=65535).contains(&port) {
        errors.push(FieldError::invalid(
            format!("{place}.port"),
            port,
            "port is not valid: must be between 1 and 65535, inclusive",
        ));
    }
    let path = text(service, "path");
    errors.extend(all_invalid(&format!("{place}.path"), path, wrong_path(path)));
    errors
}

/// Errors in the path of a service: its segments must be DNS subdomains.
fn wrong_path(path: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    match path {
        "" | "/" => return wrong,
        "//" => return vec!["segment[0] may not be empty".to_owned()],
        _ => {}
    }
    if !path.starts_with('/') {
        wrong.push("must start with a '/'".to_owned());
    }
    // kube-apiserver takes any first byte for the slash.
    let inner = path.get(1..).unwrap_or(path);
    for (index, step) in inner.strip_suffix('/').unwrap_or(inner).split('/').enumerate() {
        if step.is_empty() {
            wrong.push(format!("segment[{index}] may not be empty"));
        }
        let names = if step.is_empty() { Vec::new() } else { dns1123_subdomain(step) };
        wrong.extend(names.into_iter().map(|why| format!("segment[{index}]: {why}")));
    }
    wrong
}

fn webhook_url(url: &str, place: &str) -> Vec<FieldError> {
    if let Some(why) = unparsable(url) {
        let why = format!("url must be a valid URL: parse {}: {why}{FORM}", quote(url));
        return vec![FieldError::required(place, why)];
    }
    let (before_fragment, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (before_query, query) = before_fragment.split_once('?').unwrap_or((before_fragment, ""));
    let (scheme, rest) = before_query
        .split_once(':')
        .filter(|(scheme, _)| !scheme.contains('/'))
        .map_or((String::new(), before_query), |(scheme, rest)| {
            (scheme.to_ascii_lowercase(), rest)
        });
    let authority =
        rest.strip_prefix("//").map_or("", |rest| rest.split('/').next().unwrap_or_default());
    let (user, host) =
        authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let mut errors = Vec::new();
    if scheme != "https" {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(FieldError::invalid(place, scheme.as_str(), why));
    }
    if host.is_empty() {
        errors.push(FieldError::invalid(place, host, format!("host must be specified{FORM}")));
    }
    for (given, why) in [
        (user, "user information is not permitted in the URL"),
        (Some(fragment), "fragments are not permitted in the URL"),
        (Some(query), "query parameters are not permitted in the URL"),
    ] {
        // An empty user is one, too.
        if let Some(given) = given.filter(|given| !given.is_empty() || user == Some(*given)) {
            errors.push(FieldError::invalid(place, given, why));
        }
    }
    errors
}

/// Why Go does not parse a URL.
fn unparsable(url: &str) -> Option<String> {
    if url.contains(|letter: char| letter.is_ascii_control()) {
        return Some("net/url: invalid control character in URL".to_owned());
    }
    let before_slash = url.split('/').next().unwrap_or_default();
    if let Some((scheme, _)) = before_slash.split_once(':') {
        let starts = scheme.starts_with(|letter: char| letter.is_ascii_alphabetic());
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
        match (scheme, starts) {
            ("", _) => return Some("missing protocol scheme".to_owned()),
            (scheme, starts) if !starts || !scheme.chars().all(fits) => {
                return Some("first path segment in URL cannot contain colon".to_owned());
            }
            _ => {}
        }
    }
    let host = url.split_once("//").map_or("", |(_, rest)| rest);
    wrong_host(host.split(['/', '?', '#']).next().unwrap_or_default())
}

fn wrong_host(authority: &str) -> Option<String> {
    if authority.contains(' ') {
        return Some("invalid character \" \" in host name".to_owned());
    }
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let port = if host.starts_with('[') {
        let Some(end) = host.rfind(']') else { return Some("missing ']' in host".to_owned()) };
        &host[end + 1..]
    } else {
        host.rfind(':').map_or("", |colon| &host[colon..])
    };
    let digits = if port.is_empty() { Some("") } else { port.strip_prefix(':') };
    let is_port = digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    (!is_port).then(|| format!("invalid port {} after host", quote(port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn texts(config: &Value) -> Vec<String> {
        let errors = client_config(config, "c");
        errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
    }

    #[test]
    fn urls() {
        for (url, want) in [
            ("https://host/path", None),
            ("https://host:1/", None),
            ("http://host", Some("c.url: Invalid value: \"http\": 'https' is the only allowed")),
            ("https://", Some("c.url: Invalid value: \"\": host must be specified")),
            ("https://u:p@host", Some("c.url: Invalid value: \"u:p\": user information")),
            ("https://host?q=1", Some("c.url: Invalid value: \"q=1\": query parameters")),
            ("https://host#f", Some("c.url: Invalid value: \"f\": fragments are not")),
            ("https://a b", Some("c.url: Required value: url must be a valid URL: parse")),
            ("https://[::1]:8443/x", None),
            ("https://[::1]", None),
            ("https://host:", None),
            (
                "https://[::1",
                Some(
                    r#"c.url: Required value: url must be a valid URL: parse "https://[::1": missing ']' in host"#,
                ),
            ),
            (
                "https://[::1]8443",
                Some(
                    r#"c.url: Required value: url must be a valid URL: parse "https://[::1]8443": invalid port "8443" after host"#,
                ),
            ),
            (
                "https://host:x/",
                Some(
                    r#"c.url: Required value: url must be a valid URL: parse "https://host:x/": invalid port ":x" after host"#,
                ),
            ),
        ] {
            let texts = texts(&json!({"url": url}));
            match want {
                None => assert!(texts.is_empty(), "{url}: {texts:?}"),
                Some(want) => assert!(texts.len() == 1 && texts[0].starts_with(want), "{texts:?}"),
            }
        }
    }

    #[test]
    fn services() {
        assert!(
            texts(&json!({"service": {"name": "a", "namespace": "b", "path": "/x/"}})).is_empty()
        );
        let wrong =
            texts(&json!({"service": {"name": "", "namespace": "b", "port": 0, "path": "x//y"}}));
        assert_eq!(
            wrong,
            [
                "c.service.namespace: Required value",
                "c.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
                "c.service.path: Invalid value: \"x//y\": must start with a '/'",
                "c.service.path: Invalid value: \"x//y\": segment[0] may not be empty",
                "c.service.path: Invalid value: \"x//y\": segment[1] may not be empty",
            ]
        );
        assert_eq!(
            texts(&json!({})),
            ["c: Required value: exactly one of url or service is required"]
        );
    }
}
