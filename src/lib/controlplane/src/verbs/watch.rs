//! Watches: one event at a time, each encoded once for all watchers of its form.

use super::respond::{collection_offer, go_type, include};
use crate::encode::Encoder;
use crate::exchange::Request;
use crate::filters::audit::{Auditor, StreamAudit};
use crate::metrics::{Metrics, WatchGauge};
use crate::negotiate::{Form, View, Views, not_streamed};
use crate::rejection::Rejection;
use crate::status;
use bytes::{Bytes, BytesMut};
use ferrokube_apimachinery::status::Failure;
use ferrokube_flow::{self as flow, Flow};
use ferrokube_registry::offload::{INLINE_BYTES, compute};
use ferrokube_registry::{Object, Registry, Target, Watch, WatchItem};
use ferrokube_serve::{Chunk, Response};
use ferrokube_storage::Entry;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use tokio::task::JoinSet;

mod cache;
mod frames;
mod watchers;

use cache::{CACHED_EVENTS, EventCache};
use frames::{EventEncoder, REFERENCED_BYTES};
use watchers::{WatchRequest, Watchers};

/// Small events are sent together up to this size.
const FRAME_BYTES: usize = 8 * 1024;

/// Approximate overhead per event.
const EVENT_BYTES: usize = 64;

const ADDED: &str = "ADDED";
const MODIFIED: &str = "MODIFIED";
const DELETED: &str = "DELETED";

/// State shared by all watches.
pub(crate) struct WatchService {
    registry: Registry,
    flow: Arc<Flow>,
    encoder: Encoder,
    metrics: Arc<Metrics>,
    auditor: Auditor,
    events: EventCache,
    watchers: Watchers,
}

impl WatchService {
    pub(crate) fn new(
        registry: &Registry,
        flow: &Arc<Flow>,
        encoder: &Encoder,
        metrics: &Arc<Metrics>,
        auditor: Auditor,
    ) -> Self {
        Self {
            registry: registry.clone(),
            flow: Arc::clone(flow),
            encoder: encoder.clone(),
            metrics: Arc::clone(metrics),
            auditor,
            events: EventCache::default(),
            watchers: Watchers::default(),
        }
    }
}

pub(crate) async fn watch(
    service: &Arc<WatchService>,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    let accepted =
        request.parsed_head().accepted(collection_offer(&target.served, Views::Single))?;
    let options = request.action.options().watch(jitter())?;
    let kept = WatchRequest {
        uri: &request.head.uri,
        version: request.head.version,
        users: [Some(&*request.authenticated.user), request.authenticated.impersonated.as_deref()],
    };
    let caller = request.class().caller;
    let held = service.watchers.begin(caller, &request.authenticated.user, &kept)?;
    let events = service.registry.watch(target, options).await?;
    // As in kube-apiserver, the form is checked once the watch has its options.
    accepted.fit(Views::Single, || go_type(target, Views::Single))?;
    let include = include(request, accepted)?;
    if accepted.form == Form::Yaml {
        return Err(not_streamed().into());
    }
    // Boxed: `unfold` stores both the stream and its future, which contains the stream.
    let stream = Box::new(WatchStream {
        watch: events,
        service: Arc::clone(service),
        frames: EventEncoder {
            served: target.served.clone(),
            accepted,
            include,
            columns_sent: false,
        },
        waiting: VecDeque::new(),
        ended: false,
        caller: request.caller_number(),
        _held: held,
        _gauge: service.metrics.watching(),
        _ending: StreamAudit::of(&service.auditor, request),
    });
    let body = ferrokube_serve::chunks(futures::stream::unfold(stream, |mut stream| async move {
        stream.next().await.map(|frame| (frame, stream))
    }));
    let mut response = status::with_type(200, Form::Json.media_type(), body);
    if accepted.form == Form::Protobuf {
        response.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch"),
        );
    }
    Ok(response)
}

/// Random, so that watches that began together do not end together.
fn jitter() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_or(0, |()| u64::from_le_bytes(bytes))
}

struct WatchStream {
    watch: Watch,
    service: Arc<WatchService>,
    frames: EventEncoder,
    waiting: VecDeque<WatchItem>,
    ended: bool,
    caller: u64,
    _held: Option<flow::BudgetGrant>,
    _gauge: WatchGauge,
    _ending: Option<StreamAudit>,
}

impl WatchStream {
    /// The next frame: one event, or several small ones that are available already.
    async fn next(&mut self) -> Option<io::Result<Chunk>> {
        if self.waiting.is_empty() {
            if self.ended {
                return None;
            }
            let mut items = self.watch.next().await?;
            if self.frames.needs_webhook() {
                // Boxed, as few watches need it and the future is large.
                items = Box::pin(self.in_version(items)).await;
            }
            self.waiting = items.into();
        }
        let item = self.waiting.pop_front()?;
        let frame = match self.referenced(&item) {
            Some(lent) => lent,
            None if self.frames.columns_cost() > 0 && !self.frames.columns_sent => {
                Box::pin(compute(self.caller, || self.first_table(item))).await
            }
            None => {
                let first = if self.is_expensive(&item) {
                    Box::pin(compute(self.caller, || self.encode(item))).await
                } else {
                    self.encode(item)
                };
                if self.next_fits(first.len()) { self.gather(&first).into() } else { first.into() }
            }
        };
        if self.waiting.is_empty() {
            // An idle watch keeps no capacity.
            self.waiting = VecDeque::new();
        }
        Some(Ok(frame))
    }

