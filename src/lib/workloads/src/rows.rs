//! The data tables, indexed on first use.

use ferrokube_resource::Verbs;
use ferrokube_resource::native::{
    CREATION_DESCRIPTION, NAME_DESCRIPTION, NativeColumn, NativeSubresource,
};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Fields of all types.
pub(crate) const SCHEMAS: &str = include_str!("../data/schema.tsv");

/// A row of `resources.tsv`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiscoveryRow {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    /// `pods`, `pods/status`
    pub(crate) resource: &'static str,
    pub(crate) singular: &'static str,
    /// `Pod`; of a subresource `GROUP/VERSION KIND`, with `/` alone for its own group version.
    pub(crate) kind: &'static str,
    pub(crate) scope: &'static str,
    pub(crate) short_names: &'static str,
    pub(crate) categories: &'static str,
    pub(crate) verbs: &'static str,
}

/// A row of `kinds.tsv`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KindRow {
    /// Storage prefix; empty: the plural; `-`: not stored.
    pub(crate) prefix: &'static str,
    /// Words, see `table`.
    pub(crate) flags: &'static str,
    pub(crate) selectable: &'static str,
    /// Fields reset by status writes; empty: the spec.
    pub(crate) status_reset: &'static str,
    /// Warning for clients.
    pub(crate) deprecation: &'static str,
}

/// Printer columns of a kind with the sources of their cells.
#[derive(Debug, Default)]
pub(crate) struct ColumnRows {
    pub(crate) columns: Vec<NativeColumn>,
    pub(crate) cells: Vec<&'static str>,
}

fn lines(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    text.lines().skip(1).map(|line| line.split('\t').collect())
}

fn column(row: &[&'static str], at: usize) -> &'static str {
    row.get(at).copied().unwrap_or_default()
}

/// Discovery, in order.
pub(crate) static DISCOVERY: LazyLock<Vec<DiscoveryRow>> = LazyLock::new(|| {
    let row = |row: Vec<&'static str>| DiscoveryRow {
        group: column(&row, 0),
        version: column(&row, 1),
        resource: column(&row, 2),
        singular: column(&row, 3),
        kind: column(&row, 4),
        scope: column(&row, 5),
        short_names: column(&row, 6),
        categories: column(&row, 7),
        verbs: column(&row, 8),
    };
    lines(include_str!("../data/resources.tsv")).map(row).collect()
});

static KINDS: LazyLock<HashMap<&'static str, KindRow>> = LazyLock::new(|| {
    let row = |row: Vec<&'static str>| {
        let kind = KindRow {
            prefix: column(&row, 1),
            flags: column(&row, 2),
            selectable: column(&row, 3),
            status_reset: column(&row, 4),
            deprecation: column(&row, 5),
        };
        (column(&row, 0), kind)
    };
    lines(include_str!("../data/kinds.tsv")).map(row).collect()
});

static COLUMNS: LazyLock<HashMap<&'static str, ColumnRows>> = LazyLock::new(|| {
    let mut kinds: HashMap<&'static str, ColumnRows> = HashMap::new();
    for row in lines(include_str!("../data/columns.tsv")) {
        let kind = kinds.entry(column(&row, 0)).or_default();
        kind.columns.push(NativeColumn {
            name: column(&row, 1),
            kind: column(&row, 2),
            format: column(&row, 3),
            description: match column(&row, 6) {
                "NAME" => NAME_DESCRIPTION,
                "CREATION" => CREATION_DESCRIPTION,
                text => text,
            },
            priority: column(&row, 4).parse().unwrap_or_default(),
        });
        kind.cells.push(column(&row, 5));
    }
    kinds
});

/// Row of a resource such as `pods` or `deployments.apps`.
pub(crate) fn kind(resource: &str) -> KindRow {
    KINDS.get(resource).copied().unwrap_or_default()
}

/// Columns of a resource, by the same name.
pub(crate) fn columns(resource: &str) -> Option<&'static ColumnRows> {
    COLUMNS.get(resource)
}

/// Words of a column that separates them by `separator`, for the life of the process.
pub(crate) fn words(text: &'static str, separator: char) -> &'static [&'static str] {
    let words: Vec<&'static str> = text.split(separator).filter(|word| !word.is_empty()).collect();
    // Once per kind and process.
    words.leak()
}

/// The verbs of a list such as `create,get`.
pub(crate) fn verbs(list: &str) -> Verbs {
    let verb = |word: &str| match word {
        "create" => Verbs::CREATE,
        "delete" => Verbs::DELETE,
        "deletecollection" => Verbs::DELETE_COLLECTION,
        "get" => Verbs::GET,
        "list" => Verbs::LIST,
        "patch" => Verbs::PATCH,
        "update" => Verbs::UPDATE,
        "watch" => Verbs::WATCH,
        _ => Verbs(0),
    };
    list.split(',').map(verb).fold(Verbs(0), Verbs::and)
}

/// The subresources of a resource in one version, for the life of the process.
pub(crate) fn subresources(
    main: &DiscoveryRow,
    status_reset: &'static str,
) -> &'static [NativeSubresource] {
    let of_main = |row: &&DiscoveryRow| {
        row.group == main.group
            && row.version == main.version
            && row.resource.split_once('/').is_some_and(|(plural, _)| plural == main.resource)
    };
    let reset = if status_reset.is_empty() { "spec" } else { status_reset };
    let made = |row: &DiscoveryRow| {
        let name = row.resource.split_once('/').map_or("", |(_, name)| name);
        let (api, kind) = row.kind.split_once(' ').unwrap_or(("/", row.kind));
        let (group, version) = match api.split_once('/') {
            Some(("", "")) => (main.group, main.version),
            Some(pair) => pair,
            None => ("", api),
        };
        NativeSubresource {
            name,
            kind: Some((group, version, kind)).filter(|_| api != "/" || kind != main.kind),
            verbs: verbs(row.verbs),
            reset: match name {
                "status" => words(reset, ' '),
                "ephemeralcontainers" | "resize" => &["status"],
                _ => &[],
            },
        }
    };
    let found: Vec<NativeSubresource> = DISCOVERY.iter().filter(of_main).map(made).collect();
    found.leak()
}
