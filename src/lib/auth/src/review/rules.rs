//! SelfSubjectRulesReview: everything that who asks may do in a namespace (`kubectl auth can-i --list`).

use crate::access::aggregate;
use crate::rbac::Rbac;
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::offload::leave_worker;
use ferrokube_registry::{RequestContext, Target, UserInfo, Virtual};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// The behaviour of `selfsubjectrulesreviews`.
pub(super) struct RulesReview {
    pub(super) rbac: Arc<Rbac>,
}

impl Virtual for RulesReview {
    fn create<'a>(
        &'a self,
        context: &'a RequestContext,
        _target: &'a Target,
        object: Document,
    ) -> Pin<Box<dyn Future<Output = Result<Document, Failure>> + Send + 'a>> {
        Box::pin(async move {
            self.rbac.caught_up().await;
            // All rules of all roles, however large.
            leave_worker().await;
            self.review(&context.user, &object)
        })
    }
}

impl RulesReview {
    fn review(&self, user: &UserInfo, sent: &Document) -> Result<Document, Failure> {
        let namespace = sent.str(&["spec", "namespace"]).unwrap_or_default();
        if namespace.is_empty() {
            return Err(Failure::bad_request("no namespace on request"));
        }
        let (rules, missing) = self.rbac.index().rules(user, namespace);
        let (mut resource, mut other) = (Vec::new(), Vec::new());
        for rule in rules {
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
        // A new object: nothing of what was sent is in it but its type.
        let mut object = Document::new();
        object.set(&["kind"], sent.kind());
        object.set(&["apiVersion"], sent.api_version());
        object.set(&["metadata"], Value::Object(Map::new()));
        object.set(&["spec"], Value::Object(Map::new()));
        // What could be resolved is all that RBAC has: an error makes the list no less complete than upstream says it is.
        object.set(&["status"], json!({"resourceRules": resource, "nonResourceRules": other, "incomplete": false}));
        if !missing.is_empty() {
            object.set(&["status", "evaluationError"], aggregate(&missing));
        }
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::expected;
    use crate::rbac::{Change, Feed};
    use crate::testing::user;

    struct Policy;

    impl Feed for Policy {
        fn drain(&mut self, apply: &mut dyn FnMut(Change)) {
            expected().into_iter().for_each(|one| apply(Change::Put(one.kind, Arc::new(one.document))));
        }
    }

    fn review(user: &UserInfo, namespace: &str) -> Result<Document, Failure> {
        let rbac = Arc::new(Rbac::new(Box::new(Policy), Box::new(|| 1)));
        RulesReview { rbac }.review(user, &Document::from_value(json!({"spec": {"namespace": namespace}})).expect("an object"))
    }

    #[test]
    fn everything_that_one_may_do() {
        let answer = review(&user("alice", &["system:authenticated"]), "n").expect("answered");
        assert_eq!(answer.list(&["status", "resourceRules"]).len(), 2, "basic-user");
        assert_eq!(answer.list(&["status", "nonResourceRules"]).len(), 2, "discovery and public-info-viewer");
        assert_eq!((answer.get(&["metadata"]), answer.get(&["spec"])), (Some(&json!({})), Some(&json!({}))));
        assert_eq!(answer.get(&["status", "incomplete"]), Some(&json!(false)));
        let master = review(&user("admin", &["system:masters"]), "n").expect("answered");
        assert!(master.list(&["status", "resourceRules"]).contains(&json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})));
        assert_eq!(review(&user("alice", &[]), "").expect_err("refused").code, 400);
    }
}
