//! Estimated costs of calls, by function. A call without a rule of its own costs one step.

use super::{EntrySizes, Estimate, LIST, Size, declared, scaled};
use crate::library::function::{Arg, Function};
use crate::sizes::{SchemaPosition, Sizes, ValuePart};
use crate::types::Type;
use crate::value::library::{CIDR, FORMAT, IP, QUANTITY, SEMVER, URL};

/// A pass over a string, per byte.
const PASS: f64 = 0.1;
/// A pattern, per byte.
const PATTERN: f64 = 0.25;
/// Max bytes of a named format's pattern.
const FORMAT_PATTERN: f64 = 128.0;
/// Max bytes of a named format.
const FORMAT_SIZE: u64 = 64;
/// Bytes of an address.
const ADDRESS: u64 = 16;

/// The estimated cost of a call, and the known bounds on its result.
#[derive(Default)]
struct CallEstimate {
    cost: u64,
    size: Option<Size>,
    entries: Option<EntrySizes>,
}

impl CallEstimate {
    fn costs(cost: u64) -> Self {
        Self { cost, ..Self::default() }
    }

    /// A pass over a value, whose result has the given size.
    fn pass(over: Size, factor: f64, size: Size) -> Self {
        Self { cost: scaled(over.most, factor), size: Some(size), entries: None }
    }

    /// A new list.
    fn list(size: Size, factor: f64) -> Self {
        let cost = scaled(size.most, factor).saturating_add(1 + LIST);
        Self { cost, size: Some(size), entries: None }
    }
}

/// An argument, or the target.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'o> {
    pub(crate) answer: &'o Type,
    pub(crate) estimate: &'o Estimate,
}

impl Operand<'_> {
    fn size(&self) -> Size {
        self.estimate.size_or_unknown()
    }

    /// Max cost of a pass.
    fn pass(&self) -> u64 {
        scaled(self.size().most, PASS)
    }

    /// The type and size of a list's items.
    fn items(&self, sizes: &mut Sizes) -> Option<(&Type, Size)> {
        let Type::List(item) = self.answer else { return None };
        let size = match &self.estimate.place {
            SchemaPosition::Computed => None,
            place => sizes.most(&sizes.below(place, ValuePart::Items)).map(Size::up_to),
        };
        Some((item, size.unwrap_or(Size::UNKNOWN)))
    }

    /// The value of an integer literal.
    fn number(&self) -> Option<u64> {
        self.estimate.number.map(|number| u64::try_from(number).unwrap_or(0))
    }
}

