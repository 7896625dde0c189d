//! Parses the policy table.

use crate::rbac::{PolicyRule, RbacKind};
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::gvk::GroupResource;
use std::collections::{BTreeMap, BTreeSet};

/// API group of the RBAC kinds.
const GROUP: &str = "rbac.authorization.k8s.io";
/// Rows of the policy; the file's header describes them.
const TABLE: &str = include_str!("policy.txt");
const MIGRATION: &str = include_str!("migration.txt");
const FEATURES: &str = include_str!("features.txt");

/// A role or binding that the server creates and reconciles.
#[derive(Clone, Debug)]
pub struct PolicyObject {
    /// One of the four RBAC kinds.
    pub kind: RbacKind,
    /// Without server-set fields.
    pub document: Document,
}

/// A role under construction.
#[derive(Default)]
struct RoleEntry {
    namespace: String,
    name: String,
    to: String,
    from: String,
    rules: Vec<PolicyRule>,
}

/// Roles of a bundle are malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed roles of bundle {bundle}: {line:?}")]
pub struct RolesError {
    /// Name of the bundle.
    pub bundle: &'static str,
    /// The first such line.
    pub line: String,
}

/// A table as read.
#[derive(Default)]
struct PolicyTable {
    roles: Vec<RoleEntry>,
    bindings: Vec<PolicyObject>,
}

/// All objects, roles before bindings. Aggregated roles have the rules that the aggregation
/// controller would give them, so that they work without controllers.
pub fn expected() -> Vec<PolicyObject> {
    read(TABLE).objects(&[])
}

/// The objects of a server that lacks some of the kinds, and has roles of its own: by bundle, in
/// the format of `policy.txt`. A role that would be about absent kinds only is absent, too.
///
/// # Errors
/// [`RolesError`].
pub fn policy(
    absent: &[GroupResource],
    roles: &[(&'static str, &'static str)],
) -> Result<Vec<PolicyObject>, RolesError> {
    let mut table = read(TABLE);
    for (bundle, text) in roles {
        let failed = |line: &str| RolesError { bundle, line: line.to_owned() };
        table.read(text).map_err(failed)?;
    }
    Ok(table.objects(absent))
}

/// Further objects, for servers with storage version migration.
pub(super) fn expected_for_migration() -> Vec<PolicyObject> {
    read(MIGRATION).objects(&[])
}

/// Further objects, for servers with the Feature API.
pub(super) fn expected_for_features() -> Vec<PolicyObject> {
    read(FEATURES).objects(&[])
}

fn read(table: &'static str) -> PolicyTable {
    let mut read = PolicyTable::default();
    read.read(table).expect("the table is a constant, read by a test");
    read
}

impl PolicyTable {
    /// Fails with the malformed line.
    fn read<'a>(&mut self, table: &'a str) -> Result<(), &'a str> {
        let first = self.roles.len();
        for line in table.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words.as_slice() {
                [..] if line.starts_with(' ') => {
                    let role = self.roles[first..].last_mut().ok_or(line)?;
                    role.rules.push(rule(&words).ok_or(line)?);
                }
                ["clusterrole", name, options @ ..] => {
                    self.roles.push(cluster_role(name, options));
                }
                ["controller", name] => {
                    let role = format!("system:controller:{name}");
                    let subject = format!("s:kube-system/{name}");
                    self.bindings.push(binding("", &role, "ClusterRole", &role, &[&subject]));
                    self.roles.push(cluster_role(&role, &[]));
                }
                ["role", namespace, name] => {
                    let role = cluster_role(name, &[]);
                    self.roles.push(RoleEntry { namespace: (*namespace).into(), ..role });
                }
                ["clusterbinding", name, role, subjects @ ..] => {
                    self.bindings.push(binding("", name, "ClusterRole", role, subjects));
                }
                ["binding", namespace, name, role, subjects @ ..] => {
                    self.bindings.push(binding(namespace, name, "Role", role, subjects));
                }
                _ => return Err(line),
            }
        }
        Ok(())
    }

    fn objects(mut self, absent: &[GroupResource]) -> Vec<PolicyObject> {
        if !absent.is_empty() {
            self.leave_out(absent);
        }
        aggregate(&mut self.roles);
        self.roles.iter().map(RoleEntry::object).chain(self.bindings).collect()
    }

    /// Removes rules about absent kinds, roles without any other, and their bindings.
    fn leave_out(&mut self, absent: &[GroupResource]) {
        let absent: BTreeSet<(&str, &str)> =
            absent.iter().map(|kind| (kind.group.as_str(), kind.resource.as_str())).collect();
        let mut empty: BTreeSet<(String, String)> = BTreeSet::new();
        self.roles.retain_mut(|role| {
            let before = role.rules.len();
            role.rules.retain_mut(|rule| keep_served(rule, &absent));
            // Recording events is not a role's purpose.
            let is_gone = |rule: &PolicyRule| rule.resources.iter().all(|kind| kind == "events");
            let is_left = role.rules.len() == before
                || role.rules.iter().any(|rule| !is_gone(rule) || !rule.urls.is_empty());
            if !is_left {
                empty.insert((role.namespace.clone(), role.name.clone()));
            }
            is_left
        });
        self.bindings.retain(|binding| {
            let role = binding.document.str(&["roleRef", "name"]).unwrap_or_default();
            !empty.contains(&(binding.document.namespace().to_owned(), role.to_owned()))
        });
    }
}

