//! All levels, and the schemas that lead to them.

mod seats;
#[cfg(test)]
mod tests;

use super::config::{
    Discipline, Distinguisher, EXEMPT, FlowConfig, FlowRule, LevelConfig, SchemaConfig,
};
use super::level::{Inflight, Level, SeatGrant, SeatRequest, Started};
use super::matching::{FlowAction, MatchedAction};
use super::retry_after::max_wait;
use super::stats::{FlowFigures, FlowStats, LevelFigures};
use crate::{Limits, MASTERS, caller, is_probe};
use arc_swap::ArcSwap;
use ferrokube_apimachinery::user::UserInfo;
use http::HeaderValue;
use parking_lot::{Mutex, MutexGuard};
use seats::LevelSeats;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// Max waiting requests.
const MAX_WAITING: usize = 2_400;
const MAX_LIST_SEATS: usize = 100;
/// A list takes at most this part of its level.
const MAX_LIST_PART: f64 = 0.15;

/// Requests and levels.
#[derive(Debug)]
pub struct Levels {
    current: ArcSwap<SchemaSet>,
    entries: Mutex<Entries>,
    inflight: Arc<Inflight>,
    hash: RandomState,
    /// Seats of the server.
    seats: usize,
}

/// Schemas as requests read them.
#[derive(Debug)]
enum SchemaSet {
    /// In order of precedence; the last one matches everything.
    Schemas(Vec<Arc<CompiledSchema>>),
    /// Without schemas: of exempt requests, reads, and writes.
    ByKind([Arc<CompiledSchema>; 3]),
}

#[derive(Debug)]
struct CompiledSchema {
    name: Arc<str>,
    rules: Arc<[FlowRule]>,
    /// None if its flows share one queue.
    distinguisher: Distinguisher,
    level: Arc<Level>,
    stats: Arc<FlowStats>,
    is_exempt: bool,
    /// Max seats of one request.
    max_seats: usize,
    /// Uids of schema and level.
    uids: Option<[HeaderValue; 2]>,
    /// Hash of the name.
    seed: u64,
}

/// State that changes with the configuration.
#[derive(Debug, Default)]
struct Entries {
    config: FlowConfig,
    levels: BTreeMap<String, LevelEntry>,
    /// By level and schema.
    stats: BTreeMap<(String, String), Arc<FlowStats>>,
    /// Fraction of its demand that each level got last.
    fair_fraction: f64,
    is_by_kind: bool,
}

#[derive(Debug)]
struct LevelEntry {
    level: Arc<Level>,
    config: LevelConfig,
    seats: LevelSeats,
    /// Set once the configuration is gone; the level is removed when nothing runs or waits.
    is_quiescing: bool,
}

/// Input of [`Levels::assign`].
pub struct FlowRequest<'a> {
    /// The user whose rights count.
    pub user: &'a UserInfo,
    /// The request's action.
    pub action: &'a Arc<dyn FlowAction>,
    /// Whether it may change something.
    pub mutates: bool,
    /// Max duration of the request.
    pub timeout: Duration,
    /// Estimates its work, as seats; only called if that counts.
    pub seats: &'a dyn Fn() -> usize,
}

/// A request's flow.
#[derive(Debug)]
pub struct Assignment {
    schema: Arc<CompiledSchema>,
    flow: u64,
    seats: usize,
    mutates: bool,
    max_wait: Duration,
    action: Arc<dyn FlowAction>,
}

