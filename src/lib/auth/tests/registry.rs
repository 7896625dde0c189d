//! The crate on a real registry and store: bootstrap, read-your-writes, reviews and token requests
//! as computed resources.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_apimachinery::work;
use ferrokube_auth::authenticate::{Bearer, TokenFile};
use ferrokube_auth::rbac::{Feed, RbacChange, StoreFeed};
use ferrokube_auth::token::{ServiceAccountTokens, TokenConfig, TokenKeys};
use ferrokube_auth::{
    Access, Authorizer, EscalationCheck, Rbac, ResourceAccess, RightsScope, bootstrap, review,
    system_clock,
};
use ferrokube_registry::{
    Admission, Attributes, Catalog, DeleteOptions, Effects, Local, Registry, RequestContext, Target,
};
use ferrokube_storage::{Config, Store};
use ferrokube_trace::TraceContext;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

const RBAC: &str = "rbac.authorization.k8s.io";

/// Admission with the escalation check only.
#[derive(Default)]
struct EscalationOnly(OnceLock<EscalationCheck>);

impl Admission for EscalationOnly {
    fn mutate(&self, _attributes: &Attributes<'_>, _object: &mut Document) -> Result<(), Failure> {
        Ok(())
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        self.0.get().map_or(Ok(()), |check| check.check_admission(attributes, object))
    }
}

struct RegistryFixture {
    registry: Registry,
    rbac: Arc<Rbac>,
}

impl RegistryFixture {
    fn new(history_bytes: usize) -> Self {
        let store = Store::open(Config { history_bytes, ..Config::memory() }).expect("a store");
        let catalog = Arc::new(Catalog::default());
        for definition in ferrokube_resources::definitions(ferrokube_resources::tables()) {
            catalog.put(definition);
        }
        let admission = Arc::new(EscalationOnly::default());
        let registry = Registry::new(store, catalog, Arc::clone(&admission) as Arc<dyn Admission>);
        let rbac = Arc::new(Rbac::of(registry.store(), registry.catalog()));
        let authorizer: Arc<dyn Authorizer> = Arc::clone(&rbac) as Arc<dyn Authorizer>;
        assert!(admission.0.set(EscalationCheck::new(Arc::clone(&rbac), authorizer)).is_ok());
        Self { registry, rbac }
    }

    fn local(&self, group: &str, plural: &str) -> Local {
        Local::new(&self.registry, group, "v1", plural).expect("served")
    }

    fn may(&self, name: &str, verb: &str, namespace: &str, resource: &str) -> bool {
        let user = UserInfo { name: name.into(), ..UserInfo::default() };
        let resource =
            ResourceAccess { version: "v1", resource, namespace, ..ResourceAccess::default() };
        self.rbac
            .authorize(&Access { user: &user, verb, resource: Some(resource), path: "" })
            .is_allowed()
    }

    fn target(&self, group: &str, plural: &str, of: (&str, &str, &str)) -> Target {
        let (namespace, name, subresource) = of;
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let served = self.registry.catalog().find(group, "v1", plural).expect("served");
        Target {
            served,
            namespace: some(namespace),
            name: some(name),
            subresource: subresource.to_owned(),
        }
    }

    async fn compute(
        &self,
        context: &RequestContext,
        target: &Target,
        object: Value,
    ) -> Result<Document, Failure> {
        let object = Document::from_value(object).expect("an object");
        let body = ferrokube_registry::Body { lenient: false, ..object.into() };
        let options = ferrokube_registry::WriteOptions::default();
        let written = self.registry.create(context, target, body, &options).await?;
        Ok(written.object.into_document(&target.served))
    }
}

fn context(user: UserInfo) -> RequestContext {
    RequestContext::new(user, TraceContext::root(), "test".into(), SystemTime::now())
}

fn role(verb: &str) -> Document {
    let rules = json!([{"verbs": [verb], "apiGroups": [""], "resources": ["configmaps"]}]);
    Document::from_value(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r", "namespace": "n"}, "rules": rules}))
        .expect("an object")
}

fn binding() -> Document {
    Document::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b", "namespace": "n"},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "alice", "apiGroup": RBAC}],
    }))
    .expect("an object")
}

