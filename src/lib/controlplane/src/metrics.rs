//! `/metrics`: a small set, with kube-apiserver's names where the meaning is the same.

mod aggregation;
mod priority;
mod slis;
mod text;

use crate::action::{Action, Verb};
use crate::features::stats::FeatureStats;
use crate::status;
use ferrokube_aggregator::{Aggregator, CertificateFaults};
use ferrokube_apimachinery::document::Text;
use ferrokube_auth::audit::AuditLog;
use ferrokube_features::Gates;
use ferrokube_flow::Flow;
use ferrokube_registry::Registry as ObjectRegistry;
use ferrokube_serve::{Holdings, ListenerStats, Response};
use parking_lot::Mutex;
use prometheus_client::encoding::{self, EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
pub(crate) use slis::CheckOutcomes;
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Registers further metrics.
pub type RegisterMetrics = Box<dyn FnOnce(&mut prometheus_client::registry::Registry) + Send>;

/// Max label sets of requests; further ones count as `other`, so that clients cannot fill the
/// memory.
const MAX_SERIES: usize = 4096;

/// Part of a resource's name. Each request copies some: short ones without an allocation.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct NamePart(Text);

impl NamePart {
    fn new(text: &str) -> Self {
        Self(text.into())
    }
}

impl EncodeLabelValue for NamePart {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.0.as_str().encode(encoder)
    }
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct RequestLabels {
    verb: &'static str,
    group: NamePart,
    version: NamePart,
    resource: NamePart,
    subresource: NamePart,
    scope: &'static str,
    dry_run: &'static str,
    code: u16,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct DurationLabels {
    verb: &'static str,
    group: NamePart,
    resource: NamePart,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct KindLabel {
    request_kind: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct OfLabel {
    of: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct ResourceLabel {
    resource: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct NameLabel {
    name: String,
}

/// Where a request's trace context comes from, in the order of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Continues the client's trace.
    Adopted,
    Started,
    /// A new trace, linked to that of a client that may not propagate.
    Linked,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct OriginLabel {
    origin: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Hash, PartialEq, Eq)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// Counters of log tracking and span export.
#[derive(Default)]
struct TraceMetrics {
    contexts: Family<OriginLabel, Counter>,
    /// Resolved once, as every request increments one.
    origins: OnceLock<[Counter; 3]>,
    stamps: Family<OutcomeLabel, Counter<u64, AtomicU64>>,
    baggage: Counter,
    exported: Counter,
    dropped: Counter,
}

type FloatGauge = Gauge<f64, AtomicU64>;

/// Sources of values that are read when metrics are requested.
pub(crate) struct MetricSources {
    pub(crate) registry: ObjectRegistry,
    pub(crate) gates: Gates,
    pub(crate) feature_stats: Arc<FeatureStats>,
    pub(crate) audit: AuditLog,
    pub(crate) flow: Arc<Flow>,
    pub(crate) aggregator: Arc<Aggregator>,
    pub(crate) webhook_certificates: CertificateFaults,
}

/// The response with metrics in OpenMetrics text, in the format that the client accepts.
pub(crate) fn respond(open_metrics: String, accept: &str) -> Response {
    let (media_type, text) = match text::accepts_open_metrics(accept) {
        true => (text::OPEN_METRICS, open_metrics),
        false => (text::PROMETHEUS, text::prometheus(&open_metrics)),
    };
    status::with_type(200, media_type, crate::body::full(text))
}

pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<DurationLabels, Histogram>,
    known: Mutex<HashSet<[NamePart; 4]>>,
    inflight: Family<KindLabel, Gauge>,
    in_queue: Family<KindLabel, Gauge>,
    request_bytes: Family<OfLabel, Gauge>,
    watches: Gauge,
    objects: Family<ResourceLabel, Gauge>,
    unavailable: Family<NameLabel, Gauge>,
    store: StoreMetrics,
    trace: TraceMetrics,
    listener: ListenerMetrics,
    /// Requests whose handler panicked.
    pub(crate) panics: Counter,
}

/// Counters of the listener.
#[derive(Default)]
struct ListenerMetrics {
    stats: OnceLock<Arc<ListenerStats>>,
    open: Gauge,
    accepted: Gauge,
    refused: Gauge,
    handshakes_failed: Gauge,
    stalled: Gauge,
    flooded: Gauge,
    shed: Gauge,
    held_bytes: Gauge,
}

#[derive(Default)]
struct StoreMetrics {
    revision: Gauge,
    commits: Gauge,
    syncs: Gauge,
    sync_seconds: FloatGauge,
    queue: Gauge,
    history_bytes: Gauge,
    live_bytes: Gauge,
    journal_bytes: Gauge,
    disk_full: Gauge,
    writes_alone: Gauge,
    damaged: Gauge,
    repairs: Gauge,
    history_lost: Gauge,
    audit_events: Gauge,
    audit_errors: Gauge,
    audit_dropped: Gauge,
}

/// A running watch; uncounted when dropped.
pub(crate) struct WatchGauge(Gauge);

impl Drop for WatchGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn histogram() -> Histogram {
    Histogram::new([
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
        60.0,
    ])
}

impl Default for Metrics {
    fn default() -> Self {
        let durations: Family<DurationLabels, Histogram> = Family::new_with_constructor(histogram);
        let mut metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            durations,
            known: Mutex::default(),
            inflight: Family::default(),
            in_queue: Family::default(),
            request_bytes: Family::default(),
            watches: Gauge::default(),
            objects: Family::default(),
            unavailable: Family::default(),
            store: StoreMetrics::default(),
            trace: TraceMetrics::default(),
            listener: ListenerMetrics::default(),
            panics: Counter::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    pub(crate) fn with(others: Vec<RegisterMetrics>) -> Self {
        let mut metrics = Self::default();
        others.into_iter().for_each(|register| register(&mut metrics.registry));
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("apiserver_request", "Requests answered", self.requests.clone());
        registry.register_with_unit(
            "apiserver_request_duration",
            "Time to answer, watches left out",
            Unit::Seconds,
            self.durations.clone(),
        );
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests in flight",
            self.inflight.clone(),
        );
        registry.register(
            "apiserver_current_inqueue_requests",
            "Requests that wait for their turn",
            self.in_queue.clone(),
        );
        registry.register(
            "ferrokube_request_bytes",
            "Bytes held for request bodies, decoded bodies (estimated), calls of webhooks, lists and large heads",
            self.request_bytes.clone(),
        );
        registry.register(
            "apiserver_longrunning_requests",
            "Watches that run",
            self.watches.clone(),
        );
        registry.register("apiserver_storage_objects", "Stored objects", self.objects.clone());
        registry.register(
            "aggregator_unavailable_apiservice",
            "Whether an APIService is unavailable",
            self.unavailable.clone(),
        );
        registry.register(
            "apiserver_request_panics",
            "Requests whose handling panicked",
            self.panics.clone(),
        );
        self.register_trace();
        self.register_listener_and_store();
    }

    fn register_trace(&mut self) {
        let (registry, trace) = (&mut self.registry, &self.trace);
        registry.register(
            "ferrokube_trace_contexts",
            "Trace contexts of requests",
            trace.contexts.clone(),
        );
        registry.register(
            "ferrokube_trace_stamps",
            "Writes that were given ids, and writes that kept theirs",
            trace.stamps.clone(),
        );
        registry.register(
            "ferrokube_trace_baggage",
            "Initial trace ids that came as W3C baggage",
            trace.baggage.clone(),
        );
        registry.register(
            "ferrokube_trace_spans_exported",
            "Spans that the collector took",
            trace.exported.clone(),
        );
        registry.register(
            "ferrokube_trace_spans_dropped",
            "Spans that did not fit or were not taken",
            trace.dropped.clone(),
        );
    }

    fn register_listener_and_store(&mut self) {
        let (registry, store, listener) = (&mut self.registry, &self.store, &self.listener);
        for (name, help, gauge) in [
            ("ferrokube_connections_open", "Connections that are open", &listener.open),
            (
                "ferrokube_connections_accepted",
                "Connections accepted since start",
                &listener.accepted,
            ),
            (
                "ferrokube_connections_refused",
                "Connections closed at once because of a limit since start",
                &listener.refused,
            ),
            (
                "ferrokube_connections_handshakes_failed",
                "TLS handshakes that failed or took too long since start",
                &listener.handshakes_failed,
            ),
            (
                "ferrokube_connections_stalled",
                "Connections cut because their client took nothing of an answer since start",
                &listener.stalled,
            ),
            (
                "ferrokube_connections_flooded",
                "Connections cut because their client sent more cheap HTTP/2 frames than it may since start",
                &listener.flooded,
            ),
            (
                "ferrokube_connections_shed",
                "HTTP/2 requests refused unseen, their connection closing or holding more than its share, since start",
                &listener.shed,
            ),
            (
                "ferrokube_connections_held_bytes",
                "Bytes that answers hold while their clients take them",
                &listener.held_bytes,
            ),
            ("ferrokube_store_revision", "The published revision", &store.revision),
            ("ferrokube_store_commits", "Transactions published since start", &store.commits),
            ("ferrokube_store_syncs", "Syncs of the journal since start", &store.syncs),
            ("ferrokube_store_queue", "Transactions that wait for the committer", &store.queue),
            ("ferrokube_store_history_bytes", "Events kept in memory", &store.history_bytes),
            ("ferrokube_store_live_bytes", "Present values", &store.live_bytes),
            ("ferrokube_store_journal_bytes", "Files of the journal", &store.journal_bytes),
            (
                "ferrokube_store_disk_full",
                "1 while puts are refused for lack of space",
                &store.disk_full,
            ),
            (
                "ferrokube_store_writes_alone",
                "1 while this server relies on being the only one that writes to etcd",
                &store.writes_alone,
            ),
            (
                "ferrokube_store_damaged",
                "1 while a file of the journal is damaged and not replaced: a start would refuse it",
                &store.damaged,
            ),
            (
                "ferrokube_store_repairs",
                "Times that damaged files of the journal were replaced from memory since start",
                &store.repairs,
            ),
            (
                "ferrokube_store_history_lost",
                "Revision up to which the last repair dropped the history: older watches get 410",
                &store.history_lost,
            ),
            ("ferrokube_audit_events", "Audit events written since start", &store.audit_events),
            (
                "ferrokube_audit_errors",
                "Failed attempts to write audit events",
                &store.audit_errors,
            ),
            (
                "ferrokube_audit_dropped",
                "Audit events that could not be written and were dropped",
                &store.audit_dropped,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
        registry.register(
            "ferrokube_store_sync_seconds",
            "Time of all syncs since start",
            store.sync_seconds.clone(),
        );
    }

    /// Counts a request that has a response. `is_served`: its resource exists.
    pub(crate) fn request(&self, action: &Action, is_served: bool, code: u16, took: Duration) {
        let [group, version, resource, subresource] = self.subject(action, is_served);
        let verb = verb(action);
        if verb != "WATCH" {
            let labels = DurationLabels { verb, group: group.clone(), resource: resource.clone() };
            self.durations.get_or_create(&labels).observe(took.as_secs_f64());
        }
        let dry_run = if action.options().is_dry_run() { "All" } else { "" };
        let labels = RequestLabels {
            verb,
            group,
            version,
            resource,
            subresource,
            scope: scope(action),
            dry_run,
            code,
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// Labels of a request: `other` if the resource does not exist or there are too many series.
    fn subject(&self, action: &Action, is_served: bool) -> [NamePart; 4] {
        let other = || ["other", "", "other", ""].map(NamePart::new);
        let Some(resource) = action.resource() else { return Default::default() };
        if !is_served {
            return other();
        }
        let parts =
            [resource.group(), resource.version(), resource.plural(), resource.subresource()];
        let subject = parts.map(NamePart::new);
        let mut known = self.known.lock();
        if known.contains(&subject) {
            return subject;
        }
        if known.len() >= MAX_SERIES {
            return other();
        }
        known.insert(subject.clone());
        subject
    }

    /// Counter of requests by origin of their context.
    pub(crate) fn contexts(&self, origin: Origin) -> &Counter {
        let of = |origin| self.trace.contexts.get_or_create(&OriginLabel { origin }).clone();
        let counters = self.trace.origins.get_or_init(|| ["adopted", "started", "linked"].map(of));
        &counters[origin as usize]
    }

    /// Counts an initial id that came as baggage.
    pub(crate) fn count_baggage(&self) {
        self.trace.baggage.inc();
    }

    /// Counts a watch until the guard is dropped.
    pub(crate) fn watching(&self) -> WatchGauge {
        self.watches.inc();
        WatchGauge(self.watches.clone())
    }

    /// The metrics in the Prometheus text format, or as OpenMetrics if the client names it.
    pub(crate) fn respond(&self, sources: &MetricSources, accept: &str) -> Response {
        self.refresh(sources);
        let mut out = String::with_capacity(64 * 1024);
        priority::write(&mut out, sources.flow.levels());
        aggregation::write(&mut out, &sources.aggregator, &sources.webhook_certificates);
        ferrokube_features::metrics::write(&mut out, &sources.gates);
        sources.feature_stats.write(&mut out);
        match encoding::text::encode(&mut out, &self.registry) {
            Ok(()) => respond(out, accept),
            Err(error) => {
                tracing::error!(error = %error, "the metrics could not be written");
                status::text(500, "internal error\n")
            }
        }
    }

    /// Exports the counters of a listener; only of the first one.
    pub(crate) fn show_listener(&self, stats: Arc<ListenerStats>) {
        let _ = self.listener.stats.set(stats);
    }

    /// Bytes held by responses, if there is a listener.
    pub(crate) fn held(&self) -> Option<&Holdings> {
        self.listener.stats.get().map(|stats| &stats.held)
    }

    /// Tells the listener how many bytes lists and watches keep alive.
    pub(crate) fn show_pinned(&self, bytes: u64) {
        if let Some(held) = self.held() {
            held.set_pinned(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
    }

    fn refresh_listener(&self) {
        let listener = &self.listener;
        let Some(stats) = listener.stats.get() else { return };
        for (gauge, count) in [
            (&listener.open, &stats.open),
            (&listener.accepted, &stats.accepted),
            (&listener.refused, &stats.refused),
            (&listener.handshakes_failed, &stats.handshakes_failed),
            (&listener.stalled, &stats.stalled),
            (&listener.flooded, &stats.flooded),
            (&listener.shed, &stats.shed),
        ] {
            gauge.set(count.load(Ordering::Relaxed).try_into().unwrap_or(i64::MAX));
        }
        listener.held_bytes.set(stats.held.bytes().try_into().unwrap_or(i64::MAX));
    }

    fn refresh(&self, sources: &MetricSources) {
        self.refresh_trace(sources);
        self.refresh_listener();
        for (request_kind, (seated, waiting)) in
            ["readOnly", "mutating"].into_iter().zip(sources.flow.inflight())
        {
            self.inflight
                .get_or_create(&KindLabel { request_kind })
                .set(seated.try_into().unwrap_or(i64::MAX));
            self.in_queue
                .get_or_create(&KindLabel { request_kind })
                .set(waiting.try_into().unwrap_or(i64::MAX));
        }
        for (of, bytes) in
            ["bodies", "trees", "webhooks", "lists", "heads"].into_iter().zip(sources.flow.bytes())
        {
            self.request_bytes
                .get_or_create(&OfLabel { of })
                .set(bytes.try_into().unwrap_or(i64::MAX));
        }
        let stats = sources.registry.store().stats();
        let audit = sources.audit.stats();
        let store = &self.store;
        for (gauge, value) in [
            (&store.revision, stats.revision.0),
            (&store.commits, stats.commits),
            (&store.syncs, stats.syncs),
            (&store.queue, stats.queue as u64),
            (&store.history_bytes, stats.history_bytes as u64),
            (&store.live_bytes, stats.live_bytes),
            (&store.journal_bytes, stats.journal_bytes),
            (&store.disk_full, u64::from(stats.disk_full)),
            (&store.writes_alone, u64::from(stats.writes_alone)),
            (&store.damaged, u64::from(stats.damaged)),
            (&store.repairs, stats.repairs),
            (&store.history_lost, stats.history_lost.0),
            (&store.audit_events, audit.written),
            (&store.audit_errors, audit.errors),
            (&store.audit_dropped, audit.dropped),
        ] {
            gauge.set(value.try_into().unwrap_or(i64::MAX));
        }
        store.sync_seconds.set(stats.sync_time.as_secs_f64());
        for (prefix, count) in &stats.entries {
            let resource =
                prefix.as_str().trim_start_matches("/registry/").trim_end_matches('/').to_owned();
            self.objects
                .get_or_create(&ResourceLabel { resource })
                .set((*count).try_into().unwrap_or(i64::MAX));
        }
        self.unavailable.clear();
        for (name, is_available) in sources.aggregator.availability() {
            self.unavailable.get_or_create(&NameLabel { name }).set((!is_available).into());
        }
    }
}

impl Metrics {
    fn refresh_trace(&self, sources: &MetricSources) {
        let stamps = sources.registry.stamps();
        for (outcome, count) in [("stamped", stamps.stamped), ("skipped", stamps.skipped)] {
            self.trace
                .stamps
                .get_or_create(&OutcomeLabel { outcome })
                .inner()
                .store(count, Ordering::Relaxed);
        }
        let spans = ferrokube_trace::export::stats().unwrap_or_default();
        self.trace.exported.inner().store(spans.exported, Ordering::Relaxed);
        self.trace.dropped.inner().store(spans.dropped, Ordering::Relaxed);
    }
}

fn verb(action: &Action) -> &'static str {
    let Some(resource) = action.resource() else {
        return match action.verb() {
            "get" => "GET",
            "post" => "POST",
            "put" => "PUT",
            "patch" => "PATCH",
            "delete" => "DELETE",
            "head" => "HEAD",
            _ => "OTHER",
        };
    };
    match resource.verb() {
        Verb::Get => "GET",
        Verb::List => "LIST",
        Verb::Watch => "WATCH",
        Verb::Create => "POST",
        Verb::Update => "PUT",
        Verb::Patch => "PATCH",
        Verb::Delete => "DELETE",
        Verb::DeleteCollection => "DELETECOLLECTION",
        Verb::Proxy | Verb::Unknown => "OTHER",
    }
}

fn scope(action: &Action) -> &'static str {
    match action.resource() {
        None => "",
        Some(resource) if !resource.name().is_empty() || resource.verb() == Verb::Create => {
            "resource"
        }
        Some(resource) if !resource.namespace().is_empty() => "namespace",
        Some(_) => "cluster",
    }
}
