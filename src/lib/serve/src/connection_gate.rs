//! Limits connections: all of them, and per source to a share of the free ones, so that a few
//! addresses cannot take everything.

use crate::stats::ListenerStats;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The share of this machine, where controllers and local clients run, in shares of other sources.
const LOOPBACK_SHARES: usize = 4;

/// Counts connections, in total and by source.
///
/// A source may have as many connections as are free: n greedy sources end at 1/(n+1) of all each,
/// and leave as much to the next one; a single one gets half. Established connections are never
/// closed for this.
#[derive(Debug)]
pub(crate) struct ConnectionGate {
    capacity: usize,
    by_source: Mutex<BySource>,
    stats: Arc<ListenerStats>,
}

#[derive(Debug, Default)]
struct BySource {
    open: usize,
    counts: HashMap<IpAddr, usize>,
}

impl ConnectionGate {
    pub(crate) fn new(capacity: usize, stats: Arc<ListenerStats>) -> Arc<Self> {
        Arc::new(Self { capacity, by_source: Mutex::default(), stats })
    }

    /// `None` if the connection has to be refused.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionSlot> {
        self.stats.accepted.fetch_add(1, Ordering::Relaxed);
        let source = source(address);
        let shares = if source.is_loopback() { LOOPBACK_SHARES } else { 1 };
        let mut by_source = self.by_source.lock();
        let share = self.capacity.saturating_sub(by_source.open).saturating_mul(shares);
        if by_source.counts.get(&source).copied().unwrap_or(0) >= share {
            self.stats.refused.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%address, share, "connection refused: too many");
            return None;
        }
        *by_source.counts.entry(source).or_default() += 1;
        by_source.open += 1;
        self.stats.open.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionSlot { gate: Arc::clone(self), source })
    }
}

/// An IPv4 address, or the /64 network of an IPv6 address, within which a host picks addresses at
/// will.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            let network = u128::from(ip) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
        ip => ip,
    }
}

/// An admitted connection; uncounted when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    gate: Arc<ConnectionGate>,
    source: IpAddr,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.gate.stats.open.fetch_sub(1, Ordering::Relaxed);
        let mut by_source = self.gate.by_source.lock();
        by_source.open -= 1;
        if let Some(count) = by_source.counts.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                by_source.counts.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens connections from an address until one is refused.
    fn fill(gate: &Arc<ConnectionGate>, address: &str) -> Vec<ConnectionSlot> {
        std::iter::from_fn(|| gate.admit(address.parse().unwrap())).collect()
    }

    #[test]
    fn fault_38_five_addresses_leave_a_share_to_the_next_and_this_machine_more() {
        let gate = ConnectionGate::new(6000, Arc::default());
        let mut greedy: Vec<Vec<ConnectionSlot>> = Vec::new();
        for _ in 0..20 {
            // Early connections keep no advantage: some end, and the next round finds less room.
            for at in 0..5 {
                if let Some(slots) = greedy.get_mut(at) {
                    slots.drain(..slots.len() / 2);
                }
                let more = fill(&gate, &format!("192.0.2.{at}"));
                match greedy.get_mut(at) {
                    Some(slots) => slots.extend(more),
                    None => greedy.push(more),
                }
            }
        }
        assert!(
            greedy.iter().all(|slots| slots.len().abs_diff(1000) < 50),
            "{:?}",
            greedy.iter().map(Vec::len).collect::<Vec<_>>()
        );
        let newcomer = fill(&gate, "198.51.100.1");
        assert!(newcomer.len() > 400, "{}", newcomer.len());
        assert!(fill(&gate, "127.0.0.1").len() > 350);
        assert!(
            gate.admit("127.0.0.2".parse().unwrap()).is_some(),
            "another loopback address is another source"
        );
    }

    #[test]
    fn an_ipv6_network_is_one_source_and_slots_are_returned() {
        let gate = ConnectionGate::new(100, Arc::default());
        let slots = fill(&gate, "2001:db8::1");
        assert_eq!(slots.len(), 50);
        assert!(gate.admit("2001:db8::2".parse().unwrap()).is_none());
        assert!(gate.admit("2001:db8:0:1::1".parse().unwrap()).is_some());
        assert!(gate.admit("::ffff:192.0.2.1".parse().unwrap()).is_some());
        drop(slots);
        assert_eq!(gate.stats.open.load(Ordering::Relaxed), 0);
        assert!(gate.by_source.lock().counts.is_empty());
        assert_eq!(fill(&gate, "::1").len(), 80);
    }

    #[test]
    fn no_connection_is_admitted_beyond_the_capacity() {
        let gate = ConnectionGate::new(3, Arc::default());
        let slots: Vec<ConnectionSlot> =
            (0..9).filter_map(|at| gate.admit(format!("192.0.2.{at}").parse().unwrap())).collect();
        assert_eq!(slots.len(), 3);
    }
}
