//! Namespace lifecycle: a namespace that is being deleted loses its content, then its finalizer.

use crate::queue::{Next, Queue};
use crate::rest::{self, Ask, code};
use crate::watching;
use ferrokube_client::{Discovered, DiscoveredResource, cause};
use http::Method;
use k8s_openapi::api::core::v1::Namespace;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const WORKERS: usize = 5;
/// Until the next look at a namespace whose content waits for finalizers or grace.
const RECHECK: Duration = Duration::from_secs(1);
/// The finalizer that this controller owns, in `spec.finalizers`.
const FINALIZER: &str = "kubernetes";

/// Works until dropped.
pub(crate) async fn run(client: Client) {
    let queue: Queue<String> = Queue::default();
    let watch = watching::each(Api::<Namespace>::all(client.clone()), watcher::Config::default(), |namespace, gone| {
        if !gone && namespace.metadata.deletion_timestamp.is_some() {
            queue.add(namespace.name_any(), cause(&namespace.metadata));
        }
    });
    let work = queue.run("namespace", WORKERS, move |name, action| reconcile(action.client(&client), name));
    tokio::join!(watch, work);
}

/// What the conditions say after one pass.
#[derive(Default)]
struct Findings {
    discovery: Option<String>,
    deletion: Vec<String>,
    /// Objects that are left, by resource.
    remaining: BTreeMap<String, u64>,
    /// Objects that are left, by the finalizer that holds them.
    finalizers: BTreeMap<String, u64>,
}

async fn reconcile(client: Client, name: String) -> Result<Next, kube::Error> {
    let path = format!("/api/v1/namespaces/{name}");
    let namespaces = ApiResource::erase::<Namespace>(&());
    let Some(namespace) = rest::get(&client, &namespaces, None, &name, Ask::default()).await? else { return Ok(Next::Done) };
    let finalizers: Vec<&Value> = namespace["spec"]["finalizers"].as_array().into_iter().flatten().collect();
    if namespace["metadata"]["deletionTimestamp"].is_null() || !finalizers.iter().any(|finalizer| *finalizer == FINALIZER) {
        return Ok(Next::Done);
    }
    let mut findings = Findings::default();
    let discovered = Discovered::query(&client).await?;
    if !discovered.unavailable.is_empty() {
        findings.discovery = Some(format!("cannot tell what is in {}", discovered.unavailable.join(", ")));
    }
    clear(&client, &name, &discovered, &mut findings).await;
    let left = findings.remaining.values().sum::<u64>() > 0;
    let blocked = findings.discovery.is_some() || !findings.deletion.is_empty();
    if left || blocked {
        write_conditions(&client, &path, namespace, &findings).await?;
        return Ok(Next::After(RECHECK));
    }
    let kept: Vec<&Value> = finalizers.into_iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    let mut finalized = namespace.clone();
    finalized["spec"]["finalizers"] = json!(kept);
    match rest::send(&client, Method::PUT, &format!("{path}/finalize"), Ask { body: Some(&finalized), ..Ask::default() }).await {
        Err(error) if code(&error) == 404 => Ok(Next::Done),
        // Changed meanwhile: look again at once.
        Err(error) if code(&error) == 409 => Ok(Next::After(Duration::ZERO)),
        other => other.map(|_| Next::Done),
    }
}

/// Deletes everything in the namespace, pods first (so that policies outlive what they protect: KEP-5080), and counts what stays.
async fn clear(client: &Client, namespace: &str, discovered: &Discovered, findings: &mut Findings) {
    let deletable = |found: &&DiscoveredResource| found.namespaced && found.has_verbs(&["list", "delete"]);
    let (first, rest): (Vec<_>, Vec<_>) =
        discovered.resources.iter().filter(deletable).partition(|found| found.resource.plural == "pods" && found.resource.group.is_empty());
    for resource in first {
        clear_resource(client, namespace, resource, findings).await;
    }
    if findings.remaining.values().sum::<u64>() > 0 {
        return;
    }
    for resource in rest {
        clear_resource(client, namespace, resource, findings).await;
    }
}

