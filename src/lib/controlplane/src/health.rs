//! `/livez`, `/readyz`, `/healthz`: named checks. Liveness reads from the store and checks that the
//! committer makes progress.

use crate::action::Options;
use crate::metrics::CheckOutcomes;
use crate::status;
use ferrokube_apimachinery::field::quote;
use ferrokube_auth::audit::AuditLog;
use ferrokube_serve::Response;
use ferrokube_storage::{Prefix, Store};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A committer without progress for this long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// Post-start hooks of kube-apiserver, by name and in order: clients exclude checks by name, and
/// conformance tests expect these. A hook that is no bootstrap step here passes once all steps are
/// done: definitions are followed before the first step, and for features that are not served
/// (service addresses, priority classes, aggregated servers) there is nothing to wait for. Second
/// is the kind without which there is no such hook, if any.
const POST_START_HOOKS: [(&str, &str); 19] = [
    ("poststarthook/start-apiserver-admission-initializer", ""),
    ("poststarthook/generic-apiserver-start-informers", ""),
    ("poststarthook/start-apiextensions-informers", "customresourcedefinitions"),
    ("poststarthook/start-apiextensions-controllers", "customresourcedefinitions"),
    ("poststarthook/crd-informer-synced", "customresourcedefinitions"),
    ("poststarthook/start-system-namespaces-controller", "namespaces"),
    ("poststarthook/start-cluster-authentication-info-controller", "configmaps"),
    ("poststarthook/storage-readiness", ""),
    ("poststarthook/start-service-ip-repair-controllers", ""),
    ("poststarthook/rbac/bootstrap-roles", "clusterroles"),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", ""),
    ("poststarthook/bootstrap-controller", ""),
    ("poststarthook/start-kube-aggregator-informers", "apiservices"),
    ("poststarthook/apiservice-status-local-available-controller", "apiservices"),
    ("poststarthook/apiservice-status-remote-available-controller", "apiservices"),
    ("poststarthook/apiservice-registration-controller", "apiservices"),
    ("poststarthook/kube-apiserver-autoregistration", "apiservices"),
    ("autoregister-completion", "apiservices"),
    ("poststarthook/apiservice-openapi-controller", "apiservices"),
];

/// Readiness, and the bootstrap steps it depends on.
pub(crate) struct Health {
    store: Store,
    audit: AuditLog,
    started: AtomicBool,
    stopping: AtomicBool,
    steps: Mutex<Vec<StepState>>,
    /// Names of [`POST_START_HOOKS`].
    hooks: Vec<&'static str>,
    outcomes: CheckOutcomes,
}

/// A bootstrap step.
struct StepState {
    name: String,
    is_done: bool,
    /// Why it runs again; empty if it does not.
    waits: String,
}

impl Health {
    /// `steps`: names of the bootstrap steps; `serves`: whether a plural name is served.
    pub(crate) fn new(
        store: Store,
        audit: AuditLog,
        steps: impl IntoIterator<Item = String>,
        serves: impl Fn(&str) -> bool,
    ) -> Self {
        let hooks = POST_START_HOOKS.iter().filter(|(_, kind)| kind.is_empty() || serves(kind));
        Self {
            hooks: hooks.map(|(name, _)| *name).collect(),
            steps: Mutex::new(
                steps
                    .into_iter()
                    .map(|name| StepState { name, is_done: false, waits: String::new() })
                    .collect(),
            ),
            store,
            audit,
            started: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            outcomes: CheckOutcomes::default(),
        }
    }

    /// Marks a bootstrap step as done, by its position.
    pub(crate) fn step_done(&self, position: usize) {
        if let Some(step) = self.steps.lock().get_mut(position) {
            step.is_done = true;
        }
    }

    /// Says why a bootstrap step runs again.
    pub(crate) fn step_waits(&self, position: usize, why: String) {
        if let Some(step) = self.steps.lock().get_mut(position) {
            step.waits = why;
        }
    }

    /// All steps are done.
    pub(crate) fn start(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Shutdown has begun.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.started.load(Ordering::Acquire) && !self.stopping.load(Ordering::Acquire)
    }

    /// Names of a probe's checks, in order.
    pub(crate) fn names(&self, probe: &str) -> impl Iterator<Item = String> {
        let steps = self.steps.lock();
        let hooks = steps
            .iter()
            .map(|step| format!("poststarthook/{}", step.name))
            .filter(|name| !self.hooks.contains(&name.as_str()));
        let hooks: Vec<String> = hooks.collect();
        let (before, after) = if probe == "readyz" {
            (
                &["ping", "log", "etcd", "etcd-readiness", "informer-sync"][..],
                &["disk-space", "journal", "audit", "shutdown"][..],
            )
        } else {
            (&["ping", "log", "etcd"][..], &[][..])
        };
        before
            .iter()
            .chain(&self.hooks)
            .map(|name| (*name).to_owned())
            .chain(hooks)
            .chain(after.iter().map(|name| (*name).to_owned()))
    }

