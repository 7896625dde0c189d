//! Translates the websocket protocols of newer clients to SPDY for kubelets and runtimes, as
//! kube-apiserver does.
//!
//! `v5.channel.k8s.io` (`exec`, `attach`) has a message that closes stdin, which older websocket
//! protocols lack; `SPDY/3.1+portforward.k8s.io` tunnels SPDY unchanged.

use crate::kind::ConnectKind;
use crate::spdy::{SpdyFrame, SpdyReader, SpdyWriter};
use crate::websocket::{self, ClientFrame, ServerFrame, WebsocketReader, frame};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_relay::{
    DelegationError, NetworkStream, OnUpgrade, Relay, Tunnels, Upgrading, opened, relayed, switch,
};
use ferrokube_serve::{Body, Response};
use http::header::{HeaderName, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};

const CHANNELS: &str = "v5.channel.k8s.io";
const PORTS: &str = "SPDY/3.1+portforward.k8s.io";
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Capacity of the queue of ping replies; further ones are dropped.
const REPLIES: usize = 16;
/// Bytes per message of a forwarded port.
const PIECE: usize = 32 << 10;
/// Timeout for the response to the upgrade request.
const ANSWER: Duration = Duration::from_secs(60);

/// The translation of a websocket.
pub(crate) enum Translation {
    /// Per stream: its SPDY id, its channel and its name.
    Channels(Vec<(u32, u8, &'static str)>),
    Ports,
}

impl Translation {
    /// The translation of a request; `None` if its protocol is forwarded unchanged.
    pub(crate) fn of(kind: ConnectKind, headers: &HeaderMap, options: &Document) -> Option<Self> {
        let is_stream = matches!(kind, ConnectKind::Exec | ConnectKind::Attach);
        if is_stream && websocket::offered(headers, CHANNELS) {
            let is = |name: &str| options.get(&[name]).and_then(Value::as_bool) == Some(true);
            let wanted = [
                (true, 3, "error"),
                (is("stdin"), 0, "stdin"),
                (is("stdout"), 1, "stdout"),
                (is("stderr") && !is("tty"), 2, "stderr"),
                (is("tty"), 4, "resize"),
            ];
            let wanted = wanted.into_iter().filter(|(is_wanted, ..)| *is_wanted);
            let streams =
                wanted.zip(0..).map(|((_, channel, name), at)| (2 * at + 1, channel, name));
            return Some(Self::Channels(streams.collect()));
        }
        (kind == ConnectKind::PortForward && websocket::offered(headers, PORTS))
            .then_some(Self::Ports)
    }

    fn protocols(&self) -> [&'static str; 2] {
        match self {
            Self::Channels(_) => [CHANNELS, "v4.channel.k8s.io"],
            Self::Ports => [PORTS, "portforward.k8s.io"],
        }
    }
}

/// A websocket to be translated.
pub(crate) struct TranslatedCall<'a> {
    pub(crate) translation: Translation,
    pub(crate) client: OnUpgrade,
    pub(crate) client_headers: &'a HeaderMap,
    pub(crate) relay: Relay,
    pub(crate) request: Request<Body>,
}

/// Upgrades both connections, each to its protocol.
///
/// # Errors
/// [`DelegationError`].
pub(crate) async fn translated(
    connection: impl NetworkStream,
    tunnels: &Tunnels,
    call: TranslatedCall<'_>,
) -> Result<Response, DelegationError> {
    let TranslatedCall { translation, client, client_headers, mut relay, mut request } = call;
    let [protocol, inner] = translation.protocols();
    let no_key = || DelegationError::Unreachable("the websocket has no key".to_owned());
    let answer = websocket::answer(client_headers, protocol).ok_or_else(no_key)?;
    *request.method_mut() = Method::POST;
    let headers = request.headers_mut();
    for name in ["key", "version", "extensions", "accept"] {
        headers.remove(format!("sec-websocket-{name}"));
    }
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    headers.insert(STREAM_PROTOCOL, HeaderValue::from_static(inner));
    let switched = switch(connection, tunnels, "SPDY/3.1", request);
    let server = match relay.unless_interrupted(switched).await? {
        Upgrading::Switched(server, _) => server,
        Upgrading::Answered(response) => {
            relay.deadline = Some(Instant::now() + ANSWER);
            return relayed(response, relay);
        }
    };
    tunnels.spawn(async move {
        let translating = async {
            let both = futures::future::join(opened(client), opened(server)).await;
            let (Some(client), Some(server)) = both else { return };
            let ended = match translation {
                Translation::Channels(streams) => channels(client, server, &streams).await,
                Translation::Ports => ports(client, server).await,
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a translated websocket ended");
            }
        };
        tokio::select! {
            () = translating => {}
            _ = relay.interrupted() => {}
        }
    });
    let mut out = Response::new(ferrokube_serve::empty());
    *out.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *out.headers_mut() = answer;
    Ok(out)
}

/// `exec` and `attach`: one stream per channel.
async fn channels(
    client: impl AsyncRead + AsyncWrite,
    server: impl AsyncRead + AsyncWrite,
    streams: &[(u32, u8, &'static str)],
) -> io::Result<()> {
    let (from_client, to_client) = split(client);
    let (from_server, mut to_server) = split(server);
    let mut writer = SpdyWriter::default();
    for (stream, _, name) in streams {
        to_server.write_all(&writer.open(*stream, &[("streamtype", name)])).await?;
    }
    // Ping replies are queued, so that a peer that does not read cannot block reading from it.
    let (pings, pinged) = mpsc::channel(REPLIES);
    let (pongs, ponged) = mpsc::channel(REPLIES);
    tokio::select! {
        ended = output(from_server, to_client, streams, pings, ponged) => ended,
        ended = input(from_client, to_server, streams, pongs, pinged) => ended,
    }
}

/// Copies from the command to the client until all streams have ended.
async fn output(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    streams: &[(u32, u8, &'static str)],
    pings: mpsc::Sender<u32>,
    mut pongs: mpsc::Receiver<bytes::Bytes>,
) -> io::Result<()> {
    let mut reader = SpdyReader::new(from);
    let is_output = |(_, channel, _): &&(u32, u8, &str)| matches!(channel, 1..=3);
    let mut left: Vec<u32> = streams.iter().filter(is_output).map(|(stream, ..)| *stream).collect();
    while !left.is_empty() {
        let read = tokio::select! {
            read = reader.next() => read?,
            Some(pong) = pongs.recv() => {
                to.write_all(&frame(ServerFrame::Pong, [&pong, b""])).await?;
                continue;
            }
        };
        match read {
            Some(SpdyFrame::Data { stream, data, is_last }) => {
                let channel = streams.iter().find(|(number, ..)| *number == stream);
                if let Some((_, channel, _)) = channel.filter(|_| !data.is_empty()) {
                    to.write_all(&frame(ServerFrame::Binary, [&[*channel], &data])).await?;
                    to.flush().await?;
                }
                if is_last {
                    left.retain(|number| *number != stream);
                }
            }
            Some(SpdyFrame::Ping(id)) => _ = pings.try_send(id),
            Some(SpdyFrame::Reset(stream)) => left.retain(|number| *number != stream),
            Some(SpdyFrame::GoAway) => {}
            None => break,
        }
    }
    // 1000: a normal end.
    to.write_all(&frame(ServerFrame::Close, [&1000_u16.to_be_bytes(), b""])).await?;
    to.shutdown().await
}

/// Copies from the client to the command until the client closes.
async fn input(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    streams: &[(u32, u8, &'static str)],
    pongs: mpsc::Sender<bytes::Bytes>,
    mut pings: mpsc::Receiver<u32>,
) -> io::Result<()> {
    /// Channel of messages that close another channel.
    const CLOSE: u8 = 255;
    let mut reader = WebsocketReader::new(from);
    // Of the message that is being read.
    let mut channel = None;
    let stream_of = |channel: u8| {
        let stream = streams.iter().find(|(_, known, _)| *known == channel);
        stream.filter(|_| matches!(channel, 0 | 4)).map(|(stream, ..)| *stream)
    };
    loop {
        let read = tokio::select! {
            read = reader.next() => read?,
            Some(id) = pings.recv() => {
                to.write_all(&SpdyWriter::ping(id)).await?;
                continue;
            }
        };
        let (data, begins) = match read {
            ClientFrame::Data { data, begins } => (data, begins),
            ClientFrame::Ping(data) => {
                let _ = pongs.try_send(data);
                continue;
            }
            ClientFrame::Close => return Ok(()),
        };
        let mut rest = &data[..];
        if begins {
            channel = rest.split_off_first().copied();
        }
        let out = match (channel, rest) {
            (Some(CLOSE), [channel, ..]) if begins => {
                stream_of(*channel).map(|stream| SpdyWriter::data(stream, b"", true))
            }
            (Some(channel), rest) if channel != CLOSE && !rest.is_empty() => {
                stream_of(channel).map(|stream| SpdyWriter::data(stream, rest, false))
            }
            _ => None,
        };
        if let Some(out) = out {
            to.write_all(&out).await?;
            to.flush().await?;
        }
    }
}

/// `portforward`: SPDY tunneled in websocket messages.
async fn ports(
    client: impl AsyncRead + AsyncWrite,
    server: impl AsyncRead + AsyncWrite,
) -> io::Result<()> {
    let (from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = split(server);
    let (pongs, mut ponged) = mpsc::channel::<bytes::Bytes>(REPLIES);
    let down = async {
        let mut piece = vec![0; PIECE];
        loop {
            let count = tokio::select! {
                count = from_server.read(&mut piece) => count?,
                Some(pong) = ponged.recv() => {
                    to_client.write_all(&frame(ServerFrame::Pong, [&pong, b""])).await?;
                    continue;
                }
            };
            if count == 0 {
                let end = 1000_u16.to_be_bytes();
                to_client.write_all(&frame(ServerFrame::Close, [&end, b""])).await?;
                return to_client.shutdown().await;
            }
            to_client.write_all(&frame(ServerFrame::Binary, [&piece[..count], b""])).await?;
            to_client.flush().await?;
        }
    };
    let up = async {
        let mut reader = WebsocketReader::new(from_client);
        loop {
            match reader.next().await? {
                ClientFrame::Data { data, .. } => {
                    to_server.write_all(&data).await?;
                    to_server.flush().await?;
                }
                ClientFrame::Ping(data) => _ = pongs.try_send(data),
                ClientFrame::Close => return Ok(()),
            }
        }
    };
    tokio::select! {
        ended = down => ended,
        ended = up => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::websocket::masked;
    use bytes::Bytes;
    use ferrokube_apimachinery::document::json;
    use tokio::io::duplex;

    const STREAMS: [(u32, u8, &str); 4] =
        [(1, 3, "error"), (3, 0, "stdin"), (5, 1, "stdout"), (7, 2, "stderr")];

    #[test]
    fn streams_are_those_that_are_asked_for() {
        let of = |protocol: &'static str, options: Value| {
            let headers = HeaderMap::from_iter([(
                SEC_WEBSOCKET_PROTOCOL,
                HeaderValue::from_static(protocol),
            )]);
            let options = Document::from_value(options).unwrap();
            match Translation::of(ConnectKind::Exec, &headers, &options)? {
                Translation::Channels(streams) => Some(streams),
                Translation::Ports => None,
            }
        };
        let all = json!({"stdin": true, "stdout": true, "stderr": true});
        assert_eq!(of("v5.channel.k8s.io, v4.channel.k8s.io", all), Some(STREAMS.to_vec()));
        let terminal = json!({"stdout": true, "stderr": true, "tty": true});
        let wanted = vec![(1, 3, "error"), (3, 1, "stdout"), (5, 4, "resize")];
        assert_eq!(of("v5.channel.k8s.io", terminal.clone()), Some(wanted));
        assert_eq!(of("v4.channel.k8s.io", terminal), None);
    }

    #[tokio::test]
    async fn the_end_of_the_input_and_of_the_output_reach_the_other_side() {
        let (mut client, ours) = duplex(1 << 16);
        let (theirs, server) = duplex(1 << 16);
        let translating = tokio::spawn(async move { channels(ours, theirs, &STREAMS).await });
        client.write_all(&masked(0x82, b"\0hello")).await.unwrap();
        client.write_all(&masked(0x82, &[255, 0])).await.unwrap();
        let (from, mut to) = split(server);
        let mut reader = SpdyReader::new(from);
        let data = |data: &'static [u8], is_last| {
            Some(SpdyFrame::Data { stream: 3, data: Bytes::from_static(data), is_last })
        };
        assert_eq!(reader.next().await.unwrap(), data(b"hello", false));
        assert_eq!(reader.next().await.unwrap(), data(b"", true));
        to.write_all(&SpdyWriter::ping(9)).await.unwrap();
        assert_eq!(reader.next().await.unwrap(), Some(SpdyFrame::Ping(9)));
        for (stream, data) in [(5, b"out".as_slice()), (7, b""), (1, b"{}")] {
            to.write_all(&SpdyWriter::data(stream, data, true)).await.unwrap();
        }
        let mut seen = Vec::new();
        client.read_to_end(&mut seen).await.unwrap();
        let end = 1000_u16.to_be_bytes();
        let wanted = [
            frame(ServerFrame::Binary, [b"\x01", b"out"]),
            frame(ServerFrame::Binary, [b"\x03", b"{}"]),
            frame(ServerFrame::Close, [&end, b""]),
        ];
        assert_eq!(seen, wanted.concat());
        translating.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn ports_are_passed_on_as_bytes() {
        let (mut client, ours) = duplex(1 << 16);
        let (theirs, mut server) = duplex(1 << 16);
        let passing = tokio::spawn(ports(ours, theirs));
        client.write_all(&masked(0x82, b"in")).await.unwrap();
        let mut seen = [0; 2];
        server.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"in");
        server.write_all(b"out").await.unwrap();
        drop(server);
        let mut seen = Vec::new();
        client.read_to_end(&mut seen).await.unwrap();
        assert!(seen.starts_with(&frame(ServerFrame::Binary, [b"out", b""])), "{seen:?}");
        passing.await.unwrap().unwrap();
    }
}
