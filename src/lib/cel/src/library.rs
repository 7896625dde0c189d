//! The functions and operators: rows of tables, a file for each library. A row says what it takes,
//! what it gives, what it costs and how it runs.

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

use crate::cost::{Meter, traversal};
use crate::machine::Answer;
use crate::types::Type;
use crate::value::Value;
use ferrokube_apimachinery::quantity::Quantity;
pub(crate) use lists::is_sortable;
pub(crate) use operators::compare;
pub(crate) use regexes::compile as compile_regex;
use std::net::IpAddr;

/// A value of a library.
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
    Format(&'static named::Format),
}

const URL: &str = "kubernetes.URL";
const IP: &str = "net.IP";
const CIDR: &str = "net.CIDR";
const QUANTITY: &str = "kubernetes.Quantity";
const SEMVER: &str = "kubernetes.Semver";
const FORMAT: &str = "kubernetes.NamedFormat";

impl Library {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Url(_) => URL,
            Self::Ip(_) => IP,
            Self::Cidr(_) => CIDR,
            Self::Quantity(_) => QUANTITY,
            Self::Semver(_) => SEMVER,
            Self::Format(_) => FORMAT,
        }
    }
}

/// What an argument must be.
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
    /// A list of these.
    ListOf(&'static Arg),
    Map,
    Optional,
    Library(&'static str),
    /// What fits the first argument.
    Same,
    /// The same, if it is a list.
    SameList,
    /// What fits the items of the first argument.
    Item,
    /// A list whose items the first argument fits.
    Holder,
    /// A map whose keys the first argument fits.
    KeyHolder,
}

impl Arg {
    /// Whether a type can be meant; what is not known can.
    fn takes(self, given: &Type, first: &Type) -> bool {
        match (self, given) {
            (Self::Any, _) | (_, Type::Dyn | Type::Error) => true,
            (Self::Duration | Self::Timestamp | Self::Optional | Self::Library(_), Type::Null) => {
                true
            }
            (Self::SameList, given) => matches!(given, Type::List(..)) && given.fits(first),
            (Self::ListOf(item), Type::List(given, _)) => item.takes(given, first),
            (Self::Same, given) => given.fits(first),
            (Self::Item, given) => match first {
                Type::List(item, _) | Type::Optional(item) => given.fits(item),
                _ => first.is_dyn(),
            },
            (Self::Holder, Type::List(item, _)) => item.fits(first),
            (Self::KeyHolder, Type::Map(key, ..)) => key.fits(first),
            (Self::Number, given) => given.is_number(),
            (Self::Library(name), Type::Library(given)) => name == *given,
            (wanted, given) => wanted.tag() == Some(given.name()),
        }
    }

    /// The name of its type, as [`Type::name`] and [`Value::type_name`] write it.
    fn tag(self) -> Option<&'static str> {
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
            Self::Any | Self::Same | Self::Item | Self::Number => return None,
        })
    }

    fn takes_value(self, value: &Value<'_>) -> bool {
        match self {
            Self::Number => matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_)),
            other => other.tag().is_none_or(|tag| tag == value.type_name()),
        }
    }
}

/// What it costs, by the sizes of the arguments: of their types before it runs, of the values when
/// it does.
pub(crate) type Cost = fn(&[u64]) -> u64;
type Run = for<'a> fn(&mut Meter, &[Value<'a>]) -> Answer<'a>;

/// A function.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Whether the first argument stands before its name.
    method: bool,
    args: &'static [Arg],
    answer: fn(&[Type]) -> Type,
    cost: Cost,
    run: Run,
}

impl Row {
    fn takes_types(&self, types: &[Type]) -> bool {
        self.args.len() == types.len()
            && self.args.iter().zip(types).all(|(arg, given)| arg.takes(given, &types[0]))
    }

    /// Whether values that were not known before fit.
    pub(crate) fn takes_values(&self, values: &[Value<'_>]) -> bool {
        self.args.len() == values.len()
            && self.args.iter().zip(values).all(|(arg, value)| arg.takes_value(value))
    }

    /// Pays and runs.
    pub(crate) fn call<'a>(&self, meter: &mut Meter, values: &[Value<'a>]) -> Answer<'a> {
        let mut sizes = [1; 4];
        for (size, value) in sizes.iter_mut().zip(values) {
            *size = value.size();
        }
        meter.spend((self.cost)(&sizes))?;
        (self.run)(meter, values)
    }
}

