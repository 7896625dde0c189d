//! The AdmissionReview returned by a webhook. Untrusted input.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::{Array, Document, Value};
use ferrokube_apimachinery::field::{cut, quote};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::name::qualified_name;
use ferrokube_apimachinery::status::{Cause, Details, Failure, Reason};
use ferrokube_registry::RequestContext;

/// Max warnings of an answer. Together with all others of the request they are bounded once more.
const WARNINGS: usize = 256;
/// Max audit annotations of an answer, and bytes of one's value.
const ANNOTATIONS: usize = 32;
const ANNOTATION_BYTES: usize = 10 * 1024;
/// Max bytes of a denial's message, and causes.
const MESSAGE_BYTES: usize = 32 * 1024;
const CAUSES: usize = 100;

/// A valid answer.
#[derive(Debug, Default)]
pub(super) struct ReviewAnswer {
    pub(super) allowed: bool,
    /// Operations of a JSON patch; empty for none.
    pub(super) patch: Vec<u8>,
    pub(super) patch_type: String,
    result: Option<Value>,
    warnings: Vec<String>,
    annotations: Vec<(String, String)>,
}

/// Reads an answer to the review with this uid, in its version.
///
/// # Errors
/// Why it is invalid, with kube-apiserver's message.
pub(super) fn read(
    bytes: &[u8],
    uid: &str,
    version: &str,
    mutates: bool,
) -> Result<ReviewAnswer, String> {
    let failed = |why: &str| format!("failed to call webhook: {why}");
    let invalid = |why: String| format!("received invalid webhook response: {why}");
    let read = json::read(bytes).map_err(|_| failed("the answer is no JSON object"))?;
    let mut review = read.document;
    let group = review.api_version().strip_prefix("admission.k8s.io/");
    if review.kind() != "AdmissionReview" || !matches!(group, Some("v1" | "v1beta1")) {
        return Err(failed("the answer is no AdmissionReview"));
    }
    let is_strict = version == "v1";
    let given = format!("{}, Kind={}", review.api_version(), review.kind());
    let same_version = group == Some(version);
    let Some(Value::Object(response)) = review.remove(&["response"]) else {
        return Err(invalid("webhook response was absent".to_owned()));
    };
    let response = Document::from(response);
    let given_uid = response.str(&["uid"]).unwrap_or_default();
    if is_strict && given_uid != uid {
        let given_uid = quote(&cut(given_uid.to_owned(), 256));
        return Err(invalid(format!("expected response.uid={uid:?}, got {given_uid}")));
    }
    if is_strict && !same_version {
        return Err(invalid(format!(
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {given}"
        )));
    }
    let (patch, patch_type) =
        patch(&response, is_strict, mutates).map_err(|why| match why.strip_prefix('!') {
            Some(why) => failed(why),
            None => invalid(why),
        })?;
    let texts = |field: &str| response.list(&[field]).iter().filter_map(Value::as_str);
    let annotations = response.get(&["auditAnnotations"]).and_then(Value::as_object);
    Ok(ReviewAnswer {
        allowed: response.get(&["allowed"]).and_then(Value::as_bool).unwrap_or(false),
        patch,
        patch_type,
        result: response.get(&["status"]).filter(|status| status.is_object()).cloned(),
        warnings: texts("warnings").take(WARNINGS).map(str::to_owned).collect(),
        annotations: annotations
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.to_string(), value.as_str()?.to_owned())))
            .filter(|(_, value)| value.len() <= ANNOTATION_BYTES)
            .take(ANNOTATIONS)
            .collect(),
    })
}

/// The patch and its type. An error that begins with `!` is one of decoding.
fn patch(response: &Document, is_strict: bool, mutates: bool) -> Result<(Vec<u8>, String), String> {
    let none = Ok((Vec::new(), String::new()));
    let patch = bytes(response.get(&["patch"]))
        .ok_or_else(|| "!the answer's patch is not base64".to_owned())?;
    let given = response.get(&["patchType"]).filter(|given| !given.is_null());
    if !is_strict {
        // In v1beta1 the type may be missing or arbitrary.
        let used = mutates && !patch.is_empty();
        return if used { Ok((patch, "JSONPatch".to_owned())) } else { none };
    }
    let wrong = |why: &str| Err(why.to_owned());
    match (mutates, patch.is_empty(), given.and_then(Value::as_str)) {
        (false, false, _) => wrong("validating webhook may not return response.patch"),
        (false, true, Some(_)) => wrong("validating webhook may not return response.patchType"),
        (true, false, None) => wrong("webhook returned response.patch but not response.patchType"),
        (true, true, Some(_)) => {
            wrong("webhook returned response.patchType but not response.patch")
        }
        (true, false, Some("")) => wrong("webhook returned invalid response.patchType of \"\""),
        (true, false, Some(given)) => Ok((patch, cut(given.to_owned(), 256))),
        (_, true, None) => none,
    }
}

/// Bytes as Go reads them from JSON: base64, or a list of numbers, which is what webhooks made with
/// kube-rs send.
fn bytes(value: Option<&Value>) -> Option<Vec<u8>> {
    match value {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::String(text)) => STANDARD.decode(&**text).ok(),
        Some(Value::Array(numbers)) => {
            numbers.iter().map(|number| u8::try_from(number.as_u64()?).ok()).collect()
        }
        Some(_) => None,
    }
}

impl ReviewAnswer {
    /// Passes warnings and audit annotations on.
    pub(super) fn note(&mut self, context: &RequestContext, webhook: &str) {
        self.warnings.drain(..).for_each(|warning| context.warn(warning));
        for (key, value) in self.annotations.drain(..) {
            let key = format!("{webhook}/{key}");
            if qualified_name(&key).is_empty() {
                context.annotate_audit_once(key, value);
            }
        }
    }

