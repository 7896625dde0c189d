//! Go type names in kube-apiserver's decoding errors that the schema does not have: named strings,
//! lists and maps.

use crate::schema::{Kind, Schema};

/// Definition without `io.k8s.`, field, Go type; read when an error names one.
const NAMED: &str = include_str!("../../data/go_types.tsv");

/// The Go type of a definition's field.
pub(super) fn of_field(owner: &Schema, field: &str, node: &Schema) -> String {
    let definition =
        owner.name.as_deref().and_then(|name| name.strip_prefix("io.k8s.")).unwrap_or_default();
    let named = |line: &'static str| {
        line.strip_prefix(definition)?.strip_prefix('\t')?.strip_prefix(field)?.strip_prefix('\t')
    };
    NAMED.lines().find_map(named).map_or_else(|| of(node), str::to_owned)
}

/// The Go type that follows from the schema.
pub(super) fn of(node: &Schema) -> String {
    let format = node.format.as_deref().unwrap_or_default();
    match (node.kind, node.name.as_deref()) {
        (Kind::IntOrString, _) if format == "quantity" => "resource.Quantity".to_owned(),
        (Kind::IntOrString, _) => "intstr.IntOrString".to_owned(),
        (_, Some(name)) => {
            let mut parts = name.rsplit('.');
            let short = parts.next().unwrap_or_default();
            format!("{}.{short}", parts.next().unwrap_or_default())
        }
        (Kind::Object, None) => format!(
            "map[string]{}",
            node.additional.as_deref().map_or("interface {}".to_owned(), of)
        ),
        (Kind::Array, None) => {
            format!("[]{}", node.items.as_deref().map_or("interface {}".to_owned(), of))
        }
        (Kind::String, None) if format == "byte" => "[]uint8".to_owned(),
        (Kind::String, None) => "string".to_owned(),
        (Kind::Integer, None) => if format == "int32" { "int32" } else { "int64" }.to_owned(),
        (Kind::Number, None) => "float64".to_owned(),
        (Kind::Boolean, None) => "bool".to_owned(),
        (Kind::Any, None) => "interface {}".to_owned(),
    }
}

/// The type of the elements of a list or map type.
pub(super) fn of_element(whole: &str, element: &Schema) -> String {
    match whole.strip_prefix("[]").or_else(|| whole.strip_prefix("map[string]")) {
        Some(name) if !name.starts_with("interface") => name.to_owned(),
        _ => of(element),
    }
}
