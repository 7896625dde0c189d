//! Clients and other writers in the middle of a transition.

use crate::features::{
    ELECTION, FEATURES, LEASES, annotated, condition, is_state, keeps_strategy, lease, merge_patch,
    remaining, restarted_with, server, stopped, wait_for,
};
use crate::priority::until;
use crate::support::{BOUND, CONFIGMAPS, TestServer};
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_controlplane::{FailpointObserver, FeatureFailpoint};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Whether OpenAPI has the field, in version 3 and in version 2.
async fn published(server: &TestServer) -> [bool; 2] {
    let has = |schemas: &Value| {
        let fields = &schemas["io.k8s.api.coordination.v1.LeaseSpec"]["properties"];
        assert_ne!(fields["holderIdentity"], Value::Null);
        fields.get("strategy").is_some()
    };
    let v3 = server.get("/openapi/v3/apis/coordination.k8s.io/v1").await.json();
    let v2 = server.get("/openapi/v2").await.json();
    [has(&v3["components"]["schemas"]), has(&v2["definitions"])]
}

/// No new uses from the first step on; OpenAPI has the field until no object has it.
#[tokio::test]
async fn f18_a_field_is_dropped_at_once_and_published_until_it_is_off() {
    let server = server("CoordinatedLeaderElection=true").await;
    keeps_strategy(&server).await;
    wait_for(&server, ELECTION, is_state("On")).await;
    stopped(&server.plane).await;
    let run = restarted_with(&server, "", |settings| {
        settings.evaluation = Duration::from_secs(3600);
    })
    .await;
    let evaluates = |one: &Value| one["status"]["useEvaluationTime"] != Value::Null;
    let turning = wait_for(&server, ELECTION, evaluates).await;
    assert!(is_state("TurningOff")(&turning), "{turning}");
    let made = server.post(LEASES, &lease("late")).await.json();
    assert_eq!(made["spec"]["holderIdentity"], "a", "{made}");
    assert!(made["spec"].get("strategy").is_none(), "{made}");
    assert_eq!(published(&server).await, [true; 2]);
    stopped(&run).await;
    let off = restarted_with(&server, "", |_| {}).await;
    wait_for(&server, ELECTION, is_state("Off")).await;
    let begun = Instant::now();
    while published(&server).await != [false; 2] {
        assert!(begun.elapsed() < BOUND, "the field is still published");
        // Documents in the cache are read without waiting: the server's tasks need a turn.
        tokio::task::yield_now().await;
    }
    stopped(&off).await;
}

/// Another writer at some moments of turning LogTracking off.
struct InterruptedWrites {
    observer: FailpointObserver,
    moments: Arc<Mutex<Moments>>,
}

/// Moments that a server has reached, and when.
type Moments = Vec<(FeatureFailpoint, Instant)>;

/// `write` is done at the first of each moment, before the server goes on.
fn interrupted<F>(
    write: impl Fn(FeatureFailpoint) -> F + Send + Sync + 'static,
) -> InterruptedWrites
where
    F: Future<Output = ()>,
{
    let moments = Arc::<Mutex<Moments>>::default();
    let reached = Arc::clone(&moments);
    let observer = FailpointObserver::new(move |feature, moment| {
        if feature != "LogTracking" {
            return;
        }
        let is_first = count(&reached.lock().unwrap(), moment) == 0;
        reached.lock().unwrap().push((moment, Instant::now()));
        if is_first {
            let write = write(moment);
            tokio::task::block_in_place(|| Handle::current().block_on(write));
        }
    });
    InterruptedWrites { observer, moments }
}

