//! The image manager against a runtime in memory, with a paused clock.

mod access;
mod events;
mod limited_runtime;
mod list;
mod node;
mod policies;
