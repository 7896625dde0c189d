//! The index: roles by key, and for every subject its grants by namespace. Immutable to readers; cloning it shares everything.

use super::rule::{ResourceQuestion, Rule};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_registry::UserInfo;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// All roles and grants at one moment.
#[derive(Clone, Default)]
pub struct Index {
    /// By `namespace/name`; cluster roles by `/name`.
    roles: imbl::HashMap<Arc<str>, Arc<Role>>,
    /// By the same form of key.
    bindings: imbl::HashMap<Arc<str>, Arc<Binding>>,
    users: imbl::HashMap<Arc<str>, Arc<Grants>>,
    groups: imbl::HashMap<Arc<str>, Arc<Grants>>,
}

/// A role's rules, found by resource.
#[derive(Debug, Default)]
pub(crate) struct Role {
    pub(crate) rules: Vec<Rule>,
    /// Rules that name the resource, by it.
    exact: HashMap<Box<str>, Vec<u32>>,
    /// Rules that name a wildcard resource.
    wild: Vec<u32>,
    /// Rules with paths.
    paths: Vec<u32>,
}

/// A binding: who gets which role where.
#[derive(Debug)]
struct Binding {
    subjects: Vec<Subject>,
    grant: Arc<GrantedBy>,
}

/// One subject of a binding.
#[derive(Debug)]
struct Subject {
    is_group: bool,
    /// The user or group name; a service account's user name.
    name: Arc<str>,
    /// For reasons: `Group "devs"`.
    text: Arc<str>,
}

#[derive(Debug)]
struct GrantedBy {
    /// Empty for cluster bindings.
    namespace: Arc<str>,
    name: Arc<str>,
    /// The role's key in the index.
    role: Arc<str>,
}

/// What one subject was given.
#[derive(Clone, Default)]
struct Grants {
    cluster: Vec<Grant>,
    namespaces: imbl::HashMap<Arc<str>, Vec<Grant>>,
}

/// One binding's gift to one subject.
#[derive(Clone, Debug)]
pub struct Grant {
    by: Arc<GrantedBy>,
    subject: Arc<str>,
}

impl Grant {
    /// As upstream explains an allowed request.
    pub fn reason(&self) -> String {
        let by = &self.by;
        let (kind, name) = (self.role_kind(), by.role.split_once('/').map_or("", |(_, name)| name));
        if by.namespace.is_empty() {
            format!("RBAC: allowed by ClusterRoleBinding {:?} of {kind} {name:?} to {}", by.name, self.subject)
        } else {
            format!("RBAC: allowed by RoleBinding \"{}/{}\" of {kind} {name:?} to {}", by.name, by.namespace, self.subject)
        }
    }

    fn role_kind(&self) -> &'static str {
        if self.by.role.starts_with('/') { "ClusterRole" } else { "Role" }
    }

    /// As upstream explains a role that is not there.
    pub(crate) fn missing(&self) -> String {
        let name = self.by.role.split_once('/').map_or("", |(_, name)| name);
        format!("{}.rbac.authorization.k8s.io {name:?} not found", self.role_kind().to_ascii_lowercase())
    }
}

/// `namespace/name`, or `/name` for cluster scope.
pub(crate) fn role_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

impl Role {
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        let mut role = Self { rules, ..Self::default() };
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
        self.wild.iter().any(allows) || self.exact.get(question.resource).is_some_and(|numbers| numbers.iter().any(allows))
    }

    pub(crate) fn allows_path(&self, verb: &str, path: &str) -> bool {
        self.paths.iter().any(|number| self.rules[*number as usize].allows_path(verb, path))
    }
}

impl Index {
    /// Adds or replaces a role (namespaced or not by its metadata).
    pub fn put_role(&mut self, document: &Document) {
        let key = role_key(document.namespace(), document.name());
        self.roles.insert(key.into(), Arc::new(Role::new(Rule::list(document.get(&["rules"])))));
    }

    /// Removes a role.
    pub fn remove_role(&mut self, namespace: &str, name: &str) {
        self.roles.remove(role_key(namespace, name).as_str());
    }

    /// Removes all roles of one scope.
    pub fn clear_roles(&mut self, cluster: bool) {
        self.roles = std::mem::take(&mut self.roles).into_iter().filter(|(key, _)| key.starts_with('/') != cluster).collect();
    }

    /// Adds or replaces a binding.
    pub fn put_binding(&mut self, document: &Document) {
        let (namespace, name) = (document.namespace(), document.name());
        self.remove_binding(namespace, name);
        let binding = Arc::new(Binding::new(namespace, name, document));
        for subject in &binding.subjects {
            self.grant(subject, &binding.grant);
        }
        self.bindings.insert(role_key(namespace, name).into(), binding);
    }

