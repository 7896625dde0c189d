//! Outages: a failing operation that is retried logs its failure once, with advice, and once when
//! it works again.
//!
//! Failures with the same cause are one outage, however many operations fail: an unreachable server
//! is one line, not one per watch, whether connections are cut or refused. The first failure is
//! logged at `warn`, later ones at `debug` until the operation works.

use kube::core::Status;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Failures further apart are separate outages. Longer than the longest back-off (30 s).
const APART: Duration = Duration::from_secs(90);

/// Process-wide, like the log.
static FAILING: Mutex<Option<HashMap<u64, ActiveOutage>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(0);

struct ActiveOutage {
    /// The server's response; `None` if there was none.
    answer: Option<String>,
    last: Instant,
    times: u32,
    told: bool,
}

/// An operation that is retried until it works. Dropping it ends its outage.
#[derive(Debug)]
pub struct Outage {
    id: u64,
    tried: String,
    /// Consecutive failures that make an outage.
    threshold: u32,
    failing: bool,
}

impl Outage {
    /// `tried` completes "cannot ...".
    pub fn new(tried: impl Into<String>) -> Self {
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            tried: tried.into(),
            threshold: 1,
            failing: false,
        }
    }

    /// For a watch: that it ends is normal, that it cannot be restarted is an outage.
    pub fn of_watch(what: &str) -> Self {
        Self::new(format!("watch {what}")).after(2)
    }

    /// Reports only after this many consecutive failures.
    #[must_use]
    pub fn after(mut self, failures: u32) -> Self {
        self.threshold = failures;
        self
    }

    /// Records a failure. Returns whether it was logged at `warn`: once per outage, unless another
    /// operation reported the same cause.
    pub fn failed(&mut self, error: &(dyn Error + 'static)) -> bool {
        let cause = last_cause(error);
        let tell = self.begins(answer(error));
        let tried = &self.tried;
        if tell {
            tracing::warn!(error = %error, cause, advice = advice(error), "cannot {tried}, retrying; further failures are logged at debug");
        } else {
            tracing::debug!(error = %error, cause, "cannot {tried}");
        }
        tell
    }

    /// Records a success. Returns whether it ended a reported outage, along with that of every
    /// operation with the same cause.
    pub fn works(&mut self) -> bool {
        if !std::mem::take(&mut self.failing) {
            return false;
        }
        let mut failing = failing();
        let failing = failing.get_or_insert_default();
        // Already removed: another operation with the same cause worked earlier.
        let Some(ended) = failing.remove(&self.id) else { return false };
        let told =
            ended.told || failing.values().any(|other| other.told && other.answer == ended.answer);
        failing.retain(|_, other| other.answer != ended.answer);
        if told {
            tracing::info!("can {} again", self.tried);
        }
        told
    }

    /// Counts a failure. Returns whether to report it.
    fn begins(&mut self, answer: Option<String>) -> bool {
        self.failing = true;
        let mut failing = failing();
        let failing = failing.get_or_insert_default();
        let is_known = failing.iter().any(|(id, other)| {
            *id != self.id && other.told && other.answer == answer && other.last.elapsed() < APART
        });
        let fresh = || ActiveOutage { answer: None, last: Instant::now(), times: 0, told: false };
        let with_certificate = failing.entry(self.id).or_insert_with(fresh);
        if with_certificate.last.elapsed() > APART {
            *with_certificate = fresh();
        }
        (with_certificate.last, with_certificate.times, with_certificate.answer) =
            (Instant::now(), with_certificate.times.saturating_add(1), answer);
        let tell = !with_certificate.told && !is_known && with_certificate.times >= self.threshold;
        with_certificate.told |= tell;
        tell
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        if self.failing {
            failing().get_or_insert_default().remove(&self.id);
        }
    }
}

fn failing() -> MutexGuard<'static, Option<HashMap<u64, ActiveOutage>>> {
    FAILING.lock()
}

