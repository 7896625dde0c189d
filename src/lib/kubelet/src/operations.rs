//! Metrics of calls to the runtime, with kubelet's names.

use bytes::Bytes;
use ferrokube_cri::{Transport, TransportFuture};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tokio::time::Instant;

type OperationLabels = [(&'static str, String); 1];
type OperationTimes = Family<OperationLabels, Histogram, fn() -> Histogram>;

/// Counts, failures and durations of calls, by method. Clones share them.
#[derive(Clone)]
pub struct RuntimeOperations {
    total: Family<OperationLabels, Counter>,
    errors: Family<OperationLabels, Counter>,
    durations: OperationTimes,
}

impl Default for RuntimeOperations {
    fn default() -> Self {
        Self {
            total: Family::default(),
            errors: Family::default(),
            durations: OperationTimes::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.005, 2.5, 14))
            }),
        }
    }
}

impl RuntimeOperations {
    /// Adds the metrics to a registry; they share their values with it.
    pub fn register(&self, registry: &mut Registry) {
        let name = "kubelet_runtime_operations";
        registry.register(name, "Number of runtime operations", self.total.clone());
        registry.register(
            format!("{name}_errors"),
            "Number of runtime operations that failed or were given up",
            self.errors.clone(),
        );
        registry.register(
            format!("{name}_duration_seconds"),
            "Duration in seconds of runtime operations",
            self.durations.clone(),
        );
    }

    /// The transport, with its calls counted.
    pub fn counted(&self, inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(CountedTransport { inner, operations: self.clone() })
    }
}

struct CountedTransport {
    inner: Arc<dyn Transport>,
    operations: RuntimeOperations,
}

impl Transport for CountedTransport {
    fn call(&self, path: &'static str, request: Bytes) -> TransportFuture<'_> {
        Box::pin(async move {
            let mut operation = RunningOperation::new(&self.operations, path);
            let answer = self.inner.call(path, request).await;
            operation.has_succeeded = answer.is_ok();
            answer
        })
    }
}

/// A call in progress, observed when dropped: also when it is cancelled.
struct RunningOperation<'a> {
    operations: &'a RuntimeOperations,
    labels: OperationLabels,
    begun: Instant,
    has_succeeded: bool,
}

impl<'a> RunningOperation<'a> {
    fn new(operations: &'a RuntimeOperations, path: &str) -> Self {
        let labels = [("operation_type", operation_type(path))];
        operations.total.get_or_create(&labels).inc();
        Self { operations, labels, begun: Instant::now(), has_succeeded: false }
    }
}

impl Drop for RunningOperation<'_> {
    fn drop(&mut self) {
        let Self { operations, labels, begun, has_succeeded } = self;
        operations.durations.get_or_create(labels).observe(begun.elapsed().as_secs_f64());
        if !*has_succeeded {
            operations.errors.get_or_create(labels).inc();
        }
    }
}

/// kubelet's name of a method: `run_podsandbox` of `/runtime.v1.RuntimeService/RunPodSandbox`.
fn operation_type(path: &str) -> String {
    let method = path.rsplit('/').next().unwrap_or_default();
    let mut name = String::new();
    for letter in method.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    match name.as_str() {
        "update_container_resources" => "update_container".to_owned(),
        _ => name.replace("pod_sandbox", "podsandbox"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_cri::testing::FakeRuntime;
    use ferrokube_cri::{CallCode, CriError, PullImageRequest, Runtime, VersionRequest, path};

    #[tokio::test]
    async fn calls_and_failures_are_counted_by_kubelets_names() {
        let fake = Arc::<FakeRuntime>::default();
        let operations = RuntimeOperations::default();
        let runtime = Runtime::new(operations.counted(Arc::clone(&fake) as Arc<_>));
        runtime.version(VersionRequest::default()).await.unwrap();
        fake.fail(path::pull_image, Some(CriError::new(CallCode::Unknown, "no")));
        runtime.pull_image(PullImageRequest::default()).await.unwrap_err();
        let mut registry = Registry::default();
        operations.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for row in [
            "_total{operation_type=\"version\"} 1\n",
            "_total{operation_type=\"pull_image\"} 1\n",
            "_errors_total{operation_type=\"pull_image\"} 1\n",
            "_duration_seconds_count{operation_type=\"pull_image\"} 1\n",
        ] {
            assert!(text.contains(&format!("kubelet_runtime_operations{row}")), "{row}{text}");
        }
        assert!(!text.contains("_errors_total{operation_type=\"version\"}"), "{text}");
    }

    #[test]
    fn operations_have_kubelets_names() {
        for (method, name) in [
            (path::run_pod_sandbox, "run_podsandbox"),
            (path::update_container_resources, "update_container"),
            (path::exec_sync, "exec_sync"),
            (path::image_fs_info, "image_fs_info"),
        ] {
            assert_eq!(operation_type(method), name);
        }
    }
}
