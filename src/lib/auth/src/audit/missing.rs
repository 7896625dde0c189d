//! Events that are in no file, and the event in their place.

use super::event::{AuditEvent, AuditLevel, AuditStage};
use super::line;
use super::policy::AuditPlan;
use ferrokube_apimachinery::user::UserInfo;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Annotation: the number of events before this one that could not be written.
pub const MISSING: &str = "audit.ferrokube.io/missing";

/// Counts dropped events until the log has recorded how many.
#[derive(Default)]
pub(super) struct MissingEvents(AtomicU64);

impl MissingEvents {
    pub(super) fn add(&self, count: u64) {
        if count > 0 && self.0.fetch_add(count, Ordering::AcqRel) == 0 {
            tracing::error!("audit events are dropped");
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// The count, and its event as a line; `None` if nothing is missing.
    pub(super) fn line(&self) -> Option<(u64, Vec<u8>)> {
        let count = self.0.load(Ordering::Acquire);
        if count == 0 {
            return None;
        }
        let mut bytes = Vec::new();
        let annotations = BTreeMap::from([(MISSING.to_owned(), count.to_string())]);
        let user = UserInfo { name: "system:apiserver".into(), ..UserInfo::default() };
        let plan = AuditPlan { level: AuditLevel::Metadata, ..AuditPlan::default() };
        line::write(&mut bytes, &event(&user, &annotations), &plan, usize::MAX);
        Some((count, bytes))
    }

    /// The line with this count is in the file.
    pub(super) fn recorded(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::AcqRel);
        tracing::warn!(count, "audit events are missing");
    }
}

fn event<'a>(user: &'a UserInfo, annotations: &'a BTreeMap<String, String>) -> AuditEvent<'a> {
    let now = SystemTime::now();
    AuditEvent {
        id: "",
        stage: AuditStage::ResponseComplete,
        uri: "",
        verb: "",
        user,
        impersonated: None,
        constraint: "",
        method: "",
        source_ips: &[],
        user_agent: "",
        object: None,
        outcome: None,
        request: None,
        response: None,
        received: now,
        at: now,
        trace: None,
        decision: ("", ""),
        annotations,
    }
}
