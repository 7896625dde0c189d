//! Encodes an event as a line of JSON, without building a document.

use super::event::{AuditEvent, AuditLevel, AuditObject, Outcome, Payload, TraceIds};
use super::policy::AuditPlan;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_apimachinery::{json, time};
use ferrokube_trace::annotation::{INITIAL_TRACE_ID, SPAN_ID, TRACE_ID};

/// Longest recorded `User-Agent`, in bytes.
pub const MAX_USER_AGENT: usize = 1_024;
/// Longest recorded request URI, in bytes.
pub const MAX_URI: usize = 1_024;
/// Longest recorded Status message, in bytes.
const MAX_MESSAGE: usize = 4_096;

/// Longest recorded name, in bytes; longer ones cannot be stored.
const MAX_NAME: usize = 1_024;
/// Larger Status details are left out.
const MAX_DETAILS: usize = 16_384;

/// Annotation of events whose objects were too large to record.
pub const TRUNCATED: &str = "audit.k8s.io/truncated";

/// Appends the event and a line feed. An event longer than `max_bytes` is written without its
/// objects, annotated [`TRUNCATED`].
pub(super) fn write(out: &mut Vec<u8>, event: &AuditEvent<'_>, plan: &AuditPlan, max_bytes: usize) {
    let start = out.len();
    append(out, event, plan, plan.level >= AuditLevel::Request, false);
    if out.len() - start > max_bytes && plan.level >= AuditLevel::Request {
        out.truncate(start);
        append(out, event, plan, false, true);
    }
    out.push(b'\n');
}

fn append(
    out: &mut Vec<u8>,
    event: &AuditEvent<'_>,
    plan: &AuditPlan,
    objects: bool,
    truncated: bool,
) {
    out.extend_from_slice(b"{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",\"level\":\"");
    out.extend_from_slice(plan.level.as_str().as_bytes());
    out.push(b'"');
    field(out, "auditID", event.id);
    field(out, "stage", event.stage.as_str());
    uri(out, event.uri);
    field(out, "verb", event.verb);
    user(out, "user", event.user);
    if let Some(impersonated) = event.impersonated {
        user(out, "impersonatedUser", impersonated);
    }
    if !event.constraint.is_empty() {
        begin_field(out, "authenticationMetadata");
        out.push(b'{');
        field(out, "impersonationConstraint", event.constraint);
        out.push(b'}');
    }
    strings(out, "sourceIPs", event.source_ips);
    optional(out, "userAgent", truncate_utf8(event.user_agent, MAX_USER_AGENT));
    if let Some(object) = &event.object {
        object_ref(out, object);
    }
    if let Some(outcome) = &event.outcome {
        self::outcome(out, outcome);
    }
    if objects {
        payload(out, "requestObject", event.request, plan);
        if plan.level >= AuditLevel::RequestResponse {
            payload(out, "responseObject", event.response, plan);
        }
    }
    field(out, "requestReceivedTimestamp", &time::rfc3339_micros(event.received));
    field(out, "stageTimestamp", &time::rfc3339_micros(event.at));
    annotations(out, event, truncated);
    out.push(b'}');
}

/// The request URI, with the values of token parameters redacted.
fn uri(out: &mut Vec<u8>, uri: &str) {
    let uri = truncate_utf8(uri, MAX_URI);
    let query = uri.split_once('?').map_or("", |(_, query)| query);
    if !query.contains("token=") {
        field(out, "requestURI", uri);
        return;
    }
    let path = &uri[..uri.len() - query.len()];
    let safe: Vec<String> = query.split('&').map(redact).collect();
    field(out, "requestURI", &format!("{path}{}", safe.join("&")));
}

fn redact(pair: &str) -> String {
    match pair.split_once('=') {
        Some((name, _)) if name.to_ascii_lowercase().ends_with("token") => {
            format!("{name}=REDACTED")
        }
        _ => pair.to_owned(),
    }
}

