//! Valid and invalid objects of each kind, through the hooks as the pipeline calls them.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_resource::{Cell, Change, Definition};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

#[path = "kinds/certificates.rs"]
mod certificates;
#[path = "kinds/data.rs"]
mod data;
#[path = "kinds/definitions.rs"]
mod definitions;
#[path = "kinds/events.rs"]
mod events;
#[path = "kinds/features.rs"]
mod features;
#[path = "kinds/flow.rs"]
mod flow;
#[path = "kinds/leases.rs"]
mod leases;
#[path = "kinds/migrations.rs"]
mod migrations;
#[path = "kinds/policies.rs"]
mod policies;
#[path = "kinds/rbac.rs"]
mod rbac;
#[path = "kinds/scopes.rs"]
mod scopes;
#[path = "kinds/services.rs"]
mod services;

/// 2024-01-02T03:04:05Z
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_704_164_645)
}

fn definition(group: &str, plural: &str) -> Arc<Definition> {
    let tables = ferrokube_resources::tables();
    let on_request = ferrokube_resources::on_request()
        .iter()
        .map(|row| Arc::new(row.definition(tables).expect("the tables hold it")));
    ferrokube_resources::definitions(tables)
        .into_iter()
        .chain(on_request)
        .find(|definition| definition.group == group && definition.plural == plural)
        .expect("in the table")
}

fn document(value: Value) -> Document {
    Document::from_value(value).expect("a fixture is an object")
}

/// A write as the pipeline performs it.
struct WriteCase {
    definition: Arc<Definition>,
    old: Option<Document>,
    subresource: &'static str,
}

/// Result of the hooks.
struct WriteResult {
    object: Document,
    /// Distinct reasons and fields of the errors.
    errors: Vec<(String, String)>,
    warnings: Vec<String>,
}

impl WriteCase {
    fn create(group: &str, plural: &str) -> Self {
        Self { definition: definition(group, plural), old: None, subresource: "" }
    }

    fn update(group: &str, plural: &str, old: Value) -> Self {
        Self { definition: definition(group, plural), old: Some(document(old)), subresource: "" }
    }

    fn of(mut self, subresource: &'static str) -> Self {
        self.subresource = subresource;
        self
    }

    fn run(&self, object: Value) -> WriteResult {
        let mut object = document(object);
        let groups = ["devs".to_owned()];
        let extra = BTreeMap::from([("scopes".to_owned(), vec!["s".to_owned()])]);
        let change = Change {
            old: self.old.as_ref(),
            subresource: self.subresource,
            version: "v1",
            user: "bob",
            user_uid: "u-bob",
            groups: &groups,
            user_extra: &extra,
            now: now(),
        };
        self.definition.set_defaults(0, &mut object);
        self.definition.prepare(0, &change, &mut object);
        let mut errors: Vec<(String, String)> = self
            .definition
            .hooks
            .validate(&change, &object)
            .into_iter()
            .map(|error| (error.reason.as_str().to_owned(), error.field))
            .collect();
        errors.sort();
        errors.dedup();
        let warnings = self.definition.hooks.warnings(&change, &object);
        WriteResult { object, errors, warnings }
    }

    /// Asserts exactly these errors (reason without prefix, field).
    fn refused(&self, object: Value, expected: &[(&str, &str)]) {
        let outcome = self.run(object.clone());
        let mut expected: Vec<(String, String)> = expected
            .iter()
            .map(|(reason, field)| (format!("FieldValue{reason}"), (*field).to_owned()))
            .collect();
        expected.sort();
        assert_eq!(outcome.errors, expected, "{object}");
    }

    /// Asserts a valid write with this result.
    fn gives(&self, object: Value, expected: &Value) {
        let outcome = self.run(object.clone());
        assert_eq!(outcome.errors, [], "{object}");
        assert_eq!(&outcome.object.into_value(), expected);
    }
}

/// Cells of an object that is five minutes old.
fn cells(group: &str, plural: &str, mut object: Value) -> Vec<Value> {
    object["metadata"]["creationTimestamp"] = json!("2024-01-02T02:59:05Z");
    let (bytes, layout) = ferrokube_apimachinery::json::write(&document(object));
    let mut row = ferrokube_resource::TableRow::at(now());
    definition(group, plural)
        .hooks
        .print(&ferrokube_resource::Printable::new(&bytes, &layout, 0), &mut row);
    let shown = |cell| match cell {
        Cell::Json(text) => ferrokube_apimachinery::json::read_value(text).expect("a cell is JSON"),
        Cell::Since(then) => ferrokube_resource::print::age(then, now()).into(),
    };
    row.cells().map(shown).collect()
}
