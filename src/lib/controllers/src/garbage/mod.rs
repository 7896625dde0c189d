//! The garbage collector: objects whose owners are gone, foreground deletion, orphaning.
//!
//! Nothing is deleted on the word of a cache: an owner is gone only after a live read by kind, namespace and name showed no object with
//! its uid (or, where its kind is served no longer, after its deletion was seen), and the delete itself is guarded by the dependent's uid and
//! resourceVersion. A 404 that does not name the object proves nothing: versions of custom resources come and go.

mod attempt;
mod graph;

use crate::monitor::Monitor;
use crate::queue::WorkQueue;
use attempt::GarbageCollector;
use graph::OwnerGraph;
use kube::Client;
use std::sync::Arc;

/// Side by side; the API server is asked at most so many things at a time.
const WORKERS: usize = 16;

/// The collector's ears and hands: the graph goes to the monitor as a sink, then [`GarbageController::run`] works.
pub(crate) struct GarbageController {
    graph: Arc<OwnerGraph>,
    queue: WorkQueue<graph::GarbageTask>,
}

impl GarbageController {
    pub(crate) fn new() -> Self {
        let queue = WorkQueue::default();
        Self { graph: Arc::new(OwnerGraph::new(queue.clone())), queue }
    }

    /// What the monitor feeds.
    pub(crate) fn listener(&self) -> Arc<dyn crate::monitor::MetadataListener> {
        self.graph.clone()
    }

    /// Works until dropped.
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
