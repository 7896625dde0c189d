//! Indents JSON without parsing it: for people with a browser or curl.

/// The same JSON, indented by two spaces, with a newline at the end. The input must be well-formed.
pub(crate) fn indent(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut position = 0;
    while let Some(&byte) = json.get(position) {
        position += 1;
        match byte {
            b'"' => {
                let end = string_end(json, position);
                out.extend_from_slice(&json[position - 1..end]);
                position = end;
            }
            b'{' | b'[' => {
                out.push(byte);
                let next = json[position..].iter().copied().find(|byte| !byte.is_ascii_whitespace());
                if next == Some(byte + 2) {
                    out.push(byte + 2);
                    position += json[position..].iter().position(|other| *other == byte + 2).map_or(0, |at| at + 1);
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                new_line(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            b' ' | b'\n' | b'\t' | b'\r' => {}
            other => out.push(other),
        }
    }
    out.push(b'\n');
    out
}

/// Where the string that began before `position` ends, its closing quote included.
fn string_end(json: &[u8], mut position: usize) -> usize {
    while let Some(found) = memchr::memchr2(b'"', b'\\', &json[position..]) {
        position += found + 1;
        if json[position - 1] == b'"' {
            return position;
        }
        position += 1;
        if position >= json.len() {
            break;
        }
    }
    json.len()
}

fn new_line(out: &mut Vec<u8>, depth: usize) {
    out.push(b'\n');
    out.resize(out.len() + 2 * depth.min(512), b' ');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indents_like_everybody() {
        let compact = br#"{"a":{"b":[1,2,{}],"c":"x\"{,:\\"},"d":[],"e":null}"#;
        let value: serde_json::Value = serde_json::from_slice(compact).unwrap();
        let want = serde_json::to_string_pretty(&value).unwrap() + "\n";
        assert_eq!(String::from_utf8(indent(compact)).unwrap(), want);
        assert_eq!(indent(want.as_bytes()), want.as_bytes());
        assert_eq!(indent(b"\"unterminated\\"), b"\"unterminated\\\n");
    }
}
