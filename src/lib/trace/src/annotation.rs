//! The annotations that carry the three ids on objects. The server owns them: nobody's value but its own is kept.

/// What all three begin with.
pub const PREFIX: &str = "trace.kubernetes.io/";
/// The trace of the last request that changed the object.
pub const TRACE_ID: &str = "trace.kubernetes.io/trace-id";
/// The action that changed it.
pub const SPAN_ID: &str = "trace.kubernetes.io/span-id";
/// The trace of the request that created the first of its family.
pub const INITIAL_TRACE_ID: &str = "trace.kubernetes.io/initial-trace-id";
/// All three.
pub const ALL: [&str; 3] = [TRACE_ID, SPAN_ID, INITIAL_TRACE_ID];
