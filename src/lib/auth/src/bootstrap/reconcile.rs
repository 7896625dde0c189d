//! Brings stored roles and bindings up to the policy.

use super::policy::{PolicyObject, expected_for_features, expected_for_migration};
use crate::rbac::{HeldRules, PermissionBudget, PolicyRule, RbacKind};
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::{DeleteOptions, Local, Registry};
use futures::stream::{FuturesUnordered, StreamExt};
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use tokio::task::{JoinError, JoinSet};

/// Objects with this annotation set to `false` are skipped.
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// Max attempts of a write that conflicts with others.
const ATTEMPTS: usize = 5;
/// Tasks that share the objects: preparing their writes is most of the CPU time of a first start.
const TASKS: usize = 4;

/// Clients by plural name.
type Clients = HashMap<&'static str, Local>;

/// Writing an object of the policy failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {object} of the RBAC policy: {failure}")]
pub struct BootstrapError {
    /// Plural resource name and name of the object, if it is known.
    pub object: String,
    /// The failure that a client would see.
    pub failure: Failure,
}

/// The result of [`reconcile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Created objects.
    pub created: usize,
    /// Objects that lacked rules, subjects or labels.
    pub updated: usize,
}

enum Ensured {
    Nothing,
    Created,
    Updated,
}

/// Brings the stored RBAC objects up to the policy. Idempotent, and safe to run in several servers
/// at once. All writes are submitted together, so that the store commits them in a few batches;
/// nothing is written if nothing is missing. The namespaces `kube-system` and `kube-public` must
/// exist.
///
/// # Errors
/// [`BootstrapError`] for the first object that cannot be written; others may have been written.
pub async fn reconcile(
    registry: &Registry,
    policy: Vec<PolicyObject>,
) -> Result<Summary, BootstrapError> {
    let clients: Clients = RbacKind::ALL
        .into_iter()
        .filter_map(|kind| {
            Local::new(registry, "rbac.authorization.k8s.io", "v1", kind.plural())
                .map(|local| (kind.plural(), local))
        })
        .collect();
    let migrates =
        Local::new(registry, "storagemigration.k8s.io", "v1beta1", "storageversionmigrations")
            .is_some();
    let mut more = if migrates { expected_for_migration() } else { Vec::new() };
    if Local::new(registry, "features.k8s.io", "v1alpha1", "features").is_some() {
        more.extend(expected_for_features());
    }
    let clients = Arc::new(clients);
    let share = (policy.len() + more.len()).div_ceil(TASKS);
    let mut objects = policy.into_iter().chain(more);
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let some = objects.by_ref().take(share).collect();
        tasks.spawn(ensure_all(Arc::clone(&clients), some));
    }
    let mut summary = Summary::default();
    while let Some(ended) = tasks.join_next().await {
        let done = ended.unwrap_or_else(|error| Err(not_ended(error)))?;
        summary.created += done.created;
        summary.updated += done.updated;
    }
    tracing::debug!(
        created = summary.created,
        updated = summary.updated,
        "the RBAC policy is in place"
    );
    Ok(summary)
}

/// Passes a panic on; a task that was cancelled has ended with its runtime.
fn not_ended(error: JoinError) -> BootstrapError {
    if let Ok(panic) = error.try_into_panic() {
        resume_unwind(panic);
    }
    let failure = Failure::new(Reason::ServiceUnavailable, "the server is shutting down");
    BootstrapError { object: "all objects".to_owned(), failure }
}

async fn ensure_all(
    clients: Arc<Clients>,
    objects: Vec<PolicyObject>,
) -> Result<Summary, BootstrapError> {
    let mut work: FuturesUnordered<_> = objects
        .into_iter()
        .filter_map(|object| clients.get(object.kind.plural()).map(|local| ensure(local, object)))
        .collect();
    let mut summary = Summary::default();
    while let Some(done) = work.next().await {
        match done? {
            Ensured::Nothing => {}
            Ensured::Created => summary.created += 1,
            Ensured::Updated => summary.updated += 1,
        }
    }
    Ok(summary)
}

