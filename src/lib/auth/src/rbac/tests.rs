//! Decisions and reasons, read-your-writes, escalation.

use super::held_rules::{HeldRules, MAX_LOOKUPS};
use super::{
    EscalationCheck, Feed, PolicyRule, Rbac, RbacChange, RbacIndex, RbacKind, RbacView, RoleWrite,
};
use crate::access::{Access, Authorizer, Decision, ResourceAccess, RightsScope, forbidden};
use crate::testing::user;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_apimachinery::work;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Far beyond what anything takes on the slowest machine.
const BOUND: Duration = Duration::from_secs(180);

/// A feed that tests write roles and bindings to.
#[derive(Clone, Default)]
struct RbacFixture(Arc<(Mutex<Vec<RbacChange>>, AtomicU64)>);

impl Feed for RbacFixture {
    fn drain(&mut self, apply: &mut dyn FnMut(RbacChange)) {
        std::mem::take(&mut *self.0.0.lock()).into_iter().for_each(apply);
    }
}

impl RbacFixture {
    fn rbac(&self) -> Arc<Rbac> {
        let this = self.clone();
        Arc::new(Rbac::new(
            Box::new(self.clone()),
            Box::new(move || this.0.1.load(Ordering::SeqCst)),
        ))
    }

    fn change(&self, change: RbacChange) {
        self.0.0.lock().push(change);
        self.0.1.fetch_add(1, Ordering::SeqCst);
    }

    fn role(&self, namespace: &str, name: &str, rules: Value) {
        let kind = if namespace.is_empty() { RbacKind::ClusterRole } else { RbacKind::Role };
        self.change(RbacChange::Put(
            kind,
            Arc::new(object(
                json!({"metadata": {"namespace": namespace, "name": name}, "rules": rules}),
            )),
        ));
    }

    fn large_role(&self, namespace: &str, name: &str, read: Box<dyn FnOnce() -> Document + Send>) {
        let (kind, bytes) = (RbacKind::Role, 1_400_000);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.change(RbacChange::Unread { kind, namespace, name, bytes, read });
    }

    fn bind(&self, namespace: &str, name: &str, role: (&str, &str), subject: Value) {
        let kind =
            if namespace.is_empty() { RbacKind::ClusterRoleBinding } else { RbacKind::RoleBinding };
        let role = json!({"kind": role.0, "name": role.1});
        self.change(RbacChange::Put(kind, Arc::new(object(json!({"metadata": {"namespace": namespace, "name": name}, "roleRef": role, "subjects": [subject]})))));
    }
}

fn object(value: Value) -> Document {
    Document::from_value(value).expect("an object")
}

fn rule(verb: &str, group: &str, resource: &str) -> Value {
    json!({"verbs": [verb], "apiGroups": [group], "resources": [resource]})
}

fn ask(rbac: &Rbac, user: &UserInfo, verb: &str, namespace: &str, resource: &str) -> Decision {
    let resource =
        ResourceAccess { version: "v1", resource, namespace, ..ResourceAccess::default() };
    rbac.authorize(&Access { user, verb, resource: Some(resource), path: "" })
}

#[test]
fn reasons_are_worded_as_kube_apiservers() {
    let world = RbacFixture::default();
    let rbac = world.rbac();
    world.role("", "reader", json!([rule("get", "", "pods")]));
    world.role("n", "local", json!([rule("list", "", "pods")]));
    world.bind("", "all", ("ClusterRole", "reader"), json!({"kind": "Group", "name": "devs"}));
    world.bind(
        "n",
        "some",
        ("Role", "local"),
        json!({"kind": "ServiceAccount", "name": "robot", "namespace": "m"}),
    );
    world.bind("n", "gone", ("Role", "missing"), json!({"kind": "User", "name": "alice"}));
    let bob = user("bob", &["devs"]);
    let allowed = |text: &str| Decision::Allow(text.to_owned());
    assert_eq!(
        ask(&rbac, &bob, "get", "x", "pods"),
        allowed(
            "RBAC: allowed by ClusterRoleBinding \"all\" of ClusterRole \"reader\" to Group \"devs\""
        )
    );
    let robot = user("system:serviceaccount:m:robot", &[]);
    assert_eq!(
        ask(&rbac, &robot, "list", "n", "pods"),
        allowed(
            "RBAC: allowed by RoleBinding \"some/n\" of Role \"local\" to ServiceAccount \"robot/m\""
        )
    );
    assert_eq!(
        ask(&rbac, &robot, "list", "", "pods"),
        Decision::NoOpinion(String::new()),
        "not across namespaces"
    );
    let alice = user("alice", &[]);
    assert_eq!(
        ask(&rbac, &alice, "get", "n", "pods"),
        Decision::NoOpinion("RBAC: role.rbac.authorization.k8s.io \"missing\" not found".into())
    );
    assert_eq!(ask(&rbac, &user("root", &["system:masters"]), "anything", "n", "x"), allowed(""));
}

