//! Names and the rules that make them valid: DNS labels, subdomains, qualified names, label values.

/// Why a text is not a name of the asked form; each string is a sentence for people.
pub type NameErrors = Vec<String>;

/// RFC 1123 label: at most 63 of `[a-z0-9-]`, alphanumeric at both ends.
pub fn dns1123_label(_text: &str) -> NameErrors {
    unimplemented!("apimachinery owner")
}

/// RFC 1123 subdomain: labels joined by dots, at most 253.
pub fn dns1123_subdomain(_text: &str) -> NameErrors {
    unimplemented!("apimachinery owner")
}

/// RFC 1035 label: at most 63, begins with a letter.
pub fn dns1035_label(_text: &str) -> NameErrors {
    unimplemented!("apimachinery owner")
}

/// A path segment: not `.` or `..`, without `/` and `%` (RBAC names).
pub fn path_segment(_text: &str) -> NameErrors {
    unimplemented!("apimachinery owner")
}

/// A label or annotation key: an optional DNS prefix and `/`, then at most 63 of `[A-Za-z0-9-_.]`.
pub fn qualified_name(_text: &str) -> NameErrors {
    unimplemented!("apimachinery owner")
}

/// A label's value: empty, or at most 63 of `[A-Za-z0-9-_.]`, alphanumeric at both ends.
pub fn label_value(_text: &str) -> NameErrors {
    unimplemented!("apimachinery owner")
}
