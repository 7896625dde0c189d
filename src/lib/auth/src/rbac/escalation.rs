//! Nobody writes a role, or binds one, that holds more than they hold themselves, unless RBAC gives
//! them `escalate` or `bind`.

use super::authorizer::Rbac;
use super::held::Held;
use super::index::{Index, role_key};
use super::rule::{GROUP, Rule};
use crate::access::{Access, Authorizer, ResourceAccess, aggregate};
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::field::{cut, quote};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::{name, work};
use ferrokube_registry::{Attributes, Operation, UserInfo};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Most single permissions that one check takes apart; a role with more than this uncovered ones is
/// refused.
const MAX_PIECES: usize = 100_000;
/// Most permissions that a refusal lists.
const MAX_SHOWN: usize = 50;
const MAX_SHOWN_BYTES: usize = 64 * 1024;

/// A write of a role or binding.
#[derive(Clone, Copy, Debug)]
pub struct RoleWrite<'a> {
    /// `roles`, `clusterroles`, `rolebindings`, `clusterrolebindings`; other resources always pass.
    pub resource: &'a str,
    /// Empty for cluster scope.
    pub namespace: &'a str,
    /// The name in the request's path; empty for a create.
    pub request_name: &'a str,
    /// The object to be stored.
    pub object: &'a Document,
    /// The stored object, for an update.
    pub old: Option<&'a Document>,
}

/// The check. Admission calls it when an object is final, before it is stored.
#[derive(Clone)]
pub struct EscalationCheck {
    rbac: Arc<Rbac>,
    authorizer: Arc<dyn Authorizer>,
}

impl EscalationCheck {
    /// `authorizer` is the server's whole authorizer (it is asked for `escalate` and `bind`).
    pub fn new(rbac: Arc<Rbac>, authorizer: Arc<dyn Authorizer>) -> Self {
        Self { rbac, authorizer }
    }

    /// The check as an admission step sees a write: everything but creates and updates of the four
    /// RBAC resources passes.
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
    /// 403 when the user lacks what the role holds; 404 when a binding's role does not exist, 400
    /// and 500 (as upstream) when it cannot.
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
        let index = self.rbac.index();
        confirm(&index, user, write, &Rule::list(write.object.get(&["rules"])))?;
        let aggregates = |document: &Document| {
            document.get(&["aggregationRule"]).is_some_and(|value| !value.is_null())
        };
        if write.resource == "clusterroles"
            && (aggregates(write.object) || write.old.is_some_and(aggregates))
        {
            let why = "must have cluster-admin privileges to use the aggregationRule";
            confirm(&index, user, write, &everything()).map_err(|_| forbidden(write, why))?;
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
        let index = self.rbac.index();
        let key = role_key(if is_role { write.namespace } else { "" }, name);
        let Some(role) = index.role(&key) else {
            return Err(Failure::not_found(&GroupResource::new(GROUP, write.resource), name));
        };
        confirm(&index, user, write, &role.rules)
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

/// No role is called so: 400.
fn check_name(name: &str) -> Result<(), Failure> {
    if name.is_empty() {
        return Err(Failure::bad_request("Name parameter required."));
    }
    match name::path_segment(name).join(";") {
        why if why.is_empty() => Ok(()),
        why => Err(Failure::bad_request(format!("Name parameter invalid: {}: {why}", quote(name)))),
    }
}

/// Fails unless the user's own rules, at the write's place, cover all of these.
fn confirm(
    index: &Index,
    user: &UserInfo,
    write: &RoleWrite<'_>,
    wanted: &[Rule],
) -> Result<(), Failure> {
    let (roles, missing) = index.held(user, write.namespace);
    let too_many = || {
        forbidden(
            write,
            &format!(
                "{} is attempting to grant more RBAC permissions than can be compared",
                who(user)
            ),
        )
    };
    let mut held = Held::new(roles.iter().flat_map(|role| &role.rules));
    let mut uncovered = Vec::new();
    let mut budget = MAX_PIECES;
    for rule in wanted {
        if held.cover(rule).ok_or_else(too_many)? {
            continue;
        }
        let pieces = rule.pieces(budget).ok_or_else(too_many)?;
        budget -= pieces.len();
        for piece in pieces {
            if !held.cover(&piece).ok_or_else(too_many)? {
                uncovered.push(piece);
            }
        }
    }
    if uncovered.is_empty() {
        return Ok(());
    }
    let shown: BTreeSet<String> = compact(uncovered).iter().map(Rule::to_string).collect();
    let shown: Vec<String> = shown.into_iter().take(MAX_SHOWN).collect();
    let shown = cut(shown.join("\n"), MAX_SHOWN_BYTES);
    let mut why = format!(
        "{} is attempting to grant RBAC permissions not currently held:\n{shown}",
        who(user)
    );
    if !missing.is_empty() {
        why.push_str(&format!("; resolution errors: [{}]", aggregate(&missing)));
    }
    Err(forbidden(write, &why))
}

/// Pieces that differ in nothing but the verb become one rule with all the verbs, as upstream shows
/// them.
fn compact(pieces: Vec<Rule>) -> Vec<Rule> {
    let mut places: HashMap<Rule, usize> = HashMap::new();
    let mut rules: Vec<Rule> = Vec::new();
    let mut seen: HashSet<(usize, String)> = HashSet::new();
    for mut piece in pieces {
        work::count(1);
        let verbs = std::mem::take(&mut piece.verbs);
        // Paths stay apart.
        let place = match places.get(&piece).filter(|_| piece.urls.is_empty()) {
            Some(place) => *place,
            None => {
                places.insert(piece.clone(), rules.len());
                rules.push(piece);
                rules.len() - 1
            }
        };
        rules[place]
            .verbs
            .extend(verbs.into_iter().filter(|verb| seen.insert((place, verb.clone()))));
    }
    rules
}

fn who(user: &UserInfo) -> String {
    let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
    format!("user {:?} (groups=[{}])", user.name, groups.join(" "))
}

fn everything() -> [Rule; 2] {
    let star = || vec!["*".to_owned()];
    [
        Rule { verbs: star(), groups: star(), resources: star(), ..Rule::default() },
        Rule { verbs: star(), urls: star(), ..Rule::default() },
    ]
}

fn forbidden(write: &RoleWrite<'_>, why: &str) -> Failure {
    Failure::forbidden(&GroupResource::new(GROUP, write.resource), write.object.name(), why)
}

/// Whether an update changes nothing but what the garbage collector changes (and what the server
/// stamps).
fn only_collected_fields_differ(object: &Document, old: &Document) -> bool {
    let strip = |document: &Document| {
        let mut fields = document.fields().clone();
        if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                metadata.remove(field);
            }
            if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
                annotations.retain(|key, _| !key.starts_with("trace.kubernetes.io/"));
            }
            if metadata.get("annotations").and_then(Value::as_object).is_some_and(Map::is_empty) {
                metadata.remove("annotations");
            }
        }
        fields
    };
    strip(object) == strip(old)
}
