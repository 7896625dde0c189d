//! Counters of a listener.

use crate::held::Holdings;
use std::sync::atomic::AtomicU64;

/// Counters of a listener; `open` is a gauge.
#[derive(Debug, Default)]
pub struct ListenerStats {
    /// Open connections.
    pub open: AtomicU64,
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Connections closed at once because of a limit.
    pub refused: AtomicU64,
    /// Failed or late TLS handshakes.
    pub handshakes_failed: AtomicU64,
    /// Connections cut because their client read nothing.
    pub stalled: AtomicU64,
    /// HTTP/2 connections cut because their client exceeded its credit.
    pub flooded: AtomicU64,
    /// HTTP/2 requests rejected unseen: their connection was closing, or held more than its share.
    pub shed: AtomicU64,
    /// Requests begun.
    pub requests: AtomicU64,
    /// Handlers that panicked.
    pub panics: AtomicU64,
    /// Bytes held by responses.
    pub held: Holdings,
}
