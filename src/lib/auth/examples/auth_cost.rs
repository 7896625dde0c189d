//! Prints costs per request: `cargo run --release -p ferrokube-auth --example auth_cost`.

use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_auth::audit::{
    AuditConfig, AuditEvent, AuditLevel, AuditLog, AuditObject, AuditPlan, AuditRequest,
    AuditStage, Outcome, StageSet, TraceIds,
};
use ferrokube_auth::authenticate::{Bearer, TokenFile, X509};
use ferrokube_auth::rbac::{Feed, RbacChange, RbacKind};
use ferrokube_auth::{
    Access, Authenticator, Authorizer, Credentials, Rbac, ResourceAccess, bootstrap, system_clock,
};
use ferrokube_trace::{SpanId, TraceId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

fn measure(name: &str, mut work: impl FnMut()) {
    work();
    let begun = Instant::now();
    (0..5_000).for_each(|_| work());
    println!("{name}: {:?}", begun.elapsed() / 5_000);
}

struct BootstrapPolicyFeed;

impl Feed for BootstrapPolicyFeed {
    fn drain(&mut self, apply: &mut dyn FnMut(RbacChange)) {
        let own = json!({
            "metadata": {"namespace": "n", "name": "robots"}, "roleRef": {"kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "job-controller"}],
        });
        apply(RbacChange::Put(
            RbacKind::RoleBinding,
            Arc::new(Document::from_value(own).expect("an object")),
        ));
        bootstrap::expected()
            .into_iter()
            .for_each(|one| apply(RbacChange::Put(one.kind, Arc::new(one.document))));
    }
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..UserInfo::default()
    }
}

fn authorization() {
    let rbac = Rbac::new(Box::new(BootstrapPolicyFeed), Box::new(|| 1));
    let robot = user(
        "system:serviceaccount:kube-system:job-controller",
        &["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
    );
    let asked = [
        ("allowed", "batch", "update", "jobs"),
        ("allowed in its namespace", "", "delete", "secrets"),
        ("refused", "batch", "delete", "secrets"),
    ];
    for (name, group, verb, resource) in asked {
        let resource = ResourceAccess {
            group,
            version: "v1",
            resource,
            namespace: "n",
            name: "j",
            ..ResourceAccess::default()
        };
        measure(&format!("RBAC, {name}"), || {
            let access = Access { user: &robot, verb, resource: Some(resource), path: "" };
            assert_eq!(rbac.authorize(&access).is_allowed(), name != "refused");
        });
    }
}

fn authentication() {
    let file = TokenFile::parse(b"a-static-token-of-some-length,alice,u-alice,\"devs,ops\"")
        .expect("parse");
    let bearer = Bearer::new(vec![Arc::new(file)], vec!["https://kubernetes.default.svc".into()]);
    measure("static token", || {
        assert!(
            bearer
                .authenticate(&Credentials {
                    bearer: Some("a-static-token-of-some-length"),
                    ..Credentials::default()
                })
                .is_ok()
        );
    });
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "alice");
    let leaf = params
        .self_signed(&rcgen::KeyPair::generate().expect("key"))
        .expect("certificate")
        .der()
        .to_vec();
    let x509 = X509::new(system_clock());
    measure("client certificate", || {
        assert!(
            x509.authenticate(&Credentials { certificate: Some(&leaf), ..Credentials::default() })
                .is_ok()
        );
    });
}

fn event<'a>(
    user: &'a UserInfo,
    ips: &'a [String],
    annotations: &'a BTreeMap<String, String>,
) -> AuditEvent<'a> {
    let now = SystemTime::now();
    AuditEvent {
        id: "6b0f2f0e-5f5c-4d51-9d0d-1f7f3ad30b55",
        stage: AuditStage::ResponseComplete,
        uri: "/api/v1/namespaces/default/configmaps?fieldManager=kubectl-client-side-apply&fieldValidation=Strict",
        verb: "create",
        user,
        impersonated: None,
        constraint: "",
        method: "x509",
        source_ips: ips,
        user_agent: "kubectl/v1.33.0 (linux/amd64) kubernetes/60a317e",
        object: Some(AuditObject {
            resource: "configmaps",
            namespace: "default",
            name: "a-config-map",
            version: "v1",
            ..AuditObject::default()
        }),
        outcome: Some(Outcome { code: 201, ..Outcome::default() }),
        request: None,
        response: None,
        received: now,
        at: now,
        trace: Some(TraceIds {
            trace: TraceId::random(),
            span: SpanId::random(),
            initial: Some(TraceId::random()),
        }),
        decision: (
            "allow",
            "RBAC: allowed by ClusterRoleBinding \"cluster-admin\" of ClusterRole \"cluster-admin\" to Group \"admins\"",
        ),
        annotations,
    }
}

async fn audit() {
    let folder = tempfile::tempdir().expect("folder");
    let log = AuditLog::open(AuditConfig::new(folder.path().join("audit.log"))).expect("open");
    let (user, ips, annotations) = (
        user("kubernetes-admin", &["system:masters", "system:authenticated"]),
        ["127.0.0.1".to_owned()],
        BTreeMap::new(),
    );
    let resource = ResourceAccess {
        version: "v1",
        resource: "configmaps",
        namespace: "default",
        ..ResourceAccess::default()
    };
    measure("audit, asking the policy", || {
        assert_eq!(
            log.plan(&AuditRequest {
                user: &user,
                verb: "create",
                resource: Some(resource),
                path: ""
            })
            .level,
            AuditLevel::Metadata
        );
    });
    let plan = AuditPlan {
        level: AuditLevel::Metadata,
        omit: StageSet::NONE,
        omit_managed_fields: true,
        refusals: false,
        rationed: false,
    };
    let mut waiting = Vec::new();
    measure("audit, encoding and queueing an event", || {
        waiting.push(log.record(&event(&user, &ips, &annotations), &plan))
    });
    for written in waiting {
        written.await.expect("written");
    }
    let begun = Instant::now();
    for _ in 0..1_000 {
        log.record(&event(&user, &ips, &annotations), &plan).await.expect("written");
    }
    println!("audit, one event at a time until it is in the file: {:?}", begun.elapsed() / 1_000);
    log.close();
    let text = std::fs::read_to_string(folder.path().join("audit.log")).expect("a file");
    assert_eq!(text.lines().count(), 6_001);
    let line = ferrokube_apimachinery::json::read(text.lines().next().expect("a line").as_bytes())
        .expect("JSON")
        .document;
    assert_eq!(Document::get(&line, &["objectRef", "resource"]), Some(&json!("configmaps")));
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    authorization();
    authentication();
    audit().await;
}
