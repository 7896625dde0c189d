//! HorizontalPodAutoscaler: stored as v2; v1 has the fields that it lacks in annotations.

mod convert;

pub(crate) use convert::ALL as IN_ANNOTATIONS;

use crate::cells::{CellValue, at, list_at, plain_text, str_at};
use crate::checks::text;
use crate::hooks::KindCode;
use ferrokube_apimachinery::document::{Document, Value};
use std::time::SystemTime;

#[derive(Debug)]
pub(crate) struct Autoscaler;

/// Max metrics shown in a cell.
const SHOWN: usize = 2;
const UNKNOWN: &str = "<unknown>";

impl KindCode for Autoscaler {
    fn default(&self, version: &str, object: &mut Document) {
        if version == "v1" {
            convert::default_v1(object);
        }
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        CellValue::text(match word {
            "reference" => {
                let target = |field: &str| str_at(object, &["spec", "scaleTargetRef", field]);
                format!("{}/{}", target("kind"), target("name"))
            }
            _ => targets(object),
        })
    }

    fn to_storage(&self, _version: &str, object: &mut Document) {
        convert::to_v2(object);
    }

    fn from_storage(&self, _version: &str, object: &mut Document) {
        convert::to_v1(object);
    }
}

fn targets(object: &Value) -> String {
    let mut converted = Document::default();
    let object = match str_at(object, &["apiVersion"]) {
        "autoscaling/v1" => {
            converted.fields_mut().append(&mut object.as_object().cloned().unwrap_or_default());
            convert::to_v2(&mut converted);
            &converted.into_value()
        }
        _ => object,
    };
    let specs = list_at(object, &["spec", "metrics"]);
    let current = list_at(object, &["status", "currentMetrics"]);
    if specs.is_empty() {
        return "<none>".to_owned();
    }
    let metric = |(index, spec): (usize, &Value)| shown(spec, current.get(index));
    let all: Vec<String> = specs.iter().enumerate().map(metric).collect();
    let first = all[..all.len().min(SHOWN)].join(", ");
    if all.len() > SHOWN { format!("{first} + {} more...", all.len() - SHOWN) } else { first }
}

fn shown(spec: &Value, current: Option<&Value>) -> String {
    let source = match text(spec, "type") {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let target =
        |field: &str| at(spec, &[source, "target", field]).filter(|value| !value.is_null());
    let now = |field: &str| match plain_text(
        current.and_then(|current| at(current, &[source, "current", field])),
    ) {
        text if text.is_empty() => None,
        text => Some(text),
    };
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.to_owned());
    let average = target("averageValue").map(|value| plain_text(Some(value)));
    match (source, average) {
        ("resource" | "containerResource", average) => {
            let name = str_at(spec, &[source, "name"]);
            if let Some(average) = average {
                return format!("{name}: {}/{average}", or_unknown(now("averageValue")));
            }
            let percent = |text: String| format!("{text}%");
            let wanted = target("averageUtilization").map(|value| plain_text(Some(value)));
            let wanted = wanted.map_or_else(|| "<auto>".to_owned(), percent);
            format!("{name}: {}/{wanted}", or_unknown(now("averageUtilization").map(percent)))
        }
        ("pods", average) => {
            format!("{}/{}", or_unknown(now("averageValue")), average.unwrap_or_default())
        }
        (_, Some(average)) => format!("{}/{average} (avg)", or_unknown(now("averageValue"))),
        (_, None) => format!("{}/{}", or_unknown(now("value")), plain_text(target("value"))),
    }
}
