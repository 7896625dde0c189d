//! The review kinds: computed resources about identities and permissions.

mod access;
mod identity;
mod rules;
mod selectors;
mod user;

use crate::access::Authorizer;
use crate::authenticate::Bearer;
use crate::rbac::Rbac;
use ferrokube_apimachinery::document::Document;
use ferrokube_registry::{Catalog, ComputedResource};
use std::sync::Arc;

/// Installs all six review kinds, whose definitions are in `resources`. `authorizer` is the
/// server's whole authorizer, `tokens` its token authenticators.
pub fn install(
    catalog: &Catalog,
    authorizer: &Arc<dyn Authorizer>,
    rbac: &Arc<Rbac>,
    tokens: &Bearer,
) {
    let access = |kind| {
        Arc::new(access::AccessReview { kind, authorizer: Arc::clone(authorizer) })
            as Arc<dyn ComputedResource>
    };
    let authorization: [(&str, Arc<dyn ComputedResource>); 4] = [
        ("subjectaccessreviews", access(access::ReviewKind::Subject)),
        ("localsubjectaccessreviews", access(access::ReviewKind::Local)),
        ("selfsubjectaccessreviews", access(access::ReviewKind::Own)),
        ("selfsubjectrulesreviews", Arc::new(rules::RulesReview { rbac: Arc::clone(rbac) })),
    ];
    for (plural, behaviour) in authorization {
        catalog.put_computed("authorization.k8s.io", plural, "", behaviour);
    }
    catalog.put_computed(
        "authentication.k8s.io",
        "selfsubjectreviews",
        "",
        Arc::new(identity::SelfReview),
    );
    catalog.put_computed(
        "authentication.k8s.io",
        "tokenreviews",
        "",
        Arc::new(identity::TokenReview { tokens: tokens.clone() }),
    );
}

/// Drops metadata that only the server sets, so that clients may send back an object that they
/// received.
fn clear_server_metadata(object: &mut Document) {
    for field in
        ["creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "selfLink", "uid"]
    {
        object.remove(&["metadata", field]);
    }
}
