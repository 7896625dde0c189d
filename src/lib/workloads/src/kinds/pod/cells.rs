//! Cells of pods: a summary of the states of their containers.

use crate::cells::{CellValue, at, int_at, list_at, str_at};
use crate::checks::{is_true, number, text};
use crate::kinds::podspec::is_sidecar;
use ferrokube_apimachinery::document::Value;
use ferrokube_resource::print::{Completion, since};
use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

/// Values of a pod's cells.
struct PodSummary<'a> {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i64,
    /// Time of the last restart; empty: none.
    last_restart: &'a str,
}

pub(super) fn cell(word: &str, pod: &Value, now: SystemTime) -> CellValue {
    CellValue::text(match word {
        "ready" => {
            let summary = PodSummary::of(pod);
            format!("{}/{}", summary.ready, summary.total)
        }
        "status" => PodSummary::of(pod).reason,
        "restarts" => {
            let summary = PodSummary::of(pod);
            match (summary.restarts, summary.last_restart) {
                (0, _) | (_, "") => summary.restarts.to_string(),
                (restarts, last) => format!("{restarts} ({} ago)", since(last, now)),
            }
        }
        "ip" => match list_at(pod, &["status", "podIPs"]).first().map(|first| text(first, "ip")) {
            None | Some("") => "<none>".to_owned(),
            Some(address) => address.to_owned(),
        },
        "gates" => gates(pod),
        _ => String::new(),
    })
}

/// When a pod whose containers will not run again completed.
pub(super) fn completion(pod: &Value) -> Option<Completion> {
    match str_at(pod, &["status", "phase"]) {
        "Succeeded" => {
            Some(Completion { reason: "Succeeded", message: "The pod has completed successfully." })
        }
        "Failed" => Some(Completion { reason: "Failed", message: "The pod failed." }),
        _ => None,
    }
}

fn gates(pod: &Value) -> String {
    let gates = list_at(pod, &["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let mut statuses = HashMap::new();
    for condition in list_at(pod, &["status", "conditions"]) {
        // The first of a type counts.
        statuses.entry(text(condition, "type")).or_insert_with(|| text(condition, "status"));
    }
    let is_on = |gate: &&Value| statuses.get(text(gate, "conditionType")) == Some(&"True");
    format!("{}/{}", gates.iter().filter(is_on).count(), gates.len())
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    list_at(pod, &["status", "conditions"]).iter().find(|condition| text(condition, "type") == kind)
}

fn is_condition_true(pod: &Value, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|condition| text(condition, "status") == "True")
}

/// A container's state of this name (`waiting`, `running`, `terminated`), if it is in it.
fn state<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    at(status, &["state", name]).filter(|state| !state.is_null())
}

