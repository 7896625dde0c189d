//! The transitions of a feature as a pure function: from the stored record and what a server knows
//! to that server's next step.
//!
//! Safe with several leaders: a step is a compare-and-swap of the whole record, or a task that may
//! run twice. Safe with wrong clocks: a wait is a duration since the caller observed the record, so
//! that a new leader starts the wait again.

use crate::version::KubernetesVersion;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Last task of every transition: all uses are cleared, and for the evaluation time no component
/// may report the old value.
pub const WAIT_FOR_USES: &str = "WaitForUses";

/// Interval of checks whether a feature reported as used while off is still in use.
pub const RECHECK: Duration = Duration::from_secs(600);

/// Max reported values in an object: two for each possible version.
pub const MAX_USES: usize = 32;

/// State of a feature in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureState {
    /// Usable. Next: [`Self::TurningOff`].
    On,
    /// Unused, and no stored object uses it. Next: [`Self::TurningOn`].
    Off,
    /// Usable; some components may not know yet. Next: [`Self::On`], [`Self::TurningOff`].
    TurningOn,
    /// No new uses; tasks remove those that exist. Next: [`Self::Off`], [`Self::TurningOn`].
    TurningOff,
}

impl FeatureState {
    /// As stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::On => "On",
            Self::Off => "Off",
            Self::TurningOn => "TurningOn",
            Self::TurningOff => "TurningOff",
        }
    }

    /// The stable state of a value.
    pub fn stable(enabled: bool) -> Self {
        if enabled { Self::On } else { Self::Off }
    }

    /// The state on the way to a value.
    pub fn turning(enabled: bool) -> Self {
        if enabled { Self::TurningOn } else { Self::TurningOff }
    }

    /// Whether components may permit new uses of the feature.
    pub fn permits_use(self) -> bool {
        matches!(self, Self::On | Self::TurningOn)
    }

    /// Whether tasks remain.
    pub fn is_turning(self) -> bool {
        matches!(self, Self::TurningOn | Self::TurningOff)
    }
}

impl fmt::Display for FeatureState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not one of On, Off, TurningOn, TurningOff")]
pub struct FeatureStateError;

impl FromStr for FeatureState {
    type Err = FeatureStateError;

    fn from_str(text: &str) -> Result<Self, FeatureStateError> {
        [Self::On, Self::Off, Self::TurningOn, Self::TurningOff]
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or(FeatureStateError)
    }
}

/// A value that components of a version have reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureUse {
    /// Version of the component; `None` if unreadable.
    pub version: Option<KubernetesVersion>,
    /// Value that its gate has.
    pub enabled: bool,
}

/// The transition state stored in a Feature object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitionRecord {
    /// Where the transition stands, as in `status.state`.
    pub state: FeatureState,
    /// Number of the transition. Progress of one says nothing about another.
    pub number: u64,
    /// Tasks before the transition ends, in order.
    pub tasks: Vec<String>,
    /// Reported values. Components add to them; only this machine clears them.
    pub uses: Vec<FeatureUse>,
    /// Whether they were cleared, and the evaluation time runs (`useEvaluationTime` is set).
    pub evaluating: bool,
}

/// Another API server with a fresh identity Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// Identity.
    pub id: String,
    /// Reported value of the gate; `None` if not reported.
    pub enabled: Option<bool>,
    /// Whether it has seen this revision of the record or a later one.
    pub has_observed: bool,
}

/// Facts of a server, apart from the record.
#[derive(Clone, Debug)]
pub struct TransitionView<'a> {
    /// Value that the feature should have.
    pub desired: bool,
    /// Tasks on the way to it, without [`WAIT_FOR_USES`].
    pub tasks: &'a [String],
    /// With a fresh identity Lease; without this one.
    pub others: &'a [ServerReport],
    /// Time since this server first saw the record in its present revision.
    pub observed: Duration,
    /// Max time until components report.
    pub evaluation: Duration,
    /// Percentage of components that turn the feature on first; less than 100 holds
    /// [`FeatureState::TurningOn`].
    pub canary: u8,
    /// A component that is alive and has the other value, as the Lease says that it has renewed
    /// since the record was stored: its reports do not arrive. Only matters when the evaluation is
    /// over.
    pub component: Option<&'a str>,
}

