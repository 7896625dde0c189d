//! `toys`: a native kind with defaults, validation, a status and columns.

use ferrokube_server::apimachinery::document::{Document, Value};
use ferrokube_server::apimachinery::field::FieldError;
use ferrokube_server::resource::native::{KindBody, NativeColumn, NativeKind, NativeSubresource};
use ferrokube_server::resource::{Bundle, Change, Hooks, Printable, Scope, TableRow, Verbs};
use std::sync::Arc;

const GROUP: &str = "toy.example.com";
const TOYS: NativeKind = NativeKind {
    short_names: &["ty"],
    ..NativeKind::new(GROUP, ["toys", "toy", "Toy"], Scope::Namespaced, body)
};
/// Computed by [`crate::quotes`].
const QUOTES: NativeKind = NativeKind {
    verbs: Verbs::CREATE,
    ..NativeKind::new(GROUP, ["quotes", "quote", "Quote"], Scope::Cluster, KindBody::default)
};

/// The kinds, their types, and the role of the controller.
pub fn bundle() -> Bundle {
    Bundle::new("toys")
        .kinds(&[TOYS, QUOTES])
        .schemas(SCHEMAS)
        .descriptions("Toy\tToy is a thing to play with.\nToySpec.size\tSize in centimeters.\n")
        .roles(ROLES)
}

const SCHEMAS: &str = "definition\tfield\ttype\trequired\temit\t\t\t\t\t\tdefault\tenum
io.k8s.api.toy.v1.Play\tapiVersion\tstring\t\to
\tkind\tstring\t\to
\tmetadata\tref:io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta\t\ta
\tstatus\tref:io.k8s.api.toy.v1.PlayStatus\t\ta
io.k8s.api.toy.v1.PlayStatus\tmood\tstring\t\to
io.k8s.api.toy.v1.Quote\tapiVersion\tstring\t\to
\tkind\tstring\t\to
\tmetadata\tref:io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta\t\ta
\tspec\tref:io.k8s.api.toy.v1.QuoteSpec\t\ta
\tstatus\tref:io.k8s.api.toy.v1.QuoteStatus\t\ta
io.k8s.api.toy.v1.QuoteSpec\tsize\tinteger/int32\tyes\ta
io.k8s.api.toy.v1.QuoteStatus\tcents\tinteger/int64\t\to
io.k8s.api.toy.v1.Toy\tapiVersion\tstring\t\to
\tkind\tstring\t\to
\tmetadata\tref:io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta\t\ta
\tspec\tref:io.k8s.api.toy.v1.ToySpec\t\ta
\tstatus\tref:io.k8s.api.toy.v1.ToyStatus\t\ta
io.k8s.api.toy.v1.ToySpec\tcolor\tstring\t\to\t\t\t\t\t\t\"red\"
\tsize\tinteger/int32\t\to
io.k8s.api.toy.v1.ToyStatus\tphase\tstring\t\to
";

const ROLES: &str = "controller toymaker
  R,patch toy.example.com toys
  patch,update toy.example.com toys/status
";

fn body() -> KindBody {
    KindBody {
        categories: &["all"],
        subresources: &[
            NativeSubresource::STATUS,
            // Computed by `crate::play`.
            NativeSubresource {
                name: "play",
                kind: Some((GROUP, "v1", "Play")),
                verbs: Verbs::CREATE,
                reset: &[],
            },
            // Answered by another server: `crate::radio`.
            NativeSubresource {
                name: "radio",
                kind: Some((GROUP, "v1", "RadioOptions")),
                verbs: Verbs::CONNECT,
                reset: &[],
            },
        ],
        reset: &["status"],
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text("Color", "Color of the toy."),
                NativeColumn::text("Phase", "Whether it is made."),
                NativeColumn::AGE,
            ]
        },
        selectable: &["spec.color"],
        storage: Some("toy.example.com/toys"),
        hooks: Arc::new(Toy),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct Toy;

impl Hooks for Toy {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.old.is_none() {
            object.set(&["status", "phase"], "Ordered");
        }
    }

    fn validate(&self, _change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let size = object.get(&["spec", "size"]).and_then(Value::as_i64).unwrap_or_default();
        if (0..=100).contains(&size) {
            return Vec::new();
        }
        vec![FieldError::invalid("spec.size", size, "must be between 0 and 100")]
    }

    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        row.text(&object.name());
        row.text(&object.str(&["spec", "color"]));
        row.text(&object.str(&["status", "phase"]));
        row.age(object);
    }
}