/// Undoing costs as much as making: emptying or deleting a binding of thousands of subjects does
/// not block a worker.
#[tokio::test]
async fn fault_34_what_a_change_undoes_is_read_off_the_workers_too() {
    let server = RegistryFixture::new(1 << 24);
    let rbac = Rbac::of(server.registry.store(), server.registry.catalog());
    let bindings = server.local(RBAC, "rolebindings");
    let alice = UserInfo { name: "alice".into(), ..UserInfo::default() };
    let subjects = |count: usize| -> Vec<Value> {
        let one = |number| json!({"kind": "User", "name": format!("u{number}"), "apiGroup": RBAC});
        (0..count).map(one).collect()
    };
    let binding_of = |count| {
        let mut binding = binding();
        binding.set(&["subjects"], subjects(count));
        binding
    };
    let caught_up = async || {
        let wait = rbac.catch_up(&alice, RightsScope::Namespace("n"));
        let is_long = wait.is_some();
        if let Some(wait) = wait {
            wait.await;
        }
        is_long
    };
    bindings.create("n", binding_of(0)).await.expect("written");
    assert!(!caught_up().await, "a short one");
    for count in [1_000, 0, 1_000] {
        bindings.update(binding_of(count), "").await.expect("written");
        assert!(caught_up().await, "{count} subjects");
    }
    bindings.delete("n", "b", &DeleteOptions::default()).await.expect("deleted");
    assert!(caught_up().await, "1,000 are revoked");
    assert!(!caught_up().await);
}

#[tokio::test]
async fn fault_34_changes_of_metadata_do_not_reach_the_index() {
    let server = RegistryFixture::new(1 << 24);
    let mut feed = StoreFeed::new(server.registry.store(), server.registry.catalog());
    let mut changes = || {
        let mut count = 0;
        feed.drain(&mut |change| count += usize::from(!matches!(change, RbacChange::Clear(..))));
        count
    };
    let (roles, bindings) = (server.local(RBAC, "roles"), server.local(RBAC, "rolebindings"));
    roles.create("n", role("get")).await.expect("written");
    bindings.create("n", binding()).await.expect("written");
    assert_eq!(changes(), 2);
    for (local, object) in [(&roles, role("get")), (&bindings, binding())] {
        let mut object = object;
        object.set(&["metadata", "labels"], json!({"l": "v"}));
        local.update(object, "").await.expect("written");
        assert_eq!(changes(), 0);
    }
    let mut other = binding();
    other.set(&["subjects"], json!([]));
    bindings.update(other, "").await.expect("written");
    roles.update(role("list"), "").await.expect("written");
    assert_eq!(changes(), 2);
    roles.delete("n", "r", &DeleteOptions::default()).await.expect("deleted");
    assert_eq!(changes(), 1);
    roles.create("n", role("list")).await.expect("written");
    assert_eq!(changes(), 1, "the same as before the deletion");
}

#[tokio::test]
async fn bootstrap_writes_once_and_repairs() {
    let server = RegistryFixture::new(1 << 24);
    let begun = Instant::now();
    let first =
        bootstrap::reconcile(&server.registry, bootstrap::expected()).await.expect("written");
    println!("{} objects in {:?}", first.created, begun.elapsed());
    assert_eq!(first.created, bootstrap::expected().len());
    let revision = server.registry.store().revision();
    let again =
        bootstrap::reconcile(&server.registry, bootstrap::expected()).await.expect("checked");
    assert_eq!((again.created, again.updated), (0, 0));
    assert_eq!(
        server.registry.store().revision(),
        revision,
        "nothing is written when nothing is missing"
    );
    server.rbac.caught_up(RightsScope::Everywhere).await;
    assert!(server.may("system:kube-controller-manager", "list", "", "anything"));
    assert!(server.may("system:serviceaccount:kube-system:job-controller", "create", "x", "pods"));

    let roles = server.local(RBAC, "clusterroles");
    let mut node = roles.get("", "system:node").await.expect("read").expect("there");
    node.set(&["rules"], json!([]));
    roles.update(node, "").await.expect("written");
    let mut view = roles.get("", "view").await.expect("read").expect("there");
    view.set(&["metadata", "annotations", "rbac.authorization.kubernetes.io/autoupdate"], "false");
    view.remove(&["metadata", "labels"]);
    roles.update(view, "").await.expect("written");
    server
        .local(RBAC, "clusterrolebindings")
        .delete("", "cluster-admin", &DeleteOptions::default())
        .await
        .expect("deleted");
    let repaired =
        bootstrap::reconcile(&server.registry, bootstrap::expected()).await.expect("repaired");
    assert_eq!((repaired.created, repaired.updated), (1, 1));
}

#[tokio::test]
async fn two_servers_bootstrap_at_once() {
    let server = RegistryFixture::new(1 << 24);
    let (one, other) = tokio::join!(
        bootstrap::reconcile(&server.registry, bootstrap::expected()),
        bootstrap::reconcile(&server.registry, bootstrap::expected())
    );
    assert_eq!(
        one.expect("written").created + other.expect("written").created,
        bootstrap::expected().len()
    );
}

