//! The state in etcd, with kube-apiserver's keys and values: an engine for `ferrokube_storage`.
//!
//! Must never know objects or HTTP requests. Start at [`Etcd`]; the contract that it keeps is in
//! `ferrokube_storage::remote`.
//!
//! - A key is the store's key with `--etcd-prefix` instead of `/registry`. The modification
//!   revision is the resourceVersion. A transaction compares the modification revisions of its
//!   guards.
//! - One watch over the whole prefix is the feed: all resources in one order, and one position to
//!   resume from (`feed.rs`).
//! - A barrier is a linearizable read of one key. The feed reaches its revision by events or, past
//!   revisions of other keys, by a progress notification; etcd before 3.4.31 and 3.5.13 sends those
//!   too early, so there a marker is written instead, and its event awaited.
//! - The outcome of a call without a reply is settled before a retry (`fence.rs`). All replies must
//!   come from one cluster whose revisions do not go back (`connection.rs`).
//! - Calls go over HTTP/2 without queues in between (`channel.rs`, `tls.rs`); messages and statuses
//!   are tonic's.
//! - Cluster id and revision are remembered across restarts (`remembered.rs`), and certificates may
//!   change (`renewal.rs`).
//! - Leases are shared, and history is compacted by one server at a time, both as by kube-apiserver
//!   (`lease.rs`, `compaction.rs`).
//! - `migrated.rs` adds the base noted by a migration to the revisions; `keys.rs` is the interface
//!   for migrations.
//!
//! The messages are etcd's published ones, of which few are needed: written by hand in `proto.rs`,
//! so that building needs no protoc.

mod channel;
mod compaction;
mod connection;
mod cork;
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
mod sole;
pub mod testing;
mod tls;
mod version;

pub use connection::{ConfigError, EtcdConfig, EtcdTls, EtcdTlsSource, check_url};
pub use engine::Etcd;
pub use keys::{CreateOutcome, EtcdKeys, EtcdPage, EtcdValue, PageStart};
pub use migrated::{MigratedEtcd, MigrationNote};