impl Levels {
    /// Without schemas.
    pub fn new(limits: &Limits) -> Self {
        let (reads, writes) = (limits.readonly_inflight, limits.mutating_inflight);
        let inflight = Arc::new(Inflight { max_waiting: MAX_WAITING, ..Inflight::default() });
        let hash = RandomState::new();
        let compiled = |name: &str, discipline: Discipline, limit: usize| {
            let level = Level::new(Arc::clone(&inflight), discipline, limit);
            let config = LevelConfig::new(name, 0, discipline);
            let schema = SchemaConfig::of_groups(name, 0, &[]);
            CompiledSchema::new(&schema, &config, &level, Arc::default(), &hash)
        };
        let queue = |limit: usize| Discipline::Queue {
            queues: 64,
            hand: 8,
            length: u32::try_from(limit.div_ceil(8)).unwrap_or(u32::MAX).clamp(1, 50),
        };
        let all = [
            compiled(EXEMPT, Discipline::Exempt, 0),
            compiled("reads", queue(reads), reads),
            compiled("writes", queue(writes), writes),
        ];
        let entries = Entries { is_by_kind: true, ..Entries::default() };
        Self {
            current: ArcSwap::from_pointee(SchemaSet::ByKind(all.map(Arc::new))),
            entries: Mutex::new(entries),
            inflight,
            hash,
            seats: reads + writes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock()
    }

    /// Finds the flow of a request.
    pub fn assign(&self, request: &FlowRequest<'_>) -> Assignment {
        let snapshot = self.current.load();
        let schema = snapshot.find(request);
        let flow = match schema.distinguisher {
            Distinguisher::User => self.hash.hash_one((schema.seed, caller(request.user))),
            Distinguisher::Namespace => {
                let resource = request.action.resource();
                let namespace = resource.map_or("", |resource| resource.namespace);
                self.hash.hash_one((schema.seed, namespace))
            }
            Distinguisher::None => schema.seed,
        };
        let seats = if schema.is_exempt { 1 } else { (request.seats)().clamp(1, schema.max_seats) };
        Assignment {
            schema: Arc::clone(schema),
            flow,
            seats,
            mutates: request.mutates,
            max_wait: max_wait(request.timeout),
            action: Arc::clone(request.action),
        }
    }

    /// Replaces schemas and levels. Requests keep what they have.
    pub fn configure(&self, config: FlowConfig) {
        let mut entries = self.lock();
        if entries.config == config {
            return;
        }
        entries.is_by_kind = false;
        let levels: HashSet<&str> = config.levels.iter().map(|level| &*level.name).collect();
        for entry in entries.levels.values_mut() {
            entry.is_quiescing = !levels.contains(&*entry.config.name);
        }
        for level in &config.levels {
            let entry = entries.levels.entry(level.name.clone()).or_insert_with(|| LevelEntry {
                level: Level::new(Arc::clone(&self.inflight), level.discipline, 0),
                config: level.clone(),
                seats: LevelSeats::default(),
                is_quiescing: false,
            });
            entry.config = level.clone();
        }
        entries.forget_idle();
        seats::share_out(&mut entries.levels, self.seats);
        entries.fair_fraction = seats::adjust(&mut entries.levels);
        let schemas = config
            .schemas
            .iter()
            .filter_map(|schema| entries.compile(schema, &self.hash))
            .collect();
        let known: HashSet<(&str, &str)> =
            config.schemas.iter().map(|schema| (&*schema.level, &*schema.name)).collect();
        entries.stats.retain(|(level, schema), _| known.contains(&(&**level, &**schema)));
        entries.config = config;
        drop(entries);
        self.current.store(Arc::new(SchemaSet::Schemas(schemas)));
    }

    /// Lends seats among levels by their demand since the last call.
    pub fn adjust(&self) {
        let mut entries = self.lock();
        if !entries.is_by_kind {
            entries.forget_idle();
            entries.fair_fraction = seats::adjust(&mut entries.levels);
        }
    }

    /// Executing and waiting requests: reads, writes.
    pub fn inflight(&self) -> [(usize, usize); 2] {
        use std::sync::atomic::Ordering::Relaxed;
        let Inflight { executing, waiting, .. } = &*self.inflight;
        [0, 1].map(|kind| (executing[kind].load(Relaxed), waiting[kind].load(Relaxed)))
    }

    /// Figures of all levels and schemas, and the fraction of its demand that each level got last.
    pub fn figures(&self) -> (Vec<LevelFigures>, Vec<FlowFigures>, f64) {
        let entries = self.lock();
        let levels = entries.levels.iter();
        let levels = levels.map(|(name, entry)| entry.seats.figures(name, &entry.level)).collect();
        let flows = entries.stats.iter();
        let flows = flows.map(|((level, schema), stats)| stats.read(level, schema)).collect();
        (levels, flows, entries.fair_fraction)
    }

    /// Levels, for the dumps; empty without schemas.
    pub(super) fn entries(&self) -> Vec<(String, Arc<Level>, bool)> {
        let entries = self.lock();
        let levels = entries.levels.iter();
        levels
            .map(|(name, entry)| (name.clone(), Arc::clone(&entry.level), entry.is_quiescing))
            .collect()
    }
}

impl Entries {
    fn forget_idle(&mut self) {
        self.levels.retain(|_, entry| !entry.is_quiescing || !entry.level.is_idle());
    }

