//! Standard forms of the ids, for programs that only know OpenTelemetry: the initial id as a member
//! of W3C baggage, and the annotation of KEP-5915.
//!
//! Off by default (gate `LogTrackingInterop`): client libraries forward baggage anywhere, and
//! any user who may write the object may write the annotation.

use crate::context::TraceContext;
use crate::id::InitialTraceId;
use std::sync::atomic::{AtomicBool, Ordering};

/// The header (W3C Baggage).
pub const BAGGAGE: &str = "baggage";
/// The baggage member with the initial trace id.
pub const MEMBER: &str = "initial-trace-id";
/// KEP-5915's annotation with the span that last changed an object.
pub const TRACEPARENT_ANNOTATION: &str = "tracing.k8s.io/traceparent";

/// Max bytes of a request's baggage; more is ignored.
const MAX_BYTES: usize = 8192;
/// Max members of a request's baggage; more are ignored.
const MAX_MEMBERS: usize = 180;

/// Per process, like span export: every component injects and extracts.
static ON: AtomicBool = AtomicBool::new(false);

/// Turns the forms on for the rest of the process.
pub fn turn_on() {
    ON.store(true, Ordering::Relaxed);
}

/// Whether they are on.
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The initial id in `baggage` headers; `None` if absent, malformed or repeated, or if the baggage
/// is too large.
pub fn initial_of<'a>(values: impl IntoIterator<Item = &'a str>) -> Option<InitialTraceId> {
    let (mut bytes, mut members, mut found) = (0, 0, None);
    for value in values {
        bytes += value.len();
        if bytes > MAX_BYTES {
            return None;
        }
        for member in value.split(',') {
            members += 1;
            if members > MAX_MEMBERS {
                return None;
            }
            let Some(text) = value_of(member) else { continue };
            if found.is_some() {
                return None;
            }
            found = Some(text.parse().ok()?);
        }
    }
    found
}

/// The value of our member, without its properties.
fn value_of(member: &str) -> Option<&str> {
    let (key, value) = member.split(';').next()?.split_once('=')?;
    (key.trim() == MEMBER).then(|| value.trim())
}

/// A `baggage` header with the initial id added; foreign members stay if both fit.
pub fn with_initial(existing: Option<&str>, initial: InitialTraceId) -> String {
    let ours = format!("{MEMBER}={initial}");
    let others = existing
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|member| !member.is_empty() && value_of(member).is_none());
    let mut all: Vec<&str> = others.take(MAX_MEMBERS - 1).collect();
    all.push(&ours);
    let whole = all.join(",");
    if whole.len() > MAX_BYTES { existing.unwrap_or_default().to_owned() } else { whole }
}

/// The span in KEP-5915's annotation.
pub(crate) fn annotated(text: &str) -> Option<TraceContext> {
    TraceContext::parse_traceparent(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn d2_the_initial_id_is_found_among_other_members() {
        for values in [
            vec![format!("initial-trace-id={ID}")],
            vec![format!("a=b, initial-trace-id = {ID} ;p=1;q,c=d")],
            vec!["a=b".to_owned(), format!("x=y,initial-trace-id={ID}")],
        ] {
            assert_eq!(
                initial_of(values.iter().map(String::as_str)).unwrap().to_string(),
                ID,
                "{values:?}"
            );
        }
        let twice = format!("initial-trace-id={ID},initial-trace-id={ID}");
        let long = format!("a={},initial-trace-id={ID}", "x".repeat(MAX_BYTES));
        let many = format!("{}initial-trace-id={ID}", "a=b,".repeat(MAX_MEMBERS));
        for value in [
            "",
            "initial-trace-id",
            "initial-trace-id=",
            "initial-trace-id=junk",
            "Initial-Trace-Id=1",
            &twice,
            &long,
            &many,
            "=,;=,",
        ] {
            assert_eq!(initial_of([value]), None, "{value:.60}");
        }
    }

    #[test]
    fn foreign_baggage_members_stay() {
        let id: InitialTraceId = ID.parse().unwrap();
        assert_eq!(with_initial(None, id), format!("initial-trace-id={ID}"));
        assert_eq!(
            with_initial(Some("a=b;p, c=d,initial-trace-id=old"), id),
            format!("a=b;p,c=d,initial-trace-id={ID}")
        );
        let full = format!("a={}", "x".repeat(MAX_BYTES - 2));
        assert_eq!(with_initial(Some(&full), id), full);
        assert_eq!(initial_of([with_initial(Some("a=b"), id).as_str()]), Some(id));
    }

    #[test]
    fn d3_kep_5915s_annotation_is_a_traceparent() {
        let context = annotated("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        assert_eq!(
            (context.trace_id.to_string().as_str(), context.sampled(), context.initial),
            ("4bf92f3577b34da6a3ce929d0e0e4736", true, None)
        );
        assert_eq!(annotated("edited by hand"), None);
    }
}
