//! Generated names: `generateName` and five characters that form no words.

use crate::random;
use ferrokube_apimachinery::document::{Document, Value};

const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
/// Generated names fit a DNS label.
const MAX_LENGTH: usize = 63;
/// Names tried before a create with `generateName` fails.
pub(crate) const ATTEMPTS: usize = 8;

/// Whether the object needs a generated name.
pub(crate) fn is_missing(object: &Document) -> bool {
    object.name().is_empty() && !object.meta("generateName").is_empty()
}

/// Sets a new random name.
pub(crate) fn generate(object: &mut Document) {
    let name = with_suffix(object.meta("generateName"));
    object.set(&["metadata", "name"], Value::from(name));
}

/// A name for an object that has none and asks for none.
pub(crate) fn fill(object: &mut Document) {
    if object.name().is_empty() && !is_missing(object) {
        object.set(&["metadata", "name"], Value::from(random::uuid()));
    }
}

fn with_suffix(prefix: &str) -> String {
    let mut end = prefix.len().min(MAX_LENGTH - SUFFIX);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = prefix[..end].to_owned();
    name.extend((0..SUFFIX).map(|_| char::from(ALPHABET[below_27()])));
    name
}

/// Uniform below 27, by rejection: 243 is the largest multiple in a byte.
fn below_27() -> usize {
    loop {
        let [byte] = random::bytes();
        if byte < 243 {
            return usize::from(byte % 27);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn a_suffix_of_five_safe_characters_is_added() {
        let name = with_suffix("pre-");
        assert!(name.starts_with("pre-") && name.len() == 9, "{name}");
        assert!(name.bytes().skip(4).all(|byte| ALPHABET.contains(&byte)), "{name}");
        assert_ne!(with_suffix("pre-"), with_suffix("pre-"));
    }

    #[test]
    fn only_objects_without_any_name_are_filled() {
        let filled = |metadata: Value| {
            let object = json!({"metadata": metadata});
            let mut object = Document::from_value(object).expect("an object");
            fill(&mut object);
            object.name().to_owned()
        };
        assert_eq!(filled(json!({})).len(), 36);
        assert_ne!(filled(json!({})), filled(json!({})));
        assert_eq!(filled(json!({"name": "a"})), "a");
        assert_eq!(filled(json!({"generateName": "a-"})), "");
    }

    #[test]
    fn long_prefixes_are_cut_at_a_character() {
        assert_eq!(with_suffix(&"x".repeat(300)).len(), 63);
        assert_eq!(with_suffix(&"\u{e9}".repeat(40)).len(), 63);
        assert_eq!(with_suffix(&format!("y{}", "\u{e9}".repeat(40))).len(), 62);
    }
}