/// Why a container terminated: its reason, signal or exit code.
fn ending(ended: &Value) -> String {
    match (text(ended, "reason"), number(ended, "signal")) {
        ("", 0) => format!("ExitCode:{}", number(ended, "exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

impl<'a> PodSummary<'a> {
    fn of(pod: &'a Value) -> Self {
        let containers = list_at(pod, &["spec", "containers"]);
        let sidecars: HashSet<&str> = list_at(pod, &["spec", "initContainers"])
            .iter()
            .filter(|container| is_sidecar(container))
            .map(|container| text(container, "name"))
            .collect();
        let phase = str_at(pod, &["status", "phase"]);
        let own = str_at(pod, &["status", "reason"]);
        let mut summary = Self {
            ready: 0,
            total: containers.len() + sidecars.len(),
            reason: if own.is_empty() { phase } else { own }.to_owned(),
            restarts: 0,
            last_restart: "",
        };
        let gated = condition(pod, "PodScheduled")
            .is_some_and(|condition| text(condition, "reason") == "SchedulingGated");
        if gated {
            summary.reason = "SchedulingGated".to_owned();
        }
        let sidecars_restarts = summary.initialize(pod, &sidecars);
        if let Some((restarts, last)) = sidecars_restarts {
            (summary.restarts, summary.last_restart) = (restarts, last);
            summary.run(pod);
        }
        let is_deleted =
            at(pod, &["metadata", "deletionTimestamp"]).is_some_and(|at| !at.is_null());
        if is_deleted && own == "NodeLost" {
            summary.reason = "Unknown".to_owned();
        } else if is_deleted && !matches!(phase, "Failed" | "Succeeded") {
            summary.reason = "Terminating".to_owned();
        }
        summary
    }

    fn count_restarts(&mut self, status: &'a Value) {
        self.restarts += number(status, "restartCount");
        let last = str_at(status, &["lastState", "terminated", "finishedAt"]);
        self.last_restart = self.last_restart.max(last);
    }

    /// Adds init containers, and the restarts of sidecars once initialization is done.
    fn initialize(&mut self, pod: &'a Value, sidecars: &HashSet<&str>) -> Option<(i64, &'a str)> {
        let total = list_at(pod, &["spec", "initContainers"]).len();
        let mut kept = (0, "");
        let mut initializing = false;
        for (done, status) in list_at(pod, &["status", "initContainerStatuses"]).iter().enumerate()
        {
            self.count_restarts(status);
            let is_sidecar = sidecars.contains(text(status, "name"));
            if is_sidecar {
                let last = str_at(status, &["lastState", "terminated", "finishedAt"]);
                kept = (kept.0 + number(status, "restartCount"), kept.1.max(last));
            }
            let ended = state(status, "terminated");
            if ended.is_some_and(|ended| number(ended, "exitCode") == 0) {
                continue;
            }
            if is_sidecar && is_true(status, "started") {
                self.ready += usize::from(is_true(status, "ready"));
                continue;
            }
            let waiting = state(status, "waiting").map_or("", |waiting| text(waiting, "reason"));
            self.reason = match ended {
                Some(ended) => format!("Init:{}", ending(ended)),
                None if !matches!(waiting, "" | "PodInitializing") => format!("Init:{waiting}"),
                None => format!("Init:{done}/{total}"),
            };
            initializing = true;
            break;
        }
        (!initializing || is_condition_true(pod, "Initialized")).then_some(kept)
    }

    /// Adds the containers, last to first.
    fn run(&mut self, pod: &'a Value) {
        let (mut is_running, mut failure) = (false, String::new());
        for status in list_at(pod, &["status", "containerStatuses"]).iter().rev() {
            self.count_restarts(status);
            let waiting = state(status, "waiting").map_or("", |waiting| text(waiting, "reason"));
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if let Some(ended) = state(status, "terminated") {
                self.reason = ending(ended);
                if int_at(ended, &["exitCode"]) != 0 {
                    failure.clone_from(&self.reason);
                }
            } else if is_true(status, "ready") && state(status, "running").is_some() {
                is_running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if is_running && is_condition_true(pod, "Ready") {
                self.reason = "Running".to_owned();
            } else if !failure.is_empty() {
                self.reason = failure;
            } else if is_running {
                self.reason = "NotReady".to_owned();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn reasons_are_the_worst_of_the_containers() {
        for (pod, reason, ready) in [
            (
                json!({"spec": {"containers": [{"name": "a"}]}, "status": {"phase": "Pending"}}),
                "Pending",
                "0/1",
            ),
            (
                json!({"spec": {"containers": [{}, {}]}, "status": {"phase": "Running", "containerStatuses": [
                {"ready": true, "state": {"running": {}}}, {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}}),
                "CrashLoopBackOff",
                "1/2",
            ),
            (
                json!({"spec": {"initContainers": [{"name": "i"}], "containers": [{}]}, "status": {"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 2}}}]}}),
                "Init:ExitCode:2",
                "0/1",
            ),
            (
                json!({"metadata": {"deletionTimestamp": "2024-01-02T03:04:05Z"}, "status": {"phase": "Running"}}),
                "Terminating",
                "0/0",
            ),
        ] {
            let summary = PodSummary::of(&pod);
            assert_eq!(
                (summary.reason.as_str(), format!("{}/{}", summary.ready, summary.total).as_str()),
                (reason, ready)
            );
        }
    }
}
