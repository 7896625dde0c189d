//! Counts and deletes a namespace's content, resource by resource.

use crate::monitor::qualified;
use crate::rest::{self, MetadataPages, ObjectFacts, RequestOptions, code, is_absent};
use ferrokube_client::DiscoveredResource;
use http::Method;
use k8s_openapi::api::core::v1::Namespace;
use kube::discovery::ApiResource;
use kube::{Client, Error};
use serde_json::json;
use std::collections::BTreeMap;

/// Names kept for individual deletions; the rest waits for the next pass.
const MAX_NAMES: usize = 10_000;
/// Finalizers that are counted; objects have as many different ones as their authors like.
const MAX_FINALIZERS: usize = 1_000;

/// The namespace being emptied, and no later one of the same name.
///
/// A manager that lost leadership while paused resumes where it was. So only objects that were seen
/// are deleted, each as it was seen, and only after checking that the namespace still exists with
/// the same uid: then all that was seen was in it.
#[derive(Clone, Copy)]
pub(super) struct TerminatingNamespace<'a> {
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
}

impl TerminatingNamespace<'_> {
    async fn is_there(&self, client: &Client) -> Result<bool, Error> {
        let namespaces = ApiResource::erase::<Namespace>(&());
        let ask = RequestOptions { representation: rest::Representation::Metadata, body: None };
        Ok(rest::get(client, &namespaces, None, self.name, ask)
            .await?
            .is_some_and(|found| found["metadata"]["uid"] == self.uid))
    }
}

/// Findings of one pass.
#[derive(Default)]
pub(super) struct Findings {
    /// Why discovery is incomplete.
    pub(super) discovery: Option<String>,
    /// Failures to count or delete content.
    pub(super) deletion: Vec<String>,
    /// Resources not found, with the response: gone with their definition, or now served in another
    /// version.
    pub(super) missing: Vec<(DiscoveredResource, String)>,
    /// Remaining objects by resource.
    pub(super) remaining: BTreeMap<String, u64>,
    /// Remaining objects by finalizer.
    pub(super) finalizers: BTreeMap<String, u64>,
    /// Resources with remaining objects.
    pub(super) held: Vec<DiscoveredResource>,
}

impl Findings {
    /// Whether everything was checked and nothing remains.
    pub(super) fn is_empty(&self) -> bool {
        self.remaining.is_empty() && !self.failed()
    }

    /// Whether anything could not be checked or deleted.
    pub(super) fn failed(&self) -> bool {
        self.discovery.is_some() || !self.deletion.is_empty() || !self.missing.is_empty()
    }

    /// A missing resource that is served counts as a failure; others merely require another pass.
    pub(super) fn classify_missing(&mut self, is_served: impl Fn(&DiscoveredResource) -> bool) {
        let told = self
            .missing
            .iter()
            .filter(|(resource, _)| is_served(resource))
            .map(|(_, why)| why.clone());
        self.deletion.extend(told);
    }

    fn add(&mut self, resource: &DiscoveredResource, outcome: Result<ContentCount, Error>) {
        match outcome {
            Ok(census) if census.left == 0 => {}
            Ok(census) => {
                for (finalizer, count) in census.finalizers {
                    *self.finalizers.entry(finalizer).or_default() += count;
                }
                self.remaining.insert(qualified(resource), census.left);
                self.held.push(resource.clone());
            }
            Err(error) if code(&error) == 404 => {
                self.missing.push((resource.clone(), format!("{}: {error}", qualified(resource))))
            }
            Err(error) => self.deletion.push(format!("{}: {error}", qualified(resource))),
        }
    }
}

/// Whether namespaced objects of the resource can be listed and deleted.
pub(super) fn is_content(resource: &DiscoveredResource) -> bool {
    resource.namespaced && resource.has_verbs(&["list", "delete"])
}

