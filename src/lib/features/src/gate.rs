//! Feature gates and their history.

use crate::version::{GateVersions, KubernetesVersion};

/// Maturity of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Off by default; may be removed.
    Alpha,
    /// Feature complete.
    Beta,
    /// Stable; the gate will be removed.
    Ga,
    /// Will be removed.
    Deprecated,
}

impl Stage {
    /// As in metrics and in Kubernetes; empty for GA.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// Properties of a gate from one version on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateSpec {
    /// First version with these properties.
    pub since: KubernetesVersion,
    /// Maturity.
    pub stage: Stage,
    /// Value unless set.
    pub default: bool,
    /// Whether the default is the only value.
    pub locked: bool,
    /// Holds only if no component is older than this (`--min-compatibility-version`); else the
    /// properties before it do. `None`: holds anyway.
    pub min_compatibility: Option<KubernetesVersion>,
}

impl GateSpec {
    /// As in Feature objects: what can no longer be turned off is `Universal`.
    pub fn stability(&self) -> &'static str {
        match self.stage {
            Stage::Alpha => "Alpha",
            Stage::Beta => "Beta",
            Stage::Ga if self.locked && self.default => "Universal",
            Stage::Ga => "GA",
            Stage::Deprecated => "Deprecated",
        }
    }
}

/// A gate: a name and its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Unique, in upper camel case.
    pub name: &'static str,
    /// By ascending version, at least one.
    pub specs: &'static [GateSpec],
    /// Gates that must be on where this one is.
    pub dependencies: &'static [&'static Gate],
}

impl Gate {
    /// Properties at a version; `None` before the first.
    pub fn at(&self, versions: impl Into<GateVersions>) -> Option<&'static GateSpec> {
        let GateVersions { emulated, compatible } = versions.into();
        self.specs.iter().rev().find(|spec| {
            spec.since <= emulated && spec.min_compatibility.is_none_or(|least| least <= compatible)
        })
    }
}
