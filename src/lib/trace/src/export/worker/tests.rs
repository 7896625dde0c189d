//! A collector that is there, one that is not, one that refuses.

use super::*;
use crate::context::TraceContext;
use crate::export::{Endpoint, Kind, Sampler, Span, Stats};
use crate::scope::Seam;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;
use tokio::net::TcpListener;

/// How a collector answers.
#[derive(Clone, Copy)]
enum Answers {
    Http(u16),
    Grpc(&'static str),
}

type Seen = (String, String, Vec<u8>);

/// A collector on a thread of its own: its address, and what it gets.
fn collector(answers: Answers) -> (String, Receiver<Seen>) {
    let (seen, requests) = channel();
    let (told, address) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            told.send(listener.local_addr().unwrap().to_string()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let seen: Sender<Seen> = seen.clone();
                let service = service_fn(move |request| answer(request, seen.clone(), answers));
                tokio::spawn(async move { auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await.map_err(drop) });
            }
        });
    });
    (address.recv().unwrap(), requests)
}

type Frames = StreamBody<futures::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

async fn answer(request: Request<Incoming>, seen: Sender<Seen>, answers: Answers) -> Result<Response<Frames>, Infallible> {
    let (head, body) = request.into_parts();
    let kind = head.headers["content-type"].to_str().unwrap().to_owned();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    let _ = seen.send((head.uri.path().to_owned(), kind, body));
    let mut frames = Vec::new();
    let mut response = Response::builder();
    match answers {
        Answers::Http(status) => response = response.status(status),
        Answers::Grpc(status) => {
            frames.push(Ok(Frame::data(Bytes::from_static(&[0, 0, 0, 0, 0]))));
            frames.push(Ok(Frame::trailers(HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), status.parse().unwrap())]))));
        }
    }
    Ok(response.body(StreamBody::new(futures::stream::iter(frames))).unwrap())
}

fn exporter() -> Arc<Exporter> {
    Arc::new(Exporter { sampler: Sampler::per_million(1_000_000), buffer: super::super::buffer::Buffer::default() })
}

fn started(endpoint: &str, exporter: &Arc<Exporter>) -> Finish {
    let config = Config { endpoint: endpoint.parse().unwrap(), sampler: exporter.sampler, service: "s".into(), instance: "i".into() };
    start(&config, Arc::clone(exporter)).unwrap()
}

fn record(exporter: &Arc<Exporter>, context: &TraceContext) {
    let seam = Seam { name: "create", resource: "pods", namespace: "n", object: "" };
    let mut span = Span::recorded_by(Arc::clone(exporter), context, Kind::Server, &seam, (std::time::SystemTime::now(), Instant::now()));
    span.number("http.response.status_code", 201);
    span.link(&TraceContext::root());
    span.fail();
}

