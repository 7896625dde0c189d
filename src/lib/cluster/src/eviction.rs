//! `pods/eviction`: deletes a pod if its disruption budget allows it.

use crate::{conditions, pod_target, success};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::selector::LabelSelector;
use ferrokube_apimachinery::status::{Cause, Details, Failure, Reason};
use ferrokube_apimachinery::time::rfc3339_seconds;
use ferrokube_registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_registry::offload::leave_worker;
use ferrokube_registry::{ComputedResource, DeleteOptions, Local, WriteOptions};
use ferrokube_schema::Schema;
use std::sync::Arc;
use std::time::SystemTime;

/// Max attempts while the pod or its budget keeps changing.
const ATTEMPTS: usize = 20;
/// Max disruptions of a budget not yet processed by its controller.
const MAX_DISRUPTED: usize = 2000;
/// Retry delay for clients, in seconds.
const RETRY: u32 = 10;

const ALLOWED: [&str; 2] = ["status", "disruptionsAllowed"];
const BY_BUDGET: &str = "DisruptionAllowed";

/// The handler, with the schema of its body.
pub(crate) struct PodEviction(pub(crate) Arc<Schema>);

impl ComputedResource for PodEviction {
    fn create<'a>(&'a self, call: ComputedCall<'a>, object: Document) -> ComputedFuture<'a> {
        Box::pin(async move { Eviction::new(call, &object)?.run().await })
    }

    fn schema(&self) -> Option<Arc<Schema>> {
        Some(Arc::clone(&self.0))
    }

    fn other_versions(&self) -> &'static [&'static str] {
        &["policy/v1beta1"]
    }
}

/// One request.
struct Eviction<'a> {
    call: ComputedCall<'a>,
    pod: String,
    options: DeleteOptions,
    /// Error that the delete ends with, if any.
    valid: Result<(), Failure>,
}

/// A budget's decision about an eviction.
enum BudgetVerdict {
    Allowed,
    /// Allowed because the pod is unhealthy, so it must not change before its deletion. The
    /// budget's name.
    Unhealthy(String),
}

impl<'a> Eviction<'a> {
    fn new(call: ComputedCall<'a>, eviction: &Document) -> Result<Self, Failure> {
        let pod = call.target.name.as_deref().unwrap_or_default();
        if pod != eviction.name() {
            return Err(Failure::bad_request("name in URL does not match name in Eviction object"));
        }
        let options = delete_options(call.options, eviction)?;
        Ok(Self { call, pod: pod.to_owned(), options, valid: check_dry_run(eviction) })
    }

    async fn run(&self) -> Result<Document, Failure> {
        let mut attempt = 1;
        let pod = loop {
            let pod = self.read().await?;
            if !is_exempt(&pod) {
                break pod;
            }
            // Delete the pod at the revision read: it could become healthy.
            let fixed = !pod.is_terminating() && phase(&pod) == "Pending";
            match self.delete(&self.options_for(&pod, fixed)).await {
                Ok(()) => return Ok(success()),
                Err(failure)
                    if is_conflict(&failure)
                        && self.options.resource_version.is_none()
                        && attempt < ATTEMPTS => {}
                Err(failure) => return Err(failure),
            }
            attempt += 1;
            tokio::task::yield_now().await;
        };
        match self.ask_budget(&pod).await? {
            BudgetVerdict::Allowed => self.delete(&self.options).await?,
            BudgetVerdict::Unhealthy(budget) => {
                let deleted = self.delete(&self.options_for(&pod, true)).await;
                deleted.map_err(|failure| {
                    let is_ours = self.options.resource_version.is_none();
                    if is_conflict(&failure) && is_ours { unprocessed(&budget) } else { failure }
                })?;
            }
        }
        Ok(success())
    }

    async fn read(&self) -> Result<Document, Failure> {
        let target = pod_target(&self.call, &self.pod, "")?;
        self.call.registry.get_document(&target).await
    }

    /// The client's options. With `fixed`, adds this revision of the pod as a precondition unless
    /// they have one.
    fn options_for(&self, pod: &Document, fixed: bool) -> DeleteOptions {
        let mut options = self.options.clone();
        if fixed && options.resource_version.is_none() {
            options.resource_version = Some(pod.meta("resourceVersion").to_owned());
        }
        options
    }

