//! Trace context of one reconcile: a new span in the trace of the write that caused it (KEP-1668,
//! "Controller").
//!
//! Other kube-rs controllers need one call, [`tracked`]:
//!
//! ```no_run
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # use kube::{Api, Client, ResourceExt, api::PostParams, runtime::controller::Action};
//! # use std::{sync::Arc, time::Duration};
//! async fn reconcile(parent: Arc<ConfigMap>, client: Arc<Client>) -> Result<Action, kube::Error> {
//!     ferrokube_client::tracked(&client, &*parent, |client| async move {
//!         // Requests of this client, and log lines in here, carry the ids.
//!         let children: Api<ConfigMap> = Api::namespaced(client, "default");
//!         children.create(&PostParams::default(), &ConfigMap::default()).await?;
//!         Ok(Action::requeue(Duration::from_secs(300)))
//!     })
//!     .await
//! }
//! ```
//!
//! The server accepts the ids of identities that RBAC allows to `propagate` on the path
//! `/trace-context`; others start a new trace with a link. Ids travel by context: never copy the
//! annotations from a parent to its children.

use crate::traced::traced;
use ferrokube_trace::{
    Span, SpanInfo, SpanSide, TraceContext, annotation, in_scope, request_span, sample, scoped,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Client, Resource};

/// Causes kept per reconcile; beyond that the oldest are dropped.
pub const MAX_CAUSES: usize = 8;

/// The trace context of an object's last write. `None` if the object has no ids.
pub fn cause(metadata: &ObjectMeta) -> Option<TraceContext> {
    let annotations = metadata.annotations.as_ref()?;
    annotation::read(|name| annotations.get(name).map(String::as_str))
}

/// Appends a cause, replacing an earlier one of the same trace.
pub fn add_cause(causes: &mut Vec<TraceContext>, cause: TraceContext) {
    causes.retain(|known| known.trace_id != cause.trace_id);
    if causes.len() >= MAX_CAUSES {
        causes.remove(0);
    }
    causes.push(cause);
}

/// Trace context and links of one reconcile.
#[derive(Clone, Debug, Default)]
pub struct ReconcileTrace {
    context: Option<TraceContext>,
    links: Vec<TraceContext>,
}

impl ReconcileTrace {
    /// Caused by the object's last write.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self::caused_by(cause(metadata).into_iter().collect())
    }

    /// Caused by several writes, newest last: a span in the newest one's trace, with links to the
    /// others. No ids without causes.
    pub fn caused_by(mut causes: Vec<TraceContext>) -> Self {
        // Annotations do not carry the sampling decision; it is derived from the trace id, as at
        // its origin.
        let context = causes.pop().map(|cause| sample(cause.child()));
        Self { context, links: causes }
    }

    /// Trace context, if any.
    pub fn context(&self) -> Option<&TraceContext> {
        self.context.as_ref()
    }

    /// Causes in other traces.
    pub fn links(&self) -> &[TraceContext] {
        &self.links
    }

    /// A client whose requests carry the ids. Shares the connections of `client`.
    pub fn client(&self, client: &Client) -> Client {
        self.context.as_ref().map_or_else(|| client.clone(), |context| traced(client, context))
    }

    /// Runs the reconcile in its span. Each linked trace gets one debug line that refers to it.
    pub async fn run<F: Future>(&self, info: SpanInfo<'_>, reconcile: F) -> F::Output {
        let Some(context) = self.context else { return reconcile.await };
        for link in &self.links {
            let (trace_id, span_id) = (context.trace_id, context.span_id);
            in_scope(
                link,
                || tracing::debug!(in_trace_id = %trace_id, in_span_id = %span_id, name = info.object, "handled together with a later change"),
            );
        }
        let mut span = Span::start(&context, SpanSide::Internal, &info);
        self.links.iter().for_each(|link| span.link(link));
        scoped(context, request_span(&context, &info), reconcile).await
    }
}

/// Runs a reconcile of `object` with a client whose requests carry the object's ids, inside a span
/// that has them as fields (target `ferrokube::request`, level trace), so that log lines of any
/// `tracing` subscriber that enables it carry them too.
pub async fn tracked<K, F, R>(client: &Client, object: &K, reconcile: F) -> R::Output
where
    K: Resource,
    K::DynamicType: Default,
    F: FnOnce(Client) -> R,
    R: Future,
{
    let metadata = object.meta();
    let action = ReconcileTrace::of(metadata);
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let info = SpanInfo {
        name: "reconcile",
        resource: &kind,
        namespace: metadata.namespace.as_deref().unwrap_or_default(),
        object: metadata.name.as_deref().unwrap_or_default(),
    };
    let traced = action.client(client);
    action.run(info, reconcile(traced)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_causes_become_links_and_the_newest_is_the_parent() {
        let [first, second] = [TraceContext::root(), TraceContext::root()];
        let mut causes = Vec::new();
        for cause in [first, second, first.child()] {
            add_cause(&mut causes, cause);
        }
        assert_eq!(causes.len(), 2, "one per trace");
        let action = ReconcileTrace::caused_by(causes);
        assert_eq!(action.context().unwrap().trace_id, first.trace_id);
        assert_eq!(action.links()[0].trace_id, second.trace_id);
        assert!(ReconcileTrace::caused_by(Vec::new()).context().is_none());
        let mut many = Vec::new();
        for _ in 0..100 {
            add_cause(&mut many, TraceContext::root());
        }
        assert_eq!(many.len(), MAX_CAUSES);
    }

    #[test]
    fn l02_l31_a_reconcile_is_a_new_span_in_its_objects_trace_and_family() {
        let cause = TraceContext::root().with_initial(Some(TraceContext::root().trace_id));
        let annotations = [
            (annotation::TRACE_ID, cause.trace_id.to_string()),
            (annotation::SPAN_ID, cause.span_id.to_string()),
            (annotation::INITIAL_TRACE_ID, cause.initial.unwrap().to_string()),
        ];
        let annotations =
            annotations.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let action = ReconcileTrace::of(&ObjectMeta {
            annotations: Some(annotations),
            ..ObjectMeta::default()
        });
        let context = action.context().unwrap();
        assert_eq!(
            (context.trace_id, context.initial, context.parent_span_id),
            (cause.trace_id, cause.initial, Some(cause.span_id))
        );
        assert_ne!(context.span_id, cause.span_id);
    }
}
