//! Spans in progress.

use super::Exporter;
use crate::context::TraceContext;
use crate::id::{SpanId, TraceId};
use crate::scope::{self, SpanInfo};
use opentelemetry::trace::{Link, SpanContext, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// The side of a call that a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanSide {
    /// Work inside the process: a reconcile, a store transaction.
    Internal,
    /// A received request.
    Server,
    /// A sent request: a webhook.
    Client,
}

/// Longer attribute values are cut.
const MAX_TEXT_BYTES: usize = 1024;
/// Max attributes of a span; more are ignored.
const MAX_ATTRIBUTES: usize = 16;
/// Max links of a span; more are ignored.
const MAX_LINKS: usize = 16;

/// The span of one action. Ends on drop, which passes it to the exporter.
///
/// Does nothing for unsampled contexts, or while nothing is exported.
#[derive(Default)]
pub struct Span(Option<Box<Recording>>);

struct Recording {
    exporter: Arc<Exporter>,
    data: SpanData,
    started: Instant,
}

/// Start of an action, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct SpanStart {
    /// The exported start.
    pub wall: SystemTime,
    /// Base of the measured duration.
    pub monotonic: Instant,
}

impl SpanStart {
    /// Reads both clocks.
    pub fn now() -> Self {
        Self { wall: SystemTime::now(), monotonic: Instant::now() }
    }
}

impl Span {
    /// A span that records nothing.
    pub fn none() -> Self {
        Self(None)
    }

    /// Starts the span of an action. The context is the action's own, from [`TraceContext::child`]
    /// or [`TraceContext::root`].
    pub fn start(context: &TraceContext, kind: SpanSide, info: &SpanInfo<'_>) -> Self {
        if !context.sampled() {
            return Self(None);
        }
        Self::since(context, kind, info, SpanStart::now())
    }

    /// As [`Self::start`], for an action that began earlier.
    pub fn since(
        context: &TraceContext,
        kind: SpanSide,
        info: &SpanInfo<'_>,
        start: SpanStart,
    ) -> Self {
        if !context.sampled() {
            return Self(None);
        }
        match super::current() {
            Some(exporter) => Self::recorded_by(exporter, context, kind, info, start),
            None => Self(None),
        }
    }

    /// Starts the span of a call within the current action, and returns the context to inject.
    /// `None` outside of any context.
    pub fn part(kind: SpanSide, info: &SpanInfo<'_>) -> (Option<TraceContext>, Self) {
        let Some(context) = scope::current().map(|whole| whole.child()) else {
            return (None, Self(None));
        };
        let span = Self::start(&context, kind, info);
        (Some(context), span)
    }

    /// Starts the span of a step within the current action.
    pub fn step(info: &SpanInfo<'_>) -> Self {
        match scope::current() {
            Some(whole) if whole.sampled() => Self::start(&whole.child(), SpanSide::Internal, info),
            _ => Self(None),
        }
    }

    pub(super) fn recorded_by(
        exporter: Arc<Exporter>,
        context: &TraceContext,
        kind: SpanSide,
        info: &SpanInfo<'_>,
        start: SpanStart,
    ) -> Self {
        let data = begin(context, kind, info, start.wall);
        let mut span = Self(Some(Box::new(Recording { exporter, data, started: start.monotonic })));
        for (key, value) in [
            ("k8s.resource", info.resource),
            ("k8s.namespace", info.namespace),
            ("k8s.name", info.object),
        ] {
            if !value.is_empty() {
                span.text(key, value);
            }
        }
        if let Some(initial) = context.initial {
            span.text("initial_trace_id", &initial.hex());
        }
        if let Some((trace, span_id)) = context.link {
            span.add_link(trace, span_id);
        }
        span
    }

    /// Whether it records anything.
    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Adds a string attribute, cut at 1,024 bytes.
    pub fn text(&mut self, key: &'static str, value: &str) {
        self.attribute(key, || Value::from(cut(value).to_owned()));
    }

    /// Adds an integer attribute.
    pub fn number(&mut self, key: &'static str, value: u64) {
        self.attribute(key, || Value::I64(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    /// Adds a link to another cause.
    pub fn link(&mut self, cause: &TraceContext) {
        self.add_link(cause.trace_id, cause.span_id);
    }

    /// Marks the span as failed.
    pub fn fail(&mut self) {
        if let Some(recording) = &mut self.0 {
            recording.data.status = Status::error("");
        }
    }

    fn attribute(&mut self, key: &'static str, value: impl FnOnce() -> Value) {
        if let Some(recording) =
            self.0.as_mut().filter(|recording| recording.data.attributes.len() < MAX_ATTRIBUTES)
        {
            recording.data.attributes.push(KeyValue::new(key, value()));
        }
    }

    fn add_link(&mut self, trace: TraceId, span: SpanId) {
        if let Some(recording) =
            self.0.as_mut().filter(|recording| recording.data.links.links.len() < MAX_LINKS)
        {
            recording.data.links.links.push(Link::with_context(span_context(trace, span, true)));
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(recording) = self.0.take() {
            let Recording { exporter, mut data, started } = *recording;
            // Measured on the monotonic clock, since the wall clock may jump.
            data.end_time = data.start_time + started.elapsed();
            exporter.queue.push(data);
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span").field("recorded", &self.is_recorded()).finish()
    }
}

fn begin(
    context: &TraceContext,
    kind: SpanSide,
    info: &SpanInfo<'_>,
    start_time: SystemTime,
) -> SpanData {
    let name = if info.resource.is_empty() {
        cut(info.name).to_owned()
    } else {
        format!("{} {}", cut(info.name), cut(info.resource))
    };
    let span_kind = match kind {
        SpanSide::Internal => SpanKind::Internal,
        SpanSide::Server => SpanKind::Server,
        SpanSide::Client => SpanKind::Client,
    };
    SpanData {
        span_context: span_context(context.trace_id, context.span_id, false),
        parent_span_id: context.parent_span_id.map_or(opentelemetry::SpanId::INVALID, |parent| {
            opentelemetry::SpanId::from_bytes(parent.bytes())
        }),
        parent_span_is_remote: kind == SpanSide::Server,
        span_kind,
        name: name.into(),
        start_time,
        end_time: start_time,
        attributes: Vec::with_capacity(8),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("ferrokube").build(),
    }
}

fn span_context(trace: TraceId, span: SpanId, is_remote: bool) -> SpanContext {
    let (trace, span) = (
        opentelemetry::TraceId::from_bytes(trace.bytes()),
        opentelemetry::SpanId::from_bytes(span.bytes()),
    );
    SpanContext::new(trace, span, TraceFlags::SAMPLED, is_remote, TraceState::NONE)
}

/// The first [`MAX_TEXT_BYTES`], cut at a character boundary.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
