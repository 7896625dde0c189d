//! Flow control: which requests get a share of the server's budgets.
//! Must never know routes, kinds or storage. Start at [`Flow`].
//!
//! - *Seats* are held while working on a request, from the end of its body to its response or the
//!   start of its watch. They belong to priority levels, see [`priority`].
//! - *Bytes* are held for request bodies, the trees decoded from them, requests waiting for
//!   webhooks, lists until they are read, and large heads.
//! - *Slow bodies*, and bodies that are read only to be dropped, are counted.
//!
//! A request that waits for its client or for a webhook must not starve those that work. While its
//! body arrives it only holds loans; for a webhook it leaves its seat and moves its bytes to
//! `Flow::away`, where each webhook is one caller. Loans are revoked when callers that hold less
//! need them. Masters have a reserve of bytes of their own.
//!
//! [`Flow::classify`] alone decides which requests count as one caller of bytes, [`Flow::assign`]
//! to which flow and level they belong.

mod away;
mod limits;
pub mod priority;
mod share;

pub use away::{Away, AwayError, carried_bytes, response_part};
use ferrokube_apimachinery::heap;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_serve::{Holdings, Peer};
use http::HeaderValue;
pub use limits::Limits;
use priority::{Assignment, FlowRequest, Levels, SeatGrant};
use share::Full;
pub use share::{BudgetCaller, BudgetGrant, Loan, QueueLimit, Share};
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Max wait of a request for bytes.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Max bodies that are read only to be dropped.
const DRAINS: usize = 256;
/// Bodies and trees up to this size are not counted: the seats bound their number.
pub const UNCOUNTED_BODY: usize = 8 * 1024;
/// Heads up to this size, nearly all, are not counted.
const UNCOUNTED_HEAD: usize = 4 * 1024;
/// Approximate overhead per header field.
const FIELD_OVERHEAD: usize = 128;
/// Lists up to this size are not counted: a connection's share of each response covers them.
const UNCOUNTED_LIST: usize = 512;
/// Objects up to this size are not counted when they are encoded for one response.
const UNCOUNTED_OBJECT: usize = 16 * 1024;
/// Approximate size of an object as YAML, indented JSON or Table, as a multiple of its stored
/// bytes.
const RENDERED_FACTOR: usize = 3;
/// Amounts up to this bypass the queue: waiters of a byte budget wait for more.
const BYPASS_BYTES: usize = 1 << 20;
/// Granularity of a body's loan while it arrives.
const BODY_STEP: usize = 64 * 1024;
/// Bytes of bodies and trees reserved for masters.
const MASTERS_RESERVE: (usize, usize) = (3 << 20, heap::LARGEST);

/// The shared budgets.
#[derive(Debug)]
pub struct Flow {
    levels: Levels,
    slow_bodies: Share,
    drains: Share,
    bodies: [Share; 2],
    trees: [Share; 2],
    /// Held by requests that wait for a webhook; each webhook is a caller.
    away: Share,
    lists: Share,
    heads: Share,
    hash: RandomState,
    limits: Limits,
}

/// A classified request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Class {
    /// The caller whose budget is charged.
    pub caller: BudgetCaller,
    /// Whether it may use the reserve.
    pub is_master: bool,
    /// Whether it needs no seats: masters and probes.
    pub is_exempt: bool,
}

/// Input of [`Flow::classify`].
pub struct Classified<'a> {
    /// The authenticated user: impersonation does not gain more.
    pub user: &'a UserInfo,
    /// The client's end of the connection.
    pub peer: Option<&'a Peer>,
    /// Whether the user is the anonymous one.
    pub is_anonymous: bool,
}

tokio::task_local! {
    /// Budgets held by the request of this task.
    static REQUEST: RequestBudgets;
}

struct RequestBudgets {
    flow: Arc<Flow>,
    grants: RefCell<RequestGrants>,
}

