//! Recent requests and log lines of an all-in-one process by object family: a bounded ring per
//! initial trace id.
//!
//! Bounds the events per family, and the bytes of all families. The least recently used family is
//! evicted first.

use crate::line::{self, LogLine, LoggedRequest};
use crate::search::component;
use crate::story::{Story, StoryEntry};
use ferrokube_trace::log::Tap;
use ferrokube_trace::{InitialTraceId, SpanId, TraceContext, TraceId};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

/// Events kept per family; older ones are dropped.
pub const MAX_EVENTS: usize = 256;
/// Bytes of all families, as far as they are counted.
pub const MAX_BYTES: usize = 16 << 20;
/// Maximum length of a log line.
const MAX_LINE_BYTES: usize = 2 << 10;
/// Fixed cost of an event on top of its text.
const OVERHEAD_BYTES: usize = 400;
/// Bytes of the events of a story, counted alike; further events are left out.
pub const MAX_STORY_BYTES: usize = 1 << 20;
/// Events copied at a time under the lock, which every request takes: some 20 us.
const BATCH: usize = 1024;

/// Object of an event. A user that may get it may see the event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    /// API group; empty for the core group.
    pub group: String,
    /// API version, such as `v1`.
    pub version: String,
    /// Plural name.
    pub resource: String,
    /// Namespace; empty for cluster scope.
    pub namespace: String,
    /// Object name; empty for a collection.
    pub name: String,
}

/// Access check for events; `None` is an event without an object.
pub type AccessCheck<'a> = dyn Fn(Option<&ObjectRef>) -> bool + 'a;

#[derive(Debug)]
struct RingEvent {
    trace: TraceContext,
    object: Option<ObjectRef>,
    /// Without ids and, if it is a request, without a message: see [`Self::line`].
    record: LogLine,
    bytes: usize,
}

impl RingEvent {
    /// Bytes of the whole line. The message of a request has its verb and user once more.
    fn line_bytes(&self) -> usize {
        /// Bytes of the other words, and of the status code.
        const WORDS: usize = 16;
        let made = self.record.request.as_ref();
        self.bytes + made.map_or(0, |request| request.verb.len() + request.user.len() + WORDS)
    }

    /// The whole line. Made when it is read: every request is recorded, few are read.
    fn line(&self) -> LogLine {
        LogLine {
            message: self.message(),
            trace_id: self.trace.trace_id.to_string(),
            span_id: self.trace.span_id.to_string(),
            initial_trace_id: self.trace.initial.map(|id| id.to_string()).unwrap_or_default(),
            ..self.record.clone()
        }
    }

    fn message(&self) -> String {
        match &self.record.request {
            Some(request) => format!("{} by {}: {}", request.verb, request.user, request.code),
            None => self.record.message.clone(),
        }
    }
}

#[derive(Debug, Default)]
struct Family {
    events: VecDeque<Arc<RingEvent>>,
    touched: u64,
}

type FamilyEvents = Vec<Arc<RingEvent>>;

#[derive(Debug, Default)]
struct RingState {
    families: HashMap<InitialTraceId, Family>,
    /// Families by last use.
    order: BTreeMap<u64, InitialTraceId>,
    clock: u64,
    bytes: usize,
}

/// Recent events, shared by the request filters, the log and the page.
#[derive(Debug, Default)]
pub struct Ring {
    state: Mutex<RingState>,
}

/// A family in the list of recent ones.
#[derive(Clone, Debug)]
pub struct RecentFamily {
    /// Fields shared by all events of the family.
    pub initial: InitialTraceId,
    /// Object of its first visible event.
    pub object: ObjectRef,
    /// Time of its last visible event.
    pub last: Option<Timestamp>,
    /// Last request of the object, or the message of the last line.
    pub message: String,
    /// Number of visible events.
    pub events: usize,
}

impl Ring {
    /// Records a request.
    pub fn request(
        &self,
        context: &TraceContext,
        object: ObjectRef,
        request: LoggedRequest,
        time: Option<Timestamp>,
    ) {
        let record = LogLine { time, request: Some(request), ..LogLine::default() };
        self.push(context, Some(object), record);
    }

