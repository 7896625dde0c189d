//! ServiceAccount: an identity in a namespace. Crate `auth` computes its `token` subresource.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_resource::native::{KindBody, NativeSubresource};
use ferrokube_resource::{Change, Hooks, Policy, Printable, TableRow, Verbs};
use std::sync::Arc;

pub(crate) fn body() -> KindBody {
    KindBody {
        subresources: &[NativeSubresource {
            name: "token",
            kind: Some(("authentication.k8s.io", "v1", "TokenRequest")),
            verbs: Verbs::CREATE,
            reset: &[],
        }],
        storage: Some("serviceaccounts"),
        policy: Policy { returns_deleted: true, ..Policy::DEFAULT },
        hooks: Arc::new(ServiceAccount),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct ServiceAccount;

impl Hooks for ServiceAccount {
    /// Keeps only the name of references to secrets.
    fn prepare(&self, _change: &Change<'_>, object: &mut Document) {
        let Some(secrets) = object.get_mut(&["secrets"]).and_then(Value::as_array_mut) else {
            return;
        };
        for secret in secrets {
            *secret = secret.get("name").map_or_else(|| json!({}), |name| json!({"name": name}));
        }
    }

    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        row.text(&object.name());
        row.age(object);
    }

    fn warnings(&self, change: &Change<'_>, object: &Document) -> Vec<String> {
        const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
        let already = change.old.is_some_and(|old| old.annotation(ENFORCE).is_some());
        if object.annotation(ENFORCE).is_none() || already {
            return Vec::new();
        }
        vec![format!(
            "metadata.annotations[{ENFORCE}]: deprecated in v1.32+; use separate namespaces to isolate access to mounted secrets"
        )]
    }
}
