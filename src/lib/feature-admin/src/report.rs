//! A Feature object as values: state, users, and blockers of a transition with how to unblock it.
//!
//! Texts are made safe for terminals here, once: components that report a use, and servers that
//! refuse a write, choose some of them.

use ferrokube_features::transition::{FeatureState, WAIT_FOR_USES};
use ferrokube_features::{Descriptor, known};
use serde_json::Value;

/// Namespace of the features of Kubernetes.
pub const KUBERNETES: &str = "kube-system";
/// Longest text that is shown, in characters.
const MAX_TEXT: usize = 2048;

/// A parsed Feature object. Missing fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureReport {
    /// Name of the gate.
    pub name: String,
    /// Namespace: the owner of the feature.
    pub namespace: String,
    /// `None` before the server has written one.
    pub state: Option<FeatureState>,
    /// `spec.desired`.
    pub desired: String,
    /// Value in the leading API server.
    pub configured: String,
    /// Value unless set.
    pub default: String,
    /// Source of the configured value.
    pub source: String,
    /// Stability at this version.
    pub stability: String,
    /// Version of the leading API server.
    pub version: String,
    /// Whether `spec.desired` sets it.
    pub dynamic: bool,
    /// Values that components have reported.
    pub uses: Vec<ReportedUse>,
    /// Remaining tasks of the transition, in order.
    pub tasks: Vec<String>,
    /// Objects done and found by the first task.
    pub progress: Option<(u64, u64)>,
    /// When the evaluation of uses ends; RFC 3339.
    pub evaluation_ends: String,
    /// As in `status.conditions`, in its order.
    pub conditions: Vec<ReportedCondition>,
}

/// A value that components of a version have reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedUse {
    /// Version of the components.
    pub version: String,
    /// Their value.
    pub enabled: bool,
    /// The first of them.
    pub reporter: String,
    /// When it reported.
    pub since: String,
}

/// An entry of `status.conditions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedCondition {
    /// Type.
    pub kind: String,
    /// Whether it holds.
    pub holds: bool,
    /// Reason, in upper camel case.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When it last changed.
    pub since: String,
}

/// Something that holds a transition, or makes the cluster inconsistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hindrance {
    /// The problem.
    pub why: String,
    /// A command or change that unblocks the transition.
    pub remedy: String,
}

impl ReportedUse {
    /// `on` or `off`.
    pub fn value(&self) -> &'static str {
        if self.enabled { "on" } else { "off" }
    }

    /// `1.36=on`.
    pub fn shown(&self) -> String {
        format!("{}={}", self.version, self.value())
    }
}

