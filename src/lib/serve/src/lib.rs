//! An HTTPS listener: ALPN, limits, timeouts, upgrades, certificate reload, drain; and the keys and certificates that it needs.
//!
//! Used by every role that listens. Must never know routes or kinds. Start reading at [`server`].

pub mod pki;
pub mod server;

pub use server::{Body, Handler, Limits, Peer, Request, Response, Server, ServerError};
