//! Functions and operators: tables, one file per library. A row has argument types, result type,
//! cost and implementation.

pub(crate) mod authorizer;
mod conversion;
mod format;
mod lists;
mod named;
mod net;
mod operators;
mod optional;
mod quantity;
mod regexes;
mod semver;
mod strings;
pub(crate) mod time;
mod url;

use crate::check::operator;
use crate::cost::{Meter, traversal};
use crate::evaluator::{Answer, Failure};
use crate::types::Type;
use crate::value::Value;
pub(crate) use conversion::double;
use ferrokube_apimachinery::quantity::Quantity;
pub(crate) use format::fault as format_fault;
pub(crate) use lists::is_sortable;
pub(crate) use operators::compare;
pub(crate) use regexes::compile as compile_regex;
use std::net::IpAddr;

/// A value of a library type.
#[derive(Clone, Debug)]
pub enum Library {
    /// `kubernetes.URL`
    Url(url::Url),
    /// `net.IP`
    Ip(IpAddr),
    /// `net.CIDR`
    Cidr(net::Cidr),
    /// `kubernetes.Quantity`
    Quantity(Quantity),
    /// `kubernetes.Semver`
    Semver(semver::Semver),
    /// `kubernetes.NamedFormat`
    Format(&'static named::NamedFormat),
    /// `kubernetes.authorization.*`
    Authorizer(authorizer::AuthorizerValue),
}

pub(crate) const URL: &str = "kubernetes.URL";
pub(crate) const IP: &str = "net.IP";
pub(crate) const CIDR: &str = "net.CIDR";
pub(crate) const QUANTITY: &str = "kubernetes.Quantity";
pub(crate) const SEMVER: &str = "kubernetes.Semver";
pub(crate) const FORMAT: &str = "kubernetes.NamedFormat";

impl Library {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Url(_) => URL,
            Self::Ip(_) => IP,
            Self::Cidr(_) => CIDR,
            Self::Quantity(_) => QUANTITY,
            Self::Semver(_) => SEMVER,
            Self::Format(_) => FORMAT,
            Self::Authorizer(value) => value.type_name(),
        }
    }
}

/// An argument's type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    Any,
    Bool,
    Int,
    Uint,
    Double,
    /// `int`, `uint` or `double`
    Number,
    String,
    Bytes,
    Duration,
    Timestamp,
    List,
    /// A type with an order.
    Ordered,
    /// A list with items of this type.
    ListOf(&'static Arg),
    Map,
    Optional,
    Library(&'static str),
    /// Compatible with the first argument.
    Same,
    /// Compatible with the first argument, and a list.
    SameList,
    /// Compatible with the items of the first argument.
    Item,
    /// A list whose items are compatible with the first argument.
    Holder,
    /// A map whose keys are compatible with the first argument.
    KeyHolder,
}

impl Arg {
    /// Whether a type is accepted; an unknown one is.
    fn takes(self, given: &Type, first: &Type) -> bool {
        match (self, given) {
            (Self::Any, _) | (_, Type::Dyn | Type::Var | Type::Error) => true,
            (Self::Duration | Self::Timestamp | Self::Optional | Self::Library(_), Type::Null) => {
                true
            }
            (Self::SameList, given) => matches!(given, Type::List(..)) && given.fits(first),
            (Self::ListOf(item), Type::List(given)) => item.takes(given, first),
            (Self::Same, given) => given.fits(first),
            (Self::Item, given) => match first {
                Type::List(item) | Type::Optional(item) => given.fits(item),
                _ => first.is_dyn(),
            },
            (Self::Holder, Type::List(item)) => item.fits(first),
            (Self::KeyHolder, Type::Map(key, ..)) => key.fits(first),
            (Self::Number, given) => given.is_number(),
            (Self::Ordered, given) => given.is_ordered(),
            (Self::Library(name), Type::Library(given)) => name == *given,
            (wanted, given) => wanted.tag() == Some(given.name()),
        }
    }

    /// The type's name, as in [`Type::name`] and [`Value::type_name`].
    pub(crate) fn tag(self) -> Option<&'static str> {
        Some(match self {
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "google.protobuf.Duration",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::List | Self::ListOf(_) | Self::Holder | Self::SameList => "list",
            Self::Map | Self::KeyHolder => "map",
            Self::Optional => "optional_type",
            Self::Library(name) => name,
            Self::Any | Self::Same | Self::Item | Self::Number | Self::Ordered => return None,
        })
    }

    fn takes_value(self, value: &Value<'_>) -> bool {
        match self {
            Self::Number => matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_)),
            other => other.tag().is_none_or(|tag| tag == value.type_name()),
        }
    }
}

/// Metered cost by the arguments' sizes.
pub(crate) type Cost = fn(&[u64]) -> u64;
type Run = for<'a> fn(&mut Meter, &[Value<'a>]) -> Answer<'a>;

/// A row of a function table.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// Whether the first argument is the receiver.
    pub(crate) method: bool,
    pub(crate) args: &'static [Arg],
    answer: fn(&[Type]) -> Type,
    cost: Cost,
    run: Run,
}

impl Function {
    fn takes_types(&self, types: &[Type]) -> bool {
        self.args.len() == types.len()
            && self.args.iter().zip(types).all(|(arg, given)| arg.takes(given, &types[0]))
    }

    /// Whether values of formerly unknown type are accepted.
    pub(crate) fn takes_values(&self, values: &[Value<'_>]) -> bool {
        self.args.len() == values.len()
            && self.args.iter().zip(values).all(|(arg, value)| arg.takes_value(value))
    }

    /// Charges and runs.
    pub(crate) fn call<'a>(&self, meter: &mut Meter, values: &[Value<'a>]) -> Answer<'a> {
        let mut sizes = [1; 4];
        for (size, value) in sizes.iter_mut().zip(values) {
            *size = value.size();
        }
        meter.spend((self.cost)(&sizes))?;
        (self.run)(meter, values)
    }
}

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

/// A method of constant cost.
const fn method(
    name: &'static str,
    args: &'static [Arg],
    answer: fn(&[Type]) -> Type,
    run: Run,
) -> Function {
    Function { name, method: true, args, answer, cost: one, run }
}

/// Constant cost.
fn one(_: &[u64]) -> u64 {
    1
}

/// A pass over the first argument.
fn walk(sizes: &[u64]) -> u64 {
    1 + traversal(sizes[0])
}

/// A pass over the second argument.
fn walk_second(sizes: &[u64]) -> u64 {
    1 + traversal(sizes[1])
}

/// A pass over both.
fn walk_both(sizes: &[u64]) -> u64 {
    1 + traversal(sizes[0].saturating_add(sizes[1]))
}

/// A pass over the second per step over the first.
fn product(sizes: &[u64]) -> u64 {
    1u64.saturating_add(traversal(sizes[0]).saturating_mul(traversal(sizes[1]).max(1)))
}

/// Each item with each.
fn cross(sizes: &[u64]) -> u64 {
    1u64.saturating_add(sizes[0].saturating_mul(sizes[1]))
}

/// Defines a function by argument patterns.
macro_rules! function {
    ($name:ident, $([$($pattern:pat),*] $(if $guard:expr)? => $body:expr),+ $(,)?) => {
        fn $name<'a>(_: &mut $crate::cost::Meter, args: &[$crate::value::Value<'a>]) -> $crate::evaluator::Answer<'a> {
            match args {
                $([$($pattern),*] $(if $guard)? => $body,)+
                _ => $crate::evaluator::no_overload(),
            }
        }
    };
}
use function;

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
