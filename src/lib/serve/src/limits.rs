//! Limits of a listener.

use rustix::process::{Resource, getrlimit};
use std::time::Duration;

/// Limits on the time and memory that one client may use.
#[derive(Clone, Debug)]
pub struct ListenerLimits {
    /// Max time of the TLS handshake.
    pub handshake: Duration,
    /// Max time of a request's head: from the handshake for the first, from its first byte for
    /// others.
    pub header: Duration,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Bytes of unfinished heads over all connections, beyond 4 KiB each; above, the oldest are
    /// cut.
    pub unfinished_bytes: usize,
    /// Header fields of a request (HTTP/1.1; HTTP/2 counts bytes).
    pub headers: usize,
    /// An idle connection is closed after this long, at most twice as long.
    pub idle: Duration,
    /// A client that reads nothing of a response (HTTP/2: of one of them) is cut after this long,
    /// at most half as long again.
    pub stall: Duration,
    /// Bytes that responses may hold while their clients read them, over all connections. Above,
    /// clients that read nothing are cut within two seconds, and connections with more than their
    /// share accept no request.
    pub held_bytes: usize,
    /// Concurrent connections; fewer if the process may not have as many descriptors. A source may
    /// have as many as are free.
    pub connections: usize,
    /// Concurrent requests on one HTTP/2 connection.
    pub streams: u32,
    /// Interval of PINGs to a silent HTTP/2 client.
    pub ping: Duration,
    /// Time to acknowledge them.
    pub pong: Duration,
    /// How long a drain waits for requests in flight.
    pub drain: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            header_bytes: 1 << 20,
            unfinished_bytes: 16 << 20,
            headers: 512,
            idle: Duration::from_secs(90),
            stall: Duration::from_secs(60),
            held_bytes: 32 << 20,
            connections: 5_000,
            streams: 250,
            ping: Duration::from_secs(30),
            pong: Duration::from_secs(20),
            drain: Duration::from_secs(20),
        }
    }
}

impl ListenerLimits {
    /// Leaves descriptors for files and outgoing connections: a quarter of the process's limit, and
    /// at least 256 unless that is more than half.
    pub(crate) fn of_process(self) -> Self {
        let descriptors = getrlimit(Resource::Nofile)
            .current
            .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        self.within(descriptors)
    }

    fn within(self, descriptors: usize) -> Self {
        let reserve = (descriptors / 4).max(256).min(descriptors / 2);
        Self { connections: self.connections.min(descriptors - reserve), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_38_connections_leave_descriptors_for_files() {
        let cases = [
            (0, 0),
            (1, 1),
            (80, 40),
            (512, 256),
            (1024, 768),
            (4096, 3072),
            (6000, 4500),
            (1 << 20, 5000),
            (usize::MAX, 5000),
        ];
        for (descriptors, connections) in cases {
            let limits = ListenerLimits::default().within(descriptors);
            assert_eq!(limits.connections, connections, "{descriptors}");
        }
        let few = ListenerLimits { connections: 10, ..ListenerLimits::default() };
        assert_eq!(few.within(1024).connections, 10);
    }
}
