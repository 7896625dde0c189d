//! Tokens, as in cel-go's grammar: its error messages list them.

use crate::source::{SourceError, SourceErrors};
use ferrokube_apimachinery::work;

/// Reserved words, which are not names; literals and `in` are tokens of their own.
pub(crate) const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Defines [`Token`] from each kind's name and its text in messages.
macro_rules! define_tokens {
    ($($name:ident = $text:literal,)*) => {
        /// A kind of token, in the grammar's order, in which messages list expected ones.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Token {
            $($name,)*
        }

        impl Token {
            /// All kinds, in order.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            /// As messages print it.
            pub(crate) fn shown(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

define_tokens! {
    End = "<EOF>",
    Equals = "'=='",
    NotEquals = "'!='",
    In = "'in'",
    Less = "'<'",
    LessEquals = "'<='",
    GreaterEquals = "'>='",
    Greater = "'>'",
    And = "'&&'",
    Or = "'||'",
    OpenBracket = "'['",
    CloseBracket = "']'",
    OpenBrace = "'{'",
    CloseBrace = "'}'",
    Open = "'('",
    Close = "')'",
    Dot = "'.'",
    Comma = "','",
    Minus = "'-'",
    Not = "'!'",
    Question = "'?'",
    Colon = "':'",
    Plus = "'+'",
    Star = "'*'",
    Slash = "'/'",
    Percent = "'%'",
    True = "'true'",
    False = "'false'",
    Null = "'null'",
    Double = "NUM_FLOAT",
    Int = "NUM_INT",
    Uint = "NUM_UINT",
    Text = "STRING",
    Bytes = "BYTES",
    Name = "IDENTIFIER",
    Escaped = "ESC_IDENTIFIER",
}

/// A token with its byte range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lexeme {
    pub(crate) token: Token,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Longer symbols first.
const SYMBOLS: [(&str, Token); 24] = [
    ("==", Token::Equals),
    ("!=", Token::NotEquals),
    ("<=", Token::LessEquals),
    (">=", Token::GreaterEquals),
    ("&&", Token::And),
    ("||", Token::Or),
    ("<", Token::Less),
    (">", Token::Greater),
    ("[", Token::OpenBracket),
    ("]", Token::CloseBracket),
    ("{", Token::OpenBrace),
    ("}", Token::CloseBrace),
    ("(", Token::Open),
    (")", Token::Close),
    (".", Token::Dot),
    (",", Token::Comma),
    ("-", Token::Minus),
    ("!", Token::Not),
    ("?", Token::Question),
    (":", Token::Colon),
    ("+", Token::Plus),
    ("*", Token::Star),
    ("/", Token::Slash),
    ("%", Token::Percent),
];

/// Splits an expression; invalid input is reported and skipped. The last token is the end.
pub(crate) fn tokens(source: &str, faults: &mut SourceErrors) -> Vec<Lexeme> {
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        at = source.len() - blank(&source[at..]).len();
        let rest = &source[at..];
        if rest.is_empty() || faults.is_full() {
            out.push(Lexeme { token: Token::End, start: source.len(), end: source.len() });
            return out;
        }
        match next(rest) {
            Ok((token, length)) => {
                out.push(Lexeme { token, start: at, end: at + length });
                at += length;
            }
            Err(length) => {
                faults.push(SourceError::syntax(
                    at,
                    format!("token recognition error at: '{}'", &rest[..length]),
                ));
                at += length;
            }
        }
    }
}

/// Skips whitespace and comments.
fn blank(mut rest: &str) -> &str {
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r', '\u{c}']);
        match rest.starts_with("//") {
            true => rest = rest.find('\n').map_or("", |end| &rest[end..]),
            false => return rest,
        }
    }
}

/// The longest token, or the length of the invalid input.
fn next(rest: &str) -> Result<(Token, usize), usize> {
    work::count(1);
    let first = rest.chars().next().unwrap_or_default();
    if let Some((length, is_bytes)) = quoted(rest) {
        return match length {
            Ok(length) => Ok((if is_bytes { Token::Bytes } else { Token::Text }, length)),
            // The prefix of an invalid string literal is a name.
            Err(_) if first.is_ascii_alphabetic() => Ok(word(rest)),
            Err(stop) => Err(through(rest, stop)),
        };
    }
    if first.is_ascii_alphabetic() || first == '_' {
        return Ok(word(rest));
    }
    if first.is_ascii_digit()
        || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()))
    {
        return Ok(number(rest));
    }
    if first == '`' {
        let length = rest[1..]
            .find(|c: char| !(c.is_ascii_alphanumeric() || "_.-/ ".contains(c)))
            .map_or(rest.len(), |at| at + 1);
        return if length > 1 && rest[length..].starts_with('`') {
            Ok((Token::Escaped, length + 1))
        } else {
            Err(through(rest, length))
        };
    }
    match SYMBOLS.into_iter().find(|(symbol, _)| rest.starts_with(symbol)) {
        Some((symbol, token)) => Ok((token, symbol.len())),
        // Half a symbol is invalid together with the character after it.
        None if matches!(first, '=' | '&' | '|') => Err(through(rest, 1)),
        None => Err(first.len_utf8()),
    }
}

