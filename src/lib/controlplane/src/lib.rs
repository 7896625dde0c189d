//! The API server as a library: request chain, routing, content negotiation, discovery, OpenAPI,
//! watches, health, metrics, bootstrap.
//!
//! Must never know workloads or controllers. Start reading at [`builder`], then `chain` (the list
//! of a request's filters), `handler`, `router` and `verbs`.

mod action;
mod body;
mod bootstrap;
pub mod builder;
mod compress;
mod custom;
mod decode;
mod discovery;
mod encode;
mod exchange;
mod filters;
mod flow;
#[cfg(test)]
mod fuzz;
mod handler;
mod health;
mod metrics;
mod negotiate;
mod observer;
mod openapi;
pub mod route;
mod router;
mod routes;
mod service;
mod state;
mod status;
mod verbs;
mod version;
mod watch;

pub use builder::{Builder, ControlPlane, Limits, StartError, Step, StepFuture};
pub use observer::{Observer, RequestRecord};
pub use route::{Answer, DocumentRoute, Route, RouteRequest};
