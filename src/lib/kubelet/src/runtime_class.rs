//! RuntimeClasses: which of the runtime's configurations runs a pod.

use crate::objects::PodObjects;
use crate::pod::NodePod;

/// The runtime's configuration that a pod's class names; empty: its default.
///
/// # Errors
/// There is no such class, or it cannot be read; the message is kubelet's.
pub(crate) async fn handler(objects: &dyn PodObjects, pod: &NodePod) -> Result<String, String> {
    let Some(name) = pod.spec.runtime_class_name.as_deref().filter(|name| !name.is_empty()) else {
        return Ok(String::new());
    };
    match objects.runtime_class(name).await {
        Ok(Some(class)) => Ok(class.handler),
        Ok(None) => Err(format!("runtimeclass.node.k8s.io {name:?} not found")),
        Err(error) => Err(format!("failed to lookup RuntimeClass {name}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ApiPods;
    use crate::fixture::{self, RecordedEvents};
    use crate::objects::{NoObjects, ObjectFuture, PodObjectError};
    use ferrokube_cri::Runtime;
    use ferrokube_cri::testing::FakeRuntime;
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::api::node::v1::RuntimeClass;
    use parking_lot::Mutex;
    use serde_json::json;
    use std::sync::Arc;
    use std::time::Duration;

    /// The handler of the class `small`, once there is one; others cannot be read.
    #[derive(Default)]
    struct Classes(Mutex<Option<String>>);

    impl PodObjects for Classes {
        fn runtime_class<'a>(&'a self, name: &'a str) -> ObjectFuture<'a, RuntimeClass> {
            let class = |handler| RuntimeClass { handler, ..RuntimeClass::default() };
            let found = match name {
                "small" => Ok(self.0.lock().clone().map(class)),
                _ => Err(PodObjectError::Invalid("away".to_owned())),
            };
            Box::pin(std::future::ready(found))
        }
    }

    fn pod(class: Option<&str>) -> Pod {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "r.io/c:v1"}],
                "runtimeClassName": class},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[tokio::test]
    async fn a_class_that_cannot_be_read_is_not_the_default() {
        let classes = Classes::default();
        let of = async |class| handler(&classes, &NodePod::from_api(&pod(class)).unwrap()).await;
        assert_eq!(of(None).await.unwrap(), "");
        let why = of(Some("other")).await.unwrap_err();
        assert_eq!(why, "failed to lookup RuntimeClass other: away");
        let static_pod = NoObjects.runtime_class("small").await.unwrap_err().to_string();
        assert_eq!(static_pod, "a static pod cannot refer to runtimeclasses");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_waits_for_its_class_and_runs_with_its_handler() {
        let folder = tempfile::tempdir().unwrap();
        let classes = Arc::<Classes>::default();
        let runtime = Arc::<FakeRuntime>::default();
        let client = Runtime::new(Arc::clone(&runtime) as Arc<_>);
        let events = Arc::<RecordedEvents>::default();
        let fields = ", evictionHard: {memory.available: 0%}, imageGCHighThresholdPercent: 100";
        let kubelet =
            fixture::kubelet(client, fields, folder.path(), Arc::clone(&events) as Arc<_>)
                .objects(Arc::clone(&classes) as Arc<_>);
        let pods = Arc::<ApiPods>::default();
        pods.set([pod(Some("small"))]);
        let (node, _, loops) = kubelet.loops(Some(pods));
        let task = tokio::spawn(loops);
        let why = "Failed to create pod sandbox: runtimeclass.node.k8s.io \"small\" not found";
        let expected = ("FailedCreatePodSandBox", why.to_owned());
        while !events.0.lock().contains(&expected) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(runtime.sandboxes().is_empty());
        let status = node.statuses.of("u").unwrap();
        assert_eq!(status.phase.as_deref(), Some("Pending"));
        *classes.0.lock() = Some("tiny".to_owned());
        runtime.until(|runtime| !runtime.running("c").is_empty()).await;
        assert_eq!(runtime.sandboxes()[0].runtime_handler, "tiny");
        task.abort();
    }
}
