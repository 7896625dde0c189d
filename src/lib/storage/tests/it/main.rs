//! The store from outside: every engine, every fault.
#![allow(clippy::unwrap_used)]

mod conformance;
mod crash;
mod faults;
mod load;
mod model;
mod rewrites;