#[derive(Debug, Default)]
struct RequestGrants {
    assignment: Option<Assignment>,
    head: Option<BudgetGrant>,
    seat: Option<SeatGrant>,
    body: Option<BudgetGrant>,
    tree: Option<BudgetGrant>,
    list: Option<BudgetGrant>,
    /// Grants for body, tree and list after a wait for a webhook.
    away: Vec<BudgetGrant>,
}

impl Flow {
    /// With nothing taken.
    pub fn new(limits: &Limits) -> Self {
        let queue = |per_caller, total| QueueLimit { per_caller, total };
        let bytes = |count: usize| Share::with_bypass(count, queue(256, 1024), BYPASS_BYTES);
        Self {
            levels: Levels::new(limits),
            slow_bodies: Share::new(limits.slow_bodies, queue(64, 1024)),
            drains: Share::new(DRAINS, QueueLimit::NONE),
            bodies: [bytes(limits.bodies_bytes.max(BODY_STEP)), bytes(MASTERS_RESERVE.0)],
            trees: [bytes(limits.trees_bytes), bytes(MASTERS_RESERVE.1)],
            away: Share::with_bypass(limits.away_bytes, queue(16, 4096), BYPASS_BYTES),
            lists: bytes(limits.lists_bytes),
            heads: Share::new(limits.heads_bytes, QueueLimit::NONE),
            hash: RandomState::new(),
            limits: limits.clone(),
        }
    }

    /// As passed to [`Self::new`].
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Decides which requests count as one caller.
    pub fn classify(&self, subject: &Classified<'_>) -> Class {
        let id = match subject.peer {
            Some(peer) if subject.is_anonymous => self.hash.hash_one(network(peer.address.ip())),
            _ => self.hash.hash_one(caller(subject.user)),
        };
        let is_master = subject.user.groups.iter().any(|group| group == MASTERS);
        let caller = BudgetCaller { id, is_anonymous: subject.is_anonymous };
        Class { caller, is_master, is_exempt: false }
    }

    /// Assigns the request of this task to a flow.
    pub fn assign(&self, class: &mut Class, request: &FlowRequest<'_>) {
        let assignment = self.levels.assign(request);
        class.is_exempt = assignment.is_exempt();
        with_grants(|grants| grants.assignment = Some(assignment));
    }

    /// Priority levels.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// Rejects the request of this task early if even the queues for its seats are full.
    ///
    /// # Errors
    /// 429, like all below.
    pub fn reject_if_hopeless(&self) -> Result<(), Failure> {
        let hopeless = |grants: &mut RequestGrants| {
            let assignment =
                grants.assignment.as_ref().filter(|assignment| assignment.is_hopeless());
            assignment.map(Assignment::retry_after)
        };
        with_grants(hopeless).flatten().map_or(Ok(()), |seconds| Err(no_seat(seconds)))
    }

    /// Takes bytes for a long head, held by the request of this task.
    pub fn head(&self, class: Class, head: &http::request::Parts) -> Result<(), Failure> {
        let bytes = head_bytes(head);
        if bytes <= UNCOUNTED_HEAD {
            return Ok(());
        }
        match self.heads.try_take(class.caller, bytes) {
            None if !class.is_master => return Err(too_many()),
            grant => with_grants(|grants| grants.head = grant),
        };
        Ok(())
    }

    /// Takes seats for the request of this task, unless it has them or was not assigned. `user` is
    /// for the dump of requests.
    pub async fn take_seat(&self, user: &str) -> Result<(), Failure> {
        let start = |grants: &mut RequestGrants| match &grants.assignment {
            Some(assignment) if grants.seat.is_none() => Some(assignment.start(user)),
            _ => None,
        };
        let Some(pending) = with_grants(start).flatten() else { return Ok(()) };
        let seats = pending.seats().await;
        let taken = with_grants(|grants| match (seats, &grants.assignment) {
            (None, Some(assignment)) => Err(no_seat(assignment.retry_after())),
            (seats, _) => {
                grants.seat = seats;
                Ok(())
            }
        });
        taken.unwrap_or(Ok(()))
    }