/// Deletes the content of these resources, pods first (so that policies outlive what they protect:
/// KEP-5080), and counts the rest.
pub(super) async fn clear(
    client: &Client,
    namespace: TerminatingNamespace<'_>,
    resources: &[DiscoveredResource],
    findings: &mut Findings,
) {
    let is_pods = |found: &&DiscoveredResource| {
        found.resource.plural == "pods" && found.resource.group.is_empty()
    };
    let (pods, others): (Vec<_>, Vec<_>) =
        resources.iter().filter(|found| is_content(found)).partition(is_pods);
    for resource in pods {
        findings.add(resource, empty(client, namespace, resource).await);
    }
    if !findings.remaining.is_empty() || !findings.deletion.is_empty() {
        return;
    }
    for resource in others {
        findings.add(resource, empty(client, namespace, resource).await);
    }
}

/// Deletes the objects of one resource that are not being deleted yet, and counts the rest.
async fn empty(
    client: &Client,
    namespace: TerminatingNamespace<'_>,
    resource: &DiscoveredResource,
) -> Result<ContentCount, Error> {
    let path = rest::path(&resource.resource, Some(namespace.name), "");
    let census = match ContentCount::take(client, &path).await {
        // Unsupported, so nothing is there, as in kube-controller-manager: a kind with the plural
        // `status` must not hold namespaces. A version that is no longer served changes what
        // discovery returns after the pass.
        Err(error) if is_unsupported(&error) => return Ok(ContentCount::default()),
        census => census?,
    };
    // If the namespace is gone, the next pass finds out.
    if census.untouched.is_empty() || !namespace.is_there(client).await? {
        return Ok(census);
    }
    // A collection delete touches every object: use it on the first pass only.
    let first = census.untouched.len() as u64 == census.left.min(MAX_NAMES as u64);
    let together = first
        && resource.has_verbs(&["deletecollection"])
        && delete_all(client, &path, &census.revision).await?;
    if !together {
        delete_each(client, namespace.name, resource, &census.untouched).await?;
    }
    ContentCount::take(client, &path).await
}

/// Deletes a collection at a revision. Returns false if the server does not support it.
async fn delete_all(client: &Client, path: &str, revision: &str) -> Result<bool, Error> {
    let path = format!("{path}?resourceVersion={revision}&resourceVersionMatch=Exact");
    // In the body: without one the version would be a precondition on every object.
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    match rest::send_only(
        client,
        Method::DELETE,
        &path,
        RequestOptions { representation: rest::Representation::MetadataList, body: Some(&options) },
    )
    .await
    {
        Err(error) if is_unsupported(&error) => Ok(false),
        other => other.map(|_| true),
    }
}

/// Whether the server has no such request on the resource.
fn is_unsupported(error: &Error) -> bool {
    matches!(code(error), 404 | 405)
}

/// A refused delete does not stop the others; the first refusal is returned.
async fn delete_each(
    client: &Client,
    namespace: &str,
    resource: &DiscoveredResource,
    seen: &[(String, String)],
) -> Result<(), Error> {
    let mut refused = Ok(());
    for (name, uid) in seen {
        let path = rest::path(&resource.resource, Some(namespace), name);
        let options =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}});
        match rest::send(
            client,
            Method::DELETE,
            &path,
            RequestOptions { representation: rest::Representation::Metadata, body: Some(&options) },
        )
        .await
        {
            // The name belongs to another object by now.
            Err(error) if code(&error) == 409 => {}
            Err(error) if !is_absent(&error, &resource.resource, name) && refused.is_ok() => {
                refused = Err(error)
            }
            _ => {}
        }
    }
    refused
}

/// Number of a resource's objects in a namespace.
#[derive(Default)]
struct ContentCount {
    left: u64,
    finalizers: BTreeMap<String, u64>,
    /// Names and uids of objects not being deleted, up to [`MAX_NAMES`].
    untouched: Vec<(String, String)>,
    /// Revision of the count.
    revision: String,
}

