//! `Initial-Trace-Id` as an OpenTelemetry propagator, for programs that use its SDK: combine it
//! with `TraceContextPropagator` in a `TextMapCompositePropagator`.

use crate::carrier::INITIAL_TRACE_ID;
use crate::id::InitialTraceId;
use opentelemetry::Context;
use opentelemetry::propagation::text_map_propagator::FieldIter;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use std::sync::LazyLock;

/// The initial trace id in an OpenTelemetry [`Context`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initial(pub InitialTraceId);

/// Propagates the `Initial-Trace-Id` header.
#[derive(Clone, Copy, Debug, Default)]
pub struct InitialTracePropagator;

static FIELDS: LazyLock<[String; 1]> = LazyLock::new(|| [INITIAL_TRACE_ID.to_owned()]);

impl TextMapPropagator for InitialTracePropagator {
    fn inject_context(&self, context: &Context, injector: &mut dyn Injector) {
        if let Some(Initial(id)) = context.get::<Initial>() {
            injector.set(INITIAL_TRACE_ID, id.to_string());
        }
    }

    /// Malformed values count as absent.
    fn extract_with_context(&self, context: &Context, extractor: &dyn Extractor) -> Context {
        match extractor.get(INITIAL_TRACE_ID).and_then(|text| text.parse().ok()) {
            Some(id) => context.with_value(Initial(id)),
            None => context.clone(),
        }
    }

    fn fields(&self) -> FieldIter<'_> {
        FieldIter::new(&*FIELDS)
    }
}
