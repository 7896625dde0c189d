//! The review kinds: computed answers about who somebody is and what they may do.

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

/// Adds the behaviour of all six kinds (their definitions come with the other kinds). `authorizer`
/// is the server's whole authorizer, `tokens` what its requests are authenticated with.
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
        ("subjectaccessreviews", access(access::Kind::Subject)),
        ("localsubjectaccessreviews", access(access::Kind::Local)),
        ("selfsubjectaccessreviews", access(access::Kind::Own)),
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

/// Drops what only the server says of an object: clients that send back what they were given are
/// not refused for it.
fn wipe(object: &mut Document) {
    for field in
        ["creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "selfLink", "uid"]
    {
        object.remove(&["metadata", field]);
    }
}
