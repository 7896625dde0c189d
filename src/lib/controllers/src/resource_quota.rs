//! Resource quota: recalculates `status.used` after deletions and edits. (Admission counts
//! creations, without races.)

mod known;

use crate::monitor::{MetadataListener, Monitor, Observed};
use crate::queue::{Next, WorkQueue};
use crate::rest::{self, RequestOptions, code};
use crate::watching;
use ferrokube_client::{Discovered, DiscoveredResource, cause};
use ferrokube_trace::TraceContext;
use http::Method;
use k8s_openapi::api::core::v1::ResourceQuota;
use known::KnownQuotas;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const WORKERS: usize = 2;
/// Deletions come in bursts: minimum interval of recounts per namespace.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// As many times as long as the last recount of a namespace took, the next one waits: each key of
/// each quota is a list, and a deletion is one request. After an edit, it waits once as long.
const PAUSES: u32 = 10;
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Delay of the recount after a full list, which may be one of many, for deletions that were
/// missed.
const SETTLE: Duration = Duration::from_millis(500);

/// The quota keys that count the objects of a resource (group and plural), as in admission.
pub type CountedAs = fn(&str, &str) -> Vec<String>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct QuotaKey {
    namespace: String,
    name: String,
}

/// Requeues quotas on deletions seen by the monitor.
pub(crate) struct QuotaTracker {
    /// Namespaces with deletions, until their pause ends: then their quotas are queued, once for
    /// all of these. There may be ten thousand of both.
    namespaces: WorkQueue<String>,
    /// Namespaces take turns.
    queue: WorkQueue<QuotaKey>,
    known: Mutex<KnownQuotas>,
}

impl Default for QuotaTracker {
    fn default() -> Self {
        let queue = WorkQueue::in_turns(namespace_hash);
        Self { namespaces: WorkQueue::default(), queue, known: Mutex::default() }
    }
}

fn namespace_hash(quota: &QuotaKey) -> u32 {
    let mut hasher = DefaultHasher::new();
    quota.namespace.hash(&mut hasher);
    hasher.finish() as u32
}

impl QuotaTracker {
    /// A quota was created or changed: by its author, by a recount, or by a create that it counts.
    fn changed(&self, quota: QuotaKey, cause: Option<TraceContext>) {
        let mut known = self.known.lock();
        let [pause, rest] = match known.insert(&quota) {
            true => [Duration::ZERO; 2],
            false => [known.pause(&quota.namespace), known.rest(&quota.namespace)],
        };
        known.want(&quota, pause);
        self.queue.add_after(quota, cause, rest);
    }

    /// An object of the namespace was deleted.
    fn recount(&self, namespace: &str, cause: Option<TraceContext>) {
        let known = self.known.lock();
        if known.has(namespace) {
            self.namespaces.add_after(namespace.to_owned(), cause, known.pause(namespace));
        }
    }

    fn queue_all(&self, namespace: &str, cause: Option<TraceContext>) {
        let quotas = self.known.lock().want_all(namespace);
        quotas.into_iter().for_each(|quota| self.queue.add(quota, cause));
    }

    /// Queues the quotas of namespaces whose time it is. Runs until dropped.
    async fn queue_namespaces(self: &Arc<Self>) {
        let work = self.namespaces.run("resourcequota", 1, |namespace, trace| {
            let (quotas, cause) = (Arc::clone(self), trace.context().copied());
            async move {
                quotas.queue_all(&namespace, cause);
                Ok::<_, Infallible>(Next::Done)
            }
        });
        work.await;
    }
}

impl MetadataListener for QuotaTracker {
    /// The resource may be newly counted, or its objects deleted while it was not watched.
    fn list_ends(&self, resource: &DiscoveredResource) {
        if resource.namespaced {
            for namespace in self.known.lock().namespaces() {
                self.namespaces.add_after(namespace.to_owned(), None, SETTLE);
            }
        }
    }

