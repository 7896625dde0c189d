//! Feature descriptors: data about a feature beyond its gate, for transitions, pages, checks and
//! tests.

use crate::gate::Gate;
use std::fmt;

/// A feature as data.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Feature gate.
    pub gate: &'static Gate,
    /// One-line summary.
    pub summary: &'static str,
    /// Source document.
    pub source: &'static str,
    /// Roles that check the gate.
    pub components: &'static [&'static str],
    /// SIG of the feature: `sig-api-machinery`, ...
    pub owner: &'static str,
    /// Metrics that show whether it is used, or in trouble.
    pub metrics: &'static [&'static str],
    /// Source of the value in components.
    pub setting: FeatureSetting,
    /// Tasks on the way to off, in order.
    pub tasks: &'static [FeatureTask],
    /// Answers to the production readiness questionnaire, as far as given.
    pub answers: &'static [PrrAnswer],
    /// Source files that are mostly about it, relative to the repository: the page shows how much
    /// of them is tested.
    pub sources: &'static [&'static str],
}

impl Descriptor {
    /// Answer to a question of the questionnaire; `None`: not given.
    pub fn answer(&self, id: &str) -> Option<&'static str> {
        self.answers.iter().find(|answer| answer.id == id).map(|answer| answer.text)
    }
}

/// To one question of the production readiness questionnaire.
#[derive(Clone, Copy, Debug)]
pub struct PrrAnswer {
    /// Requirement: `P01` ...
    pub id: &'static str,
    /// Answer text.
    pub text: &'static str,
}

pub(crate) const fn answer(id: &'static str, text: &'static str) -> PrrAnswer {
    PrrAnswer { id, text }
}

/// Where components take the value of a feature from, where the Feature API is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureSetting {
    /// From their own command lines: it is read once, or needs other flags.
    Local,
    /// From the API, by the command line of the API server, without a restart, unless their own
    /// sets it. Such a feature may be made dynamic. Until the API is read it is off if it stores
    /// anything.
    Central,
}

/// Work before a feature is off. Its `Display` form is what Feature objects store, so it must not
/// change between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureTask {
    /// Remove a field from all objects of a resource.
    ClearField {
        /// API group; empty for the core group.
        group: &'static str,
        /// Plural name.
        plural: &'static str,
        /// Field.
        path: &'static [&'static str],
    },
    /// Remove annotations from all objects.
    ClearAnnotations {
        /// Annotation keys.
        keys: &'static [&'static str],
    },
    /// Delete all objects of a resource.
    DeleteCollection {
        /// API group.
        group: &'static str,
        /// Plural name.
        plural: &'static str,
    },
    /// Wait until no object of a resource has this value; users remove them.
    HoldUntilUnused {
        /// API group.
        group: &'static str,
        /// Plural name.
        plural: &'static str,
        /// Field.
        path: &'static [&'static str],
        /// Value of the field while the object uses the feature.
        value: &'static str,
    },
    /// Work of the feature's author, who gives the server a function of this name. It may run more
    /// than once.
    Function {
        /// Function name.
        name: &'static str,
    },
}

impl fmt::Display for FeatureTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClearField { group, plural, path } => {
                write!(f, "ClearField({}: {})", resource(group, plural), path.join("."))
            }
            Self::ClearAnnotations { keys } => write!(f, "ClearAnnotations({})", keys.join(", ")),
            Self::DeleteCollection { group, plural } => {
                write!(f, "DeleteCollection({})", resource(group, plural))
            }
            Self::Function { name } => write!(f, "Function({name})"),
            Self::HoldUntilUnused { group, plural, path, value } => {
                let resource = resource(group, plural);
                write!(f, "HoldUntilUnused({resource}: {}={value})", path.join("."))
            }
        }
    }
}

fn resource(group: &str, plural: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

#[cfg(test)]
mod tests {
    use crate::known::ALL;
    use std::collections::BTreeSet;

    /// Names of tasks are stored: those of another version would be unknown.
    #[test]
    fn every_task_of_a_feature_is_data() {
        let names = |name: &str| {
            let known = crate::known::find(name).unwrap();
            known.tasks.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let election = [
            "ClearField(leases.coordination.k8s.io: spec.preferredHolder)",
            "ClearField(leases.coordination.k8s.io: spec.strategy)",
            "DeleteCollection(leasecandidates.coordination.k8s.io)",
        ];
        assert_eq!(names("CoordinatedLeaderElection"), election);
        let ids = "ClearAnnotations(trace.kubernetes.io/trace-id, trace.kubernetes.io/span-id, \
                   trace.kubernetes.io/initial-trace-id)";
        assert_eq!(names("LogTracking"), [ids]);
        for known in ALL {
            let names = names(known.gate.name);
            let distinct: BTreeSet<&String> = names.iter().collect();
            assert_eq!(distinct.len(), names.len(), "{}", known.gate.name);
        }
    }
}
