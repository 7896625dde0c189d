//! Black-box tests of the store: engines, faults, crashes.
#![allow(clippy::unwrap_used)]

mod archive;
mod conformance;
mod crash;
mod damage;
mod faults;
mod found;
mod full;
mod history;
mod judged;
mod kill;
mod load;
mod model;
mod power;
mod power_topics;
mod remote;
mod repair;
mod rewrites;
mod saboteur;
mod scarce;
mod topics;
mod truth;
mod twice;