fn wait_for(exporter: &Exporter, want: Stats) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while exporter.buffer.stats() != want {
        assert!(Instant::now() < deadline, "{:?} instead of {want:?}", exporter.buffer.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The fields of a protobuf message: number, bytes (of a number: its eight bytes).
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let length = match tag & 7 {
            0 => {
                found.push((tag >> 3, varint(&mut message).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            5 => 4,
            _ => usize::try_from(varint(&mut message)).unwrap(),
        };
        found.push((tag >> 3, message[..length].to_vec()));
        message = &message[length..];
    }
    found
}

fn one(message: &[u8], number: u64) -> Vec<u8> {
    let mut found = fields(message).into_iter().filter(|(field, _)| *field == number);
    let value = found.next().unwrap_or_else(|| panic!("no field {number}")).1;
    assert!(found.next().is_none(), "field {number} is there twice");
    value
}

#[test]
fn spans_arrive_over_http_with_parent_link_and_attributes() {
    let (address, requests) = collector(Answers::Http(200));
    let exporter = exporter();
    let finish = started(&format!("http://{address}"), &exporter);
    let parent = TraceContext::root().with_initial(Some(crate::TraceId::random())).with_sampled(true);
    let context = parent.child();
    record(&exporter, &context);
    let (path, kind, body) = requests.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!((path.as_str(), kind.as_str()), ("/v1/traces", "application/x-protobuf"));
    let resource_spans = one(&body, 1);
    assert_eq!(fields(&one(&resource_spans, 1)).len(), 3, "attributes of the resource");
    let span = one(&one(&resource_spans, 2), 2);
    assert_eq!(one(&span, 1), context.trace_id.bytes());
    assert_eq!(one(&span, 2), context.span_id.bytes());
    assert_eq!(one(&span, 4), parent.span_id.bytes());
    assert_eq!(one(&span, 5), b"create pods");
    assert_eq!((one(&span, 6)[0], one(&span, 16)[0]), (2, 1));
    let time = |number| u64::from_le_bytes(one(&span, number).try_into().unwrap());
    assert!(time(7) > 1_600_000_000_000_000_000 && time(8) >= time(7));
    assert_eq!(one(&one(&span, 15), 3)[0], 2);
    assert_eq!(one(&one(&span, 13), 1).len(), 16);
    let keys: Vec<String> = fields(&span).iter().filter(|(field, _)| *field == 9).map(|(_, pair)| String::from_utf8(one(pair, 1)).unwrap()).collect();
    assert_eq!(keys, ["k8s.resource", "k8s.namespace", "initial_trace_id", "http.response.status_code"]);
    wait_for(&exporter, Stats { exported: 1, dropped: 0 });
    // What is still waiting at the end is sent, too.
    record(&exporter, &context);
    drop(finish);
    assert_eq!(exporter.buffer.stats(), Stats { exported: 2, dropped: 0 });
}

#[test]
fn spans_arrive_over_grpc() {
    let (address, requests) = collector(Answers::Grpc("0"));
    let exporter = exporter();
    let _finish = started(&address, &exporter);
    for _ in 0..3 {
        record(&exporter, &TraceContext::root().with_sampled(true));
    }
    let (path, kind, body) = requests.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!((path.as_str(), kind.as_str()), ("/opentelemetry.proto.collector.trace.v1.TraceService/Export", "application/grpc"));
    assert_eq!(body[0], 0);
    assert_eq!(u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize, body.len() - 5);
    let spans = fields(&one(&one(&body[5..], 1), 2)).iter().filter(|(field, _)| *field == 2).count();
    assert!((1..=3).contains(&spans));
    wait_for(&exporter, Stats { exported: 3, dropped: 0 });
}

#[test]
fn what_a_collector_refuses_is_dropped_and_counted() {
    for (answers, endpoint) in [(Answers::Http(400), "http://"), (Answers::Grpc("3"), "")] {
        let (address, _requests) = collector(answers);
        let exporter = exporter();
        let _finish = started(&format!("{endpoint}{address}"), &exporter);
        record(&exporter, &TraceContext::root().with_sampled(true));
        wait_for(&exporter, Stats { exported: 0, dropped: 1 });
    }
}

#[test]
fn p15_without_a_collector_nobody_waits() {
    // A port that was free a moment ago: nobody answers.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let exporter = exporter();
    let finish = started(&format!("http://127.0.0.1:{port}"), &exporter);
    let began = Instant::now();
    for _ in 0..20_000 {
        record(&exporter, &TraceContext::root().with_sampled(true));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(exporter.buffer.stats().dropped >= 10_000);
    let began = Instant::now();
    drop(finish);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn contexts_that_are_not_sampled_and_processes_that_export_nothing_have_no_spans() {
    let seam = Seam { name: "get", resource: "", namespace: "", object: "" };
    assert!(!Span::start(&TraceContext::root(), Kind::Server, &seam).is_recorded());
    assert!(!Span::start(&TraceContext::root().with_sampled(true), Kind::Server, &seam).is_recorded());
    assert!(!Span::step(&seam).is_recorded());
    let _: Endpoint = Endpoint::default();
    let context = TraceContext::root().with_sampled(true);
    assert_eq!(crate::export::sample(context), context);
    let (inside, _) = crate::in_scope(&context, || Span::part(Kind::Client, &seam));
    assert_eq!(inside.unwrap().parent_span_id, Some(context.span_id));
}
