//! Kubelets of unit tests.

use crate::config::KubeletConfigFile;
use crate::kubelet::Kubelet;
use crate::node::KubeletPaths;
use ferrokube_cri::Runtime;
use ferrokube_images::{ImageManager, PodIdentity, PullEvent, PullEvents, PullMetrics};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

/// Reasons and messages of events.
#[derive(Default)]
pub(crate) struct RecordedEvents(pub(crate) Mutex<Vec<(&'static str, String)>>);

impl PullEvents for RecordedEvents {
    fn report(&self, _: &PodIdentity, event: PullEvent) {
        self.0.lock().push((event.reason, event.message));
    }
}

/// A kubelet on a runtime, with these fields of its configuration (YAML, each with a comma before
/// it) and its files in a directory.
pub(crate) fn kubelet(
    runtime: Runtime,
    fields: &str,
    directory: &Path,
    events: Arc<dyn PullEvents>,
) -> Kubelet {
    let file = format!(
        "{{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, \
         registryPullQPS: 0{fields}}}"
    );
    let config = KubeletConfigFile::parse(file.as_bytes()).unwrap().settings.finish().unwrap();
    let metrics = Arc::<PullMetrics>::default();
    let images = ImageManager::new(runtime.clone(), config.pulls, Arc::clone(&events), metrics);
    let (root, logs) = (directory.join("root"), directory.join("logs"));
    Kubelet::new("n", &config, runtime, images, KubeletPaths { root, logs }).events(events)
}
