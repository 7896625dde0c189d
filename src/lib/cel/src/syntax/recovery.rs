//! How a parser that was generated from the grammar reports what does not fit, and goes on.

use super::{
    Ast, Parser,
    Thrown::{Mismatch, NoAlternative},
};
use crate::lex::{Lexeme, Token};
use crate::source::Fault;

/// Kinds of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set(u64);

pub(super) const fn set(tokens: &[Token]) -> Set {
    let mut out = Set::NONE;
    let mut at = 0;
    while at < tokens.len() {
        out = out.with(tokens[at]);
        at += 1;
    }
    out
}

impl Set {
    pub(super) const NONE: Self = Self(0);

    pub(super) const fn with(self, token: Token) -> Self {
        Self(self.0 | 1 << token as u64)
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn has(self, token: Token) -> bool {
        self.0 & (1 << token as u64) != 0
    }

    /// As errors list it.
    fn shown(self) -> String {
        let names: Vec<&str> =
            TOKENS.into_iter().filter(|token| self.has(*token)).map(Token::shown).collect();
        if let [one] = names[..] { one.to_owned() } else { format!("{{{}}}", names.join(", ")) }
    }
}

/// All kinds, in their order.
const TOKENS: [Token; 36] = [
    Token::End,
    Token::Equals,
    Token::NotEquals,
    Token::In,
    Token::Less,
    Token::LessEquals,
    Token::GreaterEquals,
    Token::Greater,
    Token::And,
    Token::Or,
    Token::OpenBracket,
    Token::CloseBracket,
    Token::OpenBrace,
    Token::CloseBrace,
    Token::Open,
    Token::Close,
    Token::Dot,
    Token::Comma,
    Token::Minus,
    Token::Not,
    Token::Question,
    Token::Colon,
    Token::Plus,
    Token::Star,
    Token::Slash,
    Token::Percent,
    Token::True,
    Token::False,
    Token::Null,
    Token::Double,
    Token::Int,
    Token::Uint,
    Token::Text,
    Token::Bytes,
    Token::Name,
    Token::Escaped,
];

/// What comes after a part of an expression.
#[derive(Clone, Copy, Debug)]
pub(super) struct Follow {
    /// What can be next.
    pub(super) exact: Set,
    /// What ends the skipping after an error: what follows any part that is being read.
    pub(super) recovery: Set,
}

impl Follow {
    pub(super) fn new(exact: Set) -> Self {
        Self { exact, recovery: exact }
    }

    /// These, or what follows the whole.
    pub(super) fn or(&self, tokens: Set) -> Self {
        Self { exact: self.exact.and(tokens), recovery: self.recovery.and(tokens) }
    }

    /// Only these.
    pub(super) fn then(&self, tokens: Set) -> Self {
        Self { exact: tokens, recovery: self.recovery.and(tokens) }
    }
}

/// Why a part of the grammar was left.
#[derive(Clone, Copy, Debug)]
pub(super) enum Thrown {
    /// The present token is none of these.
    Mismatch(Set),
    /// The tokens from the present one to the one so far ahead begin nothing.
    NoAlternative(usize),
}

impl Parser<'_> {
    pub(super) fn lexeme(&self, ahead: usize) -> Lexeme {
        self.tokens[(self.at + ahead).min(self.tokens.len() - 1)]
    }

    pub(super) fn ahead(&self, ahead: usize) -> Token {
        self.lexeme(ahead).token
    }

    pub(super) fn peek(&self) -> Token {
        self.ahead(0)
    }

    /// Takes a token that fits.
    pub(super) fn consume(&mut self) -> Lexeme {
        self.recovering = false;
        self.skip()
    }

    fn skip(&mut self) -> Lexeme {
        let lexeme = self.lexeme(0);
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        lexeme
    }

    pub(super) fn eat(&mut self, token: Token) -> bool {
        let found = self.peek() == token;
        if found {
            self.consume();
        }
        found
    }

