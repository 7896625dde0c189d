//! Feature descriptors: data about a feature beyond its gate, for pages, checks and tests.

use crate::gate::Gate;

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
    /// Owner.
    pub owner: &'static str,
    /// Metrics that show whether it is used, or in trouble.
    pub metrics: &'static [&'static str],
    /// Answers to the production readiness questionnaire (P01 to P25), as far as given.
    pub answers: &'static [PrrAnswer],
}

/// One answer.
#[derive(Clone, Copy, Debug)]
pub struct PrrAnswer {
    /// Requirement: `P01` ...
    pub id: &'static str,
    /// Answer text.
    pub text: &'static str,
}
