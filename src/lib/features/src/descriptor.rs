//! What a feature is, beyond its gate: data for pages, checks and tests.

use crate::gate::Gate;

/// A feature, as data.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Its gate.
    pub gate: &'static Gate,
    /// One line.
    pub summary: &'static str,
    /// The document that it comes from.
    pub source: &'static str,
    /// The roles that ask the gate.
    pub components: &'static [&'static str],
    /// Who answers for it.
    pub owner: &'static str,
    /// Metrics that tell that it is in use or in trouble.
    pub metrics: &'static [&'static str],
    /// The production readiness questionnaire (requirements P01-P25), as far as it is answered.
    pub answers: &'static [PrrAnswer],
}

/// One answer.
#[derive(Clone, Copy, Debug)]
pub struct PrrAnswer {
    /// The requirement: `P01` ...
    pub id: &'static str,
    /// The answer.
    pub text: &'static str,
}
