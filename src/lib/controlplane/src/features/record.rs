//! Feature objects as values: what a server knows of a feature, and the status that it writes.

use super::sweep::RemainingObjects;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::time::rfc3339_seconds;
use ferrokube_features::transition::{FeatureState, FeatureUse, TransitionRecord};
use ferrokube_features::{FeatureTask, Gates, KubernetesVersion};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// What a server knows of a feature.
pub(super) struct FeatureFacts {
    pub(super) name: String,
    /// `None`: this version does not have it.
    pub(super) gate: Option<GateFacts>,
    /// Value that the feature should have.
    pub(super) desired: bool,
    /// Whether the API sets it.
    pub(super) is_dynamic: bool,
    /// Percentage of components that turn it on first.
    pub(super) canary: u8,
    pub(super) source: &'static str,
    /// Value that this server uses; `None`: it has not asked.
    pub(super) used: Option<bool>,
    pub(super) tasks: &'static [FeatureTask],
}

pub(super) struct GateFacts {
    pub(super) name: &'static str,
    stability: &'static str,
    default: bool,
    /// Whether the version before had the feature, with all of its tasks.
    is_older: bool,
}

impl FeatureFacts {
    /// By the command line, and by the stored object if the feature is among the `dynamic` ones.
    pub(super) fn new(
        gates: &Gates,
        dynamic: &BTreeSet<String>,
        name: &str,
        stored: Option<&Document>,
    ) -> Self {
        let version = gates.version();
        let before = KubernetesVersion::new(version.major, version.minor.saturating_sub(1));
        let mut facts = Self {
            name: name.to_owned(),
            gate: None,
            desired: false,
            is_dynamic: false,
            canary: 100,
            source: "Default",
            used: None,
            tasks: &[],
        };
        let Some(state) = gates.get(name) else {
            if gates.unavailable().iter().any(|(unknown, _)| unknown == name) {
                facts.source = "CommandLine";
            }
            return facts;
        };
        facts.gate = Some(GateFacts {
            name: state.gate.name,
            stability: state.spec.stage.stability(),
            default: state.spec.default,
            is_older: state.gate.at(before).is_some(),
        });
        facts.desired = state.configured;
        facts.used = state.asked.then_some(state.enabled);
        facts.tasks = state.descriptor.map_or(&[], |descriptor| descriptor.tasks);
        if state.set {
            facts.source = "CommandLine";
        }
        facts.is_dynamic = dynamic.contains(name);
        if let Some(document) = stored.filter(|_| facts.is_dynamic) {
            facts.follow(document);
        }
        facts
    }

    fn follow(&mut self, document: &Document) {
        if let Some(desired) = document.str(&["spec", "desired"]).filter(|text| !text.is_empty()) {
            self.desired = desired == "Enabled";
            self.source = "Dynamic";
        }
        let percent = document.get(&["spec", "canaryPercent"]).and_then(Value::as_u64);
        self.canary = percent.and_then(|percent| percent.try_into().ok()).unwrap_or(100);
    }

    /// Whether it was last known too many versions ago.
    pub(super) fn is_forgotten(
        &self,
        document: &Document,
        version: KubernetesVersion,
        minors: u16,
    ) -> bool {
        let last = document.str(&["status", "version"]).unwrap_or_default().parse();
        self.gate.is_none()
            && self.source != "CommandLine"
            && last.is_ok_and(|last: KubernetesVersion| {
                last.minor.saturating_add(minors) < version.minor
            })
    }
}

/// Whether an object may have the name.
pub(super) fn is_name(name: &str) -> bool {
    name.len() <= 253
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic())
}

/// Whether a value of a version is among the uses.
pub(super) fn has_use(document: &Document, version: KubernetesVersion, enabled: bool) -> bool {
    uses(document).contains(&FeatureUse { version: Some(version), enabled })
}

fn uses(document: &Document) -> Vec<FeatureUse> {
    let read = |one: &Value| FeatureUse {
        version: one.get("version").and_then(Value::as_str).and_then(|text| text.parse().ok()),
        enabled: one.get("enabled").and_then(Value::as_bool).unwrap_or(false),
    };
    document.list(&["status", "uses"]).iter().map(read).collect()
}

/// Number of the transition that an object is in, or ended last.
pub(super) fn number(document: &Document) -> u64 {
    document.get(&["status", "transition"]).and_then(Value::as_u64).unwrap_or(0)
}

/// State of an object; `None` if it has none yet.
pub(super) fn state(document: &Document) -> Option<FeatureState> {
    document.str(&["status", "state"]).unwrap_or_default().parse().ok()
}

