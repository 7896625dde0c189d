//! Kubernetes minor versions.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A Kubernetes minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KubernetesVersion {
    /// Major version.
    pub major: u16,
    /// Minor version.
    pub minor: u16,
}

impl KubernetesVersion {
    /// The version that this code implements.
    pub const CURRENT: Self = Self::new(1, 36);
    /// The oldest version that [`EmulatedVersion`] accepts: kube-apiserver's rule of three minors.
    pub const OLDEST_EMULATED: Self = Self::new(1, 33);

    /// `major.minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// The minor version before; the first one has none.
    #[must_use]
    pub const fn before(self) -> Self {
        Self::new(self.major, self.minor.saturating_sub(1))
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The versions that decide on the values of gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateVersions {
    /// The version whose gates apply.
    pub emulated: KubernetesVersion,
    /// The oldest version with which the component must work together.
    pub compatible: KubernetesVersion,
}

impl From<KubernetesVersion> for GateVersions {
    /// Compatible with the minor version before.
    fn from(emulated: KubernetesVersion) -> Self {
        Self { emulated, compatible: emulated.before() }
    }
}

/// Not of the form `major.minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a version of the form 1.36")]
pub struct KubernetesVersionError;

impl FromStr for KubernetesVersion {
    type Err = KubernetesVersionError;

    fn from_str(text: &str) -> Result<Self, KubernetesVersionError> {
        let (major, minor) = text.split_once('.').ok_or(KubernetesVersionError)?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = |text: &str| {
            if !is_number(text) {
                return Err(KubernetesVersionError);
            }
            text.parse().map_err(|_| KubernetesVersionError)
        };
        Ok(Self::new(number(major)?, number(minor)?))
    }
}

/// Argument of `--emulated-version` and `--min-compatibility-version`: `1.35`, or `kube=1.35` as
/// kube-apiserver writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmulatedVersion(KubernetesVersion);

/// Why a version cannot be emulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmulatedVersionError {
    /// Not a version.
    #[error(transparent)]
    Version(#[from] KubernetesVersionError),
    /// Another component than `kube`.
    #[error("component {0:?} is not registered; the only one is kube")]
    Component(String),
    /// Too old, or newer than the binary.
    #[error(
        "emulation version {version} is not between [{oldest}, {newest}]",
        oldest = RANGE.start(),
        newest = RANGE.end()
    )]
    Range {
        /// Given version.
        version: KubernetesVersion,
    },
    /// Too old, or newer than the emulated version.
    #[error(
        "minCompatibilityVersion version {version} is not between [{oldest}, {emulated}]",
        oldest = RANGE.start()
    )]
    Compatibility {
        /// Given version.
        version: KubernetesVersion,
        /// The version whose gates apply.
        emulated: KubernetesVersion,
    },
}

const RANGE: RangeInclusive<KubernetesVersion> =
    KubernetesVersion::OLDEST_EMULATED..=KubernetesVersion::CURRENT;

impl EmulatedVersion {
    /// The version whose gates apply.
    pub fn get(self) -> KubernetesVersion {
        self.0
    }
}

impl GateVersions {
    /// From the flags of a component.
    ///
    /// # Errors
    /// [`EmulatedVersionError::Compatibility`].
    pub fn of_flags(
        emulated: Option<EmulatedVersion>,
        compatible: Option<EmulatedVersion>,
    ) -> Result<Self, EmulatedVersionError> {
        let emulated = emulated.map_or(KubernetesVersion::CURRENT, EmulatedVersion::get);
        let Some(EmulatedVersion(compatible)) = compatible else { return Ok(emulated.into()) };
        if compatible > emulated {
            return Err(EmulatedVersionError::Compatibility { version: compatible, emulated });
        }
        Ok(Self { emulated, compatible })
    }
}

impl FromStr for EmulatedVersion {
    type Err = EmulatedVersionError;

    fn from_str(text: &str) -> Result<Self, EmulatedVersionError> {
        let (component, version) = text.split_once('=').unwrap_or(("kube", text));
        if component != "kube" {
            return Err(EmulatedVersionError::Component(component.to_owned()));
        }
        let version = version.parse()?;
        if RANGE.contains(&version) {
            Ok(Self(version))
        } else {
            Err(EmulatedVersionError::Range { version })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_version_is_at_most_three_minors_old() {
        let parse = |text: &str| text.parse::<EmulatedVersion>().map(EmulatedVersion::get);
        for text in ["1.36", "kube=1.36", "1.33"] {
            assert!(parse(text).is_ok(), "{text}");
        }
        let why = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(why("1.32"), "emulation version 1.32 is not between [1.33, 1.36]");
        assert_eq!(why("1.37"), "emulation version 1.37 is not between [1.33, 1.36]");
        assert_eq!(why("etcd=1.36"), "component \"etcd\" is not registered; the only one is kube");
        for text in ["", "1", "1.+3", "v1.36", "1.36.0", "1."] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_component_is_compatible_with_the_version_before_unless_told() {
        let of = |emulated: Option<&str>, compatible: Option<&str>| {
            let parse = |text: &str| text.parse::<EmulatedVersion>().unwrap();
            GateVersions::of_flags(emulated.map(parse), compatible.map(parse))
        };
        let version = |minor| KubernetesVersion::new(1, minor);
        let versions = |emulated, compatible| {
            Ok(GateVersions { emulated: version(emulated), compatible: version(compatible) })
        };
        assert_eq!(of(None, None), versions(36, 35));
        assert_eq!(of(Some("1.35"), None), versions(35, 34));
        assert_eq!(of(None, Some("kube=1.36")), versions(36, 36));
        assert_eq!(
            of(Some("1.34"), Some("1.35")).unwrap_err().to_string(),
            "minCompatibilityVersion version 1.35 is not between [1.33, 1.34]"
        );
    }
}