/// Up to and including the character at `stop`, if there is one.
fn through(rest: &str, stop: usize) -> usize {
    stop + rest[stop..].chars().next().map_or(0, char::len_utf8)
}

fn word(rest: &str) -> (Token, usize) {
    let length =
        rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
    let token = match &rest[..length] {
        "in" => Token::In,
        "true" => Token::True,
        "false" => Token::False,
        "null" => Token::Null,
        _ => Token::Name,
    };
    (token, length)
}

fn number(rest: &str) -> (Token, usize) {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    if let Some(hexadecimal) = rest.strip_prefix("0x") {
        let length =
            hexadecimal.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hexadecimal.len());
        if length > 0 {
            return suffixed(rest, 2 + length);
        }
    }
    let mut end = digits(rest);
    let mut whole = true;
    if rest[end..].starts_with('.') && rest[end + 1..].starts_with(|c: char| c.is_ascii_digit()) {
        end += 1 + digits(&rest[end + 1..]);
        whole = false;
    }
    if rest[end..].starts_with(['e', 'E']) {
        let sign = usize::from(rest[end + 1..].starts_with(['+', '-']));
        let power = digits(&rest[end + 1 + sign..]);
        if power > 0 {
            end += 1 + sign + power;
            whole = false;
        }
    }
    if whole { suffixed(rest, end) } else { (Token::Double, end) }
}

fn suffixed(rest: &str, length: usize) -> (Token, usize) {
    if rest[length..].starts_with(['u', 'U']) {
        (Token::Uint, length + 1)
    } else {
        (Token::Int, length)
    }
}

/// The length of a string or bytes literal (`'a'`, `"""a"""`, `r'a'`, `b"a"`), or where it becomes
/// invalid; and whether it is bytes.
fn quoted(rest: &str) -> Option<(Result<usize, usize>, bool)> {
    let after_bytes = rest.strip_prefix(['b', 'B']);
    let body = after_bytes.unwrap_or(rest);
    let after_raw = body.strip_prefix(['r', 'R']);
    let raw = after_raw.is_some();
    let body = after_raw.unwrap_or(body);
    if !body.starts_with(['\'', '"']) {
        return None;
    }
    let prefix = rest.len() - body.len();
    let quote = &body[..1];
    let triple = quote.repeat(3);
    let long = body.strip_prefix(&*triple).map(|inner| {
        content(inner, &triple, raw).map(|length| length + 6).map_err(|stop| stop + 3)
    });
    let length = match long {
        Some(Ok(length)) => Ok(length),
        // An empty literal, followed by another one.
        Some(Err(_)) => Ok(2),
        None => content(&body[1..], quote, raw).map(|length| length + 2).map_err(|stop| stop + 1),
    };
    Some((
        length.map(|length| length + prefix).map_err(|stop| stop + prefix),
        after_bytes.is_some(),
    ))
}

/// The length up to the closing quote, or where the literal becomes invalid.
fn content(text: &str, quote: &str, raw: bool) -> Result<usize, usize> {
    let mut at = 0;
    loop {
        let rest = &text[at..];
        if rest.starts_with(quote) {
            return Ok(at);
        }
        at += match rest.chars().next() {
            None => return Err(at),
            Some('\\') if !raw => escape(&rest[1..]).map_err(|stop| at + 1 + stop)? + 1,
            Some('\n' | '\r') if quote.len() == 1 => return Err(at),
            Some(letter) => letter.len_utf8(),
        };
    }
}

