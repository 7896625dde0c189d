//! Operations that are about no object: discovery, the version, the keys of service accounts.

use super::names::META;
use super::routes::{ALL, JSON, PublishedRoute, camel, group_tag, group_word, tag};

/// Documents of these paths exist where the path is mounted.
pub(super) const MOUNTED: &[&str] = &[".well-known/openid-configuration", "openid/v1/jwks"];

/// The operation of a document's own path: `api`, `apis`, `apis/apps`, `apis/apps/v1`, `version`.
pub(super) fn route(document: &str) -> Option<PublishedRoute> {
    let segments: Vec<&str> = document.split('/').collect();
    let discovery = |id: String, tag: String, kind: &str, description: &str| PublishedRoute {
        path: format!("/{document}/"),
        method: "get",
        id,
        tag,
        description: description.to_owned(),
        action: None,
        parameters: Vec::new(),
        body: None,
        consumes: ALL,
        produces: ALL,
        codes: &[200],
        result: Some(format!("{META}.{kind}")),
    };
    let resources = |group: &str, version: &str| {
        let id = format!("get{}{}APIResources", group_word(group), camel(version, true));
        let about = "list the resources of a group version";
        discovery(id, tag(group, version), "APIResourceList", about)
    };
    Some(match segments.as_slice() {
        ["api"] => discovery(
            "getCoreAPIVersions".to_owned(),
            group_tag(""),
            "APIVersions",
            "list the versions of the core group",
        ),
        ["apis"] => discovery(
            "getAPIVersions".to_owned(),
            "apis".to_owned(),
            "APIGroupList",
            "list the groups",
        ),
        ["apis", group] => discovery(
            format!("get{}APIGroup", group_word(group)),
            group_tag(group),
            "APIGroup",
            "list the versions of a group",
        ),
        ["api", version] => resources("", version),
        ["apis", group, version] => resources(group, version),
        ["version"] => PublishedRoute {
            consumes: &[JSON],
            produces: &[JSON],
            result: Some("io.k8s.apimachinery.pkg.version.Info".to_owned()),
            ..discovery("getCodeVersion".to_owned(), "version".to_owned(), "", "read the version")
        },
        [".well-known", _] => PublishedRoute {
            consumes: &[],
            produces: &[JSON],
            result: None,
            ..discovery(
                "getServiceAccountIssuerOpenIDConfiguration".to_owned(),
                "WellKnown".to_owned(),
                "",
                "read the configuration of the issuer of service account tokens",
            )
        },
        ["openid", ..] => PublishedRoute {
            consumes: &[],
            produces: &["application/jwk-set+json"],
            result: None,
            ..discovery(
                "getServiceAccountIssuerOpenIDKeyset".to_owned(),
                "openid".to_owned(),
                "",
                "read the public keys of the issuer of service account tokens",
            )
        },
        _ => return None,
    })
}
