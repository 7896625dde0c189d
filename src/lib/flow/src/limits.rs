//! Limits of resources shared by requests.

use std::time::Duration;

/// Default seats for each core, and at most. A request holds its seat while it computes or commits,
/// not while it waits for a webhook or its client: with more of them, requests would wait for the
/// cores, where nothing is fair, instead of in the queues.
const READS_PER_CORE: usize = 30;
const MAX_READS: usize = 400;
const WRITES_PER_CORE: usize = 15;
const MAX_WRITES: usize = 200;

/// Limits of the request filters. Of every shared budget one caller has at most half, less while
/// other callers need it.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of one request body.
    pub body_bytes: usize,
    /// Seats of priority levels, together with `mutating_inflight`; without levels, concurrent
    /// reads.
    pub readonly_inflight: usize,
    /// Without levels, concurrent writes, counted from when their body has arrived.
    pub mutating_inflight: usize,
    /// Whether FlowSchemas and PriorityLevelConfigurations count.
    pub priority_and_fairness: bool,
    /// Concurrent requests whose body is still arriving.
    pub slow_bodies: usize,
    /// Bytes of all request bodies together.
    pub bodies_bytes: usize,
    /// Estimated bytes of all decoded bodies together.
    pub trees_bytes: usize,
    /// Bytes held by requests that wait for webhooks.
    pub away_bytes: usize,
    /// Bytes of the item references that lists hold until their clients have read them.
    pub lists_bytes: usize,
    /// Bytes of the heads of requests in flight; heads of up to 4 KiB are not counted.
    pub heads_bytes: usize,
    /// Timeout of requests other than watches.
    pub request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            body_bytes: 3 << 20,
            readonly_inflight: (cores * READS_PER_CORE).min(MAX_READS),
            mutating_inflight: (cores * WRITES_PER_CORE).min(MAX_WRITES),
            priority_and_fairness: true,
            slow_bodies: 1_000,
            bodies_bytes: 16 << 20,
            trees_bytes: 48 << 20,
            away_bytes: 24 << 20,
            lists_bytes: 32 << 20,
            heads_bytes: 8 << 20,
            request: Duration::from_secs(60),
        }
    }
}