fn user(out: &mut Vec<u8>, name: &'static str, user: &UserInfo) {
    begin_field(out, name);
    out.push(b'{');
    optional(out, "username", &user.name);
    optional(out, "uid", &user.uid);
    strings(out, "groups", &user.groups);
    if !user.extra.is_empty() {
        begin_field(out, "extra");
        out.push(b'{');
        for (key, values) in &user.extra {
            begin_key(out, key);
            list(out, values);
        }
        out.push(b'}');
    }
    out.push(b'}');
}

fn object_ref(out: &mut Vec<u8>, object: &AuditObject<'_>) {
    begin_field(out, "objectRef");
    out.push(b'{');
    for (name, text) in [
        ("resource", object.resource),
        ("namespace", object.namespace),
        ("name", truncate_utf8(object.name, MAX_NAME)),
        ("uid", object.uid),
        ("apiGroup", object.group),
        ("apiVersion", object.version),
        ("resourceVersion", object.resource_version),
        ("subresource", object.subresource),
    ] {
        optional(out, name, text);
    }
    out.push(b'}');
}

fn outcome(out: &mut Vec<u8>, outcome: &Outcome<'_>) {
    begin_field(out, "responseStatus");
    out.extend_from_slice(b"{\"metadata\":{}");
    optional(out, "status", outcome.status);
    optional(out, "message", truncate_utf8(outcome.message, MAX_MESSAGE));
    optional(out, "reason", outcome.reason);
    if let Some(details) = outcome.details {
        let start = out.len();
        begin_field(out, "details");
        json::append(out, details);
        if out.len() - start > MAX_DETAILS {
            out.truncate(start);
        }
    }
    begin_field(out, "code");
    out.extend_from_slice(outcome.code.to_string().as_bytes());
    out.push(b'}');
}

fn payload(out: &mut Vec<u8>, name: &'static str, payload: Option<Payload<'_>>, plan: &AuditPlan) {
    let value = match payload {
        None => return,
        Some(Payload::Document(document)) => document.clone().into_value(),
        Some(Payload::Json(bytes)) => match json::read_value(bytes) {
            Ok(value) => value,
            Err(_) => return,
        },
    };
    let value = if plan.omit_managed_fields { without_managed_fields(value) } else { value };
    begin_field(out, name);
    json::append(out, &value);
}

/// Strips an object, the items of a list and the objects in the rows of a Table.
fn without_managed_fields(mut value: Value) -> Value {
    if let Some(Value::Array(items)) = value.get_mut("items") {
        items.iter_mut().for_each(drop_managed_fields);
    }
    if let Some(Value::Array(rows)) = value.get_mut("rows") {
        rows.iter_mut().filter_map(|row| row.get_mut("object")).for_each(drop_managed_fields);
    }
    drop_managed_fields(&mut value);
    value
}

fn drop_managed_fields(value: &mut Value) {
    if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
        metadata.remove("managedFields");
    }
}

fn annotations(out: &mut Vec<u8>, event: &AuditEvent<'_>, truncated: bool) {
    begin_field(out, "annotations");
    out.push(b'{');
    let (decision, reason) = event.decision;
    if !decision.is_empty() {
        field(out, "authorization.k8s.io/decision", decision);
        field(out, "authorization.k8s.io/reason", reason);
    }
    optional(out, "authentication.k8s.io/method", event.method);
    if let Some(trace) = &event.trace {
        trace_ids(out, trace);
    }
    if truncated && !event.annotations.contains_key(TRUNCATED) {
        field(out, TRUNCATED, "true");
    }
    for (key, text) in event.annotations {
        begin_key(out, key);
        json::append_string(out, text);
    }
    out.push(b'}');
}

fn trace_ids(out: &mut Vec<u8>, trace: &TraceIds) {
    plain(out, TRACE_ID, &trace.trace.hex());
    plain(out, SPAN_ID, &trace.span.hex());
    if let Some(initial) = &trace.initial {
        plain(out, INITIAL_TRACE_ID, &initial.hex());
    }
}