/// The length of an escape after its backslash, or where it becomes invalid.
fn escape(text: &str) -> Result<usize, usize> {
    let digits = |from: usize, count: usize, is_digit: fn(u8) -> bool| {
        let found = text.as_bytes()[from.min(text.len())..]
            .iter()
            .take(count)
            .take_while(|byte| is_digit(**byte))
            .count();
        if found == count { Ok(from + count) } else { Err(from + found) }
    };
    match text.as_bytes().first() {
        Some(
            b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'"' | b'\'' | b'\\' | b'?' | b'`',
        ) => Ok(1),
        Some(b'x' | b'X') => digits(1, 2, |byte| byte.is_ascii_hexdigit()),
        Some(b'u') => digits(1, 4, |byte| byte.is_ascii_hexdigit()),
        Some(b'U') => digits(1, 8, |byte| byte.is_ascii_hexdigit()),
        Some(b'0'..=b'3') => digits(1, 2, |byte| matches!(byte, b'0'..=b'7')),
        _ => Err(0),
    }
}

/// The value of a string or bytes literal; `None` if an escape is invalid.
pub(crate) fn unquoted(lexeme: &str) -> Option<Vec<u8>> {
    let after_bytes = lexeme.strip_prefix(['b', 'B']);
    let body = after_bytes.unwrap_or(lexeme);
    let after_raw = body.strip_prefix(['r', 'R']);
    let body = after_raw.unwrap_or(body);
    let width = if body.len() >= 6 && (body.starts_with("\"\"\"") || body.starts_with("'''")) {
        3
    } else {
        1
    };
    let inner = body.get(width..body.len().checked_sub(width)?)?;
    if after_raw.is_some() {
        Some(inner.as_bytes().to_vec())
    } else {
        unescape(inner, after_bytes.is_some())
    }
}

/// Resolves escapes. `\xff` and `\377` are bytes in bytes, characters in strings.
fn unescape(text: &str, bytes: bool) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        let kind = rest.chars().next()?;
        let (digits, radix, skip) = match kind {
            'x' | 'X' => (2, 16, 1),
            'u' if !bytes => (4, 16, 1),
            'U' if !bytes => (8, 16, 1),
            '0'..='3' => (3, 8, 0),
            _ => {
                out.push(simple(kind)?);
                rest = &rest[1..];
                continue;
            }
        };
        let code = u32::from_str_radix(rest.get(skip..skip + digits)?, radix).ok()?;
        rest = &rest[skip + digits..];
        match u8::try_from(code) {
            Ok(byte) if bytes => out.push(byte),
            _ => out.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.extend_from_slice(rest.as_bytes());
    Some(out)
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

    fn lexed(source: &str) -> (Vec<(Token, &str)>, bool) {
        let mut faults = SourceErrors::default();
        let found = tokens(source, &mut faults)
            .into_iter()
            .map(|one| (one.token, &source[one.start..one.end]))
            .collect();
        (found, faults.is_empty())
    }

    #[test]
    fn tokens_are_the_longest() {
        let one = |source: &str| lexed(source).0[0].0;
        assert_eq!(
            [one("0x1F"), one("7u"), one(".5e1"), one("1e5"), one("rb"), one("b'\\xff'")]
                .map(Token::shown),
            ["NUM_INT", "NUM_UINT", "NUM_FLOAT", "NUM_FLOAT", "IDENTIFIER", "BYTES"]
        );
        assert_eq!(unquoted(r#""a\n\u00e9\x41\101""#), Some("a\n\u{e9}AA".as_bytes().to_vec()));
        assert_eq!(unquoted(r"r'\d'"), Some(b"\\d".to_vec()));
        assert_eq!(unquoted("'''a'b'''"), Some(b"a'b".to_vec()));
        assert_eq!(unquoted(r"b'\xff'"), Some(vec![255]));
        assert_eq!(unquoted(r"b'\u0041'"), None);
        for bad in ["'a", "'\\q'", "\u{e9}", "'\\x4\u{e9}'", "&", "=", "`a"] {
            assert!(!lexed(bad).1, "{bad}");
        }
        assert_eq!(
            lexed("a // b\n.c").0.iter().map(|(_, text)| *text).collect::<Vec<_>>(),
            ["a", ".", "c", ""]
        );
        assert_eq!(lexed("''''a").0.len(), 4);
    }
}
