//! Feature gates and their history.

use crate::version::KubernetesVersion;

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

    /// As in Feature objects.
    pub fn stability(self) -> &'static str {
        match self {
            Self::Alpha => "Alpha",
            Self::Beta => "Beta",
            Self::Ga => "GA",
            Self::Deprecated => "Deprecated",
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
    pub fn at(&self, version: KubernetesVersion) -> Option<&'static GateSpec> {
        self.specs.iter().rev().find(|spec| spec.since <= version)
    }
}