    /// Marks the pod as disrupted and deletes it.
    async fn delete(&self, options: &DeleteOptions) -> Result<(), Failure> {
        let ComputedCall { registry, context, .. } = self.call;
        self.valid.clone()?;
        let mut options = options.clone();
        if !options.dry_run {
            let target = pod_target(&self.call, &self.pod, "status")?;
            let now = context.now;
            let mark = |pod: &mut Document| mark(pod, &options, now);
            let marked = registry.amend(context, &target, self.call.options, mark).await?;
            if options.resource_version.is_some() {
                let pod = marked.object.into_document(&target.served);
                options.resource_version = Some(pod.meta("resourceVersion").to_owned());
            }
        }
        let target = pod_target(&self.call, &self.pod, "")?;
        registry.delete_admitted(context, &target, &options).await.map(drop)
    }

    /// Charges the eviction to the pod's budget.
    async fn ask_budget(&self, pod: &Document) -> Result<BudgetVerdict, Failure> {
        let registry = self.call.registry;
        let Some(budgets) = Local::new(registry, "policy", "v1", "poddisruptionbudgets") else {
            return Ok(BudgetVerdict::Allowed);
        };
        // Reads all budgets of the namespace; two decide already.
        leave_worker().await;
        let mut own = budgets.find(pod.namespace(), 2, |budget| covers(budget, pod)).await?;
        let Some(budget) = own.pop() else { return Ok(BudgetVerdict::Allowed) };
        if !own.is_empty() {
            let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Failure::bare(500, why));
        }
        if conditions::status(pod, "Ready") != "True" && allows_unhealthy(&budget) {
            return Ok(BudgetVerdict::Unhealthy(budget.name().to_owned()));
        }
        self.spend(&budgets, budget).await.map(|()| BudgetVerdict::Allowed)
    }

    async fn spend(&self, budgets: &Local, mut budget: Document) -> Result<(), Failure> {
        let now = self.call.context.now;
        let (namespace, name) = (budget.namespace().to_owned(), budget.name().to_owned());
        for _ in 0..ATTEMPTS {
            spent(&mut budget, &self.pod, now)?;
            if self.options.dry_run {
                return Ok(());
            }
            match budgets.update(budget, "status").await {
                Err(failure) if is_conflict(&failure) => tokio::task::yield_now().await,
                written => return written.map(drop),
            }
            let resource = GroupResource::new("policy", "poddisruptionbudgets");
            let read = budgets.get(&namespace, &name).await?;
            budget = read.ok_or_else(|| Failure::not_found(&resource, &name))?;
        }
        let why = format!("couldn't update PodDisruptionBudget {name:?} due to conflicts");
        let details = Details { retry_after_seconds: RETRY, ..Details::default() };
        Err(Failure::new(Reason::Timeout, format!("Timeout: {why}")).with_details(details))
    }
}

/// The options of the delete, a dry run if the request or its body requests one.
fn delete_options(request: &WriteOptions, eviction: &Document) -> Result<DeleteOptions, Failure> {
    let at = |path: &[&str]| eviction.get(&[&["deleteOptions"][..], path].concat());
    let text = |path: &[&str]| {
        at(path).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let dry_run = dry_run(eviction);
    if request.dry_run && !dry_run.is_empty() && dry_run != ["All"] {
        let given = dry_run.join(" ");
        let why = "Non-matching dry-run options in request and content";
        return Err(Failure::bare(500, format!("{why}: [All] and [{given}]")));
    }
    Ok(DeleteOptions {
        dry_run: request.dry_run || !dry_run.is_empty(),
        grace_seconds: at(&["gracePeriodSeconds"]).and_then(Value::as_i64),
        propagation: text(&["propagationPolicy"]),
        orphan_dependents: at(&["orphanDependents"]).and_then(Value::as_bool),
        uid: text(&["preconditions", "uid"]),
        resource_version: text(&["preconditions", "resourceVersion"]),
    })
}

/// The body's own list.
fn dry_run(eviction: &Document) -> Vec<&str> {
    eviction.list(&["deleteOptions", "dryRun"]).iter().filter_map(Value::as_str).collect()
}

/// 422 for a list of something else than `All`, which the delete fails with.
fn check_dry_run(eviction: &Document) -> Result<(), Failure> {
    let given = dry_run(eviction);
    if given.iter().all(|value| *value == "All") {
        return Ok(());
    }
    let error = FieldError::not_supported("dryRun", &given[..], ["All"]);
    Err(Failure::invalid("meta.k8s.io", "DeleteOptions", "", &[error]))
}

fn is_conflict(failure: &Failure) -> bool {
    failure.reason == Some(Reason::Conflict)
}

fn phase(pod: &Document) -> &str {
    pod.str(&["status", "phase"]).unwrap_or_default()
}

/// Whether the pod's deletion disrupts nothing.
fn is_exempt(pod: &Document) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed" | "Pending") || pod.is_terminating()
}