    /// Runs one check. The error is shown to people.
    fn check(&self, name: &str) -> Result<(), String> {
        match name {
            // The name that clients know the store by.
            "etcd" => self.storage(),
            "etcd-readiness" => self.storage().and_then(|()| self.takes_writes()),
            "informer-sync" => self.is_done(""),
            "disk-space" if !self.store.has_space() => {
                Err("the disk is full: what makes the state larger is refused".to_owned())
            }
            "journal" if self.store.has_repair_failed() => {
                Err("a file of the journal is damaged and cannot be replaced yet".to_owned())
            }
            "audit" if !self.audit.stats().healthy => {
                Err("the audit log cannot be written".to_owned())
            }
            "shutdown" if self.stopping.load(Ordering::Acquire) => {
                Err("the server is shutting down".to_owned())
            }
            _ if self.hooks.contains(&name) || name.starts_with("poststarthook/") => {
                self.is_done(name.trim_start_matches("poststarthook/"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a bootstrap step is done; for any other name, whether all are.
    fn is_done(&self, step: &str) -> Result<(), String> {
        let steps = self.steps.lock();
        let is_named = steps.iter().any(|other| other.name == step);
        if !is_named && self.started.load(Ordering::Acquire) {
            return Ok(());
        }
        let is_open = |other: &&StepState| !other.is_done && (!is_named || other.name == step);
        let mut open = steps.iter().filter(is_open).peekable();
        if is_named && open.peek().is_none() {
            return Ok(());
        }
        Err(open.find(|other| !other.waits.is_empty()).map_or_else(
            || "not finished".to_owned(),
            |other| format!("not finished: {}", other.waits),
        ))
    }

    /// A restart would not change it, so it is no matter of liveness.
    fn takes_writes(&self) -> Result<(), String> {
        let refusal = self.store.refusal();
        refusal.map_or(Ok(()), |why| Err(format!("the storage refuses writes: {why}")))
    }

    /// Reads from the store, and checks committer and journal.
    fn storage(&self) -> Result<(), String> {
        let store = &self.store;
        if let Some(why) = store.failure() {
            return Err(format!("the journal failed: {why}"));
        }
        if let Some(why) = store.trouble() {
            return Err(format!("the storage is unavailable: {why}"));
        }
        if store.stalled_for() > STUCK_AFTER {
            return Err("the committer is stuck".to_owned());
        }
        let prefix = Prefix::new("namespaces").map_err(|error| error.to_string())?;
        let snapshot = store.snapshot(&prefix);
        let readable = snapshot.revision <= store.revision();
        if readable {
            Ok(())
        } else {
            Err("the published state is ahead of its revision".to_owned())
        }
    }

    /// Outcomes so far.
    pub(crate) fn outcomes(&self) -> &CheckOutcomes {
        &self.outcomes
    }

    pub(crate) fn respond(&self, probe: &str, check: Option<&str>, options: &Options) -> Response {
        if let Some(name) = check {
            if !self.names(probe).any(|other| other == name) {
                return status::not_found();
            }
            return match self.check(name) {
                Ok(()) => status::bare_text(200, "ok"),
                Err(why) => status::text(500, format!("internal server error: {why}\n")),
            };
        }
        let checks = self.names(probe).map(|name| {
            let outcome = self.check(&name);
            if !options.excluded().any(|excluded| excluded == name) {
                self.outcomes.observe(probe, &name, outcome.is_ok());
            }
            (name, outcome)
        });
        respond(probe, checks.collect(), options)
    }
}

/// The response of a probe: its checks with their outcomes, in order.
pub(crate) fn respond(
    probe: &str,
    checks: Vec<(String, Result<(), String>)>,
    options: &Options,
) -> Response {
    let excluded: BTreeSet<&str> = options.excluded().collect();
    let (mut lines, mut has_failed) = (String::new(), false);
    for (name, outcome) in &checks {
        let line = match outcome {
            _ if excluded.contains(name.as_str()) => format!("[+]{name} excluded: ok"),
            Ok(()) => format!("[+]{name} ok"),
            Err(why) => {
                tracing::debug!(probe, check = name, why, "a health check failed");
                has_failed = true;
                format!("[-]{name} failed: reason withheld")
            }
        };
        let _ = writeln!(lines, "{line}");
    }
    let unknown: Vec<String> = excluded
        .into_iter()
        .filter(|name| !checks.iter().any(|(other, _)| other == name))
        .map(quote)
        .collect();
    if !unknown.is_empty() {
        let _ = writeln!(
            lines,
            "warn: some health checks cannot be excluded: no matches for {}",
            unknown.join(",")
        );
    }
    if has_failed {
        return status::text(500, format!("{lines}{probe} check failed\n"));
    }
    if !options.is_verbose() {
        return status::text(200, "ok");
    }
    status::text(200, format!("{lines}{probe} check passed\n"))
}