/// Removes absent kinds from a rule. Returns whether anything is left.
fn keep_served(rule: &mut PolicyRule, absent: &BTreeSet<(&str, &str)>) -> bool {
    if rule.resources.is_empty() {
        return true;
    }
    let is_served = |group: &str, resource: &str| {
        let plural = resource.split('/').next().unwrap_or_default();
        !absent.contains(&(group, plural))
    };
    let groups = rule.groups.clone();
    rule.resources.retain(|kind| groups.iter().any(|group| is_served(group, kind)));
    let kinds = &rule.resources;
    rule.groups.retain(|group| kinds.iter().any(|kind| is_served(group, kind)));
    !rule.resources.is_empty()
}

fn cluster_role(name: &str, options: &[&str]) -> RoleEntry {
    let option = |key: &str| {
        options.iter().find_map(|option| option.strip_prefix(key)).unwrap_or_default().to_owned()
    };
    RoleEntry {
        name: name.to_owned(),
        to: option("to="),
        from: option("from="),
        ..RoleEntry::default()
    }
}

fn rule(words: &[&str]) -> Option<PolicyRule> {
    Some(match *words {
        ["events"] => PolicyRule {
            verbs: list("create,patch,update"),
            groups: list("core,events.k8s.io"),
            resources: list("events"),
            ..PolicyRule::default()
        },
        [verbs, "url", paths] => {
            PolicyRule { verbs: list(verbs), urls: list(paths), ..PolicyRule::default() }
        }
        [verbs, groups, resources] => PolicyRule {
            verbs: list(verbs),
            groups: list(groups),
            resources: list(resources),
            ..PolicyRule::default()
        },
        [verbs, groups, resources, names] => {
            PolicyRule { names: list(names), ..rule(&[verbs, groups, resources])? }
        }
        _ => return None,
    })
}

/// Splits a comma-separated list and expands its shorthands.
fn list(words: &str) -> Vec<String> {
    let mut list: Vec<&str> = words
        .split(',')
        .flat_map(|word| {
            match word {
                "core" => &[""][..],
                "R" => &["get", "list", "watch"],
                "RU" => &["get", "list", "patch", "update", "watch"],
                "W" => &["create", "delete", "deletecollection", "patch", "update"],
                "RW" => &[
                    "create",
                    "delete",
                    "deletecollection",
                    "get",
                    "list",
                    "patch",
                    "update",
                    "watch",
                ],
                _ => return vec![word],
            }
            .to_vec()
        })
        .collect();
    list.sort_unstable();
    list.into_iter().map(str::to_owned).collect()
}

/// Fills aggregated roles from those labeled for them, in name order, innermost first.
fn aggregate(roles: &mut [RoleEntry]) {
    for name in ["view", "edit", "admin"] {
        let mut parts: Vec<&RoleEntry> = roles.iter().filter(|role| role.to == name).collect();
        parts.sort_by(|one, other| one.name.cmp(&other.name));
        let mut rules: Vec<PolicyRule> = Vec::new();
        for rule in parts.into_iter().flat_map(|part| &part.rules) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
        if let Some(role) = roles.iter_mut().find(|role| role.from == name) {
            role.rules = rules;
        }
    }
}

