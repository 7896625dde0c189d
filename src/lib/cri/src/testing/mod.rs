//! For tests: a runtime in memory, in the time of tokio's clock.
//!
//! It keeps images, sandboxes, containers and a record of calls; tests script pulls and end
//! containers. Other suites use real sockets and containers.

mod containers;
mod pulls;

pub use pulls::{PullRecord, PullScript};

use crate::error::{CallCode, CriError};
use crate::messages::path;
use crate::messages::{
    ContainerReport, PodSandbox, RuntimeCondition, RuntimeStatus, RuntimeStatusResponse,
    VersionResponse,
};
use crate::runtime::{Transport, TransportFuture};
use bytes::Bytes;
use ferrokube_trace::TraceContext;
use parking_lot::Mutex;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tokio::sync::watch;

/// A call that arrived.
#[derive(Clone, Debug)]
pub struct RecordedCall {
    /// Full path of the method.
    pub path: &'static str,
    /// Ids that came along.
    pub context: Option<TraceContext>,
}

/// A container runtime in memory.
pub struct FakeRuntime {
    state: Mutex<FakeState>,
    /// Counts changes: tests wait on it.
    changes: watch::Sender<u64>,
    keeps_calls: bool,
}

#[derive(Default)]
struct FakeState {
    calls: Vec<RecordedCall>,
    failures: BTreeMap<&'static str, CriError>,
    held: BTreeSet<&'static str>,
    images: BTreeMap<String, u64>,
    scripts: BTreeMap<String, PullScript>,
    default_script: PullScript,
    pulls: Vec<PullRecord>,
    pulled_bytes: u64,
    sandboxes: BTreeMap<String, PodSandbox>,
    /// By sandbox.
    log_directories: BTreeMap<String, PathBuf>,
    containers: BTreeMap<String, containers::FakeContainer>,
    exec: BTreeMap<String, i32>,
    usage: BTreeMap<String, (u64, u64)>,
    made: u64,
}

impl Default for FakeRuntime {
    fn default() -> Self {
        Self { state: Mutex::default(), changes: watch::channel(0).0, keeps_calls: true }
    }
}

impl FakeRuntime {
    /// One that keeps no record of calls, for measurements that last.
    pub fn unrecorded() -> Self {
        Self { keeps_calls: false, ..Self::default() }
    }

    /// All calls so far, in order.
    pub fn calls(&self) -> Vec<RecordedCall> {
        self.state.lock().calls.clone()
    }

    /// Number of calls of a method.
    pub fn count(&self, path: &str) -> usize {
        self.state.lock().calls.iter().filter(|call| call.path == path).count()
    }

    /// Lets a method fail from now on, or work again.
    pub fn fail(&self, path: &'static str, error: Option<CriError>) {
        let mut state = self.state.lock();
        match error {
            Some(error) => state.failures.insert(path, error),
            None => state.failures.remove(path),
        };
    }

    /// Lets calls of a method hang from now on, or end.
    pub fn hold(&self, path: &'static str, is_held: bool) {
        let mut state = self.state.lock();
        if is_held {
            state.held.insert(path);
        } else {
            state.held.remove(path);
        }
        drop(state);
        self.changed();
    }

    /// Waits until a condition holds, checked after each change.
    pub async fn until(&self, mut condition: impl FnMut(&Self) -> bool) {
        let mut changes = self.changes.subscribe();
        while !condition(self) {
            changes.changed().await.expect("the sender is in self");
        }
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn record(&self, path: &'static str) -> Result<(), CriError> {
        let mut state = self.state.lock();
        if self.keeps_calls {
            state.calls.push(RecordedCall { path, context: ferrokube_trace::current() });
        }
        let failure = state.failures.get(path).cloned();
        drop(state);
        self.changed();
        failure.map_or(Ok(()), Err)
    }

    async fn serve(&self, method: &'static str, request: Bytes) -> Result<Bytes, CriError> {
        self.record(method)?;
        self.until(|runtime| !runtime.state.lock().held.contains(method)).await;
        let response = match method {
            path::version => encoded(&VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: "fake".to_owned(),
                runtime_version: "1.0.0".to_owned(),
                runtime_api_version: "v1".to_owned(),
            }),
            path::status => encoded(&ready()),
            path::pull_image
            | path::image_status
            | path::list_images
            | path::remove_image
            | path::image_fs_info => return self.image_call(method, &request).await,
            _ => return self.container_call(method, &request),
        };
        self.changed();
        Ok(response)
    }
}

fn ready() -> RuntimeStatusResponse {
    let condition = |name: &str| RuntimeCondition {
        r#type: name.to_owned(),
        status: true,
        ..RuntimeCondition::default()
    };
    let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
    let status = Some(RuntimeStatus { conditions });
    RuntimeStatusResponse { status, ..RuntimeStatusResponse::default() }
}

fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

fn decoded<M: Message + Default>(bytes: &Bytes) -> Result<M, CriError> {
    M::decode(bytes.clone()).map_err(|error| CriError::new(CallCode::Internal, error.to_string()))
}

fn missing(kind: &str, id: &str) -> CriError {
    CriError::new(CallCode::NotFound, format!("{kind} {id:?} not found"))
}

impl Transport for FakeRuntime {
    fn call(&self, path: &'static str, request: Bytes) -> TransportFuture<'_> {
        Box::pin(self.serve(path, request))
    }
}

/// A container as a test sees it.
#[derive(Clone, Debug)]
pub struct SeenContainer {
    /// As CRI reports it.
    pub report: ContainerReport,
    /// Id.
    pub sandbox: String,
    /// As it was created.
    pub config: crate::ContainerConfig,
}
