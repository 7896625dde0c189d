//! Control planes as programs build, start and end them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod choices;
mod mistakes;
mod starts;
mod support;
