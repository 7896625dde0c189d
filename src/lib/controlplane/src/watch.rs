//! Watches: one event at a time, each encoded once for all watchers of its form.

use crate::encode::protobuf::put_message;
use crate::encode::table::{Include, Table};
use crate::encode::{Encoder, document_of, partial_document, slices};
use crate::exchange::{Exchange, Stop};
use crate::handler::accepted;
use crate::links::audit::Ending;
use crate::metrics::WatchGauge;
use crate::negotiate::{Accepted, Form, Offer, View, Views};
use crate::options;
use crate::server::Shared;
use crate::status;
use bytes::{Bytes, BytesMut};
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::{Object, Served, Target, Watch, WatchItem, WatchOptions};
use ferrokube_resource::Definition;
use ferrokube_serve::Response;
use ferrokube_storage::{Entry, Revision};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// Small events are sent together up to this.
const FRAME_BYTES: usize = 16 * 1024;

/// Answers a watch.
pub(crate) async fn respond(shared: &Arc<Shared>, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = accepted(exchange, Offer { protobuf: target.served.version().message.is_some(), views: Views::Single })?;
    if accepted.form == Form::Yaml {
        return Err(Failure::new(Reason::NotAcceptable, "watches are not served as YAML").into());
    }
    let options = options::watch(&exchange.query, jitter())?;
    let include = if matches!(accepted.view, View::Table(_)) { Include::parse(exchange.query.text("includeObject"))? } else { Include::Metadata };
    check_name(target, &options)?;
    let watch = shared.registry.watch(target, options).await?;
    // Boxed: the stream would have a place of its own beside its future, which has one for it, too.
    let stream = Box::new(Stream {
        watch,
        shared: Arc::clone(shared),
        frames: Frames { served: target.served.clone(), accepted, include, columns_sent: false },
        waiting: VecDeque::new(),
        ended: false,
        _gauge: shared.metrics.watching(),
        _ending: Ending::of(shared, exchange),
    });
    let body = ferrokube_serve::stream(futures::stream::unfold(stream, |mut stream| async move { stream.next().await.map(|frame| (frame, stream)) }));
    let mut response = status::with_type(200, Form::Json.media_type(), body);
    if accepted.form == Form::Protobuf {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch"));
    }
    Ok(response)
}

/// A path that names an object goes with no other field selector than one of that name.
fn check_name(target: &Target, options: &WatchOptions) -> Result<(), Failure> {
    let fields = &options.list.fields;
    match &target.name {
        Some(name) if !fields.is_empty() && fields.exact("metadata.name") != Some(name) => {
            Err(Failure::bad_request("fieldSelector metadata.name doesn't match requested name"))
        }
        _ => Ok(()),
    }
}

/// A random number, so that watches that began together do not end together.
fn jitter() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_or(0, |()| u64::from_le_bytes(bytes))
}

/// A running watch.
struct Stream {
    watch: Watch,
    shared: Arc<Shared>,
    frames: Frames,
    waiting: VecDeque<WatchItem>,
    ended: bool,
    _gauge: WatchGauge,
    _ending: Option<Ending>,
}

