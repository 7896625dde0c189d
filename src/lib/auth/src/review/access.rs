//! SubjectAccessReview, LocalSubjectAccessReview and SelfSubjectAccessReview.

use super::selectors;
use crate::access::{Access, Authorizer, Decision, ResourceAccess, RightsScope};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_registry::ComputedResource;
use ferrokube_registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_registry::offload::on_worker;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The three access reviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewKind {
    /// Any user, anywhere.
    Subject,
    /// Any user, in one namespace.
    Local,
    /// The caller.
    Own,
}

/// Answers one of the three kinds.
pub(super) struct AccessReview {
    pub(super) kind: ReviewKind,
    pub(super) authorizer: Arc<dyn Authorizer>,
}

impl ComputedResource for AccessReview {
    fn create<'a>(&'a self, call: ComputedCall<'a>, object: Document) -> ComputedFuture<'a> {
        let ComputedCall { context, target, .. } = call;
        Box::pin(async move {
            let (caller, anonymous) = (&*context.user, UserInfo::default());
            let subject = if self.kind == ReviewKind::Own { caller } else { &anonymous };
            let asked = object.str(&["spec", "resourceAttributes", "namespace"]);
            let own = target.namespace.as_deref().unwrap_or_default();
            let scope =
                RightsScope::Namespace(asked.filter(|name| !name.is_empty()).unwrap_or(own));
            if let Some(wait) = self.authorizer.catch_up(subject, scope) {
                // The filter chain does not wait for masters, but the review may be about another
                // user.
                on_worker(wait).await;
            }
            self.review(caller, target.namespace.as_deref().unwrap_or_default(), object)
        })
    }
}

impl AccessReview {
    fn review(
        &self,
        caller: &UserInfo,
        namespace: &str,
        mut object: Document,
    ) -> Result<Document, Failure> {
        self.set_namespace(namespace, &mut object)?;
        let errors = self.validate(&object);
        if !errors.is_empty() {
            return Err(Failure::invalid("authorization.k8s.io", "", "", &errors));
        }
        let subject;
        let user = if self.kind == ReviewKind::Own {
            caller
        } else {
            subject = self::subject(&object);
            &subject
        };
        let decision = self.authorizer.authorize(&access(user, &object));
        if object.get(&["metadata"]).is_none() {
            object.set(&["metadata"], Value::Object(ferrokube_apimachinery::document::Map::new()));
        }
        object.remove(&["status"]);
        object.set(&["status", "allowed"], decision.is_allowed());
        if matches!(decision, Decision::Deny(_)) {
            object.set(&["status", "denied"], true);
        }
        if !decision.reason().is_empty() {
            object.set(&["status", "reason"], decision.reason());
        }
        if let Some(ignored) = selectors::ignored(&object) {
            object.set(&["status", "evaluationError"], ignored);
        }
        Ok(object)
    }