async fn ensure(local: &Local, object: PolicyObject) -> Result<Ensured, BootstrapError> {
    let mut attempt = 1;
    loop {
        match ensure_once(local, &object.document).await {
            Err(failure) if attempt < ATTEMPTS && is_race(&failure) => attempt += 1,
            other => {
                return other.map_err(|failure| BootstrapError {
                    object: format!("{} {}", object.kind.plural(), object.document.name()),
                    failure,
                });
            }
        }
    }
}

fn is_race(failure: &Failure) -> bool {
    matches!(failure.reason, Some(Reason::Conflict | Reason::AlreadyExists | Reason::NotFound))
}

async fn ensure_once(local: &Local, expected: &Document) -> Result<Ensured, Failure> {
    let (namespace, name) = (expected.namespace(), expected.name());
    let Some(stored) = local.get(namespace, name).await? else {
        local.add(namespace, expected.clone()).await?;
        return Ok(Ensured::Created);
    };
    if stored.annotation(AUTOUPDATE) != Some("false")
        && stored.get(&["roleRef"]).is_some_and(|stored| !same_role(stored, expected))
    {
        // A binding's roleRef is immutable: replace the binding.
        let options =
            DeleteOptions { uid: Some(stored.uid().to_owned()), ..DeleteOptions::default() };
        local.delete(namespace, name, &options).await?;
        local.add(namespace, expected.clone()).await?;
        return Ok(Ensured::Updated);
    }
    let Some(changed) = reconciled(&stored, expected) else {
        return Ok(Ensured::Nothing);
    };
    local.update(changed, "").await?;
    Ok(Ensured::Updated)
}

fn same_role(stored: &Value, expected: &Document) -> bool {
    let expected = expected.get(&["roleRef"]);
    ["kind", "name"]
        .iter()
        .all(|field| stored.get(*field) == expected.and_then(|role| role.get(*field)))
}

/// The stored object with everything that it lacks of the expected one; `None` if it lacks nothing
/// or opts out. Extra content stays.
pub fn reconciled(stored: &Document, expected: &Document) -> Option<Document> {
    if stored.annotation(AUTOUPDATE) == Some("false") {
        return None;
    }
    let mut changed = stored.clone();
    let mut is_changed = false;
    for field in ["labels", "annotations"] {
        is_changed |= add_missing_keys(
            &mut changed,
            &["metadata", field],
            expected.get(&["metadata", field]),
        );
    }
    if expected.get(&["aggregationRule"]).is_some() {
        is_changed |=
            add_missing_items(&mut changed, &["aggregationRule", "clusterRoleSelectors"], expected);
    } else {
        is_changed |= add_missing_rules(&mut changed, expected);
    }
    is_changed |= add_missing_items(&mut changed, &["subjects"], expected);
    is_changed.then_some(changed)
}

