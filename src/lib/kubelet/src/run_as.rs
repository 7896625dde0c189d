//! `runAsNonRoot`: a container that would run as root is not created.

use crate::pod::NodePod;
use ferrokube_cri::ImageSummary;
use k8s_openapi::api::core::v1::Container;

/// Whether the container must not run as root, and specifies no user.
pub(crate) fn needs_image(pod: &NodePod, container: &Container) -> bool {
    must_not_be_root(pod, container) && user(pod, container).is_none()
}

fn must_not_be_root(pod: &NodePod, container: &Container) -> bool {
    let own = container.security_context.as_ref().and_then(|it| it.run_as_non_root);
    let of_pod = || pod.spec.security_context.as_ref().and_then(|it| it.run_as_non_root);
    own.or_else(of_pod) == Some(true)
}

fn user(pod: &NodePod, container: &Container) -> Option<i64> {
    let own = container.security_context.as_ref().and_then(|it| it.run_as_user);
    own.or_else(|| pod.spec.security_context.as_ref().and_then(|it| it.run_as_user))
}

/// Why a container may not run, with kubelet's message. `image` is the runtime's description of its
/// image, if [`needs_image`].
pub(crate) fn refusal(
    pod: &NodePod,
    container: &Container,
    image: Option<&ImageSummary>,
) -> Option<String> {
    if !must_not_be_root(pod, container) {
        return None;
    }
    let of = format!(
        "(pod: \"{}_{}({})\", container: {})",
        pod.name, pod.namespace, pod.uid, container.name
    );
    if let Some(user) = user(pod, container) {
        let why = format!("container's runAsUser breaks non-root policy {of}");
        return (user == 0).then_some(why);
    }
    let Some(image) = image else {
        return Some(format!("container has runAsNonRoot and its image is unknown {of}"));
    };
    match (image.uid.as_ref().map(|uid| uid.value), image.username.as_str()) {
        (Some(0), _) | (None, "") => {
            Some(format!("container has runAsNonRoot and image will run as root {of}"))
        }
        (Some(_), _) => None,
        (None, name) => Some(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user \
             is non-root {of}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_cri::Int64Value;
    use serde_json::{Value, json};

    fn refused(pod: Value, container: Value, user: Option<i64>, name: &str) -> Option<String> {
        let container = json!({"name": "c", "image": "i", "securityContext": container});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [container], "securityContext": pod}});
        let mut pod = NodePod::from_file(pod.to_string().as_bytes(), "n").unwrap();
        pod.uid = "u".to_owned();
        let image = ImageSummary {
            uid: user.map(|value| Int64Value { value }),
            username: name.to_owned(),
            ..ImageSummary::default()
        };
        let container = pod.spec.containers[0].clone();
        let image = needs_image(&pod, &container).then_some(&image);
        refusal(&pod, &container, image)
    }

    #[test]
    fn a_container_that_must_not_be_root_needs_a_number_that_is_not_0() {
        let (must, none) = (json!({"runAsNonRoot": true}), json!({}));
        let of = "(pod: \"p-n_ns(u)\", container: c)";
        let text = |why: &str| Some(format!("{why} {of}"));
        let root = text("container has runAsNonRoot and image will run as root");
        assert_eq!(refused(none.clone(), none.clone(), Some(0), ""), None);
        assert_eq!(refused(must.clone(), none.clone(), Some(0), ""), root);
        assert_eq!(refused(none.clone(), must.clone(), None, ""), root);
        assert_eq!(refused(must.clone(), none.clone(), Some(7), ""), None);
        let name = "container has runAsNonRoot and image has non-numeric user (web), cannot verify \
                    user is non-root";
        assert_eq!(refused(must.clone(), none.clone(), None, "web"), text(name));
        assert_eq!(refused(must.clone(), json!({"runAsNonRoot": false}), Some(0), ""), None);
        let user = |user: i64| json!({"runAsUser": user});
        let breaks = text("container's runAsUser breaks non-root policy");
        assert_eq!(refused(must.clone(), user(0), Some(7), ""), breaks);
        assert_eq!(refused(must.clone(), user(5), Some(0), ""), None);
        let both = json!({"runAsNonRoot": true, "runAsUser": 0});
        assert_eq!(refused(both.clone(), none, Some(7), ""), breaks);
        assert_eq!(refused(both, user(5), Some(0), ""), None);
    }
}