    /// Room for a body that is still arriving; `None` for masters, which need none.
    pub async fn slow_body(&self, class: Class) -> Result<Option<Loan>, Failure> {
        match self.slow_bodies.try_take(class.caller, 1) {
            Some(grant) => Ok(Some(grant.into_loan())),
            None if class.is_master => Ok(None),
            None => Ok(Some(
                self.slow_bodies.lend(class.caller, 1, MAX_WAIT).await.ok_or_else(too_many)?,
            )),
        }
    }

    /// Room to read a body that will be dropped.
    pub fn drain(&self, caller: BudgetCaller) -> Option<BudgetGrant> {
        self.drains.try_take(caller, 1)
    }

    /// Grows `held` with the received bytes of a body, in steps: one large demand would block all
    /// callers that wait for little.
    pub async fn body(
        &self,
        class: Class,
        held: &mut Option<Loan>,
        arrived: usize,
    ) -> Result<(), Failure> {
        if arrived <= UNCOUNTED_BODY {
            return Ok(());
        }
        let [all, reserve] = &self.bodies;
        while held.as_ref().map_or(0, Loan::amount) < arrived {
            if let Some(loan) = held {
                loan.grow(BODY_STEP, MAX_WAIT).await.map_err(|Full| too_many())?;
                continue;
            }
            let first = match all.try_take(class.caller, BODY_STEP) {
                Some(grant) => Some(grant.into_loan()),
                None if class.is_master => reserve.lend(class.caller, BODY_STEP, MAX_WAIT).await,
                None => all.lend(class.caller, BODY_STEP, MAX_WAIT).await,
            };
            *held = Some(first.ok_or_else(too_many)?);
        }
        Ok(())
    }

    /// Takes bytes for a decoded body, held by the request of this task.
    ///
    /// # Errors
    /// 413 above what any request can have; 429 while others hold too much.
    pub async fn tree(&self, class: Class, bytes: usize) -> Result<(), Failure> {
        let [all, reserve] = &self.trees;
        if bytes > heap::LARGEST.min(all.limit()) {
            return Err(too_large());
        }
        let grant = match all.try_take(class.caller, bytes) {
            None if class.is_master => reserve.take(class.caller, bytes, MAX_WAIT).await,
            None => all.take(class.caller, bytes, MAX_WAIT).await,
            granted => granted,
        };
        let grant = grant.ok_or_else(too_many)?;
        with_grants(|grants| grants.tree = Some(grant));
        Ok(())
    }

    /// Takes the most that a list may need, held by the request of this task. [`shrink_list`]
    /// corrects it, [`Flow::take_list_grant`] hands it to the response.
    pub async fn list(
        &self,
        class: Class,
        bytes: usize,
        held: Option<&Holdings>,
    ) -> Result<(), Failure> {
        let grant = self.list_room(class, bytes, held).await?;
        with_grants(|grants| grants.list = grant);
        Ok(())
    }

    /// The list's bytes, to be held until its client has read it. Taken again if they were moved to
    /// a webhook's budget since.
    pub async fn take_list_grant(
        &self,
        class: Class,
        bytes: usize,
        held: Option<&Holdings>,
    ) -> Result<Option<BudgetGrant>, Failure> {
        match with_grants(|grants| grants.list.take()).flatten() {
            None => self.list_room(class, bytes, held).await,
            grant => Ok(grant),
        }
    }

    /// Bytes of an object encoded for one response, to be held until its client has read it.
    pub async fn rendered(
        &self,
        class: Class,
        bytes: usize,
        held: Option<&Holdings>,
    ) -> Result<Option<BudgetGrant>, Failure> {
        if bytes <= UNCOUNTED_OBJECT {
            Ok(None)
        } else {
            self.list_room(class, bytes.saturating_mul(RENDERED_FACTOR), held).await
        }
    }

