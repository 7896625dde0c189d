//! Texts as Go quotes them.

use crate::work;

/// Quotes like Go's `%q`, which escapes control characters unlike Rust.
pub fn quote(text: &str) -> String {
    work::count(text.len());
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            letter if letter < ' ' || letter == '\u{7f}' => {
                quoted.push_str(&format!("\\x{:02x}", u32::from(letter)))
            }
            letter if crate::name::is_printable(letter) => quoted.push(letter),
            letter if u32::from(letter) < 0x1_0000 => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(letter)))
            }
            letter => quoted.push_str(&format!("\\U{:08x}", u32::from(letter))),
        }
    }
    quoted.push('"');
    quoted
}