/// The innermost error, which kube's own messages leave out.
pub(crate) fn last_cause(error: &(dyn Error + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

/// The server's refusal or an unreadable response, by which failures are distinguished. All
/// failures to get a response are treated alike.
fn answer(error: &(dyn Error + 'static)) -> Option<String> {
    let is_answer = |error: &(dyn Error + 'static)| {
        matches!(error.downcast_ref(), Some(kube::Error::Api(_) | kube::Error::SerdeError(_)))
    };
    chain(error).any(|error| is_answer(error) || status(error).is_some()).then(|| last_cause(error))
}

/// Whether a request got no response: no connection, a broken one, or a timeout.
pub fn is_unanswered(error: &(dyn Error + 'static)) -> bool {
    let is_of_transport = |error: &(dyn Error + 'static)| {
        matches!(
            error.downcast_ref(),
            Some(kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_))
        )
    };
    chain(error).any(is_of_transport)
}

/// Advice for the operator.
fn advice(error: &(dyn Error + 'static)) -> &'static str {
    let answered = chain(error).find_map(|error| match error.downcast_ref() {
        Some(kube::Error::Api(status)) => Some(status.code),
        _ => status(error).map(|status| status.code),
    });
    match answered {
        Some(401) => {
            "check that the client certificate or token in the kubeconfig is valid and known to the API server"
        }
        Some(403) => {
            "grant this user the permission with a role and a binding (kubectl auth can-i), or disable the controller"
        }
        Some(_) => "the API server responded: see its log",
        None => {
            "check that the API server runs, and that the kubeconfig has its address and its CA"
        }
    }
}

/// The Status in an error, also that of a watch event.
fn status<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    error
        .downcast_ref::<Status>()
        .or_else(|| error.downcast_ref::<Box<Status>>().map(|status| &**status))
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure(text, "Forbidden").with_code(403)))
    }

    #[test]
    fn an_outage_and_its_end_are_logged_once() {
        let mut discovery = Outage::new("ask");
        assert_eq!([(); 3].map(|()| discovery.failed(&error("once"))), [true, false, false]);
        assert!(discovery.works());
        assert!(!discovery.works());
        assert!(discovery.failed(&error("once")), "another outage");
    }

    #[test]
    fn ended_watches_are_no_outage_and_one_cause_is_logged_once() {
        let mut watches = ["a", "b", "c"].map(Outage::of_watch);
        assert!(!watches.iter_mut().any(|watch| watch.failed(&error("refused"))), "they ended");
        assert_eq!(
            watches.each_mut().map(|watch| watch.failed(&error("refused"))),
            [true, false, false]
        );
        assert!(watches[1].works(), "also if another operation reported it");
        assert_eq!(watches.each_mut().map(|watch| watch.works()), [false, false, false]);
        let [mut one, mut other, _] = watches;
        for _ in 0..2 {
            one.failed(&error("not you"));
        }
        other.failed(&error("nor you"));
        assert!(other.failed(&error("nor you")), "another cause");
    }

    #[test]
    fn failures_without_a_response_are_one_outage() {
        assert_eq!(
            answer(&std::io::Error::other("refused")),
            answer(&kube::Error::Service("cut".into()))
        );
        assert_ne!(answer(&error("not you")), answer(&error("nor you")));
        assert_eq!(
            advice(&error("not you")),
            advice(&*Box::new(Status::failure("not you", "Forbidden").with_code(403)))
        );
        assert_ne!(advice(&error("not you")), advice(&std::io::Error::other("refused")));
    }

    #[test]
    fn a_refusal_is_a_response_but_a_refused_connection_is_not() {
        assert!(!is_unanswered(&error("not you")));
        assert!(is_unanswered(&kube::Error::Service("refused".into())));
        assert!(!is_unanswered(&std::io::Error::other("the reconcile ended")));
    }

    #[test]
    fn dropped_outages_are_forgotten() {
        let mut gone = Outage::new("ask");
        assert!(gone.failed(&error("gone")));
        drop(gone);
        assert!(Outage::new("ask").failed(&error("gone")));
    }
}
