//! What is chosen is served; what is left out is absent everywhere; mistakes fail the build.

use crate::support::TestPlane;
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_auth::{Access, AlwaysDeny, Authorizer, Decision};
use ferrokube_server::admission_steps::AdmissionStep;
use ferrokube_server::registry::Attributes;
use std::sync::Arc;

const FEW: [&str; 6] = [
    "clusterrolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "configmaps",
    "namespaces",
    "rolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
];

#[tokio::test(flavor = "multi_thread")]
async fn only_chosen_kinds_are_served() {
    let few =
        TestPlane::start(|builder| builder.bundle(ferrokube_resources::bundle().only(FEW))).await;
    assert_eq!(few.resources().await, FEW);
    let openapi = few.get("/openapi/v2").await.1;
    assert!(openapi.contains("io.k8s.api.core.v1.ConfigMap"));
    for absent in ["FlowSchema", "APIService", "CustomResourceDefinition", "v1.Secret"] {
        assert!(!openapi.contains(absent), "{absent}");
    }
    let roles = few.get("/apis/rbac.authorization.k8s.io/v1/clusterroles").await.1;
    assert!(roles.contains("\"cluster-admin\"") && roles.contains("configmaps"));
    for absent in ["\"secrets\"", "flowschemas", "certificatesigningrequests", "\"leases\""] {
        assert!(!roles.contains(absent), "{absent}");
    }
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles";
    assert!(!few.get(roles).await.1.contains("token-cleaner"), "a role about secrets");
    for path in [
        "/api/v1/namespaces/default/secrets",
        "/.well-known/openid-configuration",
        "/openid/v1/jwks",
        "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
        "/apis/apiregistration.k8s.io/v1/apiservices",
    ] {
        assert_eq!(few.get(path).await.0, 404, "{path}");
    }
    let ready = few.get("/readyz?verbose").await.1;
    assert!(ready.contains("rbac/bootstrap-roles"), "{ready}");
    for absent in ["priority-and-fairness-config-producer", "autoregistration"] {
        assert!(!ready.contains(absent), "{absent}: {ready}");
    }
    let metrics = few.get("/metrics").await.1;
    for absent in ["apiserver_flowcontrol", "apiserver_admission_webhook"] {
        assert!(!metrics.contains(absent), "{absent}");
    }
    let map = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
    assert_eq!(few.post("/api/v1/namespaces/default/configmaps", &map).await.0, 201);
    assert_eq!(few.post("/api/v1/namespaces/gone/configmaps", &map).await.0, 404);
    few.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_namespaces_nothing_waits_for_one() {
    let one = ferrokube_resources::bundle().only(["configmaps"]);
    let one = TestPlane::start(|builder| builder.bundle(one)).await;
    let map = json!({"metadata": {"name": "a"}});
    assert_eq!(one.post("/api/v1/namespaces/any/configmaps", &map).await.0, 201);
    // Without RBAC, masters may do everything, and others nothing.
    let path = "/api/v1/namespaces/any/configmaps/a";
    assert_eq!(one.get(path).await.0, 200);
    assert_eq!(one.send("GET", path, "jane", "").await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_of_nothing_is_healthy() {
    let none = TestPlane::start(|builder| builder).await;
    assert_eq!(none.get("/readyz").await.0, 200);
    assert_eq!(none.resources().await, [""; 0]);
}

/// Refuses ConfigMaps called `no`.
pub(crate) struct NoMaps;

impl AdmissionStep for NoMaps {
    fn name(&self) -> &'static str {
        "NoMaps"
    }

    fn mutate(&self, attributes: &Attributes<'_>, object: &mut Document) -> Result<(), Failure> {
        let definition = &attributes.target.served.definition;
        if object.name() != "no" {
            object.set(&["metadata", "labels", "seen"], "yes");
            return Ok(());
        }
        Err(Failure::forbidden(&definition.group_resource(), "no", "no means no"))
    }
}

/// Lets `jane` read.
struct JaneReads;

impl Authorizer for JaneReads {
    fn authorize(&self, access: &Access<'_>) -> Decision {
        if access.user.name == "jane" && access.verb == "get" {
            return Decision::Allow(String::new());
        }
        Decision::NoOpinion(String::new())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_and_authorizers_of_the_program_take_part() {
    let served = TestPlane::start(|builder| {
        builder
            .bundle(ferrokube_resources::bundle().only(FEW))
            .admission(|_| Arc::new(NoMaps))
            .authorizer(|_| Arc::new(JaneReads))
    })
    .await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let (code, text) = served.post(maps, &json!({"metadata": {"name": "no"}})).await;
    assert!(code == 403 && text.contains("no means no"), "{text}");
    assert_eq!(served.post(maps, &json!({"metadata": {"name": "yes"}})).await.0, 201);
    let (code, text) = served.send("GET", &format!("{maps}/yes"), "jane", "").await;
    assert!(code == 200 && text.contains(r#""seen":"yes""#), "{text}");
    assert_eq!(served.send("DELETE", &format!("{maps}/yes"), "jane", "").await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authorizer_of_the_program_can_deny() {
    let served = TestPlane::start(|builder| {
        builder.bundle(ferrokube_resources::bundle().only(FEW)).authorizer(|_| Arc::new(AlwaysDeny))
    })
    .await;
    assert_eq!(served.get("/api/v1/namespaces/default/configmaps").await.0, 403);
}
