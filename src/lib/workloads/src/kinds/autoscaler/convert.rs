//! Conversion between v1 and v2. Fields that v1 lacks are JSON in annotations: metrics other than
//! CPU utilization, behavior, and the status of metrics and conditions.

use ferrokube_apimachinery::document::{Document, Map, Text, Value, json};
use ferrokube_apimachinery::json as codec;

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
/// Annotation keys in lower case; matched case-insensitively.
pub(crate) const ALL: [&str; 4] = [METRICS, BEHAVIOR, CURRENT, CONDITIONS];
/// Default target utilization, in percent.
const DEFAULT_UTILIZATION: i64 = 80;
const UTILIZATION: &str = "targetCPUUtilizationPercentage";
const CURRENT_UTILIZATION: &str = "currentCPUUtilizationPercentage";

/// Name of a source in the form of v1 and of v2: (v1, v2) names of fields.
const SPEC_FIELDS: [(&str, &str); 4] = [
    ("targetAverageUtilization", "averageUtilization"),
    ("targetAverageValue", "averageValue"),
    ("targetValue", "value"),
    ("averageValue", "averageValue"),
];
const STATUS_FIELDS: [(&str, &str); 4] = [
    ("currentAverageUtilization", "averageUtilization"),
    ("currentAverageValue", "averageValue"),
    ("currentValue", "value"),
    ("averageValue", "averageValue"),
];
const SOURCES: [&str; 5] = ["external", "object", "pods", "resource", "containerResource"];

fn take_annotations(object: &mut Document) -> Vec<(&'static str, Value)> {
    let Some(annotations) =
        object.get_mut(&["metadata", "annotations"]).and_then(Value::as_object_mut)
    else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for name in ALL {
        let key = annotations.keys().find(|key| key.eq_ignore_ascii_case(name)).cloned();
        let Some(text) = key.and_then(|key| annotations.remove(&key)) else { continue };
        let text = text.as_str().unwrap_or_default();
        found.extend(codec::read_value(text.as_bytes()).ok().map(|value| (name, value)));
    }
    if annotations.is_empty() {
        object.remove(&["metadata", "annotations"]);
    }
    found
}

fn list(value: Option<&Value>) -> Vec<Value> {
    value.and_then(Value::as_array).map(|list| list.iter().cloned().collect()).unwrap_or_default()
}

/// The metric of the CPU utilization.
fn utilization(percent: i64) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}})
}

/// An object of v1 without metrics scales by its CPU utilization.
pub(super) fn default_v1(object: &mut Document) {
    let path = ["spec", UTILIZATION];
    if !object.get(&["spec"]).is_some_and(Value::is_object)
        || object.get(&path).is_some_and(|value| !value.is_null())
    {
        return;
    }
    let annotations = object.get(&["metadata", "annotations"]).and_then(Value::as_object);
    let metrics = annotations
        .and_then(|all| all.iter().find(|(key, _)| key.eq_ignore_ascii_case(METRICS)))
        .and_then(|(_, text)| codec::read_value(text.as_str()?.as_bytes()).ok());
    if list(metrics.as_ref()).is_empty() {
        object.set(&path, DEFAULT_UTILIZATION);
    }
}

