//! The metrics of features that every component has, in the Prometheus text format.

use crate::gates::Gates;
use std::fmt::Write;

/// `kubernetes_feature_enabled`, as in Kubernetes.
pub const FEATURE_ENABLED: &str = "kubernetes_feature_enabled";

/// Appends [`FEATURE_ENABLED`]: 1 or 0 for each gate of this version.
pub fn write(out: &mut String, gates: &Gates) {
    let name = FEATURE_ENABLED;
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP {name} Whether a feature is enabled.\n# TYPE {name} gauge");
    for gate in gates.all() {
        let (feature, stage) = (gate.gate.name, gate.spec.stage.as_str());
        let value = u8::from(gate.enabled);
        let _ = writeln!(out, "{name}{{name=\"{feature}\",stage=\"{stage}\"}} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p10_every_gate_has_its_metric() {
        let gates = Gates::default();
        let mut out = String::new();
        write(&mut out, &gates);
        assert_eq!(out.lines().count(), 2 + gates.all().count());
        let line = "kubernetes_feature_enabled{name=\"LogTracking\",stage=\"BETA\"} 1\n";
        assert!(out.contains(line), "{out}");
        assert!(gates.all().all(|gate| !gate.asked), "a metric is no use of a feature");
    }
}
