//! List and set functions.

use super::function::{Arg, Cost, Function, FunctionBody, cross, function, one};
use crate::cost::Meter;
use crate::failure::{Failure, no_overload};
use crate::types::Type;
use crate::value::order::{compare, equal, is_sortable};
use crate::value::sum::add_values;
use crate::value::{CelResult, List, Value};
use std::cmp::Ordering;
use std::sync::Arc;

const L: Arg = Arg::List;

/// A list like the first argument.
fn same(types: &[Type]) -> Type {
    match &types[0] {
        list @ Type::List(_) => list.clone(),
        _ => Type::List(Arc::new(Type::Dyn)),
    }
}

/// A list whose items have an order: there is a function for each of their types.
fn sorted(types: &[Type]) -> Type {
    match &types[0] {
        Type::List(item) if !item.is_dyn() => types[0].clone(),
        _ => Type::Dyn,
    }
}

fn item(types: &[Type]) -> Type {
    match &types[0] {
        Type::List(item) => (**item).clone(),
        _ => Type::Dyn,
    }
}

fn optional_item(types: &[Type]) -> Type {
    Type::optional(item(types))
}

fn flat(types: &[Type]) -> Type {
    match item(types) {
        list @ Type::List(_) => list,
        _ => types[0].clone(),
    }
}

/// A step per item.
fn each(sizes: &[u64]) -> u64 {
    1u64.saturating_add(sizes[0])
}

/// Each item with each other.
fn square(sizes: &[u64]) -> u64 {
    1u64.saturating_add(sizes[0].saturating_mul(sizes[0]))
}

const fn method(
    name: &'static str,
    args: &'static [Arg],
    answer: fn(&[Type]) -> Type,
    cost: Cost,
    run: FunctionBody,
) -> Function {
    Function { name, method: true, args, answer, cost, run }
}

const fn set(name: &'static str, run: FunctionBody) -> Function {
    Function {
        name,
        method: false,
        args: &[L, Arg::Same],
        answer: |_| Type::Bool,
        cost: cross,
        run,
    }
}

pub(super) const FUNCTIONS: &[Function] = &[
    method("isSorted", &[Arg::ListOf(&Arg::Ordered)], |_| Type::Bool, each, is_sorted),
    method("sum", &[Arg::ListOf(&Arg::Int)], |_| Type::Int, each, sum_of_ints),
    method("sum", &[Arg::ListOf(&Arg::Uint)], |_| Type::Uint, each, sum_of_uints),
    method("sum", &[Arg::ListOf(&Arg::Double)], |_| Type::Double, each, sum_of_doubles),
    method("sum", &[Arg::ListOf(&Arg::Duration)], |_| Type::Duration, each, sum_of_durations),
    method("min", &[Arg::ListOf(&Arg::Ordered)], item, each, least),
    method("max", &[Arg::ListOf(&Arg::Ordered)], item, each, greatest),
    method("indexOf", &[L, Arg::Item], |_| Type::Int, each, index_of),
    method("lastIndexOf", &[L, Arg::Item], |_| Type::Int, each, last_index_of),
    method("slice", &[L, Arg::Int, Arg::Int], same, each, slice),
    method("distinct", &[L], same, square, distinct),
    method("reverse", &[L], same, each, reverse),
    method(
        "sort",
        &[Arg::ListOf(&Arg::Ordered)],
        sorted,
        |sizes| 1u64.saturating_add(sizes[0].saturating_mul(10)),
        sort,
    ),
    method("flatten", &[Arg::ListOf(&L)], flat, each, flatten),
    method(
        "flatten",
        &[Arg::ListOf(&L), Arg::Int],
        |_| Type::List(Arc::new(Type::Dyn)),
        each,
        flatten,
    ),
    method("first", &[L], optional_item, one, first),
    method("last", &[L], optional_item, one, last),
    Function {
        name: "lists.range",
        method: false,
        args: &[Arg::Int],
        answer: |_| Type::List(Arc::new(Type::Int)),
        cost: one,
        run: range,
    },
    set("sets.contains", contains),
    set("sets.intersects", intersects),
    set("sets.equivalent", equivalent),
];

/// The items of a list, each of which has an order.
fn items<'a>(list: &List<'a>) -> Result<Vec<Value<'a>>, Failure> {
    let items: Vec<Value<'a>> = list.iter().collect();
    if items.iter().all(Value::is_ordered) { Ok(items) } else { no_overload() }
}

fn is(one: &Value<'_>, other: &Value<'_>, order: Ordering) -> bool {
    compare(one, other) == Some(order)
}

/// The first of the least or greatest items.
fn extreme<'a>(list: &List<'a>, worse: Ordering, name: &str) -> CelResult<'a> {
    let better =
        |known: Value<'a>, next: Value<'a>| if is(&known, &next, worse) { next } else { known };
    items(list)?
        .into_iter()
        .reduce(better)
        .ok_or_else(|| Failure::Failed(format!("{name} called on empty list")))
}

fn ordering(one: &Value<'_>, other: &Value<'_>) -> Ordering {
    compare(one, other).unwrap_or(Ordering::Equal)
}

