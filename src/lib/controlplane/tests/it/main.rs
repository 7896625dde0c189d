//! The API server in process, without sockets.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod actions;
mod bodies;
mod chain;
mod custom;
mod definitions;
mod delegated;
mod differences;
mod discovery;
mod enumeration;
mod every_feature;
mod feature_attacks;
mod feature_steps;
mod features;
mod flow;
mod health;
mod identity;
mod lists;
mod native_kind;
mod objects;
mod openapi;
mod priority;
mod reviews;
mod shared;
mod support;
mod texts;
mod transition_time;
mod untyped;
mod watches;
