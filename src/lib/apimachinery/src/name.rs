//! Names and their rules: DNS labels, subdomains, qualified names, label values.

/// Messages for users; empty if the name is valid.
pub type NameErrors = Vec<String>;

/// Limit of DNS labels, label values and the name part of qualified names.
pub const MAX_LABEL: usize = 63;

/// Limit of DNS subdomains.
pub const MAX_SUBDOMAIN: usize = 253;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const WORD: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const WORD_FORM: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// RFC 1123 label: at most 63 of `[a-z0-9-]`, alphanumeric at both ends.
pub fn dns1123_label(text: &str) -> NameErrors {
    let mut errors = too_long(text, MAX_LABEL, "characters");
    if is_label(text) {
        return errors;
    }
    errors.push(if text.split('.').all(is_label) {
        "must not contain dots".to_owned()
    } else {
        let form =
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
        misformed(form, LABEL, &["my-name", "123-abc"])
    });
    errors
}

/// RFC 1123 subdomain: labels joined by dots, at most 253.
pub fn dns1123_subdomain(text: &str) -> NameErrors {
    subdomain(text, "characters")
}

/// kube-apiserver counts bytes, and calls them characters except in label keys.
fn subdomain(text: &str, unit: &str) -> NameErrors {
    let mut errors = too_long(text, MAX_SUBDOMAIN, unit);
    if !text.split('.').all(is_label) {
        let form = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
            and must start and end with an alphanumeric character";
        errors.push(misformed(form, SUBDOMAIN, &["example.com"]));
    }
    errors
}

/// RFC 1035 label: at most 63, begins with a letter.
pub fn dns1035_label(text: &str) -> NameErrors {
    let mut errors = too_long(text, MAX_LABEL, "characters");
    if !(is_label(text) && text.starts_with(|first: char| first.is_ascii_lowercase())) {
        let form = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, \
            and end with an alphanumeric character";
        errors.push(misformed(form, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]));
    }
    errors
}

/// A path segment: not `.` or `..`, without `/` and `%` (RBAC names).
pub fn path_segment(text: &str) -> NameErrors {
    if matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    path_segment_prefix(text)
}

/// The start of a path segment.
pub fn path_segment_prefix(text: &str) -> NameErrors {
    ['/', '%']
        .into_iter()
        .filter(|char| text.contains(*char))
        .map(|char| format!("may not contain '{char}'"))
        .collect()
}

