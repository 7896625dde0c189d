//! The bundled generic kinds: a file each, and one table.
//!
//! Must never know controllers, the kubelet or sockets. Start reading at `table`; a new kind is a
//! file in `kinds`, a row in `table`, and rows in `data/` for its schema and protobuf messages.

mod cells;
mod checks;
mod kinds;
mod priorities;
mod table;

use ferrokube_apimachinery::protobuf::Messages;
use ferrokube_resource::native::NativeKind;
use ferrokube_resource::{ApiPriorityRow, Bundle, BundleError, Composition, Definition};
use ferrokube_schema::tables::Tables;
use priorities::PRIORITIES;
use std::sync::{Arc, LazyLock};

pub use kinds::event::TTL as EVENT_TTL;

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let tables = Tables::parse(include_str!("../data/schema.tsv"))
        .expect("the committed table parses: tested");
    tables.described(include_str!("../data/descriptions.tsv"))
});
static MESSAGES: LazyLock<Arc<Messages>> = LazyLock::new(|| {
    Arc::new(
        Messages::parse(include_str!("../data/protobuf.tsv"))
            .expect("the committed table parses: tested"),
    )
});

/// Schemas of all native kinds, parsed on first use.
pub fn tables() -> &'static Tables {
    &TABLES
}

/// Protobuf messages of all native kinds.
pub fn messages() -> Arc<Messages> {
    MESSAGES.clone()
}

/// Rows of the generic profile, in discovery order.
pub fn generic() -> &'static [NativeKind] {
    table::GENERIC
}

/// Rows of kinds that are served only if their version is enabled.
pub fn on_request() -> &'static [NativeKind] {
    table::ON_REQUEST
}

/// The generic profile as a bundle. Its data are the [`tables`] and [`messages`] that other bundles
/// build on.
pub fn bundle() -> Bundle {
    Bundle::new("generic")
        .kinds(table::GENERIC)
        .on_request(table::ON_REQUEST)
        .priorities(PRIORITIES)
}

/// The union of the bundles.
///
/// # Errors
/// [`BundleError`].
pub fn compose(bundles: &[Bundle]) -> Result<Composition, BundleError> {
    ferrokube_resource::bundle::compose(bundles, tables(), &messages())
}

/// Definitions of the generic profile, in discovery order.
///
/// # Panics
/// If the tables lack one of the kinds; [`tables`] has them all.
pub fn definitions(tables: &Tables) -> Vec<Arc<Definition>> {
    let made = generic().iter().map(|row| {
        let made = row.definition(tables);
        let mut definition = made.expect("the tables hold every kind of the table: tested");
        ApiPriorityRow::apply(PRIORITIES, &mut definition);
        definition
    });
    made.map(Arc::new).collect()
}
