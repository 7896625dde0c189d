//! The Container Runtime Interface, v1: typed calls to a container runtime.
//!
//! Must never know pods, the API or policies of pulling. Start at [`Runtime`].
//!
//! - `messages/` is written by `generate.py` from the published `api.proto` and committed, so that
//!   building needs no protoc: what the calls below reach, without Windows.
//! - A [`Transport`] carries encoded messages: [`RuntimeSocket`] over gRPC on a unix socket; in tests
//!   [`testing::FakeRuntime`] in memory, which a paused clock can drive.
//! - Every call carries the three ids of the current trace context (KEP-1668), as gRPC metadata.
//! - [`check_health`] is the one call that is not the runtime's: gRPC probes of containers.
//! - [`limit`] is the extension by which a runtime bounds pulls itself: its wire contract, and
//!   [`limit::LimitedRuntime`], the runtime's side in front of any other runtime.

mod error;
mod health;
pub mod limit;
mod messages;
mod runtime;
mod socket;
pub mod testing;

pub use error::{CallCode, CriError};
pub use health::{ServiceHealth, check_health};
pub use messages::*;
pub use runtime::{Runtime, Transport, TransportFuture, encoded};
pub use socket::{RuntimeEndpointError, RuntimeSocket};
