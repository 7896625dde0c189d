//! Functions and operators: tables of [`Function`] rows, one file per library. These files know
//! values and rows, but neither each other nor the evaluator.

pub(crate) mod authorizer;
mod conversion;
mod format;
pub(crate) mod function;
mod lists;
mod named;
mod net;
mod operators;
mod optional;
mod quantity;
mod regexes;
mod semver;
mod strings;
mod time;
mod url;

use crate::failure::Failure;
use crate::types::Type;
use crate::value::Value;
pub(crate) use format::fault as format_fault;
use function::Function;
pub(crate) use regexes::compile as compile_regex;

/// cel-go's error for arguments that match none of these functions.
pub(crate) fn no_function(rows: &[&'static Function], values: &[Value<'_>]) -> Failure {
    const ORDERED: &[&str] = &[
        "bool",
        "bytes",
        "double",
        "google.protobuf.Duration",
        "int",
        "string",
        "google.protobuf.Timestamp",
        "uint",
    ];
    let plain = || Failure::from("no such overload");
    let (Some(row), Some(first)) = (rows.first(), values.first()) else { return plain() };
    // The types whose own implementation of the operator reports the error.
    let operands: &[&str] = match (row.name, values.len()) {
        ("contains" | "startsWith" | "endsWith" | "in", _) => return plain(),
        ("<" | "<=" | ">" | ">=", _) => ORDERED,
        ("+", _) => &[
            "bytes",
            "double",
            "google.protobuf.Duration",
            "int",
            "list",
            "string",
            "google.protobuf.Timestamp",
            "uint",
        ],
        ("-", 1) => &["bool", "double", "google.protobuf.Duration", "int"],
        ("-", _) => {
            &["double", "google.protobuf.Duration", "int", "google.protobuf.Timestamp", "uint"]
        }
        ("*" | "/", _) => &["double", "int", "uint"],
        ("%", _) => &["int", "uint"],
        ("!", _) => &["bool"],
        ("size", _) => &["bytes", "list", "map", "string"],
        ("matches", _) => &["string"],
        (name, _) => {
            let types: Vec<&str> = values.iter().map(Value::type_name).collect();
            return Failure::Failed(format!("no such overload: {name}({})", types.join(", ")));
        }
    };
    // These implement every operator.
    const ASKED: [&str; 3] = ["string", "google.protobuf.Duration", "google.protobuf.Timestamp"];
    if operands.contains(&first.type_name()) || ASKED.contains(&first.type_name()) {
        return plain();
    }
    Failure::Failed(format!("no such overload: {}", operator(row.name, values.len())))
}

const TABLES: [&[Function]; 16] = [
    operators::ORDERS,
    operators::NUMBERS,
    operators::OTHERS,
    conversion::FUNCTIONS,
    strings::FUNCTIONS,
    format::FUNCTIONS,
    regexes::FUNCTIONS,
    lists::FUNCTIONS,
    time::FUNCTIONS,
    optional::FUNCTIONS,
    net::FUNCTIONS,
    url::FUNCTIONS,
    quantity::FUNCTIONS,
    semver::FUNCTIONS,
    named::FUNCTIONS,
    authorizer::FUNCTIONS,
];

/// A call with arguments of these types, the receiver first.
pub(crate) struct CallTypes<'t> {
    pub(crate) name: &'t str,
    pub(crate) method: bool,
    pub(crate) types: &'t [Type],
}

/// The matching functions of a call and their result type.
pub(crate) struct Overloads {
    pub(crate) rows: Vec<&'static Function>,
    pub(crate) answer: Type,
}

impl CallTypes<'_> {
    /// `None` if no function matches the types.
    pub(crate) fn find(&self) -> Option<Overloads> {
        let named = TABLES
            .into_iter()
            .flatten()
            .filter(|row| row.name == self.name && row.method == self.method);
        let rows: Vec<&'static Function> =
            named.filter(|row| row.takes_types(self.types)).collect();
        let answers: Vec<Type> = rows.iter().map(|row| (row.answer)(self.types)).collect();
        let first = answers.first()?;
        let answer = if answers.iter().all(|answer| answer.name() == first.name()) {
            first.clone()
        } else {
            Type::Dyn
        };
        Some(Overloads { rows, answer })
    }

    /// Whether a function of this name exists.
    pub(crate) fn exists(name: &str) -> bool {
        TABLES.into_iter().flatten().any(|row| row.name == name)
    }
}

/// The function name of an operator.
pub(crate) fn operator(name: &str, args: usize) -> &str {
    match name {
        "==" => "_==_",
        "!=" => "_!=_",
        "<" => "_<_",
        "<=" => "_<=_",
        ">" => "_>_",
        ">=" => "_>=_",
        "+" => "_+_",
        "-" if args == 1 => "-_",
        "-" => "_-_",
        "*" => "_*_",
        "/" => "_/_",
        "%" => "_%_",
        "!" => "!_",
        "in" => "@in",
        plain => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_do_not_overflow() {
        for function in TABLES.into_iter().flatten() {
            for sizes in [[u64::MAX; 4], [u64::MAX, 0, 1, 0], [0, u64::MAX, 0, 1], [0; 4]] {
                assert!((function.cost)(&sizes) < u64::MAX || sizes.contains(&u64::MAX));
            }
        }
    }
}
