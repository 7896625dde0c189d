//! Flow control: who may have a part of what requests share, and how much of it.
//!
//! - A *seat* is held while a request is worked on: from when its body is there until its answer
//!   is. Reads and writes have pools of their own.
//! - *Bytes* are held for what has arrived of bodies, for the trees that are made of them, and for
//!   what waits for webhooks.
//! - *Slow bodies* and bodies that are read to be dropped are counted, and the bytes of large
//!   heads.
//!
//! A request that waits for somebody else holds nothing that those need who work: of a body its
//! place and what has arrived, and for a webhook a part of [`Flow::away`], where each webhook is
//! one caller. All are lent, and called back when others have less; masters have a reserve of bytes
//! besides.
//!
//! [`Flow::classify`] is the seam for priority and fairness: it alone says who is exempt, and who
//! counts as one caller.

mod away;
mod limits;
mod share;

pub use away::{Away, AwayError};
use ferrokube_apimachinery::heap;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_registry::UserInfo;
use ferrokube_serve::{Holdings, Peer};
pub use limits::Limits;
use share::Full;
pub use share::{Caller, Grant, Loan, Share};
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// So long a request waits for a seat or for bytes.
const PATIENCE: Duration = Duration::from_secs(5);
/// At most so many bodies are read only to be dropped.
const DRAINS: usize = 256;
/// Bodies and trees up to this are not counted: seats bound how many there are.
pub const SMALL: usize = 8 * 1024;
/// Heads up to this are not counted either: nearly all are shorter.
const SHORT_HEAD: usize = 4 * 1024;
/// What a field of a head takes beside its name and its value, about.
const FIELD: usize = 128;
/// Lists up to this are not counted: what a connection holds for each of its answers is.
const SHORT_LIST: usize = 512;
/// Objects up to this are not counted when they are written for one answer.
const SHORT_OBJECT: usize = 16 * 1024;
/// Size of an object in YAML, indented or as a Table, as a multiple of its stored bytes
/// (approximate).
const RENDERED: usize = 3;
/// So much is had past those who wait for more.
const CRUMB: usize = 1 << 20;
/// Bodies are lent room in such steps, as they arrive.
const STEP: usize = 64 * 1024;
/// Bytes of masters' bodies and trees, beyond what all share.
const RESERVE: (usize, usize) = (3 << 20, heap::LARGEST);

/// Everything that requests share.
#[derive(Debug)]
pub struct Flow {
    reads: Share,
    writes: Share,
    slow_bodies: Share,
    drains: Share,
    bodies: [Share; 2],
    trees: [Share; 2],
    /// What waits for webhooks: a caller is a webhook.
    away: Share,
    lists: Share,
    heads: Share,
    hash: RandomState,
}

/// What flow control makes of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Class {
    /// For whom bytes are counted, of everybody.
    pub caller: Caller,
    /// Whether it may have of the reserve.
    pub is_master: bool,
    /// Which seats it needs.
    pub seats: Seats,
}

/// Where a request has its seat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seats {
    /// It needs none: probes, masters, and what runs for minutes.
    #[default]
    None,
    /// Among those that change nothing.
    Reads,
    /// Among those that write.
    Writes,
}

/// What is known of a request when it is classified.
pub struct Subject<'a> {
    /// Who authenticated; nobody can have more by impersonating others.
    pub user: &'a UserInfo,
    /// The connection's other end.
    pub peer: Option<&'a Peer>,
    /// Nobody authenticated.
    pub is_anonymous: bool,
    /// The path of a request that is about no resource.
    pub path: Option<&'a str>,
    /// The pool of its seat.
    pub seats: Seats,
}

tokio::task_local! {
    /// What the request that this task works on holds.
    static REQUEST: Request;
}

struct Request {
    flow: Arc<Flow>,
    holds: RefCell<Holds>,
}

/// What a request holds of what all share.
#[derive(Debug, Default)]
struct Holds {
    head: Option<Grant>,
    seat: Option<Grant>,
    body: Option<Grant>,
    tree: Option<Grant>,
    list: Option<Grant>,
    /// The same once it has waited for a webhook.
    away: Vec<Grant>,
}

