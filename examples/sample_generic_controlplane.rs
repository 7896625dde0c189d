//! A control plane of a chosen few resources, among them a native kind of its own, `tickets`:
//! no custom resources, no webhooks, no priority levels.
//!
//!     cargo run --example sample_generic_controlplane -- DIRECTORY

use anyhow::Context;
use ferrokube_server::ControlPlane;
use ferrokube_server::apimachinery::document::{Document, Value};
use ferrokube_server::apimachinery::field::FieldError;
use ferrokube_server::resource::native::{KindBody, NativeColumn, NativeKind};
use ferrokube_server::resource::{Bundle, Change, Hooks, Printable, Scope, TableRow};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// A seat in a show.
const TICKETS: NativeKind = NativeKind {
    short_names: &["tk"],
    ..NativeKind::new("box.example.com", ["tickets", "ticket", "Ticket"], Scope::Namespaced, body)
};

fn body() -> KindBody {
    KindBody {
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text("Seat", "The seat that the ticket is for."),
                NativeColumn::AGE,
            ]
        },
        selectable: &["spec.show"],
        storage: Some("box.example.com/tickets"),
        hooks: Arc::new(Ticket),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct Ticket;

impl Hooks for Ticket {
    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let seat = |object: &Document| object.get(&["spec", "seat"]).and_then(Value::as_i64);
        match seat(object) {
            Some(1..=500) if change.old.is_none_or(|old| seat(old) == seat(object)) => Vec::new(),
            Some(1..=500) => vec![FieldError::forbidden("spec.seat", "field is immutable")],
            other => vec![FieldError::invalid(
                "spec.seat",
                other.unwrap_or_default(),
                "must be between 1 and 500",
            )],
        }
    }

    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        row.text(&object.name());
        row.value(object.document().get(&["spec", "seat"]).unwrap_or(&Value::Null));
        row.age(object);
    }
}

/// Columns: definition, field, type, required, and `o` for what is omitted if empty, `a` for what
/// is always there.
const SCHEMAS: &str = "definition\tfield\ttype\trequired\temit
io.k8s.api.box.v1.Ticket\tapiVersion\tstring\t\to
\tkind\tstring\t\to
\tmetadata\tref:io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta\t\ta
\tspec\tref:io.k8s.api.box.v1.TicketSpec\tyes\ta
io.k8s.api.box.v1.TicketSpec\tseat\tinteger/int32\tyes\ta
\tshow\tstring\t\to
";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let directory = std::env::args().nth(1).context("usage: PROGRAM DIRECTORY")?;
    let generic = ferrokube_resources::bundle().only([
        "namespaces",
        "configmaps",
        "secrets",
        "*.rbac.authorization.k8s.io",
        "*.authorization.k8s.io",
    ]);
    let server = ControlPlane::builder()
        .bundle(generic)
        .bundle(Bundle::new("box office").kind(TICKETS).schemas(SCHEMAS))
        .data_dir(directory)
        .listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .build()?
        .start()
        .await?;
    println!("ready: {} kubeconfig {}", server.url(), server.kubeconfig().display());
    server.run_until_signal().await?;
    Ok(())
}
