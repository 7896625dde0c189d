//! The state in etcd, with kube-apiserver's keys and values: an engine for `ferrokube_storage`.
//!
//! Must never know objects or HTTP requests. Start at [`Etcd`]; the contract that it keeps is in
//! `ferrokube_storage::remote`.
//!
//! - A key is the store's, with `--etcd-prefix` instead of `/registry`. The modification revision
//!   is the resourceVersion. A transaction compares the modification revisions of its guards.
//! - One watch over the whole prefix is the feed: all resources in one order, and one position to
//!   resume from (`feed.rs`).
//! - A barrier is a linearizable read of one key. The feed reaches its revision by events or, past
//!   revisions of other keys, by a progress notification; etcd before 3.4.31 and 3.5.13 sends those
//!   too early, so there a marker is written instead, and its event awaited.
//! - A call whose reply is lost is decided before it is sent again (`fence.rs`). Every reply must be
//!   of one cluster whose revisions do not go back (`connection.rs`).
//! - What was seen of etcd outlives the process (`remembered.rs`), and certificates may change
//!   (`renewal.rs`).
//! - Leases are shared, and history is compacted by one server at a time, both as by kube-apiserver
//!   (`lease.rs`, `compaction.rs`).
//! - `migrated.rs` adds to the revisions what a migration noted; `keys.rs` is what migrations use.
//!
//! The messages are etcd's published ones, of which few are needed: written by hand in `proto.rs`,
//! so that building needs no protoc.

mod compaction;
mod connection;
mod engine;
mod feed;
mod fence;
mod keys;
mod lease;
mod migrated;
mod proto;
mod remembered;
mod renewal;
mod shared;
pub mod testing;

pub use connection::{ConfigError, EtcdConfig, EtcdTls, EtcdTlsSource};
pub use engine::Etcd;
pub use keys::{CreateOutcome, EtcdKeys, EtcdPage, EtcdValue, PageStart};
pub use migrated::{MigratedEtcd, MigrationNote};