    fn applied(&self, _resource: &DiscoveredResource, _object: &Observed) {}

    fn deleted(&self, _resource: &DiscoveredResource, object: &Observed) {
        if let Some(namespace) = &object.metadata.namespace {
            self.recount(namespace, object.cause);
        }
    }
}

/// Runs until dropped.
pub(crate) async fn run(
    client: Client,
    quotas: Arc<QuotaTracker>,
    monitor: Arc<Monitor>,
    counted_as: CountedAs,
) {
    let watch = watching::each(
        Api::<PartialObjectMeta<ResourceQuota>>::all(client.clone()),
        watcher::Config::default(),
        |quota, gone| {
            let namespace = quota.namespace().unwrap_or_default();
            let key = QuotaKey { namespace, name: quota.name_any() };
            match gone {
                true => quotas.known.lock().remove(&key),
                false => quotas.changed(key, cause(&quota.metadata)),
            }
        },
    );
    let work = quotas.queue.run("resourcequota", WORKERS, |key, trace| {
        let (client, monitor) = (trace.client(&client), Arc::clone(&monitor));
        let quotas = Arc::clone(&quotas);
        async move { reconcile(&client, &monitor, counted_as, &quotas, &key).await }
    });
    tokio::join!(watch, quotas.queue_namespaces(), work);
}

/// Counts a quota, unless it is too early for that.
async fn reconcile(
    client: &Client,
    monitor: &Monitor,
    counted_as: CountedAs,
    quotas: &QuotaTracker,
    key: &QuotaKey,
) -> Result<Next, kube::Error> {
    let QuotaKey { namespace, name } = key;
    let Some(quota) = read(client, namespace, name).await? else { return Ok(Next::Done) };
    let may_begin = quotas.known.lock().begin(key, is_edited(&quota));
    if let Err(left) = may_begin {
        return Ok(Next::After(left));
    }
    let begun = Instant::now();
    let counted = recount(client, monitor, counted_as, quota, key).await;
    let mut known = quotas.known.lock();
    known.took(key, begun.elapsed());
    match counted {
        Ok(Next::Done) => Ok(Next::Done),
        Ok(Next::After(least)) => {
            let pause = least.max(known.pause(namespace));
            known.want(key, pause);
            Ok(Next::After(known.rest(namespace)))
        }
        Err(error) => {
            // After its back-off.
            known.want(key, Duration::ZERO);
            Err(error)
        }
    }
}

/// Whether the limits are other ones than at the last recount, which copies them to the status.
fn is_edited(quota: &Value) -> bool {
    let hard = |of: &str| quota[of]["hard"].as_object().filter(|hard| !hard.is_empty());
    hard("spec") != hard("status")
}

async fn recount(
    client: &Client,
    monitor: &Monitor,
    counted_as: CountedAs,
    mut quota: Value,
    key: &QuotaKey,
) -> Result<Next, kube::Error> {
    let QuotaKey { namespace, name } = key;
    let path = format!("/api/v1/namespaces/{namespace}/resourcequotas/{name}");
    let hard = quota["spec"]["hard"].as_object().cloned().unwrap_or_default();
    let mut used = Map::new();
    // Scopes select pods only; no other object matches one.
    let scoped = quota["spec"]["scopes"].as_array().is_some_and(|scopes| !scopes.is_empty())
        || quota["spec"]["scopeSelector"].is_object();
    let known = monitor.known();
    // A quota may have tens of thousands of keys.
    let counted = counted(&known, counted_as);
    for resource in hard.keys() {
        if let Some(counted) = counted.get(resource) {
            let counted = if scoped { 0 } else { count(client, namespace, counted).await? };
            used.insert(resource.clone(), json!(counted.to_string()));
        } else if is_measured(resource) {
            used.insert(resource.clone(), json!("0"));
        } else if let Some(known) = quota["status"]["used"].get(resource) {
            // Not computed by this controller.
            used.insert(resource.clone(), known.clone());
        }
    }
    let status = json!({"hard": hard, "used": used});
    if quota["status"] == status {
        return Ok(Next::Done);
    }
    quota["status"] = status;
    match rest::send(
        client,
        Method::PUT,
        &format!("{path}/status"),
        RequestOptions { body: Some(&quota), ..RequestOptions::default() },
    )
    .await
    {
        Err(error) if code(&error) == 404 => Ok(Next::Done),
        // Admission counted concurrently: recount.
        Err(error) if code(&error) == 409 => Ok(Next::After(DEBOUNCE)),
        other => other.map(|_| Next::Done),
    }
}

