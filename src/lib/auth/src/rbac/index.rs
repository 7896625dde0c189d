//! The index of one namespace or of the cluster: roles by key, grants by subject. Immutable to
//! readers; cloning it shares everything. Decisions use [`RbacView`].

use super::rule::{PolicyRule, ResourceQuestion};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_apimachinery::work;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Max missing roles that a reason names.
pub(super) const MAX_MISSING: usize = 10;

/// Roles and grants of one namespace, or of the cluster.
#[derive(Clone, Default)]
pub struct RbacIndex {
    /// By `namespace/name`; cluster roles by `/name`.
    roles: imbl::HashMap<Arc<str>, Arc<CompiledRole>>,
    /// Keyed like `roles`.
    bindings: imbl::HashMap<Arc<str>, Arc<Binding>>,
    grants: ScopeGrants,
}

/// The roles and bindings relevant to one namespace, or to the cluster.
#[derive(Clone)]
pub struct RbacView {
    pub(super) cluster: Arc<RbacIndex>,
    pub(super) own: Option<Arc<RbacIndex>>,
}

/// Grants by subject. One map per scope rather than per subject keeps a subject at a few words.
#[derive(Clone, Default)]
struct ScopeGrants {
    users: imbl::HashMap<Arc<str>, StoredGrants>,
    groups: imbl::HashMap<Arc<str>, StoredGrants>,
}

/// One subject's grants; not empty. Most subjects have one.
#[derive(Clone)]
enum StoredGrants {
    One(StoredGrant),
    Many(Arc<Vec<StoredGrant>>),
}

/// A role's rules, indexed by resource.
#[derive(Debug, Default)]
pub(crate) struct CompiledRole {
    pub(crate) rules: Vec<PolicyRule>,
    /// Rules by each resource that they name.
    exact: HashMap<Box<str>, Vec<u32>>,
    /// Rules with a wildcard resource.
    wild: Vec<u32>,
    /// Rules with non-resource URLs.
    paths: Vec<u32>,
    /// Number of texts in the rules: what a decision compares at most.
    pub(super) texts: usize,
}

/// A binding's subjects and role.
#[derive(Debug)]
struct Binding {
    /// Sorted, without duplicates.
    subjects: Vec<BoundSubject>,
    by: Arc<GrantedBy>,
}

/// A subject of a binding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BoundSubject {
    is_group: bool,
    /// The user or group name; for a service account, its user name.
    name: Arc<str>,
    /// Was written as a ServiceAccount.
    is_account: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct GrantedBy {
    /// The role's key in the index.
    role: Arc<str>,
    /// The reason for allowing a request, up to the subject. Names the binding.
    reason: Box<str>,
}

/// A binding's grant to one subject, as stored.
#[derive(Clone)]
struct StoredGrant {
    by: Arc<GrantedBy>,
    is_account: bool,
}

/// Rules that one binding grants to one subject.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    by: &'a GrantedBy,
    is_group: bool,
    is_account: bool,
    name: &'a str,
}

impl Grant<'_> {
    /// kube-apiserver's reason for an allowed request.
    pub fn reason(&self) -> String {
        let account = || self.name.strip_prefix(ACCOUNT)?.split_once(':');
        match account().filter(|_| self.is_account) {
            Some((namespace, name)) => {
                format!("{}ServiceAccount \"{name}/{namespace}\"", self.by.reason)
            }
            None => format!(
                "{}{} {:?}",
                self.by.reason,
                if self.is_group { "Group" } else { "User" },
                self.name
            ),
        }
    }

    /// kube-apiserver's error for a missing role.
    pub(crate) fn missing(&self) -> String {
        let (kind, name) = kind_and_name(&self.by.role);
        format!("{}.rbac.authorization.k8s.io {name:?} not found", kind.to_ascii_lowercase())
    }
}

/// Prefix of service accounts' user names.
const ACCOUNT: &str = "system:serviceaccount:";

