//! Reports which values of feature gates a component uses (KEP-3920), and lets central features
//! follow the API.
//!
//! Gates record their use from the start; reports begin once there is a client and the API is
//! served, and are repeated when the server clears them. A value that another component of the same
//! version has reported is not reported again, so writes do not grow with the cluster.

use crate::central::{CentralGates, NAMESPACE};
use crate::lease_uses::LeaseUses;
use crate::outage::Outage;
use ferrokube_features::Gates;
use futures::StreamExt;
use futures::future::BoxFuture;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// Interval of checks whether the API is served: from its first transition on, a component must
/// report within the evaluation time.
const UNSERVED: Duration = Duration::from_secs(20);
/// Interval of checks for newly used gates, and delay before a failed report is tried again.
const LOOK: Duration = Duration::from_secs(10);
/// Interval of attempts to read the API for the first time: until then, most central features are
/// off.
const UNREAD: Duration = Duration::from_secs(2);
/// A missing value is reported within this time, at random: nearly all components then find that
/// another was faster. Much less than the evaluation time of the server.
const SPREAD: Duration = Duration::from_secs(10);
/// Skew of the random delays towards the end of [`SPREAD`]: of e to this power components, about
/// one reports immediately, and few are about to when its report is seen. As multicast feedback is
/// suppressed (Nonnenmacher and Biersack, 1998).
const SUPPRESSION: f64 = 10.0;

/// A value of a gate, as in `status.uses`.
#[derive(Clone, Debug, PartialEq)]
struct UsedValue {
    /// Version of the component.
    version: String,
    enabled: bool,
}

/// Reports for one component.
#[derive(Clone, Debug, Default)]
struct UseReports {
    /// Uses in the Features that have a state, by name.
    known: BTreeMap<String, Vec<UsedValue>>,
    /// When a missing one is reported.
    due: BTreeMap<String, Instant>,
}

impl UseReports {
    fn observe(&mut self, feature: &DynamicObject) {
        let name = feature.metadata.name.clone().unwrap_or_default();
        if feature.data["status"]["state"].is_null() {
            // Its value is not decided, so that of a central one would be no news.
            self.known.remove(&name);
            return;
        }
        let uses = feature.data["status"]["uses"].as_array();
        let read = |one: &serde_json::Value| {
            let version = one["version"].as_str().unwrap_or_default().to_owned();
            UsedValue { version, enabled: one["enabled"].as_bool().unwrap_or(false) }
        };
        let uses = uses.into_iter().flatten().map(read).collect();
        self.known.insert(name, uses);
    }

