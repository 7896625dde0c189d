//! The three ids (KEP-1668): trace id, span id, initial trace id; parsed, extracted, injected over
//! a [`Carrier`], and put on log lines.
//!
//! Must never know kinds or HTTP servers. Start reading at [`context`]; [`export`] sends spans to a
//! collector, if configured.

pub mod annotation;
pub mod carrier;
pub mod context;
pub mod export;
#[cfg(test)]
mod fuzz;
pub mod id;
pub mod interop;
pub mod log;
pub mod propagator;
pub mod scope;

pub use carrier::{Carrier, INITIAL_TRACE_ID, TRACEPARENT, extract, extract_initial, inject};
pub use context::TraceContext;
pub use export::{Kind, Span, sample};
pub use id::{Hex, IdError, InitialTraceId, SpanId, TraceId};
pub use scope::{SpanInfo, current, in_scope, request_span, scoped};
