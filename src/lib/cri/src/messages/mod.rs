//! The published messages of CRI v1, and a call for each method that is used.
//!
//! Fields and variants are documented in CRI's `api.proto`.
#![allow(missing_docs)]

mod first;
mod methods;
mod second;

pub use first::*;
pub use methods::*;
pub use second::*;
