//! The syntax tree and its parser.
//!
//! Follows the grammar as a generated (ANTLR) parser does, with the same error recovery, so that
//! both report the same errors.

mod recovery;

use crate::lex::{Lexeme, RESERVED, Token, tokens, unquoted};
use crate::loops::fault_of_call;
use crate::source::{SourceError, SourceErrors};
use recovery::{FollowSet, RuleAbort, TokenSet, token_set};

/// Max nesting: walks over expressions are recursive.
pub(crate) const MAX_DEPTH: u16 = 160;
/// Max bytes of an expression.
const MAX_SOURCE: usize = 100_000;

/// A parsed expression.
#[derive(Clone, Debug)]
pub(crate) struct Ast {
    pub(crate) kind: ExprKind,
    /// Byte offset for errors: of its operator, or its first token.
    pub(crate) at: usize,
    depth: u16,
}

/// Expression forms. Other operators are calls of functions named by their symbols.
#[derive(Clone, Debug)]
pub(crate) enum ExprKind {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Name(String),
    /// `a.b`, or `a.?b`.
    Select {
        operand: Box<Ast>,
        field: String,
        optional: bool,
    },
    /// `a[b]`, or `a[?b]`.
    Index {
        operand: Box<Ast>,
        index: Box<Ast>,
        optional: bool,
    },
    Call {
        target: Option<Box<Ast>>,
        name: String,
        args: Vec<Ast>,
    },
    /// `a && b && c`
    And(Vec<Ast>),
    /// `a || b || c`
    Or(Vec<Ast>),
    Conditional(Box<[Ast; 3]>),
    /// Items with whether each is optional.
    List(Vec<(Ast, bool)>),
    /// Entries with whether each is optional.
    Map(Vec<(Ast, Ast, bool)>),
    /// `a.b{...}`: a message literal of that type.
    Message(String, Vec<LiteralField>),
}

/// A field of a message literal.
#[derive(Clone, Debug)]
pub(crate) struct LiteralField {
    pub(crate) name: String,
    pub(crate) at: usize,
    pub(crate) value: Ast,
    pub(crate) optional: bool,
}

impl Ast {
    /// Whether it is a scalar literal.
    pub(crate) fn is_literal(&self) -> bool {
        use ExprKind::{Bool, Bytes, Double, Int, Null, Text, Uint};
        matches!(self.kind, Null | Bool(_) | Int(_) | Uint(_) | Double(_) | Text(_) | Bytes(_))
    }
}

/// Parses an expression.
///
/// # Errors
/// All syntax errors, or too deep nesting.
pub(crate) fn parse(source: &str) -> Result<Ast, SourceErrors> {
    let mut faults = SourceErrors::default();
    if source.len() > MAX_SOURCE {
        faults.push(SourceError {
            at: 0,
            why: format!(
                "expression code point size exceeds limit: size: {}, limit {MAX_SOURCE}",
                source.len()
            ),
        });
        return Err(faults);
    }
    let tokens = tokens(source, &mut faults);
    let mut parser = Parser { source, tokens, at: 0, depth: 0, faults, recovering: false };
    let expression = parser.start();
    if parser.faults.is_empty() {
        return Ok(expression);
    }
    macro_faults(&expression, &mut parser.faults);
    Err(parser.faults)
}

/// Adds errors for invalid arguments of macros in an expression with syntax errors; the checker
/// reports them otherwise.
fn macro_faults(ast: &Ast, faults: &mut SourceErrors) {
    let mut below = |ast: &Ast| macro_faults(ast, faults);
    match &ast.kind {
        ExprKind::Select { operand, .. } => below(operand),
        ExprKind::Index { operand, index, .. } => {
            below(operand);
            below(index);
        }
        ExprKind::Call { target, name, args } => {
            target.as_deref().into_iter().for_each(&mut below);
            args.iter().for_each(&mut below);
            match target {
                None => has_error(name, args, faults),
                Some(_) => {
                    fault_of_call(name, args).into_iter().for_each(|fault| faults.push(fault))
                }
            }
        }
        ExprKind::And(all) | ExprKind::Or(all) => all.iter().for_each(below),
        ExprKind::Conditional(parts) => parts.iter().for_each(below),
        ExprKind::List(items) => items.iter().for_each(|(item, _)| below(item)),
        ExprKind::Map(entries) => entries.iter().for_each(|(key, value, _)| {
            below(key);
            below(value);
        }),
        _ => {}
    }
}

