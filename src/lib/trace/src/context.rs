//! The context that travels with a request or reconcile.

use crate::id::{InitialTraceId, SpanId, TraceId, decode};
use std::fmt;

/// Trace id, span id, flags and initial trace id of one action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The user's request behind this action.
    pub trace_id: TraceId,
    /// This action.
    pub span_id: SpanId,
    /// The action that caused it, when it belongs to the same trace.
    pub parent_span_id: Option<SpanId>,
    /// W3C flags; bit 0 is sampled.
    pub flags: u8,
    /// The object's family; `None` when the request named none.
    pub initial: Option<InitialTraceId>,
    /// The cause that was not trusted as a parent.
    pub link: Option<(TraceId, SpanId)>,
}

/// Longer headers are ignored; the version 00 form has 55 bytes.
const MAX_TRACEPARENT_BYTES: usize = 256;
/// The only flag that is read.
const SAMPLED: u8 = 1;

impl TraceContext {
    /// A new trace, not sampled, without a family.
    pub fn root() -> Self {
        Self {
            trace_id: TraceId::random(),
            span_id: SpanId::random(),
            parent_span_id: None,
            flags: 0,
            initial: None,
            link: None,
        }
    }

    /// A new action in the same trace and family, caused by this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { span_id: SpanId::random(), parent_span_id: Some(self.span_id), link: None, ..*self }
    }

    /// The same with a link to a cause that is not trusted as a parent.
    #[must_use]
    pub fn with_link(self, cause: &Self) -> Self {
        Self { link: Some((cause.trace_id, cause.span_id)), ..self }
    }

    /// The same in another family.
    #[must_use]
    pub fn with_initial(self, initial: Option<InitialTraceId>) -> Self {
        Self { initial, ..self }
    }

    /// The same, sampled or not.
    #[must_use]
    pub fn with_sampled(self, sampled: bool) -> Self {
        Self { flags: u8::from(sampled), ..self }
    }

    /// Whether the sampled flag is set.
    pub fn sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Reads the value of a `traceparent` header (W3C Trace Context, level 1): the sender's trace
    /// id, span id and flags.
    ///
    /// `None` for anything malformed: wrong lengths, upper-case digits, all-zero ids, version `ff`,
    /// trailing data in version 00, more than 256 bytes.
    pub fn parse_traceparent(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() < 55
            || bytes.len() > MAX_TRACEPARENT_BYTES
            || bytes[2] != b'-'
            || bytes[35] != b'-'
            || bytes[52] != b'-'
        {
            return None;
        }
        let [version] = decode::<1>(&bytes[..2])?;
        match version {
            0xff => return None,
            0 if bytes.len() != 55 => return None,
            // A later version may append fields, after a dash.
            _ if bytes.len() > 55 && bytes[55] != b'-' => return None,
            _ => {}
        }
        let trace_id = TraceId::from_bytes(decode(&bytes[3..35])?)?;
        let span_id = SpanId::from_bytes(decode(&bytes[36..52])?)?;
        let [flags] = decode::<1>(&bytes[53..55])?;
        Some(Self {
            trace_id,
            span_id,
            parent_span_id: None,
            flags: flags & SAMPLED,
            initial: None,
            link: None,
        })
    }

    /// The value of a `traceparent` header that makes this action the parent.
    pub fn traceparent(&self) -> String {
        let mut text = String::with_capacity(55);
        text.push_str("00-");
        text.push_str(&self.trace_id.hex());
        text.push('-');
        text.push_str(&self.span_id.hex());
        text.push_str(if self.sampled() { "-01" } else { "-00" });
        text
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.traceparent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn reads_and_writes_the_w3c_form() {
        let context = TraceContext::parse_traceparent(GOOD).unwrap();
        assert!(context.sampled());
        assert_eq!(context.traceparent(), GOOD);
        // Unknown flags are dropped; of later versions the known part is read.
        assert_eq!(TraceContext::parse_traceparent(&GOOD.replace("-01", "-fe")).unwrap().flags, 0);
        assert_eq!(
            TraceContext::parse_traceparent(&format!("cc{}-extra", &GOOD[2..])).unwrap().trace_id,
            context.trace_id
        );
    }

    #[test]
    fn l22_malformed_is_absent() {
        let long = format!("01{}-{}", &GOOD[2..], "x".repeat(300));
        let cases = [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-00"),
            &format!("{GOOD} "),
            &format!("ff{}", &GOOD[2..]),
            &format!("0g{}", &GOOD[2..]),
            &GOOD.to_uppercase(),
            &GOOD.replace('-', "_"),
            &format!("01{}.x", &GOOD[2..]),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
            "00-4bf92f3577b34da6a3ce929d0e0e\u{e9}36-00f067aa0ba902b7-01",
            &long,
        ];
        for case in cases {
            assert_eq!(TraceContext::parse_traceparent(case), None, "{case}");
        }
    }

    #[test]
    fn l20_a_child_keeps_the_trace_and_gets_its_own_span() {
        let parent = TraceContext::root().with_initial(Some(TraceId::random())).with_sampled(true);
        let child = parent.child();
        assert_eq!(
            (child.trace_id, child.initial, child.flags),
            (parent.trace_id, parent.initial, 1)
        );
        assert_eq!(child.parent_span_id, Some(parent.span_id));
        assert_ne!(child.span_id, parent.span_id);
        let linked = TraceContext::root().with_link(&parent);
        assert_eq!(linked.link, Some((parent.trace_id, parent.span_id)));
        assert_ne!(linked.trace_id, parent.trace_id);
        assert_eq!(linked.parent_span_id, None);
    }
}
