//! Collectors that accept spans, refuse them, hang or do not exist.

use super::queue::SpanStats;
use super::{
    Endpoint, ExportConfig, Exporter, Finish, Sampler, Span, SpanSide, SpanStart, start_batching,
};
use crate::context::TraceContext;
use crate::scope::SpanInfo;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_sdk::trace::BatchConfigBuilder;
use prost::Message;
use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Far beyond what anything takes on the slowest machine.
const BOUND: Duration = Duration::from_secs(180);

/// Response of a collector.
#[derive(Clone, Copy, Debug)]
enum CollectorBehavior {
    Http(u16),
    Redirect(u16),
    Grpc(&'static str),
    Partial,
    Garbage,
    Silence,
}

struct Received {
    path: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Received {
    fn content_type(&self) -> &str {
        self.headers["content-type"].to_str().unwrap()
    }

    /// The message, without gRPC's five bytes of framing.
    fn message(&self) -> ExportTraceServiceRequest {
        let frame = if self.content_type() == "application/grpc" { 5 } else { 0 };
        ExportTraceServiceRequest::decode(&self.body[frame..]).unwrap()
    }
}

/// Starts a collector thread; returns its address and the received requests.
fn collector(answer: CollectorBehavior) -> (String, Receiver<Received>) {
    let (received, requests) = channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let received: Sender<Received> = received.clone();
                let service = service_fn(move |request| respond(request, received.clone(), answer));
                tokio::spawn(async move {
                    auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                        .map_err(drop)
                });
            }
        });
    });
    (address, requests)
}

type Frames =
    StreamBody<futures::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

async fn respond(
    request: Request<Incoming>,
    received: Sender<Received>,
    answer: CollectorBehavior,
) -> Result<Response<Frames>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    let _ =
        received.send(Received { path: head.uri.path().to_owned(), headers: head.headers, body });
    let mut frames = Vec::new();
    let mut response = Response::builder();
    match answer {
        CollectorBehavior::Http(status) => response = response.status(status),
        CollectorBehavior::Redirect(status) => {
            response = response.status(status).header("location", "/elsewhere")
        }
        CollectorBehavior::Grpc(status) => {
            response = response.header("content-type", "application/grpc");
            frames.push(Ok(Frame::data(Bytes::from_static(&[0, 0, 0, 0, 0]))));
            frames.push(Ok(Frame::trailers(HeaderMap::from_iter([(
                HeaderName::from_static("grpc-status"),
                status.parse().unwrap(),
            )]))));
        }
        CollectorBehavior::Partial => {
            let partial =
                ExportTracePartialSuccess { rejected_spans: 1, error_message: String::new() };
            frames.push(Ok(Frame::data(
                ExportTraceServiceResponse { partial_success: Some(partial) }
                    .encode_to_vec()
                    .into(),
            )));
        }
        CollectorBehavior::Garbage => frames.push(Ok(Frame::data(Bytes::from_static(&[0xff; 64])))),
        CollectorBehavior::Silence => std::future::pending().await,
    }
    Ok(response.body(StreamBody::new(futures::stream::iter(frames))).unwrap())
}

fn config(endpoint: Option<&str>) -> ExportConfig {
    let endpoint = endpoint.map(|endpoint| endpoint.parse::<Endpoint>().unwrap());
    ExportConfig {
        endpoint,
        sampler: Some(Sampler::per_million(1_000_000)),
        service: "s".into(),
        instance: "i".into(),
    }
}

fn started(endpoint: Option<&str>) -> (Arc<Exporter>, Finish) {
    let finish = start_batching(
        &config(endpoint),
        BatchConfigBuilder::default().with_scheduled_delay(Duration::from_millis(10)),
    )
    .unwrap();
    (Arc::clone(&finish.exporter), finish)
}

fn record(exporter: &Arc<Exporter>, context: &TraceContext) {
    let info = SpanInfo { name: "create", resource: "pods", namespace: "n", object: "" };
    let mut span =
        Span::recorded_by(Arc::clone(exporter), context, SpanSide::Server, &info, SpanStart::now());
    span.number("http.response.status_code", 201);
    span.link(&TraceContext::root());
    span.fail();
}

fn sampled() -> TraceContext {
    TraceContext::root().with_sampled(true)
}