/// From v1, in place.
pub(super) fn to_v2(object: &mut Document) {
    // Zero is not written in v2.
    let current = ["status", "currentReplicas"];
    if object.get(&current).and_then(Value::as_i64) == Some(0) {
        object.remove(&current);
    }
    let kept = take_annotations(object);
    let kept = |name: &str| kept.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
    let mut metrics: Vec<Value> = list(kept(METRICS)).iter().map(spec_to_v2).collect();
    if let Some(percent) = object.remove(&["spec", UTILIZATION]).and_then(|value| value.as_i64()) {
        metrics.push(utilization(percent));
    }
    if metrics.is_empty() {
        metrics.push(utilization(DEFAULT_UTILIZATION));
    }
    object.set(&["spec", "metrics"], metrics);
    if let Some(behavior) = kept(BEHAVIOR).filter(|value| value.is_object()) {
        object.set(&["spec", "behavior"], lower_fields(behavior));
    }
    let percent = object.remove(&["status", CURRENT_UTILIZATION]).and_then(|value| value.as_i64());
    let mut current: Vec<Value> = list(kept(CURRENT)).iter().map(status_to_v2).collect();
    if let Some(percent) = percent.filter(|_| current.is_empty()) {
        current.push(json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": percent}}}));
    }
    if object.get(&["status"]).is_some() || !current.is_empty() {
        let list = if current.is_empty() { Value::Null } else { Value::from(current) };
        object.set(&["status", "currentMetrics"], list);
    }
    if let Some(conditions) = kept(CONDITIONS).filter(|value| value.is_array()) {
        object.set(&["status", "conditions"], conditions.clone());
    }
}

/// From v2, in place.
pub(super) fn to_v1(object: &mut Document) {
    take_annotations(object);
    let metrics = object.remove(&["spec", "metrics"]);
    let mut others = Vec::new();
    let mut percent = None;
    for metric in list(metrics.as_ref()) {
        match cpu_utilization(&metric, "target") {
            Some(value) => percent = percent.or(Some(value)),
            None => others.push(spec_to_v1(&metric)),
        }
    }
    if let Some(percent) = percent {
        object.set(&["spec", UTILIZATION], percent);
    }
    annotate(object, METRICS, (!others.is_empty()).then(|| Value::from(others)));
    let behavior = object.remove(&["spec", "behavior"]).filter(|value| !value.is_null());
    annotate(object, BEHAVIOR, behavior.as_ref().map(internal_behavior));
    let current = object.remove(&["status", "currentMetrics"]);
    let current = list(current.as_ref());
    if let Some(percent) = current.iter().find_map(|metric| cpu_utilization(metric, "current")) {
        object.set(&["status", CURRENT_UTILIZATION], percent);
    }
    let shown: Vec<Value> = current.iter().map(status_to_v1).collect();
    annotate(object, CURRENT, (!shown.is_empty()).then(|| Value::from(shown)));
    let replicas = ["status", "currentReplicas"];
    if object.get(&["status"]).is_some_and(Value::is_object) && object.get(&replicas).is_none() {
        // Only v1 shows none.
        object.set(&replicas, 0);
    }
    let conditions = object.remove(&["status", "conditions"]);
    annotate(object, CONDITIONS, conditions.filter(|value| !list(Some(value)).is_empty()));
}

/// Fields in the order in which Go encodes them.
const ORDER: &[&str] = &[
    "type",
    "status",
    "lastTransitionTime",
    "reason",
    "message",
    "object",
    "pods",
    "resource",
    "containerResource",
    "external",
    "target",
    "kind",
    "name",
    "apiVersion",
    "metricName",
    "metricSelector",
    "targetValue",
    "targetAverageUtilization",
    "targetAverageValue",
    "currentValue",
    "currentAverageUtilization",
    "currentAverageValue",
    "selector",
    "averageValue",
    "container",
    "ScaleUp",
    "ScaleDown",
    "StabilizationWindowSeconds",
    "SelectPolicy",
    "Policies",
    "Tolerance",
    "Type",
    "Value",
    "PeriodSeconds",
];

/// JSON with the fields in [`ORDER`].
fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let rank = |name: &str| ORDER.iter().position(|known| *known == name);
            let mut fields: Vec<(&Text, &Value)> = map.iter().collect();
            fields.sort_by_key(|(name, _)| rank(name).unwrap_or(ORDER.len()));
            let mut separator = '{';
            for (name, value) in fields {
                out.push(separator);
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                write(value, out);
                separator = ',';
            }
            out.push_str(if map.is_empty() { "{}" } else { "}" });
        }
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

fn annotate(object: &mut Document, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        let mut text = String::new();
        write(&value, &mut text);
        object.set(&["metadata", "annotations", name], text);
    }
}

fn cpu_utilization(metric: &Value, field: &str) -> Option<i64> {
    let resource = metric.get("resource").filter(|_| is_type(metric, "Resource"))?;
    let is_cpu = resource.get("name").and_then(Value::as_str) == Some("cpu");
    resource.get(field)?.get("averageUtilization").filter(|_| is_cpu)?.as_i64()
}

fn is_type(metric: &Value, kind: &str) -> bool {
    metric.get("type").and_then(Value::as_str) == Some(kind)
}

fn with_source(metric: &Value, rewrite: impl Fn(&str, &Map) -> Map) -> Value {
    let Some(fields) = metric.as_object() else { return metric.clone() };
    let rewritten = |(name, value): (&Text, &Value)| {
        let value = match value.as_object() {
            Some(source) if SOURCES.contains(&name.as_str()) => {
                Value::Object(rewrite(name, source))
            }
            _ => value.clone(),
        };
        (name.clone(), value)
    };
    Value::Object(fields.iter().map(rewritten).collect())
}

/// Fields of a source that identify the metric: (v1, v2 path).
fn identify_v1(name: &str, source: &Map, out: &mut Map) {
    let mut copy = |field: &str, value: Option<&Value>| {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            out.insert(field, value.clone());
        }
    };
    copy("name", source.get("name"));
    copy("container", source.get("container"));
    let metric = source.get("metric");
    copy("metricName", metric.and_then(|metric| metric.get("name")));
    let selector = if name == "external" { "metricSelector" } else { "selector" };
    copy(selector, metric.and_then(|metric| metric.get("selector")));
    if name == "object" {
        copy("target", source.get("describedObject"));
    }
}

