//! Escalation prevention: a user may only write or bind roles whose permissions it holds, unless
//! RBAC grants it `escalate` or `bind`.

use super::authorizer::Rbac;
use super::held_rules::HeldRules;
use super::index::{RbacView, role_key};
use super::rule::{GROUP, PermissionBudget, PolicyRule};
use crate::access::{Access, Authorizer, ResourceAccess, aggregate};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{cut, quote};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_apimachinery::{name, work};
use ferrokube_registry::{Attributes, Operation};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Max single permissions that one check expands uncovered rules into; beyond it the role is
/// refused.
const MAX_PERMISSIONS: usize = 100_000;
/// Max permissions that a refusal lists.
const MAX_SHOWN: usize = 50;
const MAX_SHOWN_BYTES: usize = 64 * 1024;

/// A write of a role or binding.
#[derive(Clone, Copy, Debug)]
pub struct RoleWrite<'a> {
    /// `roles`, `clusterroles`, `rolebindings` or `clusterrolebindings`; others always pass.
    pub resource: &'a str,
    /// Empty for cluster scope.
    pub namespace: &'a str,
    /// The name in the request's path; empty for a create.
    pub request_name: &'a str,
    /// The new object, after admission.
    pub object: &'a Document,
    /// The stored object, for updates.
    pub old: Option<&'a Document>,
}

/// Runs in admission, when an object is final and not yet stored.
#[derive(Clone)]
pub struct EscalationCheck {
    rbac: Arc<Rbac>,
    authorizer: Arc<dyn Authorizer>,
}

impl EscalationCheck {
    /// `authorizer`: the server's whole authorizer, consulted for `escalate` and `bind`.
    pub fn new(rbac: Arc<Rbac>, authorizer: Arc<dyn Authorizer>) -> Self {
        Self { rbac, authorizer }
    }

    /// The check for an admission step. Passes everything but creates and updates of the four RBAC
    /// resources.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_admission(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
    ) -> Result<(), Failure> {
        let target = attributes.target;
        let definition = &target.served.definition;
        let writes = matches!(attributes.operation, Operation::Create | Operation::Update)
            && target.subresource.is_empty();
        let Some(object) = object.filter(|_| writes && definition.group == GROUP) else {
            return Ok(());
        };
        let request_name = if attributes.operation == Operation::Create {
            ""
        } else {
            target.name.as_deref().unwrap_or_default()
        };
        let namespace = target.namespace.as_deref().unwrap_or_default();
        let write = RoleWrite {
            resource: &definition.plural,
            namespace,
            request_name,
            object,
            old: attributes.old,
        };
        self.check(&attributes.context.user, &write)
    }

    /// Checks one write.
    ///
    /// # Errors
    /// 403 if the user lacks a permission of the role; 404 if a binding's role does not exist; 400
    /// and 500, as kube-apiserver, if it cannot exist.
    pub fn check(&self, user: &UserInfo, write: &RoleWrite<'_>) -> Result<(), Failure> {
        if Rbac::is_master(user)
            || write.old.is_some_and(|old| only_collected_fields_differ(write.object, old))
        {
            return Ok(());
        }
        match write.resource {
            "roles" | "clusterroles" => self.check_role(user, write),
            "rolebindings" | "clusterrolebindings" => self.check_binding(user, write),
            _ => Ok(()),
        }
    }

    fn check_role(&self, user: &UserInfo, write: &RoleWrite<'_>) -> Result<(), Failure> {
        if self.may(user, "escalate", write.resource, write.namespace, write.request_name) {
            return Ok(());
        }
        let view = self.rbac.view(write.namespace);
        confirm(&view, user, write, &PolicyRule::list(write.object.get(&["rules"])))?;
        let aggregates = |document: &Document| {
            document.get(&["aggregationRule"]).is_some_and(|value| !value.is_null())
        };
        if write.resource == "clusterroles"
            && (aggregates(write.object) || write.old.is_some_and(aggregates))
        {
            let why = "must have cluster-admin privileges to use the aggregationRule";
            confirm(&view, user, write, &all_rights()).map_err(|_| forbidden(write, why))?;
        }
        Ok(())
    }

    fn check_binding(&self, user: &UserInfo, write: &RoleWrite<'_>) -> Result<(), Failure> {
        let is_role = match write.object.str(&["roleRef", "kind"]).unwrap_or_default() {
            "Role" if write.namespace.is_empty() => {
                return Err(Failure::bad_request("Namespace parameter required."));
            }
            "Role" => true,
            "ClusterRole" => false,
            other => {
                return Err(Failure::bare(
                    500,
                    format!("unsupported role reference kind: {other:?}"),
                ));
            }
        };
        let name = write.object.str(&["roleRef", "name"]).unwrap_or_default();
        if self.may(
            user,
            "bind",
            if is_role { "roles" } else { "clusterroles" },
            write.namespace,
            name,
        ) {
            return Ok(());
        }
        check_name(name)?;
        let view = self.rbac.view(write.namespace);
        let key = role_key(if is_role { write.namespace } else { "" }, name);
        let Some(role) = view.role(&key) else {
            return Err(Failure::not_found(&GroupResource::new(GROUP, write.resource), name));
        };
        confirm(&view, user, write, &role.rules)
    }

    fn may(
        &self,
        user: &UserInfo,
        verb: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> bool {
        let resource = ResourceAccess {
            group: GROUP,
            version: "v1",
            resource,
            subresource: "",
            namespace,
            name,
        };
        self.authorizer
            .authorize(&Access { user, verb, resource: Some(resource), path: "" })
            .is_allowed()
    }
}