fn wait_for(exporter: &Exporter, want: SpanStats) {
    let deadline = Instant::now() + BOUND;
    while exporter.queue.stats() != want {
        assert!(Instant::now() < deadline, "{:?} instead of {want:?}", exporter.queue.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn next(requests: &Receiver<Received>) -> Received {
    requests.recv_timeout(BOUND).unwrap()
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    match attributes.iter().find(|attribute| attribute.key == key) {
        Some(KeyValue {
            value: Some(AnyValue { value: Some(any_value::Value::StringValue(text)) }),
            ..
        }) => text.clone(),
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn spans_arrive_over_http_with_parent_link_and_attributes() {
    let (address, requests) = collector(CollectorBehavior::Http(200));
    let (exporter, finish) = started(Some(&format!("http://{address}")));
    let parent = sampled().with_initial(Some(crate::TraceId::random()));
    let context = parent.child();
    record(&exporter, &context);
    let request = next(&requests);
    assert_eq!(
        (request.path.as_str(), request.content_type()),
        ("/v1/traces", "application/x-protobuf")
    );
    let message = request.message();
    let [spans] = &message.resource_spans[..] else { panic!("{message:?}") };
    let resource = &spans.resource.as_ref().unwrap().attributes;
    let own =
        ["service.name", "service.version", "service.instance.id"].map(|key| text(resource, key));
    assert_eq!(own, ["s", env!("CARGO_PKG_VERSION"), "i"]);
    let span = &spans.scope_spans[0].spans[0];
    assert_eq!(span.trace_id, context.trace_id.bytes());
    assert_eq!(span.span_id, context.span_id.bytes());
    assert_eq!(span.parent_span_id, parent.span_id.bytes());
    assert_eq!(
        (span.name.as_str(), span.kind(), span.flags & 1),
        ("create pods", SpanKind::Server, 1)
    );
    assert!(
        span.start_time_unix_nano > 1_600_000_000_000_000_000
            && span.end_time_unix_nano >= span.start_time_unix_nano
    );
    assert_eq!(span.status.as_ref().unwrap().code(), StatusCode::Error);
    assert_eq!((span.links.len(), span.links[0].trace_id.len()), (1, 16));
    let keys: Vec<&str> = span.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
    assert_eq!(
        keys,
        ["k8s.resource", "k8s.namespace", "initial_trace_id", "http.response.status_code"]
    );
    wait_for(&exporter, SpanStats { exported: 1, dropped: 0 });
    // Spans queued at the end are sent, too.
    record(&exporter, &context);
    drop(finish);
    assert_eq!(exporter.queue.stats(), SpanStats { exported: 2, dropped: 0 });
}

#[test]
fn spans_arrive_over_grpc() {
    let (address, requests) = collector(CollectorBehavior::Grpc("0"));
    let (exporter, _finish) = started(Some(&address));
    for _ in 0..3 {
        record(&exporter, &sampled());
    }
    let request = next(&requests);
    assert_eq!(
        (request.path.as_str(), request.content_type()),
        ("/opentelemetry.proto.collector.trace.v1.TraceService/Export", "application/grpc")
    );
    let spans = request.message().resource_spans[0].scope_spans[0].spans.len();
    assert!((1..=3).contains(&spans));
    wait_for(&exporter, SpanStats { exported: 3, dropped: 0 });
}

#[test]
fn refused_spans_are_dropped_and_counted() {
    for (answer, scheme) in [
        (CollectorBehavior::Http(400), "http://"),
        (CollectorBehavior::Redirect(307), "http://"),
        (CollectorBehavior::Grpc("3"), ""),
        (CollectorBehavior::Garbage, ""),
    ] {
        let (address, requests) = collector(answer);
        let (exporter, _finish) = started(Some(&format!("{scheme}{address}")));
        record(&exporter, &sampled());
        wait_for(&exporter, SpanStats { exported: 0, dropped: 1 });
        let sent: Vec<String> = requests.try_iter().map(|request| request.path).collect();
        assert!(!sent.contains(&"/elsewhere".to_owned()), "{answer:?} was followed");
    }
}

/// Neither the exporter nor the SDK reports spans of an accepted batch that the collector rejected.
#[test]
fn a_partially_accepted_batch_counts_as_exported() {
    for answer in [CollectorBehavior::Partial, CollectorBehavior::Garbage] {
        let (address, _requests) = collector(answer);
        let (exporter, _finish) = started(Some(&format!("http://{address}")));
        record(&exporter, &sampled());
        wait_for(&exporter, SpanStats { exported: 1, dropped: 0 });
    }
}

#[test]
fn p15_without_a_collector_nobody_waits() {
    // Nothing listens on a port that was just free; the other collector accepts requests and never
    // responds.
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (silent, _requests) = collector(CollectorBehavior::Silence);
    for endpoint in [format!("http://{unused}"), unused, format!("http://{silent}"), silent] {
        let (exporter, finish) = started(Some(&endpoint));
        let recording = Arc::clone(&exporter);
        returns(move || (0..20_000).for_each(|_| record(&recording, &sampled())));
        assert!(
            exporter.queue.stats().dropped >= 10_000,
            "{endpoint}: {:?}",
            exporter.queue.stats()
        );
        returns(|| drop(finish));
    }
}

/// Fails if `run` waits for something that does not come.
fn returns(run: impl FnOnce() + Send + 'static) {
    let (done, returned) = channel();
    std::thread::spawn(move || {
        run();
        done.send(())
    });
    returned.recv_timeout(BOUND).expect("it returns");
}

#[test]
fn unsampled_contexts_and_processes_without_export_have_no_spans() {
    let info = SpanInfo { name: "get", resource: "", namespace: "", object: "" };
    assert!(!Span::start(&TraceContext::root(), SpanSide::Server, &info).is_recorded());
    assert!(!Span::start(&sampled(), SpanSide::Server, &info).is_recorded());
    assert!(!Span::step(&info).is_recorded());
    let context = sampled();
    assert_eq!(crate::export::sample(context), context);
    let (inside, _) = crate::in_scope(&context, || Span::part(SpanSide::Client, &info));
    assert_eq!(inside.unwrap().parent_span_id, Some(context.span_id));
}

#[test]
fn texts_attributes_and_links_of_a_span_are_bounded() {
    let (address, requests) = collector(CollectorBehavior::Http(200));
    let (exporter, _finish) = started(Some(&format!("http://{address}")));
    let long = "\u{e9}".repeat(5_000);
    let info = SpanInfo { name: &long, resource: "", namespace: "", object: "" };
    let mut span = Span::recorded_by(
        Arc::clone(&exporter),
        &sampled(),
        SpanSide::Internal,
        &info,
        SpanStart::now(),
    );
    for _ in 0..100 {
        span.text("long", &long);
        span.link(&TraceContext::root());
    }
    drop(span);
    let message = next(&requests).message();
    let span = &message.resource_spans[0].scope_spans[0].spans[0];
    assert_eq!((span.name.len(), span.attributes.len(), span.links.len()), (1024, 16, 16));
    assert_eq!(text(&span.attributes, "long").len(), 1024);
}

/// Set in child processes, which get the variables and the collector: a process cannot change its
/// own environment safely.
const CHILD: &str = "FERROKUBE_TEST_EXPORT";

/// Reruns the named test in a child process with these variables.
fn rerun(test: &str, variables: &[(&str, &str)]) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", &format!("export::tests::{test}"), "--nocapture"])
        .env(CHILD, "1")
        .envs(variables.iter().copied());
    let output = child.output().unwrap();
    assert!(
        output.status.success(),
        "{variables:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_environment_names_collector_headers_compression_and_attributes() {
    if std::env::var_os(CHILD).is_some() {
        let (exporter, finish) = started(None);
        record(&exporter, &sampled());
        wait_for(&exporter, SpanStats { exported: 1, dropped: 0 });
        return drop(finish);
    }
    for (answer, protocol) in
        [(CollectorBehavior::Grpc("0"), "grpc"), (CollectorBehavior::Http(200), "http/protobuf")]
    {
        let (address, requests) = collector(answer);
        rerun(
            "the_environment_names_collector_headers_compression_and_attributes",
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}")),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret"),
                ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ],
        );
        let request = next(&requests);
        assert_eq!(request.headers["x-key"], "secret");
        let encoding = if protocol == "grpc" { "grpc-encoding" } else { "content-encoding" };
        assert_eq!(request.headers[encoding], "gzip", "{protocol}");
    }
}

#[test]
fn unsupported_settings_in_the_environment_are_refused() {
    if std::env::var_os(CHILD).is_some() {
        let error = start_batching(&config(None), BatchConfigBuilder::default())
            .map(drop)
            .expect_err("refused");
        return println!("{error}");
    }
    let cases: [&[(&str, &str)]; 3] = [
        &[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")],
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4317")],
    ];
    for variables in cases {
        rerun("the_environment_cannot_name_what_does_not_work", variables);
    }
}
