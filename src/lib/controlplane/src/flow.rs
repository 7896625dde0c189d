//! Flow control: who may have a part of what requests share, and how much of it.
//!
//! - A *seat* is held while a request is worked on: from when its body is there until its answer is. Reads and writes have pools of their own.
//! - *Bytes* are held for what has arrived of bodies, and for the trees that are made of them.
//! - *Slow bodies* and bodies that are read to be dropped are counted.
//!
//! [`Flow::classify`] is the seam for priority and fairness: it alone says who is exempt, and who counts as one caller.

mod share;

use crate::builder::Limits;
use ferrokube_apimachinery::heap;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_registry::UserInfo;
use ferrokube_serve::Peer;
use share::Full;
pub(crate) use share::{Caller, Grant, Share};
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

/// So long a request waits for a seat or for bytes.
const PATIENCE: Duration = Duration::from_secs(5);
/// At most so many bodies are read only to be dropped.
const DRAINS: usize = 256;
/// Bodies and trees up to this are not counted: seats bound how many there are.
pub(crate) const SMALL: usize = 8 * 1024;
/// So much is had past those who wait for more.
const CRUMB: usize = 1 << 20;
/// What is taken first for a body that does not say how long it is.
const STEP: usize = 64 * 1024;

/// Everything that requests share.
#[derive(Debug)]
pub(crate) struct Flow {
    reads: Share,
    writes: Share,
    slow_bodies: Share,
    drains: Share,
    bodies: Share,
    trees: Share,
    hash: RandomState,
}

/// What flow control makes of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Class {
    /// For whom bytes are counted, of everybody.
    pub(crate) caller: Caller,
    /// Which seats it needs.
    pub(crate) seats: Seats,
}

/// Where a request has its seat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Seats {
    /// It needs none: probes, masters, and what runs for minutes.
    #[default]
    None,
    /// Among those that change nothing.
    Reads,
    /// Among those that write.
    Writes,
}

/// What is known of a request when it is classified.
pub(crate) struct Subject<'a> {
    /// Who authenticated; nobody can have more by impersonating others.
    pub(crate) user: &'a UserInfo,
    pub(crate) peer: Option<&'a Peer>,
    pub(crate) is_anonymous: bool,
    /// The path of a request that is about no resource.
    pub(crate) path: Option<&'a str>,
    pub(crate) seats: Seats,
}

tokio::task_local! {
    /// The seat of the request that this task works on.
    static SEAT: RefCell<Option<Grant>>;
}

impl Flow {
    pub(crate) fn new(limits: &Limits) -> Self {
        let seats = |count: usize| Share::new(count, (count, 4 * count));
        let bytes = |count: usize| Share::with_crumbs(count, (256, 1024), CRUMB);
        Self {
            reads: seats(limits.readonly_inflight),
            writes: seats(limits.mutating_inflight),
            slow_bodies: Share::new(limits.slow_bodies, (0, 0)),
            drains: Share::new(DRAINS, (0, 0)),
            bodies: bytes(limits.bodies_bytes),
            trees: bytes(limits.trees_bytes),
            hash: RandomState::new(),
        }
    }

    /// Says who counts as one caller, and who needs no seat.
    pub(crate) fn classify(&self, subject: &Subject<'_>) -> Class {
        let id = match subject.peer {
            Some(peer) if subject.is_anonymous => self.hash.hash_one(network(peer.address.ip())),
            _ => self.hash.hash_one(&subject.user.name),
        };
        let is_exempt = subject.path.is_some_and(is_probe) || subject.user.groups.iter().any(|group| group == MASTERS);
        Class { caller: Caller { id, is_anonymous: subject.is_anonymous }, seats: if is_exempt { Seats::None } else { subject.seats } }
    }

    fn seats(&self, seats: Seats) -> Option<&Share> {
        match seats {
            Seats::None => None,
            Seats::Reads => Some(&self.reads),
            Seats::Writes => Some(&self.writes),
        }
    }

    /// Refuses at once who would not even find a place to wait.
    ///
    /// # Errors
    /// 429, also below.
    pub(crate) fn look(&self, class: Class) -> Result<(), Failure> {
        let is_hopeless = self.seats(class.seats).is_some_and(|share| share.is_hopeless(class.caller));
        if is_hopeless { Err(too_many()) } else { Ok(()) }
    }

    /// Takes a seat for the request of this task, unless it has one or needs none.
    pub(crate) async fn sit(&self, class: Class) -> Result<(), Failure> {
        let Some(share) = self.seats(class.seats) else { return Ok(()) };
        if SEAT.try_with(|seat| seat.borrow().is_some()).unwrap_or(true) {
            return Ok(());
        }
        let grant = share.take(class.caller, 1, PATIENCE).await.ok_or_else(too_many)?;
        SEAT.with(|seat| seat.replace(Some(grant)));
        Ok(())
    }

    /// Room for a body whose rest has not arrived yet.
    pub(crate) fn slow_body(&self, caller: Caller) -> Result<Grant, Failure> {
        self.slow_bodies.try_take(caller, 1).ok_or_else(too_many)
    }

    /// Room to read a body that nobody wants.
    pub(crate) fn drain(&self, caller: Caller) -> Option<Grant> {
        self.drains.try_take(caller, 1)
    }

