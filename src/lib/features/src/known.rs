//! The existing features, by name.

use crate::descriptor::Descriptor;
use crate::log_tracking::{LOG_TRACKING_DESCRIPTOR, LOG_TRACKING_INTEROP_DESCRIPTOR};

/// All features, by name.
pub static ALL: [&Descriptor; 2] = [&LOG_TRACKING_DESCRIPTOR, &LOG_TRACKING_INTEROP_DESCRIPTOR];

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
            assert!(
                descriptor.answers.is_sorted_by_key(|answer| answer.id),
                "{}",
                descriptor.gate.name
            );
            for id in ["P01", "P02", "P03", "P10"] {
                assert!(
                    descriptor.answers.iter().any(|answer| answer.id == id),
                    "{} answers {id}",
                    descriptor.gate.name
                );
            }
        }
    }

    #[test]
    fn p30_log_tracking_answers_the_whole_questionnaire() {
        let answered: Vec<_> =
            LOG_TRACKING_DESCRIPTOR.answers.iter().map(|answer| answer.id.to_owned()).collect();
        assert_eq!(answered, (1..=30).map(|number| format!("P{number:02}")).collect::<Vec<_>>());
    }

    #[test]
    fn log_tracking_is_on_by_default() {
        assert!(Gates::default().enabled(&LOG_TRACKING));
        assert!(!Gates::default().enabled(&LOG_TRACKING_INTEROP));
    }
}
