//! A kubelet with static pods and a runtime in memory.

use ferrokube_cri::Runtime;
use ferrokube_cri::testing::FakeRuntime;
use ferrokube_images::{ImageManager, PodIdentity, PullEvent, PullEvents, PullMetrics};
use ferrokube_kubelet::{Kubelet, KubeletConfigFile, KubeletPaths, KubeletSettings};
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Messages of events, with their reasons.
#[derive(Default)]
pub(crate) struct SeenEvents(Mutex<Vec<(&'static str, String)>>);

impl PullEvents for SeenEvents {
    fn report(&self, _pod: &PodIdentity, event: PullEvent) {
        self.0.lock().expect("no test panicked with it").push((event.reason, event.message));
    }
}

pub(crate) struct StaticNode {
    folder: TempDir,
    pub(crate) runtime: Arc<FakeRuntime>,
    events: Arc<SeenEvents>,
}

impl StaticNode {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(folder.path().join("manifests")).expect("a new directory");
        Self { folder, runtime: Arc::default(), events: Arc::default() }
    }

    pub(crate) fn write(&self, file: &str, pod: &str) {
        let path = self.folder.path().join("manifests").join(file);
        fs::write(path, format!("apiVersion: v1\nkind: Pod\n{pod}")).expect("a writable file");
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.folder.path().join("manifests").join(file)).expect("it exists");
    }

    /// Removes the directory of manifests.
    pub(crate) fn remove_all(&self) {
        fs::remove_dir_all(self.folder.path().join("manifests")).expect("it exists");
    }

    /// Starts a kubelet; aborting it is a kill -9.
    pub(crate) fn kubelet(&self) -> JoinHandle<()> {
        self.kubelet_with("")
    }

    /// With these fields of its KubeletConfiguration.
    pub(crate) fn kubelet_with(&self, fields: &str) -> JoinHandle<()> {
        let file = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}"
        );
        let manifests = self.folder.path().join("manifests").display().to_string();
        let mut settings = KubeletSettings {
            static_pod_path: Some(manifests),
            registry_pull_qps: Some(0),
            ..KubeletConfigFile::parse(file.as_bytes()).expect("it decodes").settings
        };
        // Whatever is left on this machine.
        let off = || BTreeMap::from([("memory.available".to_owned(), "0%".to_owned())]);
        settings.housekeeping.eviction.hard.get_or_insert_with(off);
        settings.housekeeping.image_high_percent.get_or_insert(100);
        let config = settings.finish().expect("a right configuration");
        let runtime = Runtime::new(Arc::clone(&self.runtime) as Arc<_>);
        let metrics = Arc::<PullMetrics>::default();
        let events = || Arc::clone(&self.events) as Arc<dyn PullEvents>;
        let images = ImageManager::new(runtime.clone(), config.pulls, events(), metrics);
        let root = self.folder.path().join("root");
        let paths = KubeletPaths { root, logs: self.folder.path().join("logs") };
        let kubelet = Kubelet::new("n1", &config, runtime, images, paths).events(events());
        tokio::spawn(kubelet.run())
    }

    /// Messages of events for this reason.
    pub(crate) fn events(&self, reason: &str) -> Vec<String> {
        let events = self.events.0.lock().expect("no test panicked with it");
        events.iter().filter(|(own, _)| *own == reason).map(|(_, text)| text.clone()).collect()
    }
}