/// `namespace/name`, or `/name` for cluster scope.
pub(crate) fn role_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Splits a role key.
fn kind_and_name(key: &str) -> (&'static str, &str) {
    let name = key.split_once('/').map_or("", |(_, name)| name);
    (if key.starts_with('/') { "ClusterRole" } else { "Role" }, name)
}

impl CompiledRole {
    pub(crate) fn new(rules: Vec<PolicyRule>) -> Self {
        let texts = rules.iter().map(PolicyRule::texts).sum();
        let mut role = Self { rules, texts, ..Self::default() };
        for (number, rule) in role.rules.iter().enumerate() {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            if !rule.urls.is_empty() {
                role.paths.push(number);
            }
            if rule.resources.iter().any(|resource| resource == "*" || resource.starts_with("*/")) {
                role.wild.push(number);
                continue;
            }
            for resource in &rule.resources {
                role.exact.entry(resource.as_str().into()).or_default().push(number);
            }
        }
        role
    }

    pub(crate) fn allows_resource(&self, question: &ResourceQuestion<'_>) -> bool {
        let allows = |number: &u32| self.rules[*number as usize].allows_resource(question);
        self.wild.iter().any(allows)
            || self.exact.get(question.resource).is_some_and(|numbers| numbers.iter().any(allows))
    }

    pub(crate) fn allows_path(&self, verb: &str, path: &str) -> bool {
        self.paths.iter().any(|number| self.rules[*number as usize].allows_path(verb, path))
    }
}

impl RbacIndex {
    /// Adds or replaces a role; its metadata says whether it is namespaced.
    pub fn put_role(&mut self, document: &Document) {
        let key = role_key(document.namespace(), document.name());
        self.roles.insert(
            key.into(),
            Arc::new(CompiledRole::new(PolicyRule::list(document.get(&["rules"])))),
        );
    }

    /// An empty namespace: a ClusterRole. Its bindings stay and grant nothing.
    pub fn remove_role(&mut self, namespace: &str, name: &str) {
        self.roles.remove(role_key(namespace, name).as_str());
    }

    /// Removes all roles.
    pub fn clear_roles(&mut self) {
        self.roles.clear();
    }

    /// Adds or replaces a binding. An update only reindexes subjects that differ.
    pub fn put_binding(&mut self, document: &Document) {
        let (namespace, name) = (document.namespace(), document.name());
        let key = role_key(namespace, name);
        let mut new = Binding::new(namespace, name, document);
        match self.bindings.get(key.as_str()).map(Arc::clone) {
            Some(old) if old.by == new.by => {
                if !self.exchange(&old, &mut new) {
                    return;
                }
            }
            Some(_) => {
                self.remove_binding(namespace, name);
                self.grant(&new.by, new.subjects.iter());
            }
            None => self.grant(&new.by, new.subjects.iter()),
        }
        self.bindings.insert(key.into(), Arc::new(new));
    }

    /// Revokes from the subjects that only `old` has, grants to those that only `new` has and
    /// shares the rest. Returns whether the subjects differ.
    fn exchange(&mut self, old: &Binding, new: &mut Binding) -> bool {
        new.by = Arc::clone(&old.by);
        let is_in =
            |subjects: &[BoundSubject], one: &BoundSubject| subjects.binary_search(one).is_ok();
        let gone: Vec<&BoundSubject> =
            old.subjects.iter().filter(|one| !is_in(&new.subjects, one)).collect();
        for subject in &mut new.subjects {
            if let Ok(place) = old.subjects.binary_search(subject) {
                *subject = old.subjects[place].clone();
            }
        }
        let come: Vec<&BoundSubject> =
            new.subjects.iter().filter(|one| !is_in(&old.subjects, one)).collect();
        let differs = !gone.is_empty() || !come.is_empty();
        self.revoke(&old.by, gone.into_iter());
        self.grant(&new.by, come.into_iter());
        differs
    }