fn identify_v2(name: &str, source: &Map, out: &mut Map) {
    for field in ["name", "container"] {
        if let Some(value) = source.get(field) {
            out.insert(field, value.clone());
        }
    }
    if matches!(name, "external" | "object" | "pods") {
        let metric_name = source.get("metricName").cloned().unwrap_or_else(|| Value::from(""));
        let mut metric = json!({"name": metric_name});
        let selector = source.get("selector").or_else(|| source.get("metricSelector"));
        if let (Some(fields), Some(selector)) = (metric.as_object_mut(), selector) {
            fields.insert("selector", selector.clone());
        }
        out.insert("metric", metric);
    }
    if name == "object"
        && let Some(target) = source.get("target")
    {
        out.insert("describedObject", target.clone());
    }
}

fn to_v1_fields(metric: &Value, inner: &str, fields: &[(&str, &str)]) -> Value {
    with_source(metric, |name, source| {
        let mut out = Map::new();
        identify_v1(name, source, &mut out);
        let values = source.get(inner).and_then(Value::as_object);
        for (old, new) in fields {
            // The average of an object has the name of v2.
            let is_plain = *old == *new;
            if is_plain != (name == "object") && *new == "averageValue" {
                continue;
            }
            if let Some(value) =
                values.and_then(|values| values.get(new)).filter(|value| !value.is_null())
            {
                out.insert(*old, value.clone());
            }
        }
        if name == "object" {
            let required = if inner == "target" { "targetValue" } else { "currentValue" };
            if !out.contains_key(required) {
                out.insert(required, Value::from("0"));
            }
        }
        out
    })
}

fn spec_to_v1(metric: &Value) -> Value {
    to_v1_fields(metric, "target", &SPEC_FIELDS)
}

fn status_to_v1(metric: &Value) -> Value {
    let mut converted = to_v1_fields(metric, "current", &STATUS_FIELDS);
    for source in ["resource", "containerResource", "pods"] {
        if let Some(fields) = converted.get_mut(source).and_then(Value::as_object_mut)
            && !fields.contains_key("currentAverageValue")
        {
            fields.insert("currentAverageValue", Value::from("0"));
        }
    }
    converted
}

fn values_v2(name: &str, source: &Map, fields: &[(&str, &str)]) -> Map {
    let mut out = Map::new();
    for (old, new) in fields {
        if let Some(value) = source.get(old).filter(|value| !value.is_null()) {
            let is_zero = name == "object"
                && *old == "targetValue"
                && source.contains_key("averageValue")
                && value.as_str() == Some("0");
            if !is_zero {
                out.insert(*new, value.clone());
            }
        }
    }
    out
}

fn spec_to_v2(metric: &Value) -> Value {
    with_source(metric, |name, source| {
        let mut out = Map::new();
        identify_v2(name, source, &mut out);
        let mut target = values_v2(name, source, &SPEC_FIELDS);
        let kind = match name {
            "resource" | "containerResource" if target.contains_key("averageUtilization") => {
                "Utilization"
            }
            "external" if target.contains_key("value") => "Value",
            "object" if !target.contains_key("averageValue") => "Value",
            _ => "AverageValue",
        };
        target.insert("type", kind.into());
        out.insert("target", Value::Object(target));
        out
    })
}

fn status_to_v2(metric: &Value) -> Value {
    with_source(metric, |name, source| {
        let mut out = Map::new();
        identify_v2(name, source, &mut out);
        out.insert("current", Value::Object(values_v2(name, source, &STATUS_FIELDS)));
        out
    })
}

/// The annotation is an encoding of Go's internal type, with all of its fields.
fn internal_behavior(behavior: &Value) -> Value {
    let mut made = upper_fields(behavior);
    for direction in ["ScaleUp", "ScaleDown"] {
        let Some(rules) = made.get_mut(direction).and_then(Value::as_object_mut) else { continue };
        for field in ["StabilizationWindowSeconds", "SelectPolicy", "Policies", "Tolerance"] {
            rules.entry(field).or_insert_with(|| Value::Null);
        }
    }
    made
}

fn upper_fields(value: &Value) -> Value {
    renamed(value, |name| name[..1].to_ascii_uppercase() + &name[1..])
}

fn lower_fields(value: &Value) -> Value {
    renamed(value, |name| name[..1].to_ascii_lowercase() + &name[1..])
}

fn renamed(value: &Value, rename: fn(&str) -> String) -> Value {
    match value {
        Value::Object(map) => {
            let named = map.iter().filter(|(name, value)| {
                !name.is_empty() && name.is_char_boundary(1) && !value.is_null()
            });
            Value::Object(
                named
                    .map(|(name, value)| (Text::from(rename(name)), renamed(value, rename)))
                    .collect(),
            )
        }
        Value::Array(items) => {
            Value::from(items.iter().map(|item| renamed(item, rename)).collect::<Vec<_>>())
        }
        other => other.clone(),
    }
}
