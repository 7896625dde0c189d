//! Collected validation errors, and text formats shared by several kinds.

use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Array, Value};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS, Shown};
use ferrokube_apimachinery::{name, work};
use std::net::IpAddr;

/// Validation errors, up to the number that a Status shows.
#[derive(Debug, Default)]
pub(crate) struct FieldErrors(Vec<FieldError>);

impl FieldErrors {
    pub(crate) fn is_full(&self) -> bool {
        work::count(1);
        self.0.len() >= MAX_ERRORS
    }

    /// Adds an error, built only if it is kept, as it quotes its value.
    pub(crate) fn push(&mut self, make: impl FnOnce() -> FieldError) {
        if self.0.len() < MAX_ERRORS {
            self.0.push(make());
        }
    }

    pub(crate) fn required(&mut self, path: FieldPath<'_>, why: &str) {
        self.push(|| FieldError::required(path, why));
    }

    pub(crate) fn invalid(&mut self, path: FieldPath<'_>, value: impl Shown, why: &str) {
        self.push(|| FieldError::invalid(path, value, why));
    }

    pub(crate) fn forbidden(&mut self, path: FieldPath<'_>, why: &str) {
        self.push(|| FieldError::forbidden(path, why));
    }

    pub(crate) fn duplicate(&mut self, path: FieldPath<'_>, value: impl Shown) {
        self.push(|| FieldError::duplicate(path, value));
    }

    pub(crate) fn not_supported(
        &mut self,
        path: FieldPath<'_>,
        value: impl Shown,
        supported: &[&str],
    ) {
        self.push(|| FieldError::not_supported(path, value, supported));
    }

    /// Errors so far.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// If there are errors at or below the paths, drops all others. Returns whether there are.
    pub(crate) fn prefer(&mut self, paths: &[String]) -> bool {
        let is_there = |error: &FieldError| paths.iter().any(|path| is_below(&error.field, path));
        let are_some = self.0.iter().any(is_there);
        if are_some {
            self.0.retain(is_there);
        }
        are_some
    }

    /// Drops all others for one error.
    pub(crate) fn only(&mut self, error: FieldError) {
        self.0.clear();
        self.0.push(error);
    }

    /// Drops the errors at a path and below it.
    pub(crate) fn forget(&mut self, path: FieldPath<'_>) {
        let path = path.to_string();
        self.0.retain(|error| !is_below(&error.field, &path));
    }

    /// Whether there are errors at or below a path.
    pub(crate) fn are_below(&self, path: FieldPath<'_>) -> bool {
        let path = path.to_string();
        self.0.iter().any(|error| is_below(&error.field, &path))
    }

    /// An error per message.
    pub(crate) fn all_invalid(&mut self, path: FieldPath<'_>, value: &str, whys: Vec<String>) {
        for why in whys {
            self.push(|| FieldError::invalid(path, value, why));
        }
    }

    pub(crate) fn into_vec(self) -> Vec<FieldError> {
        self.0
    }
}

fn is_below(field: &str, path: &str) -> bool {
    let rest = field.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// A string field; empty if absent.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// An array field; empty if absent.
pub(crate) fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Array::as_slice)
}

/// A field that is set: neither absent nor null.
pub(crate) fn given<'a>(value: &'a Value, field: &str) -> Option<&'a Value> {
    value.get(field).filter(|value| !value.is_null())
}

/// An integer field; 0 if absent.
pub(crate) fn number(value: &Value, field: &str) -> i64 {
    value.get(field).and_then(Value::as_i64).unwrap_or_default()
}

/// Whether a field is true.
pub(crate) fn is_true(value: &Value, field: &str) -> bool {
    value.get(field).and_then(Value::as_bool).unwrap_or_default()
}

/// A text format: returns the errors of a text, with kube-apiserver's messages.
pub(crate) type TextForm = fn(&str) -> Vec<String>;

/// Looks up a format by its name in `rules.tsv`.
pub(crate) fn form(word: &str) -> Option<TextForm> {
    Some(match word {
        "dns1123label" => name::dns1123_label,
        "dns1123subdomain" => name::dns1123_subdomain,
        "dns1035label" => name::dns1035_label,
        "qualifiedname" => name::qualified_name,
        "labelvalue" => name::label_value,
        "configkey" => name::config_key,
        "pathsegment" => name::path_segment,
        "ip" => ip,
        "portname" => port_name,
        "envname" => env_name,
        "cidr" => cidr,
        "strictcidr" => strict_cidr,
        _ => return None,
    })
}

fn one(why: &str) -> Vec<String> {
    vec![why.to_owned()]
}

