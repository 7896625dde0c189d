//! LeaseCandidate: a candidate in coordinated leader election. Served on request only, like beta
//! versions of kube-apiserver.

use crate::cells;
use crate::checks::all_invalid;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::name;
use ferrokube_resource::native::{KindBody, NativeColumn};
use ferrokube_resource::{Change, FinalizerDomain, Hooks, Policy};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::SystemTime;

/// The only strategy without a prefix.
const OLDEST: &str = "OldestEmulationVersion";

pub(crate) fn body() -> KindBody {
    KindBody {
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text("LeaseName", "The lease that it could hold."),
                NativeColumn::text("BinaryVersion", "The version of its program."),
                NativeColumn::text(
                    "EmulationVersion",
                    "The version that its program behaves like.",
                ),
                NativeColumn::AGE,
            ]
        },
        storage: Some("leasecandidates"),
        policy: Policy {
            finalizer_domain: FinalizerDomain::Optional,
            create_on_update: true,
            unconditional_update: false,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(LeaseCandidate),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct LeaseCandidate;

impl Hooks for LeaseCandidate {
    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        Some(name::config_key(name))
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let field = |name: &str| object.str(&["spec", name]).unwrap_or_default();
        let mut errors = Vec::new();
        for name in ["leaseName", "binaryVersion", "strategy"] {
            if field(name).is_empty() {
                errors.push(FieldError::required(format!("spec.{name}"), ""));
            }
        }
        if change.old.is_some_and(|old| {
            old.str(&["spec", "leaseName"]).unwrap_or_default() != field("leaseName")
        }) {
            errors.push(FieldError::invalid(
                "spec.leaseName",
                field("leaseName"),
                "field is immutable",
            ));
        }
        errors.extend(versions(field("binaryVersion"), field("emulationVersion")));
        if field("strategy") == OLDEST
            && Version::parse(field("emulationVersion"))
                .is_none_or(|version| version == Version::default())
        {
            errors.push(FieldError::required(
                "spec.emulationVersion",
                "must be specified when `strategy` is 'OldestEmulationVersion'",
            ));
        }
        errors.extend(strategy(field("strategy")));
        errors
    }

    fn cells(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let field = |name: &str| Value::from(object.str(&["spec", name]).unwrap_or_default());
        vec![
            Value::from(object.name()),
            field("leaseName"),
            field("binaryVersion"),
            field("emulationVersion"),
            Value::from(cells::age(object, now)),
        ]
    }
}

fn versions(binary: &str, emulated: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut read = |field: &str, text: &str| {
        let version = Version::parse(text);
        if !text.is_empty() && version.is_none() {
            errors.push(FieldError::invalid(
                format!("spec.{field}"),
                text,
                "must be a valid semantic version",
            ));
        }
        version.unwrap_or_default()
    };
    let (emulated_version, binary_version) =
        (read("emulationVersion", emulated), read("binaryVersion", binary));
    if !binary.is_empty() && !emulated.is_empty() && binary_version < emulated_version {
        errors.push(FieldError::invalid(
            "spec.binaryVersion",
            binary,
            "must be greater than or equal to `emulationVersion`",
        ));
    }
    errors
}

/// kube-apiserver repeats the name of the field.
fn strategy(strategy: &str) -> Vec<FieldError> {
    const FIELD: &str = "spec.strategy.strategy";
    match strategy {
        "" | OLDEST => Vec::new(),
        other if other.contains('/') => {
            all_invalid(FIELD, other, name::qualified_name(other)).collect()
        }
        other => vec![FieldError::not_supported(FIELD, Word(other), [OLDEST])],
    }
}

/// A semantic version, without build metadata.
#[derive(Debug, Default, PartialEq, Eq)]
struct Version {
    numbers: [u64; 3],
    /// Identifiers of a pre-release; empty for a release, which is later than its pre-releases.
    pre: Vec<String>,
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let (rest, build) =
            text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
        let (numbers, pre) =
            rest.split_once('-').map_or((rest, None), |(numbers, pre)| (numbers, Some(pre)));
        let number = |text: &str| {
            if text.len() > 1 && text.starts_with('0') || !is_number(text) {
                None
            } else {
                text.parse().ok()
            }
        };
        let numbers: Vec<u64> = numbers.split('.').map(number).collect::<Option<_>>()?;
        let is_identifier = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if !build.into_iter().flat_map(|build| build.split('.')).all(is_identifier) {
            return None;
        }
        let pre: Vec<String> =
            pre.into_iter().flat_map(|pre| pre.split('.')).map(str::to_owned).collect();
        let is_pre =
            |text: &String| is_identifier(text) && (!is_number(text) || number(text).is_some());
        pre.iter().all(is_pre).then_some(())?;
        Some(Self { numbers: numbers.try_into().ok()?, pre })
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let identifier =
            |one: &String, other: &String| match (one.parse::<u64>(), other.parse::<u64>()) {
                (Ok(one), Ok(other)) => one.cmp(&other),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => one.cmp(other),
            };
        let pre = || match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => {
                let different = self
                    .pre
                    .iter()
                    .zip(&other.pre)
                    .map(|(one, other)| identifier(one, other))
                    .find(|order| order.is_ne());
                different.unwrap_or_else(|| self.pre.len().cmp(&other.pre.len()))
            }
        };
        self.numbers.cmp(&other.numbers).then_with(pre)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        for text in [
            "",
            "1",
            "1.2",
            "01.2.3",
            "1.2.3-",
            "1.2.3-01",
            "1.2.3+",
            "v1.2.3",
            "1.2.3.4",
            "1.2.-3",
            "1.2.3-a_b",
        ] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        let order = [
            "0.0.0",
            "1.2.3-alpha",
            "1.2.3-alpha.1",
            "1.2.3-alpha.beta",
            "1.2.3-beta.2",
            "1.2.3-beta.11",
            "1.2.3",
            "1.10.0",
        ];
        assert!(
            order
                .map(|text| Version::parse(text).expect("valid"))
                .is_sorted_by(|one, other| one < other)
        );
        assert_eq!(Version::parse("1.2.3+a"), Version::parse("1.2.3+b.1"));
    }
}
