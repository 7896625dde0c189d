//! Plain HTTP on the TLS port: answered in words, as Go's server does, instead of with a TLS alert
//! that HTTP clients show as garbage.

use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ANSWER: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// The first bytes of a TLS record that may begin a handshake.
const HANDSHAKE: u8 = 0x16;
/// How requests begin, as far as a record's header is long.
const METHODS: [&[u8; 5]; 8] =
    [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"PATCH", b"DELET", b"OPTIO", b"PRI *"];
/// How long, and how much, is read on, so that the client gets to see the answer: unread bytes
/// would reset the connection.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 64 << 10;

/// Waits for the first bytes. True when they are no TLS: the connection was then answered, if it is
/// HTTP, and is done with.
pub(crate) async fn refused(socket: &mut TcpStream) -> bool {
    let mut first = [0; 5];
    match socket.peek(&mut first[..1]).await {
        Ok(1) if first[0] != HANDSHAKE => {}
        _ => return false,
    }
    // Records of other types go to the TLS library, which has an alert for them.
    if !first[0].is_ascii_uppercase() {
        return false;
    }
    if socket.read_exact(&mut first).await.is_ok()
        && METHODS.contains(&&first)
        && socket.write_all(ANSWER).await.is_ok()
        && socket.shutdown().await.is_ok()
    {
        let mut rest = Vec::new();
        let _ =
            tokio::time::timeout(LINGER, socket.take(LINGER_BYTES as u64).read_to_end(&mut rest))
                .await;
    }
    true
}