/// A label or annotation key: an optional DNS prefix and `/`, then at most 63 of `[A-Za-z0-9-_.]`.
pub fn qualified_name(text: &str) -> NameErrors {
    const EXAMPLES: [&str; 3] = ["MyName", "my.name", "123-abc"];
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if name.contains('/') {
        let form = misformed(WORD_FORM, WORD, &EXAMPLES);
        return vec![format!(
            "a valid label key {form} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        )];
    }
    let mut errors = match prefix {
        Some("") => vec!["prefix part must be non-empty".to_owned()],
        Some(prefix) => subdomain(prefix, "bytes")
            .into_iter()
            .map(|error| format!("prefix part {error}"))
            .collect(),
        None => NameErrors::new(),
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    }
    errors.extend(
        too_long(name, MAX_LABEL, "bytes").into_iter().map(|error| format!("name part {error}")),
    );
    if !is_word(name) {
        errors.push(format!("name part {}", misformed(WORD_FORM, WORD, &EXAMPLES)));
    }
    errors
}

/// A label's value: empty, or at most 63 of `[A-Za-z0-9-_.]`, alphanumeric at both ends.
pub fn label_value(text: &str) -> NameErrors {
    let mut errors = too_long(text, MAX_LABEL, "bytes");
    if !text.is_empty() && !is_word(text) {
        let form = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
            and must start and end with an alphanumeric character";
        errors.push(misformed(form, &format!("({WORD})?"), &["MyValue", "my_value", "12345"]));
    }
    errors
}

/// A key of a ConfigMap or Secret: at most 253 of `[A-Za-z0-9-_.]`, not `.`, and not starting with
/// `..`.
pub fn config_key(text: &str) -> NameErrors {
    let mut errors = too_long(text, MAX_SUBDOMAIN, "characters");
    if text.is_empty() || !text.bytes().all(is_word_byte) {
        let form = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        errors.push(misformed(form, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"]));
    }
    if matches!(text, "." | "..") {
        errors.push(format!("must not be '{text}'"));
    } else if text.starts_with("..") {
        errors.push("must not start with '..'".to_owned());
    }
    errors
}

/// Whether a character is allowed in texts such as a field manager: letters, marks, numbers,
/// punctuation, symbols, ASCII space.
pub fn is_printable(letter: char) -> bool {
    match letter {
        ' '..='~' => true,
        _ if letter.is_ascii() => false,
        // The standard library escapes unprintable characters, and a leading combining mark.
        _ => ['a', letter].iter().collect::<String>().escape_debug().all(|shown| shown != '\\'),
    }
}

fn too_long(text: &str, longest: usize, unit: &str) -> NameErrors {
    if text.len() > longest {
        vec![format!("must be no more than {longest} {unit}")]
    } else {
        NameErrors::new()
    }
}

fn misformed(form: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{form} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

fn is_label(text: &str) -> bool {
    let edge = |byte: Option<u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
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
        let bad = [
            "",
            "-",
            "a-",
            "-a",
            "A",
            "a_b",
            "a b",
            "a/b",
            "a%b",
            "\u{e9}",
            "\u{430}pple",
            "a\0b",
            "a\n",
        ];
        check_all(
            dns1123_label,
            &["a", "0", "a-b", "1-2", &long(63)],
            &[&bad[..], &["a.b", &long(64)]].concat(),
        );
        check_all(
            dns1035_label,
            &["a", "a-1", &long(63)],
            &[&bad[..], &["1a", "a.b", &long(64)]].concat(),
        );
        check_all(
            dns1123_subdomain,
            &["a", "a.b", "0.1.2", "a-b.c", &long(253)],
            &[&bad[..], &[".", "..", "a..b", "a.", ".a", "a.-b", &long(254)]].concat(),
        );
    }

    #[test]
    fn printable_characters() {
        for letter in "az ~'\"\\\u{e9}\u{301}\u{4e2d}\u{1f600}\u{fffd}".chars() {
            assert!(is_printable(letter), "{letter:?}");
        }
        for letter in
            "\t\n\u{7f}\u{a0}\u{ad}\u{200b}\u{202e}\u{2028}\u{3000}\u{e000}\u{feff}".chars()
        {
            assert!(!is_printable(letter), "{letter:?}");
        }
    }

    #[test]
    fn qualified_names_and_values() {
        let long = |length: usize| "x".repeat(length);
        check_all(
            qualified_name,
            &["a", "A", "a_b.c-d", "1", "example.com/A", &long(63), &format!("{}/a", long(253))],
            &[
                "",
                "/",
                "/a",
                "a/",
                "a/b/c",
                "-a",
                "a-",
                "a b",
                "A.com/b",
                "\u{e9}",
                &long(64),
                &format!("{}/a", long(254)),
            ],
        );
        check_all(
            label_value,
            &["", "a", "A_b.c-1", "1", &long(63)],
            &["-", "a-", "a b", "a/b", "\u{e9}", "a\n", &long(64)],
        );
        check_all(
            config_key,
            &["a", ".a", "a.b_c-D", "_", &long(253)],
            &["", ".", "..", "..a", "a/b", "a b", "\u{e9}", &long(254)],
        );
        check_all(path_segment, &["a", "a:b", "A B", "...", ""], &[".", "..", "a/b", "a%b"]);
    }

    #[test]
    fn messages_are_those_of_kube_apiserver() {
        let word = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character \
            (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
        let subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an \
            alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns1123_subdomain("A"), [subdomain]);
        assert_eq!(dns1123_subdomain(&"x".repeat(254)), ["must be no more than 253 characters"]);
        assert_eq!(
            qualified_name("A/"),
            [
                format!("prefix part {subdomain}"),
                "name part must be non-empty".to_owned(),
                format!("name part {word}")
            ]
        );
        assert_eq!(qualified_name("/b"), ["prefix part must be non-empty"]);
        assert_eq!(
            qualified_name("a/b/c"),
            [format!(
                "a valid label key {word} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )]
        );
        let long = "x".repeat(254);
        let lengths = [
            "prefix part must be no more than 253 bytes",
            "name part must be no more than 63 bytes",
        ];
        assert_eq!(qualified_name(&format!("{long}/{long}")), lengths);
        assert_eq!(label_value(&long), ["must be no more than 63 bytes"]);
        assert_eq!(config_key("..a"), ["must not start with '..'"]);
        assert_eq!(config_key(".."), ["must not be '..'"]);
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
