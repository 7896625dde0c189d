//! Extract and inject over anything that holds named texts: headers, annotations, queue items.

use crate::context::TraceContext;

/// Named texts.
pub trait Carrier {
    /// The one value under a name; `None` when absent or given more than once.
    fn get(&self, name: &str) -> Option<&str>;
    /// Sets a value, replacing what was there.
    fn set(&mut self, name: &str, value: String);
}

/// Reads `traceparent` strictly (W3C): malformed, all-zero, unknown version `ff` or repeated is as absent. Never fails.
pub fn extract(_carrier: &dyn Carrier) -> Option<TraceContext> {
    unimplemented!("trace owner")
}

/// Writes `traceparent` and, unless empty, `Initial-Trace-Id`.
pub fn inject(_context: &TraceContext, _carrier: &mut dyn Carrier) {
    unimplemented!("trace owner")
}