#[tokio::test]
async fn an_acknowledged_binding_takes_effect_at_once() {
    let server = RegistryFixture::new(1 << 24);
    let (roles, bindings) = (server.local(RBAC, "roles"), server.local(RBAC, "rolebindings"));
    roles.create("n", role("get")).await.expect("created");
    for _ in 0..50 {
        assert!(!server.may("alice", "get", "n", "configmaps"));
        bindings.create("n", binding()).await.expect("created");
        assert!(server.may("alice", "get", "n", "configmaps"));
        bindings.delete("n", "b", &DeleteOptions::default()).await.expect("deleted");
    }
}

#[tokio::test]
async fn an_index_that_fell_behind_the_history_lists_again() {
    let server = RegistryFixture::new(1_000);
    let (roles, bindings) = (server.local(RBAC, "roles"), server.local(RBAC, "rolebindings"));
    bindings.create("n", binding()).await.expect("created");
    roles.create("n", role("v0")).await.expect("created");
    assert!(server.may("alice", "v0", "n", "configmaps"));
    for number in 1..200 {
        roles.update(role(&format!("v{number}")), "").await.expect("updated");
    }
    assert!(server.may("alice", "v199", "n", "configmaps"));
    assert!(!server.may("alice", "v0", "n", "configmaps"));
}

#[tokio::test]
async fn escalation_is_refused_in_the_pipeline() {
    let server = RegistryFixture::new(1 << 24);
    let target = server.target(RBAC, "roles", ("n", "", ""));
    let create = |user: &str| {
        let context = context(UserInfo {
            name: user.into(),
            groups: if user == "root" { vec!["system:masters".into()] } else { Vec::new() },
            ..UserInfo::default()
        });
        let body = ferrokube_registry::Body { lenient: false, ..role("get").into() };
        let (registry, target) = (server.registry.clone(), target.clone());
        async move {
            registry
                .create(&context, &target, body, &ferrokube_registry::WriteOptions::default())
                .await
                .map(|written| written.created)
        }
    };
    let failure = create("alice").await.expect_err("refused");
    assert_eq!((failure.code, failure.details.expect("details").kind.as_str()), (403, "roles"));
    assert_eq!(create("root").await, Ok(true));
}

#[tokio::test]
async fn reviews_and_tokens_are_served() {
    let server = RegistryFixture::new(1 << 24);
    bootstrap::reconcile(&server.registry, bootstrap::expected()).await.expect("written");
    let audience = "https://kubernetes.default.svc".to_owned();
    let config = TokenConfig {
        issuers: vec![audience.clone()],
        api_audiences: vec![audience.clone()],
        jwks_uri: String::new(),
        max_life: None,
    };
    let pem = rcgen::KeyPair::generate().expect("key").serialize_pem();
    let keys = TokenKeys::from_pem(pem.as_bytes(), &[]).expect("keys");
    let tokens =
        ServiceAccountTokens::new(config, keys, server.registry.store().clone(), system_clock());
    let file = TokenFile::parse(b"tok,alice,u-alice").expect("parse");
    let bearer = Bearer::new(vec![Arc::new(file), Arc::new(tokens.clone())], vec![audience]);
    let authorizer: Arc<dyn Authorizer> = Arc::clone(&server.rbac) as Arc<dyn Authorizer>;
    review::install(server.registry.catalog(), &authorizer, &server.rbac, &bearer);
    server.registry.catalog().put_computed("", "serviceaccounts", "token", Arc::new(tokens));

    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "job-controller", "namespace": "kube-system"}});
    server
        .local("", "serviceaccounts")
        .create("kube-system", Document::from_value(account).expect("an object"))
        .await
        .expect("created");
    let context = context(UserInfo {
        name: "alice".into(),
        groups: vec!["system:authenticated".into()],
        ..UserInfo::default()
    });
    let target = server.target("", "serviceaccounts", ("kube-system", "job-controller", "token"));
    let answer = server.compute(&context, &target, json!({"spec": {}})).await.expect("issued");
    assert!(context.take_audit().contains_key("authentication.kubernetes.io/issued-credential-id"));
    let owned =
        |object: &Document| object.list(&["metadata", "managedFields"])[0]["fieldsV1"].clone();
    assert_eq!(owned(&answer)["f:spec"]["f:expirationSeconds"], json!({}), "a default");

    let target = server.target("authentication.k8s.io", "tokenreviews", ("", "", ""));
    let review = server
        .compute(&context, &target, json!({"spec": {"token": answer.get(&["status", "token"])}}))
        .await
        .expect("answered");
    assert_eq!(
        review.str(&["status", "user", "username"]),
        Some("system:serviceaccount:kube-system:job-controller")
    );
    assert_eq!(owned(&review), json!({"f:spec": {"f:token": {}}}));

    let target = server.target("authorization.k8s.io", "subjectaccessreviews", ("", "", ""));
    let spec = json!({"user": "system:serviceaccount:kube-system:job-controller", "resourceAttributes": {"verb": "update", "group": "batch", "resource": "jobs"}});
    let review =
        server.compute(&context, &target, json!({"spec": spec.clone()})).await.expect("answered");
    assert_eq!(review.get(&["status", "allowed"]), Some(&json!(true)));
    let attributes = json!({".": {}, "f:group": {}, "f:resource": {}, "f:verb": {}});
    let fields = json!({"f:spec": {"f:resourceAttributes": attributes, "f:user": {}}});
    assert_eq!(owned(&review), fields);
    let metadata = json!({"ownerReferences": [{}]});
    let owner = r#""ownerReferences":[{"apiVersion":"","kind":"","name":"","uid":""}]"#;
    let refused = server
        .compute(&context, &target, json!({"metadata": metadata, "spec": spec}))
        .await
        .expect_err("refused");
    assert!(refused.message.contains(owner), "{}", refused.message);
    let target = server.target("authorization.k8s.io", "selfsubjectrulesreviews", ("", "", ""));
    let review = server
        .compute(&context, &target, json!({"spec": {"namespace": "n"}}))
        .await
        .expect("answered");
    assert_eq!(review.list(&["status", "resourceRules"]).len(), 2);
}

