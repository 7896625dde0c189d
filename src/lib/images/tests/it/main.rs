//! The image manager against a runtime in memory, with a paused clock.

mod events;
mod limited_runtime;
mod list;
mod node;
mod policies;
