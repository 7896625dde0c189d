//! Named formats: `format.dns1123Label().validate(text)`.

use super::function::{Arg, Function, function, one, walk};
use crate::failure::no_overload;
use crate::types::Type;
use crate::value::Value;
use crate::value::library::{FORMAT, Library};
use crate::value::named_format::FORMATS;
use std::sync::Arc;

fn a_format(_: &[Type]) -> Type {
    Type::Library(FORMAT)
}

fn complaints(_: &[Type]) -> Type {
    Type::Optional(Arc::new(Type::List(Arc::new(Type::String))))
}

macro_rules! formats {
    ($($index:literal $name:literal $run:ident),*) => {
        $(function!($run, [] => Ok(Value::library(Library::Format(&FORMATS[$index]))));)*
        pub(super) const FUNCTIONS: &[Function] = &[
            $(Function { name: $name, method: false, args: &[], answer: a_format, cost: one, run: $run },)*
            Function { name: "format.named", method: false, args: &[Arg::String], answer: |_| Type::Optional(Arc::new(Type::Library(FORMAT))), cost: one, run: named },
            Function { name: "validate", method: true, args: &[Arg::Library(FORMAT), Arg::String], answer: complaints, cost: |sizes| walk(&sizes[1..]).saturating_mul(32), run: validate },
        ];
    };
}

formats!(
    0 "format.dns1123Label" label, 1 "format.dns1123Subdomain" subdomain, 2 "format.dns1035Label" old_label, 3 "format.qualifiedName" qualified,
    4 "format.dns1123LabelPrefix" label_prefix, 5 "format.dns1123SubdomainPrefix" subdomain_prefix, 6 "format.dns1035LabelPrefix" old_label_prefix,
    7 "format.labelValue" label_value, 8 "format.uri" uri, 9 "format.uuid" uuid, 10 "format.byte" byte, 11 "format.date" date, 12 "format.datetime" datetime
);

function!(named, [Value::String(name)] => {
    let found = FORMATS.iter().find(|format| format.name == &**name);
    Ok(Value::optional(found.map(|format| Value::library(Library::Format(format)))))
});
function!(validate, [Value::Library(library), Value::String(text)] => {
    let Library::Format(format) = &**library else { return no_overload() };
    let errors = (format.check)(text);
    Ok(Value::optional((!errors.is_empty()).then(|| Value::list(errors.into_iter().map(Value::text).collect()))))
});