    fn compile(
        &mut self,
        schema: &SchemaConfig,
        hash: &RandomState,
    ) -> Option<Arc<CompiledSchema>> {
        let entry = self.levels.get(&schema.level)?;
        let key = (schema.level.clone(), schema.name.clone());
        let stats = Arc::clone(self.stats.entry(key).or_default());
        let mut compiled = CompiledSchema::new(schema, &entry.config, &entry.level, stats, hash);
        compiled.max_seats = max_seats(entry.config.discipline, entry.seats.nominal);
        Some(Arc::new(compiled))
    }
}

/// Max seats of one request in a level with `nominal` seats.
fn max_seats(discipline: Discipline, nominal: usize) -> usize {
    let Discipline::Queue { hand, .. } = discipline else { return MAX_LIST_SEATS };
    let part = (nominal as f64 * MAX_LIST_PART).ceil() as usize;
    part.min(nominal / usize::from(hand.max(1))).clamp(1, MAX_LIST_SEATS)
}

impl CompiledSchema {
    fn new(
        schema: &SchemaConfig,
        config: &LevelConfig,
        level: &Arc<Level>,
        stats: Arc<FlowStats>,
        hash: &RandomState,
    ) -> Self {
        let uids = [&schema.uid, &config.uid];
        let headers = uids.map(|uid| HeaderValue::from_str(uid).ok().filter(|uid| !uid.is_empty()));
        let has_queues =
            matches!(config.discipline, Discipline::Queue { queues, .. } if queues > 1);
        Self {
            name: schema.name.as_str().into(),
            rules: Arc::clone(&schema.rules),
            distinguisher: if has_queues { schema.distinguisher } else { Distinguisher::None },
            level: Arc::clone(level),
            stats,
            is_exempt: config.discipline == Discipline::Exempt,
            max_seats: 1,
            uids: match headers {
                [Some(schema), Some(level)] => Some([schema, level]),
                _ => None,
            },
            seed: hash.hash_one(&schema.name),
        }
    }
}

impl SchemaSet {
    fn find(&self, request: &FlowRequest<'_>) -> &Arc<CompiledSchema> {
        match self {
            Self::Schemas(schemas) => {
                let action = MatchedAction::of(&**request.action);
                let matches = |rule: &FlowRule| rule.matches(request.user, &action);
                let found = schemas.iter().find(|schema| schema.rules.iter().any(matches));
                // A user without the groups of all users.
                found.or(schemas.last()).expect("there are mandatory schemas")
            }
            Self::ByKind([exempt, reads, writes]) => {
                let is_master = request.user.groups.iter().any(|group| group == MASTERS);
                let action = request.action;
                if is_master || (action.resource().is_none() && is_probe(action.path())) {
                    exempt
                } else if request.mutates {
                    writes
                } else {
                    reads
                }
            }
        }
    }
}

impl Assignment {
    /// Whether the request needs no seats.
    pub fn is_exempt(&self) -> bool {
        self.schema.is_exempt
    }

    /// Uids of its schema and level, if both are objects.
    pub fn uids(&self) -> Option<&[HeaderValue; 2]> {
        self.schema.uids.as_ref()
    }

    /// Whether a request of its flow would be rejected now.
    pub(crate) fn is_hopeless(&self) -> bool {
        !self.schema.is_exempt && self.schema.level.is_hopeless(self.flow)
    }

    /// Starts to take the seats. `user` is for the dump of requests.
    pub(crate) fn start(&self, user: &str) -> PendingSeats {
        let schema = &self.schema;
        let wanted = SeatRequest {
            flow: self.flow,
            distinguisher: schema.distinguisher,
            seats: self.seats,
            mutates: self.mutates,
            schema: Arc::clone(&schema.name),
            stats: Arc::clone(&schema.stats),
            action: Arc::clone(&self.action),
        };
        PendingSeats { started: schema.level.start(wanted, user), max_wait: self.max_wait }
    }

    /// Seconds after which the client of a rejected request may try again.
    pub(crate) fn retry_after(&self) -> u32 {
        self.schema.level.retry_after()
    }
}

/// Seats that are taken, or waited for.
pub(crate) struct PendingSeats {
    started: Started,
    max_wait: Duration,
}

impl PendingSeats {
    /// `None` if the request is rejected. Cancel safe.
    pub(crate) async fn seats(self) -> Option<SeatGrant> {
        match self.started {
            Started::Granted(grant) => Some(grant),
            Started::Waits(waiting) => waiting.seats(self.max_wait).await.ok(),
            Started::Rejected => None,
        }
    }
}