/// Lists one item: the controller's role allows listing quotas, not getting one.
async fn read(client: &Client, namespace: &str, name: &str) -> Result<Option<Value>, kube::Error> {
    let path = format!(
        "/api/v1/namespaces/{namespace}/resourcequotas?fieldSelector=metadata.name%3D{name}"
    );
    let mut list = rest::send(client, Method::GET, &path, RequestOptions::default()).await?;
    Ok(list["items"].get_mut(0).map(Value::take))
}

/// The served resources by the quota keys that count them.
fn counted(discovered: &Discovered, counted_as: CountedAs) -> HashMap<String, &DiscoveredResource> {
    let mut counted = HashMap::new();
    for found in discovered.resources.iter().filter(|found| found.namespaced) {
        for key in counted_as(&found.resource.group, &found.resource.plural) {
            counted.entry(key).or_insert(found);
        }
    }
    counted
}

/// Usage that kube-controller-manager computes from pods, services and claims: none is computed
/// here, and that of resources that are not served is zero.
fn is_measured(key: &str) -> bool {
    matches!(
        key.strip_prefix("count/").unwrap_or(key),
        "pods" | "services" | "persistentvolumeclaims" | "replicationcontrollers"
    ) || matches!(
        key,
        "services.nodeports" | "services.loadbalancers" | "cpu" | "memory" | "ephemeral-storage"
    ) || ["requests.", "limits.", "hugepages-"].iter().any(|prefix| key.starts_with(prefix))
        || key.contains(".storageclass.storage.k8s.io/")
}

