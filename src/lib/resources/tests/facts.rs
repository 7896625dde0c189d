//! Compares the definitions with the discovery and table columns of a real server, as far as it
//! serves them.

use ferrokube_resource::{Definition, Scope, Verbs};
use std::sync::Arc;

const RESOURCES: &str = include_str!("facts/resources.tsv");
const COLUMNS: &str = include_str!("facts/columns.tsv");

fn definitions() -> Vec<Arc<Definition>> {
    ferrokube_resources::definitions(ferrokube_resources::tables())
}

fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().skip(1).map(|line| line.split('\t').collect())
}

/// Whether a real server serves the kind, too.
fn is_recorded(definition: &Definition) -> bool {
    !definition.group.ends_with("ferrokube.dev")
}

fn cell<'a>(row: &[&'a str], index: usize) -> &'a str {
    row.get(index).copied().unwrap_or_default()
}

fn words(verbs: Verbs) -> String {
    verbs.words().collect::<Vec<_>>().join(",")
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Namespaced => "Namespaced",
        Scope::Cluster => "Cluster",
    }
}

/// Discovery of a definition, as rows of the facts.
fn discovered(definition: &Definition) -> Vec<String> {
    let mut out = Vec::new();
    for version in definition.versions.iter().filter(|version| version.served) {
        let head = format!("{}\t{}\t{}", definition.group, version.name, definition.plural);
        let names =
            format!("{}\t{}\t{}", definition.singular, definition.kind, scope(definition.scope));
        out.push(format!(
            "{head}\t{names}\t{}\t{}\t{}",
            definition.short_names.join(","),
            definition.categories.join(","),
            words(definition.verbs)
        ));
        for part in &version.subresources {
            let own = part.kind.group == definition.group && part.kind.version == version.name;
            let kind = if own {
                format!("/ {}", part.kind.kind)
            } else {
                format!("{} {}", part.kind.api_version(), part.kind.kind)
            };
            out.push(format!(
                "{head}/{}\t\t{kind}\t{}\t\t\t{}",
                part.name,
                scope(definition.scope),
                words(part.verbs)
            ));
        }
    }
    out
}

#[test]
fn discovery_rows_equal_the_facts() {
    let facts: Vec<&str> = RESOURCES.lines().skip(1).collect();
    for definition in definitions().iter().filter(|definition| is_recorded(definition)) {
        for row in discovered(definition) {
            assert!(facts.contains(&row.as_str()), "not a fact: {row:?}");
        }
        let served = discovered(definition).len();
        let prefix = format!("{}/", definition.plural);
        let known = rows(RESOURCES)
            .filter(|row| {
                row[0] == definition.group
                    && (row[2] == definition.plural || row[2].starts_with(&prefix))
            })
            .count();
        assert_eq!(served, known, "subresources of {}", definition.group_resource());
    }
}

#[test]
fn columns_equal_the_facts_and_cells_fill_them() {
    for definition in definitions() {
        let version = &definition.versions[0];
        let columns: Vec<[String; 4]> = version
            .columns
            .iter()
            .map(|column| {
                [
                    column.name.to_string(),
                    column.kind.to_string(),
                    column.format.to_string(),
                    column.priority.to_string(),
                ]
            })
            .collect();
        let facts: Vec<[String; 4]> = rows(COLUMNS)
            .filter(|row| row[0] == definition.group && row[2] == definition.plural)
            .map(|row| {
                [
                    cell(&row, 3).to_owned(),
                    cell(&row, 4).to_owned(),
                    cell(&row, 5).to_owned(),
                    cell(&row, 6).to_owned(),
                ]
            })
            .collect();
        if definition.storage_prefix.is_some() && is_recorded(&definition) {
            assert_eq!(columns, facts, "{}", definition.group_resource());
        }
        assert!(
            version.columns.iter().all(|column| !column.description.is_empty()),
            "{}",
            definition.group_resource()
        );
        let (bytes, layout) =
            ferrokube_apimachinery::json::write(&ferrokube_apimachinery::document::Document::new());
        let mut row = ferrokube_resource::TableRow::at(std::time::UNIX_EPOCH);
        definition.hooks.print(&ferrokube_resource::Printable::new(&bytes, &layout, 0), &mut row);
        assert_eq!(row.cells().count(), columns.len(), "{}", definition.group_resource());
    }
}

#[test]
fn every_definition_has_a_schema_and_a_message() {
    let messages = ferrokube_resources::messages();
    let definitions = definitions();
    assert_eq!(definitions.len(), ferrokube_resources::generic().len());
    for definition in &definitions {
        for version in &definition.versions {
            assert!(version.schema.native && !version.schema.properties.is_empty());
            let message = version.message.as_deref().expect("native kinds have protobuf");
            assert!(messages.contains(message), "{message}");
        }
        for part in definition.versions.iter().flat_map(|version| &version.subresources) {
            assert!(!part.kind.kind.is_empty());
        }
    }
}

#[test]
fn events_of_both_groups_share_one_store() {
    let definitions = definitions();
    let events: Vec<&Arc<Definition>> =
        definitions.iter().filter(|definition| definition.plural == "events").collect();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].storage_prefix, events[1].storage_prefix);
    let [core, newer] = [&events[0].versions[0].selectable, &events[1].versions[0].selectable];
    assert_eq!(core.len(), newer.len() + 1, "only `source` is the core group's own, and last");
    assert_eq!(
        events[1].versions[events[1].storage_version].schema.name.as_deref(),
        Some("io.k8s.api.core.v1.Event")
    );
    assert!(!events[1].versions[events[1].storage_version].served);
}