#[test]
fn an_acknowledged_write_affects_the_next_request() {
    let world = RbacFixture::default();
    let rbac = world.rbac();
    let alice = user("alice", &[]);
    world.role("n", "r", json!([rule("get", "", "pods")]));
    for _ in 0..100 {
        world.bind("n", "b", ("Role", "r"), json!({"kind": "User", "name": "alice"}));
        assert!(ask(&rbac, &alice, "get", "n", "pods").is_allowed());
        world.change(RbacChange::Remove(RbacKind::RoleBinding, "n".into(), "b".into(), 0));
        assert!(!ask(&rbac, &alice, "get", "n", "pods").is_allowed());
    }
}

/// While a large role is parsed, waiting requests block no worker, and decisions neither parse nor
/// wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fault_34_a_large_role_is_read_off_the_workers() {
    let world = RbacFixture::default();
    let rbac = world.rbac();
    let alice = user("alice", &[]);
    world.role("n", "r", json!([rule("get", "", "pods")]));
    world.bind("n", "b", ("Role", "r"), json!({"kind": "User", "name": "alice"}));
    assert!(ask(&rbac, &alice, "get", "n", "pods").is_allowed());
    let (started, reads) = tokio::sync::oneshot::channel();
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    let read = Box::new(move || {
        started.send(()).expect("awaited below");
        finished.recv_timeout(BOUND).expect("others proceed meanwhile");
        object(
            json!({"metadata": {"namespace": "n", "name": "r"}, "rules": [rule("list", "", "pods")]}),
        )
    });
    world.large_role("n", "r", read);
    assert!(ask(&rbac, &alice, "get", "n", "pods").is_allowed(), "a decision parses nothing large");
    let wait = |rbac: &Arc<Rbac>| {
        let (rbac, alice) = (Arc::clone(rbac), alice.clone());
        tokio::spawn(async move {
            if let Some(wait) = rbac.catch_up(&alice, RightsScope::Namespace("n")) {
                wait.await;
            }
            ["get", "list"].map(|verb| ask(&rbac, &alice, verb, "n", "pods").is_allowed())
        })
    };
    let requests = [wait(&rbac), wait(&rbac), wait(&rbac)];
    reads.await.expect("one caller parses it");
    let (master, rest) = (user("root", &["system:masters"]), Arc::clone(&rbac));
    let other = tokio::spawn(async move {
        rest.catch_up(&master, RightsScope::Namespace("n")).is_none()
            && ask(&rest, &user("alice", &[]), "get", "n", "pods").is_allowed()
    });
    assert!(
        tokio::time::timeout(BOUND, other)
            .await
            .expect("the only worker is free")
            .expect("completes")
    );
    finish.send(()).expect("received above");
    for request in requests {
        assert_eq!(
            request.await.expect("answered"),
            [false, true],
            "a waiting request sees the new role"
        );
    }
}

