//! Fields that exist only while a feature is on.

use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::FieldError;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A field that a feature gate guards.
#[derive(Clone, Copy, Debug)]
pub struct GuardedField {
    /// Name of the feature gate.
    pub gate: &'static str,
    /// Path of the field.
    pub path: &'static [&'static str],
    /// The value that is guarded; `None`: any, and the field is left out of OpenAPI while off.
    pub value: Option<&'static str>,
    /// Treatment of new uses while the feature is off.
    pub while_off: WhileOff,
    /// Defaults of the feature, while it is on.
    pub default: Option<fn(&mut Document)>,
}

/// Treatment of new uses of a guarded field while its feature is off. Stored uses may remain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileOff {
    /// The field is dropped, as kube-apiserver does with fields of disabled features.
    Drop,
    /// The write is refused.
    Refuse,
}

impl GuardedField {
    /// Dropped while off.
    pub const fn new(gate: &'static str, path: &'static [&'static str]) -> Self {
        Self { gate, path, value: None, while_off: WhileOff::Drop, default: None }
    }

    fn is_used(&self, object: &Document) -> bool {
        match (object.get(self.path), self.value) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(found), Some(value)) => found.as_str() == Some(value),
        }
    }
}

/// A guarded field in a server. Clones share their state. At first it is closed, and open if it
/// would refuse writes: until a server sets it, features have no say.
#[derive(Clone, Debug)]
pub struct FieldGuard {
    field: GuardedField,
    /// In milliseconds since [`START`].
    open_until: Arc<AtomicU64>,
    is_hidden: Arc<AtomicBool>,
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl FieldGuard {
    /// Closed, and not hidden.
    pub fn new(field: GuardedField) -> Self {
        let open_until = if field.while_off == WhileOff::Refuse { u64::MAX } else { 0 };
        Self { field, open_until: Arc::new(open_until.into()), is_hidden: Arc::default() }
    }

    /// The field that is closed while its feature is off.
    pub fn field(&self) -> &GuardedField {
        &self.field
    }

    /// Whether OpenAPI leaves the field out.
    pub fn is_hidden(&self) -> bool {
        self.is_hidden.load(Ordering::Relaxed)
    }

    /// Opens it for a time, [`Duration::MAX`] being for good, or closes it (zero), and hides the
    /// field or shows it. Returns whether OpenAPI changes.
    pub fn set(&self, open_for: Duration, is_hidden: bool) -> bool {
        let end = if open_for.is_zero() {
            Duration::ZERO
        } else {
            START.elapsed() + open_for.min(FOREVER)
        };
        let end = u64::try_from(end.as_millis()).unwrap_or(u64::MAX);
        self.open_until.store(end, Ordering::Relaxed);
        let is_hidden = is_hidden && self.field.value.is_none();
        self.is_hidden.swap(is_hidden, Ordering::Relaxed) != is_hidden
    }

    /// Time until it closes; zero while closed.
    pub fn open_for(&self) -> Duration {
        let end = Duration::from_millis(self.open_until.load(Ordering::Relaxed));
        end.saturating_sub(START.elapsed())
    }

    /// Whether a write brings a use while closed.
    fn is_broken(&self, old: Option<&Document>, object: &Document) -> bool {
        self.field.is_used(object)
            && self.open_for().is_zero()
            && old.is_none_or(|old| !self.field.is_used(old))
    }

    /// Drops the field from a write while closed.
    pub(crate) fn prepare(&self, old: Option<&Document>, object: &mut Document) {
        if self.field.while_off == WhileOff::Drop && self.is_broken(old, object) {
            object.remove(self.field.path);
        }
    }

    /// Defaults of the feature.
    pub(crate) fn default(&self, object: &mut Document) {
        if let Some(default) = self.field.default
            && !self.open_for().is_zero()
        {
            default(object);
        }
    }

    /// Why a write is refused.
    pub(crate) fn check(&self, old: Option<&Document>, object: &Document) -> Option<FieldError> {
        let is_refused = self.field.while_off == WhileOff::Refuse && self.is_broken(old, object);
        let GuardedField { gate, path, value, .. } = self.field;
        let what = value.map(|value| format!(" to {value}")).unwrap_or_default();
        is_refused.then(|| {
            let why = format!("may not be set{what} while the feature {gate} is off");
            FieldError::forbidden(path.join("."), &why)
        })
    }
}

/// Far enough not to overflow.
const FOREVER: Duration = Duration::from_secs(1 << 40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_that_nobody_keeps_open_closes() {
        let guard = FieldGuard::new(GuardedField::new("G", &["spec", "field"]));
        let kept = |old: Option<&Document>| {
            let mut object = Document::new();
            object.set(&["spec", "field"], "x");
            guard.prepare(old, &mut object);
            object.get(&["spec", "field"]).is_some()
        };
        assert!(!kept(None));
        guard.set(Duration::MAX, false);
        assert!(kept(None));
        guard.set(Duration::from_millis(1), false);
        while !guard.open_for().is_zero() {
            std::thread::yield_now();
        }
        assert!(!kept(None));
        let mut stored = Document::new();
        stored.set(&["spec", "field"], "y");
        assert!(kept(Some(&stored)));
        assert!(guard.set(Duration::ZERO, true) && guard.is_hidden());
    }

    #[test]
    fn a_value_is_refused_while_off_unless_it_is_stored() {
        let field = GuardedField {
            value: Some("Webhook"),
            while_off: WhileOff::Refuse,
            ..GuardedField::new("G", &["spec", "strategy"])
        };
        let guard = FieldGuard::new(field);
        let object = |value: &str| {
            let mut object = Document::new();
            object.set(&["spec", "strategy"], value);
            object
        };
        let why = |old: Option<&str>, new: &str| {
            guard.check(old.map(object).as_ref(), &object(new)).map(|error| error.message)
        };
        assert_eq!(why(None, "Webhook"), None, "no server has set it");
        assert!(!guard.set(Duration::ZERO, true), "other values remain");
        let text = "Forbidden: may not be set to Webhook while the feature G is off";
        assert_eq!(why(None, "Webhook").as_deref(), Some(text));
        assert_eq!(why(Some("None"), "Webhook").as_deref(), Some(text));
        assert!(why(Some("Webhook"), "Webhook").is_none() && why(None, "None").is_none());
        guard.set(Duration::MAX, false);
        assert_eq!(why(None, "Webhook"), None);
    }
}
