//! Paths to declared fields: `.a.b`, and `['key']` where brackets are allowed.

use crate::schema::Schema;

/// Splits a path into tokens; a single-quoted text is one token.
fn tokens(path: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '.' | '[' | ']' => 1,
            '\'' => {
                let bytes = rest.as_bytes();
                (1..bytes.len())
                    .find(|at| bytes[*at] == b'\'' && bytes[at - 1] != b'\\')
                    .map_or(rest.len(), |at| at + 1)
            }
            _ => rest.find(['.', '[', ']']).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(length);
        out.push(token);
        rest = after;
    }
    out
}

/// The text between single quotes.
fn unquoted(text: &str) -> Result<String, String> {
    let inner = text
        .strip_prefix('\'')
        .and_then(|rest| rest.strip_suffix('\''))
        .ok_or_else(|| format!("expected single quoted string but got {text}"))?;
    let mut out = String::with_capacity(inner.len());
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        let escaped = if letter == '\\' { letters.next() } else { None };
        out.push(match escaped {
            None => letter,
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some(same @ ('\'' | '\\')) => same,
            Some(other) => {
                return Err(format!("invalid string literal: invalid escape char \\{other}"));
            }
        });
    }
    Ok(out)
}

/// Resolves a path in a schema; also returns the path as errors print it (`a.b[key]`). `brackets`:
/// whether `['name']` may replace `.name`.
///
/// # Errors
/// Not a path, or not to a declared field.
pub fn field_path<'a>(
    schema: &'a Schema,
    path: &str,
    brackets: bool,
) -> Result<(String, &'a Schema), String> {
    const NOWHERE: &str = "does not refer to a valid field";
    const END: &str = "unexpected end of JSON path";
    let mut node = schema;
    let mut out = String::new();
    let mut tokens = tokens(path).into_iter();
    while let Some(token) = tokens.next() {
        let is_bracket = token == "[";
        let name = match token {
            "." => tokens.next().ok_or(END)?.to_owned(),
            "[" if !brackets => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let given = tokens.next().ok_or(END)?;
                unquoted(given)?
            }
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        let declared = !node.properties.is_empty();
        node = match (node.properties.get(&name), node.additional.as_deref()) {
            (Some(property), _) if declared => &property.schema,
            (_, Some(values)) if !declared => values,
            _ => return Err(NOWHERE.to_owned()),
        };
        match declared {
            true if out.is_empty() => out.push_str(&name),
            true => out.push_str(&format!(".{name}")),
            false => out.push_str(&format!("[{name}]")),
        }
        if is_bracket {
            match tokens.next().ok_or(END)? {
                "]" => {}
                other => return Err(format!("expected ] but got {other}")),
            }
        }
    }
    Ok((out, node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::custom::{SchemaContext, from_json_schema};
    use ferrokube_apimachinery::document::json;

    #[test]
    fn paths_lead_to_declared_fields() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "object", "properties": {"b.c": {"type": "string"}, "m": {"type": "object", "additionalProperties": {"type": "string"}}}}}});
        let schema =
            from_json_schema(&schema, &SchemaContext { path: "", ..SchemaContext::default() })
                .expect("structural");
        let found =
            |path: &str, brackets| field_path(&schema, path, brackets).ok().map(|(path, _)| path);
        assert_eq!(found(".a", false).as_deref(), Some("a"));
        assert_eq!(found(".a['b.c']", true).as_deref(), Some("a.b.c"));
        assert_eq!(found(".a['b.c']", false), None);
        assert_eq!(found(".a.m['x']", true).as_deref(), Some("a.m[x]"));
        assert_eq!(found(".a.m.x", false).as_deref(), Some("a.m[x]"));
        for bad in
            ["a", ".a.", "..a", ".a[b]", ".a['b.c'", ".a['b.c", ".a['\\x']", ".z", ".a.m.x.y"]
        {
            assert_eq!(found(bad, true), None, "{bad}");
        }
    }
}
