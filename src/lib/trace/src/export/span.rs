//! A span while its action runs.

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

/// Which side of a call a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work inside the process: a reconcile, a store transaction.
    Internal,
    /// A request that was received.
    Server,
    /// A request that was sent: a webhook.
    Client,
}

/// Longer texts are cut.
const MAX_TEXT_BYTES: usize = 1024;
/// Attributes of a span; more are ignored. So are more links.
const MAX_ATTRIBUTES: usize = 16;
/// Links of a span.
const MAX_LINKS: usize = 16;

/// The span of one action. It ends on drop, which hands it to the exporter.
///
/// Does nothing for contexts that are not sampled, or while nothing is exported.
#[derive(Default)]
pub struct Span(Option<Box<Recording>>);

struct Recording {
    exporter: Arc<Exporter>,
    data: SpanData,
    started: Instant,
}

impl Span {
    /// No span.
    pub fn none() -> Self {
        Self(None)
    }

    /// The span of an action. The context is its own, made with [`TraceContext::child`] or
    /// [`TraceContext::root`].
    pub fn start(context: &TraceContext, kind: Kind, info: &SpanInfo<'_>) -> Self {
        if !context.sampled() {
            return Self(None);
        }
        Self::since(context, kind, info, (SystemTime::now(), Instant::now()))
    }

    /// The same for an action that began earlier.
    pub fn since(
        context: &TraceContext,
        kind: Kind,
        info: &SpanInfo<'_>,
        started: (SystemTime, Instant),
    ) -> Self {
        if !context.sampled() {
            return Self(None);
        }
        match super::current() {
            Some(exporter) => Self::recorded_by(exporter, context, kind, info, started),
            None => Self(None),
        }
    }

    /// The span of a call inside the current action, with the context to inject into it. `None`
    /// outside of any context.
    pub fn part(kind: Kind, info: &SpanInfo<'_>) -> (Option<TraceContext>, Self) {
        let Some(context) = scope::current().map(|whole| whole.child()) else {
            return (None, Self(None));
        };
        let span = Self::start(&context, kind, info);
        (Some(context), span)
    }

    /// The span of a step inside the current action.
    pub fn step(info: &SpanInfo<'_>) -> Self {
        match scope::current() {
            Some(whole) if whole.sampled() => Self::start(&whole.child(), Kind::Internal, info),
            _ => Self(None),
        }
    }

    pub(super) fn recorded_by(
        exporter: Arc<Exporter>,
        context: &TraceContext,
        kind: Kind,
        info: &SpanInfo<'_>,
        started: (SystemTime, Instant),
    ) -> Self {
        let data = begin(context, kind, info, started.0);
        let mut span = Self(Some(Box::new(Recording { exporter, data, started: started.1 })));
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

    /// Whether anything is recorded.
    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Adds an attribute; longer texts are cut.
    pub fn text(&mut self, key: &'static str, value: &str) {
        self.attribute(key, || Value::from(cut(value).to_owned()));
    }

    /// Adds an attribute.
    pub fn number(&mut self, key: &'static str, value: u64) {
        self.attribute(key, || Value::I64(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    /// Adds a link to another cause.
    pub fn link(&mut self, cause: &TraceContext) {
        self.add_link(cause.trace_id, cause.span_id);
    }

    /// Marks it as failed.
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
            // The wall clock may jump; the duration must not.
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
    kind: Kind,
    info: &SpanInfo<'_>,
    start_time: SystemTime,
) -> SpanData {
    let name = if info.resource.is_empty() {
        cut(info.name).to_owned()
    } else {
        format!("{} {}", cut(info.name), cut(info.resource))
    };
    let span_kind = match kind {
        Kind::Internal => SpanKind::Internal,
        Kind::Server => SpanKind::Server,
        Kind::Client => SpanKind::Client,
    };
    SpanData {
        span_context: span_context(context.trace_id, context.span_id, false),
        parent_span_id: context.parent_span_id.map_or(opentelemetry::SpanId::INVALID, |parent| {
            opentelemetry::SpanId::from_bytes(parent.bytes())
        }),
        parent_span_is_remote: kind == Kind::Server,
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

/// The text's first [`MAX_TEXT_BYTES`], whole characters only.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