/// A call of one of these functions, the target first.
pub(crate) fn called(
    rows: &[&'static Function],
    operands: &[Operand<'_>],
    answer: &Type,
    sizes: &mut Sizes,
) -> Estimate {
    let mut whole: Option<CallEstimate> = None;
    for row in rows {
        let one = of(row, operands, sizes);
        whole = Some(match whole {
            None => one,
            Some(before) => CallEstimate {
                cost: before.cost.max(one.cost),
                size: match (before.size, one.size) {
                    (Some(before), Some(one)) => Some(before.union(one)),
                    (before, one) => before.or(one),
                },
                entries: one.entries.or(before.entries),
            },
        });
    }
    let CallEstimate { cost, size, entries } = whole.unwrap_or_default();
    let cost =
        operands.iter().fold(cost, |total, operand| total.saturating_add(operand.estimate.cost));
    // The value of `dyn(...)` is known as well as its argument's.
    let (size, entries) = match (rows.first(), operands) {
        (Some(row), [operand]) if row.name == "dyn" => {
            (operand.estimate.size, operand.estimate.entries)
        }
        _ => (size, entries),
    };
    let size = size.or_else(|| declared(&SchemaPosition::Computed, answer, sizes));
    Estimate { cost, size, entries, ..Estimate::default() }
}

/// The cost and size of sorting by `keys`.
pub(super) fn sorted(keys: &Estimate, key: &Type) -> (u64, Size) {
    let size = keys.size_or_unknown();
    let square = size.times(size);
    (CallEstimate::list(square, sort_factor(key)).cost, square)
}

/// Factor for comparisons, including passes over the compared values.
fn sort_factor(key: &Type) -> f64 {
    if is_scanned(key) || key.is_dyn() { 2.0 + PASS } else { 2.0 }
}

fn is_scanned(item: &Type) -> bool {
    matches!(item, Type::String | Type::Bytes)
}

fn of(row: &Function, operands: &[Operand<'_>], sizes: &mut Sizes) -> CallEstimate {
    match (row.method, operands) {
        (_, []) => CallEstimate::costs(1),
        (false, [first, rest @ ..]) => function(row, first, rest),
        (true, [target, args @ ..]) => method(row, target, args, sizes),
    }
}

fn function(row: &Function, first: &Operand<'_>, rest: &[Operand<'_>]) -> CallEstimate {
    let size = first.size();
    match (row.name, rest) {
        ("url" | "jsonpatch.escapeKey", []) => CallEstimate::pass(size, PASS, size),
        ("cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity", _)
        | ("semver" | "isSemver", _) => CallEstimate::costs(first.pass()),
        ("ip.isCanonical", _) => CallEstimate::costs(scaled(size.most, 2.0 * PASS)),
        ("bytes", []) if takes(row, 0, "string") => {
            let size = Size { least: size.least, most: size.most.wrapping_mul(4) };
            CallEstimate { cost: first.pass(), size: Some(size), entries: None }
        }
        ("string", []) if takes(row, 0, "bytes") => {
            CallEstimate::pass(size, PASS, Size { least: size.least / 4, most: size.most })
        }
        ("strings.quote", []) => {
            let most = size.most.wrapping_mul(2).wrapping_add(2);
            CallEstimate::pass(size, PASS, Size { least: size.least.wrapping_add(2), most })
        }
        ("in", [list]) if takes(row, 1, "list") => {
            CallEstimate::costs(scaled(list.size().most, 1.0))
        }
        ("+", [other]) => added(row, first, other),
        ("==" | "!=", [other]) => CallEstimate::costs(compared(row.name, first, other)),
        ("<" | "<=" | ">" | ">=", [other]) if takes(row, 0, "string") || takes(row, 0, "bytes") => {
            CallEstimate::costs(first.pass().min(other.pass()))
        }
        ("sets.contains" | "sets.intersects", [other]) => {
            CallEstimate::costs(size.times(other.size()).most.saturating_add(1))
        }
        ("sets.equivalent", [other]) => {
            let pairs = size.times(other.size()).most;
            CallEstimate::costs(scaled(pairs, 2.0).saturating_add(1))
        }
        ("lists.range", []) => {
            CallEstimate::list(Size::exactly(first.number().unwrap_or(u64::MAX)), 1.0)
        }
        _ => CallEstimate::costs(1),
    }
}

/// Whether a function's argument has this type.
fn takes(row: &Function, place: usize, tag: &str) -> bool {
    row.args.get(place).and_then(|arg| arg.tag()) == Some(tag)
}

fn added(row: &Function, one: &Operand<'_>, other: &Operand<'_>) -> CallEstimate {
    let size = one.size().plus(other.size());
    let cost = match row.args.first() {
        Some(Arg::String | Arg::Bytes) => scaled(size.most, PASS),
        Some(Arg::List) => 1,
        _ => return CallEstimate::costs(1),
    };
    let entries = EntrySizes::union(one.estimate.entries, other.estimate.entries);
    CallEstimate { cost, size: Some(size), entries }
}

fn compared(name: &str, one: &Operand<'_>, other: &Operand<'_>) -> u64 {
    match (one.answer, other.answer) {
        (Type::Library(kind), Type::Library(same)) if name == "==" && kind == same => match *kind {
            IP | CIDR | QUANTITY | SEMVER => 1,
            FORMAT => scaled(FORMAT_SIZE, PASS),
            URL => scaled(other.estimate.size.map_or(1, |size| size.most), PASS),
            _ => one.pass().min(other.pass()),
        },
        _ => one.pass().min(other.pass()),
    }
}

fn method(
    row: &Function,
    target: &Operand<'_>,
    args: &[Operand<'_>],
    sizes: &mut Sizes,
) -> CallEstimate {
    let size = target.size();
    match (row.name, args) {
        ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", _) => {
            CallEstimate::costs(match target.items(sizes) {
                Some((item, bytes)) if is_scanned(item) => {
                    size.most.saturating_mul(scaled(bytes.most, PASS).saturating_add(1))
                }
                Some(_) => size.most,
                None => target.pass(),
            })
        }
        ("lowerAscii" | "upperAscii" | "substring" | "trim", _) => {
            CallEstimate::pass(size, PASS, size)
        }
        ("replace", [from, to, ..]) => {
            CallEstimate::pass(size, 2.0 * PASS, replaced(size, from.size(), to.size()))
        }
        ("split", _) => {
            // A negative limit is none.
            #[allow(clippy::cast_sign_loss, reason = "a negative limit is as good as none")]
            let limit = args.get(1).and_then(|limit| limit.estimate.number).map(|n| n as u64);
            CallEstimate::pass(size, 2.0 * PASS, Size::up_to(limit.unwrap_or(size.most)))
        }
        ("join", _) => joined(target, args.first(), sizes),
        ("find" | "findAll", [pattern, ..]) => CallEstimate {
            cost: search(size, pattern),
            size: Some(Size::up_to(size.most)),
            entries: None,
        },
        ("matches", [pattern]) => CallEstimate::costs(search(size, pattern)),
        ("contains", [part]) => CallEstimate::costs(target.pass().saturating_mul(part.pass())),
        ("startsWith" | "endsWith", [part]) => CallEstimate::costs(part.pass()),
        ("format", _) => CallEstimate::costs(target.pass()),
        ("validate", [text]) => CallEstimate::costs(scaled(text.pass(), FORMAT_PATTERN * PATTERN)),
        ("containsIP" | "containsCIDR", [other]) => {
            let masked = if row.name == "containsCIDR" { scaled(ADDRESS, PASS) + 1 } else { 0 };
            let parsed = if takes(row, 1, "string") { other.pass() } else { 0 };
            CallEstimate::costs(parsed.saturating_add(scaled(2 * ADDRESS, PASS) + masked))
        }
        ("slice", [from, to]) => {
            let end = to.number().unwrap_or(size.most);
            let from = from.number().unwrap_or(0);
            CallEstimate::list(Size::exactly(end.wrapping_sub(from)), 1.0)
        }
        ("reverse", []) => CallEstimate::list(size, 1.0),
        ("flatten", _) => {
            #[allow(clippy::cast_precision_loss, reason = "as estimated by cel-go")]
            let depth = args.first().map_or(1.0, |depth| depth.number().unwrap_or(u64::MAX) as f64);
            CallEstimate::list(size, depth)
        }
        ("distinct", []) => CallEstimate::list(size.times(size), 2.0),
        ("sort", []) => {
            let factor = match target.answer {
                Type::List(item) => sort_factor(item),
                other => sort_factor(other),
            };
            CallEstimate::list(size.times(size), factor)
        }
        _ => CallEstimate::costs(1),
    }
}

/// A pass of a pattern over a text.
fn search(text: Size, pattern: &Operand<'_>) -> u64 {
    let text = scaled(text.most.saturating_add(1), PASS);
    text.saturating_mul(scaled(pattern.size().most, PATTERN))
}

/// The size of a text with parts replaced.
fn replaced(text: Size, from: Size, to: Size) -> Size {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "as rounded by kube-apiserver; the cast saturates"
    )]
    let quotient = |text: u64, part: u64| (text as f64 / part as f64).ceil() as u64;
    // How often the longest replacement occurs, and what stays between.
    let (most, kept_most) = if from.least == 0 {
        (text.most.saturating_add(1), text.most)
    } else if to.most <= from.least {
        (0, text.most)
    } else {
        (quotient(text.most, from.least), 0)
    };
    let (least, kept_least) = if from.most == 0 {
        (text.least.saturating_add(1), text.least)
    } else if from.most <= to.least {
        (0, text.least)
    } else {
        (quotient(text.least, from.most), 0)
    };
    Size { least, most }.times(to).plus(Size { least: kept_least, most: kept_most })
}

fn joined(
    target: &Operand<'_>,
    separator: Option<&Operand<'_>>,
    sizes: &mut Sizes,
) -> CallEstimate {
    let list = target.size();
    let texts = target.items(sizes).map_or(Size::exactly(0), |(_, bytes)| list.times(bytes));
    let size = separator.map_or(texts, |separator| {
        let gaps = Size { least: list.least.saturating_sub(1), most: list.most.saturating_sub(1) };
        texts.plus(separator.size().times(gaps))
    });
    CallEstimate::pass(size, PASS, size)
}
