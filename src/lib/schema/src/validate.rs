//! Passes over values: types, unknown fields, defaults, pruning, and the value checks of custom
//! resources.

mod checks;
mod composition;
mod convert;
mod defaults;
mod embedded;
mod formats;
mod go_types;
mod numbers;
mod ordered;
mod path;
mod prune;
mod types;
mod values;

pub use checks::{Checks, Pattern};
pub use convert::convert;
pub use defaults::default;
pub use formats::{fits as fits_format, is_known as is_known_text_format};
pub use ordered::{MAX_ORDERED, first_mismatch, last_spelling, mistyped, strict_findings};
pub(crate) use prune::prune_value;
pub use prune::{prune, prune_unknown};
pub use types::{check_embedded, check_types};
pub(crate) use values::validate_value;
pub use values::{is_unchanged, validate, validate_members, validate_status, validate_update};