impl RoleEntry {
    fn object(&self) -> PolicyObject {
        let kind = if self.namespace.is_empty() { RbacKind::ClusterRole } else { RbacKind::Role };
        let mut document = object(
            if kind == RbacKind::Role { "Role" } else { "ClusterRole" },
            &self.namespace,
            &self.name,
        );
        if !self.to.is_empty() {
            document.set(&["metadata", "labels", &aggregation_label(&self.to)], "true");
        }
        if !self.from.is_empty() {
            let labels = BTreeMap::from([(aggregation_label(&self.from), "true")]);
            document.set(
                &["aggregationRule", "clusterRoleSelectors"],
                json!([{ "matchLabels": labels }]),
            );
        }
        document
            .set(&["rules"], Value::Array(self.rules.iter().map(PolicyRule::to_value).collect()));
        PolicyObject { kind, document }
    }
}

fn aggregation_label(role: &str) -> String {
    format!("{GROUP}/aggregate-to-{role}")
}

fn object(kind: &str, namespace: &str, name: &str) -> Document {
    let mut document = Document::new();
    document.set(&["apiVersion"], format!("{GROUP}/v1"));
    document.set(&["kind"], kind);
    document.set(&["metadata", "name"], name);
    if !namespace.is_empty() {
        document.set(&["metadata", "namespace"], namespace);
    }
    document.set(&["metadata", "labels", "kubernetes.io/bootstrapping"], "rbac-defaults");
    document
        .set(&["metadata", "annotations", "rbac.authorization.kubernetes.io/autoupdate"], "true");
    document
}

fn binding(
    namespace: &str,
    name: &str,
    role_kind: &str,
    role: &str,
    subjects: &[&str],
) -> PolicyObject {
    let kind =
        if namespace.is_empty() { RbacKind::ClusterRoleBinding } else { RbacKind::RoleBinding };
    let mut document = object(
        if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" },
        namespace,
        name,
    );
    document.set(&["roleRef"], json!({"apiGroup": GROUP, "kind": role_kind, "name": role}));
    if !subjects.is_empty() {
        document.set(
            &["subjects"],
            Value::Array(
                subjects.iter().map(|subject| Value::Object(self::subject(subject))).collect(),
            ),
        );
    }
    PolicyObject { kind, document }
}

