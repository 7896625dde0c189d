//! Reports which values of feature gates a component uses (KEP-3920), and lets central features
//! follow the API.
//!
//! Gates record their use from the start; reports begin once there is a client and the API is
//! served, and are repeated when the server clears them. A value that another component of the same
//! version has reported is not reported again, so writes do not grow with the cluster.

use crate::outage::Outage;
use ferrokube_features::Gates;
use ferrokube_features::transition::{FeatureState, is_canary};
use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// Namespace of the features of Kubernetes.
const NAMESPACE: &str = "kube-system";
/// Interval of checks whether the API is served: from its first transition on, a component must
/// report within the evaluation time.
const UNSERVED: Duration = Duration::from_secs(20);
/// Interval of checks for newly used gates, and delay before a failed report is tried again.
const LOOK: Duration = Duration::from_secs(10);
/// A missing value is reported within this time, at random: nearly all components then find that
/// another was faster. Much less than the evaluation time of the server.
const SPREAD: Duration = Duration::from_secs(10);
/// How much later than few of them most components report: of as many as e to this power, about one
/// does so at once, and so few are about to when the first report is seen. As multicast feedback is
/// suppressed (Nonnenmacher and Biersack, 1998).
const SUPPRESSION: f64 = 10.0;

/// A value of a gate, as in `status.uses`.
#[derive(Debug, PartialEq)]
struct UsedValue {
    /// Version of the component.
    version: String,
    enabled: bool,
}

/// Reports for one component.
#[derive(Debug, Default)]
struct UseReports {
    /// Uses in the Features that exist, by name.
    known: BTreeMap<String, Vec<UsedValue>>,
    /// When a missing one is reported.
    due: BTreeMap<String, Instant>,
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

/// Sets a central feature that the own command line does not set. Before the API is read, the
/// component has its own value.
fn follow(feature: &DynamicObject, gates: &Gates, component: &str) {
    let name = feature.metadata.name.as_deref().unwrap_or_default();
    let is_followed = feature.metadata.namespace.as_deref().is_none_or(|own| own == NAMESPACE)
        && gates.get(name).is_some_and(|gate| gate.is_central() && !gate.set);
    if is_followed
        && let Some(enabled) = told(feature, component)
        && gates.follow(name, enabled)
    {
        tracing::info!(k8s.name = name, enabled, "feature gate follows the API");
    }
}

impl UseReports {
    fn observe(&mut self, feature: &DynamicObject) {
        let uses = feature.data["status"]["uses"].as_array();
        let read = |one: &serde_json::Value| {
            let version = one["version"].as_str().unwrap_or_default().to_owned();
            UsedValue { version, enabled: one["enabled"].as_bool().unwrap_or(false) }
        };
        let uses = uses.into_iter().flatten().map(read).collect();
        self.known.insert(feature.metadata.name.clone().unwrap_or_default(), uses);
    }