/// A change in one namespace is applied by questions about that namespace alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fault_34_a_large_binding_delays_its_own_namespace_only() {
    let world = RbacFixture::default();
    let rbac = world.rbac();
    let alice = user("alice", &[]);
    world.role("", "r", json!([rule("get", "", "pods")]));
    let may = |namespace: &str| ask(&rbac, &alice, "get", namespace, "pods").is_allowed();
    let reads = Arc::new(AtomicU64::new(0));
    for _ in 0..100 {
        let count = Arc::clone(&reads);
        let read = Box::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
            object(json!({"metadata": {"namespace": "n", "name": "large"}, "rules": []}))
        });
        world.large_role("n", "large", read);
        for namespace in ["m", ""] {
            assert!(rbac.catch_up(&alice, RightsScope::Namespace(namespace)).is_none());
            assert!(!may("m"));
        }
    }
    world.bind("m", "b", ("ClusterRole", "r"), json!({"kind": "User", "name": "alice"}));
    assert!(rbac.catch_up(&alice, RightsScope::Namespace("m")).is_none());
    assert!(may("m") && !may("n"), "read your writes");
    assert_eq!(reads.load(Ordering::SeqCst), 0, "nobody has asked about its namespace");
    rbac.catch_up(&alice, RightsScope::Namespace("n")).expect("it is large").await;
    assert_eq!(reads.load(Ordering::SeqCst), 1, "of a hundred states the last one");
    rbac.caught_up(RightsScope::Everywhere).await;
    assert!(rbac.catch_up(&alice, RightsScope::Everywhere).is_none());
}

#[test]
fn fault_34_a_review_of_many_groups_gives_way() {
    const GROUPS: u32 = 10_000;
    let rbac = RbacFixture::default().rbac();
    let groups = (0..GROUPS).map(|number| format!("g{number}")).collect();
    let many = UserInfo { groups, ..user("a", &[]) };
    let (decision, breaths) = work::breaths(|| ask(&rbac, &many, "get", "n", "pods"));
    assert!(!decision.is_allowed() && breaths >= GROUPS, "{breaths}");
}

/// Masters wait for no index, so nobody may ask about what they make.
#[test]
fn fault_34_objects_that_nobody_asks_about_leave_nothing_behind() {
    let world = RbacFixture::default();
    let rbac = world.rbac();
    let may = |namespace: &str| ask(&rbac, &user("a", &[]), "get", namespace, "x").is_allowed();
    for number in 0..1_000 {
        let (namespace, name) = (format!("n{}", number % 500), format!("b{number}"));
        world.bind(&namespace, &name, ("Role", "r"), json!({"kind": "User", "name": "a"}));
        assert!(!may("other"));
        world.change(RbacChange::Remove(RbacKind::RoleBinding, namespace, name, 0));
        assert!(!may("other"));
    }
    assert!(rbac.parts_in_memory() <= 64, "{}", rbac.parts_in_memory());
}

fn bound(namespace: &str, label: &str, users: impl Iterator<Item = usize>) -> Document {
    let subjects: Vec<Value> =
        users.map(|number| json!({"kind": "User", "name": format!("u{number}")})).collect();
    let metadata = json!({"namespace": namespace, "name": "b", "labels": {"l": label}});
    object(
        json!({"metadata": metadata, "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": subjects}),
    )
}

#[test]
fn fault_34_updating_a_binding_costs_only_the_changed_subjects() {
    let mut index = RbacIndex::default();
    let mut steps = |document: &Document| work::counted(|| index.put_binding(document)).1;
    assert_eq!(steps(&bound("n", "1", 0..10_000)), 10_000);
    assert_eq!(steps(&bound("n", "2", 0..10_000)), 0, "a label");
    assert_eq!(
        steps(&bound("n", "2", (0..10_000).rev().chain(0..10))),
        0,
        "reordered, with duplicates"
    );
    assert_eq!(steps(&bound("n", "2", 1..10_001)), 2, "one subject replaced");
    let view = RbacView { cluster: Arc::default(), own: Some(Arc::new(index)) };
    let missing_roles = |name: &str| view.roles_of(&user(name, &[])).1.len();
    assert_eq!(
        ["u0", "u1", "u9999", "u10000"].map(missing_roles),
        [0, 1, 1, 1],
        "bound to a missing role"
    );
}

