//! Limits of resources shared by requests.

use std::time::Duration;

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
        Self {
            body_bytes: 3 << 20,
            readonly_inflight: 400,
            mutating_inflight: 200,
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
