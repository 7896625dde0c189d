//! The rows of the function tables: argument types, result type, cost and implementation.

use crate::cost::{Meter, traversal};
use crate::types::Type;
use crate::value::{CelResult, Value};

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
            (Self::Library(""), Type::Null) => false,
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
pub(super) type FunctionBody = for<'a> fn(&mut Meter, &[Value<'a>]) -> CelResult<'a>;

/// A row of a function table.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// Whether the first argument is the receiver.
    pub(crate) method: bool,
    pub(crate) args: &'static [Arg],
    pub(super) answer: fn(&[Type]) -> Type,
    pub(super) cost: Cost,
    pub(super) run: FunctionBody,
}

impl Function {
    pub(super) fn takes_types(&self, types: &[Type]) -> bool {
        self.args.len() == types.len()
            && self.args.iter().zip(types).all(|(arg, given)| arg.takes(given, &types[0]))
    }

    /// Whether values of formerly unknown type are accepted.
    pub(crate) fn takes_values(&self, values: &[Value<'_>]) -> bool {
        self.args.len() == values.len()
            && self.args.iter().zip(values).all(|(arg, value)| arg.takes_value(value))
    }

    /// Charges and runs.
    pub(crate) fn call<'a>(&self, meter: &mut Meter, values: &[Value<'a>]) -> CelResult<'a> {
        let mut sizes = [1; 4];
        for (size, value) in sizes.iter_mut().zip(values) {
            *size = value.size();
        }
        meter.spend((self.cost)(&sizes))?;
        (self.run)(meter, values)
    }
}

/// A method of constant cost.
pub(super) const fn method(
    name: &'static str,
    args: &'static [Arg],
    answer: fn(&[Type]) -> Type,
    run: FunctionBody,
) -> Function {
    Function { name, method: true, args, answer, cost: one, run }
}

/// Constant cost.
pub(super) fn one(_: &[u64]) -> u64 {
    1
}

/// A pass over the first argument.
pub(super) fn walk(sizes: &[u64]) -> u64 {
    1 + traversal(sizes[0])
}

/// A pass over the second argument.
pub(super) fn walk_second(sizes: &[u64]) -> u64 {
    1 + traversal(sizes[1])
}

/// A pass over both.
pub(super) fn walk_both(sizes: &[u64]) -> u64 {
    1 + traversal(sizes[0].saturating_add(sizes[1]))
}

/// A pass over the second per step over the first.
pub(super) fn product(sizes: &[u64]) -> u64 {
    1u64.saturating_add(traversal(sizes[0]).saturating_mul(traversal(sizes[1]).max(1)))
}

/// Each item with each.
pub(super) fn cross(sizes: &[u64]) -> u64 {
    1u64.saturating_add(sizes[0].saturating_mul(sizes[1]))
}

/// Defines a function by argument patterns.
macro_rules! function {
    ($name:ident, $([$($pattern:pat),*] $(if $guard:expr)? => $body:expr),+ $(,)?) => {
        fn $name<'a>(_: &mut $crate::cost::Meter, args: &[$crate::value::Value<'a>]) -> $crate::value::CelResult<'a> {
            match args {
                $([$($pattern),*] $(if $guard)? => $body,)+
                _ => $crate::failure::no_overload(),
            }
        }
    };
}
pub(super) use function;