    /// The reports due now, and the time of the next ones.
    fn due(&mut self, gates: &Gates, now: Instant) -> (Vec<(String, UsedValue)>, Instant) {
        let version = gates.version().to_string();
        let mut due = Vec::new();
        let mut next = now + LOOK;
        for gate in gates.all().filter(|gate| gate.asked) {
            let name = gate.gate.name;
            let value = UsedValue { version: version.clone(), enabled: gate.enabled };
            let is_missing = self.known.get(name).is_some_and(|uses| !uses.contains(&value));
            if !is_missing {
                self.due.remove(name);
                continue;
            }
            let at = *self.due.entry(name.to_owned()).or_insert_with(|| now + random_delay());
            if at <= now {
                due.push((name.to_owned(), value));
                self.due.insert(name.to_owned(), now + LOOK + random_delay());
            } else {
                next = next.min(at);
            }
        }
        (due, next)
    }
}

fn random_delay() -> Duration {
    let hex = ferrokube_trace::SpanId::random().hex();
    let number = u32::from_str_radix(&hex.as_str()[..8], 16).unwrap_or(0);
    delay((f64::from(number) + 1.0) / (f64::from(u32::MAX) + 1.0))
}

/// For a number above 0, up to 1, of which all are equally likely.
fn delay(uniform: f64) -> Duration {
    SPREAD.mul_f64((1.0 + uniform.ln() / SUPPRESSION).max(0.0))
}

/// Runs until dropped. Needs the rights of the role `system:feature-reporter`.
/// `component` is the name of the process among its like.
pub async fn report_uses(client: Client, gates: Gates, component: String) {
    report_uses_in(client, NAMESPACE.to_owned(), gates, component).await;
}

/// As [`report_uses`], to the features of a namespace: those of a program that is not part of
/// Kubernetes. Their values are the program's to set ([`Gates::follow`]).
pub async fn report_uses_in(client: Client, namespace: String, gates: Gates, component: String) {
    let kind = GroupVersionKind::gvk("features.k8s.io", "v1alpha1", "Feature");
    let kind = ApiResource::from_gvk(&kind);
    loop {
        match client.list_api_group_resources("features.k8s.io/v1alpha1").await {
            Ok(_) => {
                let api = Api::namespaced_with(client.clone(), &namespace, &kind);
                report_to(&api, &gates, &component).await;
            }
            Err(kube::Error::Api(status)) if status.code == 404 => sleep(UNSERVED).await,
            Err(_) => sleep(LOOK).await,
        }
    }
}

/// Ends when the API may no longer be served.
async fn report_to(api: &Api<DynamicObject>, gates: &Gates, component: &str) {
    let mut reports = UseReports::default();
    let mut outage = Outage::of_watch("features");
    let events = watch(api.clone(), watcher::Config::default().streaming_lists());
    let mut events = std::pin::pin!(events.default_backoff());
    loop {
        let (due, next) = reports.due(gates, Instant::now());
        for (name, value) in due {
            report(api, &name, &value).await;
        }
        let event = tokio::select! {
            event = events.next() => event,
            () = sleep_until(next) => continue,
        };
        match event {
            Some(Ok(Event::Apply(feature) | Event::InitApply(feature))) => {
                follow(&feature, gates, component);
                reports.observe(&feature);
            }
            Some(Ok(Event::Delete(feature))) => {
                reports.known.remove(&feature.metadata.name.unwrap_or_default());
            }
            Some(Ok(Event::Init)) => reports.known.clear(),
            Some(Ok(Event::InitDone)) => _ = outage.works(),
            Some(Err(error)) => {
                outage.failed(&error);
                return sleep(LOOK).await;
            }
            None => return,
        }
    }
}

async fn report(api: &Api<DynamicObject>, name: &str, value: &UsedValue) {
    let UsedValue { version, enabled } = value;
    let used = serde_json::json!({"version": version, "enabled": enabled});
    let patch = serde_json::json!({ "status": { "uses": [used] } });
    let written =
        api.patch_subresource("uses", name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    match written {
        Ok(_) => tracing::debug!(k8s.name = name, enabled, "reported the use of a feature gate"),
        Err(error) => {
            tracing::debug!(k8s.name = name, %error, "cannot report the use of a feature gate");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_features::LOG_TRACKING;

    fn feature(uses: &serde_json::Value) -> DynamicObject {
        let kind = GroupVersionKind::gvk("features.k8s.io", "v1alpha1", "Feature");
        let status = serde_json::json!({ "status": { "uses": uses } });
        DynamicObject::new("LogTracking", &ApiResource::from_gvk(&kind)).data(status)
    }

    #[tokio::test(start_paused = true)]
    async fn f21_f22_only_what_was_asked_and_is_missing_is_reported() {
        let gates = Gates::default();
        let mut reports = UseReports::default();
        reports.observe(&feature(&serde_json::json!([])));
        assert!(reports.due(&gates, Instant::now()).0.is_empty(), "not asked");
        gates.enabled(&LOG_TRACKING);
        assert!(reports.due(&gates, Instant::now()).0.is_empty(), "not at once");
        tokio::time::advance(SPREAD).await;
        let (due, _) = reports.due(&gates, Instant::now());
        let value = UsedValue { version: "1.36".to_owned(), enabled: true };
        assert_eq!(due, [("LogTracking".to_owned(), value)]);
        assert!(reports.due(&gates, Instant::now()).0.is_empty(), "once");
        tokio::time::advance(LOOK + SPREAD).await;
        assert_eq!(reports.due(&gates, Instant::now()).0.len(), 1, "again if it failed");
        let own = serde_json::json!([{"version": "1.36", "enabled": true}]);
        reports.observe(&feature(&own));
        tokio::time::advance(LOOK + SPREAD).await;
        assert!(reports.due(&gates, Instant::now()).0.is_empty(), "another reported it");
        reports.observe(&feature(&serde_json::json!([])));
        reports.due(&gates, Instant::now());
        tokio::time::advance(SPREAD).await;
        assert_eq!(reports.due(&gates, Instant::now()).0.len(), 1, "the server cleared it");
    }

    #[test]
    fn f05_f16_f19_a_central_feature_follows_the_api() {
        let gates = Gates::default();
        let object = |state: &str, percent: u8| {
            let kind = GroupVersionKind::gvk("features.k8s.io", "v1alpha1", "Feature");
            let data = serde_json::json!({
                "spec": {"canaryPercent": percent},
                "status": {"state": state, "dynamic": true},
            });
            DynamicObject::new("LogTracking", &ApiResource::from_gvk(&kind)).data(data)
        };
        let value = |state: &str, percent: u8, gates: &Gates| {
            follow(&object(state, percent), gates, "a");
            gates.enabled(&LOG_TRACKING)
        };
        assert!(!value("Off", 100, &gates) && !value("TurningOn", 0, &gates));
        assert!(value("TurningOn", 100, &gates) && value("On", 0, &gates));
        assert!(!value("TurningOff", 100, &gates));
        assert!(!value("", 100, &gates), "keeps its value");
        let own = "LogTracking=true".parse().unwrap();
        let (own, _) = Gates::new(gates.version(), &own).unwrap();
        assert!(value("Off", 100, &own), "its own command line");
    }

    #[test]
    fn few_delays_are_short() {
        assert_eq!(delay(1.0), SPREAD);
        assert_eq!(delay(f64::EPSILON), Duration::ZERO);
        let chances = (1..=10_000).map(|number| delay(f64::from(number) / 10_000.0));
        let early = chances.filter(|delay| *delay < SPREAD / 2).count();
        assert!((50..100).contains(&early), "{early} of 10,000");
    }

    /// Components of one value, and a report that takes a time until all have seen it.
    #[tokio::test(start_paused = true)]
    async fn few_of_many_components_report() {
        let gates = Gates::default();
        gates.enabled(&LOG_TRACKING);
        let (empty, own) = (
            feature(&serde_json::json!([])),
            feature(&serde_json::json!([{"version": "1.36", "enabled": true}])),
        );
        let second = Duration::from_secs(1);
        for (components, seen_after) in
            [(1, second), (100, second), (5_000, second / 10), (5_000, second)]
        {
            let mut all: Vec<UseReports> = (0..components).map(|_| UseReports::default()).collect();
            all.iter_mut().for_each(|one| one.observe(&empty));
            let (begun, mut first, mut requests) = (Instant::now(), None, 0);
            while begun.elapsed() <= SPREAD {
                let now = Instant::now();
                let sent: usize = all.iter_mut().map(|one| one.due(&gates, now).0.len()).sum();
                requests += sent;
                if sent > 0 && first.is_none() {
                    first = Some(now);
                }
                if first.is_some_and(|first| first.elapsed() >= seen_after) {
                    all.iter_mut().for_each(|one| one.observe(&own));
                }
                tokio::time::advance(Duration::from_millis(100)).await;
            }
            assert!((1..=20).contains(&requests), "{requests} of {components}");
        }
    }
}
