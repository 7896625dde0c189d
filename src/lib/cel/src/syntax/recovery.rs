//! Error reporting and recovery, as in ANTLR's default strategy.

use super::{
    Ast, Parser,
    RuleAbort::{Mismatch, NoAlternative},
};
use crate::lex::{Lexeme, Token};
use crate::source::SourceError;

/// A bit per [`Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenSet(u64);

pub(super) const fn token_set(tokens: &[Token]) -> TokenSet {
    let mut out = TokenSet::NONE;
    let mut at = 0;
    while at < tokens.len() {
        out = out.with(tokens[at]);
        at += 1;
    }
    out
}

impl TokenSet {
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

    /// As messages list it.
    fn shown(self) -> String {
        let tokens = Token::ALL.iter().copied().filter(|token| self.has(*token));
        let names: Vec<&str> = tokens.map(Token::shown).collect();
        if let [one] = names[..] { one.to_owned() } else { format!("{{{}}}", names.join(", ")) }
    }
}

/// The tokens that may follow a grammar rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct FollowSet {
    /// Tokens that may come next.
    pub(super) exact: TokenSet,
    /// Tokens that end skipping after an error: those that may follow any rule being parsed.
    pub(super) recovery: TokenSet,
}

impl FollowSet {
    pub(super) fn new(exact: TokenSet) -> Self {
        Self { exact, recovery: exact }
    }

    /// Also allows `tokens` next.
    pub(super) fn or(&self, tokens: TokenSet) -> Self {
        Self { exact: self.exact.and(tokens), recovery: self.recovery.and(tokens) }
    }

    /// Allows only `tokens` next.
    pub(super) fn then(&self, tokens: TokenSet) -> Self {
        Self { exact: tokens, recovery: self.recovery.and(tokens) }
    }
}

/// Why a grammar rule was aborted.
#[derive(Clone, Copy, Debug)]
pub(super) enum RuleAbort {
    /// The current token is not one of these.
    Mismatch(TokenSet),
    /// The current token and this many after it match no alternative.
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

    /// Takes an accepted token.
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

    /// A token's text in messages.
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
            self.faults.push(SourceError::syntax(at, why));
        }
    }

    fn unwanted(&mut self, expected: TokenSet) {
        let lexeme = self.lexeme(0);
        self.report(lexeme.start, |parser| {
            format!("extraneous input {} expecting {}", parser.shown(lexeme), expected.shown())
        });
    }

    /// Skips the current token if the next one fits (single-token deletion).
    fn deletes(&mut self, expected: TokenSet) -> bool {
        let fits = expected.has(self.ahead(1)) && self.peek() != Token::End;
        if fits {
            self.unwanted(expected);
            self.skip();
            self.recovering = false;
        }
        fits
    }

    /// Before a choice: the current token must be one of these.
    pub(super) fn sync(&mut self, expected: TokenSet) -> Result<(), RuleAbort> {
        if self.recovering || expected.has(self.peek()) || self.deletes(expected) {
            Ok(())
        } else {
            Err(Mismatch(expected))
        }
    }

    /// In a loop: skips unwanted tokens.
    pub(super) fn sync_loop(&mut self, expected: TokenSet, follow: &FollowSet) {
        if !self.recovering && !expected.has(self.peek()) {
            self.unwanted(expected);
            self.skip_to(expected.and(follow.recovery));
        }
    }

    /// Takes a token; skips an extra token before it, or assumes a missing one if the current token
    /// can come `after` it.
    pub(super) fn expect(&mut self, token: Token, after: TokenSet) -> Result<(), RuleAbort> {
        let expected = TokenSet::NONE.with(token);
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

    pub(super) fn no_alternative(&self, ahead: usize) -> RuleAbort {
        NoAlternative(ahead)
    }

    /// Reports an error and skips to a token where a rule in progress can continue.
    pub(super) fn caught(&mut self, thrown: RuleAbort, recovery: TokenSet) {
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
                        "<EOF>".to_owned()
                    } else {
                        parser.text_of(ahead)
                    };
                    match text.as_str() {
                        ".true" | ".false" | ".null" => {
                            format!("mismatched input '{}' expecting IDENTIFIER", &text[1..])
                        }
                        text => format!("no viable alternative at input '{}'", escaped(text)),
                    }
                });
            }
        }
        self.skip_to(recovery);
    }

    /// The text of the next tokens with the whitespace between them, without invalid input.
    fn text_of(&self, ahead: usize) -> String {
        let mut out = String::new();
        for place in 0..=ahead {
            let lexeme = self.lexeme(place);
            if place > 0 {
                let gap = &self.source[self.lexeme(place - 1).end..lexeme.start];
                out.extend(gap.chars().filter(|c| c.is_whitespace()));
            }
            out.push_str(&self.source[lexeme.start..lexeme.end]);
        }
        out
    }

    fn skip_to(&mut self, tokens: TokenSet) {
        while self.peek() != Token::End && !tokens.has(self.peek()) {
            self.skip();
        }
    }

    /// Ends a grammar rule, recovering from its error.
    pub(super) fn rule(&mut self, parsed: Result<Ast, RuleAbort>, follow: &FollowSet) -> Ast {
        parsed.unwrap_or_else(|thrown| {
            self.caught(thrown, follow.recovery);
            self.nothing()
        })
    }
}

fn escaped(text: &str) -> String {
    text.replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
}
