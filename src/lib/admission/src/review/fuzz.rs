//! Fuzz target: any input is allowed, and a patch sets only ids.

use super::*;
use ferrokube_apimachinery::patch::json_patch;
use ferrokube_fuzz::{Verdict, run};

const REVIEWS: &[&str] = &[
    concat!(
        r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","operation":"CREATE","resource":{"group":"","#,
        r#""version":"v1","resource":"pods"},"object":{"metadata":{"name":"a"}},"oldObject":null}}"#,
    ),
    concat!(
        r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","operation":"UPDATE","resource":{"resource":"pods"},"#,
        r#""subResource":"","object":{"metadata":{"annotations":{"trace.kubernetes.io/initial-trace-id":"x","a":"b"}},"x":1},"#,
        r#""oldObject":{"metadata":{"annotations":{"trace.kubernetes.io/trace-id":"y"}}}}}"#,
    ),
];

#[test]
fn l33_every_review_is_allowed() {
    let trace = TraceContext::root();
    run("review", REVIEWS, |body| {
        let Ok(answered) = answer(body, &trace, true) else { return Verdict::Refused };
        let answer = codec::read_value(&answered.body).expect("an answer is JSON");
        assert_eq!(answer["response"]["allowed"], json!(true));
        let Some(text) = answer["response"]["patch"].as_str() else { return Verdict::Accepted };
        let patch =
            codec::read_value(&STANDARD.decode(text).expect("base64")).expect("a patch is JSON");
        let mut object = codec::read(body)
            .expect("it was read")
            .document
            .remove(&["request", "object"])
            .expect("what is patched is there");
        json_patch(&mut object, &patch).expect("the patch fits");
        let object = Document::from_value(object).expect("an object stays one");
        // An update without changes keeps what was stored, even if malformed; anything else has
        // ids.
        assert!(
            ALL.iter().any(|key| object.annotation(key).is_some())
                || patch.to_string().contains("\"remove\""),
            "{patch}"
        );
        Verdict::Accepted
    });
}