    /// The denial's Status.
    pub(super) fn denial(&self, webhook: &str) -> Failure {
        let denied_by = format!("admission webhook {} denied the request", quote(webhook));
        let nothing = Value::Null;
        let result = self.result.as_ref().unwrap_or(&nothing);
        let text = |value: &Value, field: &str| {
            let text = value.get(field).and_then(Value::as_str).unwrap_or_default();
            cut(text.to_owned(), MESSAGE_BYTES)
        };
        let (message, reason) = (text(result, "message"), text(result, "reason"));
        let message = match (message.as_str(), reason.as_str()) {
            ("", "") => format!("{denied_by} without explanation"),
            ("", reason) => format!("{denied_by}: {reason}"),
            (message, _) => format!("{denied_by}: {message}"),
        };
        let code = match result.get("code").and_then(Value::as_i64).unwrap_or(0) {
            code @ 400..=599 => u16::try_from(code).unwrap_or(400),
            code if code < 400 => 400,
            _ => 500,
        };
        let details = result.get("details").filter(|details| details.is_object());
        let details = details.map(|details| Details {
            name: text(details, "name"),
            group: text(details, "group"),
            kind: text(details, "kind"),
            uid: text(details, "uid"),
            causes: details
                .get("causes")
                .and_then(Value::as_array)
                .map_or(&[][..], Array::as_slice)
                .iter()
                .take(CAUSES)
                .map(|cause| Cause {
                    reason: text(cause, "reason"),
                    message: text(cause, "message"),
                    field: text(cause, "field"),
                })
                .collect(),
            retry_after_seconds: details
                .get("retryAfterSeconds")
                .and_then(Value::as_u64)
                .and_then(|seconds| u32::try_from(seconds).ok())
                .unwrap_or(0),
        });
        let other_reason = Some(reason.into_boxed_str());
        Failure { details, other_reason, reason: None::<Reason>, ..Failure::bare(code, message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn answer(version: &str, response: &Value) -> Vec<u8> {
        let api_version = format!("admission.k8s.io/{version}");
        json::to_vec(&json!({"kind": "AdmissionReview", "apiVersion": api_version,
            "response": response}))
    }

    fn why(version: &str, response: &Value, mutates: bool) -> String {
        read(&answer(version, response), "u", version, mutates).expect_err("it is invalid")
    }

    #[test]
    fn fault_33_lies_are_refused() {
        let lies = [
            (json!({"uid": "x"}), "expected response.uid=\"u\", got \"x\""),
            (json!({"uid": "u", "patch": "W10="}), "but not response.patchType"),
            (json!({"uid": "u", "patchType": "JSONPatch"}), "but not response.patch"),
            (json!({"uid": "u", "patch": "?"}), "not base64"),
            (json!({"uid": "u", "patch": [91, 256]}), "not base64"),
            (json!({"uid": "u", "patch": {}}), "not base64"),
        ];
        for (lie, want) in lies {
            let why = why("v1", &lie, true);
            assert!(why.contains(want), "{why}");
        }
        let patch = json!({"uid": "u", "patch": "W10=", "patchType": "JSONPatch"});
        assert!(why("v1", &patch, false).contains("validating webhook may not return"));
        for garbage in ["", "<html>", "{}", "[]", "{\"kind\":\"AdmissionReview\"}"] {
            let why = read(garbage.as_bytes(), "u", "v1", true).expect_err("it is garbage");
            assert!(why.starts_with("failed to call webhook: "), "{why}");
        }
    }

    #[test]
    fn a_patch_may_be_a_list_of_bytes() {
        let response = json!({"uid": "u", "allowed": true, "patch": [91, 93],
            "patchType": "JSONPatch"});
        let read = read(&answer("v1", &response), "u", "v1", true).expect("valid");
        assert_eq!(read.patch, b"[]");
    }

    #[test]
    fn older_reviews_are_read_leniently() {
        let response = json!({"uid": "x", "allowed": true, "patch": "W10="});
        let read = read(&answer("v1beta1", &response), "u", "v1beta1", true).expect("valid");
        assert!(read.allowed);
        let other = super::read(&answer("v2", &response), "u", "v1beta1", true);
        assert_eq!(
            other.expect_err("a version that nobody knows"),
            "failed to call webhook: the answer is no AdmissionReview"
        );
        assert_eq!((read.patch.as_slice(), read.patch_type.as_str()), (&b"[]"[..], "JSONPatch"));
    }

    #[test]
    fn denials() {
        let denial = |status: Value| {
            let response = json!({"uid": "u", "allowed": false, "status": status});
            let read = read(&answer("v1", &response), "u", "v1", false).expect("valid");
            read.denial("h.example.com")
        };
        let by = "admission webhook \"h.example.com\" denied the request";
        for (status, code, message) in [
            (json!(null), 400, format!("{by} without explanation")),
            (json!({"code": 200, "message": "no"}), 400, format!("{by}: no")),
            (json!({"code": 409, "reason": "Own"}), 409, format!("{by}: Own")),
            (json!({"code": 99999}), 500, format!("{by} without explanation")),
        ] {
            let denial = denial(status);
            assert_eq!((denial.code, denial.message), (code, message));
        }
        let shown = denial(json!({"reason": "Own", "details": {"causes": [{"field": "f"}]}}));
        let shown = shown.to_document();
        assert_eq!(shown.str(&["reason"]), Some("Own"));
        assert_eq!(shown.list(&["details", "causes"]).len(), 1);
    }
}