    /// An empty namespace: a ClusterRoleBinding. Unknown ones are ignored.
    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        if let Some(binding) = self.bindings.remove(role_key(namespace, name).as_str()) {
            self.revoke(&binding.by, binding.subjects.iter());
        }
    }

    /// Removes all bindings.
    pub fn clear_bindings(&mut self) {
        self.bindings.clear();
        self.grants = ScopeGrants::default();
    }

    /// Whether there are no roles and no bindings.
    pub fn is_empty(&self) -> bool {
        self.roles.is_empty() && self.bindings.is_empty()
    }

    /// Whether there is such a role or binding.
    pub(super) fn contains(&self, is_role: bool, namespace: &str, name: &str) -> bool {
        let key = role_key(namespace, name);
        match is_role {
            true => self.roles.contains_key(key.as_str()),
            false => self.bindings.contains_key(key.as_str()),
        }
    }

    fn grant<'a>(&mut self, by: &Arc<GrantedBy>, subjects: impl Iterator<Item = &'a BoundSubject>) {
        for subject in subjects {
            work::count(1);
            let grant = StoredGrant { by: Arc::clone(by), is_account: subject.is_account };
            let side = self.grants.side(subject.is_group);
            match side.get_mut(&subject.name) {
                Some(grants) => grants.push(grant),
                None => _ = side.insert(Arc::clone(&subject.name), StoredGrants::One(grant)),
            }
        }
    }

    fn revoke<'a>(
        &mut self,
        by: &Arc<GrantedBy>,
        subjects: impl Iterator<Item = &'a BoundSubject>,
    ) {
        for subject in subjects {
            work::count(1);
            let side = self.grants.side(subject.is_group);
            let Some(grants) = side.get_mut(&subject.name) else { continue };
            let is_kept = |grant: &StoredGrant| {
                !(Arc::ptr_eq(&grant.by, by) && grant.is_account == subject.is_account)
            };
            if !grants.retain(is_kept) {
                side.remove(&subject.name);
            }
        }
    }
}

impl RbacView {
    /// A role's rules, if it exists.
    pub(crate) fn role(&self, key: &str) -> Option<&Arc<CompiledRole>> {
        let index = if key.starts_with('/') { Some(&self.cluster) } else { self.own.as_ref() };
        index?.roles.get(key)
    }

    /// Visits a user's grants, cluster-wide and in the namespace, until the visitor breaks; the
    /// role is `None` if it does not exist.
    pub(crate) fn visit<'a, B>(
        &'a self,
        user: &'a UserInfo,
        mut visit: impl FnMut(Grant<'a>, Option<&'a Arc<CompiledRole>>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let indexes = [Some(&self.cluster), self.own.as_ref()];
        indexes.into_iter().flatten().try_for_each(|index| self.visit_in(index, user, &mut visit))
    }

    /// The same in one of the view's indexes.
    pub(super) fn visit_in<'a, B>(
        &'a self,
        index: &'a RbacIndex,
        user: &'a UserInfo,
        mut visit: impl FnMut(Grant<'a>, Option<&'a Arc<CompiledRole>>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        index.grants.visit(user, |grant| visit(grant, self.role(&grant.by.role)))
    }

    /// The roles that a user holds, each once, and the errors of bindings to missing roles.
    pub(crate) fn roles_of(&self, user: &UserInfo) -> (Vec<Arc<CompiledRole>>, Vec<String>) {
        let (mut roles, mut missing, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        let _: ControlFlow<()> = self.visit(user, |grant, role| {
            match role {
                Some(role) if seen.insert(Arc::as_ptr(role)) => roles.push(Arc::clone(role)),
                Some(_) => {}
                None if missing.len() < MAX_MISSING => {
                    let text = grant.missing();
                    if !missing.contains(&text) {
                        missing.push(text);
                    }
                }
                None => {}
            }
            ControlFlow::Continue(())
        });
        (roles, missing)
    }
}

impl StoredGrants {
    fn push(&mut self, grant: StoredGrant) {
        match self {
            Self::One(first) => *self = Self::Many(Arc::new(vec![first.clone(), grant])),
            Self::Many(grants) => Arc::make_mut(grants).push(grant),
        }
    }

