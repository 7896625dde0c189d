//! What a value must be: types, unknown fields, defaults, pruning, and the value checks of custom resources.

mod checks;
mod composition;
mod defaults;
mod formats;
mod path;
mod prune;
mod types;
mod values;

pub use checks::{Checks, Pattern};
pub use defaults::default;
pub(crate) use defaults::default_value;
pub use formats::fits as fits_format;
pub use prune::prune;
pub(crate) use prune::prune_value;
pub(crate) use types::check_fields;
pub use types::check_types;
pub(crate) use values::validate_value;
pub use values::{validate, validate_update};
