//! Tokens of a label selector. A NUL ends what is being read, as it does in upstream's lexer
//! (parity case `nul-bytes`).

/// One token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
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
    /// A name or value; also the words `in` and `notin`, which are operators only behind a key.
    Word(&'a str),
}

impl Token<'_> {
    /// As it was written, for messages.
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

/// Gives the tokens of a text one by one, with one of lookahead.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    ahead: Option<Token<'a>>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, ahead: None }
    }

    /// The next token, which stays the next one.
    pub(super) fn peek(&mut self) -> Token<'a> {
        let token = self.next();
        self.ahead = Some(token);
        token
    }

    /// Takes the next token.
    pub(super) fn next(&mut self) -> Token<'a> {
        match self.ahead.take() {
            Some(token) => token,
            None => self.read(),
        }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Goes over the next byte if it is this one.
    fn eat(&mut self, byte: u8) -> bool {
        let found = self.byte() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn read(&mut self) -> Token<'a> {
        while self.byte().is_some_and(is_space) {
            self.at += 1;
        }
        let Some(byte) = self.byte() else { return Token::End };
        if !is_symbol(byte) && byte != 0 {
            return Token::Word(self.word());
        }
        self.at += 1;
        match byte {
            b'(' => Token::Open,
            b')' => Token::Close,
            b',' => Token::Comma,
            b'>' => Token::Greater,
            b'<' => Token::Less,
            b'!' if self.eat(b'=') => Token::NotEquals,
            b'!' => Token::Not,
            b'=' if self.eat(b'=') => Token::DoubleEquals,
            b'=' => Token::Equals,
            _ => {
                // A NUL where a token should begin: nothing behind it counts.
                self.at = self.text.len();
                Token::End
            }
        }
    }

    fn word(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let length = rest
            .bytes()
            .position(|byte| is_symbol(byte) || is_space(byte) || byte == 0)
            .unwrap_or(rest.len());
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
