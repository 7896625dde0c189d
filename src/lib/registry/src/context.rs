//! What a request is: who asks, about what, in which trace. One value feeds authorization,
//! admission and the storage key.

use crate::catalog::Served;
use ferrokube_trace::{InitialTraceId, TraceContext};
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};
use std::time::SystemTime;

/// An authenticated identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// The user's name.
    pub name: String,
    /// Stable id; may be empty.
    pub uid: String,
    /// Groups, `system:authenticated` included.
    pub groups: Vec<String>,
    /// Extra attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What happens with unknown and repeated fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Dropped silently.
    Ignore,
    /// Dropped with a warning.
    #[default]
    Warn,
    /// 400.
    Strict,
}

/// Everything about a request but its target and body.
#[derive(Debug)]
pub struct RequestContext {
    /// Who acts (after impersonation).
    pub user: UserInfo,
    /// The ids.
    pub trace: TraceContext,
    /// First words of the User-Agent: the default field manager.
    pub user_agent: String,
    /// The wall clock, read once.
    pub now: SystemTime,
    /// Warnings for the client, in order; bounded by [`Self::warn`].
    warnings: Mutex<Vec<String>>,
    /// Annotations for the audit event, by plugins.
    audit: Mutex<BTreeMap<String, String>>,
    /// The family of the object that is written.
    family: OnceLock<InitialTraceId>,
}

impl RequestContext {
    /// A context without warnings.
    pub fn new(user: UserInfo, trace: TraceContext, user_agent: String, now: SystemTime) -> Self {
        Self {
            user,
            trace,
            user_agent,
            now,
            warnings: Mutex::default(),
            audit: Mutex::default(),
            family: OnceLock::new(),
        }
    }

    /// Adds a warning for the client; repeated ones and those beyond 50 are dropped.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock().expect("no panic while held");
        if warnings.len() < 50 && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// Takes the warnings for the answer.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().expect("no panic while held"))
    }

    /// Notes the family of the object that this request writes; of several objects (a collection)
    /// the first counts.
    pub fn note_family(&self, family: InitialTraceId) {
        // A write that starts over comes again, with the same one.
        let _ = self.family.set(family);
    }

    /// The initial trace id of the object that this request writes, once that is known.
    pub fn family(&self) -> Option<InitialTraceId> {
        self.family.get().copied()
    }

    /// Adds an audit annotation.
    pub fn annotate_audit(&self, key: impl Into<String>, value: impl Into<String>) {
        self.audit.lock().expect("no panic while held").insert(key.into(), value.into());
    }

    /// Takes the audit annotations.
    pub fn take_audit(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut *self.audit.lock().expect("no panic while held"))
    }
}

/// About what a request is: a served resource, perhaps a namespace, a name and a subresource.
/// Segments are validated when it is made.
#[derive(Clone, Debug)]
pub struct Target {
    /// The resource in the version of the path.
    pub served: Served,
    /// The namespace; `None` for cluster scope and across namespaces.
    pub namespace: Option<String>,
    /// The object; `None` for collections.
    pub name: Option<String>,
    /// Empty for the object itself.
    pub subresource: String,
}
