//! Fuzz targets of the readers of frames: what they return does not depend on how the bytes arrive.

use crate::spdy::{SpdyFrame, SpdyReader, SpdyWriter};
use crate::websocket::{ClientFrame, WebsocketReader, masked};
use bytes::Bytes;
use ferrokube_fuzz::{Verdict, run};
use std::collections::BTreeMap;
use std::io;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};

/// Time stands still: it earns control frames.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

/// Passes `input` to a reader, at most `step` bytes at a time.
fn fed<T, F: Future<Output = T>>(
    runtime: &Runtime,
    input: &[u8],
    step: usize,
    read: fn(DuplexStream) -> F,
) -> T {
    let (mut to, from) = tokio::io::duplex(step);
    let writing = async move {
        // Fails if the reader has had enough.
        let _ = to.write_all(input).await;
    };
    runtime.block_on(futures::future::join(read(from), writing)).0
}

/// Messages and pings, and how they ended.
type ReceivedMessages = (Vec<Vec<u8>>, Result<(), io::ErrorKind>);

async fn messages(from: DuplexStream) -> ReceivedMessages {
    let mut reader = WebsocketReader::new(from);
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        match reader.next().await {
            Ok(ClientFrame::Data { data, begins: true }) => all.push(data.to_vec()),
            Ok(ClientFrame::Data { data, .. }) => {
                assert!(!data.is_empty(), "a part of a message has bytes");
                all.last_mut().expect("it began").extend(data);
            }
            Ok(ClientFrame::Ping(data)) => all.push([b"ping".as_slice(), &data].concat()),
            Ok(ClientFrame::Close) => return (all, Ok(())),
            Err(error) => return (all, Err(error.kind())),
        }
    }
}

#[test]
fn websockets_are_read_alike_however_they_arrive() {
    let seeds = [
        masked(0x82, b"\0stdin"),
        [masked(0x89, b"ping"), masked(0x81, b""), masked(0x88, b"")].concat(),
        [masked(0x8a, b""), masked(0x82, &[7; 200]), masked(0x82, &[8; 5_000])].concat(),
        masked(0x89, b"").repeat(150),
        vec![0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4, 5],
    ];
    let runtime = runtime();
    run("websocket", &seeds, |input| {
        let whole = fed(&runtime, input, input.len().max(1), messages);
        let parts = fed(&runtime, input, 1 + input.len() % 7, messages);
        assert_eq!(parts, whole);
        assert!(whole.0.iter().map(Vec::len).sum::<usize>() <= input.len());
        Verdict::from(whole.1.is_ok() && !whole.0.is_empty())
    });
}

/// Bytes by stream, the other frames and ends of streams, and how they ended.
type ReceivedFrames = (BTreeMap<u32, Vec<u8>>, Vec<SpdyFrame>, Result<(), io::ErrorKind>);

async fn frames(from: DuplexStream) -> ReceivedFrames {
    let mut reader = SpdyReader::new(from);
    let (mut streams, mut others) = (BTreeMap::<u32, Vec<u8>>::new(), Vec::new());
    loop {
        match reader.next().await {
            Ok(Some(SpdyFrame::Data { stream, data, is_last })) => {
                streams.entry(stream).or_default().extend(data);
                if is_last {
                    others.push(SpdyFrame::Data { stream, data: Bytes::new(), is_last });
                }
            }
            Ok(Some(frame)) => others.push(frame),
            Ok(None) => return (streams, others, Ok(())),
            Err(error) => return (streams, others, Err(error.kind())),
        }
    }
}

#[test]
fn spdy_is_read_alike_however_it_arrives() {
    let mut writer = SpdyWriter::default();
    let opened = writer.open(1, &[("streamtype", "error")]);
    let seeds = [
        [opened, SpdyWriter::data(1, b"out", false), SpdyWriter::data(1, b"", true)].concat(),
        [SpdyWriter::ping(7), SpdyWriter::data(3, &[7; 5_000], true)].concat(),
        vec![0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 1],
        vec![0x80, 3, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0x10, 0, 0, 1],
    ];
    let runtime = runtime();
    run("spdy", &seeds, |input| {
        let whole = fed(&runtime, input, input.len().max(1), frames);
        let parts = fed(&runtime, input, 1 + input.len() % 7, frames);
        assert_eq!(parts, whole);
        assert!(whole.0.values().map(Vec::len).sum::<usize>() <= input.len());
        Verdict::from(whole.2.is_ok())
    });
}
