//! PolicyReaders.

use crate::{StepRequest, definition, document, store, target};
use ferrokube_admission::{
    AdmissionStep, CheckDecision, PermitQuery, Permits, PolicyInputs, PolicyReaders, Right,
};
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_registry::{Catalog, Effects, Operation};
use ferrokube_resource::Scope;
use std::sync::Arc;

/// Grants one right, as `verb group version resource namespace name`.
struct OneRight(&'static str);

impl Permits for OneRight {
    fn decide(&self, _: &UserInfo, _: &Right) -> CheckDecision {
        CheckDecision::default()
    }

    fn permits(&self, _: &UserInfo, question: &PermitQuery<'_>) -> bool {
        let PermitQuery { verb, group, version, resource, namespace, name } = question;
        [*verb, group, version, resource, namespace, name].join(" ") == self.0
    }
}

/// The message of a refused write.
fn refusal(right: &'static str, plural: &str, old: Option<Value>, spec: Value) -> Option<String> {
    let step = PolicyReaders::new(PolicyInputs {
        store: store(),
        catalog: Arc::new(Catalog::default()),
        permits: Arc::new(OneRight(right)),
        stats: Arc::default(),
    });
    let of = definition("admissionregistration.k8s.io", plural, Scope::Cluster);
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    let whole = |spec: Value| document(json!({"metadata": {"name": "p"}, "spec": spec}));
    let request = StepRequest {
        operation,
        old: old.map(whole),
        ..StepRequest::create(target(&of, None, "p"))
    };
    let object = whole(spec);
    let result = step.validate(&request.attributes(), Some(&object), &mut Effects::default());
    result.err().map(|failure| failure.details.unwrap().causes[0].message.clone())
}

#[tokio::test]
async fn whoever_writes_a_policy_can_read_its_parameters() {
    let spec = || json!({"paramKind": {"apiVersion": "v1", "kind": "Secret"}});
    let plural = "validatingadmissionpolicies";
    let why = refusal("", plural, None, spec()).unwrap();
    assert!(why.ends_with("must have \"get\" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)"), "{why}");
    // The kind is not served: only a right to every resource covers it.
    assert_eq!(refusal("get  v1 * * *", plural, None, spec()), None);
    assert_eq!(refusal("", plural, Some(spec()), spec()), None, "nothing new");
    assert_eq!(refusal("", plural, None, json!({})), None, "no parameters");
}

#[tokio::test]
async fn whoever_writes_a_binding_can_read_its_parameter() {
    let plural = "mutatingadmissionpolicybindings";
    let spec =
        |name: &str| json!({"policyName": "p", "paramRef": {"name": name, "namespace": "n"}});
    let why = refusal("", plural, None, spec("secret")).unwrap();
    assert!(why.contains("unable to get policy p to determine minimum required permissions"));
    assert_eq!(refusal("get * * * n secret", plural, None, spec("secret")), None);
    assert!(refusal("get * * * n secret", plural, None, spec("")).is_some(), "a list");
    assert_eq!(refusal("list * * * n ", plural, None, spec("")), None);
    assert_eq!(refusal("", plural, Some(spec("a")), spec("a")), None, "nothing new");
    assert!(refusal("", plural, Some(spec("a")), spec("b")).is_some());
}
