//! Metrics of the server flow, and events about transitions.

use super::record::FeatureFacts;
use super::{GROUP, NAMESPACE, VERSION};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::time::rfc3339_seconds;
use ferrokube_features::transition::FeatureState;
use ferrokube_registry::{Local, Registry};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// Upper bounds of the durations, in seconds.
const BUCKETS: [u64; 10] = [1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600];
const STATES: [FeatureState; 4] =
    [FeatureState::On, FeatureState::Off, FeatureState::TurningOn, FeatureState::TurningOff];

/// Durations of ended transitions to a value.
#[derive(Clone, Copy, Default)]
struct DurationCounts {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

impl DurationCounts {
    fn add(&mut self, took: Duration) {
        for (count, bound) in self.buckets.iter_mut().zip(BUCKETS) {
            *count += u64::from(took <= Duration::from_secs(bound));
        }
        self.count += 1;
        self.sum += took.as_secs_f64();
    }
}

/// One feature, as last observed.
#[derive(Clone, Default)]
struct FeatureNumbers {
    state: Option<FeatureState>,
    tasks: usize,
    uses: BTreeMap<(String, bool), usize>,
    leads: bool,
    blocked: bool,
    dangling: usize,
}

/// Numbers of the features of this version: others, of which there may be any number, have none.
#[derive(Default)]
pub(crate) struct FeatureStats {
    features: Mutex<BTreeMap<&'static str, FeatureNumbers>>,
    /// By feature, and whether it was turned on.
    durations: Mutex<BTreeMap<(&'static str, bool), DurationCounts>>,
}

impl FeatureStats {
    /// Records an object's state.
    pub(super) fn note(&self, facts: &FeatureFacts, document: &Document, leads: bool) {
        let Some(name) = facts.gate.as_ref().map(|gate| gate.name) else { return };
        let status = |field: &str| document.str(&["status", field]).unwrap_or_default();
        let mut uses = BTreeMap::new();
        for one in document.list(&["status", "uses"]) {
            let version = one.get("version").and_then(Value::as_str).unwrap_or_default();
            let enabled = one.get("enabled").and_then(Value::as_bool).unwrap_or(false);
            *uses.entry((version.to_owned(), enabled)).or_default() += 1;
        }
        let holds = |kind: &str| {
            let conditions = document.list(&["status", "conditions"]);
            let is_kind = |one: &&Value| one.get("type").and_then(Value::as_str) == Some(kind);
            let found = conditions.iter().find(is_kind);
            found.and_then(|one| one.get("status")?.as_str()) == Some("True")
        };
        let numbers = FeatureNumbers {
            state: status("state").parse().ok(),
            tasks: document.list(&["status", "transitionTasks"]).len(),
            uses,
            leads,
            blocked: holds("Blocked"),
            dangling: usize::from(holds("DanglingReferences")),
        };
        self.features.lock().insert(name, numbers);
    }

    /// Counts a transition that has ended.
    pub(super) fn ended(&self, facts: &FeatureFacts, took: Duration) {
        let Some(name) = facts.gate.as_ref().map(|gate| gate.name) else { return };
        self.durations.lock().entry((name, facts.desired)).or_default().add(took);
    }

    /// Appends the metrics; none while the Feature API is off.
    pub(crate) fn write(&self, out: &mut String) {
        let features = self.features.lock().clone();
        if features.is_empty() {
            return;
        }
        let mut gauge =
            |name: &str, help: &str, lines: &mut dyn Iterator<Item = (String, usize)>| {
                // Writing to a string cannot fail.
                let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
                for (labels, value) in lines {
                    let _ = writeln!(out, "{name}{{{labels}}} {value}");
                }
            };
        let each = |value: fn(&FeatureNumbers) -> usize| {
            let lines = features.iter();
            lines.map(move |(name, of)| (format!("name=\"{name}\""), value(of)))
        };
        let mut states = features.iter().flat_map(|(name, of)| {
            STATES.into_iter().map(move |state| {
                let labels = format!("name=\"{name}\",state=\"{state}\"");
                (labels, usize::from(of.state == Some(state)))
            })
        });
        gauge("feature_state", "State of a feature: 1 for the one it is in.", &mut states);
        let help = "Tasks before the transition of a feature ends.";
        gauge("feature_tasks_remaining", help, &mut each(|of| of.tasks));
        let help = "Whether this server leads the transitions of a feature.";
        gauge("feature_leader", help, &mut each(|of| usize::from(of.leads)));
        let help = "Whether the transition of a feature cannot advance.";
        gauge("feature_blocked", help, &mut each(|of| usize::from(of.blocked)));
        let help = "Whether stored objects use a feature that is off.";
        gauge("feature_dangling_references", help, &mut each(|of| of.dangling));
        let mut uses = features.iter().flat_map(|(name, of)| {
            of.uses.iter().map(move |((version, enabled), count)| {
                let labels = format!("name=\"{name}\",version=\"{version}\",enabled=\"{enabled}\"");
                (labels, *count)
            })
        });
        gauge("feature_uses", "Values of a feature that components have reported.", &mut uses);
        self.write_durations(out);
    }

