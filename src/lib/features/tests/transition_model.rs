//! Random schedules of servers and components against the transitions: crashes between any two
//! steps, stale reads and Leases, late reports, changed command lines, a dynamic value, and servers
//! that disagree on who leads.
//!
//! The model knows the truth (who is alive with which value) and checks it at every completion.

use ferrokube_features::KubernetesVersion;
use ferrokube_features::transition::{
    Blocker, FeatureState, FeatureUse, ServerReport, TransitionRecord, TransitionStep,
    TransitionView, WAIT_FOR_USES, leader,
};
use std::time::Duration;

const EVALUATION: u64 = 60;
/// A component that is alive reports at most this long after it sees that its entry is missing.
const MAX_REPORT_DELAY: u64 = 50;
/// Longest time between the acceptance of a write and its end.
const MAX_WRITE: u64 = 50;
/// Between renewals of a Lease.
const RENEWAL: u64 = 10;
const TASKS: [&str; 2] = ["ClearOne", "ClearTwo"];

/// Xorshift; the seed is the schedule.
struct ScheduleRandom(u64);

impl ScheduleRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

struct ModelServer {
    alive: bool,
    value: bool,
    /// Added to the time: its clock is wrong.
    skew: u64,
    /// When it started with this value.
    since: u64,
    /// Last revision read, and its own time of the first read.
    seen: (u64, u64),
    /// Whether it accepts new uses: it has the feature on, and has read a state that permits them.
    open: bool,
    /// Value and revision in its Lease, and when it is renewed.
    lease: (bool, u64),
    renewal: u64,
    /// A read whose write is still to come.
    pending: Option<(u64, TransitionStep)>,
}

struct ModelComponent {
    alive: bool,
    value: bool,
    /// When it started with this value.
    since: u64,
    /// When it reports next.
    due: Option<u64>,
    /// It lacks the right to report: only its Lease says which value it has.
    is_mute: bool,
    /// Value in its Lease, the record's revision when it was renewed, and when it is renewed next.
    lease: (bool, u64, u64),
}

/// A server that is wrong, to see whether the model notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeededBug {
    /// Ends without waiting for uses.
    NoEvaluation,
    /// Waits by a clock that others set.
    WallClock,
    /// Ends although components report the old value.
    UsesIgnored,
    /// Acts although other servers disagree, or have not seen the transition.
    ServersIgnored,
    /// Does not look again for what was written while the tasks ran.
    NotVerified,
    /// Stores the start without its tasks.
    TasksLost,
    /// Keeps the uses of the evaluation before.
    UsesKept,
    /// Takes silence for agreement.
    LeasesIgnored,
}

impl SeededBug {
    const ALL: [Self; 8] = [
        Self::NoEvaluation,
        Self::WallClock,
        Self::UsesIgnored,
        Self::ServersIgnored,
        Self::NotVerified,
        Self::TasksLost,
        Self::UsesKept,
        Self::LeasesIgnored,
    ];

    fn see<'a>(self, view: &mut TransitionView<'a>, clock: u64) {
        match self {
            Self::WallClock => view.observed = Duration::from_secs(clock),
            Self::ServersIgnored => view.others = &[],
            Self::LeasesIgnored => view.component = None,
            _ => {}
        }
    }

    fn change(self, record: &TransitionRecord, step: TransitionStep) -> TransitionStep {
        let ended = || {
            let state = match record.state {
                FeatureState::TurningOff => FeatureState::Off,
                _ => FeatureState::On,
            };
            let (tasks, evaluating) = (Vec::new(), false);
            TransitionStep::Write(TransitionRecord { state, tasks, evaluating, ..record.clone() })
        };
        match (self, step) {
            (Self::NoEvaluation, TransitionStep::Wait(_))
            | (Self::UsesIgnored, TransitionStep::Blocked(Blocker::Use(_), _)) => ended(),
            (Self::NotVerified, TransitionStep::Verify { complete, .. }) => {
                TransitionStep::Write(complete)
            }
            (Self::TasksLost, TransitionStep::Write(next)) if next.tasks.len() > 1 => {
                TransitionStep::Write(without_tasks(next))
            }
            (Self::TasksLost, TransitionStep::Verify { complete, again }) => {
                TransitionStep::Verify { complete, again: without_tasks(again) }
            }
            (Self::UsesKept, TransitionStep::Write(next)) if next.evaluating => {
                TransitionStep::Write(TransitionRecord { uses: record.uses.clone(), ..next })
            }
            (Self::UsesKept, TransitionStep::Blocked(blocker, Some(_))) => {
                TransitionStep::Blocked(blocker, Some(record.clone()))
            }
            (_, step) => step,
        }
    }
}

