//! `/livez`, `/readyz`, `/healthz`: checks by name. Liveness reads from the store and looks at the
//! committer's progress.

use crate::action::Options;
use crate::state::ServerState;
use crate::status;
use ferrokube_apimachinery::field::quote;
use ferrokube_serve::Response;
use ferrokube_storage::Prefix;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A committer that has not moved for this long is stuck.
const STALLED: Duration = Duration::from_secs(20);

/// What upstream's probes check once their work at the start is done, by its names and in its
/// order: clients exclude checks by name, and conformance tests want these. What no bootstrap step
/// here is called is done when all are: served definitions are followed before the first step, and
/// for what is not served (addresses of services, priority classes, aggregated servers) there is
/// nothing to wait for.
const STARTS: [&str; 19] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/storage-readiness",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
];

/// Readiness, and the bootstrap steps that it waits for.
#[derive(Debug, Default)]
pub(crate) struct Health {
    started: AtomicBool,
    stopping: AtomicBool,
    steps: Mutex<Vec<(String, bool)>>,
}

impl Health {
    /// With the names of the bootstrap steps.
    pub(crate) fn new(steps: impl IntoIterator<Item = String>) -> Self {
        Self {
            steps: Mutex::new(steps.into_iter().map(|name| (name, false)).collect()),
            ..Self::default()
        }
    }

    /// A bootstrap step is done.
    pub(crate) fn step_done(&self, name: &str) {
        if let Some(step) = self
            .steps
            .lock()
            .expect("no panic while held")
            .iter_mut()
            .find(|(step, _)| step == name)
        {
            step.1 = true;
        }
    }

    /// All steps are done.
    pub(crate) fn start(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// The server is going down.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether the server takes requests.
    pub(crate) fn is_ready(&self) -> bool {
        self.started.load(Ordering::Acquire) && !self.stopping.load(Ordering::Acquire)
    }

    /// The names of a probe's checks.
    pub(crate) fn names(&self, probe: &str) -> impl Iterator<Item = String> {
        let steps = self.steps.lock().expect("no panic while held");
        let hooks = steps
            .iter()
            .map(|(name, _)| format!("poststarthook/{name}"))
            .filter(|name| !STARTS.contains(&name.as_str()));
        let hooks: Vec<String> = hooks.collect();
        let (before, after) = if probe == "readyz" {
            (
                &["ping", "log", "etcd", "etcd-readiness", "informer-sync"][..],
                &["disk-space", "audit", "shutdown"][..],
            )
        } else {
            (&["ping", "log", "etcd"][..], &[][..])
        };
        before
            .iter()
            .chain(&STARTS)
            .map(|name| (*name).to_owned())
            .chain(hooks)
            .chain(after.iter().map(|name| (*name).to_owned()))
    }

    /// Runs one check; what is wrong is for people.
    fn check(&self, state: &ServerState, name: &str) -> Result<(), String> {
        match name {
            // Clients know the store by this name.
            "etcd" | "etcd-readiness" => storage(state),
            "informer-sync" => self.is_done(""),
            "disk-space" if !state.registry.store().has_space() => {
                Err("the disk is full: what makes the state larger is refused".to_owned())
            }
            "audit" if !state.audit.stats().healthy => {
                Err("the audit log cannot be written".to_owned())
            }
            "shutdown" if self.stopping.load(Ordering::Acquire) => {
                Err("the server is shutting down".to_owned())
            }
            _ if STARTS.contains(&name) || name.starts_with("poststarthook/") => {
                self.is_done(name.trim_start_matches("poststarthook/"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a bootstrap step is done, all of them where none has the name.
    fn is_done(&self, step: &str) -> Result<(), String> {
        let steps = self.steps.lock().expect("no panic while held");
        let done = steps
            .iter()
            .find(|(name, _)| name == step)
            .map_or_else(|| self.started.load(Ordering::Acquire), |(_, done)| *done);
        if done { Ok(()) } else { Err("not finished".to_owned()) }
    }
}

/// A real read, and that the committer moves and the journal works.
fn storage(state: &ServerState) -> Result<(), String> {
    let store = state.registry.store();
    if let Some(why) = store.failure() {
        return Err(format!("the journal failed: {why}"));
    }
    if store.stalled_for() > STALLED {
        return Err("the committer is stuck".to_owned());
    }
    let prefix = Prefix::new("namespaces").map_err(|error| error.to_string())?;
    let snapshot = store.snapshot(&prefix);
    let readable = snapshot.revision <= store.revision();
    if readable { Ok(()) } else { Err("the published state is ahead of its revision".to_owned()) }
}

/// Answers a probe, or one check of it.
pub(crate) fn respond(
    state: &ServerState,
    probe: &str,
    check: Option<&str>,
    options: &Options,
) -> Response {
    let health = &state.health;
    if let Some(name) = check {
        if !health.names(probe).any(|other| other == name) {
            return status::not_found();
        }
        return match health.check(state, name) {
            Ok(()) => status::bare_text(200, "ok"),
            Err(why) => status::text(500, format!("internal server error: {why}\n")),
        };
    }
    let excluded: Vec<&str> = options.excluded().collect();
    let (mut lines, mut failed) = (String::new(), Vec::new());
    for name in health.names(probe) {
        let line = if excluded.contains(&name.as_str()) {
            format!("[+]{name} excluded: ok")
        } else {
            match health.check(state, &name) {
                Ok(()) => format!("[+]{name} ok"),
                Err(why) => {
                    tracing::debug!(probe, check = name, why, "a health check failed");
                    failed.push(name.clone());
                    format!("[-]{name} failed: reason withheld")
                }
            }
        };
        let _ = writeln!(lines, "{line}");
    }
    let unknown: BTreeSet<&str> = excluded
        .into_iter()
        .filter(|name| !health.names(probe).any(|other| other == *name))
        .collect();
    if !unknown.is_empty() {
        let unknown: Vec<String> = unknown.into_iter().map(quote).collect();
        let _ = writeln!(
            lines,
            "warn: some health checks cannot be excluded: no matches for {}",
            unknown.join(",")
        );
    }
    if !failed.is_empty() {
        return status::text(500, format!("{lines}{probe} check failed\n"));
    }
    if !options.is_verbose() {
        return status::text(200, "ok");
    }
    status::text(200, format!("{lines}{probe} check passed\n"))
}