async fn clear_resource(client: &Client, namespace: &str, resource: &DiscoveredResource, findings: &mut Findings) {
    let name = crate::monitor::qualified(resource);
    let path = rest::path(&resource.resource, Some(namespace), "");
    let outcome = async {
        if resource.has_verbs(&["deletecollection"]) {
            rest::send(client, Method::DELETE, &path, Ask { metadata_only: true, body: None }).await?;
        }
        let list = rest::send(client, Method::GET, &path, Ask { metadata_only: true, body: None }).await?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        if !resource.has_verbs(&["deletecollection"]) {
            for item in &items {
                let object = rest::path(&resource.resource, Some(namespace), item["metadata"]["name"].as_str().unwrap_or_default());
                rest::send(client, Method::DELETE, &object, Ask { metadata_only: true, body: None }).await?;
            }
        }
        Ok::<_, kube::Error>(items)
    }
    .await;
    match outcome {
        Ok(items) if items.is_empty() => {}
        Ok(items) => {
            for finalizer in items.iter().flat_map(|item| item["metadata"]["finalizers"].as_array().into_iter().flatten()).filter_map(Value::as_str) {
                *findings.finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
            findings.remaining.insert(name, items.len() as u64);
        }
        // Not served any more, or not deletable as a collection: discovery was older.
        Err(error) if matches!(code(&error), 404 | 405) => {}
        Err(error) => findings.deletion.push(format!("{name}: {error}")),
    }
}

/// The five conditions; written only when one of them changes.
async fn write_conditions(client: &Client, path: &str, mut namespace: Value, findings: &Findings) -> Result<(), kube::Error> {
    let old = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut conditions: Vec<Value> = old.iter().filter(|condition| !wanted(findings).iter().any(|(kind, ..)| condition["type"] == *kind)).cloned().collect();
    for (kind, failing, reason, message) in wanted(findings) {
        let status = if failing { "True" } else { "False" };
        let present = old.iter().find(|condition| condition["type"] == kind);
        let since = present.filter(|condition| condition["status"] == status).map_or_else(|| json!(now), |condition| condition["lastTransitionTime"].clone());
        conditions.push(json!({"type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message}));
    }
    if conditions == old {
        return Ok(());
    }
    namespace["status"]["conditions"] = Value::Array(conditions);
    match rest::send(client, Method::PUT, &format!("{path}/status"), Ask { body: Some(&namespace), ..Ask::default() }).await {
        Err(error) if matches!(code(&error), 404 | 409) => Ok(()),
        other => other.map(drop),
    }
}

fn wanted(findings: &Findings) -> [(&'static str, bool, &'static str, String); 5] {
    let count = |counts: &BTreeMap<String, u64>, noun: &str| {
        counts.iter().map(|(name, count)| format!("{name} {noun} {count} resource instances")).collect::<Vec<_>>().join(", ")
    };
    let pick = |failing: bool, bad: &'static str, good: &'static str| if failing { bad } else { good };
    let (discovery, deletion) = (findings.discovery.is_some(), !findings.deletion.is_empty());
    let (left, held) = (!findings.remaining.is_empty(), !findings.finalizers.is_empty());
    let say = |failing: bool, bad: String, good: &str| if failing { bad } else { good.to_owned() };
    [
        (
            "NamespaceDeletionDiscoveryFailure",
            discovery,
            pick(discovery, "DiscoveryFailed", "ResourcesDiscovered"),
            say(discovery, findings.discovery.clone().unwrap_or_default(), "Everything that is served was found"),
        ),
        ("NamespaceDeletionGroupVersionParsingFailure", false, "ParsedGroupVersions", "Every group version could be read".to_owned()),
        (
            "NamespaceDeletionContentFailure",
            deletion,
            pick(deletion, "ContentDeletionFailed", "ContentDeleted"),
            say(deletion, findings.deletion.join("; "), "Every deletion was accepted"),
        ),
        (
            "NamespaceContentRemaining",
            left,
            pick(left, "SomeResourcesRemain", "ContentRemoved"),
            say(left, format!("Some resources are remaining: {}", count(&findings.remaining, "has")), "Nothing is left"),
        ),
        (
            "NamespaceFinalizersRemaining",
            held,
            pick(held, "SomeFinalizersRemain", "ContentHasNoFinalizers"),
            say(held, format!("Some content has finalizers remaining: {}", count(&findings.finalizers, "in")), "Nothing that is left has finalizers"),
        ),
    ]
}
