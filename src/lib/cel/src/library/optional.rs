//! Optional values.

use super::function::{Arg, Function, function, one};
use crate::types::Type;
use crate::value::Value;
use std::sync::Arc;

fn wrapped(types: &[Type]) -> Type {
    Type::Optional(Arc::new(types[0].clone()))
}

fn inner(types: &[Type]) -> Type {
    match &types[0] {
        Type::Optional(inner) => (**inner).clone(),
        _ => Type::Dyn,
    }
}

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "optional.none",
        method: false,
        args: &[],
        answer: |_| Type::Optional(Arc::new(Type::Var)),
        cost: one,
        run: none,
    },
    Function {
        name: "optional.of",
        method: false,
        args: &[Arg::Any],
        answer: wrapped,
        cost: one,
        run: of,
    },
    Function {
        name: "optional.ofNonZeroValue",
        method: false,
        args: &[Arg::Any],
        answer: wrapped,
        cost: one,
        run: of_non_zero,
    },
    Function {
        name: "hasValue",
        method: true,
        args: &[Arg::Optional],
        answer: |_| Type::Bool,
        cost: one,
        run: has_value,
    },
    Function {
        name: "value",
        method: true,
        args: &[Arg::Optional],
        answer: inner,
        cost: one,
        run: value,
    },
    Function {
        name: "orValue",
        method: true,
        args: &[Arg::Optional, Arg::Item],
        answer: or_type,
        cost: one,
        run: or_value,
    },
    Function {
        name: "or",
        method: true,
        args: &[Arg::Optional, Arg::Same],
        answer: |types| types[0].join(&types[1]),
        cost: one,
        run: or,
    },
];

fn or_type(types: &[Type]) -> Type {
    inner(types).join(&types[1])
}

function!(none, [] => Ok(Value::Optional(None)));
function!(of, [value] => Ok(Value::optional(Some(value.clone()))));
function!(of_non_zero, [value] => Ok(Value::optional(Some(value.clone()).filter(|value| !value.is_zero()))));
function!(has_value, [Value::Optional(value)] => Ok(Value::Bool(value.is_some())));
function!(value,
    [Value::Optional(Some(value))] => Ok((**value).clone()),
    [Value::Optional(None)] => Err("optional.none() dereference".into()),
);
function!(or_value,
    [Value::Optional(Some(value)), _] => Ok((**value).clone()),
    [Value::Optional(None), other] => Ok(other.clone()),
);
function!(or,
    [value @ Value::Optional(Some(_)), Value::Optional(_)] => Ok(value.clone()),
    [Value::Optional(None), other @ Value::Optional(_)] => Ok(other.clone()),
);