fn without_tasks(record: TransitionRecord) -> TransitionRecord {
    TransitionRecord { tasks: vec![WAIT_FOR_USES.to_owned()], ..record }
}

struct TransitionModel {
    bug: Option<SeededBug>,
    now: u64,
    revision: u64,
    record: TransitionRecord,
    /// `spec.desired`, which servers follow if the feature is dynamic.
    desired: bool,
    is_dynamic: bool,
    /// Whether all servers take themselves for the leader.
    all_lead: bool,
    /// Objects that each task has to clean up, and whether they are there.
    dirt: [bool; 2],
    /// When a write is stored that a server accepted earlier, as webhooks take their time.
    in_flight: Option<u64>,
    servers: Vec<ModelServer>,
    components: Vec<ModelComponent>,
    random: ScheduleRandom,
    /// Time of the last clearing of uses.
    cleared: u64,
    completions: u32,
}

impl TransitionModel {
    fn new(seed: u64) -> Self {
        let mut random = ScheduleRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let count = 1 + random.below(3);
        let servers = (0..count)
            .map(|_| ModelServer {
                alive: true,
                value: true,
                skew: random.below(100_000),
                since: 0,
                seen: (0, 0),
                open: false,
                lease: (true, 0),
                renewal: 0,
                pending: None,
            })
            .collect();
        let components = (0..random.below(4))
            .map(|_| ModelComponent {
                alive: true,
                value: true,
                since: 0,
                due: None,
                is_mute: random.one_in(4),
                lease: (true, 0, 0),
            })
            .collect();
        Self {
            bug: None,
            now: 0,
            revision: 1,
            record: TransitionRecord::initial(true),
            desired: true,
            is_dynamic: seed.is_multiple_of(2),
            all_lead: seed.is_multiple_of(3),
            dirt: [true; 2],
            in_flight: None,
            servers,
            components,
            random,
            cleared: 0,
            completions: 0,
        }
    }

    fn write(&mut self, at: u64, next: TransitionRecord) {
        if at != self.revision {
            return;
        }
        if next.uses.is_empty() && next.evaluating {
            self.cleared = self.now;
        }
        if self.record.state.is_turning() && !next.state.is_turning() {
            self.check_completion(&next);
        }
        self.record = next;
        self.revision += 1;
    }

    fn check_completion(&mut self, next: &TransitionRecord) {
        let enabled = next.state == FeatureState::On;
        self.completions += 1;
        assert!(self.now - self.cleared >= EVALUATION, "too early at {}", self.now);
        // A component that started later is seen in its report, and by the next transition.
        let knew = |alive: bool, since: u64| alive && since < self.cleared;
        for server in &self.servers {
            let agrees = server.value == enabled || !knew(server.alive, server.since);
            assert!(agrees, "a live server has the other value at {}", self.now);
        }
        for component in &self.components {
            let agrees = component.value == enabled || !knew(component.alive, component.since);
            assert!(agrees, "a live component has the old value at {}", self.now);
        }
        if !enabled {
            assert_eq!(self.dirt, [false; 2], "off, and objects still use it");
        }
        assert!(next.tasks.is_empty());
    }

