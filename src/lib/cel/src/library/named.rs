//! Named formats: `format.dns1123Label().validate(text)`.

use super::{Arg, FORMAT, Function, Library, function, one, walk};
use crate::types::Type;
use crate::value::Value;
use ferrokube_apimachinery::name;
use ferrokube_schema::pattern::fits_format;
use std::sync::Arc;

/// A named format.
#[derive(Debug)]
pub struct NamedFormat {
    name: &'static str,
    /// The errors of a text.
    check: fn(&str) -> Vec<String>,
}

static FORMATS: [NamedFormat; 13] = [
    NamedFormat { name: "dns1123Label", check: name::dns1123_label },
    NamedFormat { name: "dns1123Subdomain", check: name::dns1123_subdomain },
    NamedFormat { name: "dns1035Label", check: name::dns1035_label },
    NamedFormat { name: "qualifiedName", check: name::qualified_name },
    NamedFormat { name: "dns1123LabelPrefix", check: |text| name::dns1123_label(&prefix(text)) },
    NamedFormat {
        name: "dns1123SubdomainPrefix",
        check: |text| name::dns1123_subdomain(&prefix(text)),
    },
    NamedFormat { name: "dns1035LabelPrefix", check: |text| name::dns1035_label(&prefix(text)) },
    NamedFormat { name: "labelValue", check: name::label_value },
    NamedFormat { name: "uri", check: |text| super::url::parse(text).err().into_iter().collect() },
    NamedFormat {
        name: "uuid",
        check: |text| said("uuid", text, "does not match the UUID format"),
    },
    NamedFormat { name: "byte", check: |text| said("byte", text, "invalid base64") },
    NamedFormat { name: "date", check: |text| said("date", text, "invalid date") },
    NamedFormat { name: "datetime", check: |text| said("datetime", text, "invalid datetime") },
];

/// A prefix may end in a dash, since more follows.
fn prefix(text: &str) -> String {
    text.strip_suffix('-').map_or_else(|| text.to_owned(), |text| format!("{text}a"))
}

fn said(format: &str, text: &str, why: &str) -> Vec<String> {
    if fits_format(format, text) { Vec::new() } else { vec![why.to_owned()] }
}

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
    let Library::Format(format) = &**library else { return crate::evaluator::no_overload() };
    let errors = (format.check)(text);
    Ok(Value::optional((!errors.is_empty()).then(|| Value::list(errors.into_iter().map(Value::text).collect()))))
});