/// Turns LogTracking off, and returns the moments of it.
async fn turned_off(server: &TestServer, writes: InterruptedWrites) -> Moments {
    let InterruptedWrites { observer, moments } = writes;
    let path = format!("{FEATURES}/LogTracking");
    wait_for(server, &path, is_state("On")).await;
    stopped(&server.plane).await;
    let run = restarted_with(server, "LogTracking=false", |settings| {
        settings.failpoints = observer;
    })
    .await;
    let off = wait_for(server, &path, is_state("Off")).await;
    assert_eq!(condition(&off, "DowngradeSafe").0, "True", "{off}");
    assert_eq!(remaining(server).await, 0);
    // The end is seen before the server goes on.
    let begun = Instant::now();
    while count(&moments.lock().unwrap(), FeatureFailpoint::AfterCompleting) == 0 {
        assert!(begun.elapsed() < BOUND, "{moments:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stopped(&run).await;
    moments.lock().unwrap().clone()
}

fn count(moments: &[(FeatureFailpoint, Instant)], wanted: FeatureFailpoint) -> usize {
    moments.iter().filter(|(moment, _)| *moment == wanted).count()
}

/// Writes of a step, and what follows it once it is stored.
const STEPS: [[FeatureFailpoint; 2]; 4] = [
    [FeatureFailpoint::BeforeTurning, FeatureFailpoint::AfterTurning],
    [FeatureFailpoint::BeforeRemovingTask, FeatureFailpoint::AfterRemovingTask],
    [FeatureFailpoint::BeforeEvaluating, FeatureFailpoint::AfterEvaluating],
    [FeatureFailpoint::BeforeCompleting, FeatureFailpoint::AfterCompleting],
];

/// A component reports the old value between what a step has read and its write: the step is not
/// stored, and what is computed next knows of the report.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_step_is_a_compare_and_swap() {
    let server = server("").await;
    annotated(&server, 20).await;
    let reporter = server.clone();
    let moments = turned_off(
        &server,
        interrupted(move |moment| {
            let step = STEPS.iter().position(|[before, _]| *before == moment);
            let server = reporter.clone();
            async move {
                let Some(step) = step else { return };
                let used = json!({"version": format!("1.3{step}"), "enabled": true});
                let path = format!("{FEATURES}/LogTracking/uses");
                let patch = json!({"status": {"uses": [used]}});
                let reported = merge_patch(&server, &path, &patch).await;
                assert_eq!(reported.code, 200, "{}", reported.text());
            }
        }),
    )
    .await;
    for [before, after] in STEPS {
        let (tried, stored) = (count(&moments, before), count(&moments, after));
        assert!(tried > 1 && stored == 1, "{before:?} {tried}, {after:?} {stored}: {moments:?}");
    }
    let why = "a component of version 1.33 has it on";
    until(&server, "/api/v1/namespaces/kube-system/events", |all| all.text().contains(why)).await;
}

/// An object changes between the look for it and its write: it is looked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_cleared_by_compare_and_swap() {
    let server = server("").await;
    // More than are written at a time: the last one is m9.
    annotated(&server, 20).await;
    let user = server.clone();
    let moments = turned_off(
        &server,
        interrupted(move |moment| {
            let server = user.clone();
            async move {
                if moment == FeatureFailpoint::ObjectsWritten {
                    let label = json!({"metadata": {"labels": {"meanwhile": "yes"}}});
                    let changed = merge_patch(&server, &format!("{CONFIGMAPS}/m9"), &label).await;
                    assert!(changed.text().contains("trace-id"), "{}", changed.text());
                }
            }
        }),
    )
    .await;
    // Two batches, and the one that was refused again.
    assert_eq!(count(&moments, FeatureFailpoint::ObjectsWritten), 3, "{moments:?}");
    let changed = server.get(&format!("{CONFIGMAPS}/m9")).await.json();
    assert_eq!(changed["metadata"]["labels"]["meanwhile"], "yes", "{changed}");
}

/// However fast the store is: 16 objects in 8 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_cleared_at_a_limited_rate() {
    const BATCHES: u32 = 20;
    let server = server("").await;
    annotated(&server, 16 * BATCHES as usize).await;
    let moments = turned_off(&server, interrupted(|_| async {})).await;
    let at = |wanted| moments.iter().filter(move |(moment, _)| *moment == wanted);
    let (_, began) = at(FeatureFailpoint::TaskBegins).next().unwrap();
    let (_, last) = at(FeatureFailpoint::ObjectsWritten).next_back().unwrap();
    let took = *last - *began;
    assert!(took >= Duration::from_millis(8) * (BATCHES - 1), "{took:?}");
}