/// Parses an address with leading zeros, which some parsers read as octal, as decimal.
pub(crate) fn without_zeros(text: &str) -> Option<IpAddr> {
    let plain = |part: &str| {
        let digits = part.trim_start_matches('0');
        if digits.is_empty() && !part.is_empty() { "0".to_owned() } else { digits.to_owned() }
    };
    let (before, last) = text.rsplit_once(':').map_or(("", text), |(before, last)| (before, last));
    let last = last.split('.').map(plain).collect::<Vec<String>>().join(".");
    let whole = if before.is_empty() { last } else { format!("{before}:{last}") };
    whole.parse().ok()
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// An IPv4 or IPv6 address.
pub(crate) fn ip(text: &str) -> Vec<String> {
    match text.parse::<IpAddr>() {
        Ok(address) if is_mapped(address) => one("must not be an IPv4-mapped IPv6 address"),
        Ok(_) => Vec::new(),
        Err(_) if without_zeros(text).is_some() => one("must not have leading 0s"),
        Err(_) => one("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
    }
}

/// An address in canonical form.
pub(crate) fn strict_ip(text: &str) -> Vec<String> {
    let whys = ip(text);
    match text.parse::<IpAddr>() {
        Ok(address) if whys.is_empty() && address.to_string() != text => {
            vec![format!("must be in canonical form ({:?})", address.to_string())]
        }
        _ => whys,
    }
}

/// Network and length of a prefix such as `10.0.0.0/8`.
pub(crate) fn parse_cidr(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let digits = length.bytes().all(|byte| byte.is_ascii_digit()) && !length.is_empty();
    let length: u32 = length.parse().ok().filter(|_| digits)?;
    (length <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, length))
}

/// [`parse_cidr`], but leading zeros of the address are ignored.
pub(crate) fn parse_sloppy_cidr(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = text.split_once('/')?;
    let address = without_zeros(address)?;
    parse_cidr(&format!("{address}/{length}"))
}

/// Parses an address; leading zeros are ignored.
pub(crate) fn parse_sloppy_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| without_zeros(text))
}

/// The first address of a CIDR.
pub(crate) fn masked(address: IpAddr, length: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or_default();
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or_default();
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

/// A CIDR, also with host bits or leading zeros.
pub(crate) fn cidr(text: &str) -> Vec<String> {
    let Some((address, length)) = parse_cidr(text) else {
        return one(match parse_sloppy_cidr(text) {
            Some(_) => "must not have leading 0s in IP or prefix length",
            None => "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        });
    };
    let has_zeros =
        text.split_once('/').is_some_and(|(_, length)| length.len() > 1 && length.starts_with('0'));
    if has_zeros {
        one("must not have leading 0s in IP or prefix length")
    } else if is_mapped(address) {
        one("must not have an IPv4-mapped IPv6 address")
    } else if masked(address, length) != address {
        one("must not have bits set beyond the prefix length")
    } else {
        Vec::new()
    }
}

/// A CIDR in canonical form.
fn strict_cidr(text: &str) -> Vec<String> {
    let whys = cidr(text);
    match parse_cidr(text).map(|(address, length)| format!("{address}/{length}")) {
        Some(canonical) if whys.is_empty() && canonical != text => {
            vec![format!("must be in canonical form ({canonical:?})")]
        }
        _ => whys,
    }
}

/// The name of a port as IANA registers it.
pub(crate) fn port_name(text: &str) -> Vec<String> {
    let mut whys = Vec::new();
    if text.len() > 15 {
        whys.push("must be no more than 15 characters".to_owned());
    }
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !text.bytes().all(is_word) || text.is_empty() {
        whys.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        whys.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        whys.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        whys.push("must not begin or end with a hyphen".to_owned());
    }
    whys
}

/// The name of an environment variable, relaxed: printable ASCII without `=`.
pub(crate) fn env_name(text: &str) -> Vec<String> {
    let fits = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    if text.is_empty() {
        return one("environment variable name must be a non-empty string");
    }
    if text.bytes().all(fits) {
        return Vec::new();
    }
    one(
        "a valid environment variable name must consist only of printable ASCII characters other than '='",
    )
}

/// A relative path that neither leaves its directory nor starts with two dots.
pub(crate) fn local_path(text: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
    if text.starts_with('/') {
        errors.invalid(path, text, "must be a relative path");
    }
    if text.split('/').any(|part| part == "..") {
        errors.invalid(path, text, "must not contain '..'");
    }
    if text.starts_with("..") && !text.starts_with("../") {
        errors.invalid(path, text, "must not start with '..'");
    }
}

/// A subdomain whose labels may have underscores.
pub(crate) fn underscored_subdomain(text: &str) -> Vec<String> {
    const WHY: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";
    let edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.strip_prefix('_').unwrap_or(label).as_bytes();
        bytes.first().is_some_and(edge)
            && bytes.last().is_some_and(edge)
            && bytes.iter().all(|byte| edge(byte) || matches!(byte, b'-' | b'_'))
    };
    let mut whys = Vec::new();
    if text.len() > name::MAX_SUBDOMAIN {
        whys.push("must be no more than 253 bytes".to_owned());
    }
    if !text.split('.').all(is_label) {
        whys.push(WHY.to_owned());
    }
    whys
}

/// The name of an HTTP header.
pub(crate) fn header_name(text: &str) -> Vec<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !text.is_empty() && text.bytes().all(fits) {
        return Vec::new();
    }
    one(
        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
    )
}

/// A subdomain after `*.`.
pub(crate) fn wildcard_subdomain(text: &str) -> Vec<String> {
    let rest = text.strip_prefix("*.").unwrap_or_default();
    if text.len() <= 253 && !rest.is_empty() && name::dns1123_subdomain(rest).is_empty() {
        return Vec::new();
    }
    one(
        "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
    )
}

/// The number of a port.
pub(crate) const PORT: &str = "must be between 1 and 65535, inclusive";

pub(crate) fn is_port(number: i64) -> bool {
    (1..=65535).contains(&number)
}
