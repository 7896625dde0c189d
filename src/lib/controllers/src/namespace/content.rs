//! What is in a namespace: counting it and deleting it, resource by resource.

use crate::monitor::qualified;
use crate::rest::{self, Ask, code, is_absent};
use ferrokube_client::DiscoveredResource;
use http::Method;
use kube::{Client, Error};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Objects in one page of a count.
const PAGE: usize = 500;
/// How many names are kept for deletions one by one; what is beyond waits for the next pass.
const MAX_NAMES: usize = 10_000;

/// What one pass found.
#[derive(Default)]
pub(super) struct Findings {
    /// Why it is not known what is served.
    pub(super) discovery: Option<String>,
    /// What could not be counted or deleted, and why.
    pub(super) deletion: Vec<String>,
    /// Resources that were not found, and the answer: gone with their definition, or served in another version now, with their objects.
    pub(super) missing: Vec<(DiscoveredResource, String)>,
    /// Objects that are left, by resource.
    pub(super) remaining: BTreeMap<String, u64>,
    /// Objects that are left, by the finalizer that holds them.
    pub(super) finalizers: BTreeMap<String, u64>,
    /// The resources that have objects left.
    pub(super) held: Vec<DiscoveredResource>,
}

impl Findings {
    /// Whether everything was looked at and nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.remaining.is_empty() && !self.failed()
    }

    /// Whether something could not be looked at or deleted.
    pub(super) fn failed(&self) -> bool {
        self.discovery.is_some() || !self.deletion.is_empty() || !self.missing.is_empty()
    }

    /// What was not found though it is served is a failure to tell; the rest is only a reason to look again.
    pub(super) fn judge_missing(&mut self, is_served: impl Fn(&DiscoveredResource) -> bool) {
        let told = self.missing.iter().filter(|(resource, _)| is_served(resource)).map(|(_, why)| why.clone());
        self.deletion.extend(told);
    }

    fn add(&mut self, resource: &DiscoveredResource, outcome: Result<Census, Error>) {
        match outcome {
            Ok(census) if census.left == 0 => {}
            Ok(census) => {
                for (finalizer, count) in census.finalizers {
                    *self.finalizers.entry(finalizer).or_default() += count;
                }
                self.remaining.insert(qualified(resource), census.left);
                self.held.push(resource.clone());
            }
            Err(error) if code(&error) == 404 => self.missing.push((resource.clone(), format!("{}: {error}", qualified(resource)))),
            Err(error) => self.deletion.push(format!("{}: {error}", qualified(resource))),
        }
    }
}

/// Whether a namespace's objects of the resource can be found and deleted.
pub(super) fn is_content(resource: &DiscoveredResource) -> bool {
    resource.namespaced && resource.has_verbs(&["list", "delete"])
}

/// Deletes what the namespace has of these resources, pods first (so that policies outlive what they protect: KEP-5080), and counts what stays.
pub(super) async fn clear(client: &Client, namespace: &str, resources: &[DiscoveredResource], findings: &mut Findings) {
    let is_pods = |found: &&DiscoveredResource| found.resource.plural == "pods" && found.resource.group.is_empty();
    let (pods, others): (Vec<_>, Vec<_>) = resources.iter().filter(|found| is_content(found)).partition(is_pods);
    for resource in pods {
        findings.add(resource, empty(client, namespace, resource).await);
    }
    if !findings.remaining.is_empty() {
        return;
    }
    for resource in others {
        findings.add(resource, empty(client, namespace, resource).await);
    }
}

/// Deletes the objects of one resource that are not being deleted yet, and counts what is left.
async fn empty(client: &Client, namespace: &str, resource: &DiscoveredResource) -> Result<Census, Error> {
    let path = rest::path(&resource.resource, Some(namespace), "");
    let census = Census::take(client, &path).await?;
    if census.untouched.is_empty() {
        return Ok(census);
    }
    // A collection's deletion touches every object, so it is for the first time only.
    let first = census.untouched.len() as u64 == census.left.min(MAX_NAMES as u64);
    let together = first && resource.has_verbs(&["deletecollection"]) && {
        match rest::send(client, Method::DELETE, &path, Ask { view: rest::View::MetadataList, body: None }).await {
            Err(error) if code(&error) == 405 => false,
            other => other.map(|_| true)?,
        }
    };
    if !together {
        delete_each(client, namespace, resource, &census.untouched).await?;
    }
    Census::take(client, &path).await
}

