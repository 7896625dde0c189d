//! A span while it runs.

use super::Exporter;
use super::otlp::{self, Any};
use crate::context::TraceContext;
use crate::scope::{self, Seam};
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

/// The longest text of an attribute; the rest is cut.
const MAX_TEXT_BYTES: usize = 1024;
/// At most so many attributes and links each.
const MAX_PARTS: usize = 32;

/// A span of a seam: what it is about and how long it took. It ends when it is dropped, and is then handed to the exporter.
///
/// Nothing happens for contexts that are not sampled, nor while nothing is exported.
#[derive(Default)]
pub struct Span(Option<Box<Recording>>);

struct Recording {
    exporter: Arc<Exporter>,
    /// As it will be sent.
    encoded: Vec<u8>,
    parts: usize,
    start_nanos: u64,
    started: Instant,
    failed: bool,
}

impl Span {
    /// No span.
    pub fn none() -> Self {
        Self(None)
    }

    /// The span of an action: the context is its own, made with [`TraceContext::child`] or [`TraceContext::root`].
    pub fn start(context: &TraceContext, kind: Kind, seam: &Seam<'_>) -> Self {
        if !context.sampled() {
            return Self(None);
        }
        Self::since(context, kind, seam, (SystemTime::now(), Instant::now()))
    }

    /// The same for an action that began earlier.
    pub fn since(context: &TraceContext, kind: Kind, seam: &Seam<'_>, started: (SystemTime, Instant)) -> Self {
        if !context.sampled() {
            return Self(None);
        }
        match super::current() {
            Some(exporter) => Self::recorded_by(exporter, context, kind, seam, started),
            None => Self(None),
        }
    }

    /// A part of the action whose context the running code is in, with the context to send on: for a call to somebody else, or a step worth its own span.
    /// `None` outside of any context.
    pub fn part(kind: Kind, seam: &Seam<'_>) -> (Option<TraceContext>, Self) {
        let Some(context) = scope::current().map(|whole| whole.child()) else { return (None, Self(None)) };
        let span = Self::start(&context, kind, seam);
        (Some(context), span)
    }

    /// The span of a step inside the action that the running code belongs to. Costs nothing outside of sampled ones.
    pub fn step(seam: &Seam<'_>) -> Self {
        match scope::current() {
            Some(whole) if whole.sampled() => Self::start(&whole.child(), Kind::Internal, seam),
            _ => Self(None),
        }
    }

    pub(super) fn recorded_by(exporter: Arc<Exporter>, context: &TraceContext, kind: Kind, seam: &Seam<'_>, started: (SystemTime, Instant)) -> Self {
        let start_nanos = nanos(started.0);
        let mut encoded = Vec::with_capacity(512);
        let kind = match kind {
            Kind::Internal => 1,
            Kind::Server => 2,
            Kind::Client => 3,
        };
        otlp::begin_span(&mut encoded, context, kind, [seam.name, seam.resource], start_nanos);
        let mut span = Self(Some(Box::new(Recording { exporter, encoded, parts: 0, start_nanos, started: started.1, failed: false })));
        for (key, value) in [("k8s.resource", seam.resource), ("k8s.namespace", seam.namespace), ("k8s.name", seam.object)] {
            if !value.is_empty() {
                span.text(key, value);
            }
        }
        if let Some(initial) = context.initial {
            span.text("initial_trace_id", &initial.hex());
        }
        span
    }

    /// Whether anything is recorded.
    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Adds an attribute; longer texts are cut.
    pub fn text(&mut self, key: &'static str, value: &str) {
        let mut end = value.len().min(MAX_TEXT_BYTES);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        self.attribute(key, Any::Text(&value[..end]));
    }

    /// Adds an attribute.
    pub fn number(&mut self, key: &'static str, value: u64) {
        self.attribute(key, Any::Integer(value));
    }

    /// Adds a link to what also caused this.
    pub fn link(&mut self, cause: &TraceContext) {
        if let Some(recording) = self.0.as_mut().filter(|recording| recording.parts < MAX_PARTS) {
            recording.parts += 1;
            otlp::link(&mut recording.encoded, cause.trace_id, cause.span_id);
        }
    }

    /// Says that it failed.
    pub fn fail(&mut self) {
        if let Some(recording) = &mut self.0 {
            recording.failed = true;
        }
    }

    fn attribute(&mut self, key: &'static str, value: Any<'_>) {
        if let Some(recording) = self.0.as_mut().filter(|recording| recording.parts < MAX_PARTS) {
            recording.parts += 1;
            otlp::attribute(&mut recording.encoded, otlp::SPAN_ATTRIBUTES, key, value);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(mut recording) = self.0.take() {
            // The wall clock may jump; the duration must not.
            let took = u64::try_from(recording.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let end = recording.start_nanos.saturating_add(took);
            otlp::end_span(&mut recording.encoded, end, recording.failed);
            recording.exporter.buffer.push(&recording.encoded);
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span").field("recorded", &self.is_recorded()).finish()
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