/// The record in an object. Nothing is known of a feature without a state: it begins with the
/// transition to its value.
pub(super) fn read(document: &Document, facts: &FeatureFacts) -> TransitionRecord {
    let text = |field: &str| document.str(&["status", field]).unwrap_or_default();
    let initial = TransitionRecord::initial(facts.gate.is_some() && !facts.desired);
    let Some(state) = state(document) else {
        return TransitionRecord { uses: uses(document), ..initial };
    };
    let tasks = document.list(&["status", "transitionTasks"]);
    TransitionRecord {
        state,
        number: number(document),
        tasks: tasks.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        uses: uses(document),
        evaluating: !text("useEvaluationTime").is_empty(),
    }
}

/// Objects that use a feature at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ObjectCensus {
    /// What was last stored holds.
    #[default]
    Unknown,
    /// As last counted; `None`: none.
    Counted(Option<RemainingObjects>),
}

/// A status to be written.
pub(super) struct FeatureStatus<'a> {
    facts: &'a FeatureFacts,
    version: KubernetesVersion,
    pub(super) record: TransitionRecord,
    pub(super) blocked: Option<String>,
    pub(super) dangling: Option<RemainingObjects>,
    pub(super) census: ObjectCensus,
    /// A server that is configured with another value.
    pub(super) disagreeing: Option<String>,
    /// Task, objects done, objects found.
    pub(super) progress: Option<(String, (u64, u64))>,
    /// Until the end of an evaluation that begins.
    pub(super) evaluation_ends: Option<Duration>,
}

