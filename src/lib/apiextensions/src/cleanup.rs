//! Removes the objects of a definition that is being deleted, then its finalizer.

use super::fields::text;
use super::status::{self, Condition};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::catalog::Served;
use ferrokube_registry::{DeleteOptions, ListOptions, Local, Registry, Target};
use ferrokube_resource::Definition;
use ferrokube_storage::Prefix;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Delay before a failed status write or removal is retried.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// Keeps a definition until its objects are gone.
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Interval of checks of objects that their own finalizers hold.
const RECHECK_EVERY: Duration = Duration::from_secs(5);

/// Whether the definition's objects have to be removed.
pub(super) fn is_due(object: &Document) -> bool {
    object.is_terminating()
        && object.list(&["metadata", "finalizers"]).iter().any(|name| name == FINALIZER)
}

/// Removes the objects, however long their finalizers take. Returns the definition's name.
pub(super) async fn remove(
    registry: Registry,
    client: Local,
    definition: Arc<Definition>,
    name: String,
) -> String {
    if let Err(failure) = try_remove(&registry, &client, definition, &name).await {
        tracing::warn!(k8s.name = name, error = %failure, "cannot remove the objects of a custom resource definition yet");
        tokio::time::sleep(RETRY).await;
    }
    name
}

async fn try_remove(
    registry: &Registry,
    client: &Local,
    definition: Arc<Definition>,
    name: &str,
) -> Result<(), Failure> {
    let version = definition.storage_version;
    let prefix = Prefix::new(definition.storage_prefix.as_deref().unwrap_or_default())
        .map_err(|error| Failure::internal(error.to_string()))?;
    let target = Target {
        served: Served { definition, version },
        namespace: None,
        name: None,
        subresource: String::new(),
    };
    let mut first = true;
    loop {
        let snapshot = registry.store().snapshot(&prefix);
        if snapshot.count(None, None) == 0 {
            return finish(client, name).await;
        }
        if first {
            progress(client, name, true).await?;
            first = false;
        }
        registry
            .delete_collection(
                &Local::context(),
                &target,
                &DeleteOptions::default(),
                &ListOptions::default(),
            )
            .await?;
        if let Ok(mut cursor) =
            registry.store().watch(&prefix, registry.store().snapshot(&prefix).revision)
            && registry.store().snapshot(&prefix).count(None, None) > 0
        {
            let _ = tokio::time::timeout(RECHECK_EVERY, cursor.next(256)).await;
        }
    }
}

/// Reports progress in the status.
async fn progress(client: &Local, name: &str, running: bool) -> Result<(), Failure> {
    let Some(mut object) = client.get("", name).await? else { return Ok(()) };
    let (reason, message) = if running {
        ("InstanceDeletionInProgress", "CustomResource deletion is in progress")
    } else {
        ("InstanceDeletionCompleted", "removed all instances")
    };
    let message = message.to_owned();
    let terminating = Condition { kind: "Terminating", status: running, reason, message };
    status::set(&mut object, &terminating, SystemTime::now());
    ignore_conflict(client.update(object, "status").await)
}

/// Ignores conflicts: the condition is informational, and is written again.
fn ignore_conflict(result: Result<Document, Failure>) -> Result<(), Failure> {
    match result {
        Err(failure) if !matches!(failure.reason, Some(Reason::Conflict | Reason::NotFound)) => {
            Err(failure)
        }
        _ => Ok(()),
    }
}

async fn finish(client: &Local, name: &str) -> Result<(), Failure> {
    let Some(mut object) = client.get("", name).await? else { return Ok(()) };
    if !is_due(&object) {
        return Ok(());
    }
    let mut finalizers = object.list(&["metadata", "finalizers"]).to_vec();
    finalizers.retain(|name| name != FINALIZER);
    object.set(&["metadata", "finalizers"], finalizers);
    let gone = |condition: &Value| {
        text(condition, "type") == "Terminating" && text(condition, "status") == "False"
    };
    debug_assert!(
        !object.list(&["status", "conditions"]).iter().any(gone),
        "it was not finished before"
    );
    match client.update(object, "").await {
        // A concurrent write: retry once.
        Err(failure) if failure.reason == Some(Reason::Conflict) => Err(failure),
        other => ignore_conflict(other),
    }
}
