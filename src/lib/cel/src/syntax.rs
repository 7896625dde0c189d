//! Expressions as they were written, and the parser that makes them.

use crate::lex::{Token, tokens};

/// No expression is nested deeper: what walks over expressions is recursive.
pub(crate) const MAX_DEPTH: u16 = 160;

/// An expression.
#[derive(Clone, Debug)]
pub(crate) struct Ast {
    pub(crate) kind: Kind,
    depth: u16,
}

/// The forms of expressions. Operators other than these are calls of functions named by their symbols.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
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
    /// Items, and whether each is optional.
    List(Vec<(Ast, bool)>),
    /// Keys and values, and whether each is optional.
    Map(Vec<(Ast, Ast, bool)>),
}

type Parsed = Result<Ast, String>;

/// Parses an expression.
///
/// # Errors
/// It is none, or one that is nested too deep.
pub(crate) fn parse(source: &str) -> Parsed {
    let mut parser = Parser { tokens: tokens(source)?, at: 0, depth: 0 };
    let expression = parser.expression()?;
    match parser.peek() {
        Token::End => Ok(expression),
        other => Err(unexpected(other)),
    }
}

fn unexpected(token: &Token) -> String {
    match token {
        Token::End => "syntax error: unexpected end of the expression".to_owned(),
        Token::Symbol(symbol) => format!("syntax error: unexpected '{symbol}'"),
        Token::Name(name) => format!("syntax error: unexpected '{name}'"),
        _ => "syntax error: unexpected literal".to_owned(),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: u16,
}

/// Left-associative operators, from the loosest.
const LEVELS: [&[&str]; 3] = [&["==", "!=", "<", "<=", ">", ">="], &["+", "-"], &["*", "/", "%"]];

/// Words that are no names.
const RESERVED: [&str; 17] =
    ["as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while"];

impl Ast {
    /// Above expressions of which the deepest is so deep.
    fn above(kind: Kind, below: u16) -> Parsed {
        if below >= MAX_DEPTH { Err(too_deep()) } else { Ok(Self { kind, depth: below + 1 }) }
    }

    fn leaf(kind: Kind) -> Self {
        Self { kind, depth: 0 }
    }

    fn call(target: Option<Ast>, name: &str, args: Vec<Ast>) -> Parsed {
        let below = deepest(target.iter().chain(&args));
        Self::above(Kind::Call { target: target.map(Box::new), name: name.to_owned(), args }, below)
    }
}

fn deepest<'a>(all: impl IntoIterator<Item = &'a Ast>) -> u16 {
    all.into_iter().map(|ast| ast.depth).max().unwrap_or(0)
}