    fn write_durations(&self, out: &mut String) {
        const NAME: &str = "feature_transition_duration_seconds";
        let durations = self.durations.lock().clone();
        let help = "Time from the start of a transition that this server ended to its end.";
        let _ = writeln!(out, "# HELP {NAME} {help}\n# TYPE {NAME} histogram");
        for ((name, enabled), counts) in durations {
            let labels = format!("name=\"{name}\",to=\"{}\"", FeatureState::stable(enabled));
            for (bound, count) in BUCKETS.iter().zip(counts.buckets) {
                let _ = writeln!(out, "{NAME}_bucket{{{labels},le=\"{bound}\"}} {count}");
            }
            let (count, sum) = (counts.count, counts.sum);
            let _ = writeln!(out, "{NAME}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(out, "{NAME}_sum{{{labels}}} {sum}\n{NAME}_count{{{labels}}} {count}");
        }
    }
}

/// Writes events about Features; failures are only logged.
pub(super) struct FeatureEvents(Option<Local>);

impl FeatureEvents {
    pub(super) fn new(registry: &Registry) -> Self {
        Self(Local::new(registry, "", "v1", "events"))
    }

    /// About a change of the state from one written object to the next.
    pub(super) async fn changed(&self, before: &Document, after: &Document) {
        let state = |feature: &Document| {
            feature.str(&["status", "state"]).unwrap_or_default().parse::<FeatureState>().ok()
        };
        let (old, Some(new)) = (state(before), state(after)) else { return };
        // The first state of a feature is no transition.
        if old.is_none() || old == Some(new) {
            return;
        }
        let reason = if new.is_turning() { "TransitionStarted" } else { "TransitionCompleted" };
        self.record(after, "Normal", reason, format!("{} is {new}", after.name())).await;
    }

    /// About a transition that cannot advance.
    pub(super) async fn blocked(&self, feature: &Document, why: &str) {
        self.record(feature, "Warning", "TransitionBlocked", why.to_owned()).await;
    }

    async fn record(&self, feature: &Document, kind: &str, reason: &str, message: String) {
        let Some(events) = &self.0 else { return };
        let now = rfc3339_seconds(SystemTime::now());
        let id = uuid::Uuid::new_v4().simple().to_string();
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                // Names of features have capital letters, those of events have none.
                "name": format!("{}.{}", feature.name().to_ascii_lowercase(), &id[..16]),
                "namespace": NAMESPACE,
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "involvedObject": {
                "apiVersion": format!("{GROUP}/{VERSION}"),
                "kind": "Feature",
                "name": feature.name(),
                "namespace": NAMESPACE,
                "uid": feature.meta("uid"),
                "resourceVersion": feature.meta("resourceVersion"),
            },
            "source": {"component": "apiserver"},
            "reportingComponent": "apiserver",
            "firstTimestamp": now.as_str(),
            "lastTimestamp": now.as_str(),
            "count": 1,
        });
        let event = Document::from_value(event).expect("an object literal");
        if let Err(failure) = events.create(NAMESPACE, event).await {
            let (name, why) = (feature.name(), failure.message);
            tracing::debug!(k8s.name = name, why, "cannot write an event about a feature");
        }
    }
}

/// Time since the transition began, by the clocks of the servers.
pub(super) fn transition_time(before: &Document) -> Duration {
    let conditions = before.list(&["status", "conditions"]);
    let kind = |one: &&Value| one.get("type").and_then(Value::as_str) == Some("UpgradeSafe");
    let since =
        conditions.iter().find(kind).and_then(|one| one.get("lastTransitionTime")?.as_str());
    let since = since.and_then(ferrokube_apimachinery::time::parse_rfc3339);
    since.and_then(|since| SystemTime::now().duration_since(since).ok()).unwrap_or_default()
}
