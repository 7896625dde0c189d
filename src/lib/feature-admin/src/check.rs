//! Whether an upgrade or a downgrade is safe, as far as features are concerned (F13).
//!
//! Anything unconfirmed by servers counts as unsafe.

use crate::report::FeatureReport;
use ferrokube_features::KubernetesVersion;
use ferrokube_features::transition::FeatureState;
use std::fmt;

/// A change of the cluster's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionChange {
    /// To a later version.
    Upgrade(KubernetesVersion),
    /// To an earlier version.
    Downgrade(KubernetesVersion),
}

/// A reason against a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReason {
    /// Feature; empty: the change itself.
    pub feature: String,
    /// For people.
    pub why: String,
}

/// The change is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionChangeError {
    /// An upgrade must go to a later version.
    #[error("{to} is not later than {current}, the version of the cluster")]
    NotLater {
        /// Given version.
        to: KubernetesVersion,
        /// Version of the cluster.
        current: KubernetesVersion,
    },
    /// A downgrade must go to an earlier version.
    #[error("{to} is not earlier than {current}, the version of the cluster")]
    NotEarlier {
        /// Given version.
        to: KubernetesVersion,
        /// Version of the cluster.
        current: KubernetesVersion,
    },
    /// No Feature says it.
    #[error("no feature says which version the cluster has")]
    Unknown,
}

impl fmt::Display for VersionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.verb(), self.to())
    }
}

impl VersionChange {
    /// `upgrade` or `downgrade`.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Upgrade(_) => "upgrade",
            Self::Downgrade(_) => "downgrade",
        }
    }

    /// The other version.
    pub fn to(self) -> KubernetesVersion {
        match self {
            Self::Upgrade(to) | Self::Downgrade(to) => to,
        }
    }

    fn condition(self) -> &'static str {
        match self {
            Self::Upgrade(_) => "UpgradeSafe",
            Self::Downgrade(_) => "DowngradeSafe",
        }
    }

    /// Reasons against it; none: it is safe.
    ///
    /// # Errors
    /// [`VersionChangeError`].
    pub fn check(self, features: &[FeatureReport]) -> Result<Vec<CheckReason>, VersionChangeError> {
        let current = current(features).ok_or(VersionChangeError::Unknown)?;
        let to = self.to();
        match self {
            Self::Upgrade(_) if to <= current => {
                return Err(VersionChangeError::NotLater { to, current });
            }
            Self::Downgrade(_) if to >= current => {
                return Err(VersionChangeError::NotEarlier { to, current });
            }
            _ => {}
        }
        let mut reasons = Vec::new();
        let step = current.minor.abs_diff(to.minor);
        if to.major != current.major || step > 1 {
            let why = format!("from {current}, one minor version at a time is supported");
            reasons.push(CheckReason { feature: String::new(), why });
        }
        for feature in features {
            let mut whys = self.against(feature);
            whys.dedup();
            let name = &feature.name;
            reasons.extend(whys.into_iter().map(|why| CheckReason { feature: name.clone(), why }));
        }
        Ok(reasons)
    }

    fn against(self, feature: &FeatureReport) -> Vec<String> {
        let Some(state) = feature.state else { return vec!["it has no state yet".to_owned()] };
        let mut whys = Vec::new();
        match feature.condition(self.condition()) {
            Some(condition) if condition.holds => {
                if state.is_turning() {
                    whys.push(format!("the feature is {state}"));
                }
            }
            Some(condition) => whys.push(condition.message.clone()),
            None => whys.push(format!("no API server says that the {} is safe", self.verb())),
        }
        for (kind, wrong) in [("Consistent", false), ("DanglingReferences", true)] {
            let found = feature.condition(kind).filter(|condition| condition.holds == wrong);
            whys.extend(found.map(|condition| condition.message.clone()));
        }
        whys.extend(self.at_that_version(feature, state));
        whys
    }

    /// The feature at the other version, as known to this binary.
    fn at_that_version(self, feature: &FeatureReport, state: FeatureState) -> Option<String> {
        let (known, to) = (feature.descriptor()?, self.to());
        match known.gate.at(to) {
            None if state != FeatureState::Off && !known.tasks.is_empty() => {
                Some(format!("{to} does not have it, and it is not off"))
            }
            Some(spec) if spec.locked && state != FeatureState::stable(spec.default) => {
                let value = FeatureState::stable(spec.default);
                Some(format!("{to} locks it to {value}, and it is {state}"))
            }
            _ => None,
        }
    }
}