fn too_deep() -> String {
    "expression is nested too deep".to_owned()
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.tokens.get_mut(self.at).map_or(Token::End, |token| std::mem::replace(token, Token::End));
        self.at += 1;
        token
    }

    fn eat(&mut self, symbol: &str) -> bool {
        let found = matches!(self.peek(), Token::Symbol(given) if *given == symbol);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: &str) -> Result<(), String> {
        if self.eat(symbol) { Ok(()) } else { Err(unexpected(self.peek())) }
    }

    fn expression(&mut self) -> Parsed {
        self.depth += 1;
        if self.depth > MAX_DEPTH / 2 {
            return Err(too_deep());
        }
        let condition = self.either()?;
        let whole = if self.eat("?") {
            let yes = self.either()?;
            self.expect(":")?;
            let all = Box::new([condition, yes, self.expression()?]);
            let below = deepest(all.iter());
            Ast::above(Kind::Conditional(all), below)?
        } else {
            condition
        };
        self.depth -= 1;
        Ok(whole)
    }

    fn either(&mut self) -> Parsed {
        self.logical("||", Self::both, Kind::Or)
    }

    fn both(&mut self) -> Parsed {
        self.logical("&&", |parser| parser.binary(0), Kind::And)
    }

    fn logical(&mut self, symbol: &str, below: fn(&mut Self) -> Parsed, kind: fn(Vec<Ast>) -> Kind) -> Parsed {
        let first = below(self)?;
        if !matches!(self.peek(), Token::Symbol(given) if *given == symbol) {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.eat(symbol) {
            all.push(below(self)?);
        }
        let below = deepest(&all);
        Ast::above(kind(all), below)
    }

    fn binary(&mut self, level: usize) -> Parsed {
        let Some(symbols) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        loop {
            let name = match self.peek() {
                Token::Symbol(symbol) if symbols.contains(symbol) => *symbol,
                Token::Name(name) if level == 0 && name == "in" => "in",
                _ => return Ok(left),
            };
            self.at += 1;
            let right = self.binary(level + 1)?;
            left = Ast::call(None, name, vec![left, right])?;
        }
    }

    fn unary(&mut self) -> Parsed {
        for symbol in ["!", "-"] {
            let mut count = 0;
            while self.eat(symbol) {
                count += 1;
            }
            if count == 0 {
                continue;
            }
            // Two of them cancel out; the sign of a number belongs to it.
            if symbol == "-"
                && let Some(number) = self.negative()?
            {
                let operand = self.member(number)?;
                return if count % 2 == 1 { Ok(operand) } else { Ast::call(None, "-", vec![operand]) };
            }
            let first = self.primary()?;
            let operand = self.member(first)?;
            return if count % 2 == 0 { Ok(operand) } else { Ast::call(None, symbol, vec![operand]) };
        }
        let first = self.primary()?;
        self.member(first)
    }

    /// A number behind a sign.
    fn negative(&mut self) -> Result<Option<Ast>, String> {
        let kind = match self.peek() {
            Token::Int(value) => Kind::Int(0i64.checked_sub_unsigned(*value).ok_or_else(|| "syntax error: invalid int literal".to_owned())?),
            Token::Double(value) => Kind::Double(-value),
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(Ast::leaf(kind)))
    }

    /// What follows a primary expression: fields, calls, indices.
    fn member(&mut self, first: Ast) -> Parsed {
        let mut operand = first;
        loop {
            if self.eat(".?") {
                operand = self.select(operand, true)?;
            } else if self.eat(".") {
                operand = self.select(operand, false)?;
            } else if self.eat("[?") {
                operand = self.index(operand, true)?;
            } else if self.eat("[") {
                operand = self.index(operand, false)?;
            } else if matches!(self.peek(), Token::Symbol("{")) {
                return Err("messages are not supported".to_owned());
            } else {
                return Ok(operand);
            }
        }
    }

    fn select(&mut self, operand: Ast, optional: bool) -> Parsed {
        let field = match self.next() {
            Token::Name(name) if !matches!(name.as_str(), "true" | "false" | "null" | "in") => name,
            other => return Err(unexpected(&other)),
        };
        if !optional && self.eat("(") {
            let args = self.args()?;
            return Ast::call(Some(operand), &field, args);
        }
        let below = operand.depth;
        Ast::above(Kind::Select { operand: Box::new(operand), field, optional }, below)
    }

    fn index(&mut self, operand: Ast, optional: bool) -> Parsed {
        let index = self.expression()?;
        self.expect("]")?;
        let below = operand.depth.max(index.depth);
        Ast::above(Kind::Index { operand: Box::new(operand), index: Box::new(index), optional }, below)
    }

    /// Up to the closing parenthesis.
    fn args(&mut self) -> Result<Vec<Ast>, String> {
        let mut out = Vec::new();
        if self.eat(")") {
            return Ok(out);
        }
        loop {
            out.push(self.expression()?);
            if self.eat(")") {
                return Ok(out);
            }
            self.expect(",")?;
        }
    }

    fn primary(&mut self) -> Parsed {
        Ok(Ast::leaf(match self.next() {
            Token::Int(value) => Kind::Int(i64::try_from(value).map_err(|_| "syntax error: invalid int literal")?),
            Token::Uint(value) => Kind::Uint(value),
            Token::Double(value) => Kind::Double(value),
            Token::Text(text) => Kind::Text(text),
            Token::Bytes(bytes) => Kind::Bytes(bytes),
            Token::Symbol("(") => {
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Symbol("[") => return self.list(false),
            Token::Symbol("[?") => return self.list(true),
            Token::Symbol("{") => return self.map(false),
            Token::Symbol("{?") => return self.map(true),
            Token::Symbol(".") => match self.next() {
                Token::Name(name) => return self.named(name),
                other => return Err(unexpected(&other)),
            },
            Token::Name(name) => return self.named(name),
            other => return Err(unexpected(&other)),
        }))
    }

    fn named(&mut self, name: String) -> Parsed {
        match name.as_str() {
            "true" => return Ok(Ast::leaf(Kind::Bool(true))),
            "false" => return Ok(Ast::leaf(Kind::Bool(false))),
            "null" => return Ok(Ast::leaf(Kind::Null)),
            "in" => return Err("syntax error: unexpected 'in'".to_owned()),
            word if RESERVED.contains(&word) => return Err(format!("syntax error: reserved identifier: {word}")),
            _ => {}
        }
        if self.eat("(") {
            let args = self.args()?;
            return Ast::call(None, &name, args);
        }
        Ok(Ast::leaf(Kind::Name(name)))
    }

    fn list(&mut self, first_optional: bool) -> Parsed {
        let mut items = Vec::new();
        let mut optional = first_optional;
        while !self.eat("]") {
            items.push((self.expression()?, optional));
            if !self.eat(",") {
                self.expect("]")?;
                break;
            }
            optional = self.eat("?");
        }
        let below = deepest(items.iter().map(|(item, _)| item));
        Ast::above(Kind::List(items), below)
    }

    fn map(&mut self, first_optional: bool) -> Parsed {
        let mut entries = Vec::new();
        let mut optional = first_optional;
        while !self.eat("}") {
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((key, self.expression()?, optional));
            if !self.eat(",") {
                self.expect("}")?;
                break;
            }
            optional = self.eat("?");
        }
        let below = deepest(entries.iter().flat_map(|(key, value, _)| [key, value]));
        Ast::above(Kind::Map(entries), below)
    }
}
