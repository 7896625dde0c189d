//! SelfSubjectReview and TokenReview.

use super::user;
use crate::authenticate::{Bearer, Unauthenticated};
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::time;
use ferrokube_registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_registry::{ComputedResource, RequestContext};

/// Creates `selfsubjectreviews`.
pub(super) struct SelfReview;

impl ComputedResource for SelfReview {
    fn create<'a>(&'a self, call: ComputedCall<'a>, object: Document) -> ComputedFuture<'a> {
        Box::pin(async move { Ok(who_am_i(call.context, &object)) })
    }
}

/// Built from scratch: of the request's object only the type is kept.
fn who_am_i(context: &RequestContext, sent: &Document) -> Document {
    let mut object = Document::new();
    object.set(&["kind"], sent.kind());
    object.set(&["apiVersion"], sent.api_version());
    object.set(&["metadata", "creationTimestamp"], time::rfc3339_seconds(context.now));
    object.set(&["status"], json!({"userInfo": user::to_value(&context.user)}));
    object
}

/// Creates `tokenreviews`.
pub(super) struct TokenReview {
    pub(super) tokens: Bearer,
}

impl ComputedResource for TokenReview {
    fn create<'a>(&'a self, _call: ComputedCall<'a>, object: Document) -> ComputedFuture<'a> {
        Box::pin(async move { self.review(object) })
    }
}

impl TokenReview {
    fn review(&self, mut object: Document) -> Result<Document, Failure> {
        super::clear_server_metadata(&mut object);
        let token = object.str(&["spec", "token"]).unwrap_or_default();
        if token.is_empty() {
            return Err(Failure::bad_request(
                "token is required for TokenReview in authentication",
            ));
        }
        let asked: Vec<String> = object
            .list(&["spec", "audiences"])
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        let audiences = if asked.is_empty() { self.tokens.api_audiences() } else { &asked };
        let known = self.tokens.identify(token, audiences);
        if object.get(&["metadata"]).is_none() {
            object.set(&["metadata"], Value::Object(Map::new()));
        }
        // Without a verified token the client's own status stays, as in kube-apiserver, except for
        // the verdict.
        object.remove(&["status", "authenticated"]);
        match known {
            Ok(known) => {
                object.set(&["status", "authenticated"], true);
                object.set(&["status", "user"], user::to_value(&known.identity.user));
                object.set(&["status", "audiences"], json!(known.audiences));
            }
            Err(Unauthenticated) => object.set(&["status", "error"], "invalid bearer token"),
        }
        if object.get(&["status", "user"]).is_none_or(Value::is_null) {
            object.set(&["status", "user"], Value::Object(Map::new()));
        }
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticate::TokenFile;
    use std::sync::Arc;

    fn review(spec: Value) -> Result<Document, Failure> {
        review_of(json!({ "spec": spec }))
    }

    fn review_of(object: Value) -> Result<Document, Failure> {
        let file = TokenFile::parse(b"good,alice,u-alice").expect("parse");
        let tokens =
            Bearer::new(vec![Arc::new(file)], vec!["https://kubernetes.default.svc".into()]);
        TokenReview { tokens }.review(Document::from_value(object).expect("an object"))
    }

    #[test]
    fn a_status_sent_by_the_client_is_no_verdict() {
        let sent = json!({"authenticated": true, "audiences": ["a"], "user": {"username": "root", "groups": ["system:masters"]}, "error": "e"});
        let wrong = review_of(json!({"spec": {"token": "wrong"}, "status": sent}))
            .expect("answered")
            .get(&["status"])
            .cloned();
        let shown = json!({"audiences": ["a"], "user": {"username": "root", "groups": ["system:masters"]}, "error": "invalid bearer token"});
        assert_eq!(wrong, Some(shown));
        let good = review_of(json!({"spec": {"token": "good"}, "status": {"user": {"username": "root"}, "audiences": ["a"]}})).expect("answered");
        assert_eq!(good.str(&["status", "user", "username"]), Some("alice"));
        assert_eq!(good.list(&["status", "audiences"]), [json!("https://kubernetes.default.svc")]);
    }

    #[test]
    fn a_token_review_reports_the_user_and_audiences() {
        let good = review(json!({"token": "good"})).expect("answered");
        let status = json!({
            "authenticated": true, "user": {"username": "alice", "uid": "u-alice", "groups": ["system:authenticated"]},
            "audiences": ["https://kubernetes.default.svc"],
        });
        assert_eq!(good.get(&["status"]), Some(&status));
        for spec in [
            json!({"token": "wrong"}),
            json!({"token": "good", "audiences": ["https://nowhere.example.com"]}),
        ] {
            let status =
                review(spec).expect("answered").get(&["status"]).cloned().expect("a status");
            assert_eq!(status["user"], json!({}));
            assert!(status["error"].is_string() && status.get("authenticated").is_none());
        }
        assert_eq!(review(json!({"token": ""})).expect_err("refused").code, 400);
    }

    #[test]
    fn a_self_review_returns_the_caller() {
        let clock = crate::testing::FakeClock::new();
        let mut context = crate::testing::context(&clock);
        context.user = crate::testing::user("alice", &["g"]).into();
        let sent =
            Document::from_value(json!({"kind": "SelfSubjectReview", "metadata": {"name": "x"}}))
                .expect("an object");
        let answer = who_am_i(&context, &sent);
        assert_eq!((answer.kind(), answer.name()), ("SelfSubjectReview", ""));
        assert_eq!(
            answer.get(&["status"]),
            Some(&json!({"userInfo": {"username": "alice", "groups": ["g"]}}))
        );
        assert_eq!(answer.meta("creationTimestamp"), "2027-01-15T08:00:00Z");
    }
}