impl Stream {
    /// The next frame: one event, or several small ones that are there already.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.waiting.is_empty() {
            if self.ended {
                return None;
            }
            let mut items = self.watch.next().await?;
            if self.frames.are_converted() {
                // Boxed: few watches need it, and each would have a place for it.
                items = Box::pin(self.in_version(items)).await;
            }
            self.waiting = items.into();
        }
        let item = self.waiting.pop_front()?;
        let first = self.encode(item);
        let frame = if self.waiting.is_empty() || first.len() >= FRAME_BYTES { first } else { self.gather(&first) };
        if self.waiting.is_empty() {
            // A watch that waits holds no room.
            self.waiting = VecDeque::new();
        }
        Some(Ok(frame))
    }

    /// The objects of events in the version of the watch. When that fails the watch ends: an event must not be lost.
    async fn in_version(&self, mut items: Vec<WatchItem>) -> Vec<WatchItem> {
        let entries: Vec<Arc<Entry>> = items.iter().filter_map(entry_of).cloned().collect();
        match self.shared.registry.in_version(&self.frames.served, entries).await {
            Err(failure) => vec![WatchItem::Error(Box::new(failure))],
            Ok(converted) => {
                let places = items.iter_mut().filter_map(entry_of_mut);
                places.zip(converted).for_each(|(place, entry)| *place = entry);
                items
            }
        }
    }

    fn gather(&mut self, first: &[u8]) -> Bytes {
        let mut frame = BytesMut::with_capacity(FRAME_BYTES * 2);
        frame.extend_from_slice(first);
        while frame.len() < FRAME_BYTES
            && let Some(item) = self.waiting.pop_front()
        {
            frame.extend_from_slice(&self.encode(item));
        }
        frame.freeze()
    }

    fn encode(&mut self, item: WatchItem) -> Bytes {
        let encoder = &self.shared.encoder;
        let (kind, entry) = match item {
            WatchItem::Added(entry) => ("ADDED", entry),
            WatchItem::Modified(entry) => ("MODIFIED", entry),
            WatchItem::Deleted(entry) => ("DELETED", entry),
            WatchItem::Bookmark { revision, initial_events_end } => return self.frames.bookmark(encoder, revision, initial_events_end),
            WatchItem::Error(failure) => {
                self.ended = true;
                return self.frames.error(encoder, &failure);
            }
        };
        if matches!(self.frames.accepted.view, View::Table(_)) {
            return self.frames.table(kind, &Object::Stored(entry));
        }
        let frames = &self.frames;
        if self.waiting.len() > CACHED_EVENTS / 8 {
            // The initial state or a backlog: other watchers are elsewhere, and would lose the recent events to it.
            return frames.object(encoder, kind, &entry);
        }
        self.shared.events.get(frames, kind, &entry, || frames.object(encoder, kind, &entry))
    }
}

fn entry_of(item: &WatchItem) -> Option<&Arc<Entry>> {
    match item {
        WatchItem::Added(entry) | WatchItem::Modified(entry) | WatchItem::Deleted(entry) => Some(entry),
        WatchItem::Bookmark { .. } | WatchItem::Error(_) => None,
    }
}

fn entry_of_mut(item: &mut WatchItem) -> Option<&mut Arc<Entry>> {
    match item {
        WatchItem::Added(entry) | WatchItem::Modified(entry) | WatchItem::Deleted(entry) => Some(entry),
        WatchItem::Bookmark { .. } | WatchItem::Error(_) => None,
    }
}

/// How events of one watch are written.
struct Frames {
    served: Served,
    accepted: Accepted,
    include: Include,
    columns_sent: bool,
}

impl Frames {
    /// Whether somebody else has to convert the objects.
    fn are_converted(&self) -> bool {
        !matches!(self.accepted.view, View::Metadata(_)) && self.served.definition.hooks.converter().is_some()
    }

    fn object(&self, encoder: &Encoder, kind: &'static str, entry: &Arc<Entry>) -> Bytes {
        if self.accepted.form == Form::Json
            && let Some(bytes) = self.sliced(kind, entry)
        {
            return bytes;
        }
        let object = Object::Stored(Arc::clone(entry));
        let document = match self.accepted.view {
            View::Metadata(version) => partial_document(&document_of(&self.served, &object), version),
            _ => document_of(&self.served, &object),
        };
        self.document(encoder, kind, &document, self.message())
    }

    /// An event around stored bytes.
    fn sliced(&self, kind: &str, entry: &Entry) -> Option<Bytes> {
        let partial;
        let object: &[u8] = match self.accepted.view {
            View::Metadata(version) => {
                partial = slices::partial(entry, version);
                &partial
            }
            _ if self.served.is_direct(entry) => &entry.bytes,
            _ => return None,
        };
        Some(wrap(kind, object).into())
    }

    fn message(&self) -> &str {
        match self.accepted.view {
            View::Metadata(_) => "k8s.io.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata",
            _ => self.served.version().message.as_deref().unwrap_or_default(),
        }
    }

    fn document(&self, encoder: &Encoder, kind: &str, document: &Document, message: &str) -> Bytes {
        let plain = Accepted { form: self.accepted.form, view: View::Whole, pretty: false };
        let (mut bytes, form) = encoder.document(document, plain, Some(message));
        match form {
            Form::Protobuf => protobuf_event(kind, &bytes),
            _ => {
                bytes.pop();
                wrap(kind, &bytes).into()
            }
        }
    }

    fn table(&mut self, kind: &str, object: &Object) -> Bytes {
        let View::Table(version) = self.accepted.view else { return Bytes::new() };
        let revision = match object {
            Object::Stored(entry) => entry.revision.to_string(),
            Object::Computed(document) => document.meta("resourceVersion").to_owned(),
        };
        let meta = format!("{{\"resourceVersion\":\"{revision}\"}}");
        let mut table = Table::new(&self.served, version, self.include, SystemTime::now());
        let mut bytes = table.write(&meta, !std::mem::replace(&mut self.columns_sent, true), object);
        bytes.pop();
        wrap(kind, &bytes).into()
    }