    /// Converts the objects of events. A failure ends the watch: no event may be lost.
    ///
    /// In a task of its own: nothing polls a watch whose client has closed its window, and others
    /// wait for the permits of the webhook, and for what is converted.
    async fn in_version(&self, mut items: Vec<WatchItem>) -> Vec<WatchItem> {
        let entries: Vec<Arc<Entry>> = items.iter().filter_map(entry_of).cloned().collect();
        let (registry, budgets) = (self.service.registry.clone(), Arc::clone(&self.service.flow));
        let (served, caller) = (self.frames.served.clone(), self.caller);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let converted = registry.in_version(&served, entries);
            let converted = Box::pin(flow::with_budgets(budgets, converted));
            registry.offload().run(caller, converted).await
        });
        let converted = match task.join_next().await {
            Some(Ok(converted)) => converted,
            _ => Err(Failure::internal("a conversion ended early")),
        };
        match converted {
            Err(failure) => vec![WatchItem::Error(Box::new(failure))],
            Ok(converted) => {
                let old_entries = items.iter_mut().filter_map(entry_of_mut);
                old_entries.zip(converted).for_each(|(old, new)| *old = new);
                items
            }
        }
    }

    /// Whether an event of a large object has to be encoded.
    fn is_expensive(&self, item: &WatchItem) -> bool {
        let (kind, entry) = match item {
            WatchItem::Added(entry) => (ADDED, entry),
            WatchItem::Modified(entry) => (MODIFIED, entry),
            WatchItem::Deleted(entry) => (DELETED, entry),
            WatchItem::Bookmark { .. } | WatchItem::Error(_) => return false,
        };
        entry.bytes.len() + self.frames.columns_cost() > INLINE_BYTES
            && !self.service.events.has(&self.frames, kind, entry)
    }

    /// Whether the next item fits into a frame of this length.
    fn next_fits(&self, bytes: usize) -> bool {
        let length =
            self.waiting.front().map(|item| entry_of(item).map_or(0, |entry| entry.bytes.len()));
        length.is_some_and(|length| length < REFERENCED_BYTES && bytes < FRAME_BYTES)
    }

    fn gather(&mut self, first: &[u8]) -> Bytes {
        let rest: usize = self
            .waiting
            .iter()
            .map(|item| EVENT_BYTES + entry_of(item).map_or(EVENT_BYTES, |entry| entry.bytes.len()))
            .sum();
        let mut frame = BytesMut::with_capacity(first.len() + rest.min(FRAME_BYTES));
        frame.extend_from_slice(first);
        while self.next_fits(frame.len())
            && let Some(item) = self.waiting.pop_front()
        {
            frame.extend_from_slice(&self.encode(item));
        }
        frame.freeze()
    }

    /// An event that references a long object.
    fn referenced(&self, item: &WatchItem) -> Option<Chunk> {
        let (kind, entry) = match item {
            WatchItem::Added(entry) => (ADDED, entry),
            WatchItem::Modified(entry) => (MODIFIED, entry),
            WatchItem::Deleted(entry) => (DELETED, entry),
            WatchItem::Bookmark { .. } | WatchItem::Error(_) => return None,
        };
        self.frames.referenced(kind, entry)
    }

    /// The first event of a Table of many columns.
    fn first_table(&mut self, item: WatchItem) -> Chunk {
        let (kind, object) = match item {
            WatchItem::Added(entry) => (ADDED, Object::Stored(entry)),
            WatchItem::Modified(entry) => (MODIFIED, Object::Stored(entry)),
            WatchItem::Deleted(entry) => (DELETED, Object::Stored(entry)),
            WatchItem::Bookmark { revision, initial_events_end } => {
                let document = self.frames.bookmark_document(revision, initial_events_end);
                ("BOOKMARK", Object::Computed(document))
            }
            WatchItem::Error(_) => return self.encode(item).into(),
        };
        self.frames.lent_table(kind, &object)
    }

    fn encode(&mut self, item: WatchItem) -> Bytes {
        let encoder = &self.service.encoder;
        let (kind, entry) = match item {
            WatchItem::Added(entry) => (ADDED, entry),
            WatchItem::Modified(entry) => (MODIFIED, entry),
            WatchItem::Deleted(entry) => (DELETED, entry),
            WatchItem::Bookmark { revision, initial_events_end } => {
                return self.frames.bookmark(encoder, revision, initial_events_end);
            }
            WatchItem::Error(failure) => {
                self.ended = true;
                return self.frames.error(encoder, &failure);
            }
        };
        if matches!(self.frames.accepted.view, View::Table(_)) {
            return self.frames.table(kind, &Object::Stored(entry));
        }
        let frames = &self.frames;
        if entry.revision.0 + (CACHED_EVENTS as u64) < self.service.registry.store().revision().0 {
            // Initial state or backlog: caching it would evict recent events that other watchers
            // share.
            return frames.object(encoder, kind, &entry);
        }
        self.service.events.get(frames, kind, &entry, || frames.object(encoder, kind, &entry))
    }
}

fn entry_of(item: &WatchItem) -> Option<&Arc<Entry>> {
    match item {
        WatchItem::Added(entry) | WatchItem::Modified(entry) | WatchItem::Deleted(entry) => {
            Some(entry)
        }
        WatchItem::Bookmark { .. } | WatchItem::Error(_) => None,
    }
}

fn entry_of_mut(item: &mut WatchItem) -> Option<&mut Arc<Entry>> {
    match item {
        WatchItem::Added(entry) | WatchItem::Modified(entry) | WatchItem::Deleted(entry) => {
            Some(entry)
        }
        WatchItem::Bookmark { .. } | WatchItem::Error(_) => None,
    }
}
