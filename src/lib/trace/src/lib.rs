//! The three ids of log tracking (KEP-1668): trace id, span id, initial trace id. Parses them,
//! extracts and injects them over a [`Carrier`], and adds them to log lines.
//!
//! Must never know kinds or HTTP servers. Start reading at [`context`]; [`export`] sends spans to a
//! collector, if configured. [`causes`] joins an error and its causes.

pub mod annotation;
pub mod carrier;
pub mod causes;
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
pub use causes::{append_causes, sources, with_causes};
pub use context::TraceContext;
pub use export::{Span, SpanSide, SpanStart, sample};
pub use id::{Hex, IdError, InitialTraceId, SpanId, TraceId};
pub use scope::{SpanInfo, current, in_scope, request_span, scoped};