const TABLES: [&[Row]; 15] = [
    operators::ORDERS,
    operators::NUMBERS,
    operators::OTHERS,
    conversion::ROWS,
    strings::ROWS,
    format::ROWS,
    regexes::ROWS,
    lists::ROWS,
    time::ROWS,
    optional::ROWS,
    net::ROWS,
    url::ROWS,
    quantity::ROWS,
    semver::ROWS,
    named::ROWS,
];

/// A call whose arguments have these types; a target is the first of them.
pub(crate) struct Call<'t> {
    pub(crate) name: &'t str,
    pub(crate) method: bool,
    pub(crate) types: &'t [Type],
}

/// What a call can mean: the functions, what they give, and what they cost at most.
pub(crate) struct Found {
    pub(crate) rows: Vec<&'static Row>,
    pub(crate) answer: Type,
    pub(crate) cost: u64,
}

impl Call<'_> {
    /// `None`: there is no such function for these types.
    pub(crate) fn find(&self) -> Option<Found> {
        let named = TABLES
            .into_iter()
            .flatten()
            .filter(|row| row.name == self.name && row.method == self.method);
        let rows: Vec<&'static Row> = named.filter(|row| row.takes_types(self.types)).collect();
        let mut sizes = [1; 4];
        for (size, given) in sizes.iter_mut().zip(self.types) {
            *size = given.size();
        }
        let answers: Vec<Type> = rows.iter().map(|row| (row.answer)(self.types)).collect();
        let first = answers.first()?;
        let answer = if answers.iter().all(|answer| answer.name() == first.name()) {
            first.clone()
        } else {
            Type::Dyn
        };
        let cost = rows
            .iter()
            .map(|row| (row.cost)(&sizes))
            .max()
            .unwrap_or(1)
            .saturating_add(by_items(self.name, self.types));
        Some(Found { rows, answer, cost })
    }

    /// Whether there is a function of this name at all.
    pub(crate) fn exists(name: &str) -> bool {
        TABLES.into_iter().flatten().any(|row| row.name == name)
    }
}

/// What a function over a list costs more when its items are texts, which it looks at.
fn by_items(name: &str, types: &[Type]) -> u64 {
    let (Some(Type::List(item, most)), true) = (
        types.first(),
        matches!(name, "isSorted" | "min" | "max" | "indexOf" | "lastIndexOf" | "sort" | "join"),
    ) else {
        return 0;
    };
    let separators = if name == "join" {
        types.get(1).map_or(0, Type::size).saturating_mul(most.saturating_sub(1))
    } else {
        0
    };
    match &**item {
        Type::String(size) | Type::Bytes(size) => {
            traversal(most.saturating_mul(*size).saturating_add(separators))
        }
        _ => 0,
    }
}

/// A constant amount.
fn one(_: &[u64]) -> u64 {
    1
}

/// A walk over the first argument.
fn walk(sizes: &[u64]) -> u64 {
    1 + traversal(sizes[0])
}

/// A walk over the second argument.
fn walk_second(sizes: &[u64]) -> u64 {
    1 + traversal(sizes[1])
}

/// A walk over both.
fn walk_both(sizes: &[u64]) -> u64 {
    1 + traversal(sizes[0].saturating_add(sizes[1]))
}

/// A walk over the second for each step over the first.
fn product(sizes: &[u64]) -> u64 {
    1u64.saturating_add(traversal(sizes[0]).saturating_mul(traversal(sizes[1]).max(1)))
}

/// Each item with each.
fn cross(sizes: &[u64]) -> u64 {
    1u64.saturating_add(sizes[0].saturating_mul(sizes[1]))
}

/// Makes a function that runs of patterns of arguments.
macro_rules! function {
    ($name:ident, $([$($pattern:pat),*] $(if $guard:expr)? => $body:expr),+ $(,)?) => {
        fn $name<'a>(_: &mut $crate::cost::Meter, args: &[$crate::value::Value<'a>]) -> $crate::machine::Answer<'a> {
            match args {
                $([$($pattern),*] $(if $guard)? => $body,)+
                _ => $crate::machine::no_overload(),
            }
        }
    };
}
use function;
