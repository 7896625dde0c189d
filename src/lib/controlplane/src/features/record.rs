//! Feature objects as values: a server's knowledge of a feature, and the status that it writes.

use super::sweep::RemainingObjects;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::time::rfc3339_seconds;
use ferrokube_features::transition::{Blocker, FeatureState, FeatureUse, TransitionRecord};
use ferrokube_features::{FeatureTask, Gates, KubernetesVersion};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// A server's facts about a feature.
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
        let before = gates.version().before();
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
            stability: state.spec.stability(),
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
    /// The last stored value applies.
    #[default]
    Unknown,
    /// As last counted; `None`: none.
    Counted(Option<RemainingObjects>),
}

/// Whether reported values block a transition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum UsesBlock {
    #[default]
    No,
    Now,
    /// They are being evaluated again.
    AsStored,
}

/// Reason of the condition `Blocked` while reported values are why.
const OLD_VALUE: &str = "OldValueReported";

/// A status to be written.
pub(super) struct FeatureStatus<'a> {
    facts: &'a FeatureFacts,
    version: KubernetesVersion,
    pub(super) record: TransitionRecord,
    pub(super) blocked: Option<String>,
    pub(super) uses_block: UsesBlock,
    pub(super) dangling: Option<RemainingObjects>,
    pub(super) census: ObjectCensus,
    /// Lease of a component that has the feature on, although it is off, and does not report it.
    pub(super) late_component: Option<String>,
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
            uses_block: UsesBlock::No,
            dangling: None,
            census: ObjectCensus::Unknown,
            late_component: None,
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
        let stored = (self.uses_block == UsesBlock::AsStored)
            .then(|| self.stored(document, "Blocked"))
            .flatten()
            .filter(|(_, reason, _)| reason == OLD_VALUE);
        let blocked = match (&self.blocked, turning || self.facts.gate.is_none()) {
            (Some(why), true) if self.uses_block == UsesBlock::Now => {
                (true, OLD_VALUE.to_owned(), why.clone())
            }
            (Some(why), true) => (true, "Waiting".to_owned(), why.clone()),
            _ => stored.unwrap_or((false, "NotBlocked".to_owned(), String::new())),
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
    fn stored(&self, document: &Document, kind: &str) -> Option<ConditionFacts> {
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

    /// Components that have it on although it is off.
    fn late_use(&self) -> Option<String> {
        let reported = self.record.late_use().map(|used| Blocker::Use(used.clone()));
        let silent = || Some(Blocker::Component(self.late_component.clone()?, true));
        reported.or_else(silent).map(|blocker| blocker.to_string())
    }

    /// `None`: as stored.
    fn dangling(&self) -> Option<ConditionFacts> {
        let remain = |remaining: &RemainingObjects| {
            Some((true, "ObjectsRemain".to_owned(), remaining.to_string()))
        };
        let is_off = self.record.state == FeatureState::Off;
        let late = self.late_use().map(|why| (true, "UsesRemain".to_owned(), why));
        match (&self.dangling, &self.census) {
            (Some(remaining), _) => remain(remaining),
            (None, ObjectCensus::Counted(Some(remaining))) if is_off => remain(remaining),
            _ if late.is_some() => late,
            (None, ObjectCensus::Unknown) if is_off && !self.facts.tasks.is_empty() => None,
            _ => Some((false, "NoneKnown".to_owned(), String::new())),
        }
    }

    /// `None`: as stored.
    fn downgrade(&self) -> Option<ConditionFacts> {
        let verdict = |holds, reason: &str, why: String| Some((holds, reason.to_owned(), why));
        let gate = self.facts.gate.as_ref();
        let late = self.late_use().map(|why| (false, "InUse".to_owned(), why));
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
            (FeatureState::Off, _) if late.is_some() => late,
            (FeatureState::Off, ObjectCensus::Unknown) if !self.facts.tasks.is_empty() => None,
            (FeatureState::Off, _) => verdict(true, "Off", String::new()),
            (state, _) => verdict(false, "InTransition", format!("the feature is {state}")),
        }
    }
}

/// Whether a condition holds, its reason and its message.
type ConditionFacts = (bool, String, String);

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

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of log tracking while it is turned off.
    fn status(document: &Document, change: impl FnOnce(&mut FeatureStatus<'_>)) -> Document {
        let off = "FeatureAPI=true,LogTracking=false".parse().unwrap();
        let (gates, _) = Gates::new(KubernetesVersion::CURRENT, &off).unwrap();
        let facts = FeatureFacts::new(&gates, &BTreeSet::new(), "LogTracking", None);
        let state = FeatureState::TurningOff;
        let record = TransitionRecord { state, ..TransitionRecord::initial(true) };
        let mut status = FeatureStatus::new(&facts, record, &gates);
        change(&mut status);
        status.applied(document).unwrap_or_else(|| document.clone())
    }

    fn condition_of(document: &Document, kind: &str) -> (String, String, String) {
        let found = document.list(&["status", "conditions"]);
        let found = found.iter().find(|one| one.get("type").unwrap() == kind).unwrap();
        let text = |field: &str| found.get(field).unwrap().as_str().unwrap().to_owned();
        (text("status"), text("reason"), text("message"))
    }

    /// A component that keeps reporting the old value: each evaluation begins without uses.
    #[test]
    fn a_block_by_uses_lasts_until_an_evaluation_finds_none() {
        let is_blocked = |document: &Document| condition_of(document, "Blocked").0 == "True";
        let blocked = status(&Document::new(), |status| {
            status.blocked = Some("a component of version 1.36 has it on".to_owned());
            status.uses_block = UsesBlock::Now;
        });
        assert_eq!(condition_of(&blocked, "Blocked").1, OLD_VALUE);
        let evaluated = status(&blocked, |status| status.uses_block = UsesBlock::AsStored);
        assert_eq!(condition_of(&evaluated, "Blocked"), condition_of(&blocked, "Blocked"));
        assert!(!is_blocked(&status(&evaluated, |_| {})), "its end found none");
        // What a server blocked is over when it waits for uses.
        let by_server = status(&Document::new(), |status| status.blocked = Some("b".to_owned()));
        assert!(is_blocked(&by_server));
        let waits = status(&by_server, |status| status.uses_block = UsesBlock::AsStored);
        assert!(!is_blocked(&waits));
    }

    #[test]
    fn f10_a_late_report_of_the_old_value_is_a_dangling_use() {
        let late = status(&Document::new(), |status| {
            let version = Some(KubernetesVersion::CURRENT);
            status.record.state = FeatureState::Off;
            status.record.uses = vec![FeatureUse { version, enabled: true }];
            status.census = ObjectCensus::Counted(None);
        });
        let why = "a component of version 1.36 has it on".to_owned();
        let want = |holds: &str, reason: &str| (holds.to_owned(), reason.to_owned(), why.clone());
        assert_eq!(condition_of(&late, "DanglingReferences"), want("True", "UsesRemain"));
        assert_eq!(condition_of(&late, "DowngradeSafe"), want("False", "InUse"));
    }
}
