//! The log layer: JSON or text lines with `trace_id span_id initial_trace_id`.