/// A label of a binding of thousands: its subjects are neither copied nor compared.
#[test]
fn fault_34_a_label_of_a_large_binding_is_no_matter_of_its_subjects() {
    let (world, check) = escalation();
    world.role("n", "r", json!([rule("get", "", "pods")]));
    let write = |object: &Document, old: &Document| {
        let resource = "rolebindings";
        let (object, old) = (object, Some(old));
        let write = RoleWrite { resource, namespace: "n", request_name: "b", object, old };
        check.check(&user("alice", &[]), &write)
    };
    let stored = bound("n", "1", 0..10);
    assert_eq!(write(&stored, &stored), Ok(()), "nothing differs");
    assert!(write(&bound("n", "2", 0..10), &stored).is_err(), "a label");
    assert!(write(&bound("n", "1", 0..11), &stored).is_err(), "a subject");
    let mut collected = stored.clone();
    collected.set(&["metadata", "finalizers"], json!(["a/b"]));
    collected.set(&["metadata", "annotations"], json!({"trace.kubernetes.io/x": "y"}));
    assert_eq!(write(&collected, &stored), Ok(()), "what the garbage collector writes");
    collected.set(&["metadata", "annotations"], json!({"a": "y"}));
    assert!(write(&collected, &stored).is_err(), "an annotation");
}

#[test]
fn fault_34_a_role_bound_many_times_is_compared_once() {
    let world = RbacFixture::default();
    let rbac = world.rbac();
    let names: Vec<String> = (0..10_000).map(|number| format!("n{number}")).collect();
    let large = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": names}]);
    let check = EscalationCheck::new(Arc::clone(&rbac), Arc::clone(&rbac) as Arc<dyn Authorizer>);
    let steps = |bindings: usize, role: &dyn Fn(usize) -> String| {
        for number in 0..bindings {
            world.role("n", &role(number), large.clone());
            world.bind(
                "n",
                &format!("b{number}"),
                ("Role", &role(number)),
                json!({"kind": "User", "name": "alice"}),
            );
        }
        rbac.view("n");
        work::counted(|| {
            write_role(&check, json!([rule("list", "", "pods")]), None).expect_err("not held")
        })
        .1
    };
    let once = steps(1, &|_| "r".into());
    // A few steps for each binding, none for its rules.
    let again = steps(40, &|_| "r".into());
    assert!(again < once + 40 * 10, "{again} steps, {once} for one binding");
    assert!(
        steps(40, &|number| format!("r{number}")) > 40 * 10_000,
        "building the sets is charged"
    );
}

/// A role that names many objects, with another rule for one.
fn role_of_names(names: usize) -> Value {
    let names: Vec<String> = (0..names).map(|number| format!("object-{number:05}")).collect();
    let mut many = rule("get", "", "configmaps");
    many["resourceNames"] = json!(names);
    json!([many, rule("get", "", "pods")])
}

#[test]
fn fault_34_a_decision_compares_a_bounded_part_of_a_namespaces_roles() {
    let (world, alice, bob) = (RbacFixture::default(), user("alice", &[]), user("bob", &[]));
    let rbac = world.rbac();
    world.role("n", "names", role_of_names(90_000));
    for number in 0..500 {
        let subject = json!({"kind": "User", "name": "alice"});
        world.bind("n", &format!("names{number}"), ("Role", "names"), subject);
    }
    // Large, but bound many times it costs what it costs once.
    assert!(ask(&rbac, &alice, "get", "n", "pods").is_allowed());
    assert_eq!(ask(&rbac, &alice, "get", "n", "configmaps"), Decision::NoOpinion(String::new()));
    for number in 0..10_000 {
        let (name, subject) = (format!("r{number}"), json!({"kind": "User", "name": "bob"}));
        world.role("n", &name, json!([rule("get", "", "configmaps")]));
        world.bind("n", &name, ("Role", name.as_str()), subject);
    }
    assert!(ask(&rbac, &bob, "get", "n", "configmaps").is_allowed(), "the first");
    let (refused, steps) = work::counted(|| ask(&rbac, &bob, "get", "n", "pods"));
    assert!(matches!(&refused, Decision::NoOpinion(why) if why.contains("more roles are bound")));
    assert!(steps < 7_000, "{steps}");
    // Roles of the cluster always count.
    world.role("", "reader", json!([rule("get", "", "pods")]));
    world.bind("", "reader", ("ClusterRole", "reader"), json!({"kind": "User", "name": "bob"}));
    assert!(ask(&rbac, &bob, "get", "n", "pods").is_allowed());
}