function!(is_sorted, [Value::List(list)] => {
    let items = items(list)?;
    // Items of different types have no order.
    Ok(Value::Bool(!items.windows(2).any(|pair| is(&pair[0], &pair[1], Ordering::Greater))))
});
function!(least, [Value::List(list)] => extreme(list, Ordering::Greater, "min"));
function!(greatest, [Value::List(list)] => extreme(list, Ordering::Less, "max"));
function!(reverse, [Value::List(list)] => {
    let mut items: Vec<_> = list.iter().collect();
    items.reverse();
    Ok(Value::list(items))
});
function!(sort, [Value::List(list)] => {
    let mut items: Vec<Value<'a>> = list.iter().collect();
    if !is_sortable(items.iter()) {
        return no_overload();
    }
    items.sort_by(ordering);
    Ok(Value::list(items))
});
function!(first, [Value::List(list)] => Ok(Value::optional(list.get(0))));
function!(last, [Value::List(list)] => Ok(Value::optional(list.len().checked_sub(1).and_then(|last| list.get(last)))));
function!(slice, [Value::List(list), Value::Int(from), Value::Int(to)] => {
    let why = match (usize::try_from(*from), usize::try_from(*to)) {
        (Ok(from), Ok(to)) if from <= to && to <= list.len() => {
            return Ok(Value::list((from..to).filter_map(|index| list.get(index)).collect()));
        }
        (Ok(from), Ok(to)) if from <= to => format!("list is length {}", list.len()),
        (Ok(_), Ok(_)) => "start index must be less than or equal to end index".to_owned(),
        _ => "negative indexes not supported".to_owned(),
    };
    Err(Failure::Failed(format!("cannot slice({from}, {to}), {why}")))
});

fn sum_of_ints<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    sum(meter, args, Value::Int(0))
}

fn sum_of_uints<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    sum(meter, args, Value::Uint(0))
}

fn sum_of_doubles<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    sum(meter, args, Value::Double(0.0))
}

fn sum_of_durations<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    sum(meter, args, Value::Duration(0))
}

fn sum<'a>(meter: &mut Meter, args: &[Value<'a>], none: Value<'a>) -> CelResult<'a> {
    let [Value::List(list)] = args else { return no_overload() };
    let Some(first) = list.get(0) else { return Ok(none) };
    let add = add_values;
    (1..list.len())
        .filter_map(|index| list.get(index))
        .try_fold(first, |total, item| add(meter, &[total, item]))
}

fn search<'a>(
    meter: &mut Meter,
    args: &[Value<'a>],
    mut order: impl Iterator<Item = usize>,
) -> CelResult<'a> {
    let [Value::List(list), wanted] = args else { return no_overload() };
    let found = order.try_fold(-1, |none, index| {
        let same = list.get(index).map_or(Ok(false), |item| equal(meter, &item, wanted));
        match same {
            Ok(true) => Err(Ok(i64::try_from(index).unwrap_or(i64::MAX))),
            Ok(false) => Ok(none),
            Err(failure) => Err(Err(failure)),
        }
    });
    match found {
        Ok(none) => Ok(Value::Int(none)),
        Err(found) => found.map(Value::Int),
    }
}

fn length(args: &[Value<'_>]) -> usize {
    match args {
        [Value::List(list), ..] => list.len(),
        _ => 0,
    }
}

fn index_of<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    search(meter, args, 0..length(args))
}

fn last_index_of<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    search(meter, args, (0..length(args)).rev())
}

fn holds<'a>(meter: &mut Meter, items: &[Value<'a>], wanted: &Value<'a>) -> Result<bool, Failure> {
    for item in items {
        meter.spend(1)?;
        if equal(meter, item, wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn distinct<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut out: Vec<Value<'a>> = Vec::new();
    for item in list.iter() {
        if !holds(meter, &out, &item)? {
            out.push(item);
        }
    }
    Ok(Value::list(out))
}

/// Replaces nested lists by their items, down to a depth.
fn flatten<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    let (list, levels) = match args {
        [Value::List(list)] => (list, 1),
        [Value::List(list), Value::Int(levels)] if *levels >= 0 => (list, *levels),
        [Value::List(_), Value::Int(_)] => return Err("level must be non-negative".into()),
        _ => return no_overload(),
    };
    let mut out: Vec<Value<'a>> = list.iter().collect();
    for _ in 0..levels {
        if !out.iter().any(|item| matches!(item, Value::List(_))) {
            break;
        }
        let mut flat = Vec::new();
        for item in out {
            match item {
                Value::List(list) => {
                    meter.spend(list.len() as u64)?;
                    flat.extend(list.iter());
                }
                other => flat.push(other),
            }
        }
        out = flat;
    }
    Ok(Value::list(out))
}

fn range<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    let [Value::Int(count)] = args else { return no_overload() };
    meter.spend(u64::try_from(*count).unwrap_or(0))?;
    Ok(Value::list((0..*count).map(Value::Int).collect()))
}

fn pair<'a>(args: &[Value<'a>]) -> Result<[Vec<Value<'a>>; 2], Failure> {
    match args {
        [Value::List(one), Value::List(other)] => {
            Ok([one.iter().collect(), other.iter().collect()])
        }
        _ => no_overload(),
    }
}

fn all_in<'a>(
    meter: &mut Meter,
    wanted: &[Value<'a>],
    items: &[Value<'a>],
) -> Result<bool, Failure> {
    for item in wanted {
        if !holds(meter, items, item)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn contains<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    let [one, other] = pair(args)?;
    all_in(meter, &other, &one).map(Value::Bool)
}

fn equivalent<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    let [one, other] = pair(args)?;
    Ok(Value::Bool(all_in(meter, &other, &one)? && all_in(meter, &one, &other)?))
}

fn intersects<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    let [one, other] = pair(args)?;
    for item in &one {
        if holds(meter, &other, item)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}
