//! Reads the policy table.

use crate::rbac::{Kind, Rule};
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use std::collections::BTreeMap;

/// The group of the RBAC kinds.
const GROUP: &str = "rbac.authorization.k8s.io";
/// The table.
const TABLE: &str = include_str!("policy.txt");
const MIGRATION: &str = include_str!("migration.txt");

/// An object that should exist.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Which kind.
    pub kind: Kind,
    /// The object, without what a server adds.
    pub document: Document,
}

/// A role while it is read.
#[derive(Default)]
struct Role {
    namespace: String,
    name: String,
    to: String,
    from: String,
    rules: Vec<Rule>,
}

/// All objects of the policy, roles before bindings. Aggregated roles hold the rules that the
/// aggregation controller would give them, so that they work where no controller runs.
pub fn expected() -> Vec<Expected> {
    read(TABLE)
}

/// What is added where storage version migrations are served.
pub(super) fn expected_for_migration() -> Vec<Expected> {
    read(MIGRATION)
}

fn read(table: &str) -> Vec<Expected> {
    let mut roles: Vec<Role> = Vec::new();
    let mut bindings = Vec::new();
    for line in table.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            [..] if line.starts_with(' ') => {
                roles.last_mut().expect("the table begins with a role").rules.push(rule(&words))
            }
            ["clusterrole", name, options @ ..] => roles.push(cluster_role(name, options)),
            ["controller", name] => {
                let role = format!("system:controller:{name}");
                bindings.push(binding(
                    "",
                    &role,
                    ("ClusterRole", &role),
                    &[&format!("s:kube-system/{name}")],
                ));
                roles.push(cluster_role(&role, &[]));
            }
            ["role", namespace, name] => {
                roles.push(Role { namespace: (*namespace).into(), ..cluster_role(name, &[]) })
            }
            ["clusterbinding", name, role, subjects @ ..] => {
                bindings.push(binding("", name, ("ClusterRole", role), subjects))
            }
            ["binding", namespace, name, role, subjects @ ..] => {
                bindings.push(binding(namespace, name, ("Role", role), subjects))
            }
            _ => unreachable!("the table is a constant, read by a test"),
        }
    }
    aggregate(&mut roles);
    roles.iter().map(Role::object).chain(bindings).collect()
}

fn cluster_role(name: &str, options: &[&str]) -> Role {
    let option = |key: &str| {
        options.iter().find_map(|option| option.strip_prefix(key)).unwrap_or_default().to_owned()
    };
    Role { name: name.to_owned(), to: option("to="), from: option("from="), ..Role::default() }
}

fn rule(words: &[&str]) -> Rule {
    match *words {
        ["events"] => Rule {
            verbs: list("create,patch,update"),
            groups: list("core,events.k8s.io"),
            resources: list("events"),
            ..Rule::default()
        },
        [verbs, "url", paths] => Rule { verbs: list(verbs), urls: list(paths), ..Rule::default() },
        [verbs, groups, resources] => Rule {
            verbs: list(verbs),
            groups: list(groups),
            resources: list(resources),
            ..Rule::default()
        },
        [verbs, groups, resources, names] => {
            Rule { names: list(names), ..rule(&[verbs, groups, resources]) }
        }
        _ => unreachable!("the table is a constant, read by a test"),
    }
}

/// A comma-separated list, its shorthands spelled out, in order.
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

/// Fills aggregated roles from those that are marked for them, in name order, innermost first.
fn aggregate(roles: &mut [Role]) {
    for name in ["view", "edit", "admin"] {
        let mut parts: Vec<&Role> = roles.iter().filter(|role| role.to == name).collect();
        parts.sort_by(|one, other| one.name.cmp(&other.name));
        let mut rules: Vec<Rule> = Vec::new();
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

impl Role {
    fn object(&self) -> Expected {
        let kind = if self.namespace.is_empty() { Kind::ClusterRole } else { Kind::Role };
        let mut document = object(
            if kind == Kind::Role { "Role" } else { "ClusterRole" },
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
        document.set(&["rules"], Value::Array(self.rules.iter().map(Rule::to_value).collect()));
        Expected { kind, document }
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
    (role_kind, role): (&str, &str),
    subjects: &[&str],
) -> Expected {
    let kind = if namespace.is_empty() { Kind::ClusterRoleBinding } else { Kind::RoleBinding };
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
    Expected { kind, document }
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
    use std::collections::BTreeSet;

    fn find<'a>(all: &'a [Expected], kind: Kind, namespace: &str, name: &str) -> &'a Document {
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
            .filter(|one| matches!(one.kind, Kind::ClusterRoleBinding | Kind::RoleBinding))
        {
            let role = one.document.str(&["roleRef", "name"]).expect("a role");
            let (plural, namespace) = if one.kind == Kind::RoleBinding {
                ("roles", one.document.namespace())
            } else {
                ("clusterroles", "")
            };
            assert!(keys.contains(&(plural, namespace, role)), "{role}");
        }
        for rule in all.iter().flat_map(|one| Rule::list(one.document.get(&["rules"]))) {
            assert!(
                !rule.verbs.is_empty()
                    && rule.verbs.iter().all(|verb| verb == "*"
                        || verb.chars().all(|letter| letter.is_ascii_lowercase())),
                "{rule}"
            );
        }
    }

    #[test]
    fn aggregated_roles_hold_their_parts() {
        let all = expected();
        let rules = |name| Rule::list(find(&all, Kind::ClusterRole, "", name).get(&["rules"]));
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

    /// The objects that a real cluster was seen to hold (a part of them; recorded facts, see
    /// shared/registry-dump).
    #[test]
    fn as_in_a_real_cluster() {
        let recorded: Value =
            ferrokube_apimachinery::json::read_value(include_bytes!("recorded.json"))
                .expect("JSON");
        let all = expected();
        for object in recorded.as_array().expect("a list") {
            let recorded = Document::from_value(object.clone()).expect("an object");
            let kind = Kind::ALL
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
