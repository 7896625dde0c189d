//! What a write must pass: the ordered admission steps of a server.
//!
//! Must never know HTTP routing, nor who authorizes: questions of rights go through [`Permits`].
//! Start reading at [`chain`]; a step is a file.

pub mod certificates;
pub mod chain;
pub mod namespace;
pub mod quota;
pub mod review;
pub mod step;
pub mod trace_stamp;

pub use chain::{Chain, ORDER};
pub use step::{Permits, Question, Step};
