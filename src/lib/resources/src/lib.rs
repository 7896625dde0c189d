//! The bundled generic kinds: a file each and one table.
//!
//! Must never know controllers, the kubelet or sockets. Start reading at `table`; a new kind is a
//! row there and a file in `kinds`.

mod cells;
mod checks;
mod kinds;
mod table;

use ferrokube_apimachinery::protobuf::Messages;
use ferrokube_resource::Definition;
use ferrokube_resource::native::NativeKind;
use ferrokube_schema::tables::Tables;
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

/// The schemas of all native kinds, built on first use.
pub fn tables() -> &'static Tables {
    &TABLES
}

/// The protobuf messages of all native kinds.
pub fn messages() -> Arc<Messages> {
    MESSAGES.clone()
}

/// The rows of the generic profile, in discovery's order.
pub fn generic() -> &'static [NativeKind] {
    table::GENERIC
}

/// The rows of kinds that are served only when their version is asked for.
pub fn on_request() -> &'static [NativeKind] {
    table::ON_REQUEST
}

/// The definitions of the generic profile, in discovery's order.
///
/// # Panics
/// When the tables lack one of the kinds; [`tables`] has them all.
pub fn definitions(tables: &Tables) -> Vec<Arc<Definition>> {
    let made = generic().iter().map(|row| {
        row.definition(tables).expect("the tables hold every kind of the table: tested")
    });
    made.map(Arc::new).collect()
}
