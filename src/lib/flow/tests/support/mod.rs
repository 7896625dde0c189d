//! The path of a create through flow control, with kube-apiserver's schemas.

use ferrokube_apimachinery::user::UserInfo;
use ferrokube_flow::priority::{
    FlowAction, FlowConfig, FlowRequest, FlowResource, LevelConfig, SchemaConfig,
};
use ferrokube_flow::{Classified, Flow, Limits, release_all};
use std::sync::Arc;
use std::time::Duration;

/// Creates a ConfigMap.
#[derive(Debug)]
pub(crate) struct CreateAction;

impl FlowAction for CreateAction {
    fn verb(&self) -> &str {
        "create"
    }

    fn path(&self) -> &str {
        "/api/v1/namespaces/default/configmaps"
    }

    fn resource(&self) -> Option<FlowResource<'_>> {
        Some(FlowResource {
            version: "v1",
            plural: "configmaps",
            namespace: "default",
            ..FlowResource::default()
        })
    }
}

/// Flow control with the objects that a server maintains.
pub(crate) fn flow(limits: &Limits) -> Arc<Flow> {
    let flow = Flow::new(limits);
    let (mut schemas, mut levels) = (Vec::new(), Vec::new());
    for definition in ferrokube_resources::definitions(ferrokube_resources::tables()) {
        for maintained in definition.hooks.maintained() {
            match definition.kind.as_str() {
                "FlowSchema" => schemas.push(SchemaConfig::read(&maintained.object)),
                "PriorityLevelConfiguration" => {
                    levels.extend(LevelConfig::read(&maintained.object))
                }
                _ => {}
            }
        }
    }
    assert!(schemas.len() > 5 && levels.len() > 5);
    flow.levels().configure(FlowConfig::new(schemas, levels));
    Arc::new(flow)
}

/// One per kind of schema: the first, one in the middle, the last but one.
pub(crate) fn users() -> [(&'static str, UserInfo); 3] {
    let user = |name: &str, groups: &[&str]| UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..UserInfo::default()
    };
    let all = "system:authenticated";
    let accounts = ["system:serviceaccounts", "system:serviceaccounts:default", all];
    [
        ("administrator", user("admin", &["system:masters", all])),
        ("service account", user("system:serviceaccount:default:app", &accounts)),
        ("user", user("alice", &["devs", "admins-of-nothing", all])),
    ]
}

/// A request up to its seat.
pub(crate) async fn enter(flow: &Flow, user: &UserInfo, action: &Arc<dyn FlowAction>) {
    let subject = Classified { user, peer: None, is_anonymous: false };
    let mut class = flow.classify(&subject);
    let request =
        FlowRequest { user, action, mutates: true, timeout: Duration::from_secs(60), seats: &|| 1 };
    flow.assign(&mut class, &request);
    flow.reject_if_hopeless().expect("there is room");
    flow.take_seat(&user.name).await.expect("there is a seat");
}

/// A whole request, without its work.
pub(crate) async fn pass(flow: &Flow, user: &UserInfo, action: &Arc<dyn FlowAction>) {
    enter(flow, user, action).await;
    release_all();
}