/// The latest version in which a server has described a feature that it has.
fn current(features: &[FeatureReport]) -> Option<KubernetesVersion> {
    let known = features.iter().filter(|feature| feature.stability != "Unavailable");
    known.filter_map(|feature| feature.version.parse().ok()).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::turning;
    use serde_json::{Value, json};

    fn whys(feature: &Value, change: VersionChange) -> Vec<String> {
        let reasons = change.check(&[FeatureReport::read(feature)]).unwrap();
        reasons.into_iter().map(|reason| format!("{}: {}", reason.feature, reason.why)).collect()
    }

    fn stable(state: &str) -> Value {
        let mut feature = turning();
        feature["status"]["state"] = json!(state);
        feature["status"]["conditions"] = json!([
            {"type": "UpgradeSafe", "status": "True"},
            {"type": "DowngradeSafe", "status": "True"},
        ]);
        feature
    }

    const UP: VersionChange = VersionChange::Upgrade(KubernetesVersion::new(1, 37));
    const DOWN: VersionChange = VersionChange::Downgrade(KubernetesVersion::new(1, 35));

    #[test]
    fn f13_checks_give_reasons() {
        let both =
            ["LogTracking: the feature is TurningOff", "LogTracking: 2 objects use it: a, b"];
        assert_eq!(whys(&turning(), UP), both);
        assert!(whys(&stable("On"), UP).is_empty());
        let gone = ["LogTracking: 1.35 does not have it, and it is not off"];
        assert_eq!(whys(&stable("On"), DOWN), gone);
        assert!(whys(&stable("Off"), DOWN).is_empty());
    }

    #[test]
    fn f13_an_unconfirmed_feature_is_not_safe() {
        let mut silent = stable("Off");
        silent["status"]["conditions"] = json!([]);
        assert_eq!(whys(&silent, UP), ["LogTracking: no API server says that the upgrade is safe"]);
        // A server that says safe of a feature in transition is not believed.
        assert_eq!(whys(&stable("TurningOn"), UP), ["LogTracking: the feature is TurningOn"]);
        silent["status"]["state"] = json!("Maybe");
        assert_eq!(whys(&silent, UP), ["LogTracking: it has no state yet"]);
        let mut divided = stable("Off");
        let conditions = divided["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({"type": "Consistent", "status": "False", "message": "b differs"}));
        assert_eq!(whys(&divided, UP), ["LogTracking: b differs"]);
    }

    #[test]
    fn f10_an_off_feature_with_uses_is_not_safe() {
        let mut dangling = stable("Off");
        let conditions = dangling["status"]["conditions"].as_array_mut().unwrap();
        let message = "3 objects use it: a, b, c";
        conditions
            .push(json!({"type": "DanglingReferences", "status": "True", "message": message}));
        for change in [UP, DOWN] {
            assert_eq!(whys(&dangling, change), [format!("LogTracking: {message}")]);
        }
    }

    #[test]
    fn a_wrong_version_is_named() {
        let features = [FeatureReport::read(&stable("On"))];
        let version = |minor| KubernetesVersion::new(1, minor);
        let why = |change: VersionChange| change.check(&features).unwrap_err().to_string();
        let want = "1.36 is not later than 1.36, the version of the cluster";
        assert_eq!(why(VersionChange::Upgrade(version(36))), want);
        let want = "1.37 is not earlier than 1.36, the version of the cluster";
        assert_eq!(why(VersionChange::Downgrade(version(37))), want);
        assert_eq!(UP.check(&[]), Err(VersionChangeError::Unknown));
        let far = VersionChange::Upgrade(version(38)).check(&features).unwrap();
        assert_eq!(far[0].why, "from 1.36, one minor version at a time is supported");
    }
}
