//! Status conditions of objects written by subresources.

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::time::rfc3339_seconds;
use std::time::SystemTime;

const CONDITIONS: [&str; 2] = ["status", "conditions"];

/// The status of a condition; empty if absent.
pub(crate) fn status<'a>(object: &'a Document, kind: &str) -> &'a str {
    find(object, kind).and_then(|found| found.get("status")?.as_str()).unwrap_or_default()
}

/// A condition by its type.
pub(crate) fn find<'a>(object: &'a Document, kind: &str) -> Option<&'a Value> {
    object.list(&CONDITIONS).iter().find(|one| is_of(one, kind))
}

fn is_of(condition: &Value, kind: &str) -> bool {
    condition.get("type").and_then(Value::as_str) == Some(kind)
}

/// Sets a condition. `lastTransitionTime` changes only with the status.
///
/// # Panics
/// If the condition is not an object with a type.
pub(crate) fn set(object: &mut Document, mut condition: Value, now: SystemTime) {
    let mut all = object.list(&CONDITIONS).to_vec();
    let kind = condition.get("type").and_then(Value::as_str).expect("has a type").to_owned();
    let at = all.iter().position(|one| is_of(one, &kind));
    let same = at.map(|at| &all[at]).filter(|old| old.get("status") == condition.get("status"));
    let since = same.and_then(|old| old.get("lastTransitionTime")).filter(|time| !time.is_null());
    let since = since.cloned().unwrap_or_else(|| Value::from(rfc3339_seconds(now)));
    condition.as_object_mut().expect("an object").insert("lastTransitionTime", since);
    match at {
        Some(at) => all[at] = condition,
        None => all.push(condition),
    }
    object.set(&CONDITIONS, Value::Array(all.into_iter().collect()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let mut object = Document::new();
        let mut write = |status: &str, seconds| {
            let now = UNIX_EPOCH + Duration::from_secs(seconds);
            set(&mut object, json!({"type": "Ready", "status": status}), now);
            let of = |field: &str| find(&object, "Ready").unwrap().get(field).cloned().unwrap();
            (of("status"), of("lastTransitionTime"))
        };
        assert_eq!(write("False", 1), (json!("False"), json!("1970-01-01T00:00:01Z")));
        assert_eq!(write("True", 2), (json!("True"), json!("1970-01-01T00:00:02Z")));
        assert_eq!(write("True", 3), (json!("True"), json!("1970-01-01T00:00:02Z")));
        assert_eq!(object.list(&CONDITIONS).len(), 1);
    }
}