#[test]
fn concurrent_readers_and_changes_agree() {
    let world = RbacFixture::default();
    let rbac = world.rbac();
    world.bind("", "b", ("ClusterRole", "r"), json!({"kind": "User", "name": "alice"}));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    ask(&rbac, &user("alice", &[]), "get", "", "pods");
                }
            });
        }
        for number in 0..500 {
            world.role("", "r", json!([rule("get", "", &format!("r{number}"))]));
        }
    });
    assert!(ask(&rbac, &user("alice", &[]), "get", "", "r499").is_allowed());
}

#[test]
fn refusals_are_worded_as_kube_apiservers() {
    let alice = user("alice", &[]);
    let resource = ResourceAccess {
        version: "v1",
        resource: "pods",
        subresource: "log",
        namespace: "n",
        name: "p",
        ..ResourceAccess::default()
    };
    let failure =
        forbidden(&Access { user: &alice, verb: "get", resource: Some(resource), path: "" }, "");
    assert_eq!(
        failure.message,
        "pods \"p\" is forbidden: User \"alice\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"n\""
    );
    let failure =
        forbidden(&Access { user: &alice, verb: "get", resource: None, path: "/metrics" }, "why");
    assert_eq!(failure.message, "forbidden: User \"alice\" cannot get path \"/metrics\": why");
    assert_eq!(failure.details, Some(ferrokube_apimachinery::status::Details::default()));
    // What the client sent is no HTML; what the authorizer says is its own.
    let access = Access { user: &user("<a>\u{7f}", &[]), verb: "get", resource: None, path: "/&" };
    let shown = r#"forbidden: User "&lt;a&gt;\x7f" cannot get path "/&amp;": <why>"#;
    assert_eq!(forbidden(&access, "<why>").message, shown);
    let resource = ResourceAccess { resource: "<p>", name: "<p>", ..ResourceAccess::default() };
    let access = Access { user: &alice, verb: "get", resource: Some(resource), path: "" };
    let shown = "<p> \"<p>\" is forbidden: User \"alice\" cannot get resource \"&lt;p&gt;\" in API group \"\" at the cluster scope";
    assert_eq!(forbidden(&access, "").message, shown);
}

/// Alice may create roles and bindings in `n` and holds `get pods` there.
fn escalation() -> (RbacFixture, EscalationCheck) {
    let world = RbacFixture::default();
    let rbac = world.rbac();
    world.role(
        "n",
        "alice",
        json!([rule("get", "", "pods"), rule("create", "rbac.authorization.k8s.io", "*")]),
    );
    world.bind("n", "alice", ("Role", "alice"), json!({"kind": "User", "name": "alice"}));
    world.role("n", "power", json!([rule("*", "", "secrets")]));
    let authorizer: Arc<dyn Authorizer> = Arc::clone(&rbac) as Arc<dyn Authorizer>;
    (world, EscalationCheck::new(rbac, authorizer))
}

fn write_role(
    check: &EscalationCheck,
    rules: Value,
    old: Option<&Document>,
) -> Result<(), Failure> {
    let object = object(json!({"metadata": {"namespace": "n", "name": "new"}, "rules": rules}));
    let request_name = if old.is_some() { "new" } else { "" };
    check.check(
        &user("alice", &[]),
        &RoleWrite { resource: "roles", namespace: "n", request_name, object: &object, old },
    )
}

fn write_binding(check: &EscalationCheck, role: &str) -> Result<(), Failure> {
    let object = object(
        json!({"metadata": {"namespace": "n", "name": "p"}, "roleRef": {"kind": "Role", "name": role}}),
    );
    check.check(
        &user("alice", &[]),
        &RoleWrite {
            resource: "rolebindings",
            namespace: "n",
            request_name: "",
            object: &object,
            old: None,
        },
    )
}

