//! RoleBinding and ClusterRoleBinding: subjects of a role. The role is immutable.

use crate::cells;
use crate::checks::{ErrorList, all_invalid, text};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
use ferrokube_resource::native::{KindBody, NativeColumn};
use ferrokube_resource::{Change, Hooks, Policy};
use std::sync::Arc;
use std::time::SystemTime;

const GROUP: &str = "rbac.authorization.k8s.io";

pub(crate) fn role_binding() -> KindBody {
    body("rolebindings", true, COLUMNS)
}

pub(crate) fn cluster_role_binding() -> KindBody {
    body("clusterrolebindings", false, CLUSTER_COLUMNS)
}

const COLUMNS: &[NativeColumn] = &[
    NativeColumn::NAME,
    NativeColumn::text(
        "Role",
        "RoleRef can reference a Role in the current namespace or a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.",
    ),
    NativeColumn::AGE,
    NativeColumn::wide("Users", "Users in the roleBinding"),
    NativeColumn::wide("Groups", "Groups in the roleBinding"),
    NativeColumn::wide("ServiceAccounts", "ServiceAccounts in the roleBinding"),
];

const CLUSTER_COLUMNS: &[NativeColumn] = &[
    NativeColumn::NAME,
    NativeColumn::text(
        "Role",
        "RoleRef can only reference a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.",
    ),
    NativeColumn::AGE,
    NativeColumn::wide("Users", "Users in the clusterRoleBinding"),
    NativeColumn::wide("Groups", "Groups in the clusterRoleBinding"),
    NativeColumn::wide("ServiceAccounts", "ServiceAccounts in the clusterRoleBinding"),
];

fn body(storage: &'static str, namespaced: bool, columns: &'static [NativeColumn]) -> KindBody {
    KindBody {
        columns,
        storage: Some(storage),
        // Admission compares all rules of the role with those of the writer.
        policy: Policy {
            computes_long: true,
            create_on_update: true,
            prefix_is_name: true,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(BindingHooks { namespaced }),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct BindingHooks {
    namespaced: bool,
}

impl Hooks for BindingHooks {
    fn default(&self, _version: &str, object: &mut Document) {
        if object.str(&["roleRef", "apiGroup"]).unwrap_or_default().is_empty() {
            object.set(&["roleRef", "apiGroup"], GROUP);
        }
        for subject in
            object.get_mut(&["subjects"]).and_then(Value::as_array_mut).into_iter().flatten()
        {
            let is_person = matches!(text(subject, "kind"), "User" | "Group");
            if let (true, true, Some(subject)) =
                (is_person, text(subject, "apiGroup").is_empty(), subject.as_object_mut())
            {
                subject.insert("apiGroup".to_owned(), Value::from(GROUP));
            }
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = ErrorList::default();
        errors.extend(self.role_ref(object));
        errors.check_each(object.list(&["subjects"]).iter().enumerate(), |(index, subject)| {
            self.subject(subject, index)
        });
        let mut errors = errors.into_vec();
        if change.old.is_some_and(|old| old.get(&["roleRef"]) != object.get(&["roleRef"])) {
            errors.push(FieldError::invalid(
                "roleRef",
                role_ref_shown(object),
                "cannot change roleRef",
            ));
        }
        errors
    }

    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        Some(name::path_segment(name))
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let names = |kind: &str| {
            let subjects =
                object.list(&["subjects"]).iter().filter(|subject| text(subject, "kind") == kind);
            let names: Vec<String> = subjects.map(|subject| subject_name(subject, kind)).collect();
            Value::from(names.join(", "))
        };
        let role = format!(
            "{}/{}",
            object.str(&["roleRef", "kind"]).unwrap_or_default(),
            object.str(&["roleRef", "name"]).unwrap_or_default()
        );
        let age = cells::age(object, now);
        vec![
            Value::from(object.name()),
            Value::from(role),
            Value::from(age),
            names("User"),
            names("Group"),
            names("ServiceAccount"),
        ]
    }
}

/// As kube-apiserver formats the internal type.
fn role_ref_shown(object: &Document) -> Value {
    let field = |name: &str| object.str(&["roleRef", name]).unwrap_or_default();
    json!({"APIGroup": field("apiGroup"), "Kind": field("kind"), "Name": field("name")})
}

fn subject_name(subject: &Value, kind: &str) -> String {
    if kind == "ServiceAccount" {
        format!("{}/{}", text(subject, "namespace"), text(subject, "name"))
    } else {
        text(subject, "name").to_owned()
    }
}

impl BindingHooks {
    fn role_ref(&self, object: &Document) -> Vec<FieldError> {
        let field = |name: &str| object.str(&["roleRef", name]).unwrap_or_default();
        let kinds: &[&str] =
            if self.namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
        let mut errors = Vec::new();
        if field("apiGroup") != GROUP {
            errors.push(FieldError::not_supported("roleRef.apiGroup", field("apiGroup"), [GROUP]));
        }
        if !kinds.contains(&field("kind")) {
            errors.push(FieldError::not_supported("roleRef.kind", field("kind"), kinds));
        }
        match field("name") {
            "" => errors.push(FieldError::required("roleRef.name", "")),
            name => errors.extend(all_invalid("roleRef.name", name, name::path_segment(name))),
        }
        errors
    }

    /// The path is made for errors only: most bindings have none, and some thousands of subjects.
    fn subject(&self, subject: &Value, index: usize) -> Vec<FieldError> {
        let path = || format!("subjects[{index}]");
        let (name, group) = (text(subject, "name"), text(subject, "apiGroup"));
        let mut errors = Vec::new();
        if name.is_empty() {
            errors.push(FieldError::required(path() + ".name", ""));
        }
        match text(subject, "kind") {
            "ServiceAccount" => {
                if !name.is_empty() {
                    errors.extend(all_invalid(
                        &(path() + ".name"),
                        name,
                        name::dns1123_subdomain(name),
                    ));
                }
                if !group.is_empty() {
                    errors.push(FieldError::not_supported(path() + ".apiGroup", group, [""]));
                }
                if !self.namespaced && text(subject, "namespace").is_empty() {
                    errors.push(FieldError::required(path() + ".namespace", ""));
                }
            }
            "User" | "Group" if group != GROUP => {
                errors.push(FieldError::not_supported(path() + ".apiGroup", group, [GROUP]))
            }
            "User" | "Group" => {}
            other => errors.push(FieldError::not_supported(
                path() + ".kind",
                other,
                ["ServiceAccount", "User", "Group"],
            )),
        }
        errors
    }
}
