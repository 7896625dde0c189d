//! Names and the rules that make them valid: DNS labels, subdomains, qualified names, label values.

/// Why a text is not a name of the asked form; each string is a sentence for people.
pub type NameErrors = Vec<String>;

/// The longest DNS label, label value and name part of a qualified name.
pub const MAX_LABEL: usize = 63;

/// The longest DNS subdomain.
pub const MAX_SUBDOMAIN: usize = 253;

/// RFC 1123 label: at most 63 of `[a-z0-9-]`, alphanumeric at both ends.
pub fn dns1123_label(text: &str) -> NameErrors {
    let form = "must be a DNS label (RFC 1123): lower-case letters, digits and '-', with a letter or digit at both ends";
    check(text, MAX_LABEL, is_label(text), form)
}

/// RFC 1123 subdomain: labels joined by dots, at most 253.
pub fn dns1123_subdomain(text: &str) -> NameErrors {
    let form = "must be a DNS subdomain (RFC 1123): lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part";
    check(text, MAX_SUBDOMAIN, text.split('.').all(is_label), form)
}

/// RFC 1035 label: at most 63, begins with a letter.
pub fn dns1035_label(text: &str) -> NameErrors {
    let form = "must be a DNS label (RFC 1035): lower-case letters, digits and '-', beginning with a letter and ending with a letter or digit";
    check(text, MAX_LABEL, is_label(text) && text.starts_with(|first: char| first.is_ascii_lowercase()), form)
}

/// A path segment: not `.` or `..`, without `/` and `%` (RBAC names).
pub fn path_segment(text: &str) -> NameErrors {
    if matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    ['/', '%'].into_iter().filter(|char| text.contains(*char)).map(|char| format!("may not contain '{char}'")).collect()
}

/// A label or annotation key: an optional DNS prefix and `/`, then at most 63 of `[A-Za-z0-9-_.]`.
pub fn qualified_name(text: &str) -> NameErrors {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if name.contains('/') {
        return vec!["must be a name with at most one prefix, separated by a single '/' (such as 'example.com/my-name')".to_owned()];
    }
    let mut errors = match prefix {
        Some("") => vec!["the prefix before '/' must not be empty".to_owned()],
        Some(prefix) => dns1123_subdomain(prefix).into_iter().map(|error| format!("the prefix before '/' {error}")).collect(),
        None => NameErrors::new(),
    };
    if name.is_empty() {
        errors.push("the name must not be empty".to_owned());
        return errors;
    }
    let form = "must consist of letters, digits, '-', '_' and '.', with a letter or digit at both ends";
    errors.extend(check(name, MAX_LABEL, is_word(name), form).into_iter().map(|error| format!("the name {error}")));
    errors
}

/// A label's value: empty, or at most 63 of `[A-Za-z0-9-_.]`, alphanumeric at both ends.
pub fn label_value(text: &str) -> NameErrors {
    let form = "must be empty or consist of letters, digits, '-', '_' and '.', with a letter or digit at both ends";
    check(text, MAX_LABEL, text.is_empty() || is_word(text), form)
}

/// A key of a config map or secret: at most 253 of `[A-Za-z0-9-_.]`, not `.`, and not beginning with `..`.
pub fn config_key(text: &str) -> NameErrors {
    let form = "must consist of letters, digits, '-', '_' and '.'";
    let mut errors = check(text, MAX_SUBDOMAIN, !text.is_empty() && text.bytes().all(is_word_byte), form);
    if text == "." || text.starts_with("..") {
        errors.push("may not be '.' or begin with '..'".to_owned());
    }
    errors
}

/// Whether a character may stand in texts such as the name of a field manager: letters, marks, numbers, punctuation, symbols and the ASCII space.
pub fn is_printable(letter: char) -> bool {
    match letter {
        ' '..='~' => true,
        _ if letter.is_ascii() => false,
        // The standard library escapes what is not printable, and a combining mark when it comes first.
        _ => ['a', letter].iter().collect::<String>().escape_debug().all(|shown| shown != '\\'),
    }
}

fn check(text: &str, longest: usize, well_formed: bool, form: &str) -> NameErrors {
    let mut errors = NameErrors::new();
    if text.len() > longest {
        errors.push(format!("must be no more than {longest} characters"));
    }
    if !well_formed {
        errors.push(form.to_owned());
    }
    errors
}

fn is_label(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    edge(text.bytes().next()) && edge(text.bytes().last()) && text.bytes().all(inside)
}

fn is_word(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    edge(text.bytes().next()) && edge(text.bytes().last()) && text.bytes().all(is_word_byte)
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check_all(rule: fn(&str) -> NameErrors, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(rule(text), NameErrors::new(), "{text:?}");
        }
        for text in bad {
            assert!(!rule(text).is_empty(), "{text:?}");
        }
    }

    #[test]
    fn dns_names() {
        let long = |length: usize| "x".repeat(length);
        let bad = ["", "-", "a-", "-a", "A", "a_b", "a b", "a/b", "a%b", "\u{e9}", "\u{430}pple", "a\0b", "a\n"];
        check_all(dns1123_label, &["a", "0", "a-b", "1-2", &long(63)], &[&bad[..], &["a.b", &long(64)]].concat());
        check_all(dns1035_label, &["a", "a-1", &long(63)], &[&bad[..], &["1a", "a.b", &long(64)]].concat());
        check_all(dns1123_subdomain, &["a", "a.b", "0.1.2", "a-b.c", &long(253)], &[&bad[..], &[".", "..", "a..b", "a.", ".a", "a.-b", &long(254)]].concat());
    }

    #[test]
    fn printable_characters() {
        for letter in "az ~'\"\\\u{e9}\u{301}\u{4e2d}\u{1f600}\u{fffd}".chars() {
            assert!(is_printable(letter), "{letter:?}");
        }
        for letter in "\t\n\u{7f}\u{a0}\u{ad}\u{200b}\u{202e}\u{2028}\u{3000}\u{e000}\u{feff}".chars() {
            assert!(!is_printable(letter), "{letter:?}");
        }
    }

    #[test]
    fn qualified_names_and_values() {
        let long = |length: usize| "x".repeat(length);
        check_all(
            qualified_name,
            &["a", "A", "a_b.c-d", "1", "example.com/A", &long(63), &format!("{}/a", long(253))],
            &["", "/", "/a", "a/", "a/b/c", "-a", "a-", "a b", "A.com/b", "\u{e9}", &long(64), &format!("{}/a", long(254))],
        );
        check_all(label_value, &["", "a", "A_b.c-1", "1", &long(63)], &["-", "a-", "a b", "a/b", "\u{e9}", "a\n", &long(64)]);
        check_all(config_key, &["a", ".a", "a.b_c-D", "_", &long(253)], &["", ".", "..", "..a", "a/b", "a b", "\u{e9}", &long(254)]);
        check_all(path_segment, &["a", "a:b", "A B", "...", ""], &[".", "..", "a/b", "a%b"]);
    }

    proptest! {
        #[test]
        fn fuzz_names_never_panic(text in any::<String>()) {
            for rule in [dns1123_label, dns1123_subdomain, dns1035_label, path_segment, qualified_name, label_value, config_key] {
                let _ = rule(&text);
            }
        }
    }
}
