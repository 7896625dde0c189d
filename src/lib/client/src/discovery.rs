//! Aggregated discovery: one request for the core group, one for all others.

use kube::core::DynamicObject;
use kube::core::discovery::v2::APIGroupDiscovery;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use std::collections::BTreeMap;

/// A listable resource in its preferred version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredResource {
    /// Group, version, kind and plural name.
    pub resource: ApiResource,
    /// Whether objects are namespaced.
    pub namespaced: bool,
    /// Supported verbs: `get`, `list`, ...
    pub verbs: Vec<String>,
}

impl DiscoveredResource {
    /// Whether the resource supports all of `verbs`.
    pub fn has_verbs(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|with_certificate| with_certificate == verb))
    }

    /// An object's annotations; `None` if it does not exist. `namespace` applies to namespaced
    /// resources only.
    ///
    /// # Errors
    /// Any failure of the request.
    pub async fn annotations(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>, kube::Error> {
        let api: Api<DynamicObject> = if self.namespaced {
            Api::namespaced_with(client.clone(), namespace, &self.resource)
        } else {
            Api::all_with(client.clone(), &self.resource)
        };
        Ok(api
            .get_metadata_opt(name)
            .await?
            .map(|object| object.metadata.annotations.unwrap_or_default()))
    }
}

/// Result of a discovery.
#[derive(Clone, Debug, Default)]
pub struct Discovered {
    /// Each resource once, in its group's preferred version.
    pub resources: Vec<DiscoveredResource>,
    /// Group versions without a description at present (an unavailable aggregated server), as
    /// `group/version`.
    pub unavailable: Vec<String>,
    /// Singular and short names, with the index of their resource.
    pub names: Vec<(String, usize)>,
}

impl Discovered {
    /// Queries the server.
    ///
    /// # Errors
    /// Any failure of the requests.
    pub async fn query(client: &Client) -> Result<Self, kube::Error> {
        let mut discovered = Self::default();
        for group in client.list_core_api_versions_aggregated().await?.items {
            discovered.add_group(group);
        }
        for group in client.list_api_groups_aggregated().await?.items {
            discovered.add_group(group);
        }
        Ok(discovered)
    }

    fn add_group(&mut self, group: APIGroupDiscovery) {
        let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        let mut seen: Vec<String> = Vec::new();
        for version in group.versions {
            let version_name = version.version.unwrap_or_default();
            if version.freshness.as_deref() == Some("Stale") {
                // Stale entries are kept; requests for them fail after retries.
                self.unavailable.push(format!("{name}/{version_name}"));
                continue;
            }
            for found in version.resources {
                let plural = found.resource.unwrap_or_default();
                if seen.contains(&plural) {
                    continue;
                }
                let kind = found.response_kind.and_then(|gvk| gvk.kind).unwrap_or_default();
                let names = found.singular_resource.into_iter().chain(found.short_names);
                self.names.extend(names.map(|short| (short, self.resources.len())));
                let gvk = kube::core::GroupVersionKind::gvk(&name, &version_name, &kind);
                let resource = ApiResource::from_gvk_with_plural(&gvk, &plural);
                self.resources.push(DiscoveredResource {
                    resource,
                    namespaced: found.scope.as_deref() == Some("Namespaced"),
                    verbs: found.verbs,
                });
                seen.push(plural);
            }
        }
    }

    /// Resolves `configmap`, `ConfigMaps`, `cm` or `deployments.apps`, like kubectl.
    pub fn named(&self, word: &str) -> Option<&DiscoveredResource> {
        let lower = word.to_ascii_lowercase();
        let (word, group) = lower
            .split_once('.')
            .map_or((lower.as_str(), None), |(word, group)| (word, Some(group)));
        let fits = |(place, found): &(usize, &DiscoveredResource)| {
            let with_certificate = [&found.resource.plural, &found.resource.kind]
                .into_iter()
                .any(|with_certificate| with_certificate.eq_ignore_ascii_case(word));
            let named =
                with_certificate || self.names.iter().any(|(name, of)| of == place && name == word);
            named && group.is_none_or(|group| group == found.resource.group)
        };
        self.resources.iter().enumerate().find(fits).map(|(_, found)| found)
    }

    /// The resource of a kind, in its preferred version.
    pub fn find_kind(&self, group: &str, kind: &str) -> Option<&DiscoveredResource> {
        self.resources
            .iter()
            .find(|found| found.resource.group == group && found.resource.kind == kind)
    }
}