fn mark(pod: &mut Document, options: &DeleteOptions, now: SystemTime) -> Result<(), Failure> {
    let asked = [
        ("UID", "uid", &options.uid, "deleted and then recreated"),
        ("ResourceVersion", "resourceVersion", &options.resource_version, "modified"),
    ];
    for (what, field, asked, perhaps) in asked {
        let stored = pod.meta(field);
        if let Some(asked) = asked.as_ref().filter(|asked| *asked != stored) {
            let why = format!(
                "the {what} in the precondition ({asked}) does not match the {what} in record ({stored}). The object might have been {perhaps}"
            );
            return Err(Failure::conflict(&GroupResource::new("", "Pod"), pod.name(), &why));
        }
    }
    let condition = json!({
        "type": "DisruptionTarget", "status": "True",
        "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
    });
    conditions::set(pod, condition, now);
    Ok(())
}

/// A budget with an invalid selector, or none, covers nothing.
fn covers(budget: &Document, pod: &Document) -> bool {
    let Some(selector) = budget.get(&["spec", "selector"]) else { return false };
    LabelSelector::from_document(selector)
        .is_ok_and(|selector| selector.matches_value(pod.get(&["metadata", "labels"])))
}

fn number(budget: &Document, field: &str) -> i64 {
    budget.get(&["status", field]).and_then(Value::as_i64).unwrap_or_default()
}

/// Whether unhealthy pods are evicted without being counted.
fn allows_unhealthy(budget: &Document) -> bool {
    let wanted = number(budget, "desiredHealthy");
    budget.str(&["spec", "unhealthyPodEvictionPolicy"]) == Some("AlwaysAllow")
        || wanted > 0 && number(budget, "currentHealthy") >= wanted
}

/// Records one eviction in the status of the budget.
///
/// # Errors
/// 429 if the budget allows none, or its controller has not processed it; 403 if it is
/// inconsistent.
fn spent(budget: &mut Document, pod: &str, now: SystemTime) -> Result<(), Failure> {
    let name = budget.name().to_owned();
    let generation = budget.get(&["metadata", "generation"]).and_then(Value::as_i64);
    let observed = number(budget, "observedGeneration");
    if observed < generation.unwrap_or_default() {
        return Err(unprocessed(&name));
    }
    let resource = GroupResource::new("policy", "poddisruptionbudget");
    let forbidden = |why: &str| Err(Failure::forbidden(&resource, &name, why));
    let left = number(budget, ALLOWED[1]) - 1;
    let disrupted = budget.get(&["status", "disruptedPods"]).and_then(Value::as_object);
    match left {
        ..-1 => return forbidden("pdb disruptions allowed is negative"),
        _ if disrupted.is_some_and(|pods| pods.len() > MAX_DISRUPTED) => {
            return forbidden(
                "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
            );
        }
        -1 => return Err(too_many(0, exhausted(budget))),
        _ => {}
    }
    budget.set(&ALLOWED, left);
    if left == 0 {
        let condition = json!({
            "type": BY_BUDGET, "status": "False", "reason": "InsufficientPods", "message": "",
            "observedGeneration": observed,
        });
        conditions::set(budget, condition, now);
    }
    budget.set(&["status", "disruptedPods", pod], rfc3339_seconds(now));
    Ok(())
}

/// Why a budget allows no eviction.
fn exhausted(budget: &Document) -> String {
    let name = budget.name();
    let condition = conditions::find(budget, BY_BUDGET);
    let text = |field: &str| condition.and_then(|one| one.get(field)?.as_str()).unwrap_or_default();
    let (wanted, healthy) = (number(budget, "desiredHealthy"), number(budget, "currentHealthy"));
    let message = if text("status") == "False" { text("message") } else { "" };
    match text("reason") {
        "SyncFailed" if !message.is_empty() => format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
        ),
        _ if healthy <= wanted => format!(
            "The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently"
        ),
        reason if !message.is_empty() => format!(
            "The disruption budget {name} does not allow evicting pods currently ({reason}): {message}"
        ),
        _ => format!("The disruption budget {name} does not allow evicting pods currently"),
    }
}

