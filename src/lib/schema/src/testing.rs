//! Test support: the bundled schema tables.

use crate::schema::Schema;
use crate::tables::Tables;
use ferrokube_apimachinery::document::{Document, Value};
use std::sync::{Arc, OnceLock};

pub(crate) fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        Tables::parse(include_str!("../../resources/data/schema.tsv"))
            .unwrap()
            .described(include_str!("../../resources/data/descriptions.tsv"))
    })
}

pub(crate) fn schema(definition: &str) -> Arc<Schema> {
    tables().get(definition).unwrap_or_else(|| panic!("no definition {definition}"))
}

pub(crate) fn core(kind: &str) -> Arc<Schema> {
    schema(&format!("io.k8s.api.core.v1.{kind}"))
}

pub(crate) fn document(value: Value) -> Document {
    Document::from_value(value).unwrap()
}
