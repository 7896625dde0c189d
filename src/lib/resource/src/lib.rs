//! A resource: its definition (data) and its hooks (a trait with defaults).
//!
//! Must never know the registry or HTTP.
//! Start at [`definition`]; native kinds come from rows of [`native`].

pub mod bundle;
pub mod columns;
pub mod conversion;
pub mod definition;
pub mod dialect;
pub mod encoding;
mod guard;
pub mod hooks;
pub mod native;
pub mod policy;
pub mod print;
mod reset;

pub use bundle::{ApiPriorityRow, Bundle, BundleError, Composition};
pub use columns::{CellSource, Column, Columns};
pub use definition::{ApiPriority, Definition, DefinitionVersion, Scope, Subresource, Verbs};
pub use dialect::Dialect;
pub use guard::{FieldGuard, GuardedField, WhileOff};
pub use hooks::{Change, DefaultHooks, Hooks, MaintainedObject};
pub use policy::{FinalizerDomain, MetadataRules, Policy};
pub use print::{Cell, Printable, TableRow};