    fn push(&self, context: &TraceContext, object: Option<ObjectRef>, record: LogLine) {
        let texts: usize = record.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        let of_request =
            record.request.as_ref().map_or(0, |request| request.uri.len() + request.user.len());
        let bytes = OVERHEAD_BYTES + texts + record.message.len() + of_request;
        let mut state = self.lock();
        // A line without an initial id belongs to the family that its trace began, if any.
        let Some(initial) = context
            .initial
            .or_else(|| state.families.contains_key(&context.trace_id).then_some(context.trace_id))
        else {
            return;
        };
        state.push(initial, Arc::new(RingEvent { trace: *context, object, record, bytes }));
    }

    fn lock(&self) -> MutexGuard<'_, RingState> {
        self.state.lock()
    }

    /// Everything visible about an id: all traces of a family, or the trace of a trace or span id;
    /// complete up to [`MAX_STORY_BYTES`].
    pub fn story(&self, id: &str, may: &AccessCheck<'_>) -> Story {
        let mut left = MAX_STORY_BYTES;
        let (mut entries, mut omitted) = (Vec::new(), 0);
        for event in self.about(id).iter().filter(|event| may(event.object.as_ref())) {
            let Some(rest) = left.checked_sub(event.line_bytes()) else {
                omitted += 1;
                continue;
            };
            left = rest;
            let line = event.line();
            entries.push(StoryEntry { component: component(Path::new("apiserver"), &line), line });
        }
        Story { omitted, ..Story::new(vec![id.to_owned()], entries, 0, Vec::new(), 0) }
    }

    fn about(&self, id: &str) -> Vec<Arc<RingEvent>> {
        let families = self.families();
        let (trace, span) = (id.parse::<TraceId>().ok(), id.parse::<SpanId>().ok());
        let family = trace.and_then(|asked| families.iter().find(|(id, _)| *id == asked));
        // Traces of this family may contain events of other families: a deletion continues with the
        // dependents.
        let of_family = family.iter().flat_map(|(_, events)| events);
        let all = || families.iter().flat_map(|(_, events)| events);
        let named = all().filter(|event| {
            Some(event.trace.span_id) == span || Some(event.trace.trace_id) == trace
        });
        let traces: HashSet<TraceId> =
            of_family.chain(named).map(|event| event.trace.trace_id).collect();
        all().filter(|event| traces.contains(&event.trace.trace_id)).cloned().collect()
    }

    /// All families with their events, the most recently used first. Requests wait for the lock, so
    /// it is taken for a batch at a time: a family may have got events since, and is copied again.
    fn families(&self) -> Vec<(InitialTraceId, FamilyEvents)> {
        let mut copied = Vec::new();
        let begun = self.lock().clock;
        let mut next = 0;
        while next <= begun {
            next = self.lock().copy(next..=begun, BATCH, &mut copied);
        }
        self.lock().copy(next..=u64::MAX, usize::MAX, &mut copied);
        copied.reverse();
        let mut seen = HashSet::new();
        copied.retain(|(initial, _)| seen.insert(*initial));
        copied
    }

    /// The most recently used families, newest first, as far as they are visible.
    pub fn recent(&self, count: usize, may: &AccessCheck<'_>) -> Vec<RecentFamily> {
        let families = self.families();
        let visible =
            families.iter().filter_map(|(initial, events)| summary(*initial, events, may));
        visible.take(count).collect()
    }

    /// Families of objects with this name, newest first. `resource` is the plural, optionally with
    /// its group, or the singular formed by dropping the last letter.
    pub fn families_of(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        may: &AccessCheck<'_>,
    ) -> Vec<InitialTraceId> {
        let (plural, group) = resource
            .split_once('.')
            .map_or((resource, None), |(plural, group)| (plural, Some(group)));
        let fits = |object: &ObjectRef| {
            let named =
                object.resource == plural || object.resource.strip_suffix('s') == Some(plural);
            let placed = object.namespace.is_empty()
                || object.namespace == namespace
                || object.resource == "namespaces";
            object.name == name
                && named
                && placed
                && group.is_none_or(|group| object.group == group)
        };
        let families = self.families();
        let found = families.iter().filter(|(_, events)| {
            let object =
                events.iter().filter_map(|event| event.object.as_ref()).find(|it| fits(it));
            object.is_some_and(|object| may(Some(object)))
        });
        found.map(|(initial, _)| *initial).collect()
    }
}