#[test]
fn a_user_cannot_grant_permissions_it_lacks() {
    let (world, check) = escalation();
    assert!(write_role(&check, json!([rule("get", "", "pods")]), None).is_ok());
    assert!(write_role(&check, json!([]), None).is_ok());
    let failure = write_role(
        &check,
        json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "secrets"]}]),
        None,
    )
    .expect_err("refused");
    assert_eq!(failure.code, 403);
    assert!(
        failure
            .message
            .contains("{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}"),
        "{}",
        failure.message
    );
    assert!(
        !failure.message.contains("Resources:[\"pods\"], Verbs:[\"get\""),
        "held permissions are not listed"
    );
    assert!(write_role(&check, json!([rule("*", "", "pods")]), None).is_err());
    assert!(write_role(&check, json!([rule("get", "*", "pods")]), None).is_err());
    assert!(
        write_role(&check, json!([{"verbs": ["get"], "nonResourceURLs": ["/x"]}]), None).is_err()
    );

    world.role("n", "e", json!([rule("escalate", "rbac.authorization.k8s.io", "roles")]));
    world.bind("n", "e", ("Role", "e"), json!({"kind": "User", "name": "alice"}));
    assert!(write_role(&check, json!([rule("*", "", "secrets")]), None).is_ok());
}

#[test]
fn a_role_too_big_to_compare_is_refused() {
    let (_, check) = escalation();
    let many: Vec<String> = (0..2_000).map(|number| number.to_string()).collect();
    let (written, steps) = work::counted(|| {
        write_role(&check, json!([{"verbs": many, "apiGroups": many, "resources": many}]), None)
    });
    assert_eq!(written.expect_err("refused").code, 403);
    // Of 8,000,000,000 single permissions none is made.
    assert!(steps < 10_000, "{steps}");
}

#[test]
fn the_garbage_collector_may_remove_owner_references() {
    let (_, check) = escalation();
    let rules = json!([rule("*", "", "secrets")]);
    let old = object(json!({
        "metadata": {"namespace": "n", "name": "new", "resourceVersion": "1", "ownerReferences": [{"name": "x"}], "finalizers": ["a/b"]}, "rules": rules,
    }));
    assert!(write_role(&check, rules, Some(&old)).is_ok());
    assert!(write_role(&check, json!([rule("*", "", "*")]), Some(&old)).is_err());
}