/// One that is refused does not save the others; the first refusal is told.
async fn delete_each(client: &Client, namespace: &str, resource: &DiscoveredResource, names: &[String]) -> Result<(), Error> {
    let mut refused = Ok(());
    for name in names {
        let path = rest::path(&resource.resource, Some(namespace), name);
        match rest::send(client, Method::DELETE, &path, Ask { view: rest::View::Metadata, body: None }).await {
            Err(error) if !is_absent(&error, &resource.resource, name) && refused.is_ok() => refused = Err(error),
            _ => {}
        }
    }
    refused
}

/// How many objects of a resource a namespace has.
#[derive(Default)]
struct Census {
    left: u64,
    /// By finalizer.
    finalizers: BTreeMap<String, u64>,
    /// The names of those that are not being deleted, up to [`MAX_NAMES`].
    untouched: Vec<String>,
}

impl Census {
    /// Counts page by page: a namespace can be large.
    async fn take(client: &Client, path: &str) -> Result<Self, Error> {
        let mut census = Self::default();
        let mut page = format!("{path}?limit={PAGE}");
        loop {
            let list = rest::send(client, Method::GET, &page, Ask { view: rest::View::MetadataList, body: None }).await?;
            list["items"].as_array().into_iter().flatten().for_each(|item| census.count(&item["metadata"]));
            match list["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => page = format!("{path}?limit={PAGE}&continue={}", escaped(token)),
                _ => return Ok(census),
            }
        }
    }

    fn count(&mut self, metadata: &Value) {
        self.left += 1;
        for finalizer in metadata["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            *self.finalizers.entry(finalizer.to_owned()).or_default() += 1;
        }
        if metadata["deletionTimestamp"].is_null() && self.untouched.len() < MAX_NAMES {
            self.untouched.extend(metadata["name"].as_str().map(str::to_owned));
        }
    }
}

/// A query value.
fn escaped(token: &str) -> String {
    token.bytes().fold(String::with_capacity(token.len()), |mut text, byte| {
        match byte {
            b'-' | b'_' | b'.' | b'~' => text.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => text.push(char::from(byte)),
            _ => write!(text, "%{byte:02X}").expect("a String takes everything"),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::{GroupVersionKind, Status};
    use kube::discovery::ApiResource;
    use serde_json::json;

    #[test]
    fn a_resource_that_is_not_found_is_not_empty() {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("ex.com", "v1", "Gear"), "gears");
        let gears = DiscoveredResource { resource, namespaced: true, verbs: Vec::new() };
        let mut findings = Findings::default();
        findings.add(&gears, Ok(Census::default()));
        assert!(findings.is_empty());
        for code in [404, 405] {
            let status: Status = serde_json::from_value(json!({"status": "Failure", "code": code})).unwrap();
            let mut findings = Findings::default();
            findings.add(&gears, Err(Error::Api(Box::new(status))));
            assert!(!findings.is_empty() && findings.failed(), "{code}");
            // Nobody is told of what went with its definition meanwhile.
            findings.judge_missing(|_| false);
            assert_eq!(findings.deletion.is_empty(), code == 404, "{code}");
            findings.judge_missing(|_| true);
            assert!(!findings.deletion.is_empty(), "{code}");
        }
    }

    #[test]
    fn what_is_being_deleted_is_counted_and_left_alone() {
        let mut census = Census::default();
        census.count(&json!({"name": "a", "finalizers": ["x/y"]}));
        census.count(&json!({"name": "b", "finalizers": ["x/y", "z"], "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!((census.left, census.untouched), (2, vec!["a".to_owned()]));
        assert_eq!(census.finalizers, BTreeMap::from([("x/y".to_owned(), 2), ("z".to_owned(), 1)]));
        assert_eq!(escaped("aZ0-_.=/+"), "aZ0-_.%3D%2F%2B");
    }
}
