//! The API server as a library: request chain, routing, content negotiation, discovery, OpenAPI, watches, health, metrics, bootstrap.
//!
//! Must never know workloads or controllers. Start reading at [`builder`], then `chain` (the request's way through the server).

pub mod builder;
pub mod route;

pub use builder::{Builder, ControlPlane, Limits, StartError, Step};
pub use route::{Answer, DocumentRoute, Route, RouteRequest};