    /// One server reads, or finishes what it read for.
    fn step_server(&mut self, index: usize) {
        let server = &mut self.servers[index];
        if !server.alive {
            return;
        }
        if let Some((revision, step)) = server.pending.take() {
            return self.finish(revision, step);
        }
        let clock = self.now + server.skew;
        if server.seen.0 != self.revision {
            server.seen = (self.revision, clock);
        }
        if self.is_dynamic && server.value != self.desired {
            (server.value, server.since) = (self.desired, self.now);
        }
        server.open = server.value && self.record.state.permits_use();
        if self.now >= server.renewal {
            server.renewal = self.now + RENEWAL;
            server.lease = (server.value, server.seen.0);
        }
        let (desired, observed) = (server.value, clock - server.seen.1);
        let alive = || self.servers.iter().enumerate().filter(|(_, server)| server.alive);
        let ids: Vec<String> = alive().map(|(at, _)| at.to_string()).collect();
        let own = index.to_string();
        if !self.all_lead && leader(ids.iter().map(String::as_str), "f") != Some(&own) {
            return;
        }
        let others: Vec<ServerReport> = alive()
            .filter(|(at, _)| *at != index)
            .map(|(at, other)| ServerReport {
                id: at.to_string(),
                enabled: Some(other.lease.0),
                has_observed: other.lease.1 >= self.revision,
            })
            .collect();
        let tasks = if desired { Vec::new() } else { TASKS.map(str::to_owned).to_vec() };
        let differs = |one: &ModelComponent| {
            let (value, revision, _) = one.lease;
            value != desired && revision == self.revision
        };
        let component = self.components.iter().any(differs).then_some("a");
        let mut view = TransitionView {
            desired,
            tasks: &tasks,
            others: &others,
            observed: Duration::from_secs(observed),
            evaluation: Duration::from_secs(EVALUATION),
            canary: 100,
            component,
        };
        if let Some(bug) = self.bug {
            bug.see(&mut view, clock);
        }
        let mut step = self.record.next(&view);
        if let Some(bug) = self.bug {
            step = bug.change(&self.record, step);
        }
        self.servers[index].pending = Some((self.revision, step));
    }

    fn finish(&mut self, revision: u64, step: TransitionStep) {
        match step {
            TransitionStep::Rest | TransitionStep::Wait(_) | TransitionStep::Blocked(_, None) => {}
            TransitionStep::Write(next) | TransitionStep::Blocked(_, Some(next)) => {
                self.write(revision, next);
            }
            TransitionStep::Verify { complete, again } => {
                let is_clean = self.dirt == [false; 2];
                self.write(revision, if is_clean { complete } else { again });
            }
            TransitionStep::Run(task) => {
                assert_ne!(task, WAIT_FOR_USES);
                let at = TASKS.iter().position(|one| *one == task).expect("a known task");
                self.dirt[at] = false;
                // Killed between the task and its record.
                if !self.random.one_in(4) {
                    let next = self.record.without_first_task();
                    self.write(revision, next);
                }
            }
        }
    }

    fn step_components(&mut self) {
        let version = Some(KubernetesVersion::CURRENT);
        for index in 0..self.components.len() {
            let component = &mut self.components[index];
            if !component.alive {
                continue;
            }
            if self.now >= component.lease.2 {
                component.lease = (component.value, self.revision, self.now + RENEWAL);
            }
            let own = FeatureUse { version, enabled: component.value };
            if component.is_mute || self.record.uses.contains(&own) {
                component.due = None;
                continue;
            }
            let delay = self.random.below(MAX_REPORT_DELAY);
            let due = *component.due.get_or_insert(self.now + delay);
            if self.now >= due {
                component.due = None;
                self.record.uses.push(own);
                self.revision += 1;
            }
        }
    }