/// Without characters that terminals or readers interpret, and not too long.
pub fn safe(text: &str) -> String {
    let hidden = |character: &char| {
        character.is_control()
            || ('\u{200b}'..='\u{200f}').contains(character)
            || ('\u{202a}'..='\u{202e}').contains(character)
            || ('\u{2066}'..='\u{2069}').contains(character)
    };
    let mut shown = String::with_capacity(text.len().min(MAX_TEXT));
    for character in text.chars().take(MAX_TEXT) {
        if hidden(&character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    if text.chars().nth(MAX_TEXT).is_some() {
        shown.push_str("...");
    }
    shown
}

fn text(value: &Value) -> String {
    safe(value.as_str().unwrap_or_default())
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

impl FeatureReport {
    /// From the JSON of a Feature; missing fields are empty.
    pub fn read(object: &Value) -> Self {
        let status = &object["status"];
        let number = |name: &str| status["progress"][name].as_u64();
        let used = |one: &Value| ReportedUse {
            version: text(&one["version"]),
            enabled: one["enabled"] == true,
            reporter: text(&one["reporter"]),
            since: text(&one["reportTime"]),
        };
        let condition = |one: &Value| ReportedCondition {
            kind: text(&one["type"]),
            holds: one["status"] == "True",
            reason: text(&one["reason"]),
            message: text(&one["message"]),
            since: text(&one["lastTransitionTime"]),
        };
        Self {
            name: text(&object["metadata"]["name"]),
            namespace: text(&object["metadata"]["namespace"]),
            state: status["state"].as_str().and_then(|state| state.parse().ok()),
            desired: text(&object["spec"]["desired"]),
            configured: text(&status["configured"]),
            default: text(&status["default"]),
            source: text(&status["source"]),
            stability: text(&status["stability"]),
            version: text(&status["version"]),
            dynamic: status["dynamic"] == true,
            uses: items(&status["uses"]).iter().map(used).collect(),
            tasks: items(&status["transitionTasks"]).iter().map(text).collect(),
            progress: number("done").zip(number("total")),
            evaluation_ends: text(&status["useEvaluationTime"]),
            conditions: items(&status["conditions"]).iter().map(condition).collect(),
        }
    }

    /// As displayed; empty if no server has observed the feature.
    pub fn state_text(&self) -> &'static str {
        self.state.map_or("Unknown", FeatureState::as_str)
    }

    /// Whether it is between on and off.
    pub fn is_turning(&self) -> bool {
        self.state.is_some_and(FeatureState::is_turning)
    }

    /// The descriptor in this binary.
    pub fn descriptor(&self) -> Option<&'static Descriptor> {
        let known = known::ALL.iter().copied().find(|known| known.gate.name == self.name);
        known.filter(|_| self.namespace == KUBERNETES)
    }

    /// By its type.
    pub fn condition(&self, kind: &str) -> Option<&ReportedCondition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Whether `spec.desired` sets it: features of other components are set by them.
    pub fn is_settable(&self) -> bool {
        self.dynamic || self.namespace != KUBERNETES
    }

    /// `--feature-gates=LogTracking=false of apiserver, controller-manager`
    pub fn flag(&self, enabled: bool) -> String {
        let components = self.descriptor().map_or_else(
            || "the components that use it".to_owned(),
            |known| known.components.join(", "),
        );
        format!("--feature-gates={}={enabled} of {components}", self.name)
    }

    fn wanted_flag(&self) -> String {
        self.flag(self.configured == "Enabled")
    }

    /// The condition that the first task waits for, if it is not blocked.
    pub fn waiting(&self) -> Option<String> {
        let task = self.tasks.first()?;
        Some(match task.as_str() {
            WAIT_FOR_USES if self.evaluation_ends.is_empty() => {
                "the evaluation of uses begins".to_owned()
            }
            WAIT_FOR_USES => {
                format!("components have until {} to report the old value", self.evaluation_ends)
            }
            task => format!("{task} runs"),
        })
    }

    /// Blockers and problems of the transition, each with a remedy.
    pub fn hindrances(&self) -> Vec<Hindrance> {
        let mut found: Vec<Hindrance> = Vec::new();
        for (kind, wrong) in
            [("Blocked", true), ("Consistent", false), ("DanglingReferences", true)]
        {
            let Some(condition) = self.condition(kind).filter(|one| one.holds == wrong) else {
                continue;
            };
            if !found.iter().any(|known| known.why == condition.message) {
                let remedy = self.remedy(condition);
                found.push(Hindrance { why: condition.message.clone(), remedy });
            }
        }
        found
    }

    /// The remedy, by the condition's message, which is the same in every version of the server.
    fn remedy(&self, condition: &ReportedCondition) -> String {
        let why = &condition.message;
        let flag = self.wanted_flag();
        if why.contains("configured with another value") {
            format!(
                "Restart that API server with {flag}. If it is gone, it stops to count after 30 s."
            )
        } else if why.contains("has not observed") {
            "Nothing has to be done: it continues when that API server has seen the transition, or 30 s after it is gone.".to_owned()
        } else if why.contains("does not say how it is configured") {
            "Start that API server with --feature-gates=FeatureAPI=true, as the others; if it is gone, it stops to count after 30 s.".to_owned()
        } else if why.contains("% of the components") {
            let name = &self.name;
            format!(
                "A canary: when those components do well, set spec.canaryPercent of Feature {name} to 100; to go back, feature-admin disable {name}."
            )
        } else if why.contains("does not have the feature") {
            "An older API server leads: upgrade it, or turn the feature off with the newer version first.".to_owned()
        } else if why.contains("that renews Lease") {
            format!(
                "Restart that component with {flag}. If it takes the value from the API, its reports do not arrive: it needs the role system:feature-reporter."
            )
        } else if why.starts_with("a component of") {
            format!(
                "Restart the components of that version with {flag}; `feature-admin uses {}` shows the first that reported it.",
                self.name
            )
        } else if why.contains("no room for others") {
            format!(
                "Find out who reports values of versions that do not exist: `feature-admin uses {}`.",
                self.name
            )
        } else if why.contains("cannot be written") {
            "Remove what refuses the write (a webhook, a policy, validation), or change or delete these objects; the task is tried again every 5 s.".to_owned()
        } else if why.contains("wait for their finalizers") {
            "Run what removes the finalizers, or remove them; the task continues by itself."
                .to_owned()
        } else if self.is_turning() && (why.contains(" use it") || why.contains(" uses it")) {
            "Change or delete these objects; the task continues by itself.".to_owned()
        } else if why.contains(" use it") || why.contains(" uses it") {
            "Change or delete these objects, or turn the feature on and off again, which clears them.".to_owned()
        } else if why.contains("is unknown to version") {
            "A newer API server stored this task: start that version again, which can finish it."
                .to_owned()
        } else {
            "Nothing has to be done: it continues by itself.".to_owned()
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A feature in transition, with everything.
    pub(crate) fn turning() -> Value {
        json!({
            "metadata": {"name": "LogTracking", "namespace": "kube-system"},
            "status": {
                "state": "TurningOff",
                "configured": "Disabled",
                "default": "Enabled",
                "source": "CommandLine",
                "stability": "Beta",
                "version": "1.36",
                "transitionTasks": ["ClearAnnotations(a)", "WaitForUses"],
                "progress": {"task": "ClearAnnotations(a)", "done": 5, "total": 10},
                "uses": [{"version": "1.36", "enabled": true, "reporter": "eve"}],
                "conditions": [
                    {"type": "Blocked", "status": "True", "message": "2 objects use it: a, b"},
                    {"type": "Consistent", "status": "True"},
                    {"type": "DanglingReferences", "status": "True", "message": "2 objects use it: a, b"},
                    {"type": "DowngradeSafe", "status": "False", "message": "the feature is TurningOff"},
                    {"type": "UpgradeSafe", "status": "False", "message": "the feature is TurningOff"},
                ],
            },
        })
    }

    #[test]
    fn each_hindrance_comes_with_its_remedy() {
        let cases = [
            (
                "API server b is configured with another value",
                "--feature-gates=LogTracking=false of",
            ),
            ("API server b has not observed the transition", "Nothing has to be done"),
            ("API server b does not say how it is configured", "--feature-gates=FeatureAPI=true"),
            ("20% of the components have it on first", "canaryPercent"),
            ("version 1.35 does not have the feature", "upgrade it"),
            ("a component of version 1.36 has it on", "Restart the components of that version"),
            ("the component that renews Lease kube-node-lease/a has it on", "feature-reporter"),
            ("there are 32 reported values, and no room for others", "feature-admin uses"),
            ("2 objects use it: a, b", "Change or delete these objects"),
            ("1 objects use it: a; the first cannot be written: denied", "Remove what refuses"),
            (
                "1 object uses it: a; they are being deleted, and wait for their finalizers",
                "finalizers",
            ),
            ("task \"Zap\" is unknown to version 1.35", "start that version again"),
        ];
        for (why, remedy) in cases {
            let mut feature = turning();
            feature["status"]["conditions"] =
                json!([{"type": "Blocked", "status": "True", "message": why}]);
            let found = FeatureReport::read(&feature).hindrances();
            assert_eq!((found.len(), found[0].why.as_str()), (1, why));
            assert!(found[0].remedy.contains(remedy), "{why}: {}", found[0].remedy);
        }
        assert_eq!(FeatureReport::read(&turning()).hindrances().len(), 1, "named once");
    }

    #[test]
    fn foreign_texts_do_not_reach_the_terminal() {
        let mut feature = turning();
        feature["status"]["uses"][0]["reporter"] = json!("eve\u{1b}[2J\u{202e}\n");
        let report = FeatureReport::read(&feature);
        assert_eq!(report.uses[0].reporter, "eve\\u{1b}[2J\\u{202e}\\u{a}");
        let long = safe(&"x".repeat(5000));
        assert_eq!(long.len(), MAX_TEXT + 3);
    }

    #[test]
    fn missing_or_mistyped_fields_are_empty() {
        for object in [json!({}), json!(null), json!({"status": {"uses": 5, "state": "Gone"}})] {
            let report = FeatureReport::read(&object);
            assert_eq!((report.state, report.uses.len()), (None, 0));
            assert_eq!(report.state_text(), "Unknown");
        }
    }
}
