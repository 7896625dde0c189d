//! Indents JSON without parsing it.

/// Indents well-formed JSON by two spaces and appends a newline.
pub(crate) fn indent(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 2);
    Indenter::default().write(json, &mut out);
    out.push(b'\n');
    out
}

/// Indents JSON that comes in parts.
#[derive(Debug, Default)]
pub(crate) struct Indenter {
    depth: usize,
    /// The opening bracket just read, until it is known whether anything is inside.
    opened: Option<u8>,
    in_string: bool,
    escaped: bool,
    /// Bytes read, and bytes of indentation written.
    read: usize,
    indented: usize,
}

/// Free allowance of indentation. Beyond this and four times the input, lines are no longer
/// broken: deeply nested values would grow several hundred times.
const INDENTATION: usize = 1 << 20;

impl Indenter {
    /// Appends the next part.
    pub(crate) fn write(&mut self, json: &[u8], out: &mut Vec<u8>) {
        let mut position = 0;
        while let Some(&byte) = json.get(position) {
            if self.in_string {
                position = self.string(json, position, out);
                continue;
            }
            position += 1;
            self.read += 1;
            if byte.is_ascii_whitespace() {
                continue;
            }
            if let Some(opened) = self.opened.take() {
                if byte == opened + 2 {
                    out.push(byte);
                    continue;
                }
                self.depth += 1;
                self.new_line(out);
            }
            self.token(byte, out);
        }
    }

    fn new_line(&mut self, out: &mut Vec<u8>) {
        let spaces = 2 * self.depth.min(512);
        if self.indented + spaces <= INDENTATION + 4 * self.read {
            self.indented += spaces;
            out.push(b'\n');
            out.resize(out.len() + spaces, b' ');
        }
    }

    fn token(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            b'{' | b'[' => {
                out.push(byte);
                self.opened = Some(byte);
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.new_line(out);
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                self.new_line(out);
            }
            b':' => out.extend_from_slice(b": "),
            other => {
                self.in_string = other == b'"';
                out.push(other);
            }
        }
    }

    /// Copies the rest of a string or of the part; returns the end.
    fn string(&mut self, json: &[u8], begin: usize, out: &mut Vec<u8>) -> usize {
        let mut position = begin + usize::from(std::mem::take(&mut self.escaped));
        while let Some(found) =
            memchr::memchr2(b'"', b'\\', json.get(position..).unwrap_or_default())
        {
            position += found + 1;
            if json[position - 1] == b'"' {
                self.in_string = false;
                break;
            }
            self.escaped = position == json.len();
            position += 1;
        }
        let end = if self.in_string { json.len() } else { position };
        self.read += end - begin;
        out.extend_from_slice(&json[begin..end]);
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_41_indentation_is_bounded_however_deep_a_value_is() {
        let deep =
            format!("{}{}{}", "[".repeat(450), vec!["0"; 400_000].join(","), "]".repeat(450));
        let out = indent(deep.as_bytes());
        assert!(out.len() <= deep.len() + INDENTATION + 4 * deep.len() + 10_000, "{}", out.len());
        assert!(out.starts_with(b"[\n  [\n    ["));
        let compact: Vec<u8> = out.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
        assert!(compact == deep.as_bytes());
    }

    #[test]
    fn indents_like_serde_json() {
        let compact = br#"{"a":{"b":[1,2,{}],"c":"x\"{,:\\"},"d":[],"e":null}"#;
        let value: serde_json::Value = serde_json::from_slice(compact).unwrap();
        let want = serde_json::to_string_pretty(&value).unwrap() + "\n";
        assert_eq!(String::from_utf8(indent(compact)).unwrap(), want);
        assert_eq!(indent(want.as_bytes()), want.as_bytes());
        assert_eq!(indent(b"\"unterminated\\"), b"\"unterminated\\\n");
        for step in 1..compact.len() {
            let (mut indenter, mut out) = (Indenter::default(), Vec::new());
            compact.chunks(step).for_each(|part| indenter.write(part, &mut out));
            assert_eq!(String::from_utf8(out).unwrap() + "\n", want, "in parts of {step}");
        }
    }
}