    /// False if nothing is left.
    fn retain(&mut self, is_kept: impl Fn(&StoredGrant) -> bool) -> bool {
        let Self::Many(grants) = self else { return self.iter().any(is_kept) };
        Arc::make_mut(grants).retain(is_kept);
        let left = grants.len();
        if let [last] = &grants[..] {
            *self = Self::One(last.clone());
        }
        left > 0
    }

    fn iter(&self) -> std::slice::Iter<'_, StoredGrant> {
        match self {
            Self::One(grant) => std::slice::from_ref(grant).iter(),
            Self::Many(grants) => grants.iter(),
        }
    }
}

impl ScopeGrants {
    fn side(&mut self, is_group: bool) -> &mut imbl::HashMap<Arc<str>, StoredGrants> {
        if is_group { &mut self.groups } else { &mut self.users }
    }

    fn visit<'a, B>(
        &'a self,
        user: &'a UserInfo,
        mut visit: impl FnMut(Grant<'a>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let own =
            self.users.get(user.name.as_str()).map(|grants| (user.name.as_str(), grants, false));
        let groups = user.groups.iter().filter_map(|group| {
            // A review may name a hundred thousand.
            work::breathe();
            Some((group.as_str(), self.groups.get(group.as_str())?, true))
        });
        for (name, grants, is_group) in own.into_iter().chain(groups) {
            for grant in grants.iter() {
                work::count(1);
                visit(Grant { by: &grant.by, is_group, is_account: grant.is_account, name })?;
            }
        }
        ControlFlow::Continue(())
    }
}

impl Binding {
    fn new(namespace: &str, name: &str, document: &Document) -> Self {
        let role_name = document.str(&["roleRef", "name"]).unwrap_or_default();
        let role_namespace =
            if document.str(&["roleRef", "kind"]) == Some("Role") { namespace } else { "" };
        let by = GrantedBy::new(namespace, name, role_key(role_namespace, role_name));
        let mut subjects: Vec<BoundSubject> = document
            .list(&["subjects"])
            .iter()
            .filter_map(|value| BoundSubject::new(value, namespace))
            .collect();
        // A user that is also listed as a service account is one subject.
        subjects.sort_unstable();
        subjects.dedup_by(|one, other| (one.is_group, &one.name) == (other.is_group, &other.name));
        subjects.shrink_to_fit();
        Self { subjects, by: Arc::new(by) }
    }
}

impl GrantedBy {
    fn new(namespace: &str, name: &str, role: String) -> Self {
        let (kind, role_name) = kind_and_name(&role);
        let reason = if namespace.is_empty() {
            format!("RBAC: allowed by ClusterRoleBinding {name:?} of {kind} {role_name:?} to ")
        } else {
            format!(
                "RBAC: allowed by RoleBinding \"{name}/{namespace}\" of {kind} {role_name:?} to "
            )
        };
        Self { reason: reason.into(), role: role.into() }
    }
}

impl BoundSubject {
    /// `None` for a subject that matches no user: an unknown kind, or a service account without a
    /// namespace.
    fn new(value: &Value, binding_namespace: &str) -> Option<Self> {
        let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
        let (kind, name) = (text("kind"), text("name"));
        match kind {
            "User" | "Group" => {
                Some(Self { is_group: kind == "Group", name: name.into(), is_account: false })
            }
            "ServiceAccount" => {
                let namespace = if text("namespace").is_empty() {
                    binding_namespace
                } else {
                    text("namespace")
                };
                (!namespace.is_empty()).then(|| Self {
                    is_group: false,
                    name: format!("{ACCOUNT}{namespace}:{name}").into(),
                    is_account: true,
                })
            }
            _ => None,
        }
    }
}
