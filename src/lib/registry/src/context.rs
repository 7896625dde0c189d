//! Context and target of a request: user, trace, resource and object. Authorization, admission and
//! storage keys derive from the same values.

use crate::catalog::Served;
use crate::warnings::RequestWarnings;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_storage::Need;
use ferrokube_trace::{InitialTraceId, TraceContext};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;
use tokio::time::Instant;

/// Treatment of unknown and duplicate fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Dropped silently.
    Ignore,
    /// Dropped with a warning.
    #[default]
    Warn,
    /// Rejected with 400.
    Strict,
}

/// A request without its target and body.
#[derive(Debug)]
pub struct RequestContext {
    /// After impersonation.
    pub user: Arc<UserInfo>,
    /// Ids of the request.
    pub trace: TraceContext,
    /// Source of the default field manager.
    pub user_agent: String,
    /// Wall clock, read once per request.
    pub now: SystemTime,
    warnings: Mutex<RequestWarnings>,
    /// Annotations of the audit event.
    audit: Mutex<BTreeMap<String, String>>,
    /// Those with contents of objects.
    audit_bodies: Mutex<BTreeMap<String, String>>,
    /// When the first webhook was called.
    reviews: OnceLock<Instant>,
    /// Initial trace id of the written object.
    initial_trace_id: OnceLock<InitialTraceId>,
    /// Whether the server itself made the request.
    is_own: bool,
    /// Why ordinary writes are refused, if they are.
    restriction: OnceLock<Failure>,
    /// Whether an ordinary write was let through.
    had_ordinary: AtomicBool,
}

impl RequestContext {
    /// A context without warnings or annotations.
    pub fn new(
        user: impl Into<Arc<UserInfo>>,
        trace: TraceContext,
        user_agent: String,
        now: SystemTime,
    ) -> Self {
        Self {
            user: user.into(),
            trace,
            user_agent,
            now,
            warnings: Mutex::default(),
            audit: Mutex::default(),
            audit_bodies: Mutex::default(),
            reviews: OnceLock::new(),
            initial_trace_id: OnceLock::new(),
            is_own: false,
            restriction: OnceLock::new(),
            had_ordinary: AtomicBool::new(false),
        }
    }

    /// A context of the server itself, such as its bootstrap. No client's request gets one,
    /// whatever user it impersonates.
    pub(crate) fn own(self) -> Self {
        Self { is_own: true, ..self }
    }

    /// Whether the server itself made the request.
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    /// Adds a warning for the client. Duplicates, and what exceeds 4,096 characters in all, are
    /// dropped.
    pub fn warn(&self, text: impl Into<String>) {
        self.warnings.lock().add(text.into());
    }

    /// For the response's `Warning` headers; none are left.
    pub fn take_warnings(&self) -> Vec<String> {
        self.warnings.lock().take()
    }

    /// Records the initial trace id of the written object. In a collection the first object counts.
    pub fn set_initial_trace_id(&self, initial_trace_id: InitialTraceId) {
        // A retried write sets the same id again.
        let _ = self.initial_trace_id.set(initial_trace_id);
    }

    /// Initial trace id of the object that this request writes, once known.
    pub fn initial_trace_id(&self) -> Option<InitialTraceId> {
        self.initial_trace_id.get().copied()
    }

    /// Adds an annotation to the audit event.
    pub fn annotate_audit(&self, key: impl Into<String>, value: impl Into<String>) {
        self.audit.lock().insert(key.into(), value.into());
    }

    /// Adds an audit annotation of a webhook or policy unless its key exists: the key contains a
    /// user-chosen name, and must not replace other annotations.
    pub fn annotate_audit_once(&self, key: impl Into<String>, value: impl Into<String>) {
        self.audit.lock().entry(key.into()).or_insert_with(|| value.into());
    }

    /// Adds an annotation with contents of objects, for audit events that have request bodies.
    pub fn annotate_audit_bodies(&self, key: impl Into<String>, value: impl Into<String>) {
        self.audit_bodies.lock().insert(key.into(), value.into());
    }

    /// Takes the annotations with contents of objects.
    pub fn take_audit_bodies(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut *self.audit_bodies.lock())
    }

    /// From now on rejects requests that are not [`Need::Essential`] with this failure.
    pub fn restrict(&self, failure: Failure) {
        // The first reason counts.
        let _ = self.restriction.set(failure);
    }

    /// To be called before every write, and any other effect, of the request.
    ///
    /// # Errors
    /// That of [`Self::restrict`].
    pub fn admit(&self, need: Need) -> Result<(), Failure> {
        if need == Need::Essential {
            return Ok(());
        }
        if let Some(failure) = self.restriction.get() {
            return Err(failure.clone());
        }
        self.had_ordinary.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether nothing but essential writes was let through.
    pub fn is_essential(&self) -> bool {
        !self.had_ordinary.load(Ordering::Relaxed)
    }

    /// When webhooks were first called for this request: now, in the first call.
    pub fn reviews_began(&self) -> Instant {
        *self.reviews.get_or_init(Instant::now)
    }

    /// Takes the annotations of the audit event.
    pub fn take_audit(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut *self.audit.lock())
    }
}

/// Target of a request: a served resource, and optionally a namespace, name and subresource. Names
/// are validated on construction.
#[derive(Clone, Debug)]
pub struct Target {
    /// In the version of the path.
    pub served: Served,
    /// `None` for cluster scope, and for all namespaces.
    pub namespace: Option<String>,
    /// `None` for collections.
    pub name: Option<String>,
    /// Empty for the object itself.
    pub subresource: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_cannot_replace_what_the_server_recorded() {
        let trace = TraceContext::root();
        let user = UserInfo::default();
        let context = RequestContext::new(user, trace, String::new(), SystemTime::UNIX_EPOCH);
        context.annotate_audit("authorization.k8s.io/decision", "allow");
        for value in ["forbid", "other"] {
            context.annotate_audit_once("authorization.k8s.io/decision", value);
            context.annotate_audit_once("issuer.example.com/id", value);
        }
        context.annotate_audit("issuer.example.com/id", "server");
        let found: Vec<String> = context.take_audit().into_values().collect();
        assert_eq!(found, ["allow", "server"]);
    }
}