    /// Removes a binding.
    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        if let Some(binding) = self.bindings.remove(role_key(namespace, name).as_str()) {
            for subject in &binding.subjects {
                self.revoke(subject, &binding.grant);
            }
        }
    }

    /// Removes all bindings of one scope.
    pub fn clear_bindings(&mut self, cluster: bool) {
        let keys: Vec<Arc<str>> = self.bindings.keys().filter(|key| key.starts_with('/') == cluster).cloned().collect();
        for key in keys {
            if let Some((namespace, name)) = key.split_once('/') {
                self.remove_binding(namespace, name);
            }
        }
    }

    fn side(&mut self, is_group: bool) -> &mut imbl::HashMap<Arc<str>, Arc<Grants>> {
        if is_group { &mut self.groups } else { &mut self.users }
    }

    fn grant(&mut self, subject: &Subject, by: &Arc<GrantedBy>) {
        let grants = Arc::make_mut(self.side(subject.is_group).entry(Arc::clone(&subject.name)).or_default());
        let list = grants.list(&by.namespace);
        if !list.iter().any(|grant| Arc::ptr_eq(&grant.by, by)) {
            list.push(Grant { by: Arc::clone(by), subject: Arc::clone(&subject.text) });
        }
    }

    fn revoke(&mut self, subject: &Subject, by: &Arc<GrantedBy>) {
        let side = self.side(subject.is_group);
        let Some(grants) = side.get_mut(&subject.name) else {
            return;
        };
        let grants = Arc::make_mut(grants);
        let list = grants.list(&by.namespace);
        list.retain(|grant| !Arc::ptr_eq(&grant.by, by));
        if list.is_empty() && !by.namespace.is_empty() {
            grants.namespaces.remove(&by.namespace);
        }
        if grants.cluster.is_empty() && grants.namespaces.is_empty() {
            side.remove(&subject.name);
        }
    }

    /// The rules of a role, if it is there.
    pub(crate) fn role(&self, key: &str) -> Option<&Arc<Role>> {
        self.roles.get(key)
    }

    /// Visits what a user was given, cluster-wide and (unless empty) in a namespace, until told to stop; the role is `None` when it does not exist.
    pub(crate) fn visit<'a, B>(
        &'a self,
        user: &UserInfo,
        namespace: &str,
        mut visit: impl FnMut(&'a Grant, Option<&'a Arc<Role>>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let own = self.users.get(user.name.as_str());
        let groups = user.groups.iter().filter_map(|group| self.groups.get(group.as_str()));
        let all = own.into_iter().chain(groups);
        for grant in all.clone().flat_map(|grants| &grants.cluster) {
            visit(grant, self.roles.get(&grant.by.role))?;
        }
        if !namespace.is_empty() {
            for grant in all.filter_map(|grants| grants.namespaces.get(namespace)).flatten() {
                visit(grant, self.roles.get(&grant.by.role))?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Every rule that a user holds, cluster-wide and in a namespace, in no particular order, and what is wrong with the bindings on the way.
    pub fn rules(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let (mut rules, mut missing) = (Vec::new(), Vec::new());
        let _: ControlFlow<()> = self.visit(user, namespace, |grant, role| {
            match role {
                Some(role) => rules.extend(role.rules.iter().cloned()),
                None => missing.push(grant.missing()),
            }
            ControlFlow::Continue(())
        });
        (rules, missing)
    }
}

impl Grants {
    fn list(&mut self, namespace: &Arc<str>) -> &mut Vec<Grant> {
        if namespace.is_empty() { &mut self.cluster } else { self.namespaces.entry(Arc::clone(namespace)).or_default() }
    }
}

impl Binding {
    fn new(namespace: &str, name: &str, document: &Document) -> Self {
        let role_name = document.str(&["roleRef", "name"]).unwrap_or_default();
        let role_namespace = if document.str(&["roleRef", "kind"]) == Some("Role") { namespace } else { "" };
        let grant = GrantedBy { namespace: namespace.into(), name: name.into(), role: role_key(role_namespace, role_name).into() };
        let subjects = document.list(&["subjects"]).iter().filter_map(|value| Subject::new(value, namespace)).collect();
        Self { subjects, grant: Arc::new(grant) }
    }
}

impl Subject {
    /// `None` for what binds nobody: an unknown kind, or a service account without a namespace.
    fn new(value: &Value, binding_namespace: &str) -> Option<Self> {
        let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
        let (kind, name) = (text("kind"), text("name"));
        match kind {
            "User" | "Group" => Some(Self { is_group: kind == "Group", name: name.into(), text: format!("{kind} {name:?}").into() }),
            "ServiceAccount" => {
                let namespace = if text("namespace").is_empty() { binding_namespace } else { text("namespace") };
                let user = format!("system:serviceaccount:{namespace}:{name}");
                (!namespace.is_empty()).then(|| Self { is_group: false, name: user.into(), text: format!("{kind} \"{name}/{namespace}\"").into() })
            }
            _ => None,
        }
    }
}
