//! The API server as a library: request filters, routing, content negotiation, discovery, OpenAPI,
//! watches, health, metrics, bootstrap.
//!
//! Must never know workloads or controllers. Start reading at `service`, which takes a request
//! through `filters` (the list), `handler`, `router` and `verbs`; [`builder`] builds the server.

mod action;
mod body;
mod bootstrap;
pub mod builder;
mod compress;
mod decode;
mod delegate;
mod discovery;
mod early;
mod election;
mod encode;
mod exchange;
mod features;
mod filters;
mod flow_objects;
#[cfg(test)]
mod fuzz;
mod handler;
mod health;
mod identity_leases;
mod maintained;
mod metrics;
mod mounts;
mod negotiate;
mod observer;
mod openapi;
mod paths;
pub mod rejection;
mod resource_api;
mod route;
mod router;
mod service;
mod state;
mod status;
mod verbs;
mod version;

pub use bootstrap::{BootstrapFuture, BootstrapStep, StepError};
pub use builder::{ApiServer, ApiServerBuilder, StartError};
pub use early::EarlyHandler;
pub use features::settings::{
    FailpointObserver, FeatureFailpoint, FeatureFunction, FeatureSettings,
};
pub use ferrokube_aggregator as aggregator;
pub use ferrokube_connect as connect;
pub use ferrokube_flow::Limits;
pub use metrics::RegisterMetrics;
pub use mounts::is_own;
pub use observer::{Observer, RequestRecord};
pub use openapi::SchemaSource;
pub use route::{DocumentRoute, Route, RouteFuture, RouteRequest};