#[test]
fn binding_needs_the_permissions_or_the_bind_verb() {
    let (world, check) = escalation();
    assert!(write_binding(&check, "alice").is_ok());
    assert_eq!(write_binding(&check, "power").expect_err("refused").code, 403);
    let missing = write_binding(&check, "missing").expect_err("refused");
    let details = missing.details.expect("details");
    assert_eq!(
        (missing.code, details.name.as_str(), details.kind.as_str()),
        (404, "missing", "rolebindings")
    );
    world.role("n", "b", json!([{"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "resourceNames": ["power"]}]));
    world.bind("n", "b", ("Role", "b"), json!({"kind": "User", "name": "alice"}));
    assert!(write_binding(&check, "power").is_ok());
}

#[test]
fn refused_verbs_are_merged() {
    let (_, check) = escalation();
    let rule =
        json!({"verbs": ["list", "watch", "list"], "apiGroups": [""], "resources": ["secrets"]});
    let failure = write_role(
        &check,
        json!([rule, {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]),
        None,
    )
    .expect_err("refused");
    let want = "user \"alice\" (groups=[]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"list\" \"watch\" \"get\"]}";
    assert!(failure.message.ends_with(want), "{}", failure.message);
}

#[test]
fn a_binding_to_another_kind_is_refused() {
    let (_, check) = escalation();
    let bind = |resource, namespace, kind| {
        let object = object(
            json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "alice"}}),
        );
        let write = RoleWrite { resource, namespace, request_name: "", object: &object, old: None };
        check.check(&user("alice", &[]), &write).expect_err("refused").code
    };
    assert_eq!(bind("rolebindings", "n", "Robot"), 500);
    assert_eq!(bind("clusterrolebindings", "", "Role"), 400);
}

#[test]
fn a_binding_to_an_impossible_role_name_is_refused() {
    let (_, check) = escalation();
    for (kind, name, code, message) in [
        ("Role", "a/b", 400, "Name parameter invalid: \"a/b\": may not contain '/'"),
        ("ClusterRole", "a%b", 400, "Name parameter invalid: \"a%b\": may not contain '%'"),
        ("Role", "..", 400, "Name parameter invalid: \"..\": may not be '..'"),
        ("ClusterRole", "", 400, "Name parameter required."),
        ("Role", "A B", 404, "rolebindings.rbac.authorization.k8s.io \"A B\" not found"),
    ] {
        let object =
            object(json!({"metadata": {"name": "b"}, "roleRef": {"kind": kind, "name": name}}));
        let write = RoleWrite {
            resource: "rolebindings",
            namespace: "n",
            request_name: "",
            object: &object,
            old: None,
        };
        let failure = check.check(&user("alice", &[]), &write).expect_err("refused");
        assert_eq!((failure.code, failure.message.as_str()), (code, message));
    }
}

#[test]
fn an_aggregation_rule_needs_all_permissions() {
    let (_, check) = escalation();
    let object = object(
        json!({"metadata": {"name": "c"}, "rules": [], "aggregationRule": {"clusterRoleSelectors": []}}),
    );
    let write = RoleWrite {
        resource: "clusterroles",
        namespace: "",
        request_name: "",
        object: &object,
        old: None,
    };
    let failure = check.check(&user("alice", &[]), &write).expect_err("refused");
    assert!(failure.message.contains("cluster-admin privileges"), "{}", failure.message);
    assert!(check.check(&user("root", &["system:masters"]), &write).is_ok());
    // Removing the rule would leave the aggregated rules in place.
    let plain = self::object(json!({"metadata": {"name": "c"}, "rules": []}));
    let write = RoleWrite { object: &plain, old: Some(&object), request_name: "c", ..write };
    assert!(check.check(&user("alice", &[]), &write).is_err(), "removing it needs them, too");
}

/// A change is published while the index applies earlier ones.
#[test]
fn a_change_published_during_a_refresh_affects_the_next_request() {
    struct Late(RbacFixture, Arc<Mutex<Option<RbacChange>>>);
    impl Feed for Late {
        fn drain(&mut self, apply: &mut dyn FnMut(RbacChange)) {
            self.0.drain(apply);
            if let Some(late) = self.1.lock().take() {
                self.0.change(late);
            }
        }
    }
    let (world, late) = (RbacFixture::default(), Arc::default());
    let (head, feed) = (world.clone(), Late(world.clone(), Arc::clone(&late)));
    let rbac = Rbac::new(Box::new(feed), Box::new(move || head.0.1.load(Ordering::SeqCst)));
    let subject = json!({"kind": "User", "name": "alice"});
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "reader"}, "subjects": [subject]});
    *late.lock() = Some(RbacChange::Put(RbacKind::ClusterRoleBinding, Arc::new(object(binding))));
    world.role("", "reader", json!([rule("get", "", "pods")]));
    let allowed = || ask(&rbac, &user("alice", &[]), "get", "", "pods").is_allowed();
    let _ = allowed();
    assert!(late.lock().is_none() && allowed());
}