fn summary(
    initial: InitialTraceId,
    events: &[Arc<RingEvent>],
    may: &AccessCheck<'_>,
) -> Option<RecentFamily> {
    let seen: Vec<&Arc<RingEvent>> =
        events.iter().filter(|event| may(event.object.as_ref())).collect();
    let object = seen.iter().find_map(|event| event.object.clone())?;
    let request = seen.iter().rfind(|event| event.record.request.is_some()).or(seen.last())?;
    Some(RecentFamily {
        initial,
        object,
        last: seen.last()?.record.time,
        message: request.message(),
        events: seen.len(),
    })
}

impl RingState {
    /// Copies families last used at these times, the first ones with `most` events or slightly
    /// more. Returns from when on the others were used.
    fn copy(
        &self,
        times: RangeInclusive<u64>,
        most: usize,
        copied: &mut Vec<(InitialTraceId, FamilyEvents)>,
    ) -> u64 {
        let (mut events, end) = (0, times.end().saturating_add(1));
        for (touched, initial) in self.order.range(times) {
            if events >= most {
                return *touched;
            }
            let Some(family) = self.families.get(initial) else { continue };
            events += family.events.len();
            copied.push((*initial, family.events.iter().cloned().collect()));
        }
        end
    }

    fn push(&mut self, initial: InitialTraceId, event: Arc<RingEvent>) {
        self.clock += 1;
        self.bytes += event.bytes;
        let family = self.families.entry(initial).or_default();
        self.order.remove(&family.touched);
        family.touched = self.clock;
        self.order.insert(self.clock, initial);
        family.events.push_back(event);
        if family.events.len() > MAX_EVENTS {
            self.bytes -= family.events.pop_front().map_or(0, |event| event.bytes);
        }
        while self.bytes > MAX_BYTES {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            let gone = self.families.remove(&oldest).unwrap_or_default();
            self.bytes -= gone.events.iter().map(|event| event.bytes).sum::<usize>();
        }
    }
}

