//! Metadata, names, selectors, quantities, documents and their codecs: the vocabulary of the API.
//!
//! Pure: knows no sockets, no storage, no concrete kinds and no clock.
//! Start reading at [`document`], then [`status`].

pub mod document;
pub mod field;
#[cfg(test)]
mod fuzz;
pub mod go;
pub mod gvk;
pub mod heap;
#[cfg(test)]
mod hostile;
pub mod json;
pub mod jsonpath;
pub mod metadata;
pub mod name;
pub mod patch;
pub mod protobuf;
pub mod quantity;
mod quote;
pub mod selector;
pub mod semver;
pub mod status;
pub mod time;
pub mod user;
mod value;
pub mod work;
pub mod yaml;
