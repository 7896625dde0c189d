//! The current context: set while a future is polled, read by the log layer and by callers of
//! `inject`.
//!
//! Swapping a thread local per poll copies about a hundred bytes; a `tracing` span with the ids as
//! fields would format them for every request, though most requests log nothing. The `tracing` span
//! below costs one atomic load while disabled.

use crate::context::TraceContext;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

thread_local! {
    static CURRENT: Cell<Option<TraceContext>> = const { Cell::new(None) };
}

/// The current context, if any.
pub fn current() -> Option<TraceContext> {
    CURRENT.get()
}

/// Runs a function in a context.
pub fn in_scope<T>(context: &TraceContext, function: impl FnOnce() -> T) -> T {
    let _restore = Restore(CURRENT.replace(Some(*context)));
    function()
}

/// Runs a future in a context and a span. Does not cover tasks that the future spawns: wrap those,
/// too. Cancel safe if the future is.
pub async fn scoped<F: Future>(context: TraceContext, span: tracing::Span, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|task| {
        let _restore = Restore(CURRENT.replace(Some(context)));
        let _entered = span.enter();
        future.as_mut().poll(task)
    })
    .await
}

/// Name and object of a span.
#[derive(Clone, Copy, Debug)]
pub struct SpanInfo<'a> {
    /// Verb and resource, or the route template.
    pub name: &'a str,
    /// Plural resource name; may be empty.
    pub resource: &'a str,
    /// May be empty.
    pub namespace: &'a str,
    /// Object name; may be empty.
    pub object: &'a str,
}

/// The `tracing` span of a request, admission call or reconcile, with the ids as fields. Disabled
/// unless the target `ferrokube::request` is enabled.
pub fn request_span(context: &TraceContext, info: &SpanInfo<'_>) -> tracing::Span {
    tracing::trace_span!(
        target: "ferrokube::request",
        "request",
        otel.name = info.name,
        k8s.resource = info.resource,
        k8s.namespace = info.namespace,
        k8s.name = info.object,
        trace_id = %context.trace_id,
        span_id = %context.span_id,
        parent_span_id = context.parent_span_id.map(tracing::field::display),
        initial_trace_id = context.initial.map(tracing::field::display),
    )
}

struct Restore(Option<TraceContext>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn the_context_is_set_only_while_its_future_is_polled() {
        let (one, two) = (TraceContext::root(), TraceContext::root());
        let inner = scoped(two, tracing::Span::none(), async { current() });
        let outer =
            pin!(scoped(one, tracing::Span::none(), async { (current(), inner.await, current()) }));
        let result = outer.poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(result, Poll::Ready((Some(one), Some(two), Some(one))));
        assert_eq!(current(), None);
    }

    #[test]
    fn a_panic_leaves_no_context_behind() {
        let result =
            std::panic::catch_unwind(|| in_scope(&TraceContext::root(), || panic!("expected")));
        assert!(result.is_err());
        assert_eq!(current(), None);
    }
}