fn has_error(name: &str, args: &[Ast], faults: &mut SourceErrors) {
    if let ("has", [arg]) = (name, args)
        && !matches!(arg.kind, ExprKind::Select { optional: false, .. })
    {
        faults.push(SourceError { at: arg.at, why: NO_FIELD.to_owned() });
    }
}

/// Error for an argument of `has` that is not a field selection.
pub(crate) const NO_FIELD: &str = "invalid argument to has() macro";

struct Parser<'s> {
    source: &'s str,
    tokens: Vec<Lexeme>,
    at: usize,
    depth: u16,
    faults: SourceErrors,
    /// After an error, until a token fits; suppresses further errors.
    recovering: bool,
}

type SyntaxResult = Result<Ast, RuleAbort>;

/// First tokens of a literal, a name or a bracketed expression.
const MEMBER: TokenSet = token_set(&[
    Token::OpenBracket,
    Token::OpenBrace,
    Token::Open,
    Token::Dot,
    Token::Minus,
    Token::True,
    Token::False,
    Token::Null,
    Token::Double,
    Token::Int,
    Token::Uint,
    Token::Text,
    Token::Bytes,
    Token::Name,
]);
/// First tokens of an expression.
const EXPRESSION: TokenSet = MEMBER.with(Token::Not);
/// First tokens of a possibly optional item.
const ITEM: TokenSet = EXPRESSION.with(Token::Question);
const RELATIONS: TokenSet = token_set(&[
    Token::Equals,
    Token::NotEquals,
    Token::In,
    Token::Less,
    Token::LessEquals,
    Token::GreaterEquals,
    Token::Greater,
]);
const PRODUCTS: TokenSet = token_set(&[Token::Star, Token::Slash, Token::Percent]);
const SUMS: TokenSet = token_set(&[Token::Plus, Token::Minus]);
const SUFFIXES: TokenSet = token_set(&[Token::Dot, Token::OpenBracket]);
const FIELD: TokenSet = token_set(&[Token::Name, Token::Escaped]);

impl Ast {
    fn leaf(at: usize, kind: ExprKind) -> Self {
        Self { kind, at, depth: 0 }
    }
}

fn deepest<'a>(all: impl IntoIterator<Item = &'a Ast>) -> u16 {
    all.into_iter().map(|ast| ast.depth).max().unwrap_or(0)
}

