//! The context that travels with a request or reconcile.

/// 16 bytes, never all zero; 32 lower hex digits in text (W3C Trace Context).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceId(pub [u8; 16]);

/// 8 bytes, never all zero; 16 lower hex digits in text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SpanId(pub [u8; 8]);

/// The trace id of the request that created the first of a family of related objects (KEP-1668).
pub type InitialTraceId = TraceId;

/// Trace id, span id, flags and initial trace id of one action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The user's request that this belongs to.
    pub trace_id: TraceId,
    /// This action.
    pub span_id: SpanId,
    /// The action that caused it, when it belongs to the same trace.
    pub parent_span_id: Option<SpanId>,
    /// W3C flags; bit 0 is sampled.
    pub flags: u8,
    /// The object's family; empty when the request brought none.
    pub initial: Option<InitialTraceId>,
    /// A context that caused this one but was not trusted to be its parent: a link.
    pub link: Option<(TraceId, SpanId)>,
}
