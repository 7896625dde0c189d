//! JSON syntax errors, with the messages of `encoding/json`.

/// Error of parsing a JSON value; `None` if it is valid. Ignores depth.
pub fn syntax_fault(bytes: &[u8]) -> Option<String> {
    let mut scanner = Scanner { bytes, at: 0, open: Vec::new() };
    scanner.document().err().map(|fault| match fault {
        SyntaxFault::End => "unexpected end of JSON input".to_owned(),
        SyntaxFault::Byte(byte, context) => {
            format!("invalid character {} {context}", character(byte))
        }
    })
}

enum SyntaxFault {
    End,
    Byte(u8, &'static str),
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Open brackets.
    open: Vec<u8>,
}

/// Letters of keywords after the first, each with the error if it is missing.
const TRUE: [(u8, &str); 3] = [
    (b'r', "in literal true (expecting 'r')"),
    (b'u', "in literal true (expecting 'u')"),
    (b'e', "in literal true (expecting 'e')"),
];
const FALSE: [(u8, &str); 4] = [
    (b'a', "in literal false (expecting 'a')"),
    (b'l', "in literal false (expecting 'l')"),
    (b's', "in literal false (expecting 's')"),
    (b'e', "in literal false (expecting 'e')"),
];
const NULL: [(u8, &str); 3] = [
    (b'u', "in literal null (expecting 'u')"),
    (b'l', "in literal null (expecting 'l')"),
    (b'l', "in literal null (expecting 'l')"),
];
const VALUE: &str = "looking for beginning of value";
const KEY: &str = "looking for beginning of object key string";

impl Scanner<'_> {
    fn document(&mut self) -> Result<(), SyntaxFault> {
        loop {
            self.value()?;
            loop {
                let next = self.spaced();
                match (self.open.last(), next) {
                    (None, None) => return Ok(()),
                    (None, Some(byte)) => {
                        return Err(SyntaxFault::Byte(byte, "after top-level value"));
                    }
                    (Some(_), None) => return Err(SyntaxFault::End),
                    (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')) => {
                        self.at += 1;
                        self.open.pop();
                    }
                    (Some(b'{'), Some(b',')) => {
                        self.at += 1;
                        self.key()?;
                        break;
                    }
                    (Some(b'['), Some(b',')) => {
                        self.at += 1;
                        break;
                    }
                    (Some(b'{'), Some(byte)) => {
                        return Err(SyntaxFault::Byte(byte, "after object key:value pair"));
                    }
                    (Some(_), Some(byte)) => {
                        return Err(SyntaxFault::Byte(byte, "after array element"));
                    }
                }
            }
        }
    }

    /// A scalar, an empty list or map, or the start of one up to its first value.
    fn value(&mut self) -> Result<(), SyntaxFault> {
        loop {
            let byte = self.spaced().ok_or(SyntaxFault::End)?;
            match byte {
                b'{' | b'[' => {
                    self.at += 1;
                    let closing = if byte == b'{' { b'}' } else { b']' };
                    if self.spaced() == Some(closing) {
                        self.at += 1;
                        return Ok(());
                    }
                    self.open.push(byte);
                    if byte == b'{' {
                        self.key()?;
                    }
                }
                b'"' => return self.string(),
                b'-' | b'0'..=b'9' => return self.number(),
                b't' => return self.word(&TRUE),
                b'f' => return self.word(&FALSE),
                b'n' => return self.word(&NULL),
                other => return Err(SyntaxFault::Byte(other, VALUE)),
            }
        }
    }