/// Why a transition does not advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// A server has the other value.
    Server(String),
    /// A server does not report its value, so it does not participate in transitions.
    Silent(String),
    /// A server has not seen the record yet.
    Unobserved(String),
    /// Components of this version report the old value.
    Use(FeatureUse),
    /// The component that renews this Lease has the old value, and does not report it.
    Component(String, bool),
    /// The list of reported values is full, so others may be missing.
    Full,
    /// Only this percentage of the components has it on.
    Canary(u8),
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(id) => write!(f, "API server {id} is configured with another value"),
            Self::Silent(id) => write!(f, "API server {id} does not say how it is configured"),
            Self::Canary(percent) => write!(f, "{percent}% of the components have it on first"),
            Self::Full => write!(f, "there are {MAX_USES} reported values, and no room for others"),
            Self::Component(lease, enabled) => {
                let value = if *enabled { "on" } else { "off" };
                write!(f, "the component that renews Lease {lease} has it {value}")
            }
            Self::Unobserved(id) => write!(f, "API server {id} has not observed the transition"),
            Self::Use(FeatureUse { version, enabled }) => {
                let value = if *enabled { "on" } else { "off" };
                match version {
                    Some(version) => write!(f, "a component of version {version} has it {value}"),
                    None => write!(f, "a component of unknown version has it {value}"),
                }
            }
        }
    }
}

/// The server's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransitionStep {
    /// Nothing: the state is the desired one.
    Rest,
    /// Store this record, if the object has not changed.
    Write(TransitionRecord),
    /// Run the first task, then store [`TransitionRecord::without_first_task`]. May run again after
    /// a crash.
    Run(String),
    /// Check again after this time, or when something changes.
    Wait(Duration),
    /// Check whether an object still uses the feature: a write that was accepted before the
    /// transition may have been stored after the tasks.
    Verify {
        /// To be stored if none does.
        complete: TransitionRecord,
        /// To be stored otherwise: the tasks, from the first.
        again: TransitionRecord,
    },
    /// Cannot advance for now. With a record: evaluate the uses once more.
    Blocked(Blocker, Option<TransitionRecord>),
}

impl TransitionRecord {
    /// The record of a feature that is not stored yet.
    pub fn initial(enabled: bool) -> Self {
        Self {
            state: FeatureState::stable(enabled),
            number: 0,
            tasks: Vec::new(),
            uses: Vec::new(),
            evaluating: false,
        }
    }

    /// The record after a task.
    #[must_use]
    pub fn without_first_task(&self) -> Self {
        Self { tasks: self.tasks.get(1..).unwrap_or_default().to_vec(), ..self.clone() }
    }

    fn evaluated_again(&self) -> Self {
        Self { uses: Vec::new(), evaluating: true, ..self.clone() }
    }

    /// The next step of a server that leads.
    pub fn next(&self, view: &TransitionView<'_>) -> TransitionStep {
        if self.state == FeatureState::stable(view.desired) {
            return self.rest(view);
        }
        if self.state != FeatureState::turning(view.desired) {
            return TransitionStep::Write(self.turned(view));
        }
        if let Some(blocker) = blocking_server(view) {
            return TransitionStep::Blocked(blocker, None);
        }
        if view.desired && view.canary < 100 {
            return TransitionStep::Blocked(Blocker::Canary(view.canary), None);
        }
        match self.tasks.first() {
            Some(task) if task != WAIT_FOR_USES => TransitionStep::Run(task.clone()),
            // An object that lost its last task still waits.
            _ => self.wait_for_uses(view),
        }
    }

    /// A value reported too late: the feature is off, but on in a component that was disconnected,
    /// or whose command line differs.
    pub fn late_use(&self) -> Option<&FeatureUse> {
        let uses = if self.state == FeatureState::Off { self.uses.as_slice() } else { &[] };
        uses.iter().find(|found| found.enabled)
    }