impl Parser<'_> {
    /// Offset of the current token.
    fn place(&self) -> usize {
        self.lexeme(0).start
    }

    fn text(&self, lexeme: Lexeme) -> String {
        self.source[lexeme.start..lexeme.end].to_owned()
    }

    /// Placeholder for an expression with errors.
    fn nothing(&self) -> Ast {
        Ast::leaf(self.place(), ExprKind::Null)
    }

    /// A node above expressions of depth `below`.
    fn above(&mut self, at: usize, kind: ExprKind, below: u16) -> Ast {
        if below >= MAX_DEPTH {
            return self.too_deep(at);
        }
        Ast { kind, at, depth: below + 1 }
    }

    /// Reports an expression that is too deep and skips the rest.
    fn too_deep(&mut self, at: usize) -> Ast {
        self.faults.push(SourceError {
            at,
            why: format!("expression recursion limit exceeded: {MAX_DEPTH}"),
        });
        self.at = self.tokens.len() - 1;
        self.recovering = true;
        self.nothing()
    }

    fn call(&mut self, at: usize, target: Option<Ast>, name: &str, args: Vec<Ast>) -> Ast {
        let below = deepest(target.iter().chain(&args));
        self.above(
            at,
            ExprKind::Call { target: target.map(Box::new), name: name.to_owned(), args },
            below,
        )
    }

    fn start(&mut self) -> Ast {
        let end = token_set(&[Token::End]);
        let expression = self.expression(&FollowSet::new(end));
        if let Err(thrown) = self.expect(Token::End, TokenSet::NONE) {
            self.caught(thrown, TokenSet::NONE);
        }
        expression
    }

    fn expression(&mut self, follow: &FollowSet) -> Ast {
        if self.depth >= MAX_DEPTH / 2 {
            let at = self.place();
            return self.too_deep(at);
        }
        self.depth += 1;
        let parsed = self.conditional(follow);
        self.depth -= 1;
        parsed
    }

    fn conditional(&mut self, follow: &FollowSet) -> Ast {
        let condition = self.either(&follow.or(token_set(&[Token::Question])));
        if self.peek() != Token::Question {
            return condition;
        }
        let at = self.place();
        self.consume();
        let yes = self.either(&follow.then(token_set(&[Token::Colon])));
        if let Err(thrown) = self.expect(Token::Colon, EXPRESSION) {
            self.caught(thrown, follow.recovery);
            return Ast::leaf(at, ExprKind::Null);
        }
        let all = Box::new([condition, yes, self.expression(follow)]);
        let below = deepest(all.iter());
        self.above(at, ExprKind::Conditional(all), below)
    }

    fn either(&mut self, follow: &FollowSet) -> Ast {
        self.logical(Token::Or, Self::both, ExprKind::Or, follow)
    }

    fn both(&mut self, follow: &FollowSet) -> Ast {
        self.logical(
            Token::And,
            |parser, follow| parser.relation(true, follow),
            ExprKind::And,
            follow,
        )
    }

    fn logical(
        &mut self,
        symbol: Token,
        below: fn(&mut Self, &FollowSet) -> Ast,
        kind: fn(Vec<Ast>) -> ExprKind,
        follow: &FollowSet,
    ) -> Ast {
        let inner = follow.or(token_set(&[symbol]));
        let first = below(self, &inner);
        if self.peek() != symbol {
            return first;
        }
        let at = self.place();
        let mut all = vec![first];
        while self.peek() == symbol {
            self.consume();
            all.push(below(self, &inner));
        }
        let below = deepest(&all);
        self.above(at, kind(all), below)
    }

    /// `loops`: whether it may be chained; not on the right side of another one.
    fn relation(&mut self, loops: bool, follow: &FollowSet) -> Ast {
        let follow = &follow.or(RELATIONS);
        let mut left = self.sum(0, follow);
        while loops && RELATIONS.has(self.peek()) {
            let operator = self.consume();
            let right = self.relation(false, follow);
            let name = self.text(operator);
            left = self.call(operator.start, None, &name, vec![left, right]);
        }
        left
    }

    /// Parses operators of at least this precedence.
    fn sum(&mut self, binding: u8, follow: &FollowSet) -> Ast {
        let follow = &follow.or(SUMS.and(PRODUCTS));
        let mut left = self.unary(follow);
        loop {
            let next = match self.peek() {
                product if PRODUCTS.has(product) && binding <= 2 => 3,
                sum if SUMS.has(sum) && binding <= 1 => 2,
                _ => return left,
            };
            let operator = self.consume();
            let right = self.sum(next, follow);
            let name = self.text(operator);
            left = self.call(operator.start, None, &name, vec![left, right]);
        }
    }

    fn unary(&mut self, follow: &FollowSet) -> Ast {
        let parsed = self.signed(follow);
        self.rule(parsed, follow)
    }

    fn signed(&mut self, follow: &FollowSet) -> SyntaxResult {
        self.sync(EXPRESSION)?;
        let at = self.place();
        let (name, count) = match (self.peek(), self.ahead(1)) {
            (Token::Not, _) => ("!", self.negations(follow)),
            // A number's sign belongs to the literal.
            (Token::Minus, Token::Int | Token::Double) => return Ok(self.member(follow)),
            (Token::Minus, _) => ("-", self.signs(follow)?),
            (member, _) if MEMBER.has(member) => return Ok(self.member(follow)),
            _ => return Err(self.no_alternative(0)),
        };
        let operand = self.member(follow);
        // Double signs cancel out.
        Ok(if count % 2 == 0 { operand } else { self.call(at, None, name, vec![operand]) })
    }

    fn negations(&mut self, follow: &FollowSet) -> usize {
        let mut count = 0;
        while self.peek() == Token::Not {
            self.consume();
            count += 1;
            self.sync_loop(MEMBER.with(Token::Not), follow);
        }
        count
    }

    fn signs(&mut self, follow: &FollowSet) -> Result<usize, RuleAbort> {
        let mut count = 0;
        while self.peek() == Token::Minus {
            if !MEMBER.has(self.ahead(1)) {
                return Err(self.no_alternative(1));
            }
            self.consume();
            count += 1;
            self.sync_loop(MEMBER, follow);
        }
        Ok(count)
    }

    /// A primary expression with its suffixes: fields, calls, indices.
    fn member(&mut self, follow: &FollowSet) -> Ast {
        let mut operand = self.primary(&follow.or(SUFFIXES));
        while SUFFIXES.has(self.peek()) {
            let is_index = self.peek() == Token::OpenBracket;
            let at = if is_index { self.place() } else { operand.at };
            if !is_index && !FIELD.with(Token::Question).has(self.ahead(1)) {
                let thrown = self.no_alternative(1);
                self.caught(thrown, follow.recovery);
                return operand;
            }
            match self.suffix(operand, follow) {
                Ok(longer) => operand = longer,
                Err(thrown) => {
                    self.caught(thrown, follow.recovery);
                    return Ast::leaf(at, ExprKind::Null);
                }
            }
        }
        operand
    }

    fn suffix(&mut self, operand: Ast, follow: &FollowSet) -> SyntaxResult {
        if self.peek() == Token::OpenBracket {
            return self.index(operand, follow);
        }
        match (self.ahead(1), self.ahead(2)) {
            (Token::Name, Token::Open) => {
                self.consume();
                let name = self.consume();
                let at = self.place();
                let mut args = Vec::new();
                self.args(follow, &mut args)?;
                let name = self.text(name);
                Ok(self.call(at, Some(operand), &name, args))
            }
            (Token::Name | Token::Escaped | Token::Question, _) => {
                let at = self.consume().start;
                let optional = self.eat(Token::Question);
                let below = operand.depth;
                let field = self.field(follow);
                Ok(self.above(
                    at,
                    ExprKind::Select { operand: Box::new(operand), field, optional },
                    below,
                ))
            }
            _ => Err(self.no_alternative(1)),
        }
    }

    /// A field name.
    fn field(&mut self, follow: &FollowSet) -> String {
        let found = self.sync(FIELD).and_then(|()| {
            if FIELD.has(self.peek()) { Ok(self.consume()) } else { Err(self.no_alternative(0)) }
        });
        match found {
            Ok(lexeme) if lexeme.token == Token::Escaped => {
                self.faults.push(SourceError {
                    at: lexeme.start,
                    why: "unsupported syntax: '`'".to_owned(),
                });
                String::new()
            }
            Ok(lexeme) => self.text(lexeme),
            Err(thrown) => {
                let at = self.place();
                self.caught(thrown, follow.recovery.and(SUFFIXES));
                self.faults.push(SourceError { at, why: "unsupported ident kind".to_owned() });
                String::new()
            }
        }
    }

    fn index(&mut self, operand: Ast, follow: &FollowSet) -> SyntaxResult {
        let at = self.consume().start;
        self.sync(ITEM)?;
        let optional = self.eat(Token::Question);
        let index = self.expression(&follow.then(token_set(&[Token::CloseBracket])));
        self.expect(Token::CloseBracket, follow.exact.and(SUFFIXES))?;
        let below = operand.depth.max(index.depth);
        Ok(self.above(
            at,
            ExprKind::Index { operand: Box::new(operand), index: Box::new(index), optional },
            below,
        ))
    }

    /// Call arguments with their parentheses.
    fn args(&mut self, follow: &FollowSet, out: &mut Vec<Ast>) -> Result<(), RuleAbort> {
        self.consume();
        self.sync(EXPRESSION.with(Token::Close))?;
        if EXPRESSION.has(self.peek()) {
            let inner = follow.then(token_set(&[Token::Comma, Token::Close]));
            out.push(self.expression(&inner));
            while self.eat(Token::Comma) {
                out.push(self.expression(&inner));
            }
        }
        self.expect(Token::Close, follow.exact.and(SUFFIXES))
    }

    fn primary(&mut self, follow: &FollowSet) -> Ast {
        let (at, opens) =
            (self.place(), matches!(self.peek(), Token::OpenBracket | Token::OpenBrace));
        let parsed = self.primary_of(follow);
        let failed = opens && parsed.is_err();
        let found = self.rule(parsed, follow);
        if failed { Ast::leaf(at, ExprKind::Null) } else { found }
    }

    fn primary_of(&mut self, follow: &FollowSet) -> SyntaxResult {
        self.sync(MEMBER)?;
        let at = self.place();
        match self.peek() {
            Token::Name => self.named(follow),
            Token::Dot if self.ahead(1) == Token::Name => self.named(follow),
            Token::Dot => Err(self.no_alternative(1)),
            Token::Open => {
                self.consume();
                let inner = self.expression(&follow.then(token_set(&[Token::Close])));
                self.expect(Token::Close, follow.exact)?;
                Ok(inner)
            }
            Token::OpenBracket => self.list(at, follow),
            Token::OpenBrace => self.map(at, follow),
            token if MEMBER.has(token) => {
                let parsed = self.literal(at);
                Ok(self.rule(parsed, follow))
            }
            _ => Err(self.no_alternative(0)),
        }
    }

    fn literal(&mut self, at: usize) -> SyntaxResult {
        let negative = self.peek() == Token::Minus;
        if negative && !matches!(self.ahead(1), Token::Int | Token::Double) {
            return Err(self.no_alternative(1));
        }
        if negative {
            self.consume();
        }
        let lexeme = self.consume();
        let text = self.text(lexeme);
        let sign = if negative { "-" } else { "" };
        let unquoted = || unquoted(&text).ok_or("unable to unescape string");
        let kind = match lexeme.token {
            Token::Int => match text.strip_prefix("0x") {
                Some(digits) => i64::from_str_radix(&format!("{sign}{digits}"), 16),
                None => format!("{sign}{text}").parse(),
            }
            .map(ExprKind::Int)
            .map_err(|_| "invalid int literal"),
            Token::Uint => {
                let digits = &text[..text.len() - 1];
                let parsed = digits
                    .strip_prefix("0x")
                    .map_or_else(|| digits.parse(), |digits| u64::from_str_radix(digits, 16));
                parsed.map(ExprKind::Uint).map_err(|_| "invalid uint literal")
            }
            Token::Double => {
                let parsed =
                    format!("{sign}{text}").parse::<f64>().ok().filter(|number| number.is_finite());
                parsed.map(ExprKind::Double).ok_or("invalid double literal")
            }
            Token::Text => unquoted()
                .and_then(|bytes| String::from_utf8(bytes).map_err(|_| "unable to unescape string"))
                .map(ExprKind::Text),
            Token::Bytes => unquoted().map(ExprKind::Bytes),
            Token::True => Ok(ExprKind::Bool(true)),
            Token::False => Ok(ExprKind::Bool(false)),
            _ => Ok(ExprKind::Null),
        };
        let kind = kind.unwrap_or_else(|why| {
            self.faults.push(SourceError { at, why: why.to_owned() });
            ExprKind::Null
        });
        Ok(Ast::leaf(at, kind))
    }

    /// A name, call or message literal.
    fn named(&mut self, follow: &FollowSet) -> SyntaxResult {
        let start = self.place();
        let leading = usize::from(self.peek() == Token::Dot);
        let mut names = 1;
        while self.ahead(leading + 2 * names - 1) == Token::Dot
            && self.ahead(leading + 2 * names) == Token::Name
        {
            names += 1;
        }
        if self.ahead(leading + 2 * names - 1) == Token::OpenBrace {
            return self.message(leading + 2 * names - 1, follow);
        }
        let absolute = self.eat(Token::Dot);
        let lexeme = self.consume();
        let name = self.text(lexeme);
        let reserved = RESERVED.contains(&name.as_str());
        if reserved {
            self.faults
                .push(SourceError { at: start, why: format!("reserved identifier: {name}") });
        }
        let name = if absolute { format!(".{name}") } else { name };
        if self.peek() == Token::Open {
            let at = self.place();
            let mut args = Vec::new();
            let closed = self.args(follow, &mut args);
            if closed.is_err() {
                has_error(&name, &args, &mut self.faults);
            }
            closed?;
            return Ok(self.call(at, None, &name, args));
        }
        Ok(Ast::leaf(lexeme.start, ExprKind::Name(name)))
    }

    fn message(&mut self, tokens: usize, follow: &FollowSet) -> SyntaxResult {
        let name: String = (0..tokens)
            .map(|_| {
                let lexeme = self.consume();
                self.text(lexeme)
            })
            .collect();
        let at = self.consume().start;
        let closing = token_set(&[Token::CloseBrace, Token::Comma]);
        self.sync(closing.and(FIELD).with(Token::Question))?;
        let inner = follow.then(closing);
        let mut fields = Vec::new();
        while FIELD.with(Token::Question).has(self.peek()) {
            let optional = self.eat(Token::Question);
            let field = self.field(&inner.or(token_set(&[Token::Colon])));
            let colon = self.place();
            self.expect(Token::Colon, EXPRESSION)?;
            let value = self.expression(&inner);
            fields.push(LiteralField { name: field, at: colon, value, optional });
            if !(self.peek() == Token::Comma && FIELD.with(Token::Question).has(self.ahead(1))) {
                break;
            }
            self.consume();
        }
        self.sync(closing)?;
        self.eat(Token::Comma);
        self.expect(Token::CloseBrace, follow.exact)?;
        let below = deepest(fields.iter().map(|field| &field.value));
        Ok(self.above(at, ExprKind::Message(name, fields), below))
    }

    fn list(&mut self, at: usize, follow: &FollowSet) -> SyntaxResult {
        self.consume();
        let closing = token_set(&[Token::CloseBracket, Token::Comma]);
        self.sync(ITEM.and(closing))?;
        let mut items = Vec::new();
        if ITEM.has(self.peek()) {
            let inner = follow.then(closing);
            loop {
                let optional = self.eat(Token::Question);
                items.push((self.expression(&inner), optional));
                if !(self.peek() == Token::Comma && ITEM.has(self.ahead(1))) {
                    break;
                }
                self.consume();
            }
        }
        self.sync(closing)?;
        self.eat(Token::Comma);
        self.expect(Token::CloseBracket, follow.exact)?;
        let below = deepest(items.iter().map(|(item, _)| item));
        Ok(self.above(at, ExprKind::List(items), below))
    }

    fn map(&mut self, at: usize, follow: &FollowSet) -> SyntaxResult {
        self.consume();
        let closing = token_set(&[Token::CloseBrace, Token::Comma]);
        self.sync(ITEM.and(closing))?;
        let mut entries = Vec::new();
        if ITEM.has(self.peek()) {
            let inner = follow.then(closing);
            if let Err(thrown) = self.entries(&mut entries, &inner) {
                self.caught(thrown, inner.recovery);
            }
        }
        self.sync(closing)?;
        self.eat(Token::Comma);
        self.expect(Token::CloseBrace, follow.exact)?;
        let below = deepest(entries.iter().flat_map(|(key, value, _)| [key, value]));
        Ok(self.above(at, ExprKind::Map(entries), below))
    }

    fn entries(
        &mut self,
        entries: &mut Vec<(Ast, Ast, bool)>,
        follow: &FollowSet,
    ) -> Result<(), RuleAbort> {
        loop {
            let optional = self.eat(Token::Question);
            let key = self.expression(&follow.then(token_set(&[Token::Colon])));
            self.expect(Token::Colon, EXPRESSION)?;
            entries.push((key, self.expression(follow), optional));
            if !(self.peek() == Token::Comma && ITEM.has(self.ahead(1))) {
                return Ok(());
            }
            self.consume();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTS: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

    /// Errors recorded from cel-go.
    #[test]
    fn errors_match_cel_go() {
        let all = |source: &str| parse(source).expect_err(source).written(source);
        let cases = [
            ("1 +", 4, format!("Syntax error: mismatched input '<EOF>' expecting {STARTS}")),
            ("a b", 3, "Syntax error: extraneous input 'b' expecting <EOF>".to_owned()),
            ("a b c", 3, "Syntax error: mismatched input 'b' expecting <EOF>".to_owned()),
            ("self.", 6, "Syntax error: no viable alternative at input '.'".to_owned()),
            ("self..a", 6, "Syntax error: no viable alternative at input '..'".to_owned()),
            ("self.a == == 1", 11, format!("Syntax error: extraneous input '==' expecting {STARTS}")),
            ("(self.a", 8, "Syntax error: missing ')' at '<EOF>'".to_owned()),
            ("((((1))", 8, "Syntax error: mismatched input '<EOF>' expecting ')'".to_owned()),
            ("[1,", 4, "Syntax error: missing ']' at '<EOF>'".to_owned()),
            ("[1", 3, "Syntax error: mismatched input '<EOF>' expecting {']', ','}".to_owned()),
            ("[1 2]", 4, "Syntax error: extraneous input '2' expecting {']', ','}".to_owned()),
            ("[1,,2]", 4, "Syntax error: mismatched input ',' expecting ']'".to_owned()),
            ("{1", 3, "Syntax error: mismatched input '<EOF>' expecting ':'".to_owned()),
            ("{'a' 1}", 6, "Syntax error: missing ':' at '1'".to_owned()),
            ("f(1", 4, "Syntax error: missing ')' at '<EOF>'".to_owned()),
            ("1 ? 2", 6, "Syntax error: mismatched input '<EOF>' expecting ':'".to_owned()),
            ("!", 2, format!("Syntax error: extraneous input '<EOF>' expecting {STARTS}")),
            ("self.a > 1 &", 12, "Syntax error: token recognition error at: '&'".to_owned()),
            ("a{", 3, "Syntax error: mismatched input '<EOF>' expecting {'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}".to_owned()),
            ("for", 1, "reserved identifier: for".to_owned()),
            ("99999999999999999999", 1, "invalid int literal".to_owned()),
            ("b'\\u0041'", 1, "unable to unescape string".to_owned()),
        ];
        for (source, column, why) in cases {
            let marks = ".".repeat(column - 1);
            assert_eq!(
                all(source),
                format!("ERROR: <input>:1:{column}: {why}\n | {source}\n | {marks}^")
            );
        }
        let several = [
            ("1 ? : 3", vec![5, 8]),
            ("-", vec![2, 2]),
            ("--", vec![3, 3]),
            ("in", vec![1, 3]),
            ("self.in", vec![6, 8]),
            ("self.a # 1", vec![8, 10]),
            ("'a\\q'", vec![1, 5, 6]),
            ("?", vec![1, 2]),
            ("self.?", vec![7, 7]),
        ];
        for (source, columns) in several {
            let found: Vec<usize> = all(source)
                .lines()
                .filter_map(|line| {
                    line.strip_prefix("ERROR: <input>:1:")?.split(':').next()?.parse().ok()
                })
                .collect();
            assert_eq!(found, columns, "{source}: {}", all(source));
        }
    }
}
