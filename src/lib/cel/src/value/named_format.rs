//! Named formats of strings.

use super::url;
use ferrokube_apimachinery::name;
use ferrokube_schema::pattern::fits_format;

/// Result of `format.named()`, whose `validate()` lists errors.
#[derive(Debug)]
pub struct NamedFormat {
    pub(crate) name: &'static str,
    /// The errors of a text.
    pub(crate) check: fn(&str) -> Vec<String>,
}

pub(crate) static FORMATS: [NamedFormat; 13] = [
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
    NamedFormat { name: "uri", check: |text| url::parse(text).err().into_iter().collect() },
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
