//! Values as text.

use super::library::Library;
use super::{Value, time};
use crate::failure::{Failure, no_overload};
use ferrokube_apimachinery::field::Shown;

/// Converts a value to a string.
pub(crate) fn text(value: &Value<'_>) -> Result<String, Failure> {
    Ok(match value {
        Value::String(text) => text.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Uint(number) => number.to_string(),
        Value::Double(number) => double(*number),
        Value::Bytes(bytes) => std::str::from_utf8(bytes)
            .map_err(|_| Failure::from("invalid UTF-8 in bytes, cannot convert to string"))?
            .to_owned(),
        Value::Timestamp(nanos) => time::write_timestamp(*nanos)?,
        Value::Duration(nanos) => time::write_duration(*nanos),
        Value::Library(library) => match &**library {
            Library::Ip(address) => address.to_string(),
            Library::Cidr(cidr) => cidr.to_string(),
            _ => return no_overload(),
        },
        _ => return no_overload(),
    })
}

/// The shortest representation, with an exponent from 10^6 on and below 10^-4.
pub(crate) fn double(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    number.shown()
}
