//! The controller: makes ordered toys.

use futures::TryStreamExt;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;

/// Runs until it is dropped.
pub async fn run(client: Client) {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("toy.example.com", "v1", "Toy"));
    let toys: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let changes = watcher(toys, watcher::Config::default()).default_backoff().applied_objects();
    // A failed watch is started again by the stream; a failed write by the next change.
    let ended = changes.try_for_each(async |toy| {
        if toy.data["status"]["phase"] == "Ordered" {
            let namespace = toy.namespace().unwrap_or_default();
            let toys: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &kind);
            let made = Patch::Merge(json!({"status": {"phase": "Made"}}));
            let name = toy.name_any();
            if let Err(error) = toys.patch_status(&name, &PatchParams::default(), &made).await {
                eprintln!("cannot make {namespace}/{name}: {error}");
            }
        }
        Ok(())
    });
    if let Err(error) = ended.await {
        eprintln!("the watch of toys ended: {error}");
    }
    std::future::pending().await
}