impl<'a> FeatureStatus<'a> {
    pub(super) fn new(facts: &'a FeatureFacts, record: TransitionRecord, gates: &Gates) -> Self {
        Self {
            facts,
            version: gates.version(),
            record,
            blocked: None,
            dangling: None,
            census: ObjectCensus::Unknown,
            disagreeing: None,
            progress: None,
            evaluation_ends: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.facts.name
    }

    /// The object with this status; `None` if it has it already.
    pub(super) fn applied(&self, document: &Document) -> Option<Document> {
        let now = SystemTime::now();
        let mut next = document.clone();
        let mut set = |field: &str, value: Option<Value>| match value {
            Some(value) => next.set(&["status", field], value),
            None => drop(next.remove(&["status", field])),
        };
        let value = |enabled: bool| Value::from(if enabled { "Enabled" } else { "Disabled" });
        let facts = self.facts;
        let text = |text: &str| Some(Value::from(text));
        set("class", text(document.namespace()));
        set("name", text(&facts.name));
        set("source", text(facts.source));
        set("stability", text(facts.gate.as_ref().map_or("Unavailable", |gate| gate.stability)));
        if let Some(gate) = &facts.gate {
            set("version", Some(Value::from(self.version.to_string())));
            set("default", Some(value(gate.default)));
        } else if document.str(&["status", "version"]).is_none() {
            set("version", Some(Value::from(self.version.to_string())));
        }
        set("configured", Some(value(facts.desired)));
        set("dynamic", facts.is_dynamic.then_some(Value::from(true)));
        let record = &self.record;
        set("state", text(record.state.as_str()));
        set("transition", (record.number > 0).then(|| Value::from(record.number)));
        let tasks: Vec<Value> = record.tasks.iter().map(|task| Value::from(&**task)).collect();
        set("transitionTasks", (!tasks.is_empty()).then(|| Value::from(tasks)));
        let progress = self.progress.as_ref().map(
            |(task, (done, total))| json!({"task": task.as_str(), "done": *done, "total": *total}),
        );
        set("progress", progress);
        if record.uses.is_empty() {
            set("uses", None);
        }
        if !record.evaluating {
            set("useEvaluationTime", None);
        } else if let Some(duration) = self.evaluation_ends {
            set("useEvaluationTime", Some(Value::from(rfc3339_seconds(now + duration))));
        }
        set("conditions", Some(Value::from(self.conditions(document, now))));
        (next != *document).then_some(next)
    }

    fn conditions(&self, document: &Document, now: SystemTime) -> Vec<Value> {
        let record = &self.record;
        let turning = record.state.is_turning();
        let blocked = match (&self.blocked, turning || self.facts.gate.is_none()) {
            (Some(why), true) => (true, "Waiting".to_owned(), why.clone()),
            _ => (false, "NotBlocked".to_owned(), String::new()),
        };
        let upgrade = match turning {
            true => (false, "InTransition".to_owned(), format!("the feature is {}", record.state)),
            false => (true, "Stable".to_owned(), String::new()),
        };
        let consistent = match &self.disagreeing {
            None => (true, "Agreed".to_owned(), String::new()),
            Some(server) => {
                let why = format!("API server {server} is configured with another value");
                (false, "Disagreement".to_owned(), why)
            }
        };
        [
            ("Blocked", Some(blocked)),
            ("Consistent", Some(consistent)),
            ("DanglingReferences", self.dangling()),
            ("DowngradeSafe", self.downgrade()),
            ("UpgradeSafe", Some(upgrade)),
        ]
        .into_iter()
        .map(|(kind, new)| match new.or_else(|| self.stored(document, kind)) {
            Some((holds, reason, message)) => {
                condition(document, kind, &NewCondition { holds, reason, message }, now)
            }
            None => {
                let (reason, message) = ("NotCounted".to_owned(), String::new());
                let holds = kind == "DowngradeSafe" && self.record.state == FeatureState::Off;
                condition(document, kind, &NewCondition { holds, reason, message }, now)
            }
        })
        .collect()
    }

    /// A condition as stored, unless the state changes.
    fn stored(&self, document: &Document, kind: &str) -> Option<Verdict> {
        let text = |one: &Value, field: &str| {
            one.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        if state(document) != Some(self.record.state) {
            return None;
        }
        let old = document.list(&["status", "conditions"]);
        let old = old.iter().find(|one| text(one, "type") == kind)?;
        Some((text(old, "status") == "True", text(old, "reason"), text(old, "message")))
    }

    /// `None`: as stored.
    fn dangling(&self) -> Option<Verdict> {
        let remain = |remaining: &RemainingObjects| {
            Some((true, "ObjectsRemain".to_owned(), remaining.to_string()))
        };
        let is_off = self.record.state == FeatureState::Off;
        match (&self.dangling, &self.census) {
            (Some(remaining), _) => remain(remaining),
            (None, ObjectCensus::Counted(Some(remaining))) if is_off => remain(remaining),
            (None, ObjectCensus::Unknown) if is_off && !self.facts.tasks.is_empty() => None,
            _ => Some((false, "NoneKnown".to_owned(), String::new())),
        }
    }

    /// `None`: as stored.
    fn downgrade(&self) -> Option<Verdict> {
        let verdict = |holds, reason: &str, why: String| Some((holds, reason.to_owned(), why));
        let gate = self.facts.gate.as_ref();
        let is_compatible = gate.is_some_and(|gate| gate.is_older) || self.facts.tasks.is_empty();
        match (self.record.state, &self.census) {
            (FeatureState::On, _) if gate.is_none() => {
                let why = "this version does not know what it stored";
                verdict(false, "Unknown", why.to_owned())
            }
            (FeatureState::On, _) if is_compatible => verdict(true, "Compatible", String::new()),
            (FeatureState::On, ObjectCensus::Counted(Some(objects))) => {
                let why = "the version before does not have the feature; turn it off first";
                verdict(false, "InUse", format!("{objects}; {why}"))
            }
            (FeatureState::On, _) => {
                let why = "stored objects use it, and the version before does not have it; turn it off first";
                verdict(false, "InUse", why.to_owned())
            }
            (FeatureState::Off, ObjectCensus::Counted(Some(objects))) => {
                verdict(false, "ObjectsRemain", objects.to_string())
            }
            (FeatureState::Off, ObjectCensus::Unknown) if !self.facts.tasks.is_empty() => None,
            (FeatureState::Off, _) => verdict(true, "Off", String::new()),
            (state, _) => verdict(false, "InTransition", format!("the feature is {state}")),
        }
    }
}

/// Whether a condition holds, its reason and its message.
type Verdict = (bool, String, String);

struct NewCondition {
    holds: bool,
    reason: String,
    message: String,
}

/// With the time of the last change of its status.
fn condition(document: &Document, kind: &str, new: &NewCondition, now: SystemTime) -> Value {
    let status = if new.holds { "True" } else { "False" };
    let text = |condition: &Value, field: &str| {
        condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let old = document.list(&["status", "conditions"]);
    let same = old.iter().find(|one| text(one, "type") == kind && text(one, "status") == status);
    let since = same.map_or_else(|| rfc3339_seconds(now), |one| text(one, "lastTransitionTime"));
    json!({
        "type": kind,
        "status": status,
        "lastTransitionTime": since,
        "reason": new.reason.as_str(),
        "message": new.message.as_str(),
    })
}