impl ContentCount {
    /// Counts page by page.
    async fn take(client: &Client, path: &str) -> Result<Self, Error> {
        let mut census = Self::default();
        let mut pages = MetadataPages::new(client, path);
        while let Some(page) = pages.next().await? {
            page.objects.into_iter().for_each(|object| census.count(object));
            census.revision = page.resource_version;
        }
        Ok(census)
    }

    fn count(&mut self, object: ObjectFacts) {
        self.left += 1;
        for finalizer in object.finalizers {
            if self.finalizers.len() < MAX_FINALIZERS || self.finalizers.contains_key(&finalizer) {
                *self.finalizers.entry(finalizer).or_default() += 1;
            }
        }
        if object.deletion_timestamp.is_none() && self.untouched.len() < MAX_NAMES {
            self.untouched.push((object.name, object.uid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use kube::core::{GroupVersionKind, Status};
    use parking_lot::Mutex;
    use std::sync::Arc;

    fn served(group: &str, kind: &str, verbs: &[&str]) -> DiscoveredResource {
        let plural = format!("{}s", kind.to_lowercase());
        let kind = GroupVersionKind::gvk(group, "v1", kind);
        DiscoveredResource {
            resource: ApiResource::from_gvk_with_plural(&kind, &plural),
            namespaced: true,
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        }
    }

    fn gears(verbs: &[&str]) -> DiscoveredResource {
        served("ex.com", "Gear", verbs)
    }

    /// Requests sent to a server with one gear in a namespace with this uid: methods, paths and
    /// bodies.
    async fn sent(verbs: &[&str], uid: &'static str) -> Vec<String> {
        let sent: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = sent.clone();
        let server = tower::service_fn(move |request: Request<Body>| {
            let seen = seen.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body in memory");
                seen.lock().push(format!(
                    "{} {} {}",
                    head.method,
                    head.uri,
                    String::from_utf8_lossy(&body)
                ));
                let answer = match head.uri.path() {
                    "/api/v1/namespaces/n" => json!({"metadata": {"name": "n", "uid": uid}}),
                    _ => {
                        json!({"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a", "uid": "u-a"}}]})
                    }
                };
                Ok::<_, std::io::Error>(Response::new(Body::from(answer.to_string().into_bytes())))
            }
        });
        let client = Client::new(server, "default");
        empty(&client, TerminatingNamespace { name: "n", uid: "u-n" }, &gears(verbs))
            .await
            .expect("answered");
        let mut sent = std::mem::take(&mut *sent.lock());
        sent.retain(|request| request.starts_with("DELETE"));
        sent
    }