impl Flow {
    /// With nothing taken.
    pub fn new(limits: &Limits) -> Self {
        let seats = |count: usize| Share::new(count, (count, 4 * count));
        let bytes = |count: usize| Share::with_crumbs(count, (256, 1024), CRUMB);
        Self {
            reads: seats(limits.readonly_inflight),
            writes: seats(limits.mutating_inflight),
            slow_bodies: Share::new(limits.slow_bodies, (64, 1024)),
            drains: Share::new(DRAINS, (0, 0)),
            bodies: [bytes(limits.bodies_bytes.max(STEP)), bytes(RESERVE.0)],
            trees: [bytes(limits.trees_bytes), bytes(RESERVE.1)],
            away: Share::with_crumbs(limits.away_bytes, (16, 4096), CRUMB),
            lists: bytes(limits.lists_bytes),
            heads: Share::new(limits.heads_bytes, (0, 0)),
            hash: RandomState::new(),
        }
    }

    /// Says who counts as one caller, and who needs no seat.
    pub fn classify(&self, subject: &Subject<'_>) -> Class {
        let id = match subject.peer {
            Some(peer) if subject.is_anonymous => self.hash.hash_one(network(peer.address.ip())),
            _ => self.hash.hash_one(caller(subject.user)),
        };
        let is_master = subject.user.groups.iter().any(|group| group == MASTERS);
        let is_exempt = is_master || subject.path.is_some_and(is_probe);
        let caller = Caller { id, is_anonymous: subject.is_anonymous };
        Class { caller, is_master, seats: if is_exempt { Seats::None } else { subject.seats } }
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
    pub fn look(&self, class: Class) -> Result<(), Failure> {
        let is_hopeless =
            self.seats(class.seats).is_some_and(|share| share.is_hopeless(class.caller));
        if is_hopeless { Err(too_many()) } else { Ok(()) }
    }

    /// Makes room for the head of the request of this task, until it is answered.
    pub fn head(&self, class: Class, head: &http::request::Parts) -> Result<(), Failure> {
        let bytes = head_bytes(head);
        if bytes <= SHORT_HEAD {
            return Ok(());
        }
        match self.heads.try_take(class.caller, bytes) {
            None if !class.is_master => return Err(too_many()),
            grant => holds(|holds| holds.head = grant),
        };
        Ok(())
    }

    /// Takes a seat for the request of this task, unless it has one or needs none.
    pub async fn sit(&self, class: Class) -> Result<(), Failure> {
        let Some(share) = self.seats(class.seats) else { return Ok(()) };
        if holds(|holds| holds.seat.is_some()).unwrap_or(true) {
            return Ok(());
        }
        let grant = share.take(class.caller, 1, PATIENCE).await.ok_or_else(too_many)?;
        holds(|holds| holds.seat = Some(grant));
        Ok(())
    }

    /// Room for a body whose rest has not arrived yet. `None`: a master's, which needs none.
    pub async fn slow_body(&self, class: Class) -> Result<Option<Loan>, Failure> {
        match self.slow_bodies.try_take(class.caller, 1) {
            Some(grant) => Ok(Some(grant.into_loan())),
            None if class.is_master => Ok(None),
            None => Ok(Some(
                self.slow_bodies.lend(class.caller, 1, PATIENCE).await.ok_or_else(too_many)?,
            )),
        }
    }

    /// Room to read a body that nobody wants.
    pub fn drain(&self, caller: Caller) -> Option<Grant> {
        self.drains.try_take(caller, 1)
    }

    /// Makes room for what has arrived of a body, step by step: one that wants much at once would
    /// hold up all who wait for little.
    pub async fn body(
        &self,
        class: Class,
        held: &mut Option<Loan>,
        arrived: usize,
    ) -> Result<(), Failure> {
        if arrived <= SMALL {
            return Ok(());
        }
        let [all, reserve] = &self.bodies;
        while held.as_ref().map_or(0, Loan::amount) < arrived {
            if let Some(loan) = held {
                loan.grow(STEP, PATIENCE).await.map_err(|Full| too_many())?;
                continue;
            }
            let first = match all.try_take(class.caller, STEP) {
                Some(grant) => Some(grant.into_loan()),
                None if class.is_master => reserve.lend(class.caller, STEP, PATIENCE).await,
                None => all.lend(class.caller, STEP, PATIENCE).await,
            };
            *held = Some(first.ok_or_else(too_many)?);
        }
        Ok(())
    }

    /// Makes room for the tree of a body, which the request of this task then holds.
    ///
    /// # Errors
    /// 413: it can never be had. 429 while others have it.
    pub async fn tree(&self, class: Class, bytes: usize) -> Result<(), Failure> {
        let [all, reserve] = &self.trees;
        if bytes > heap::LARGEST.min(all.limit()) {
            return Err(too_large());
        }
        let grant = match all.try_take(class.caller, bytes) {
            None if class.is_master => reserve.take(class.caller, bytes, PATIENCE).await,
            None => all.take(class.caller, bytes, PATIENCE).await,
            granted => granted,
        };
        let grant = grant.ok_or_else(too_many)?;
        holds(|holds| holds.tree = Some(grant));
        Ok(())
    }

    /// Makes room for what a list is made of at most, which the request of this task then holds:
    /// see [`has_listed`], [`Flow::listed`].
    pub async fn list(
        &self,
        class: Class,
        bytes: usize,
        held: Option<&Holdings>,
    ) -> Result<(), Failure> {
        let grant = self.list_room(class, bytes, held).await?;
        holds(|holds| holds.list = grant);
        Ok(())
    }

    /// The room of a list, to be held until its client has taken it. Taken again if the request has
    /// waited for a webhook since.
    pub async fn listed(
        &self,
        class: Class,
        bytes: usize,
        held: Option<&Holdings>,
    ) -> Result<Option<Grant>, Failure> {
        match holds(|holds| holds.list.take()).flatten() {
            None => self.list_room(class, bytes, held).await,
            grant => Ok(grant),
        }
    }

    /// The room of an object that is written for one answer, to be held until its client has taken
    /// it.
    pub async fn rendered(
        &self,
        class: Class,
        bytes: usize,
        held: Option<&Holdings>,
    ) -> Result<Option<Grant>, Failure> {
        if bytes <= SHORT_OBJECT {
            Ok(None)
        } else {
            self.list_room(class, bytes.saturating_mul(RENDERED), held).await
        }
    }

    /// While it waits for room, those who take nothing of their lists are cut.
    async fn list_room(
        &self,
        class: Class,
        bytes: usize,
        held: Option<&Holdings>,
    ) -> Result<Option<Grant>, Failure> {
        if bytes <= SHORT_LIST {
            return Ok(None);
        }
        // A longer one has to do with as much as a caller can have.
        let bytes = bytes.min(self.lists.limit() / 2);
        if let Some(grant) = self.lists.try_take(class.caller, bytes) {
            return Ok(Some(grant));
        }
        if class.seats == Seats::None {
            return Ok(None);
        }
        let _wanting = held.map(Holdings::want);
        Ok(Some(self.lists.take(class.caller, bytes, PATIENCE).await.ok_or_else(too_many)?))
    }

    /// Seats that are taken, and requests that wait for one: reads, writes.
    pub fn inflight(&self) -> [(usize, usize); 2] {
        [self.reads.usage(), self.writes.usage()]
    }

    /// Bytes that are taken: of bodies, of trees, of what waits for webhooks, of lists, of heads.
    pub fn bytes(&self) -> [usize; 5] {
        let of = |shares: &[Share]| shares.iter().map(|share| share.usage().0).sum();
        [
            of(&self.bodies),
            of(&self.trees),
            self.away.usage().0,
            self.lists.usage().0,
            self.heads.usage().0,
        ]
    }
}

/// What a head takes while it is there.
fn head_bytes(head: &http::request::Parts) -> usize {
    let fields = head.headers.iter().map(|(name, value)| FIELD + name.as_str().len() + value.len());
    head.uri.path_and_query().map_or(0, |path| path.as_str().len()) + fields.sum::<usize>()
}

/// Runs a request with room for what it holds. Not an `async fn`, whose future would have space for
/// the request twice: as an argument, and where it is polled.
pub fn seated<F: Future>(flow: &Arc<Flow>, request: F) -> impl Future<Output = F::Output> + use<F> {
    REQUEST.scope(Request { flow: Arc::clone(flow), holds: RefCell::default() }, request)
}

/// Of the request of this task; `None` outside of requests.
fn holds<T>(run: impl FnOnce(&mut Holds) -> T) -> Option<T> {
    REQUEST.try_with(|request| run(&mut request.holds.borrow_mut())).ok()
}

/// The request of this task has its body.
pub fn has_body(body: Option<Grant>) {
    holds(|holds| holds.body = body);
}

/// The body was read, into a tree of so many bytes.
pub fn has_read(bytes: impl FnOnce() -> usize) {
    holds(|holds| {
        if let Some(tree) = &mut holds.tree {
            tree.shrink(bytes());
        }
    });
}

/// The page of the list is known, and is of so many bytes.
pub fn has_listed(bytes: usize) {
    holds(|holds| match &mut holds.list {
        Some(_) if bytes <= SHORT_LIST => holds.list = None,
        Some(list) => list.shrink(bytes),
        None => {}
    });
}

/// Leaves the seat: the request waits for somebody else.
pub fn stand_up() {
    let seat = holds(|holds| holds.seat.take());
    drop(seat);
}

/// Gives everything back: the request is answered.
pub fn let_go() {
    let held = holds(std::mem::take);
    drop(held);
}

/// The group that may do everything.
const MASTERS: &str = "system:masters";

/// Who counts as one caller. Who writes in a namespace makes as many service accounts there as they
/// like; those of the system are made by nobody else.
pub fn caller(user: &UserInfo) -> &str {
    const ACCOUNTS: &str = "system:serviceaccount:";
    let namespace = user.name.strip_prefix(ACCOUNTS).and_then(|rest| rest.split_once(':'));
    match namespace {
        Some((namespace, _)) if namespace != "kube-system" => {
            &user.name[..ACCOUNTS.len() + namespace.len()]
        }
        _ => &user.name,
    }
}

fn is_probe(path: &str) -> bool {
    ["/healthz", "/livez", "/readyz"].iter().any(|probe| {
        path.strip_prefix(probe).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// What one customer of a network has: an IPv6 host has 2^64 addresses to choose from.
fn network(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits() & (u128::MAX << 64),
    }
}

/// Of a body that is no longer than others, and holds more.
pub fn too_large() -> Failure {
    Failure::new(
        Reason::RequestEntityTooLarge,
        "Request entity too large: it holds too many values",
    )
}

/// 429: the caller has its share, or there is no room.
pub fn too_many() -> Failure {
    let details = Details { retry_after_seconds: 1, ..Details::default() };
    Failure::new(Reason::TooManyRequests, "too many requests, please try again later")
        .with_details(details)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn subject<'a>(
        user: &'a UserInfo,
        peer: Option<&'a Peer>,
        path: Option<&'a str>,
    ) -> Subject<'a> {
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
            certificate: None,
            proxy_certificate: None,
            unverified_certificate: false,
        };
        let nobody = user("system:anonymous", "");
        let of =
            |address: &str| flow.classify(&subject(&nobody, Some(&peer(address)), None)).caller;
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        let named = |name: &str| flow.classify(&subject(&user(name, ""), None, None)).caller;
        assert_eq!(named("a"), named("a"));
        assert_ne!(named("a"), named("b"));
        let account = |name: &str| named(&format!("system:serviceaccount:{name}"));
        assert_eq!(
            account("one:a"),
            account("one:b"),
            "who writes in a namespace makes accounts there at will"
        );
        assert_ne!(account("one:a"), account("two:a"));
        assert_ne!(account("kube-system:a"), account("kube-system:b"));
    }

    #[test]
    fn probes_and_masters_are_exempt() {
        let flow = Flow::new(&Limits::default());
        let seats = |group: &str, path: Option<&str>| {
            flow.classify(&subject(&user("u", group), None, path)).seats
        };
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
        seated(&flow, async {
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
