//! Images that are present, and pods that have no right to pull them (KEP-2535).

use crate::node::{PullNode, parallel, request, settle};
use ferrokube_cri::testing::PullScript;
use ferrokube_cri::{CallCode, CriError, RegistryAuth};
use ferrokube_images::{CredentialVerification, ImageAccess, PullPolicy, PullRequest};
use std::path::Path;

const IMAGE: &str = "r.io/private:v1";

fn node(folder: &Path) -> PullNode {
    let mut node = PullNode::new(parallel(None));
    let file = folder.join("images.json");
    let access = ImageAccess::open(file, CredentialVerification::default()).expect("a file");
    node.manager = node.manager.accessed_by(access);
    node
}

fn with(pod: &str, own: Option<&str>, node: Option<&str>) -> PullRequest {
    let auth = |name: &str| RegistryAuth { username: name.to_owned(), ..RegistryAuth::default() };
    let credentials = own.into_iter().chain(node).map(auth).collect();
    let own_credentials = usize::from(own.is_some());
    PullRequest { credentials, own_credentials, ..request(pod, IMAGE) }
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_the_credentials_cannot_use_what_another_one_has_pulled() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let first = node(folder.path());
    first.runtime.add_image("r.io/preloaded:v1");
    first.pod("any", "r.io/preloaded:v1").await.expect("no panic").expect("preloaded");
    let alice = with("a", Some("alice"), None);
    assert!(first.manager.needs_credentials(&alice).await, "to pull it");
    first.spawn(alice.clone()).await.expect("no panic").expect("it is pulled");
    assert_eq!(first.runtime.pulled(), [IMAGE]);

    // Also in the next process.
    for node in [&first, &node(folder.path())] {
        node.runtime.add_image(IMAGE);
        let denied = CriError::new(CallCode::Unauthenticated, "401");
        node.runtime.script(IMAGE, PullScript::Fails(denied));
        let before = node.runtime.pulls().len();
        assert!(node.manager.needs_credentials(&alice).await, "to use it");
        node.spawn(alice.clone()).await.expect("no panic").expect("it is there");
        assert_eq!(node.runtime.pulls().len(), before);
        for other in [with("b", None, None), with("c", Some("bob"), None)] {
            let error = node.spawn(other).await.expect("no panic").unwrap_err();
            assert_eq!(error.reason, "ErrImagePull");
        }
        let never = PullRequest { policy: PullPolicy::Never, ..with("d", Some("bob"), None) };
        let error = node.spawn(never).await.expect("no panic").unwrap_err();
        assert_eq!(error.reason, "ErrImageNeverPull");
        let words = "is present with pull policy of Never but does not have the proper credentials";
        assert!(error.message.contains(words), "{error}");
        assert_eq!(node.runtime.pulls().len(), before + 2);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_node_may_pull_is_of_all_its_pods() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let node = node(folder.path());
    node.spawn(with("a", None, Some("node"))).await.expect("no panic").expect("it is pulled");
    let other = with("b", None, None);
    assert!(!node.manager.needs_credentials(&other).await);
    node.spawn(other).await.expect("no panic").expect("it is there");
    assert_eq!(node.runtime.pulls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_image_whose_pull_was_cut_off_is_not_preloaded() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let killed = node(folder.path());
    killed.runtime.script(IMAGE, PullScript::Waits);
    let pull = killed.spawn(with("a", Some("alice"), None));
    killed.runtime.until(|runtime| runtime.in_flight() == 1).await;
    let next = node(folder.path());
    next.runtime.add_image(IMAGE);
    next.spawn(with("b", None, None)).await.expect("no panic").expect("pulled by itself");
    assert_eq!(next.runtime.pulled(), [IMAGE]);
    pull.abort();
    settle().await;
}