fn add_missing_keys(changed: &mut Document, path: &[&str], expected: Option<&Value>) -> bool {
    let Some(expected) = expected.and_then(Value::as_object) else {
        return false;
    };
    let present = changed.get(path).and_then(Value::as_object).cloned().unwrap_or_default();
    let missing: Map = expected
        .iter()
        .filter(|(key, _)| !present.contains_key(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if missing.is_empty() {
        return false;
    }
    changed.set(path, Value::Object(present.into_iter().chain(missing).collect()));
    true
}

fn add_missing_items(changed: &mut Document, path: &[&str], expected: &Document) -> bool {
    let missing: Vec<Value> = expected
        .list(path)
        .iter()
        .filter(|item| !changed.list(path).contains(item))
        .cloned()
        .collect();
    if missing.is_empty() {
        return false;
    }
    let all = changed.list(path).iter().cloned().chain(missing).collect();
    changed.set(path, Value::Array(all));
    true
}

fn add_missing_rules(changed: &mut Document, expected: &Document) -> bool {
    let present = PolicyRule::list(changed.get(&["rules"]));
    let mut held = HeldRules::new(&present);
    let missing: Vec<PolicyRule> = PolicyRule::list(expected.get(&["rules"]))
        .into_iter()
        .filter(|rule| !is_covered(rule, &mut held))
        .collect();
    if missing.is_empty() {
        return false;
    }
    changed.set(
        &["rules"],
        Value::Array(present.iter().chain(&missing).map(PolicyRule::to_value).collect()),
    );
    true
}

/// Whether the rules together allow everything that this one does; `false` if checking takes too
/// long.
fn is_covered(rule: &PolicyRule, by: &mut HeldRules<'_>) -> bool {
    by.cover(rule) == Some(true)
        || rule.single_permissions(&mut PermissionBudget::new(10_000)).is_some_and(|permissions| {
            !permissions.is_empty() && permissions.iter().all(|one| by.cover(one) == Some(true))
        })
}

#[cfg(test)]
mod tests {
    use super::super::policy::expected;
    use super::*;

    fn role(name: &str) -> Document {
        expected()
            .into_iter()
            .find(|one| one.document.name() == name && one.kind == RbacKind::ClusterRole)
            .expect("in the table")
            .document
    }

    #[tokio::test]
    async fn a_cancelled_task_is_an_error_and_no_panic() {
        let task = tokio::spawn(std::future::pending::<()>());
        task.abort();
        let error = not_ended(task.await.expect_err("it was cancelled"));
        assert_eq!(error.failure.code, 503);
        let panicked = tokio::spawn(async { panic!("of a test") }).await.expect_err("it panicked");
        let passed_on = tokio::spawn(async move { not_ended(panicked) }).await;
        assert!(passed_on.expect_err("it was passed on").is_panic());
    }

    #[test]
    fn a_complete_object_is_unchanged() {
        for one in expected() {
            assert_eq!(reconciled(&one.document, &one.document), None);
        }
    }

    #[test]
    fn missing_rules_are_added_and_extra_ones_stay() {
        let wanted = role("system:node");
        let mut stored = wanted.clone();
        let extra = PolicyRule {
            verbs: vec!["get".into()],
            groups: vec!["x".into()],
            resources: vec!["y".into()],
            ..PolicyRule::default()
        };
        let mut rules = PolicyRule::list(wanted.get(&["rules"]));
        let removed = rules.remove(3);
        rules.insert(0, extra.clone());
        stored.set(&["rules"], Value::Array(rules.iter().map(PolicyRule::to_value).collect()));
        let changed = reconciled(&stored, &wanted).expect("changed");
        let now = PolicyRule::list(changed.get(&["rules"]));
        assert_eq!(now.first(), Some(&extra));
        assert_eq!(now.last(), Some(&removed));
        assert_eq!(reconciled(&changed, &wanted), None);
    }

    #[test]
    fn a_rule_that_others_cover_together_is_not_missing() {
        let wanted = role("system:node-bootstrapper");
        let mut stored = wanted.clone();
        let whole = &PolicyRule::list(wanted.get(&["rules"]))[0];
        let split = whole.single_permissions(&mut PermissionBudget::new(100)).expect("few");
        stored.set(&["rules"], Value::Array(split.iter().map(PolicyRule::to_value).collect()));
        assert_eq!(reconciled(&stored, &wanted), None);
    }

    #[test]
    fn autoupdate_false_is_honored() {
        let wanted = role("system:node");
        let mut stored = wanted.clone();
        stored.set(&["rules"], Value::from(Vec::<Value>::new()));
        stored.set(&["metadata", "annotations", AUTOUPDATE], "false");
        assert_eq!(reconciled(&stored, &wanted), None);
    }

    #[test]
    fn missing_subjects_and_labels_are_added() {
        let wanted = expected()
            .into_iter()
            .find(|one| {
                one.document.name() == "system:trace-propagator"
                    && one.kind == RbacKind::ClusterRoleBinding
            })
            .expect("one")
            .document;
        let mut stored = wanted.clone();
        let mine = ferrokube_apimachinery::document::json!({"kind": "User", "name": "me", "apiGroup": "rbac.authorization.k8s.io"});
        stored.set(&["subjects"], Value::from(vec![mine.clone()]));
        stored.remove(&["metadata", "labels"]);
        let changed = reconciled(&stored, &wanted).expect("changed");
        assert_eq!(changed.list(&["subjects"])[0], mine);
        assert_eq!(changed.list(&["subjects"]).len(), 1 + wanted.list(&["subjects"]).len());
        assert_eq!(changed.label("kubernetes.io/bootstrapping"), Some("rbac-defaults"));
    }
}
