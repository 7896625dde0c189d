//! Runs static pods on a real container runtime, without a role or an API server:
//! `static_pods CONFIG ROOT`, where CONFIG is a KubeletConfiguration and ROOT an empty directory.

use ferrokube_cri::{Runtime, RuntimeSocket};
use ferrokube_images::{ImageManager, PodIdentity, PullEvent, PullEvents, PullMetrics};
use ferrokube_kubelet::{Kubelet, KubeletConfigFile, KubeletPaths};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

/// Events on standard output.
struct PrintedEvents;

impl PullEvents for PrintedEvents {
    fn report(&self, pod: &PodIdentity, event: PullEvent) {
        println!("{}/{} {}: {}", pod.namespace, pod.name, event.reason, event.message);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(config), Some(root)) = (arguments.next(), arguments.next()) else {
        return Err("usage: static_pods CONFIG ROOT".into());
    };
    let file = KubeletConfigFile::parse(&std::fs::read(config)?)?;
    for warning in &file.warnings {
        eprintln!("{warning}");
    }
    let config = file.settings.finish()?;
    let runtime = Runtime::new(Arc::new(RuntimeSocket::new(&config.container_runtime_endpoint)?))
        .within(Some(config.runtime_request_timeout));
    let image_service = Runtime::new(Arc::new(RuntimeSocket::new(&config.image_service_endpoint)?));
    let metrics = Arc::<PullMetrics>::default();
    let images = ImageManager::new(image_service, config.pulls, Arc::new(PrintedEvents), metrics);
    println!("the runtime takes the limit: {}", images.learn_capabilities().await?);
    let root = PathBuf::from(root);
    let paths = KubeletPaths { root, logs: config.pod_logs_dir.clone().into() };
    Kubelet::new("node", &config, runtime, images, paths).run().await;
    Ok(())
}
