//! Plain HTTP on the TLS port: rejected in HTTP, like Go's server, instead of with a TLS alert that
//! HTTP clients print as garbage.

use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const RESPONSE: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// First byte of a TLS handshake record.
const HANDSHAKE: u8 = 0x16;
/// First bytes of HTTP requests, as many as a TLS record header has.
const METHODS: [&[u8; 5]; 8] =
    [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"PATCH", b"DELET", b"OPTIO", b"PRI *"];
/// Time and bytes of reading on after the response, as unread bytes would reset the connection.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 64 << 10;

/// Waits for the first bytes. True if they are not TLS; then the connection is done, after a
/// response if it is HTTP.
pub(crate) async fn reject_plain(socket: &mut TcpStream) -> bool {
    let mut first = [0; 5];
    match socket.peek(&mut first[..1]).await {
        Ok(1) if first[0] != HANDSHAKE => {}
        _ => return false,
    }
    // The TLS library has an alert for records of other types.
    if !first[0].is_ascii_uppercase() {
        return false;
    }
    if socket.read_exact(&mut first).await.is_ok()
        && METHODS.contains(&&first)
        && socket.write_all(RESPONSE).await.is_ok()
        && socket.shutdown().await.is_ok()
    {
        let mut rest = Vec::new();
        let _ =
            tokio::time::timeout(LINGER, socket.take(LINGER_BYTES as u64).read_to_end(&mut rest))
                .await;
    }
    true
}