    /// Sets the request's namespace on a local review; clears it on the others.
    fn set_namespace(&self, namespace: &str, object: &mut Document) -> Result<(), Failure> {
        super::clear_server_metadata(object);
        if self.kind != ReviewKind::Local {
            object.remove(&["metadata", "namespace"]);
            return Ok(());
        }
        if !object.namespace().is_empty() && object.namespace() != namespace {
            return Err(Failure::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        object.set(&["metadata", "namespace"], namespace);
        Ok(())
    }

    fn validate(&self, object: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let has = |field: &str| object.get(&["spec", field]).is_some_and(|value| !value.is_null());
        let exactly_one =
            "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        match (has("resourceAttributes"), has("nonResourceAttributes")) {
            (true, true) => errors.push(FieldError::invalid(
                "spec.nonResourceAttributes",
                expected_path(object),
                "cannot be specified in combination with resourceAttributes",
            )),
            (false, false) => errors.push(FieldError::invalid(
                "spec.resourceAttributes",
                Value::Null,
                exactly_one,
            )),
            _ => {}
        }
        if self.kind != ReviewKind::Own
            && strings(object.get(&["spec", "groups"])).is_empty()
            && object.str(&["spec", "user"]).unwrap_or_default().is_empty()
        {
            errors.push(FieldError::invalid(
                "spec.user",
                "",
                "at least one of user or group must be specified",
            ));
        }
        errors.extend(selectors::validate(object));
        let allowed: &[&str] = if self.kind == ReviewKind::Local {
            &["managedFields", "namespace"]
        } else {
            &["managedFields"]
        };
        let metadata = object.get(&["metadata"]).and_then(Value::as_object);
        if metadata.is_some_and(|metadata| {
            metadata
                .iter()
                .any(|(field, value)| !allowed.contains(&field.as_str()) && !is_empty(value))
        }) {
            let metadata = object.get(&["metadata"]);
            errors.push(FieldError::invalid(
                "metadata",
                metadata,
                if self.kind == ReviewKind::Local {
                    "must be empty except for namespace"
                } else {
                    "must be empty"
                },
            ));
        }
        if self.kind == ReviewKind::Local {
            errors.extend(validate_local(object));
        }
        errors
    }
}

/// `spec` as kube-apiserver's error shows its internal type.
fn expected_path(object: &Document) -> Value {
    let field =
        |name: &str| object.str(&["spec", "nonResourceAttributes", name]).unwrap_or_default();
    json!({"Path": field("path"), "Verb": field("verb")})
}

/// A local review is about resources in its own namespace.
fn validate_local(object: &Document) -> Vec<FieldError> {
    let has = |field: &str| object.get(&["spec", field]).is_some_and(|value| !value.is_null());
    let mut errors = Vec::new();
    let namespace = object.str(&["spec", "resourceAttributes", "namespace"]).unwrap_or_default();
    if has("resourceAttributes") && namespace != object.namespace() {
        errors.push(FieldError::invalid(
            "spec.resourceAttributes.namespace",
            namespace,
            "must match metadata.namespace",
        ));
    }
    if has("nonResourceAttributes") {
        errors.push(FieldError::invalid(
            "spec.nonResourceAttributes",
            expected_path(object),
            "disallowed on this kind of request",
        ));
    }
    errors
}

/// The user that a review is about.
fn subject(object: &Document) -> UserInfo {
    let text = |field: &str| object.str(&["spec", field]).unwrap_or_default().to_owned();
    let extra = object.get(&["spec", "extra"]).and_then(Value::as_object);
    let extra: BTreeMap<String, Vec<String>> = extra
        .map(|extra| {
            extra.iter().map(|(key, values)| (key.to_string(), strings(Some(values)))).collect()
        })
        .unwrap_or_default();
    UserInfo {
        name: text("user"),
        uid: text("uid"),
        groups: strings(object.get(&["spec", "groups"])),
        extra,
    }
}

fn access<'a>(user: &'a UserInfo, object: &'a Document) -> Access<'a> {
    let resource =
        |field: &str| object.str(&["spec", "resourceAttributes", field]).unwrap_or_default();
    let other =
        |field: &str| object.str(&["spec", "nonResourceAttributes", field]).unwrap_or_default();
    if object.get(&["spec", "nonResourceAttributes"]).is_some_and(|value| !value.is_null()) {
        return Access { user, verb: other("verb"), resource: None, path: other("path") };
    }
    let attributes = ResourceAccess {
        group: resource("group"),
        version: resource("version"),
        resource: resource("resource"),
        subresource: resource("subresource"),
        namespace: resource("namespace"),
        name: resource("name"),
    };
    Access { user, verb: resource("verb"), resource: Some(attributes), path: "" }
}

pub(super) fn strings(value: Option<&Value>) -> Vec<String> {
    value
        .and_then(Value::as_array)
        .map(|items| items.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Bool(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::user;
    use crate::{AlwaysDeny, MastersOnly};

    fn review(kind: ReviewKind, caller: &UserInfo, object: Value) -> Result<Document, Failure> {
        let namespace = if kind == ReviewKind::Local { "n" } else { "" };
        AccessReview { kind, authorizer: Arc::new(MastersOnly) }.review(
            caller,
            namespace,
            Document::from_value(object).expect("an object"),
        )
    }

    fn field(kind: ReviewKind, spec: Value) -> String {
        let failure = review(kind, &user("u", &[]), json!({ "spec": spec })).expect_err("refused");
        assert_eq!(failure.code, 422);
        let details = failure.details.expect("details");
        assert_eq!(
            (details.group.as_str(), details.kind.as_str(), details.name.as_str()),
            ("authorization.k8s.io", "", "")
        );
        details.causes[0].field.clone()
    }

    #[test]
    fn a_review_needs_exactly_one_kind_of_attributes() {
        let pods = json!({"verb": "get", "resource": "pods"});
        assert_eq!(field(ReviewKind::Own, json!({})), "spec.resourceAttributes");
        assert_eq!(
            field(
                ReviewKind::Own,
                json!({"resourceAttributes": pods, "nonResourceAttributes": {"path": "/x", "verb": "get"}})
            ),
            "spec.nonResourceAttributes"
        );
        assert_eq!(field(ReviewKind::Subject, json!({"resourceAttributes": pods})), "spec.user");
        let other = json!({"user": "u", "resourceAttributes": {"namespace": "other", "verb": "get", "resource": "x"}});
        assert_eq!(field(ReviewKind::Local, other), "spec.resourceAttributes.namespace");
        assert_eq!(
            field(ReviewKind::Local, json!({"user": "u", "nonResourceAttributes": {"path": "/"}})),
            "spec.nonResourceAttributes"
        );
        let both = json!({"nonResourceAttributes": {"path": "/"}, "resourceAttributes": {"namespace": "other"}});
        let failure = review(ReviewKind::Local, &user("u", &[]), json!({ "spec": both }))
            .expect_err("refused");
        let mut fields: Vec<String> =
            failure.details.expect("details").causes.into_iter().map(|cause| cause.field).collect();
        fields.dedup();
        fields.sort_unstable();
        fields.dedup();
        assert_eq!(
            fields,
            ["spec.nonResourceAttributes", "spec.resourceAttributes.namespace", "spec.user"],
            "all errors are reported"
        );
        let both = json!({"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "In", "values": ["b"]}]});
        let selector = json!({"resourceAttributes": {"verb": "list", "resource": "pods", "labelSelector": both}});
        assert_eq!(
            field(ReviewKind::Own, selector),
            "spec.resourceAttributes.labelSelector.rawSelector"
        );
        let named = review(
            ReviewKind::Own,
            &user("u", &[]),
            json!({"metadata": {"name": "x"}, "spec": {"resourceAttributes": pods}}),
        )
        .expect_err("refused");
        assert_eq!(named.details.expect("details").causes[0].field, "metadata");
    }

    #[test]
    fn metadata_is_cleared_but_for_a_local_reviews_namespace() {
        let spec = json!({"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "n"}, "user": "u"});
        for metadata in [
            json!({"labels": {}}),
            json!({"namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "u", "generation": 0}),
        ] {
            for kind in [ReviewKind::Own, ReviewKind::Subject, ReviewKind::Local] {
                let answer =
                    review(kind, &user("u", &[]), json!({"metadata": metadata, "spec": spec}))
                        .expect("answered");
                assert_eq!(answer.namespace(), if kind == ReviewKind::Local { "n" } else { "" });
                assert_eq!((answer.uid(), answer.meta("creationTimestamp")), ("", ""));
            }
        }
        for metadata in
            [json!({"name": "x"}), json!({"resourceVersion": "1"}), json!({"labels": {"a": "b"}})]
        {
            let failure = review(
                ReviewKind::Local,
                &user("u", &[]),
                json!({"metadata": metadata, "spec": spec}),
            )
            .expect_err("refused");
            assert_eq!(failure.details.expect("details").causes[0].field, "metadata");
        }
        let elsewhere = json!({"metadata": {"namespace": "other"}, "spec": spec});
        assert_eq!(
            review(ReviewKind::Local, &user("u", &[]), elsewhere).expect_err("refused").code,
            400
        );
    }

    #[test]
    fn reviews_return_the_decision() {
        let spec = json!({"resourceAttributes": {"verb": "get", "resource": "pods"}});
        let own = review(ReviewKind::Own, &user("a", &["system:masters"]), json!({ "spec": spec }))
            .expect("answered");
        assert_eq!(own.get(&["status"]), Some(&json!({"allowed": true})));
        assert_eq!(own.get(&["metadata"]), Some(&json!({})));
        let other = json!({"spec": {"user": "x", "groups": ["g"], "nonResourceAttributes": {"path": "/healthz", "verb": "get"}}});
        let other =
            review(ReviewKind::Subject, &user("a", &["system:masters"]), other).expect("answered");
        assert_eq!(
            other.get(&["status"]),
            Some(&json!({"allowed": false})),
            "about the subject, not the caller"
        );
        let denied = AccessReview { kind: ReviewKind::Own, authorizer: Arc::new(AlwaysDeny) };
        let denied = denied
            .review(
                &user("a", &[]),
                "",
                Document::from_value(json!({ "spec": spec })).expect("an object"),
            )
            .expect("answered");
        assert_eq!(denied.get(&["status", "denied"]), Some(&json!(true)));
    }
}