/// 400 for a name that no role can have.
fn check_name(name: &str) -> Result<(), Failure> {
    if name.is_empty() {
        return Err(Failure::bad_request("Name parameter required."));
    }
    match name::path_segment(name).join(";") {
        why if why.is_empty() => Ok(()),
        why => Err(Failure::bad_request(format!("Name parameter invalid: {}: {why}", quote(name)))),
    }
}

/// Fails unless the user's own rules, in the write's namespace, cover all of these.
fn confirm(
    view: &RbacView,
    user: &UserInfo,
    write: &RoleWrite<'_>,
    wanted: &[PolicyRule],
) -> Result<(), Failure> {
    let (roles, missing) = view.roles_of(user);
    let too_many = || {
        forbidden(
            write,
            &format!(
                "{} is attempting to grant more RBAC permissions than can be compared",
                describe_user(user)
            ),
        )
    };
    let mut held_rules = HeldRules::new(roles.iter().flat_map(|role| &role.rules));
    let mut uncovered = Vec::new();
    let mut budget = PermissionBudget::new(MAX_PERMISSIONS);
    for rule in wanted {
        if held_rules.cover(rule).ok_or_else(too_many)? {
            continue;
        }
        let permissions = rule.single_permissions(&mut budget).ok_or_else(too_many)?;
        for permission in permissions {
            if !held_rules.cover(&permission).ok_or_else(too_many)? {
                uncovered.push(permission);
            }
        }
    }
    if uncovered.is_empty() {
        return Ok(());
    }
    let shown: BTreeSet<String> = compact(uncovered).iter().map(PolicyRule::to_string).collect();
    let shown: Vec<String> = shown.into_iter().take(MAX_SHOWN).collect();
    let shown = cut(shown.join("\n"), MAX_SHOWN_BYTES);
    let mut why = format!(
        "{} is attempting to grant RBAC permissions not currently held:\n{shown}",
        describe_user(user)
    );
    if !missing.is_empty() {
        why.push_str(&format!("; resolution errors: [{}]", aggregate(&missing)));
    }
    Err(forbidden(write, &why))
}

/// Merges rules that differ only in their verb, as kube-apiserver does in its message.
fn compact(permissions: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut places: HashMap<PolicyRule, usize> = HashMap::new();
    let mut rules: Vec<PolicyRule> = Vec::new();
    let mut seen: HashSet<(usize, String)> = HashSet::new();
    for mut permission in permissions {
        work::count(1);
        let verbs = std::mem::take(&mut permission.verbs);
        // Rules for paths are not merged.
        let place = match places.get(&permission).filter(|_| permission.urls.is_empty()) {
            Some(place) => *place,
            None => {
                places.insert(permission.clone(), rules.len());
                rules.push(permission);
                rules.len() - 1
            }
        };
        rules[place]
            .verbs
            .extend(verbs.into_iter().filter(|verb| seen.insert((place, verb.clone()))));
    }
    rules
}

fn describe_user(user: &UserInfo) -> String {
    let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
    format!("user {:?} (groups=[{}])", user.name, groups.join(" "))
}

fn all_rights() -> [PolicyRule; 2] {
    let star = || vec!["*".to_owned()];
    [
        PolicyRule { verbs: star(), groups: star(), resources: star(), ..PolicyRule::default() },
        PolicyRule { verbs: star(), urls: star(), ..PolicyRule::default() },
    ]
}

fn forbidden(write: &RoleWrite<'_>, why: &str) -> Failure {
    Failure::forbidden(&GroupResource::new(GROUP, write.resource), write.object.name(), why)
}

/// Fields of metadata that the garbage collector writes or the server stamps.
const COLLECTED: [&str; 4] = ["ownerReferences", "finalizers", "managedFields", "resourceVersion"];

/// Whether an update changes only fields written by the garbage collector and stamped by the
/// server. Compares metadata first: it is short, and differs in most updates.
fn only_collected_fields_differ(object: &Document, old: &Document) -> bool {
    fn map<'a>(
        document: &'a Document,
        path: &[&str],
    ) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let map = document.get(path).and_then(Value::as_object);
        map.into_iter().flatten().map(|(name, value)| (name.as_str(), value))
    }
    fn metadata(document: &Document) -> impl Iterator<Item = (&str, &Value)> {
        map(document, &["metadata"])
            .filter(|(name, _)| !COLLECTED.contains(name) && *name != "annotations")
    }
    fn annotations(document: &Document) -> impl Iterator<Item = (&str, &Value)> {
        map(document, &["metadata", "annotations"])
            .filter(|(key, _)| !key.starts_with("trace.kubernetes.io/"))
    }
    fn others(document: &Document) -> impl Iterator<Item = (&str, &Value)> {
        let fields = document.fields().iter().map(|(name, value)| (name.as_str(), value));
        fields.filter(|(name, _)| *name != "metadata")
    }
    metadata(object).eq(metadata(old))
        && annotations(object).eq(annotations(old))
        && others(object).eq(others(old))
}