#[test]
fn wildcards_cover_specific_rules() {
    let rule = |verbs: &str, resources: &str, names: &[&str]| PolicyRule {
        verbs: verbs.split(',').map(str::to_owned).collect(),
        groups: vec![String::new()],
        resources: resources.split(',').map(str::to_owned).collect(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        urls: Vec::new(),
    };
    let covers = |own: PolicyRule, wanted: PolicyRule| {
        HeldRules::new(&[own]).cover(&wanted).expect("few words")
    };
    assert!(covers(rule("*", "*", &[]), rule("get", "pods/log", &["a"])));
    assert!(covers(rule("get", "*/scale", &[]), rule("get", "deployments/scale", &[])));
    assert!(!covers(rule("get", "*/scale", &[]), rule("get", "deployments", &[])));
    assert!(!covers(rule("get", "pods", &["a"]), rule("get", "pods", &[])));
    assert!(covers(rule("get", "pods", &["a", "b"]), rule("get", "pods", &["b"])));
    assert!(!covers(rule("get", "pods", &[]), rule("*", "pods", &[])));
    let urls = |verb: &str, urls: &[&str]| PolicyRule {
        verbs: vec![verb.to_owned()],
        urls: urls.iter().map(|url| (*url).to_owned()).collect(),
        ..PolicyRule::default()
    };
    assert!(covers(urls("get", &["/a/*", "/b"]), urls("get", &["/a/c", "/b"])));
    assert!(!covers(urls("get", &["/a/*", "/b"]), urls("get", &["/a/c", "/bc"])));
    assert!(covers(urls("*", &["*"]), urls("get", &["/b"])));
}

#[test]
fn fault_34_comparing_rules_is_bounded() {
    let world = RbacFixture::default();
    let rbac = world.rbac();
    let words =
        |prefix: &str, count: usize| (0..count).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
    let held = json!([
        {"verbs": words("v", 5_000), "apiGroups": words("g", 50), "resources": words("r", 5_000), "resourceNames": words("n", 5_000)},
        {"verbs": ["get"], "nonResourceURLs": (0..2_000).map(|n| format!("/{n}*")).collect::<Vec<_>>()},
    ]);
    world.role("", "own", held.clone());
    world.role(
        "",
        "many",
        Value::Array((0..3_000).map(|n| json!({"verbs": ["get"], "apiGroups": [""], "resources": ["x"], "resourceNames": [format!("n{n}")]})).collect()),
    );
    for role in ["own", "many"] {
        world.bind("", role, ("ClusterRole", role), json!({"kind": "User", "name": "alice"}));
    }
    let check = EscalationCheck::new(rbac.clone(), rbac);
    let write = |rules: Value| {
        let object = object(json!({"metadata": {"name": "c"}, "rules": rules}));
        let write = RoleWrite {
            resource: "clusterroles",
            namespace: "",
            request_name: "",
            object: &object,
            old: None,
        };
        let (result, steps) = work::counted(|| check.check(&user("alice", &[]), &write));
        assert!(steps <= MAX_LOOKUPS as u64 + 200_000, "{steps}");
        (result, steps)
    };
    let (same, steps) = write(held);
    same.expect("covered by the same rule");
    assert!(steps < 5_000_000, "{steps}");
    let (verbs, _) =
        write(json!([{"verbs": words("w", 30_000), "apiGroups": [""], "resources": ["y"]}]));
    assert!(verbs.expect_err("not held").message.len() < 100_000);
    // Thousands of rules against thousands, which differ only in the last word.
    let names = words("n", 2_000);
    let (most, _) = write(Value::Array((0..3_000).map(|_| json!({"verbs": ["get"], "apiGroups": [""], "resources": ["x"], "resourceNames": names})).collect()));
    assert!(
        most.expect_err("too much").message.contains("more RBAC permissions than can be compared")
    );
}

#[test]
fn fault_34_few_words_of_the_held_rules_are_kept() {
    let world = RbacFixture::default();
    let rbac = world.rbac();
    let alice = || json!({"kind": "User", "name": "alice"});
    let small = json!([rule("get", "", "pods")]);
    world.role("n", "a", small.clone());
    world.bind("n", "a", ("Role", "a"), alice());
    for number in 0..8 {
        let name = format!("b{number}");
        world.role("n", &name, role_of_names(90_000));
        world.bind("n", &name, ("Role", name.as_str()), alice());
    }
    let check = EscalationCheck::new(rbac.clone(), rbac);
    let write = |rules: Value| {
        let object = object(json!({"metadata": {"name": "c"}, "rules": rules}));
        let (resource, namespace) = ("roles", "n");
        let write = RoleWrite { resource, namespace, request_name: "", object: &object, old: None };
        work::counted(|| check.check(&user("alice", &[]), &write))
    };
    write(small).0.expect("held by the first role");
    let (refused, steps) = write(json!([rule("get", "", "secrets")]));
    let message = refused.expect_err("not held").message;
    assert!(message.contains("more RBAC permissions than can be compared"), "{message}");
    // Eight roles would have 720,000 words, at four steps each.
    assert!(steps < 2_100_000, "{steps}");
    let rules = vec![PolicyRule::default(); 50_001];
    let wanted = PolicyRule { verbs: vec!["get".to_owned()], ..PolicyRule::default() };
    assert_eq!(HeldRules::new(&rules[1..]).cover(&wanted), Some(false));
    assert_eq!(HeldRules::new(&rules).cover(&wanted), None);
}