    /// The reports due now, and the time of the next ones.
    fn due(&mut self, gates: &Gates, now: Instant) -> (Vec<(String, UsedValue)>, Instant) {
        let version = gates.version().to_string();
        let mut due = Vec::new();
        let mut next = now + LOOK;
        for gate in gates.all().filter(|gate| gate.asked) {
            let name = gate.gate.name;
            let is_own = |used: &UsedValue| used.enabled == gate.enabled && used.version == version;
            let is_missing = self.known.get(name).is_some_and(|uses| !uses.iter().any(is_own));
            if !is_missing {
                self.due.remove(name);
                continue;
            }
            let at = *self.due.entry(name.to_owned()).or_insert_with(|| now + random_delay());
            if at <= now {
                let value = UsedValue { version: version.clone(), enabled: gate.enabled };
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

/// Reports of a component; runs until dropped.
pub struct FeatureReports {
    run: BoxFuture<'static, ()>,
    is_answered: watch::Receiver<bool>,
    uses: LeaseUses,
}

impl FeatureReports {
    /// Waits until the API server has answered: central features have their values, or will not get
    /// them soon. Only while the reports run.
    pub fn answered(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut is_answered = self.is_answered.clone();
        async move { drop(is_answered.wait_for(|is_answered| *is_answered).await) }
    }

    /// For the Lease that the component renews: what it says there counts although its reports do
    /// not arrive.
    pub fn lease_uses(&self) -> LeaseUses {
        self.uses.clone()
    }
}

impl Future for FeatureReports {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.run.as_mut().poll(context)
    }
}

/// Needs the rights of the role `system:feature-reporter`. `component` is the name of the process
/// among its like.
///
/// From the call on, central features that store something, and that the command line does not set,
/// are off, until the API is read, or found to be absent.
pub fn report_uses(client: Client, gates: Gates, component: String) -> FeatureReports {
    report_uses_in(client, NAMESPACE.to_owned(), gates, component)
}

/// As [`report_uses`], to the features of a namespace: those of a program that is not part of
/// Kubernetes. Their values are the program's to set ([`Gates::follow`]).
pub fn report_uses_in(
    client: Client,
    namespace: String,
    gates: Gates,
    component: String,
) -> FeatureReports {
    let central = CentralGates::held(&gates, &namespace, component);
    let (answered, is_answered) = watch::channel(false);
    let (served, is_served) = watch::channel(false);
    let uses = LeaseUses::new(gates.clone(), is_served);
    let reporter = Reporter { gates, central, answered, served };
    FeatureReports { run: Box::pin(reporter.run(client, namespace)), is_answered, uses }
}

/// Inputs of the reports.
struct Reporter {
    gates: Gates,
    central: CentralGates,
    answered: watch::Sender<bool>,
    /// Whether Features are served, and have been read.
    served: watch::Sender<bool>,
}

impl Reporter {
    async fn run(mut self, client: Client, namespace: String) {
        let kind = GroupVersionKind::gvk("features.k8s.io", "v1alpha1", "Feature");
        let kind = ApiResource::from_gvk(&kind);
        loop {
            match client.list_api_group_resources("features.k8s.io/v1alpha1").await {
                Ok(_) => {
                    let api = Api::namespaced_with(client.clone(), &namespace, &kind);
                    self.report_to(&api).await;
                }
                Err(kube::Error::Api(status)) => {
                    if status.code == 404 {
                        self.central.release();
                        self.served.send_replace(false);
                    }
                    self.answered.send_replace(true);
                    sleep(if status.code == 404 { UNSERVED } else { self.pause() }).await;
                }
                Err(_) => sleep(self.pause()).await,
            }
        }
    }

    /// Before another attempt.
    fn pause(&self) -> Duration {
        if self.central.is_waiting() { UNREAD } else { LOOK }
    }

    /// Ends when the API may no longer be served.
    async fn report_to(&mut self, api: &Api<DynamicObject>) {
        let mut reports = UseReports::default();
        let mut outage = Outage::of_watch("features");
        let events = watcher(api.clone(), watcher::Config::default().streaming_lists());
        let mut events = std::pin::pin!(events.default_backoff());
        loop {
            let (due, next) = reports.due(&self.gates, Instant::now());
            for (name, value) in due {
                report(api, &name, &value).await;
            }
            let event = tokio::select! {
                event = events.next() => event,
                () = sleep_until(next) => continue,
            };
            match event {
                Some(Ok(Event::Apply(feature) | Event::InitApply(feature))) => {
                    self.central.follow(&feature);
                    reports.observe(&feature);
                }
                Some(Ok(Event::Delete(feature))) => {
                    reports.known.remove(&feature.metadata.name.unwrap_or_default());
                }
                Some(Ok(Event::Init)) => reports.known.clear(),
                Some(Ok(Event::InitDone)) => {
                    self.answered.send_replace(true);
                    self.served.send_replace(true);
                    _ = outage.works();
                }
                Some(Err(error)) => {
                    self.answered.send_replace(true);
                    outage.failed(&error);
                    return sleep(self.pause()).await;
                }
                None => return,
            }
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
    use ferrokube_features::{
        Gate, GateSettings, GateSpec, KubernetesVersion, LOG_TRACKING, Stage,
    };
    use kube::client::Body;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, Ordering};

    fn feature(uses: &serde_json::Value) -> DynamicObject {
        let kind = GroupVersionKind::gvk("features.k8s.io", "v1alpha1", "Feature");
        let status = serde_json::json!({ "status": { "state": "On", "uses": uses } });
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

    /// A client of a server that answers everything with a status code.
    fn answering(code: &Arc<AtomicU16>) -> Client {
        let code = Arc::clone(code);
        let answer = move |_: http::Request<Body>| {
            let code = code.load(Ordering::Relaxed);
            let status = serde_json::json!({"kind": "Status", "code": code}).to_string();
            let response = http::Response::builder().status(code);
            let response = response.body(Body::from(status.into_bytes()));
            async { response }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn f05_a_central_feature_is_off_while_the_api_does_not_answer() {
        let (code, gates) = (Arc::new(AtomicU16::new(503)), Gates::default());
        let reports = report_uses(answering(&code), gates.clone(), "a".to_owned());
        assert!(!gates.enabled(&LOG_TRACKING), "from the call on");
        let answered = reports.answered();
        let reports = tokio::spawn(reports);
        sleep(10 * LOOK).await;
        assert!(!gates.enabled(&LOG_TRACKING), "it may be off since this component was up");
        code.store(404, Ordering::Relaxed);
        sleep(2 * UNREAD).await;
        assert!(gates.enabled(&LOG_TRACKING), "not served: the gates alone decide");
        answered.await;
        reports.abort();
    }

    /// A number of gates that are on and asked.
    fn many_gates(count: usize) -> Gates {
        static SPECS: [GateSpec; 1] = [GateSpec {
            since: KubernetesVersion::new(1, 30),
            stage: Stage::Beta,
            default: true,
            locked: false,
            min_compatibility: None,
        }];
        let gate = |number| -> &'static Gate {
            let name = Box::leak(format!("Gate{number}").into_boxed_str());
            Box::leak(Box::new(Gate { name, specs: &SPECS, dependencies: &[] }))
        };
        let all: Vec<&'static Gate> = (0..count).map(gate).collect();
        let settings = GateSettings::default();
        let gates = Gates::of(&all, KubernetesVersion::CURRENT, &settings).unwrap().0;
        all.iter().for_each(|gate| assert!(gates.enabled(gate)));
        gates
    }

    /// Thousands of kubelets that check their gates whenever their loops run.
    struct Fleet {
        gates: Gates,
        all: Vec<(UseReports, Instant)>,
    }

    impl Fleet {
        fn observe(&mut self, feature: &DynamicObject) {
            let now = Instant::now();
            for (reports, next) in &mut self.all {
                reports.observe(feature);
                *next = now;
            }
        }

        /// Writes within a time; everyone sees the first one a second later.
        async fn writes(&mut self, within: Duration, seen: &DynamicObject) -> usize {
            let (begun, mut first, mut writes) = (Instant::now(), None, 0);
            while begun.elapsed() < within {
                let now = Instant::now();
                for (reports, next) in self.all.iter_mut().filter(|(_, next)| *next <= now) {
                    let (due, at) = reports.due(&self.gates, now);
                    (*next, writes) = (at, writes + due.len());
                }
                if writes > 0 && first.is_none() {
                    first = Some(now);
                }
                if first.is_some_and(|first| first.elapsed() >= Duration::from_secs(1)) {
                    self.observe(seen);
                    first = Some(now + within);
                }
                tokio::time::advance(Duration::from_millis(100)).await;
            }
            writes
        }
    }

    #[tokio::test(start_paused = true)]
    async fn thousands_of_components_with_a_hundred_gates_write_next_to_nothing() {
        let gates = many_gates(100);
        let named = |name: &str, uses: &serde_json::Value| {
            let mut feature = feature(uses);
            feature.metadata.name = Some(name.to_owned());
            feature
        };
        let own = serde_json::json!([{"version": "1.36", "enabled": true}]);
        let mut reports = UseReports::default();
        for gate in gates.all() {
            reports.observe(&named(gate.gate.name, &own));
        }
        let all = vec![(reports, Instant::now()); 5_000];
        let mut fleet = Fleet { gates, all };
        let seen = named("Gate7", &own);
        assert_eq!(fleet.writes(2 * LOOK, &seen).await, 0, "at rest");
        // A transition: the server clears the uses of a feature.
        fleet.observe(&named("Gate7", &serde_json::json!([])));
        let writes = fleet.writes(SPREAD + Duration::from_secs(2), &seen).await;
        assert!((1..=20).contains(&writes), "{writes}");
        assert_eq!(fleet.writes(2 * LOOK, &seen).await, 0, "at rest again");
    }
}