    /// Entries are only ever added: those of late components are cleared occasionally, and come
    /// back if they still hold.
    fn rest(&self, view: &TransitionView<'_>) -> TransitionStep {
        match self.late_use() {
            Some(_) if view.observed >= RECHECK => {
                TransitionStep::Write(Self { uses: Vec::new(), ..self.clone() })
            }
            _ => TransitionStep::Rest,
        }
    }

    /// The start of a transition, or of its reversal.
    fn turned(&self, view: &TransitionView<'_>) -> Self {
        let last = [WAIT_FOR_USES.to_owned()];
        Self {
            state: FeatureState::turning(view.desired),
            number: self.number + 1,
            tasks: view.tasks.iter().cloned().chain(last).collect(),
            uses: self.uses.clone(),
            evaluating: false,
        }
    }

    fn wait_for_uses(&self, view: &TransitionView<'_>) -> TransitionStep {
        if !self.evaluating {
            return TransitionStep::Write(self.evaluated_again());
        }
        if let Some(left) =
            view.evaluation.checked_sub(view.observed).filter(|left| !left.is_zero())
        {
            return TransitionStep::Wait(left);
        }
        let old = self.uses.iter().find(|found| found.enabled != view.desired);
        let old = old.map(|old| Blocker::Use(old.clone()));
        let silent = view.component.map(|id| Blocker::Component(id.to_owned(), !view.desired));
        let full = (self.uses.len() >= MAX_USES).then_some(Blocker::Full);
        if let Some(blocker) = old.or(silent).or(full) {
            // Entries are only ever added, so that only another evaluation shows whether it holds.
            return TransitionStep::Blocked(blocker, Some(self.evaluated_again()));
        }
        let complete = Self {
            state: FeatureState::stable(view.desired),
            tasks: Vec::new(),
            evaluating: false,
            ..self.clone()
        };
        if view.tasks.is_empty() {
            TransitionStep::Write(complete)
        } else {
            TransitionStep::Verify { complete, again: self.turned(view) }
        }
    }
}

fn blocking_server(view: &TransitionView<'_>) -> Option<Blocker> {
    let blocker = |server: &ServerReport| match server.enabled {
        None => Some(Blocker::Silent(server.id.clone())),
        Some(value) if value != view.desired => Some(Blocker::Server(server.id.clone())),
        Some(_) => None,
    };
    let unaware = || view.others.iter().find(|server| !server.has_observed);
    view.others
        .iter()
        .find_map(blocker)
        .or_else(|| unaware().map(|server| Blocker::Unobserved(server.id.clone())))
}

/// The leader for a feature among servers, by rendezvous hashing: all that see the same servers
/// agree without a message, and a server that comes or goes moves only its own features.
pub fn leader<'a>(servers: impl IntoIterator<Item = &'a str>, feature: &str) -> Option<&'a str> {
    servers.into_iter().max_by_key(|id| (weight(id, feature), *id))
}

/// Whether a component is among those that turn a feature on first.
pub fn is_canary(component: &str, feature: &str, percent: u8) -> bool {
    weight(component, feature) % 100 < u64::from(percent)
}

