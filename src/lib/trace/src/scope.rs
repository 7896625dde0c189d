//! Which context the running code belongs to: set around the polls of a future, read by the log layer and by whoever injects.
//!
//! A thread local that is swapped at every poll costs a copy of some hundred bytes; a `tracing` span with the ids as fields would format them for
//! every request though most write no log line. Spans exist besides, for export, and cost one atomic load while nobody wants them.

use crate::context::TraceContext;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

thread_local! {
    static CURRENT: Cell<Option<TraceContext>> = const { Cell::new(None) };
}

/// The context of the code that runs now, if it was put in one.
pub fn current() -> Option<TraceContext> {
    CURRENT.get()
}

/// Runs a function in a context.
pub fn in_scope<T>(context: &TraceContext, function: impl FnOnce() -> T) -> T {
    let _restore = Restore(CURRENT.replace(Some(*context)));
    function()
}

/// Runs a future in a context, with a span that was made for it; tasks that it spawns are not in it, wrap them too. Cancel safe if the future is.
pub async fn scoped<F: Future>(context: TraceContext, span: tracing::Span, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|task| {
        let _restore = Restore(CURRENT.replace(Some(context)));
        let _entered = span.enter();
        future.as_mut().poll(task)
    })
    .await
}

/// What a span of [`request_span`] is about.
#[derive(Clone, Copy, Debug)]
pub struct Seam<'a> {
    /// Verb and resource, or a route's template.
    pub name: &'a str,
    /// The resource's plural; empty if there is none.
    pub resource: &'a str,
    /// The namespace; empty if there is none.
    pub namespace: &'a str,
    /// The object's name; empty if there is none.
    pub object: &'a str,
}

/// The span of a seam (a request, an admission call, a reconcile), with the ids as fields. Only made when the target `ferrokube::seam` is wanted.
pub fn request_span(context: &TraceContext, seam: &Seam<'_>) -> tracing::Span {
    tracing::trace_span!(
        target: "ferrokube::seam",
        "seam",
        otel.name = seam.name,
        k8s.resource = seam.resource,
        k8s.namespace = seam.namespace,
        k8s.name = seam.object,
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
        let outer = pin!(scoped(one, tracing::Span::none(), async { (current(), inner.await, current()) }));
        let result = outer.poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(result, Poll::Ready((Some(one), Some(two), Some(one))));
        assert_eq!(current(), None);
    }

    #[test]
    fn a_panic_leaves_no_context_behind() {
        let result = std::panic::catch_unwind(|| in_scope(&TraceContext::root(), || panic!("expected")));
        assert!(result.is_err());
        assert_eq!(current(), None);
    }
}
