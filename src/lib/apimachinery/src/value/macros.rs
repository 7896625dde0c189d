//! `json!`: values in JSON syntax, with embedded expressions.

use super::{Text, Value};

/// Collects the fields of a map in `json!`.
#[doc(hidden)]
pub fn no_fields() -> Vec<(Text, Value)> {
    Vec::new()
}

/// Makes a [`Value`](crate::document::Value) from JSON syntax, in which keys and values may be
/// expressions: see [`ToValue`](crate::document::ToValue).
#[macro_export]
macro_rules! json_value {
    (null) => { $crate::document::Value::Null };
    (true) => { $crate::document::Value::Bool(true) };
    (false) => { $crate::document::Value::Bool(false) };
    ([ $($items:tt)* ]) => { $crate::document::Value::Array($crate::document::Array::from($crate::json_items!([] $($items)*))) };
    ({}) => { $crate::document::Value::Object($crate::document::Map::new()) };
    ({ $($fields:tt)+ }) => {{
        let mut fields = $crate::document::no_fields();
        $crate::json_fields!(fields () $($fields)+);
        $crate::document::Value::Object(fields.into_iter().collect())
    }};
    ($value:expr) => { $crate::document::ToValue::to_value(&$value) };
}

/// Elements of a list: done, then the rest.
#[doc(hidden)]
#[macro_export]
macro_rules! json_items {
    ([ $($done:expr),* $(,)? ]) => { ::std::vec![$($done),*] };
    // Between two elements.
    ([ $($done:expr),* ] , $($rest:tt)*) => { $crate::json_items!([ $($done,)* ] $($rest)*) };
    ([ $($done:expr,)* ] null $($rest:tt)*) => { $crate::json_items!([ $($done,)* $crate::json_value!(null) ] $($rest)*) };
    ([ $($done:expr,)* ] true $($rest:tt)*) => { $crate::json_items!([ $($done,)* $crate::json_value!(true) ] $($rest)*) };
    ([ $($done:expr,)* ] false $($rest:tt)*) => { $crate::json_items!([ $($done,)* $crate::json_value!(false) ] $($rest)*) };
    ([ $($done:expr,)* ] [ $($list:tt)* ] $($rest:tt)*) => { $crate::json_items!([ $($done,)* $crate::json_value!([ $($list)* ]) ] $($rest)*) };
    ([ $($done:expr,)* ] { $($map:tt)* } $($rest:tt)*) => { $crate::json_items!([ $($done,)* $crate::json_value!({ $($map)* }) ] $($rest)*) };
    ([ $($done:expr,)* ] $next:expr, $($rest:tt)*) => { $crate::json_items!([ $($done,)* $crate::json_value!($next), ] $($rest)*) };
    ([ $($done:expr,)* ] $last:expr) => { $crate::json_items!([ $($done,)* $crate::json_value!($last) ]) };
}

/// Fields of a map: the target vector, the key so far, then the rest.
#[doc(hidden)]
#[macro_export]
macro_rules! json_fields {
    ($fields:ident ()) => {};
    ($fields:ident () , $($rest:tt)*) => { $crate::json_fields!($fields () $($rest)*) };
    ($fields:ident ($($key:tt)+) : null $($rest:tt)*) => { $crate::json_fields!(@push $fields ($($key)+) (null) $($rest)*) };
    ($fields:ident ($($key:tt)+) : true $($rest:tt)*) => { $crate::json_fields!(@push $fields ($($key)+) (true) $($rest)*) };
    ($fields:ident ($($key:tt)+) : false $($rest:tt)*) => { $crate::json_fields!(@push $fields ($($key)+) (false) $($rest)*) };
    ($fields:ident ($($key:tt)+) : [ $($list:tt)* ] $($rest:tt)*) => { $crate::json_fields!(@push $fields ($($key)+) ([ $($list)* ]) $($rest)*) };
    ($fields:ident ($($key:tt)+) : { $($map:tt)* } $($rest:tt)*) => { $crate::json_fields!(@push $fields ($($key)+) ({ $($map)* }) $($rest)*) };
    ($fields:ident ($($key:tt)+) : $value:expr , $($rest:tt)*) => { $crate::json_fields!(@push $fields ($($key)+) ($value) , $($rest)*) };
    ($fields:ident ($($key:tt)+) : $value:expr) => { $crate::json_fields!(@push $fields ($($key)+) ($value)) };
    (@push $fields:ident ($($key:tt)+) ($($value:tt)+) $($rest:tt)*) => {
        $fields.push((($($key)+).into(), $crate::json_value!($($value)+)));
        $crate::json_fields!($fields () $($rest)*);
    };
    ($fields:ident ($($key:tt)*) $next:tt $($rest:tt)*) => { $crate::json_fields!($fields ($($key)* $next) $($rest)*) };
}
