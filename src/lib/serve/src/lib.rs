//! An HTTPS listener: ALPN, limits, timeouts, upgrades, certificate reload, drain.
//!
//! Used by every role that listens. Must never know routes or kinds. Start reading at [`server`].

mod activity;
mod bad_head;
pub mod body;
mod bounded_tls;
mod connection;
mod connection_gate;
mod cork;
mod frames;
mod framing;
mod gate;
pub mod handler;
mod head_timeout;
mod heads;
mod held;
pub mod in_process;
pub mod limits;
mod lobby;
mod open_calls;
pub mod peer;
mod plain;
pub mod reload;
pub mod server;
pub mod shutdown;
mod slow_client;
mod socket;
pub mod stats;
pub mod tls;

pub use body::{
    Body, BodyError, Chunk, WRITE_BYTES, boxed, chunks, empty, full, read_body, read_body_within,
    short_slices, stream,
};
pub use handler::{BodyGuard, CloseConnection, Handler, Request, Response};
pub use held::{HeldBytes, Holdings, Wanting};
pub use in_process::{InProcess, InProcessBody, InProcessClient};
pub use limits::ListenerLimits;
pub use peer::Peer;
pub use server::{Server, ServerError};
pub use shutdown::{Shutdown, ShutdownTrigger};
pub use slow_client::UntakenChunk;
pub use stats::ListenerStats;
pub use tls::{Tls, TlsError, TlsPolicy};