    /// A token as errors show it.
    fn shown(&self, lexeme: Lexeme) -> String {
        match lexeme.token {
            Token::End => "'<EOF>'".to_owned(),
            _ => format!("'{}'", escaped(&self.source[lexeme.start..lexeme.end])),
        }
    }

    fn report(&mut self, at: usize, why: impl FnOnce(&Self) -> String) {
        if !self.recovering {
            self.recovering = true;
            let why = why(self);
            self.faults.push(Fault::syntax(at, why));
        }
    }

    fn unwanted(&mut self, expected: Set) {
        let lexeme = self.lexeme(0);
        self.report(lexeme.start, |parser| {
            format!("extraneous input {} expecting {}", parser.shown(lexeme), expected.shown())
        });
    }

    /// Leaves the present token out when the next one fits.
    fn deletes(&mut self, expected: Set) -> bool {
        let fits = expected.has(self.ahead(1)) && self.peek() != Token::End;
        if fits {
            self.unwanted(expected);
            self.skip();
            self.recovering = false;
        }
        fits
    }

    /// Before a choice: what is present is one of these.
    pub(super) fn sync(&mut self, expected: Set) -> Result<(), Thrown> {
        if self.recovering || expected.has(self.peek()) || self.deletes(expected) {
            Ok(())
        } else {
            Err(Mismatch(expected))
        }
    }

    /// Within a loop: what is not wanted is skipped.
    pub(super) fn sync_loop(&mut self, expected: Set, follow: &Follow) {
        if !self.recovering && !expected.has(self.peek()) {
            self.unwanted(expected);
            self.skip_to(expected.and(follow.recovery));
        }
    }

    /// Takes a token; one too many before it is left out, and one that is missing is put in where
    /// the present one can be `after` it.
    pub(super) fn expect(&mut self, token: Token, after: Set) -> Result<(), Thrown> {
        let expected = Set::NONE.with(token);
        if self.peek() == token || self.deletes(expected) {
            self.consume();
            return Ok(());
        }
        if !after.has(self.peek()) {
            return Err(Mismatch(expected));
        }
        let lexeme = self.lexeme(0);
        self.report(lexeme.start, |parser| {
            format!("missing {} at {}", token.shown(), parser.shown(lexeme))
        });
        Ok(())
    }

    pub(super) fn no_alternative(&self, ahead: usize) -> Thrown {
        NoAlternative(ahead)
    }

    /// Reports, and skips to where something being read can go on.
    pub(super) fn caught(&mut self, thrown: Thrown, recovery: Set) {
        match thrown {
            Mismatch(expected) => {
                let lexeme = self.lexeme(0);
                self.report(lexeme.start, |parser| {
                    format!(
                        "mismatched input {} expecting {}",
                        parser.shown(lexeme),
                        expected.shown()
                    )
                });
            }
            NoAlternative(ahead) => {
                let (first, last) = (self.lexeme(0), self.lexeme(ahead));
                self.report(last.start, |parser| {
                    let text = if first.token == Token::End {
                        "<EOF>"
                    } else {
                        &parser.source[first.start..last.end]
                    };
                    match text {
                        ".true" | ".false" | ".null" => {
                            format!("mismatched input '{}' expecting IDENTIFIER", &text[1..])
                        }
                        _ => format!("no viable alternative at input '{}'", escaped(text)),
                    }
                });
            }
        }
        self.skip_to(recovery);
    }

    fn skip_to(&mut self, tokens: Set) {
        while self.peek() != Token::End && !tokens.has(self.peek()) {
            self.skip();
        }
    }

    /// The end of a rule of the grammar.
    pub(super) fn rule(&mut self, parsed: Result<Ast, Thrown>, follow: &Follow) -> Ast {
        parsed.unwrap_or_else(|thrown| {
            self.caught(thrown, follow.recovery);
            self.nothing()
        })
    }
}

fn escaped(text: &str) -> String {
    text.replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
}