    /// Users write objects while a server permits it.
    fn step_users(&mut self) {
        let permits = self.servers.iter().any(|server| server.alive && server.open);
        if permits && self.random.one_in(2) {
            self.dirt = [true; 2];
        }
        if self.in_flight.is_some_and(|end| self.now >= end) {
            self.in_flight = None;
            self.dirt = [true; 2];
        }
        if permits && self.in_flight.is_none() {
            self.in_flight = Some(self.now + self.random.below(MAX_WRITE));
        }
    }

    fn disturb(&mut self, enabled: bool) {
        if self.desired != enabled {
            self.desired = enabled;
            self.revision += 1;
        }
        let index = self.random.below(self.servers.len() as u64) as usize;
        let server = &mut self.servers[index];
        // A crash, and a restart with what the command line says now; the clock may have moved.
        server.alive = !server.alive;
        server.pending = None;
        (server.since, server.seen, server.open) = (self.now, (0, 0), false);
        // A dynamic value is off until it is read.
        server.value = enabled && !self.is_dynamic;
        (server.lease, server.renewal) = ((server.value, 0), self.now + RENEWAL);
        server.skew = self.random.below(100_000);
        if !self.components.is_empty() {
            let index = self.random.below(self.components.len() as u64) as usize;
            let component = &mut self.components[index];
            component.alive = !component.alive;
            component.value = enabled;
            (component.since, component.due) = (self.now, None);
        }
    }

    fn run(&mut self, seconds: u64, mut disturbed: impl FnMut(&mut Self)) {
        for _ in 0..seconds {
            self.now += 1;
            disturbed(self);
            self.step_components();
            let count = self.servers.len() as u64;
            let index = self.random.below(count) as usize;
            self.step_server(index);
            // Some are slow for a while.
            if (self.now / 64).is_multiple_of(2) {
                self.step_server(0);
            }
            self.step_users();
        }
    }

    /// Everything runs with the value, and nothing fails any more.
    fn quiesce(&mut self, enabled: bool) {
        if self.desired != enabled {
            self.desired = enabled;
            self.revision += 1;
        }
        for server in self.servers.iter_mut().filter(|one| !one.alive || one.value != enabled) {
            (server.alive, server.value) = (true, enabled);
            (server.since, server.open, server.pending) = (self.now, false, None);
            (server.lease, server.renewal) = ((enabled, 0), self.now + RENEWAL);
        }
        for one in self.components.iter_mut().filter(|one| !one.alive || one.value != enabled) {
            (one.alive, one.value, one.since) = (true, enabled, self.now);
        }
        for _ in 0..20 {
            self.run(EVALUATION, |_| {});
            if self.record.state == FeatureState::stable(enabled) {
                break;
            }
        }
        assert_eq!(self.record.state, FeatureState::stable(enabled), "at {}", self.now);
        assert!(self.record.tasks.is_empty());
        if !enabled {
            assert_eq!(self.dirt, [false; 2]);
        }
    }
}

/// Off, on, off, on, each after a while in which anything fails. Returns how often it ended.
fn schedule(seed: u64, bug: Option<SeededBug>) -> u32 {
    let mut model = TransitionModel { bug, ..TransitionModel::new(seed) };
    for round in 0..4 {
        let enabled = round % 2 == 1;
        model.run(300, |model| {
            if model.random.one_in(15) {
                let value = if model.random.one_in(3) { !enabled } else { enabled };
                model.disturb(value);
            }
        });
        model.quiesce(enabled);
    }
    model.completions
}

#[test]
fn random_schedules_reach_the_right_state_and_never_a_wrong_one() {
    let completions: u32 = (1..=200).map(|seed| schedule(seed, None)).sum();
    assert!(completions >= 800, "{completions}");
}

/// Validates the model: it finds each bug within 100 schedules.
#[test]
fn the_model_finds_seeded_bugs() {
    for bug in SeededBug::ALL {
        let fails = |seed: u64| std::panic::catch_unwind(|| schedule(seed, Some(bug))).is_err();
        assert!((1..=100).any(fails), "{bug:?} is not found");
    }
}