impl Tap for Ring {
    fn line(&self, context: &TraceContext, text: &str) {
        let mut end = text.len().min(MAX_LINE_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let Some(line) = line::parse(&text[..end]) else { return };
        let [resource, namespace, name] =
            ["k8s.resource", "k8s.namespace", "k8s.name"].map(|field| line.field(field).to_owned());
        let (resource, group) = resource
            .split_once('.')
            .map_or((resource.clone(), String::new()), |(plural, group)| {
                (plural.to_owned(), group.to_owned())
            });
        let object = (!resource.is_empty()).then(|| ObjectRef {
            group,
            version: String::new(),
            resource,
            namespace,
            name,
        });
        self.push(context, object, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef {
            version: "v1".into(),
            resource: "configmaps".into(),
            namespace: "default".into(),
            name: name.into(),
            ..ObjectRef::default()
        }
    }

    fn request(ring: &Ring, context: &TraceContext, name: &str, uri: &str) {
        ring.request(
            context,
            object(name),
            LoggedRequest {
                verb: "create".into(),
                uri: uri.into(),
                user: "alice".into(),
                code: 201,
                ..LoggedRequest::default()
            },
            None,
        );
    }

    #[test]
    fn a_family_is_found_by_each_of_its_ids_and_by_its_object() {
        let (ring, root) = (Ring::default(), TraceContext::root());
        let context = root.with_initial(Some(root.trace_id));
        request(&ring, &context, "a", "/api/v1/namespaces/default/configmaps/a");
        ring.line(&root, "2026-11-21T03:00:00Z INFO x: a line of the same request");
        ring.line(&TraceContext::root(), "2026-11-21T03:00:00Z INFO x: of no family");
        for id in [root.trace_id.to_string(), root.span_id.to_string()] {
            let story = ring.story(&id, &|_| true);
            assert_eq!(story.traces[0].actions[0].lines.len(), 1, "{id}");
            assert_eq!(story.traces[0].actions[0].request.as_ref().unwrap().user, "alice");
        }
        assert_eq!(ring.families_of("configmap", "default", "a", &|_| true), [root.trace_id]);
        assert_eq!(ring.families_of("configmaps", "other", "a", &|_| true), []);
        assert!(ring.story("ffffffffffffffffffffffffffffffff", &|_| true).is_empty());
    }

    #[test]
    fn events_are_shown_only_to_users_who_may_get_the_object() {
        let (ring, root) = (Ring::default(), TraceContext::root());
        let context = root.with_initial(Some(root.trace_id));
        request(&ring, &context, "mine", "/mine");
        request(&ring, &context.child(), "theirs", "/theirs");
        ring.line(&context, "2026-11-21T03:00:00Z INFO x: about no object");
        let may = |object: Option<&ObjectRef>| object.is_some_and(|object| object.name == "mine");
        let story = ring.story(&root.trace_id.to_string(), &may);
        assert_eq!((story.traces[0].actions.len(), story.traces[0].actions[0].lines.len()), (1, 0));
        assert_eq!(ring.recent(10, &may)[0].events, 1);
        assert!(ring.recent(10, &|_| false).is_empty());
        assert!(ring.families_of("configmaps", "default", "theirs", &may).is_empty());
    }

    #[test]
    fn fault_34_pages_do_not_hold_up_requests() {
        let (ring, first) = (Ring::default(), TraceContext::root());
        for _ in 0..3 * BATCH {
            let root = TraceContext::root();
            request(&ring, &root.with_initial(Some(root.trace_id)), "a", "/a");
        }
        let mut copied = Vec::new();
        let clock = ring.lock().clock;
        let next = ring.lock().copy(0..=clock, BATCH, &mut copied);
        assert_eq!((copied.len(), next), (BATCH, BATCH as u64 + 1));
        // Nobody holds the lock while rights are checked.
        let calls = std::cell::Cell::new(0);
        let may = |_: Option<&ObjectRef>| {
            calls.set(calls.get() + 1);
            assert!(ring.state.try_lock().is_some());
            calls.get() % 2 == 0
        };
        assert_eq!(ring.recent(10, &may).len(), 10);
        assert_eq!(calls.get(), 20, "further families are not checked");
        // A family that is used again meanwhile is copied once, as it is then.
        let all = ring.families();
        assert_eq!(all.len(), 3 * BATCH);
        let oldest = all.last().unwrap().0;
        request(&ring, &first.with_initial(Some(oldest)), "b", "/b");
        let all = ring.families();
        assert_eq!((all.len(), all[0].0, all[0].1.len()), (3 * BATCH, oldest, 2));
    }

    #[test]
    fn a_story_is_bounded() {
        let (ring, root) = (Ring::default(), TraceContext::root());
        let context = root.with_initial(Some(root.trace_id));
        let long = "u".repeat(MAX_STORY_BYTES / 8);
        for _ in 0..20 {
            request(&ring, &context, "a", &long);
        }
        let id = root.trace_id.to_string();
        assert_eq!(ring.about(&id).len(), 20);
        assert_eq!(ring.story(&id, &|_| true).omitted, 13);
        assert_eq!(ring.story(&id, &|_| false).omitted, 0, "neither what may not be read");
    }

    /// The message of a request is made when it is read.
    #[test]
    fn a_story_is_bounded_with_its_messages() {
        let (ring, root) = (Ring::default(), TraceContext::root());
        let context = root.with_initial(Some(root.trace_id));
        let logged =
            LoggedRequest { user: "u".repeat(MAX_STORY_BYTES / 8), ..LoggedRequest::default() };
        (0..20).for_each(|_| ring.request(&context, object("a"), logged.clone(), None));
        let story = ring.story(&root.trace_id.to_string(), &|_| true);
        let lines = 20 - story.omitted;
        assert!(lines > 0 && 2 * lines * logged.user.len() <= MAX_STORY_BYTES, "{lines}");
    }

    #[test]
    fn everything_is_bounded() {
        let (ring, first) = (Ring::default(), TraceContext::root());
        let first = first.with_initial(Some(first.trace_id));
        for _ in 0..2 * MAX_EVENTS {
            request(&ring, &first, "a", "/a");
        }
        assert_eq!(ring.lock().families[&first.trace_id].events.len(), MAX_EVENTS);
        let long = format!("2026-11-21T03:00:00Z INFO x: {}", "w".repeat(1 << 20));
        for _ in 0..2 * MAX_BYTES / MAX_LINE_BYTES {
            let root = TraceContext::root();
            ring.line(&root.with_initial(Some(root.trace_id)), &long);
        }
        let state = ring.lock();
        assert!(state.bytes <= MAX_BYTES && state.bytes > MAX_BYTES / 2);
        assert!(!state.families.contains_key(&first.trace_id), "the oldest goes first");
        assert_eq!(state.order.len(), state.families.len());
    }
}