    #[tokio::test]
    async fn fault_31_only_what_was_in_this_very_namespace_is_deleted() {
        let path = "/apis/ex.com/v1/namespaces/n/gears";
        let options = r#"{"apiVersion":"v1","kind":"DeleteOptions""#;
        let want =
            format!("DELETE {path}?resourceVersion=7&resourceVersionMatch=Exact {options}}}");
        assert_eq!(sent(&["list", "delete", "deletecollection"], "u-n").await, [want]);
        let want = format!(r#"DELETE {path}/a {options},"preconditions":{{"uid":"u-a"}}}}"#);
        assert_eq!(sent(&["list", "delete"], "u-n").await, [want]);
        // Recreated since the pass began: the content belongs to the new namespace.
        assert!(sent(&["list", "delete", "deletecollection"], "another").await.is_empty());
    }

    #[tokio::test]
    async fn a_kind_that_cannot_be_listed_holds_no_namespace() {
        for (code, is_empty) in [(404, true), (405, true), (403, false), (500, false)] {
            let server = tower::service_fn(move |request: Request<Body>| async move {
                assert_eq!(request.method(), Method::GET);
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code});
                Ok::<_, std::io::Error>(
                    Response::builder()
                        .status(code)
                        .body(Body::from(status.to_string().into_bytes()))
                        .expect("a response"),
                )
            });
            let mut findings = Findings::default();
            let namespace = TerminatingNamespace { name: "n", uid: "u-n" };
            clear(
                &Client::new(server, "default"),
                namespace,
                &[gears(&["list", "delete"])],
                &mut findings,
            )
            .await;
            assert_eq!(findings.is_empty(), is_empty, "{code}");
        }
    }

    /// Policies outlive what they protect.
    #[tokio::test]
    async fn fault_27_pods_are_deleted_before_anything_else() {
        let ending =
            json!({"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        for (code, pods, is_over) in
            [(200, vec![], true), (200, vec![ending], false), (500, vec![], false)]
        {
            let asked: Arc<Mutex<Vec<String>>> = Arc::default();
            let seen = asked.clone();
            let server = tower::service_fn(move |request: Request<Body>| {
                let path = request.uri().path().to_owned();
                let (code, items) = match path.ends_with("/pods") {
                    true => (code, pods.clone()),
                    false => (200, vec![]),
                };
                seen.lock().push(path);
                let answer = json!({"metadata": {"resourceVersion": "7"}, "items": items,
                    "kind": "Status", "status": "Failure", "code": code});
                let response = Response::builder()
                    .status(code)
                    .body(Body::from(answer.to_string().into_bytes()))
                    .expect("a response");
                std::future::ready(Ok::<_, std::io::Error>(response))
            });
            let verbs = ["list", "delete"];
            clear(
                &Client::new(server, "default"),
                TerminatingNamespace { name: "n", uid: "u-n" },
                &[gears(&verbs), served("", "Pod", &verbs)],
                &mut Findings::default(),
            )
            .await;
            let asked = asked.lock();
            assert!(asked[0].ends_with("/pods"), "{asked:?}");
            assert_eq!(asked.iter().any(|path| path.ends_with("/gears")), is_over, "{asked:?}");
        }
    }

    #[test]
    fn a_resource_that_is_not_found_is_not_empty() {
        let gears = gears(&[]);
        let mut findings = Findings::default();
        findings.add(&gears, Ok(ContentCount::default()));
        assert!(findings.is_empty());
        for code in [404, 405] {
            let status: Status =
                serde_json::from_value(json!({"status": "Failure", "code": code})).unwrap();
            let mut findings = Findings::default();
            findings.add(&gears, Err(Error::Api(Box::new(status))));
            assert!(!findings.is_empty() && findings.failed(), "{code}");
            // What went with its definition is not reported.
            findings.classify_missing(|_| false);
            assert_eq!(findings.deletion.is_empty(), code == 404, "{code}");
            findings.classify_missing(|_| true);
            assert!(!findings.deletion.is_empty(), "{code}");
        }
    }

    #[test]
    fn terminating_objects_are_counted_and_left_alone() {
        let mut census = ContentCount::default();
        let facts = |metadata| serde_json::from_value(metadata).expect("metadata");
        census.count(facts(json!({"name": "a", "uid": "u", "finalizers": ["x/y"]})));
        census.count(facts(json!({"name": "b", "finalizers": ["x/y", "z"], "deletionTimestamp": "2026-01-01T00:00:00Z"})));
        assert_eq!((census.left, census.untouched), (2, vec![("a".to_owned(), "u".to_owned())]));
        assert_eq!(census.finalizers, BTreeMap::from([("x/y".to_owned(), 2), ("z".to_owned(), 1)]));
        let mut census = ContentCount::default();
        let many = (0..2 * MAX_FINALIZERS).map(|n| n.to_string()).collect();
        census.count(ObjectFacts { finalizers: many, ..ObjectFacts::default() });
        assert_eq!(census.finalizers.len(), MAX_FINALIZERS);
    }

    /// It has all objects of the collection.
    #[tokio::test]
    async fn fault_34_the_response_to_the_deletion_of_a_collection_is_not_read() {
        let server = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, std::io::Error>(Response::new(Body::from(b"no text: \xff".to_vec())))
        });
        let client = Client::new(server, "default");
        assert!(delete_all(&client, "/api/v1/namespaces/n/secrets", "7").await.expect("deleted"));
    }
}