#[tokio::test]
async fn reviews_have_managed_fields() {
    let server = RegistryFixture::new(1 << 24);
    let authorizer: Arc<dyn Authorizer> = Arc::clone(&server.rbac) as Arc<dyn Authorizer>;
    let bearer = Bearer::new(Vec::new(), Vec::new());
    review::install(server.registry.catalog(), &authorizer, &server.rbac, &bearer);
    let context = context(UserInfo { name: "alice".into(), ..UserInfo::default() });
    let (access, identity) = ("authorization.k8s.io", "authentication.k8s.io");
    let of_pods = json!({"resourceAttributes": {"verb": "get", "resource": "pods"}});
    let attributes = json!({"f:resourceAttributes": {".": {}, "f:resource": {}, "f:verb": {}}});
    let local = json!({"user": "u", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "n"}});
    let of_local = json!({"f:resourceAttributes": {".": {}, "f:namespace": {}, "f:resource": {}, "f:verb": {}}, "f:user": {}});
    for (group, plural, namespace, spec, fields) in [
        (access, "selfsubjectaccessreviews", "", of_pods, Some(attributes)),
        (access, "localsubjectaccessreviews", "n", local, Some(of_local)),
        (identity, "tokenreviews", "", json!({"token": "x"}), Some(json!({"f:token": {}}))),
        // kube-apiserver answers these with new objects.
        (access, "selfsubjectrulesreviews", "", json!({"namespace": "n"}), None),
        (identity, "selfsubjectreviews", "", json!({}), None),
    ] {
        let target = server.target(group, plural, (namespace, "", ""));
        let given = json!([{}]);
        let body = json!({"metadata": {"managedFields": given}, "spec": spec});
        let review = server.compute(&context, &target, body).await.expect("answered");
        let managers: Vec<Value> = review
            .list(&["metadata", "managedFields"])
            .iter()
            .map(|entry| json!([entry["manager"], entry["operation"], entry["fieldsV1"]["f:spec"]]))
            .collect();
        let expected: Vec<Value> =
            fields.into_iter().map(|fields| json!(["test", "Update", fields])).collect();
        assert_eq!(managers, expected, "{plural}");
    }
}

#[tokio::test]
async fn the_cost_of_a_decision_is_independent_of_the_number_of_bindings() {
    let server = RegistryFixture::new(1 << 24);
    bootstrap::reconcile(&server.registry, bootstrap::expected()).await.expect("written");
    let bindings = server.local(RBAC, "rolebindings");
    server.local(RBAC, "roles").create("n", role("get")).await.expect("created");
    let make = |number: usize| {
        let mut one = binding();
        one.set(&["metadata", "name"], format!("b{number}"));
        one.set(
            &["subjects"],
            json!([{"kind": "User", "name": format!("u{number}"), "apiGroup": RBAC}]),
        );
        bindings.create("n", one)
    };
    let decide = || work::counted(|| server.may("u17", "get", "n", "configmaps"));
    make(17).await.expect("created");
    server.rbac.caught_up(RightsScope::Everywhere).await;
    let (allowed, among_few) = decide();
    assert!(allowed && among_few > 0, "{among_few}");
    let many = (18..3_000).map(make);
    futures::future::try_join_all(many).await.expect("created");
    server.rbac.caught_up(RightsScope::Everywhere).await;
    assert!(server.may("u2999", "get", "n", "configmaps"));
    assert_eq!(decide(), (true, among_few));
}