fn subject(text: &str) -> Map {
    let (kind, name) = text.split_once(':').unwrap_or_default();
    let mut subject = Map::new();
    let mut set = |field: &str, value: &str| subject.insert(field.to_owned(), Value::from(value));
    if let ("s", Some((namespace, name))) = (kind, name.split_once('/')) {
        set("kind", "ServiceAccount");
        set("namespace", namespace);
        set("name", name);
    } else {
        set("kind", if kind == "g" { "Group" } else { "User" });
        set("apiGroup", GROUP);
        set("name", name);
    }
    subject
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(
        all: &'a [PolicyObject],
        kind: RbacKind,
        namespace: &str,
        name: &str,
    ) -> &'a Document {
        &all.iter()
            .find(|one| {
                one.kind == kind
                    && one.document.namespace() == namespace
                    && one.document.name() == name
            })
            .expect("in the table")
            .document
    }

    #[test]
    fn the_table_reads_and_binds_only_what_exists() {
        let all = expected();
        let keys: BTreeSet<_> = all
            .iter()
            .map(|one| (one.kind.plural(), one.document.namespace(), one.document.name()))
            .collect();
        assert_eq!(keys.len(), all.len(), "no object twice");
        assert!(all.len() > 130, "{}", all.len());
        for one in all
            .iter()
            .filter(|one| matches!(one.kind, RbacKind::ClusterRoleBinding | RbacKind::RoleBinding))
        {
            let role = one.document.str(&["roleRef", "name"]).expect("a role");
            let (plural, namespace) = if one.kind == RbacKind::RoleBinding {
                ("roles", one.document.namespace())
            } else {
                ("clusterroles", "")
            };
            assert!(keys.contains(&(plural, namespace, role)), "{role}");
        }
        for rule in all.iter().flat_map(|one| PolicyRule::list(one.document.get(&["rules"]))) {
            assert!(
                !rule.verbs.is_empty()
                    && rule.verbs.iter().all(|verb| verb == "*"
                        || verb.chars().all(|letter| letter.is_ascii_lowercase())),
                "{rule}"
            );
        }
    }

    #[test]
    fn aggregated_roles_have_the_rules_of_their_sources() {
        let all = expected();
        let rules =
            |name| PolicyRule::list(find(&all, RbacKind::ClusterRole, "", name).get(&["rules"]));
        assert_eq!(rules("view"), rules("system:aggregate-to-view"));
        assert_eq!(
            rules("edit").len(),
            rules("view").len() + rules("system:aggregate-to-edit").len()
        );
        assert_eq!(
            rules("admin").len(),
            rules("edit").len() + rules("system:aggregate-to-admin").len()
        );
        assert_eq!(rules("admin")[0], rules("system:aggregate-to-edit")[0]);
    }

    #[test]
    fn absent_kinds_are_in_no_rule() {
        let absent = [("", "secrets"), ("", "resourcequotas")];
        let absent = absent.map(|(group, plural)| GroupResource::new(group, plural));
        let all = policy(&absent, &[]).expect("no further roles");
        let named = |object: &PolicyObject| {
            let rules = PolicyRule::list(object.document.get(&["rules"]));
            let mut words = rules.into_iter().flat_map(|rule| rule.resources);
            words.any(|word| word.starts_with("secrets") || word.starts_with("resourcequotas"))
        };
        assert!(expected().iter().any(named));
        assert!(!all.iter().any(named));
        let has = |name: &str| all.iter().any(|one| one.document.name() == name);
        assert!(!has("system:controller:token-cleaner"), "about nothing but secrets");
        assert!(has("system:controller:generic-garbage-collector") && has("cluster-admin"));
        assert!(all.len() < expected().len());
    }

    #[test]
    fn bundles_bring_roles() {
        let roles = "clusterrole toys to=edit\n  RW toy.example.com toys\ncontroller toymaker\n  R toy.example.com toys\n";
        let all = policy(&[], &[("toys", roles)]).expect("two roles");
        assert_eq!(all.len(), expected().len() + 3);
        let edit = find(&all, RbacKind::ClusterRole, "", "edit");
        let rules = PolicyRule::list(edit.get(&["rules"]));
        assert!(rules.iter().any(|rule| rule.resources == ["toys"]));
        for line in ["  R core pods", "clusterrole", "clusterrole x\n  R", "word word"] {
            let wrong = policy(&[], &[("toys", line)]).map(drop).expect_err(line);
            assert_eq!((wrong.bundle, wrong.line.as_str()), ("toys", line.lines().last().unwrap()));
        }
    }

    #[test]
    fn anonymous_may_read_only_health_and_version() {
        let all = expected();
        let open: Vec<&str> = all
            .iter()
            .filter(|one| {
                one.document
                    .list(&["subjects"])
                    .iter()
                    .any(|subject| subject["name"] == "system:unauthenticated")
            })
            .map(|one| one.document.name())
            .collect();
        assert_eq!(open, ["system:public-info-viewer"]);
    }

    /// Compares with objects recorded from a real cluster.
    #[test]
    fn policy_matches_a_real_cluster() {
        let recorded: Value =
            ferrokube_apimachinery::json::read_value(include_bytes!("recorded.json"))
                .expect("JSON");
        let all = expected();
        for object in recorded.as_array().expect("a list") {
            let recorded = Document::from_value(object.clone()).expect("an object");
            let kind = RbacKind::ALL
                .into_iter()
                .find(|kind| kind.plural() == format!("{}s", recorded.kind().to_lowercase()))
                .expect("an RBAC kind");
            let ours = find(&all, kind, recorded.namespace(), recorded.name());
            for field in ["rules", "roleRef", "subjects", "aggregationRule"] {
                assert_eq!(
                    ours.get(&[field]),
                    recorded.get(&[field]),
                    "{} {} {field}",
                    recorded.kind(),
                    recorded.name()
                );
            }
            for field in ["labels", "annotations"] {
                assert_eq!(
                    ours.get(&["metadata", field]),
                    recorded.get(&["metadata", field]),
                    "{} {field}",
                    recorded.name()
                );
            }
        }
    }
}