    /// Makes room for a body of which so much has arrived. All of it is taken at once: bodies that wait for each other's rest would never come.
    pub(crate) async fn body(&self, caller: Caller, held: &mut Option<Grant>, size: &Size) -> Result<(), Failure> {
        let wanted = match size.announced {
            _ if size.arrived <= SMALL => return Ok(()),
            Some(announced) => announced.max(size.arrived),
            None if size.arrived <= STEP => STEP,
            None => size.limit,
        };
        let more = wanted.saturating_sub(held.as_ref().map_or(0, Grant::amount));
        match held {
            _ if more == 0 => Ok(()),
            Some(grant) => grant.grow(more, PATIENCE).await.map_err(|Full| too_many()),
            none => {
                *none = Some(self.bodies.take(caller, more, PATIENCE).await.ok_or_else(too_many)?);
                Ok(())
            }
        }
    }

    /// Makes room for a tree.
    ///
    /// # Errors
    /// 413: it can never be had. 429 while others have it.
    pub(crate) async fn tree(&self, caller: Caller, bytes: usize) -> Result<Grant, Failure> {
        if bytes > heap::LARGEST.min(self.trees.limit()) {
            return Err(too_large());
        }
        self.trees.take(caller, bytes, PATIENCE).await.ok_or_else(too_many)
    }

    /// Seats that are taken, and requests that wait for one: reads, writes.
    pub(crate) fn inflight(&self) -> [(usize, usize); 2] {
        [self.reads.usage(), self.writes.usage()]
    }

    /// Bytes that are taken: of bodies, of trees.
    pub(crate) fn bytes(&self) -> [usize; 2] {
        [&self.bodies, &self.trees].map(|share| share.usage().0)
    }
}

/// How long a body is, as far as that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) arrived: usize,
    pub(crate) announced: Option<usize>,
    pub(crate) limit: usize,
}

/// What a request holds of the bytes that all share.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) body: Option<Grant>,
    pub(crate) tree: Option<Grant>,
}

/// Runs a request with room for its seat.
pub(crate) async fn seated<T>(request: impl Future<Output = T>) -> T {
    SEAT.scope(RefCell::new(None), request).await
}

/// Leaves the seat: the request is answered, or waits for somebody else.
pub(crate) fn stand_up() {
    let seat = SEAT.try_with(|seat| seat.borrow_mut().take());
    drop(seat);
}

/// The group that may do everything.
const MASTERS: &str = "system:masters";

fn is_probe(path: &str) -> bool {
    ["/healthz", "/livez", "/readyz"].iter().any(|probe| path.strip_prefix(probe).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// What one customer of a network has: an IPv6 host has 2^64 addresses to choose from.
fn network(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits() & (u128::MAX << 64),
    }
}

/// Of a body that is no longer than others, and holds more.
pub(crate) fn too_large() -> Failure {
    Failure::new(Reason::RequestEntityTooLarge, "Request entity too large: it holds too many values")
}

fn too_many() -> Failure {
    let details = Details { retry_after_seconds: 1, ..Details::default() };
    Failure::new(Reason::TooManyRequests, "too many requests, please try again later").with_details(details)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn subject<'a>(user: &'a UserInfo, peer: Option<&'a Peer>, path: Option<&'a str>) -> Subject<'a> {
        Subject { user, peer, is_anonymous: peer.is_some(), path, seats: Seats::Reads }
    }

    fn user(name: &str, group: &str) -> UserInfo {
        UserInfo { name: name.to_owned(), groups: vec![group.to_owned()], ..UserInfo::default() }
    }

    #[test]
    fn callers_are_users_or_networks() {
        let flow = Flow::new(&Limits::default());
        let peer = |address: &str| Peer {
            address: (address.parse::<IpAddr>().unwrap(), 1).into(),
            certificates: Vec::new(),
            proxy_certificates: Vec::new(),
            unverified_certificate: false,
        };
        let nobody = user("system:anonymous", "");
        let of = |address: &str| flow.classify(&subject(&nobody, Some(&peer(address)), None)).caller;
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        let named = |name: &str| flow.classify(&subject(&user(name, ""), None, None)).caller;
        assert_eq!(named("a"), named("a"));
        assert_ne!(named("a"), named("b"));
    }

    #[test]
    fn probes_and_masters_are_exempt() {
        let flow = Flow::new(&Limits::default());
        let seats = |group: &str, path: Option<&str>| flow.classify(&subject(&user("u", group), None, path)).seats;
        for path in ["/healthz", "/livez/", "/readyz/storage"] {
            assert_eq!(seats("", Some(path)), Seats::None, "{path}");
        }
        for path in ["/healthzz", "/", "/version", "/metrics", "//livez"] {
            assert_eq!(seats("", Some(path)), Seats::Reads, "{path}");
        }
        assert_eq!(seats("system:masters", None), Seats::None);
        assert_eq!(seats("system:master", None), Seats::Reads);
    }

    #[tokio::test]
    async fn a_seat_is_taken_once_and_left_once() {
        let flow = Arc::new(Flow::new(&Limits::default()));
        let class = Class { seats: Seats::Writes, ..Class::default() };
        flow.sit(class).await.unwrap();
        assert_eq!(flow.inflight()[1].0, 0, "outside of requests there are no seats");
        seated(async {
            flow.sit(class).await.unwrap();
            flow.sit(class).await.unwrap();
            assert_eq!(flow.inflight()[1].0, 1);
            stand_up();
            assert_eq!(flow.inflight()[1].0, 0);
            stand_up();
            flow.sit(class).await.unwrap();
        })
        .await;
        assert_eq!(flow.inflight()[1].0, 0, "it ends with its request");
    }
}