fn unprocessed(budget: &str) -> Failure {
    let why = format!("The disruption budget {budget} is still being processed by the server.");
    too_many(RETRY, why)
}

/// 429. `seconds`: until a retry; 0 if unknown.
fn too_many(seconds: u32, why: String) -> Failure {
    let cause = Cause { reason: "DisruptionBudget".to_owned(), message: why, field: String::new() };
    let details =
        Details { causes: vec![cause], retry_after_seconds: seconds, ..Details::default() };
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    Failure::new(Reason::TooManyRequests, message).with_details(details)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(status: Value) -> Document {
        let object = json!({"metadata": {"name": "b", "generation": 1}, "status": status});
        Document::from_value(object).unwrap()
    }

    fn refused(status: Value) -> (u16, u32, String) {
        let failure = spent(&mut budget(status), "p", SystemTime::UNIX_EPOCH).unwrap_err();
        let details = failure.details.unwrap();
        let why = details.causes.first().map(|cause| cause.message.clone());
        (failure.code, details.retry_after_seconds, why.unwrap_or(failure.message))
    }

    #[test]
    fn a_budget_is_spent_once_for_each_pod() {
        let mut budget = budget(json!({"observedGeneration": 1, "disruptionsAllowed": 2}));
        spent(&mut budget, "p", SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(budget.get(&ALLOWED), Some(&json!(1)));
        assert_eq!(conditions::find(&budget, BY_BUDGET), None);
        spent(&mut budget, "q", SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(budget.get(&ALLOWED), Some(&json!(0)));
        assert_eq!(conditions::status(&budget, BY_BUDGET), "False");
        let time = "1970-01-01T00:00:00Z";
        let disrupted = json!({"p": time, "q": time});
        assert_eq!(budget.get(&["status", "disruptedPods"]), Some(&disrupted));
        spent(&mut budget, "r", SystemTime::UNIX_EPOCH).unwrap_err();
    }

    #[test]
    fn a_budget_refuses_as_kube_apiserver_does() {
        let unseen = "The disruption budget b is still being processed by the server.";
        assert_eq!(refused(json!({})), (429, 10, unseen.to_owned()));
        let status = |allowed: i64| json!({"observedGeneration": 1, "disruptionsAllowed": allowed, "desiredHealthy": 2, "currentHealthy": 1});
        let none = "The disruption budget b needs 2 healthy pods and has 1 currently";
        assert_eq!(refused(status(0)), (429, 0, none.to_owned()));
        let negative =
            "poddisruptionbudget.policy \"b\" is forbidden: pdb disruptions allowed is negative";
        assert_eq!(refused(status(-1)), (403, 0, negative.to_owned()));
        let mut failed = status(0);
        let condition =
            json!({"type": BY_BUDGET, "status": "False", "reason": "SyncFailed", "message": "why"});
        failed.as_object_mut().unwrap().insert("conditions", json!([condition]));
        let sync = "The disruption budget b does not allow evicting pods currently because it failed sync: why";
        assert_eq!(refused(failed), (429, 0, sync.to_owned()));
    }

    #[test]
    fn a_dry_run_is_of_everything() {
        let eviction = |dry_run: Value| {
            Document::from_value(json!({"deleteOptions": {"dryRun": dry_run}})).unwrap()
        };
        assert!(check_dry_run(&eviction(json!(["All", "All"]))).is_ok());
        let wrong = check_dry_run(&eviction(json!(["All", "x"]))).unwrap_err();
        let why = "DeleteOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"All\",\"x\"]: supported values: \"All\"";
        assert_eq!((wrong.code, wrong.message.as_str()), (422, why));
    }

    #[test]
    fn a_budget_covers_pods_by_labels() {
        let covers = |spec: Value| {
            let budget = Document::from_value(json!({ "spec": spec })).unwrap();
            let pod = json!({"metadata": {"labels": {"app": "w"}}});
            covers(&budget, &Document::from_value(pod).unwrap())
        };
        assert!(covers(json!({"selector": {"matchLabels": {"app": "w"}}})));
        assert!(!covers(json!({"selector": {"matchLabels": {"app": "x"}}})));
        assert!(covers(json!({"selector": {}})));
        assert!(!covers(json!({})));
        let bad = json!({"matchExpressions": [{"key": "app", "operator": "Near"}]});
        assert!(!covers(json!({ "selector": bad })));
    }
}