    /// While it waits, connections whose clients do not read their lists are cut.
    async fn list_room(
        &self,
        class: Class,
        bytes: usize,
        held: Option<&Holdings>,
    ) -> Result<Option<BudgetGrant>, Failure> {
        if bytes <= UNCOUNTED_LIST {
            return Ok(None);
        }
        // Longer lists make do with the most that one caller can have.
        let bytes = bytes.min(self.lists.limit() / 2);
        if let Some(grant) = self.lists.try_take(class.caller, bytes) {
            return Ok(Some(grant));
        }
        // Not for other users that a schema assigns to the exempt level: seats are not bytes.
        if class.is_master {
            return Ok(None);
        }
        let _wanting = held.map(Holdings::want);
        Ok(Some(self.lists.take(class.caller, bytes, MAX_WAIT).await.ok_or_else(too_many)?))
    }

    /// Requests with and waiting for seats: reads, writes. Exempt ones are not counted.
    pub fn inflight(&self) -> [(usize, usize); 2] {
        self.levels.inflight()
    }

    /// Bytes in use: bodies, trees, waiting for webhooks, lists, heads.
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

/// Approximate memory of a head.
fn head_bytes(head: &http::request::Parts) -> usize {
    let fields =
        head.headers.iter().map(|(name, value)| FIELD_OVERHEAD + name.as_str().len() + value.len());
    head.uri.path_and_query().map_or(0, |path| path.as_str().len()) + fields.sum::<usize>()
}

/// Runs a request that can hold budgets. Not an `async fn`, whose future would store the request
/// twice: as an argument, and where it is polled.
pub fn with_budgets<F: Future>(
    flow: Arc<Flow>,
    request: F,
) -> impl Future<Output = F::Output> + use<F> {
    REQUEST.scope(RequestBudgets { flow, grants: RefCell::default() }, request)
}

/// `None` outside of requests.
fn with_grants<T>(run: impl FnOnce(&mut RequestGrants) -> T) -> Option<T> {
    REQUEST.try_with(|request| run(&mut request.grants.borrow_mut())).ok()
}

/// Uids of the schema and level of the request of this task.
pub fn matched_uids() -> Option<[HeaderValue; 2]> {
    with_grants(|grants| grants.assignment.as_ref()?.uids().cloned()).flatten()
}

/// Hands the body's bytes to the request of this task.
pub fn hold_body(body: Option<BudgetGrant>) {
    with_grants(|grants| grants.body = body);
}

/// Returns the unused part of the decoded body's estimate.
pub fn shrink_tree(bytes: impl FnOnce() -> usize) {
    with_grants(|grants| {
        if let Some(tree) = &mut grants.tree {
            tree.shrink(bytes());
        }
    });
}

/// Returns the unused part of the list's estimate.
pub fn shrink_list(bytes: usize) {
    with_grants(|grants| match &mut grants.list {
        Some(_) if bytes <= UNCOUNTED_LIST => grants.list = None,
        Some(list) => list.shrink(bytes),
        None => {}
    });
}

/// Leaves the seat: the request waits for something else.
pub fn leave_seat() {
    let seat = with_grants(|grants| grants.seat.take());
    drop(seat);
}

/// Gives back everything at the end of the request.
pub fn release_all() {
    let held = with_grants(std::mem::take);
    drop(held);
}

const MASTERS: &str = "system:masters";

/// The name that counts as one caller. A writer of a namespace can create service accounts there at
/// will, so these count as one; kube-system's do not.
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

/// An IPv4 address, or an IPv6 /64: a host can pick any of its 2^64 addresses.
fn network(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits() & (u128::MAX << 64),
    }
}

/// The body is short enough, but decodes to too many values.
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

/// 429 in plain text, as kube-apiserver responds: there is no seat.
fn no_seat(retry_after_seconds: u32) -> Failure {
    Failure::bare(429, "Too many requests, please try again later.")
        .with_details(Details { retry_after_seconds, ..Details::default() })
}

#[cfg(test)]
mod tests;
