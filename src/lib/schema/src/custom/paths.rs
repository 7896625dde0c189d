//! Paths to declared fields: `.a.b`, and `['key']` where they may have brackets.

use crate::schema::Schema;

/// A step of a path.
enum Token<'a> {
    Dot,
    Open,
    Close,
    Text(&'a str),
}

/// The tokens of a path; what is in single quotes is one of them.
fn tokens(path: &str) -> Vec<Token<'_>> {
    let mut out = Vec::new();
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '.' | '[' | ']' => 1,
            '\'' => {
                let bytes = rest.as_bytes();
                (1..bytes.len()).find(|at| bytes[*at] == b'\'' && bytes[at - 1] != b'\\').map_or(rest.len(), |at| at + 1)
            }
            _ => rest.find(['.', '[', ']']).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(length);
        out.push(match token {
            "." => Token::Dot,
            "[" => Token::Open,
            "]" => Token::Close,
            text => Token::Text(text),
        });
        rest = after;
    }
    out
}

/// What is between single quotes.
fn unquoted(text: &str) -> Option<String> {
    let inner = text.strip_prefix('\'')?.strip_suffix('\'').filter(|_| text.len() >= 2)?;
    let mut out = String::with_capacity(inner.len());
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        out.push(match letter {
            '\\' => match letters.next()? {
                'a' => '\u{7}',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\u{b}',
                same @ ('\'' | '\\') => same,
                _ => return None,
            },
            plain => plain,
        });
    }
    Some(out)
}

/// Where a path leads in a schema, and the path as errors write it (`a.b[key]`); `None`: to no declared field, or it is no path. `brackets`: whether
/// `['name']` may stand for `.name`.
pub fn field_path<'a>(schema: &'a Schema, path: &str, brackets: bool) -> Option<(String, &'a Schema)> {
    let mut node = schema;
    let mut out = String::new();
    let mut tokens = tokens(path).into_iter();
    while let Some(token) = tokens.next() {
        let name = match (token, tokens.next()?) {
            (Token::Dot, Token::Text(text)) => text.to_owned(),
            (Token::Open, Token::Text(text)) if brackets => {
                let name = unquoted(text)?;
                matches!(tokens.next()?, Token::Close).then_some(name)?
            }
            _ => return None,
        };
        if node.properties.is_empty() {
            node = node.additional.as_deref()?;
            out.push_str(&format!("[{name}]"));
        } else {
            node = &node.properties.get(&*name)?.schema;
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(&name);
        }
    }
    Some((out, node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::custom::{Loading, from_json_schema};
    use ferrokube_apimachinery::document::json;

    #[test]
    fn paths_lead_to_declared_fields() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "object", "properties": {"b.c": {"type": "string"}, "m": {"type": "object", "additionalProperties": {"type": "string"}}}}}});
        let schema = from_json_schema(&schema, &Loading { path: "", ..Loading::default() }).expect("structural");
        let found = |path: &str, brackets| field_path(&schema, path, brackets).map(|(path, _)| path);
        assert_eq!(found(".a", false).as_deref(), Some("a"));
        assert_eq!(found(".a['b.c']", true).as_deref(), Some("a.b.c"));
        assert_eq!(found(".a['b.c']", false), None);
        assert_eq!(found(".a.m['x']", true).as_deref(), Some("a.m[x]"));
        assert_eq!(found(".a.m.x", false).as_deref(), Some("a.m[x]"));
        for bad in ["a", ".a.", "..a", ".a[b]", ".a['b.c'", ".a['b.c", ".a['\\x']", ".z", ".a.m.x.y"] {
            assert_eq!(found(bad, true), None, "{bad}");
        }
    }
}
