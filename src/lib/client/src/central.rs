//! Central features of a component: their values come from the Feature API, unless the component's
//! own command line sets them.
//!
//! A feature that stores something is off until the API is read: it may have been turned off while
//! this component was down. One that stores nothing has the component's own value until then: a
//! kubelet without its API server keeps to the limits that it was given. The last value that was
//! read stays while the API is away; where the API is not served, the gates alone decide.

use ferrokube_features::Gates;
use ferrokube_features::transition::{FeatureState, is_canary};
use kube::api::DynamicObject;
use std::collections::BTreeSet;

/// Namespace of the features of Kubernetes, whose values this sets. Others are their program's.
pub(crate) const NAMESPACE: &str = "kube-system";

/// The gates of a component that follow the API.
pub(crate) struct CentralGates {
    gates: Gates,
    /// Name of the process among its like.
    component: String,
    /// Those whose values in the API are not known yet.
    unread: BTreeSet<&'static str>,
}

impl CentralGates {
    /// Turns off those that store something, unless this process has read them before: its
    /// controllers or its node may have started again.
    pub(crate) fn held(gates: &Gates, namespace: &str, component: String) -> Self {
        let mut unread = BTreeSet::new();
        if namespace == NAMESPACE {
            let central = gates.all().filter(|gate| gate.is_central() && !gate.set);
            for gate in central.filter(|gate| !gate.followed) {
                unread.insert(gate.gate.name);
                if gate.stores() {
                    gates.presume(gate.gate.name, false);
                }
            }
        }
        Self { gates: gates.clone(), component, unread }
    }

    /// Whether the API was neither read nor found to be absent.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.unread.is_empty()
    }

    /// The API is not served: what was never read has the component's own value.
    pub(crate) fn release(&mut self) {
        for name in std::mem::take(&mut self.unread) {
            if let Some(gate) = self.gates.get(name) {
                self.gates.presume(name, gate.configured);
            }
        }
    }

    /// Takes the value of a feature, if it is one of these and has a state.
    pub(crate) fn follow(&mut self, feature: &DynamicObject) {
        let name = feature.metadata.name.as_deref().unwrap_or_default();
        let is_ours = feature.metadata.namespace.as_deref().is_none_or(|own| own == NAMESPACE);
        let Some(gate) = self.gates.get(name).filter(|gate| gate.is_central() && !gate.set) else {
            return;
        };
        let Some(enabled) = told(feature, &self.component).filter(|_| is_ours) else { return };
        let before = if self.unread.remove(name) { gate.configured } else { gate.enabled };
        self.gates.follow(name, enabled);
        if before != enabled {
            tracing::info!(k8s.name = name, enabled, "feature gate follows the API");
        }
    }
}

/// The value that the API sets for a component, if any.
fn told(feature: &DynamicObject, component: &str) -> Option<bool> {
    let status = &feature.data["status"];
    let state: FeatureState = status["state"].as_str()?.parse().ok()?;
    let percent = feature.data["spec"]["canaryPercent"].as_u64();
    let percent = percent.filter(|_| status["dynamic"] == true && state == FeatureState::TurningOn);
    let percent = percent.and_then(|percent| percent.try_into().ok()).unwrap_or(100);
    let name = feature.metadata.name.as_deref()?;
    Some(state.permits_use() && is_canary(component, name, percent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_features::{LOG_TRACKING, MAX_PARALLEL_IMAGE_PULLS};
    use kube::api::ApiResource;
    use kube::core::GroupVersionKind;
    use serde_json::json;

    fn feature(state: &str, percent: u8) -> DynamicObject {
        named("LogTracking", state, percent)
    }

    fn named(name: &str, state: &str, percent: u8) -> DynamicObject {
        let kind = GroupVersionKind::gvk("features.k8s.io", "v1alpha1", "Feature");
        let data = json!({
            "spec": {"canaryPercent": percent},
            "status": {"state": state, "dynamic": true},
        });
        DynamicObject::new(name, &ApiResource::from_gvk(&kind)).data(data)
    }

    fn held(gates: &Gates) -> CentralGates {
        CentralGates::held(gates, NAMESPACE, "a".to_owned())
    }

    #[test]
    fn f05_f16_f19_a_central_feature_follows_the_api() {
        let gates = Gates::default();
        let mut central = held(&gates);
        let mut value = |state: &str, percent: u8| {
            central.follow(&feature(state, percent));
            gates.enabled(&LOG_TRACKING)
        };
        assert!(!value("Off", 100) && !value("TurningOn", 0));
        assert!(value("TurningOn", 100) && value("On", 0));
        assert!(!value("TurningOff", 100));
        assert!(!value("", 100), "keeps its value");
        let own = "LogTracking=true".parse().unwrap();
        let (own, _) = Gates::new(gates.version(), &own).unwrap();
        held(&own).follow(&feature("Off", 100));
        assert!(own.enabled(&LOG_TRACKING), "its own command line");
    }

    /// The limit of a kubelet whose API server is away, with `serializeImagePulls: false`: without
    /// it nothing would bound the pulls.
    #[test]
    fn p23_a_feature_that_stores_nothing_has_its_own_value_until_it_is_read() {
        let gates = Gates::default();
        let limit = gates.live(&MAX_PARALLEL_IMAGE_PULLS);
        let is_on = || limit.load(std::sync::atomic::Ordering::Relaxed);
        let mut central = held(&gates);
        assert!(central.is_waiting() && is_on());
        central.follow(&named("MaxParallelImagePulls", "", 100));
        assert!(is_on(), "announced, and not decided");
        central.follow(&named("MaxParallelImagePulls", "Off", 100));
        assert!(!is_on());
        central.release();
        assert!(!is_on(), "what was read last counts");
    }

    #[test]
    fn f05_a_central_feature_is_off_until_it_is_read() {
        let gates = Gates::default();
        let mut central = held(&gates);
        assert!(central.is_waiting() && !gates.enabled(&LOG_TRACKING));
        central.follow(&feature("", 100));
        assert!(!gates.enabled(&LOG_TRACKING), "announced, and not decided");
        central.follow(&feature("On", 100));
        assert!(gates.enabled(&LOG_TRACKING));
        central.follow(&feature("Off", 100));
        // Not served for a while: what was read last counts.
        central.release();
        assert!(!central.is_waiting() && !gates.enabled(&LOG_TRACKING));
        gates.follow("LogTracking", true);
        drop(held(&gates));
        assert!(gates.enabled(&LOG_TRACKING), "started again in the same process");
        let alone = Gates::default();
        held(&alone).release();
        assert!(alone.enabled(&LOG_TRACKING), "without the API the gates decide");
        let others = Gates::default();
        let central = CentralGates::held(&others, "default", String::new());
        assert!(!central.is_waiting() && others.enabled(&LOG_TRACKING), "the program's to set");
    }
}