/// A field whose value needs no escaping.
fn plain(out: &mut Vec<u8>, name: &str, text: &str) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    for part in ["\"", name, "\":\"", text, "\""] {
        out.extend_from_slice(part.as_bytes());
    }
}

fn strings(out: &mut Vec<u8>, name: &'static str, texts: &[String]) {
    if !texts.is_empty() {
        begin_field(out, name);
        list(out, texts);
    }
}

fn list(out: &mut Vec<u8>, texts: &[String]) {
    out.push(b'[');
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        json::append_string(out, text);
    }
    out.push(b']');
}

fn optional(out: &mut Vec<u8>, name: &'static str, text: &str) {
    if !text.is_empty() {
        field(out, name, text);
    }
}

fn field(out: &mut Vec<u8>, name: &'static str, text: &str) {
    begin_field(out, name);
    json::append_string(out, text);
}

/// Writes the name of the next field, which needs no escaping, preceded by a comma unless it is the
/// object's first.
fn begin_field(out: &mut Vec<u8>, name: &'static str) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

/// The same for a key that is given.
fn begin_key(out: &mut Vec<u8>, key: &str) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    json::append_string(out, key);
    out.push(b':');
}

/// At most `max` bytes, cut at a character boundary.
pub fn truncate_utf8(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let mut end = max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{AuditStage, StageSet};
    use ferrokube_trace::SpanId;
    use std::collections::BTreeMap;
    use std::time::{Duration, SystemTime};

    fn line(plan: AuditPlan, change: impl FnOnce(&mut AuditEvent<'_>)) -> Value {
        let user = UserInfo {
            name: "a\"li\nce".into(),
            uid: "u".into(),
            groups: vec!["g".into()],
            extra: BTreeMap::from([("k".into(), vec!["v".into()])]),
        };
        let ips = ["10.0.0.1".to_owned()];
        let annotations = BTreeMap::from([("x".to_owned(), "y".to_owned())]);
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        let mut event = AuditEvent {
            id: "id-1",
            stage: AuditStage::ResponseComplete,
            uri: "/api/v1/x?token=canary&limit=1",
            verb: "create",
            user: &user,
            impersonated: None,
            constraint: "",
            method: "token-file",
            source_ips: &ips,
            user_agent: "kubectl",
            object: Some(AuditObject {
                resource: "configmaps",
                namespace: "n",
                version: "v1",
                ..AuditObject::default()
            }),
            outcome: Some(Outcome { code: 201, ..Outcome::default() }),
            request: Some(Payload::Json(b"{\"metadata\":{\"name\":\"n\",\"managedFields\":[]}}")),
            response: None,
            received: at,
            at,
            trace: Some(TraceIds {
                trace: "ab".repeat(16).parse().expect("an id"),
                span: SpanId::random(),
                initial: None,
            }),
            decision: ("allow", ""),
            annotations: &annotations,
        };
        change(&mut event);
        let mut out = Vec::new();
        write(&mut out, &event, &plan, 64 * 1024);
        assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 1, "one line");
        json::read_value(&out).expect("JSON")
    }

    fn metadata() -> AuditPlan {
        AuditPlan {
            level: AuditLevel::Metadata,
            omit: StageSet::default(),
            omit_managed_fields: true,
            refusals: false,
            rationed: false,
        }
    }

    #[test]
    fn fields_are_named_as_in_kube_apiserver() {
        let line = line(metadata(), |_| ());
        assert_eq!(line["kind"], "Event");
        assert_eq!(line["user"]["username"], "a\"li\nce");
        assert_eq!(line["user"]["extra"]["k"][0], "v");
        assert_eq!(line["objectRef"]["resource"], "configmaps");
        assert_eq!(line["responseStatus"]["code"], 201);
        assert_eq!(line["requestReceivedTimestamp"], "2023-11-14T22:13:20.123456Z");
        assert_eq!(line["annotations"]["trace.kubernetes.io/trace-id"], "ab".repeat(16));
        assert_eq!(line["annotations"]["authentication.k8s.io/method"], "token-file");
        assert_eq!(line["annotations"]["authorization.k8s.io/decision"], "allow");
        assert_eq!(line["annotations"]["x"], "y");
        assert!(
            line.get("requestObject").is_none() && line.get("authenticationMetadata").is_none()
        );
    }

    #[test]
    fn a_refusal_is_recorded_as_answered() {
        let details: &'static Value = Box::leak(Box::new(
            ferrokube_apimachinery::document::json!({"kind": "configmaps", "name": "n"}),
        ));
        let line = line(metadata(), |event| {
            event.outcome = Some(Outcome {
                code: 403,
                status: "Failure",
                reason: "Forbidden",
                message: "no",
                details: Some(details),
            });
            event.constraint = "impersonate:user-info";
        });
        let want = ferrokube_apimachinery::document::json!({"metadata": {}, "status": "Failure", "message": "no", "reason": "Forbidden", "details": details, "code": 403});
        assert_eq!(line["responseStatus"], want);
        assert_eq!(
            line["authenticationMetadata"],
            ferrokube_apimachinery::document::json!({"impersonationConstraint": "impersonate:user-info"})
        );
    }

    #[test]
    fn fault_55_client_input_cannot_make_a_line_long() {
        let long = "n".repeat(3_000_000);
        let details: &'static Value = Box::leak(Box::new(
            ferrokube_apimachinery::document::json!({"name": long, "kind": "configmaps"}),
        ));
        let line = line(metadata(), |event| {
            event.object = Some(AuditObject {
                resource: "configmaps",
                name: details["name"].as_str().expect("a name"),
                ..AuditObject::default()
            });
            event.outcome = Some(Outcome {
                code: 422,
                message: details["name"].as_str().expect("a name"),
                details: Some(details),
                ..Outcome::default()
            });
        });
        assert_eq!(line["objectRef"]["name"].as_str().expect("a name").len(), MAX_NAME);
        assert_eq!(line["responseStatus"]["code"], 422);
        assert!(line["responseStatus"].get("details").is_none() && line.to_string().len() < 8_192);
    }

    #[test]
    fn fault_54_token_parameters_are_not_recorded() {
        assert_eq!(line(metadata(), |_| ())["requestURI"], "/api/v1/x?token=REDACTED&limit=1");
    }

    #[test]
    fn request_level_has_the_object_without_managed_fields() {
        let plan = AuditPlan { level: AuditLevel::Request, ..metadata() };
        let line = line(plan, |_| ());
        assert_eq!(
            line["requestObject"],
            ferrokube_apimachinery::document::json!({"metadata": {"name": "n"}})
        );
    }

    #[test]
    fn fault_55_a_giant_object_is_left_out_with_an_annotation() {
        let big = format!("{{\"data\":\"{}\"}}", "x".repeat(100_000));
        let plan = AuditPlan { level: AuditLevel::Request, ..metadata() };
        let line = line(plan, |event| event.user_agent = "a");
        assert!(line["annotations"].get("audit.k8s.io/truncated").is_none());
        let mut out = Vec::new();
        let user = UserInfo::default();
        let annotations = BTreeMap::new();
        let event = AuditEvent {
            id: "i",
            stage: AuditStage::ResponseComplete,
            uri: "/",
            verb: "create",
            user: &user,
            impersonated: None,
            constraint: "",
            method: "",
            source_ips: &[],
            user_agent: &"u".repeat(100_000),
            object: None,
            outcome: None,
            request: Some(Payload::Json(big.as_bytes())),
            response: None,
            received: SystemTime::UNIX_EPOCH,
            at: SystemTime::UNIX_EPOCH,
            trace: None,
            decision: ("", ""),
            annotations: &annotations,
        };
        write(&mut out, &event, &plan, 64 * 1024);
        assert!(out.len() < 4_096);
        let line: Value = json::read_value(&out).expect("JSON");
        assert_eq!(line["annotations"]["audit.k8s.io/truncated"], "true");
    }
}
