//! Storage version migration: rewrites the objects of a resource in the server's current storage
//! version.
//!
//! An empty merge patch suffices: the server rewrites only objects that it would now store
//! differently. It carries the listed uid and revision, so that an object written since, and thus
//! migrated, is not touched.

use crate::queue::{Next, WorkQueue};
use crate::rest::{self, MetadataPages, ObjectFacts, RequestOptions, code, is_absent};
use crate::watching;
use ferrokube_client::{Discovered, DiscoveredResource, cause};
use futures::stream::{self, StreamExt, TryStreamExt};
use http::Method;
use k8s_openapi::api::storagemigration::v1beta1::StorageVersionMigration;
use kube::core::PartialObjectMeta;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const GROUP_VERSION: &str = "storagemigration.k8s.io/v1beta1";
/// Concurrent writes.
const CONCURRENCY: usize = 8;
/// Condition reasons.
const IN_PROGRESS: &str = "StorageVersionMigrationInProgress";
const SUCCEEDED: &str = "StorageVersionMigrationSucceeded";
const FAILED: &str = "StorageVersionMigrationFailed";
/// How long to wait for a resource that is not served (yet).
const UNKNOWN: Duration = Duration::from_secs(60);

/// Whether the server serves this optional API.
///
/// # Errors
/// Any failure of the request.
pub(crate) async fn is_served(client: &Client) -> Result<bool, kube::Error> {
    match rest::send(
        client,
        Method::GET,
        &format!("/apis/{GROUP_VERSION}"),
        RequestOptions::default(),
    )
    .await
    {
        Err(error) if code(&error) == 404 => Ok(false),
        other => other.map(|_| true),
    }
}

/// Runs until dropped.
pub(crate) async fn run(client: Client) {
    let queue: WorkQueue<String> = WorkQueue::default();
    let watch = watching::each(
        Api::<PartialObjectMeta<StorageVersionMigration>>::all(client.clone()),
        watcher::Config::default(),
        |migration, gone| {
            if let (false, Some(name)) = (gone, migration.metadata.name.clone()) {
                queue.add(name, cause(&migration.metadata));
            }
        },
    );
    // One at a time: a migration is a flood of writes, without urgency.
    let work =
        queue.run("storage-migration", 1, move |name, trace| migrate(trace.client(&client), name));
    tokio::join!(watch, work);
}

fn path(name: &str) -> String {
    format!("/apis/{GROUP_VERSION}/storageversionmigrations/{name}")
}

async fn migrate(client: Client, name: String) -> Result<Next, kube::Error> {
    let migrations = ApiResource::erase::<StorageVersionMigration>(&());
    let Some(migration) =
        rest::get(&client, &migrations, None, &name, RequestOptions::default()).await?
    else {
        return Ok(Next::Done);
    };
    if ["Succeeded", "Failed"].iter().any(|kind| condition(&migration, kind) == Some("True")) {
        return Ok(Next::Done);
    }
    let wanted =
        |field: &str| migration["spec"]["resource"][field].as_str().unwrap_or_default().to_owned();
    let (group, plural) = (wanted("group"), wanted("resource"));
    let discovered = Discovered::query(&client).await?;
    let found = discovered
        .resources
        .into_iter()
        .find(|found| found.resource.group == group && found.resource.plural == plural);
    let Some(resource) = found else {
        if age(&migration) < UNKNOWN {
            return Ok(Next::After(Duration::from_secs(5)));
        }
        return finish(&client, &migration, "Failed", FAILED, "no such resource is served").await;
    };
    if !resource.has_verbs(&["list", "patch"]) {
        let why = "the resource cannot be listed and patched";
        return finish(&client, &migration, "Failed", FAILED, why).await;
    }
    begin(&client, &migration, &resource).await?;
    match write_all(&client, &resource).await {
        Ok(count) => {
            tracing::info!(k8s.name = name, resource = plural, count, "migrated objects");
            finish(&client, &migration, "Succeeded", SUCCEEDED, "all objects were written").await
        }
        // Retrying would fail again: an operator must inspect the object.
        Err(error) if is_refusal(&error) => {
            let why = format!(
                "an object cannot be written as it is: the server answers {}",
                code(&error)
            );
            finish(&client, &migration, "Failed", FAILED, &why).await
        }
        Err(error) => Err(error),
    }
}