/// FNV-1a with a final mix; the same in every version of every binary.
fn weight(id: &str, feature: &str) -> u64 {
    let bytes = id.bytes().chain([0]).chain(feature.bytes());
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVALUATION: Duration = Duration::from_secs(60);

    fn used(enabled: bool) -> FeatureUse {
        FeatureUse { version: Some(KubernetesVersion::CURRENT), enabled }
    }

    fn report(enabled: Option<bool>, has_observed: bool) -> ServerReport {
        ServerReport { id: "b".into(), enabled, has_observed }
    }

    fn view<'a>(
        desired: bool,
        tasks: &'a [String],
        others: &'a [ServerReport],
    ) -> TransitionView<'a> {
        let (observed, evaluation) = (Duration::ZERO, EVALUATION);
        let (canary, component) = (100, None);
        TransitionView { desired, tasks, others, observed, evaluation, canary, component }
    }

    #[test]
    fn f31_f32_f33_a_lone_server_turns_a_feature_off_task_by_task() {
        let tasks = ["Clear".to_owned()];
        let mut record =
            TransitionRecord { uses: vec![used(true)], ..TransitionRecord::initial(true) };
        assert_eq!(record.next(&view(true, &[], &[])), TransitionStep::Rest);
        let off = view(false, &tasks, &[]);
        let mut steps = Vec::new();
        for _ in 0..3 {
            match record.next(&off) {
                TransitionStep::Write(next) => record = next,
                TransitionStep::Run(_) => record = record.without_first_task(),
                other => panic!("{other:?}"),
            }
            steps.push((record.state, record.tasks.join(" "), record.uses.len()));
        }
        let turning = FeatureState::TurningOff;
        let want = [("Clear WaitForUses", 1), ("WaitForUses", 1), ("WaitForUses", 0)];
        assert_eq!(steps, want.map(|(tasks, uses)| (turning, tasks.to_owned(), uses)));
        assert_eq!(record.next(&off), TransitionStep::Wait(EVALUATION));
        record.uses.push(used(false));
        let over = TransitionView { observed: EVALUATION, ..off.clone() };
        let TransitionStep::Verify { complete: last, again } = record.next(&over) else {
            panic!("not complete")
        };
        assert_eq!((again.state, again.tasks.len(), again.number), (turning, 2, record.number + 1));
        assert_eq!((last.state, last.tasks.len(), last.uses.len()), (FeatureState::Off, 0, 1));
        assert_eq!(last.next(&over), TransitionStep::Rest);
    }

    #[test]
    fn a_late_report_of_the_old_value_starts_another_evaluation() {
        let record = TransitionRecord {
            state: FeatureState::TurningOff,
            number: 1,
            tasks: vec![WAIT_FOR_USES.into()],
            uses: vec![used(false), used(true)],
            evaluating: true,
        };
        let over = TransitionView { observed: EVALUATION, ..view(false, &[], &[]) };
        let TransitionStep::Blocked(blocker, Some(next)) = record.next(&over) else { panic!() };
        assert_eq!(blocker.to_string(), "a component of version 1.36 has it on");
        assert!(next.uses.is_empty() && next.evaluating && next.state == record.state);
    }

    /// Silence is not agreement.
    #[test]
    fn a_live_component_that_does_not_report_starts_another_evaluation() {
        let record = TransitionRecord {
            state: FeatureState::TurningOff,
            number: 1,
            tasks: vec![WAIT_FOR_USES.into()],
            uses: vec![used(false)],
            evaluating: true,
        };
        let component = Some("kube-node-lease/a");
        let early = TransitionView { component, ..view(false, &[], &[]) };
        assert_eq!(record.next(&early), TransitionStep::Wait(EVALUATION));
        let over = TransitionView { observed: EVALUATION, ..early };
        let TransitionStep::Blocked(blocker, Some(next)) = record.next(&over) else { panic!() };
        let want = "the component that renews Lease kube-node-lease/a has it on";
        assert_eq!(blocker.to_string(), want);
        assert!(next.uses.is_empty() && next.evaluating && next.state == record.state);
    }

    #[test]
    fn f10_a_report_after_the_end_is_looked_at_again() {
        let off = TransitionRecord { uses: vec![used(false)], ..TransitionRecord::initial(false) };
        let at = |observed| TransitionView { observed, ..view(false, &[], &[]) };
        assert_eq!((off.late_use(), off.next(&at(RECHECK))), (None, TransitionStep::Rest));
        let late = TransitionRecord { uses: vec![used(false), used(true)], ..off };
        assert_eq!(late.late_use(), Some(&used(true)));
        assert_eq!(late.next(&at(RECHECK / 2)), TransitionStep::Rest);
        let TransitionStep::Write(next) = late.next(&at(RECHECK)) else { panic!("not cleared") };
        assert!(next.uses.is_empty() && next.state == FeatureState::Off && !next.evaluating);
        assert_eq!(next.next(&at(RECHECK)), TransitionStep::Rest);
        let on = TransitionRecord { state: FeatureState::On, ..late };
        assert_eq!(on.late_use(), None, "on in some components only is no remnant");
    }

    /// A component that lies can hold a transition, but not end one early.
    #[test]
    fn a_list_that_is_full_proves_nothing() {
        let record = TransitionRecord {
            state: FeatureState::TurningOff,
            number: 1,
            tasks: vec![WAIT_FOR_USES.into()],
            uses: vec![used(false); MAX_USES],
            evaluating: true,
        };
        let over = TransitionView { observed: EVALUATION, ..view(false, &[], &[]) };
        let TransitionStep::Blocked(Blocker::Full, Some(next)) = record.next(&over) else {
            panic!()
        };
        assert!(next.uses.is_empty());
    }

    #[test]
    fn a_server_that_differs_or_lags_holds_all_tasks_back() {
        let record = TransitionRecord::initial(true).turned(&view(false, &["T".into()], &[]));
        for (report, want) in [
            (report(Some(true), true), "API server b is configured with another value"),
            (report(None, true), "API server b does not say how it is configured"),
            (report(Some(false), false), "API server b has not observed the transition"),
        ] {
            let others = [report];
            let TransitionStep::Blocked(blocker, None) = record.next(&view(false, &[], &others))
            else {
                panic!("not blocked")
            };
            assert_eq!(blocker.to_string(), want);
        }
        let others = [report(Some(false), true)];
        assert_eq!(record.next(&view(false, &[], &others)), TransitionStep::Run("T".into()));
    }

    #[test]
    fn f19_a_canary_holds_the_transition_and_chooses_by_hash() {
        let record = TransitionRecord::initial(false).turned(&view(true, &[], &[]));
        let canary = TransitionView { canary: 10, ..view(true, &[], &[]) };
        let TransitionStep::Blocked(blocker, None) = record.next(&canary) else { panic!() };
        assert_eq!(blocker.to_string(), "10% of the components have it on first");
        let chosen = |percent| {
            (0..1_000).filter(|at| is_canary(&format!("node-{at}"), "F", percent)).count()
        };
        assert_eq!((chosen(0), chosen(100)), (0, 1_000));
        assert!((50..200).contains(&chosen(10)), "{}", chosen(10));
        assert!((0..1_000).all(|at| {
            let component = format!("node-{at}");
            !is_canary(&component, "F", 10) || is_canary(&component, "F", 50)
        }));
    }

    #[test]
    fn a_change_of_mind_starts_the_other_transition_from_its_first_task() {
        let record = TransitionRecord {
            evaluating: true,
            ..TransitionRecord::initial(true).turned(&view(false, &["T".into()], &[]))
        };
        let TransitionStep::Write(back) = record.next(&view(true, &[], &[])) else { panic!() };
        assert_eq!((back.state, back.evaluating), (FeatureState::TurningOn, false));
        assert_eq!(back.tasks, [WAIT_FOR_USES]);
    }

    #[test]
    fn an_object_without_its_last_task_waits_all_the_same() {
        let record =
            TransitionRecord { state: FeatureState::TurningOff, ..TransitionRecord::initial(true) };
        let TransitionStep::Write(next) = record.next(&view(false, &[], &[])) else { panic!() };
        assert!(next.evaluating && next.state == FeatureState::TurningOff);
    }

    #[test]
    fn f28_servers_agree_on_leaders_and_share_the_features() {
        let features: Vec<String> = (0..300).map(|number| format!("Feature{number}")).collect();
        let servers = ["a", "b", "c"];
        let mut led = [0; 3];
        for feature in &features {
            let chosen = leader(servers, feature).unwrap();
            assert_eq!(leader(["c", "a", "b"], feature), Some(chosen));
            led[servers.iter().position(|id| *id == chosen).unwrap()] += 1;
            // Without one of the others the leader stays.
            let fewer = servers.into_iter().filter(|id| *id == chosen || *id == "a");
            assert!(leader(fewer, feature) == Some(chosen) || chosen == "a");
        }
        assert!(led.iter().all(|count| (50..150).contains(count)), "{led:?}");
        assert_eq!(leader([], "x"), None);
    }
}