    fn word(&mut self, letters: &[(u8, &'static str)]) -> Result<(), SyntaxFault> {
        self.at += 1;
        letters.iter().try_for_each(|(letter, context)| match self.take_or_space() {
            byte if byte == *letter => Ok(()),
            byte => Err(SyntaxFault::Byte(byte, context)),
        })
    }

    fn key(&mut self) -> Result<(), SyntaxFault> {
        match self.spaced() {
            None => return Err(SyntaxFault::End),
            Some(b'"') => self.string()?,
            Some(byte) => return Err(SyntaxFault::Byte(byte, KEY)),
        }
        match self.spaced() {
            None => Err(SyntaxFault::End),
            Some(b':') => {
                self.at += 1;
                Ok(())
            }
            Some(byte) => Err(SyntaxFault::Byte(byte, "after object key")),
        }
    }

    fn string(&mut self) -> Result<(), SyntaxFault> {
        self.at += 1;
        loop {
            match self.take() {
                None => return Err(SyntaxFault::End),
                Some(b'"') => return Ok(()),
                Some(b'\\') => self.escape()?,
                Some(byte) if byte < 0x20 => {
                    return Err(SyntaxFault::Byte(byte, "in string literal"));
                }
                Some(_) => {}
            }
        }
    }

    fn escape(&mut self) -> Result<(), SyntaxFault> {
        match self.take_or_space() {
            b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => Ok(()),
            b'u' => (0..4).try_for_each(|_| match self.take_or_space() {
                digit if digit.is_ascii_hexdigit() => Ok(()),
                byte => Err(SyntaxFault::Byte(byte, "in \\u hexadecimal character escape")),
            }),
            byte => Err(SyntaxFault::Byte(byte, "in string escape code")),
        }
    }

    fn number(&mut self) -> Result<(), SyntaxFault> {
        if self.bytes[self.at] == b'-' {
            self.at += 1;
        }
        match self.take_or_space() {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            byte => return Err(SyntaxFault::Byte(byte, "in numeric literal")),
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.some_digits("after decimal point in numeric literal")?;
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits("in exponent of numeric literal")?;
        }
        Ok(())
    }

    fn digits(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }

    fn some_digits(&mut self, context: &'static str) -> Result<(), SyntaxFault> {
        match self.take_or_space() {
            b'0'..=b'9' => {
                self.digits();
                Ok(())
            }
            byte => Err(SyntaxFault::Byte(byte, context)),
        }
    }

    fn spaced(&mut self) -> Option<u8> {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte
    }

    /// At the end returns a space, which ends numbers; where it is invalid, that error is reported.
    fn take_or_space(&mut self) -> u8 {
        self.take().unwrap_or(b' ')
    }
}

/// A byte as Go quotes a character.
fn character(byte: u8) -> String {
    match byte {
        b'\'' => "'\\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        other => {
            let quoted = crate::quote::quote(&char::from(other).to_string());
            format!("'{}'", &quoted[1..quoted.len() - 1])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::syntax_fault;

    #[test]
    fn syntax_errors_are_those_of_go() {
        let cases = [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("{\"a\":1", "unexpected end of JSON input"),
            ("\"a", "unexpected end of JSON input"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("\u{e9}", "invalid character '\u{c3}' looking for beginning of value"),
            ("\0", "invalid character '\\x00' looking for beginning of value"),
            ("{\"a\":\"b\",}", "invalid character '}' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 2}", "invalid character '2' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("{\"a\":1}}", "invalid character '}' after top-level value"),
            ("01", "invalid character '1' after top-level value"),
            ("-", "invalid character ' ' in numeric literal"),
            ("1.", "invalid character ' ' after decimal point in numeric literal"),
            ("1e+", "invalid character ' ' in exponent of numeric literal"),
            ("{\"data\":tru}", "invalid character '}' in literal true (expecting 'e')"),
            ("fals", "invalid character ' ' in literal false (expecting 'e')"),
            ("nul", "invalid character ' ' in literal null (expecting 'l')"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u00g\"", "invalid character 'g' in \\u hexadecimal character escape"),
            ("\"\u{1}\"", "invalid character '\\x01' in string literal"),
        ];
        for (text, want) in cases {
            assert_eq!(syntax_fault(text.as_bytes()).as_deref(), Some(want), "{text:?}");
        }
        for good in ["{}", " [1, -0.5e3, {\"a\": [null, true, false]}] ", "\"\\u00e9\""] {
            assert_eq!(syntax_fault(good.as_bytes()), None);
        }
    }
}
