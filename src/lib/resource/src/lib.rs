//! What a resource is: its definition (data) and its hooks (a trait with defaults).
//!
//! Must never know the registry or HTTP.
//! Start at [`definition`]; native kinds come from rows of [`native`].

pub mod columns;
pub mod conversion;
pub mod definition;
pub mod dialect;
pub mod encoding;
pub mod hooks;
pub mod native;
pub mod policy;
pub mod print;

pub use columns::{CellSource, Column, Columns};
pub use definition::{Definition, DefinitionVersion, Scope, Subresource, Verbs};
pub use dialect::Dialect;
pub use hooks::{Change, DefaultHooks, Hooks, MaintainedObject};
pub use policy::{FinalizerDomain, Policy};
pub use print::{Cell, Printable, TableRow};
