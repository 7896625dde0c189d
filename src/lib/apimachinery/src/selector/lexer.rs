//! Tokens of a label selector. A NUL ends the current token, as in kube-apiserver's lexer (parity
//! case `nul-bytes`).

use crate::work;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SelectorToken<'a> {
    End,
    Open,
    Close,
    Comma,
    Not,
    Equals,
    DoubleEquals,
    NotEquals,
    Greater,
    Less,
    /// A name or value; also the operators `in` and `notin`, which are words except after a key.
    Word(&'a str),
}

impl SelectorToken<'_> {
    /// As written, for messages.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::End => "",
            Self::Open => "(",
            Self::Close => ")",
            Self::Comma => ",",
            Self::Not => "!",
            Self::Equals => "=",
            Self::DoubleEquals => "==",
            Self::NotEquals => "!=",
            Self::Greater => ">",
            Self::Less => "<",
            Self::Word(word) => word,
        }
    }
}

/// Lexer with one token of lookahead.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    ahead: Option<SelectorToken<'a>>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, ahead: None }
    }

    /// The next token, without consuming it.
    pub(super) fn peek(&mut self) -> SelectorToken<'a> {
        let token = self.next();
        self.ahead = Some(token);
        token
    }

    /// Consumes the next token.
    pub(super) fn next(&mut self) -> SelectorToken<'a> {
        match self.ahead.take() {
            Some(token) => token,
            None => self.read(),
        }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Consumes the next byte if it equals this one.
    fn eat(&mut self, byte: u8) -> bool {
        let found = self.byte() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn read(&mut self) -> SelectorToken<'a> {
        work::count(1);
        while self.byte().is_some_and(is_space) {
            work::count(1);
            self.at += 1;
        }
        let Some(byte) = self.byte() else { return SelectorToken::End };
        if !is_symbol(byte) && byte != 0 {
            return SelectorToken::Word(self.word());
        }
        self.at += 1;
        match byte {
            b'(' => SelectorToken::Open,
            b')' => SelectorToken::Close,
            b',' => SelectorToken::Comma,
            b'>' => SelectorToken::Greater,
            b'<' => SelectorToken::Less,
            b'!' if self.eat(b'=') => SelectorToken::NotEquals,
            b'!' => SelectorToken::Not,
            b'=' if self.eat(b'=') => SelectorToken::DoubleEquals,
            b'=' => SelectorToken::Equals,
            _ => {
                // A NUL at the start of a token ends the input.
                self.at = self.text.len();
                SelectorToken::End
            }
        }
    }

    fn word(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let length = rest
            .bytes()
            .position(|byte| is_symbol(byte) || is_space(byte) || byte == 0)
            .unwrap_or(rest.len());
        work::count(length);
        self.at += length;
        self.eat(0);
        &rest[..length]
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn is_symbol(byte: u8) -> bool {
    matches!(byte, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}
