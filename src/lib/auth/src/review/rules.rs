//! SelfSubjectRulesReview: the caller's permissions in a namespace (`kubectl auth can-i --list`).

use crate::access::{RightsScope, aggregate};
use crate::rbac::{PolicyRule, Rbac};
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_registry::ComputedResource;
use ferrokube_registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_registry::offload::{leave_worker, on_worker};
use std::sync::Arc;

/// Approximate max bytes of rules in a review: more than the largest role has.
const MAX_BYTES: usize = 2 * 1024 * 1024;

/// Creates `selfsubjectrulesreviews`.
pub(super) struct RulesReview {
    pub(super) rbac: Arc<Rbac>,
}

impl ComputedResource for RulesReview {
    fn create<'a>(&'a self, call: ComputedCall<'a>, object: Document) -> ComputedFuture<'a> {
        Box::pin(async move {
            let namespace = object.str(&["spec", "namespace"]).unwrap_or_default();
            on_worker(self.rbac.caught_up(RightsScope::Namespace(namespace))).await;
            // Reads all rules of all roles, however large.
            leave_worker().await;
            self.review(&call.context.user, &object)
        })
    }
}

impl RulesReview {
    fn review(&self, user: &UserInfo, sent: &Document) -> Result<Document, Failure> {
        let namespace = sent.str(&["spec", "namespace"]).unwrap_or_default();
        if namespace.is_empty() {
            return Err(Failure::bad_request("no namespace on request"));
        }
        let (roles, mut problems) = self.rbac.view(namespace).roles_of(user);
        let (mut resource, mut other, mut left) = (Vec::new(), Vec::new(), MAX_BYTES);
        let mut incomplete = false;
        for rule in roles.iter().flat_map(|role| &role.rules) {
            let Some(rest) = left.checked_sub(shown_bytes(rule)) else {
                incomplete = true;
                continue;
            };
            left = rest;
            if !rule.resources.is_empty() {
                let mut entry = json!({"verbs": rule.verbs, "apiGroups": rule.groups, "resources": rule.resources});
                if !rule.names.is_empty() {
                    entry["resourceNames"] = json!(rule.names);
                }
                resource.push(entry);
            }
            if !rule.urls.is_empty() {
                other.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.urls}));
            }
        }
        if incomplete {
            problems.push(format!("rules beyond {MAX_BYTES} bytes are left out"));
        }
        // Built from scratch: of the request's object only the type is kept.
        let mut object = Document::new();
        object.set(&["kind"], sent.kind());
        object.set(&["apiVersion"], sent.api_version());
        object.set(&["metadata"], Value::Object(Map::new()));
        object.set(&["spec"], Value::Object(Map::new()));
        // As in kube-apiserver, a missing role does not make the list incomplete.
        object.set(
            &["status"],
            json!({"resourceRules": resource, "nonResourceRules": other, "incomplete": incomplete}),
        );
        if !problems.is_empty() {
            object.set(&["status", "evaluationError"], aggregate(&problems));
        }
        Ok(object)
    }
}

/// Approximate length of a rule as JSON.
fn shown_bytes(rule: &PolicyRule) -> usize {
    let lists = [&rule.verbs, &rule.groups, &rule.resources, &rule.names, &rule.urls];
    lists.into_iter().flatten().map(|word| word.len() + 3).sum::<usize>() + 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::expected;
    use crate::rbac::{Feed, RbacChange, RbacKind};
    use crate::testing::user;

    struct BootstrapFeed;

    impl Feed for BootstrapFeed {
        fn drain(&mut self, apply: &mut dyn FnMut(RbacChange)) {
            expected()
                .into_iter()
                .for_each(|one| apply(RbacChange::Put(one.kind, Arc::new(one.document))));
        }
    }

    /// Binds Alice twice to each of this many roles, each with a rule of 100,000 bytes.
    struct LargeRoles(usize);

    impl Feed for LargeRoles {
        fn drain(&mut self, apply: &mut dyn FnMut(RbacChange)) {
            let document = |value| Arc::new(Document::from_value(value).expect("an object"));
            for number in 0..self.0 {
                let name = format!("r{number}");
                let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x".repeat(100_000)]}]);
                apply(RbacChange::Put(
                    RbacKind::ClusterRole,
                    document(json!({"metadata": {"name": name}, "rules": rules})),
                ));
                for binding in ["a", "b"] {
                    let subjects = json!([{"kind": "User", "name": "alice"}]);
                    let metadata = json!({"namespace": "n", "name": format!("{binding}{number}")});
                    let binding = json!({"metadata": metadata, "roleRef": {"kind": "ClusterRole", "name": name}, "subjects": subjects});
                    apply(RbacChange::Put(RbacKind::RoleBinding, document(binding)));
                }
            }
        }
    }

    #[test]
    fn fault_34_a_review_shows_each_role_once_and_is_bounded() {
        for (roles, shown) in [(5, 5), (40, MAX_BYTES / 100_100)] {
            let rbac = Arc::new(Rbac::new(Box::new(LargeRoles(roles)), Box::new(|| 1)));
            let status = review_of(rbac, &user("alice", &[]), "n").expect("answered");
            assert_eq!(status.list(&["status", "resourceRules"]).len(), shown);
            assert_eq!(status.get(&["status", "incomplete"]), Some(&json!(shown < roles)));
            assert_eq!(status.get(&["status", "evaluationError"]).is_some(), shown < roles);
        }
    }

    fn review(user: &UserInfo, namespace: &str) -> Result<Document, Failure> {
        review_of(Arc::new(Rbac::new(Box::new(BootstrapFeed), Box::new(|| 1))), user, namespace)
    }

    fn review_of(rbac: Arc<Rbac>, user: &UserInfo, namespace: &str) -> Result<Document, Failure> {
        RulesReview { rbac }.review(
            user,
            &Document::from_value(json!({"spec": {"namespace": namespace}})).expect("an object"),
        )
    }

    #[test]
    fn a_review_lists_resource_and_path_rules() {
        let answer = review(&user("alice", &["system:authenticated"]), "n").expect("answered");
        assert_eq!(answer.list(&["status", "resourceRules"]).len(), 2, "basic-user");
        assert_eq!(
            answer.list(&["status", "nonResourceRules"]).len(),
            2,
            "discovery and public-info-viewer"
        );
        assert_eq!(
            (answer.get(&["metadata"]), answer.get(&["spec"])),
            (Some(&json!({})), Some(&json!({})))
        );
        assert_eq!(answer.get(&["status", "incomplete"]), Some(&json!(false)));
        let master = review(&user("admin", &["system:masters"]), "n").expect("answered");
        assert!(
            master
                .list(&["status", "resourceRules"])
                .contains(&json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}))
        );
        assert_eq!(review(&user("alice", &[]), "").expect_err("refused").code, 400);
    }
}