/// Number of objects, from a page of one item.
async fn count(
    client: &Client,
    namespace: &str,
    resource: &DiscoveredResource,
) -> Result<u64, kube::Error> {
    let path = format!("{}?limit=1", rest::path(&resource.resource, Some(namespace), ""));
    let list = rest::send(
        client,
        Method::GET,
        &path,
        RequestOptions { representation: rest::Representation::MetadataList, body: None },
    )
    .await?;
    let shown = list["items"].as_array().map_or(0, Vec::len) as u64;
    Ok(shown + list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::GroupVersionKind;
    use kube::discovery::ApiResource;

    fn key(namespace: &str, name: &str) -> QuotaKey {
        QuotaKey { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// A deletion costs its tenant one request, and the server a list for each key of each quota.
    #[tokio::test(start_paused = true)]
    async fn fault_34_recounts_of_a_namespace_take_a_part_of_the_time() {
        let quotas = Arc::<QuotaTracker>::default();
        for one in [key("n", "a"), key("n", "b"), key("m", "c")] {
            quotas.known.lock().insert(&one);
        }
        for name in ["a", "b"] {
            quotas.known.lock().took(&key("n", name), Duration::from_secs(1));
        }
        let began = Instant::now();
        quotas.recount("n", None);
        quotas.recount("m", None);
        let (sender, mut counted) = tokio::sync::mpsc::unbounded_channel();
        let work = quotas.queue.run("test", 1, move |key, _| {
            let sender = sender.clone();
            async move {
                let _ = sender.send((key.name, began.elapsed().as_millis() / 100));
                Ok::<_, std::io::Error>(Next::Done)
            }
        });
        let all = async {
            let mut all = Vec::new();
            while all.len() < 3 {
                all.extend(counted.recv().await);
            }
            all
        };
        let work = async { tokio::join!(quotas.queue_namespaces(), work) };
        let all = tokio::select! { _ = work => panic!("it runs until dropped"), all = all => all };
        let wanted = [("c", 1), ("a", 200), ("b", 200)];
        assert_eq!(all, wanted.map(|(name, tenths)| (name.to_owned(), tenths)));
        quotas.known.lock().remove(&key("n", "a"));
        assert_eq!(quotas.known.lock().pause("n"), Duration::from_secs(10));
        assert_eq!(quotas.known.lock().want_all("n"), [key("n", "b")]);
    }

    /// Else a tenant would occupy the watches of metadata, which the controllers share.
    #[tokio::test(start_paused = true)]
    async fn fault_34_many_deletions_queue_the_quotas_of_their_namespace_once() {
        const MANY: usize = 1_000;
        let quotas = Arc::<QuotaTracker>::default();
        let mut all: Vec<_> = (0..MANY).map(|at| key("n", &format!("q{at}"))).collect();
        all.push(key("m", "other"));
        all.iter().for_each(|one| _ = quotas.known.lock().insert(one));
        (0..MANY).for_each(|_| quotas.recount("n", None));
        quotas.recount("m", None);
        assert_eq!((quotas.queue.len(), quotas.namespaces.len()), (0, 2));
        let counted = Mutex::new(Vec::new());
        let work = quotas.queue.run("test", 1, |key, _| {
            counted.lock().push(key);
            std::future::ready(Ok::<_, std::io::Error>(Next::Done))
        });
        let counting = async {
            while counted.lock().len() < all.len() {
                tokio::time::sleep(DEBOUNCE).await;
            }
        };
        let work = async { tokio::join!(quotas.queue_namespaces(), work) };
        tokio::select! { _ = work => panic!("it runs until dropped"), () = counting => {} }
        let mut counted = counted.into_inner();
        let turn = counted.iter().position(|key| key.namespace == "m");
        assert!(turn.is_some_and(|turn| turn < 10), "it has the next turn: {turn:?}");
        counted.sort();
        all.sort();
        assert_eq!(counted, all, "each of them once");
    }

    /// When a quota is counted in 25 s of ten creates a second, each of which changes it. A recount
    /// takes a second. `is_edited`: since the last recount, by the time of that and the present.
    async fn recounts(is_edited: impl Fn(Option<Duration>, Duration) -> bool) -> Vec<Duration> {
        let (quotas, began) = (QuotaTracker::default(), Instant::now());
        let counted = Mutex::new(Vec::new());
        quotas.changed(key("n", "q"), None);
        let work = quotas.queue.run("test", 1, |key, _| {
            let (mut known, mut counted) = (quotas.known.lock(), counted.lock());
            let is_edited = is_edited(counted.last().copied(), began.elapsed());
            let next = match known.begin(&key, is_edited) {
                Err(left) => Next::After(left),
                Ok(()) => {
                    known.took(&key, Duration::from_secs(1));
                    counted.push(began.elapsed());
                    Next::Done
                }
            };
            async move { Ok::<_, std::io::Error>(next) }
        });
        let creates = async {
            while counted.lock().is_empty() {
                tokio::time::sleep(DEBOUNCE).await;
            }
            for _ in 0..250 {
                quotas.changed(key("n", "q"), None);
                tokio::time::sleep(DEBOUNCE).await;
            }
        };
        tokio::select! { () = work => panic!("it runs until dropped"), () = creates => {} }
        counted.into_inner()
    }

    /// Admission changes a quota with each create that it counts.
    #[tokio::test(start_paused = true)]
    async fn fault_34_creates_bring_no_recount_forward() {
        let counted = recounts(|_, _| false).await;
        let seconds: Vec<_> = counted.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [0, 10, 20], "the first at once");
    }

    #[tokio::test(start_paused = true)]
    async fn an_edit_of_a_quota_ends_the_pause() {
        const EDIT: Duration = Duration::from_secs(5);
        let counted =
            recounts(|last, now| now >= EDIT && last.is_none_or(|last| last < EDIT)).await;
        let [_, after_edit, next] = counted[..] else { panic!("{counted:?}") };
        assert!((5..=6).contains(&after_edit.as_secs()), "{counted:?}");
        assert!(next - after_edit >= Duration::from_secs(10), "{counted:?}");
        let counted = recounts(|_, _| true).await;
        assert!(counted.len() > 10, "{counted:?}");
        assert!(
            counted.windows(2).all(|two| two[1] - two[0] >= Duration::from_secs(1)),
            "edits in a row take a part of the time: {counted:?}"
        );
    }

    #[test]
    fn other_limits_than_those_of_the_status_are_an_edit() {
        let quota = |spec: Value, status: Value| json!({"spec": spec, "status": status});
        let hard = |limit: &str| json!({"hard": {"count/jobs.batch": limit}});
        assert!(is_edited(&quota(hard("1"), json!({}))));
        assert!(is_edited(&quota(hard("2"), hard("1"))));
        assert!(is_edited(&quota(json!({}), hard("1"))));
        assert!(!is_edited(&quota(hard("1"), hard("1"))));
        assert!(!is_edited(&quota(json!({}), json!({"hard": {}}))));
    }

    #[test]
    fn a_newly_served_resource_is_counted() {
        let quotas = QuotaTracker::default();
        quotas.known.lock().insert(&key("n", "q"));
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("ex.com", "v1", "Gear"),
            "gears",
        );
        quotas.list_ends(&DiscoveredResource {
            resource: resource.clone(),
            namespaced: false,
            verbs: Vec::new(),
        });
        assert!(quotas.namespaces.is_empty());
        quotas.list_ends(&DiscoveredResource { resource, namespaced: true, verbs: Vec::new() });
        assert_eq!(quotas.namespaces.len(), 1);
    }

    #[test]
    fn keys_name_resources() {
        let found = |group: &str, kind: &str, plural: &str| DiscoveredResource {
            resource: ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk(group, "v1", kind),
                plural,
            ),
            namespaced: true,
            verbs: Vec::new(),
        };
        let discovered = Discovered {
            resources: vec![found("", "ConfigMap", "configmaps"), found("batch", "Job", "jobs")],
            ..Discovered::default()
        };
        let counted_as: CountedAs = |group, plural| match group {
            "" => vec![format!("count/{plural}"), plural.to_owned()],
            group => vec![format!("count/{plural}.{group}")],
        };
        let counted = counted(&discovered, counted_as);
        let plural = |key: &str| counted.get(key).map(|found| found.resource.plural.as_str());
        assert_eq!(plural("configmaps"), Some("configmaps"));
        assert_eq!(plural("count/configmaps"), Some("configmaps"));
        assert_eq!(plural("count/jobs.batch"), Some("jobs"));
        assert_eq!(plural("jobs.batch"), None);
        assert_eq!(plural("requests.cpu"), None);
    }

    #[test]
    fn resources_that_are_not_served_have_no_usage() {
        for key in [
            "pods",
            "count/pods",
            "services",
            "services.nodeports",
            "replicationcontrollers",
            "cpu",
            "limits.memory",
            "requests.storage",
            "requests.example.com/gpu",
            "hugepages-2Mi",
            "gold.storageclass.storage.k8s.io/persistentvolumeclaims",
        ] {
            assert!(is_measured(key), "{key}");
        }
        for key in ["configmaps", "count/services.example.com", "count/jobs.batch", "x.io/y"] {
            assert!(!is_measured(key), "{key}");
        }
    }
}
