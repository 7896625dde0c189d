//! The attacks. Each runs until aborted.

mod bodies;
mod connections;
mod definitions;
mod frames;
mod namespaces;
mod pages;
mod readers;
mod tally;
mod tenants;
mod tokens;
mod websockets;

pub(crate) use bodies::wait_for_room;

use crate::testbed::{TargetServer, Testbed};
use std::pin::Pin;
use std::sync::Arc;
pub(crate) use tally::AttackTally;
use tally::at_once;

/// A running attack.
pub(crate) type AttackFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An attack.
pub(crate) struct Attack {
    /// Name for `--only` and the table.
    pub(crate) name: &'static str,
    /// Description.
    pub(crate) what: &'static str,
    /// Responses and events without which it has not taken place.
    pub(crate) proof: &'static [&'static str],
    /// Starts the attack.
    pub(crate) run: fn(Arc<Testbed>, Arc<AttackTally>) -> AttackFuture,
}

/// Attacks on the default; those that leave much behind come last.
const ALL: &[Attack] = &[
    Attack {
        name: "anonymous-posts",
        what: "250 POSTs a second without credentials, their bodies never end",
        proof: &["connection"],
        run: |s, t| Box::pin(frames::endless_requests(s, t, "POST")),
    },
    Attack {
        name: "anonymous-gets",
        what: "250 GETs a second without credentials, whose streams the client never ends",
        proof: &["connection"],
        run: |s, t| Box::pin(frames::endless_requests(s, t, "GET")),
    },
    Attack {
        name: "silent-bodies",
        what: "200 POSTs of a tenant at once whose bodies never come",
        proof: &["connection"],
        run: |s, t| Box::pin(frames::silent_bodies(s, t)),
    },
    Attack {
        name: "slowloris-heads",
        what: "400 connections send a header byte by byte",
        proof: &["connection"],
        run: |s, t| Box::pin(connections::slow_heads(s, t)),
    },
    Attack {
        name: "tls-flood",
        what: "handshakes without end, 16 at once",
        proof: &["handshake"],
        run: |s, t| Box::pin(connections::handshakes(s, t)),
    },
    Attack {
        name: "key-update-flood",
        what: "TLS key updates, one byte of a head after each twenty",
        proof: &["cut"],
        run: |s, t| Box::pin(connections::key_updates(s, t)),
    },
    Attack {
        name: "silent-sockets",
        what: "2,000 sockets from five addresses that send nothing, opened again when cut",
        proof: &["connected"],
        run: |s, t| Box::pin(connections::silent_sockets(s, t)),
    },
    Attack {
        name: "rapid-reset",
        what: "HTTP/2 requests reset as soon as sent",
        proof: &["cut"],
        run: |s, t| Box::pin(frames::rapid_reset(s, t)),
    },
    Attack {
        name: "ping-flood",
        what: "HTTP/2 PING frames",
        proof: &["cut"],
        run: |s, t| Box::pin(frames::flood(s, t, frames::ping())),
    },
    Attack {
        name: "settings-flood",
        what: "HTTP/2 SETTINGS frames",
        proof: &["cut"],
        run: |s, t| Box::pin(frames::flood(s, t, frames::settings())),
    },
    Attack {
        name: "empty-data-flood",
        what: "HTTP/2 DATA frames without data",
        proof: &["cut"],
        run: |s, t| Box::pin(frames::empty_data(s, t)),
    },
    Attack {
        name: "continuation-flood",
        what: "header blocks that never end",
        proof: &["cut"],
        run: |s, t| Box::pin(frames::continuation(s, t)),
    },
    Attack {
        name: "window-zero",
        what: "2,000 lists on HTTP/2 with a window of nothing",
        proof: &["100 streams"],
        run: |s, t| Box::pin(readers::window_zero(s, t)),
    },
    Attack {
        name: "yaml-bomb",
        what: "2.8 MB of YAML with one key over and over, 4 at once",
        proof: &["413"],
        run: |s, t| Box::pin(bodies::yaml(s, t)),
    },
    Attack {
        name: "json-maps",
        what: "2.8 MB of one-key maps in JSON, 20 at once",
        proof: &["413"],
        run: |s, t| Box::pin(bodies::maps(s, t)),
    },
    Attack {
        name: "custom-maps",
        what: "custom objects of 1.2 MB of one-key maps, 20 at once",
        proof: &["201"],
        run: |s, t| Box::pin(bodies::custom_maps(s, t)),
    },
    Attack {
        name: "patch-bomb",
        what: "JSON patches of copies of copies, and strategic ones with long $retainKeys",
        proof: &["200", "422"],
        run: |s, t| Box::pin(bodies::patches(s, t)),
    },
    Attack {
        name: "selector-bomb",
        what: "8 lists of all objects with 700 terms each",
        proof: &["200"],
        run: |s, t| Box::pin(readers::selectors(s, t)),
    },
    Attack {
        name: "list-flood",
        what: "lists of everything as fast as they are answered, 32 at once",
        proof: &["200"],
        run: |s, t| Box::pin(readers::lists(s, t)),
    },
    Attack {
        name: "stalled-lists",
        what: "100 readers of the whole list in YAML, Tables and JSON who stop reading",
        proof: &["stalled"],
        run: |s, t| Box::pin(readers::stalled_lists(s, t)),
    },
    Attack {
        name: "stalled-watches",
        what: "2,000 watchers who stop reading, and 50 MB of events",
        proof: &["100 streams", "201"],
        run: |s, t| Box::pin(readers::stalled_watches(s, t)),
    },
    Attack {
        name: "definition-bomb",
        what: "definitions with 1 MB of schema, costly rules and patterns",
        proof: &["201", "422"],
        run: |s, t| Box::pin(definitions::bombs(s, t)),
    },
    Attack {
        name: "half-bodies",
        what: "9 KiB each of 8 bodies of 3 MB, of 8 callers, and no more",
        proof: &["connection"],
        run: |s, t| Box::pin(frames::half_bodies(s, t)),
    },
    Attack {
        name: "half-heads",
        what: "1,000 unfinished heads of 63 KiB, unauthenticated",
        proof: &["half a head"],
        run: |s, t| Box::pin(connections::half_heads(s, t)),
    },
    Attack {
        name: "stalled-objects",
        what: "an object of 15.9 KB on 40 x 250 streams of HTTP/2 with a window of nothing",
        proof: &["250 streams"],
        run: |s, t| Box::pin(readers::stalled_objects(s, t)),
    },
    Attack {
        name: "yaml-flow",
        what: "2.9 MB of YAML in flow style, of 8 callers",
        proof: &["413"],
        run: |s, t| Box::pin(bodies::yaml_flow(s, t)),
    },
    Attack {
        name: "role-rewrite",
        what: "a role of 1.4 MB written again and again",
        proof: &["200"],
        run: |s, t| Box::pin(bodies::roles(s, t)),
    },
    Attack {
        name: "gzip-flood",
        what: "one object of 1.4 MB, compressed for 200 readers of 8 callers",
        proof: &["200"],
        run: |s, t| Box::pin(readers::gzip(s, t)),
    },
    Attack {
        name: "openapi-flood",
        what: "OpenAPI compressed for 100 readers of 8 callers, while definitions change",
        proof: &["200", "201"],
        run: |s, t| Box::pin(definitions::openapi(s, t)),
    },
    Attack {
        name: "hung-webhook",
        what: "50 reads and writes of 1.3 MB, much of it maps, of 8 callers, behind a conversion webhook that hangs",
        proof: &["201"],
        run: |s, t| Box::pin(definitions::hung_webhook(s, t)),
    },
    Attack {
        name: "two-at-once",
        what: "half-bodies and gzip-flood",
        proof: &["connection", "200"],
        run: |s, t| {
            Box::pin(async move {
                futures::future::join(
                    frames::half_bodies(Arc::clone(&s), Arc::clone(&t)),
                    readers::gzip(s, t),
                )
                .await;
            })
        },
    },
    Attack {
        name: "short-yaml",
        what: "80 connections of 64,000 bytes of YAML, of 8 callers",
        proof: &["400"],
        run: |s, t| Box::pin(tenants::short_yaml(s, t)),
    },
    Attack {
        name: "short-patches",
        what: "80 connections of JSON patches of 61 KB, of 8 callers",
        proof: &["200"],
        run: |s, t| Box::pin(tenants::short_patches(s, t)),
    },
    Attack {
        name: "dead-token",
        what: "60 connections with a token whose account is another one now, of 1.1 MB",
        proof: &["401"],
        run: |s, t| Box::pin(tenants::dead_token(s, t)),
    },
    Attack {
        name: "bindings",
        what: "bindings of 15,000 users, and 16 connections that change a label of each",
        proof: &["200"],
        run: |s, t| Box::pin(tenants::bindings(s, t)),
    },
    Attack {
        name: "table",
        what: "an object of 1.2 MB in a table of 500 columns that show all of it",
        proof: &["200"],
        run: |s, t| Box::pin(tenants::table(s, t)),
    },
    Attack {
        name: "pretty",
        what: "100 readers of a deep value, indented and as YAML, who stop reading",
        proof: &["stalled"],
        run: |s, t| Box::pin(tenants::pretty(s, t)),
    },
    Attack {
        name: "many-keys",
        what: "90 connections that change a label of objects of 45,000 keys",
        proof: &["200"],
        run: |s, t| Box::pin(tenants::many_keys(s, t)),
    },
    Attack {
        name: "hot-object",
        what: "64 writers of one large object",
        proof: &["200"],
        run: |s, t| Box::pin(bodies::hot_object(s, t)),
    },
    Attack {
        name: "forged-tokens",
        what: "60 connections with service account tokens of a wrong signature",
        proof: &["401"],
        run: |s, t| Box::pin(tokens::forged(s, t)),
    },
    Attack {
        name: "bound-role",
        what: "64 connections of an account that is bound 40 times to a role of 90,000 names",
        proof: &["201", "403"],
        run: |s, t| Box::pin(namespaces::bound_role(s, t)),
    },
    Attack {
        name: "large-quota",
        what: "64 connections of 8 callers that create what a quota of 200 KB counts",
        proof: &["quota in force", "201"],
        run: |s, t| Box::pin(namespaces::large_quota(s, t)),
    },
];

/// Attacks on what a server does not serve by default, on one of their own that does.
const OPTIONAL: &[Attack] = &[
    Attack {
        name: "websocket-frames",
        what: "256 commands by websocket: messages that never end, long pings, pings without end",
        proof: &["101", "unfinished message", "pings"],
        run: |s, t| Box::pin(websockets::frames(s, t)),
    },
    Attack {
        name: "features-page",
        what: "70 Features of 60 KB, and 32 readers of their board",
        proof: &["200", "201"],
        run: |s, t| Box::pin(pages::features(s, t)),
    },
    Attack {
        name: "trace-page",
        what: "32 readers of the recent events, half of them of unknown ids",
        proof: &["200", "404"],
        run: |s, t| Box::pin(pages::trace(s, t)),
    },
];

/// The attacks by what their server serves.
pub(crate) const BY_SERVER: [(TargetServer, &[Attack]); 2] =
    [(TargetServer::Default, ALL), (TargetServer::Full, OPTIONAL)];