    /// A bookmark: an object with nothing but its type and version.
    fn bookmark(&mut self, encoder: &Encoder, revision: Revision, initial_events_end: bool) -> Bytes {
        let mut document = Document::new();
        let gvk = self.served.definition.gvk(self.served.version);
        document.set(&["kind"], gvk.kind.as_str());
        document.set(&["apiVersion"], gvk.api_version());
        document.set(&["metadata", "resourceVersion"], revision.to_string());
        if initial_events_end {
            document.set(&["metadata", "annotations"], json!({"k8s.io/initial-events-end": "true"}));
        }
        match self.accepted.view {
            View::Table(_) => self.table("BOOKMARK", &Object::Computed(document)),
            View::Metadata(version) => self.document(encoder, "BOOKMARK", &partial_document(&document, version), self.message()),
            _ => self.document(encoder, "BOOKMARK", &document, self.message()),
        }
    }

    fn error(&self, encoder: &Encoder, failure: &Failure) -> Bytes {
        self.document(encoder, "ERROR", &failure.to_document(), status::message())
    }
}

/// `{"type":"ADDED","object":...}` and a newline.
fn wrap(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(object.len() + kind.len() + 24);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    out
}

/// A `WatchEvent` message behind its length.
fn protobuf_event(kind: &str, object: &[u8]) -> Bytes {
    let mut raw = BytesMut::with_capacity(object.len() + 8);
    put_message(&mut raw, 1, object);
    let mut event = BytesMut::with_capacity(raw.len() + 24);
    put_message(&mut event, 1, kind.as_bytes());
    put_message(&mut event, 2, &raw);
    let mut frame = BytesMut::with_capacity(event.len() + 4);
    frame.extend_from_slice(&u32::try_from(event.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(&event);
    frame.freeze()
}

/// How many events are remembered; larger ones than [`CACHED_BYTES`] are not.
const CACHED_EVENTS: usize = 256;
const CACHED_BYTES: usize = 32 * 1024;

/// Frames of recent events, so that a thousand watchers of one form share one encoding.
pub(crate) struct EventCache(Box<[Mutex<Option<Cached>>]>);

struct Cached {
    entry: Arc<Entry>,
    definition: Arc<Definition>,
    version: usize,
    accepted: Accepted,
    kind: &'static str,
    frame: Bytes,
}

impl Default for EventCache {
    fn default() -> Self {
        Self((0..CACHED_EVENTS).map(|_| Mutex::default()).collect())
    }
}

impl EventCache {
    /// The frame of an event, made if it is not there.
    fn get(&self, frames: &Frames, kind: &'static str, entry: &Arc<Entry>, make: impl FnOnce() -> Bytes) -> Bytes {
        if entry.bytes.len() > CACHED_BYTES {
            return make();
        }
        let at = usize::try_from(entry.revision.0 % CACHED_EVENTS as u64).unwrap_or(0);
        if let Some(cached) = &*self.0[at].lock().expect("no panic while held")
            && cached.is(frames, kind, entry)
        {
            return cached.frame.clone();
        }
        let frame = make();
        let cached = Cached {
            entry: Arc::clone(entry),
            definition: Arc::clone(&frames.served.definition),
            version: frames.served.version,
            accepted: frames.accepted,
            kind,
            frame: frame.clone(),
        };
        *self.0[at].lock().expect("no panic while held") = Some(cached);
        frame
    }
}

impl Cached {
    fn is(&self, frames: &Frames, kind: &str, entry: &Arc<Entry>) -> bool {
        Arc::ptr_eq(&self.entry, entry)
            && self.kind == kind
            && self.accepted == frames.accepted
            && self.version == frames.served.version
            && Arc::ptr_eq(&self.definition, &frames.served.definition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_lines_or_length_delimited() {
        assert_eq!(wrap("ADDED", b"{}"), b"{\"type\":\"ADDED\",\"object\":{}}\n");
        let frame = protobuf_event("ADDED", b"k8s\0");
        assert_eq!(usize::try_from(u32::from_be_bytes(frame[..4].try_into().unwrap())).unwrap(), frame.len() - 4);
        assert_eq!(&frame[4..11], b"\x0a\x05ADDED");
    }
}
