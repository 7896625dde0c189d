//! What needs a slot for computations. A process of its own: the test takes all slots, and other
//! tests, whose clocks stand still, would see timeouts.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "it/support.rs"]
#[expect(dead_code, reason = "one of many tests")]
mod support;

use ferrokube_registry::offload::compute;
use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex};
use support::{CONFIGMAPS, TestServer};
use tokio::task::JoinSet;

/// All slots for computations, taken until this is dropped.
struct TakenSlots {
    release: Arc<(Mutex<bool>, Condvar)>,
    _tasks: JoinSet<()>,
}

impl TakenSlots {
    async fn take() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let release = Arc::new((Mutex::new(false), Condvar::new()));
        let (started, mut computes) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let slots = 2 * cores.saturating_sub(1).max(1);
        // A caller each: nobody has two while there are spare ones.
        for caller in 0..slots as u64 {
            let (started, release) = (started.clone(), Arc::clone(&release));
            tasks.spawn(compute(u64::MAX - caller, move || {
                started.send(()).unwrap();
                let (is_over, changed) = &*release;
                drop(changed.wait_while(is_over.lock().unwrap(), |is_over| !*is_over).unwrap());
            }));
        }
        for _ in 0..slots {
            computes.recv().await.unwrap();
        }
        Self { release, _tasks: tasks }
    }
}

impl Drop for TakenSlots {
    fn drop(&mut self) {
        *self.release.0.lock().unwrap() = true;
        self.release.1.notify_all();
    }
}

/// YAML in flow style looks like JSON, costs ten times as much, and takes a slot; so does JSON
/// whose repeated keys have to be found by the YAML reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_34_only_an_apply_that_is_json_is_read_on_a_worker() {
    let server = TestServer::new().await;
    let text = "x".repeat(2000);
    let body = |name: &str, data: &str| {
        format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}"}},"data":{{{data}}}}}"#
        )
    };
    let apply = |name: &'static str, body: String| {
        let path = format!("{CONFIGMAPS}/{name}?fieldManager=m");
        let server = server.clone();
        async move {
            let kind = [("content-type", "application/apply-patch+yaml")];
            server.send("PATCH", &path, &kind, body).await.code
        }
    };
    let slots = TakenSlots::take().await;
    let json = body("json", &format!(r#""a":"{text}""#));
    assert_eq!(apply("json", json).await, 201, "it needs no slot");
    let flow = apply("flow", body("flow", &format!(r#"a: "{text}""#)));
    let repeated = apply("twice", body("twice", &format!(r#""a":"b","a":"{text}""#)));
    let (mut flow, mut repeated) = (Box::pin(flow), Box::pin(repeated));
    for _ in 0..100 {
        assert!(futures::poll!(flow.as_mut()).is_pending());
        assert!(futures::poll!(repeated.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    // Not by a GET: on a busy machine, the first apply may have moved the resource to slots.
    let writes = server.admission.writes.lock().unwrap().clone();
    assert!(writes.iter().all(|(_, object)| object.contains("/json/")), "{writes:?}");
    drop(slots);
    // Both are polled: one that has been granted a slot must take it.
    assert_eq!(tokio::join!(flow, repeated), (201, 201));
}
