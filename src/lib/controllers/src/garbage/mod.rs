//! The garbage collector: cascading, foreground and orphaning deletion.
//!
//! Nothing is deleted based on a cache: an owner counts as gone only after a live read by kind,
//! namespace and name found no object with its uid (or, if its kind is no longer served, after its
//! deletion was seen), and the delete is guarded by the dependent's uid and resourceVersion. A 404
//! that does not name the object proves nothing: versions of custom resources come and go.

mod attempt;
mod graph;
mod recent;

use crate::monitor::Monitor;
use crate::queue::WorkQueue;
use attempt::GarbageCollector;
use graph::{GarbageTask, OwnerGraph};
use kube::Client;
use std::sync::Arc;

/// Concurrent workers, hence concurrent requests to the API server.
const WORKERS: usize = 16;

/// The garbage collector: register its listener with the monitor, then call
/// [`GarbageController::run`].
pub(crate) struct GarbageController {
    graph: Arc<OwnerGraph>,
    queue: WorkQueue<GarbageTask>,
}

impl GarbageController {
    pub(crate) fn new() -> Self {
        let queue = WorkQueue::in_turns(GarbageTask::namespace);
        Self { graph: Arc::new(OwnerGraph::new(queue.clone())), queue }
    }

    pub(crate) fn listener(&self) -> Arc<dyn crate::monitor::MetadataListener> {
        self.graph.clone()
    }

    /// Runs until dropped.
    pub(crate) async fn run(self, client: Client, monitor: Arc<Monitor>) {
        let collector = Arc::new(GarbageCollector::new(client, self.graph, monitor));
        self.queue
            .run("garbage-collector", WORKERS, move |task, trace| {
                let (collector, trace) = (collector.clone(), trace.clone());
                async move { collector.work(task, &trace).await }
            })
            .await;
    }
}