/// Whether the server would refuse any retry, too.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(code(error), 400 | 403 | 405 | 413 | 415 | 422)
}

/// Records that the migration runs, and the resource's revision at its start.
async fn begin(
    client: &Client,
    migration: &Value,
    resource: &DiscoveredResource,
) -> Result<(), kube::Error> {
    if migration["status"]["resourceVersion"].as_str().unwrap_or_default().is_empty() {
        let page = rest::path(&resource.resource, None, "") + "?limit=1";
        let page = rest::send(
            client,
            Method::GET,
            &page,
            RequestOptions { representation: rest::Representation::MetadataList, body: None },
        )
        .await?;
        let body = json!({"status": {"resourceVersion": page["metadata"]["resourceVersion"]}});
        write_status(client, migration, &body).await?;
    }
    let message = "objects are being written";
    let running =
        MigrationCondition { kind: "Running", status: "True", reason: IN_PROGRESS, message };
    report(client, migration, &[running]).await
}

async fn write_status(client: &Client, migration: &Value, body: &Value) -> Result<(), kube::Error> {
    let name = migration["metadata"]["name"].as_str().unwrap_or_default();
    rest::send(
        client,
        Method::PATCH,
        &format!("{}/status", path(name)),
        RequestOptions { representation: rest::Representation::Whole, body: Some(body) },
    )
    .await
    .map(drop)
}

/// Time since the migration was created.
fn age(migration: &Value) -> Duration {
    let created: Option<jiff::Timestamp> =
        migration["metadata"]["creationTimestamp"].as_str().and_then(|text| text.parse().ok());
    let seconds =
        created.map_or(0, |created| jiff::Timestamp::now().as_second() - created.as_second());
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// Writes every object once. Restarts from the beginning after an error; migrated objects cost no
/// write.
async fn write_all(client: &Client, resource: &DiscoveredResource) -> Result<usize, kube::Error> {
    let collection = rest::path(&resource.resource, None, "");
    let (mut pages, mut count) = (MetadataPages::new(client, &collection), 0);
    while let Some(page) = pages.next().await? {
        count += page.objects.len();
        let writes: Vec<_> =
            page.objects.into_iter().map(|object| write(client, resource, object)).collect();
        stream::iter(writes).buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
    }
    Ok(count)
}

async fn write(
    client: &Client,
    resource: &DiscoveredResource,
    object: ObjectFacts,
) -> Result<(), kube::Error> {
    let path = rest::path(&resource.resource, object.namespace.as_deref(), &object.name);
    let body = json!({"metadata": {"uid": object.uid, "resourceVersion": object.resource_version}});
    match rest::send(
        client,
        Method::PATCH,
        &path,
        RequestOptions { representation: rest::Representation::Metadata, body: Some(&body) },
    )
    .await
    {
        // Deleted, or written since it was listed.
        Err(error)
            if code(&error) == 409 || is_absent(&error, &resource.resource, &object.name) =>
        {
            Ok(())
        }
        other => other.map(drop),
    }
}

fn condition<'a>(migration: &'a Value, kind: &str) -> Option<&'a str> {
    let conditions = migration["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
        .and_then(|condition| condition["status"].as_str())
}

/// A condition without its time.
struct MigrationCondition<'a> {
    kind: &'a str,
    status: &'static str,
    reason: &'a str,
    message: &'a str,
}

async fn finish(
    client: &Client,
    migration: &Value,
    kind: &str,
    reason: &str,
    message: &str,
) -> Result<Next, kube::Error> {
    let conditions = [("Running", "False"), (kind, "True")]
        .map(|(kind, status)| MigrationCondition { kind, status, reason, message });
    report(client, migration, &conditions).await?;
    Ok(Next::Done)
}

/// Writes conditions; unchanged ones keep their transition time.
async fn report(
    client: &Client,
    migration: &Value,
    changes: &[MigrationCondition<'_>],
) -> Result<(), kube::Error> {
    if changes.iter().all(|change| condition(migration, change.kind) == Some(change.status)) {
        return Ok(());
    }
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut conditions = migration["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|known| !changes.iter().any(|change| known["type"] == change.kind));
    conditions.extend(changes.iter().map(|change| {
        json!({"type": change.kind, "status": change.status, "lastTransitionTime": now,
               "reason": change.reason, "message": change.message})
    }));
    write_status(client, migration, &json!({"status": {"conditions": conditions}})).await
}
