//! Structural schemas and the algorithms that they drive: validation, defaults, pruning, strategic
//! merge, apply, OpenAPI.
//!
//! Pure: knows no HTTP, no storage and no concrete kinds. Native and custom resources share the
//! same [`Schema`]. Start reading at [`schema`].

pub mod apply;
pub mod custom;
mod duration;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod hostile;
pub mod index;
pub mod openapi;
pub mod pattern;
mod properties;
pub mod schema;
pub mod strategic;
pub mod tables;
pub mod validate;

#[cfg(test)]
pub(crate) mod testing;

pub use properties::Properties;
pub use schema::{Emit, Kind, ListType, MapType, Node, Property, Schema};
