//! The three ids (KEP-1668): trace id, span id, initial trace id; parsed, extracted, injected over a [`Carrier`], and put on log lines.
//!
//! Must never know kinds or HTTP servers. Start reading at [`context`].

pub mod carrier;
pub mod context;
pub mod log;

pub use carrier::{Carrier, extract, inject};
pub use context::{InitialTraceId, SpanId, TraceContext, TraceId};
