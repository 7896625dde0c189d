//! What a value must be: types, unknown fields, defaults, pruning, and the value checks of custom resources.

mod checks;
mod defaults;
mod formats;
mod path;
mod prune;
mod types;

pub use checks::{Checks, validate};
pub use defaults::default;
pub use prune::prune;
pub(crate) use types::check_fields;
pub use types::check_types;
