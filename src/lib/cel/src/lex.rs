//! Tokens of the language.

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Name(String),
    /// The magnitude: a sign is an operator.
    Int(u64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Symbol(&'static str),
    End,
}

/// The longest expression, in bytes.
const MAX_SOURCE: usize = 100_000;

/// Longer ones first.
const SYMBOLS: [&str; 27] =
    ["==", "!=", "<=", ">=", "&&", "||", ".?", "[?", "{?", "<", ">", "(", ")", "[", "]", "{", "}", ".", ",", ":", "?", "!", "-", "+", "*", "/", "%"];

/// Splits an expression.
///
/// # Errors
/// What is no token.
pub(crate) fn tokens(source: &str) -> Result<Vec<Token>, String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("expression is longer than {MAX_SOURCE} bytes"));
    }
    let mut lexer = Lexer { rest: source };
    let mut out = Vec::new();
    loop {
        let token = lexer.next()?;
        let ended = token == Token::End;
        out.push(token);
        if ended {
            return Ok(out);
        }
    }
}

struct Lexer<'s> {
    rest: &'s str,
}

impl Lexer<'_> {
    fn next(&mut self) -> Result<Token, String> {
        self.blank();
        let Some(first) = self.rest.chars().next() else { return Ok(Token::End) };
        if let Some(text) = self.quoted()? {
            return Ok(text);
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
            return Ok(Token::Name(self.take(end).to_owned()));
        }
        if first.is_ascii_digit() || (first == '.' && self.rest[1..].starts_with(|c: char| c.is_ascii_digit())) {
            return self.number();
        }
        for symbol in SYMBOLS {
            if self.rest.starts_with(symbol) {
                self.take(symbol.len());
                return Ok(Token::Symbol(symbol));
            }
        }
        Err(format!("syntax error: unexpected character {:?}", first))
    }

    fn take(&mut self, bytes: usize) -> &str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    fn blank(&mut self) {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r', '\u{c}']);
            match self.rest.starts_with("//") {
                true => self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest),
                false => return,
            }
        }
    }

    fn number(&mut self) -> Result<Token, String> {
        let malformed = || "syntax error: malformed number".to_owned();
        if let Some(hexadecimal) = self.rest.strip_prefix("0x") {
            let end = hexadecimal.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hexadecimal.len());
            let value = u64::from_str_radix(&hexadecimal[..end], 16).map_err(|_| malformed())?;
            self.take(end + 2);
            return Ok(self.integer(value));
        }
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let mut end = digits(self.rest);
        let mut whole = true;
        if self.rest[end..].starts_with('.') && self.rest[end + 1..].starts_with(|c: char| c.is_ascii_digit()) {
            end += 1 + digits(&self.rest[end + 1..]);
            whole = false;
        }
        if self.rest[end..].starts_with(['e', 'E']) {
            let after = self.rest[end + 1..].trim_start_matches(['+', '-']);
            let sign = self.rest.len() - end - 1 - after.len();
            if digits(after) > 0 && sign <= 1 {
                end += 1 + sign + digits(after);
                whole = false;
            }
        }
        let text = self.take(end).to_owned();
        match whole {
            true => text.parse().map(|value| self.integer(value)).map_err(|_| malformed()),
            false => text.parse().map(Token::Double).map_err(|_| malformed()),
        }
    }

    fn integer(&mut self, value: u64) -> Token {
        if self.rest.starts_with(['u', 'U']) {
            self.take(1);
            return Token::Uint(value);
        }
        Token::Int(value)
    }

    /// A text or bytes, if there is one: `'a'`, `"""a"""`, `r'a'`, `b"a"`.
    fn quoted(&mut self) -> Result<Option<Token>, String> {
        let prefix = self.rest.find(|c: char| !matches!(c, 'r' | 'R' | 'b' | 'B')).unwrap_or(self.rest.len());
        if prefix > 2 || !self.rest[prefix..].starts_with(['\'', '"']) {
            return Ok(None);
        }
        let flags = self.rest[..prefix].to_ascii_lowercase();
        if flags == "rr" || flags == "bb" {
            return Ok(None);
        }
        let (raw, bytes) = (flags.contains('r'), flags.contains('b'));
        let body = &self.rest[prefix..];
        let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| body.starts_with(quote)).expect("it starts with a quote");
        let content = &body[quote.len()..];
        let length = closing(content, quote, raw)?;
        let text = if raw { content.as_bytes()[..length].to_vec() } else { unescape(&content[..length], bytes)? };
        self.take(prefix + 2 * quote.len() + length);
        if bytes {
            return Ok(Some(Token::Bytes(text)));
        }
        String::from_utf8(text).map(|text| Some(Token::Text(text))).map_err(|_| "syntax error: a text must be UTF-8".to_owned())
    }
}

/// How long a text is.
fn closing(content: &str, quote: &str, raw: bool) -> Result<usize, String> {
    let mut escaped = false;
    for (at, c) in content.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' && !raw {
            escaped = true;
        } else if content[at..].starts_with(quote) {
            return Ok(at);
        } else if matches!(c, '\n' | '\r') && quote.len() == 1 {
            break;
        }
    }
    Err("syntax error: a text has no end".to_owned())
}

/// Without backslashes. In bytes `\xff` and `\377` are bytes, in texts characters.
fn unescape(text: &str, bytes: bool) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        let kind = rest.chars().next().unwrap_or_default();
        let (digits, radix, skip) = match kind {
            'x' | 'X' => (2, 16, 1),
            'u' if !bytes => (4, 16, 1),
            'U' if !bytes => (8, 16, 1),
            '0'..='3' => (3, 8, 0),
            _ => {
                out.push(simple(kind).ok_or("syntax error: an unknown escape in a text")?);
                rest = &rest[1..];
                continue;
            }
        };
        let code = rest.get(skip..skip + digits).and_then(|code| u32::from_str_radix(code, radix).ok()).ok_or("syntax error: a malformed escape in a text")?;
        rest = &rest[skip + digits..];
        match u8::try_from(code) {
            Ok(byte) if bytes => out.push(byte),
            _ => {
                let character = char::from_u32(code).ok_or("syntax error: an escape that is no character")?;
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

fn simple(kind: char) -> Option<u8> {
    Some(match kind {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        '\\' | '?' | '"' | '\'' | '`' => kind as u8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals() {
        let one = |source: &str| tokens(source).map(|mut tokens| tokens.remove(0));
        assert_eq!(one("0x1F"), Ok(Token::Int(31)));
        assert_eq!(one("7u"), Ok(Token::Uint(7)));
        assert_eq!(one(".5e1"), Ok(Token::Double(5.0)));
        assert_eq!(one(r#""a\n\u00e9\x41\101""#), Ok(Token::Text("a\n\u{e9}AA".to_owned())));
        assert_eq!(one(r"r'\d'"), Ok(Token::Text("\\d".to_owned())));
        assert_eq!(one("'''a'b'''"), Ok(Token::Text("a'b".to_owned())));
        assert_eq!(one(r"b'\xff'"), Ok(Token::Bytes(vec![255])));
        assert_eq!(one("rb"), Ok(Token::Name("rb".to_owned())));
        for bad in ["'a", "'\\q'", "99999999999999999999", "\u{e9}", "'\\x4\u{e9}'", "&"] {
            assert!(tokens(bad).is_err(), "{bad}");
        }
        assert_eq!(tokens("a // b\n.c"), Ok(vec![Token::Name("a".to_owned()), Token::Symbol("."), Token::Name("c".to_owned()), Token::End]));
    }
}
