//! The existing features, by name.

use crate::descriptor::{Descriptor, FeatureSetting};
use crate::feature_api::FEATURE_API_DESCRIPTOR;
use crate::image_pulls::MAX_PARALLEL_IMAGE_PULLS_DESCRIPTOR;
use crate::leader_election::COORDINATED_LEADER_ELECTION_DESCRIPTOR;
use crate::log_tracking::{LOG_TRACKING_DESCRIPTOR, LOG_TRACKING_INTEROP_DESCRIPTOR};
use crate::max_unavailable::MAX_UNAVAILABLE_STATEFUL_SET_DESCRIPTOR;
use crate::openapi_v3::OPENAPI_V3_DESCRIPTOR;
use crate::webhook_conversion::WEBHOOK_CONVERSION_DESCRIPTOR;

/// All features, by name.
pub static ALL: [&Descriptor; 8] = [
    &COORDINATED_LEADER_ELECTION_DESCRIPTOR,
    &WEBHOOK_CONVERSION_DESCRIPTOR,
    &FEATURE_API_DESCRIPTOR,
    &LOG_TRACKING_DESCRIPTOR,
    &LOG_TRACKING_INTEROP_DESCRIPTOR,
    &MAX_PARALLEL_IMAGE_PULLS_DESCRIPTOR,
    &MAX_UNAVAILABLE_STATEFUL_SET_DESCRIPTOR,
    &OPENAPI_V3_DESCRIPTOR,
];

/// A feature by its name.
pub fn find(name: &str) -> Option<&'static Descriptor> {
    ALL.into_iter().find(|descriptor| descriptor.gate.name == name)
}

/// Why the API cannot set a feature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DynamicFeatureError {
    /// There is no such feature.
    #[error("unknown feature gate {0:?}")]
    Unknown(String),
    /// Components read it once, or it needs other flags.
    #[error("feature {0} is set by --feature-gates of each component, and cannot be dynamic")]
    Local(&'static str),
}

/// Checks that the API can set a feature.
///
/// # Errors
/// [`DynamicFeatureError`].
pub fn check_dynamic(name: &str) -> Result<(), DynamicFeatureError> {
    let found = find(name).ok_or_else(|| DynamicFeatureError::Unknown(name.to_owned()))?;
    match found.setting {
        FeatureSetting::Central => Ok(()),
        FeatureSetting::Local => Err(DynamicFeatureError::Local(found.gate.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gates, LOG_TRACKING, LOG_TRACKING_INTEROP};

    #[test]
    fn descriptors_are_complete_and_in_order() {
        assert!(ALL.is_sorted_by_key(|descriptor| descriptor.gate.name));
        for descriptor in ALL {
            assert!(
                !descriptor.components.is_empty()
                    && !descriptor.metrics.is_empty()
                    && !descriptor.owner.is_empty(),
                "{}",
                descriptor.gate.name
            );
            assert!(
                !descriptor.gate.specs.is_empty()
                    && descriptor.gate.specs.is_sorted_by_key(|spec| spec.since),
                "{}",
                descriptor.gate.name
            );
        }
    }

    #[test]
    fn f14_every_gate_has_a_descriptor() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            for after in text.split(": Gate = Gate {\n    name: \"").skip(1) {
                let name = after.split('"').next().unwrap_or_default();
                assert!(find(name).is_some(), "{name}");
                found += 1;
            }
        }
        assert_eq!(found, ALL.len());
    }

    #[test]
    fn p01_p30_every_feature_answers_the_whole_questionnaire() {
        let all: Vec<_> = (1..=30).map(|number| format!("P{number:02}")).collect();
        for descriptor in ALL {
            let answered: Vec<_> = descriptor.answers.iter().map(|answer| answer.id).collect();
            assert_eq!(answered, all, "{}", descriptor.gate.name);
            let empty = descriptor.answers.iter().find(|answer| answer.text.len() < 3);
            assert!(empty.is_none(), "{}: {empty:?}", descriptor.gate.name);
        }
    }

    #[test]
    fn f38_a_feature_that_needs_flags_is_not_dynamic() {
        assert_eq!(check_dynamic("LogTracking"), Ok(()));
        assert_eq!(check_dynamic("FeatureAPI"), Err(DynamicFeatureError::Local("FeatureAPI")));
        assert!(check_dynamic("Nothing").is_err() && check_dynamic("").is_err());
    }

    #[test]
    fn log_tracking_is_on_by_default() {
        assert!(Gates::default().enabled(&LOG_TRACKING));
        assert!(!Gates::default().enabled(&LOG_TRACKING_INTEROP));
    }
}
