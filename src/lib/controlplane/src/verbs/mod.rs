//! One file per verb: decode options and body (`write.rs`), call the registry once, encode the
//! outcome (`respond.rs`).

mod connect;
mod create;
mod delete;
mod delete_collection;
mod get;
mod list;
mod patch;
pub(crate) mod respond;
mod update;
pub(crate) mod watch;
mod write;

pub(crate) use connect::connect;
pub(crate) use create::create;
pub(crate) use delete::delete;
pub(crate) use delete_collection::delete_collection;
pub(crate) use get::get;
pub(crate) use list::list;
pub(crate) use patch::patch;
pub(crate) use update::update;
pub(crate) use watch::watch;
