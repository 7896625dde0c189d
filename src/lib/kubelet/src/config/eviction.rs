//! Settings of eviction: hard thresholds, soft ones with a grace period, and the amounts to reclaim
//! beyond them.

use super::duration;
use crate::eviction::threshold::{EvictionPolicy, EvictionSignal, EvictionThreshold};
use ferrokube_apimachinery::document::Value;
use std::collections::BTreeMap;
use std::time::Duration;

type BySignal = BTreeMap<String, String>;

/// As in a file; `None`: not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionSettings {
    /// Amounts by signal, below which pods are evicted immediately.
    pub hard: Option<BySignal>,
    /// Amounts by signal, below which pods are evicted after a grace period.
    pub soft: Option<BySignal>,
    /// Grace periods of the soft ones by signal: durations.
    pub soft_grace: Option<BySignal>,
    /// Amounts by signal to reclaim beyond a crossed threshold.
    pub reclaim: Option<BySignal>,
    /// Max grace period, in seconds, of a pod evicted by a soft threshold.
    pub max_pod_grace: Option<i64>,
    /// Whether unset hard thresholds have kubelet's defaults even if others are set.
    pub merges_defaults: Option<bool>,
    /// How long a condition lasts after its cause.
    pub pressure_transition: Option<Duration>,
}

impl EvictionSettings {
    /// Sets a field whose type was checked. Returns whether the field is one of these.
    pub(super) fn set(&mut self, name: &str, value: &Value) -> Result<bool, String> {
        match name {
            "evictionHard" => self.hard = texts(name, value)?,
            "evictionSoft" => self.soft = texts(name, value)?,
            "evictionSoftGracePeriod" => self.soft_grace = texts(name, value)?,
            "evictionMinimumReclaim" => self.reclaim = texts(name, value)?,
            "evictionMaxPodGracePeriod" => self.max_pod_grace = value.as_i64(),
            "mergeDefaultEvictionSettings" => self.merges_defaults = value.as_bool(),
            "evictionPressureTransitionPeriod" => {
                let time = duration(value.as_str().unwrap_or("0"))?;
                self.pressure_transition = Some(time).filter(|time| !time.is_zero());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// These settings, with unset ones taken from `below`.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            hard: self.hard.or(below.hard),
            soft: self.soft.or(below.soft),
            soft_grace: self.soft_grace.or(below.soft_grace),
            reclaim: self.reclaim.or(below.reclaim),
            max_pod_grace: self.max_pod_grace.or(below.max_pod_grace),
            merges_defaults: self.merges_defaults.or(below.merges_defaults),
            pressure_transition: self.pressure_transition.or(below.pressure_transition),
        }
    }

    /// Checks and adds defaults: kubelet's, which apply only if no hard threshold is set, unless
    /// they are merged.
    pub(super) fn finish(&self, mut wrong: impl FnMut(String)) -> EvictionPolicy {
        let mut thresholds = Vec::new();
        let given = self.hard.iter().flatten();
        let mut parse = |field: &str, signal: &str, amount: &str| {
            let parsed = EvictionThreshold::parse(signal, amount);
            parsed.unwrap_or_else(|why| {
                wrong(format!("{field}: {why}"));
                None
            })
        };
        for (signal, amount) in given {
            thresholds.extend(parse("evictionHard", signal, amount));
        }
        for (signal, amount) in self.soft.iter().flatten() {
            let threshold = parse("evictionSoft", signal, amount);
            let zero = Duration::ZERO;
            thresholds.extend(threshold.map(|threshold| threshold.with_grace(zero)));
        }
        let is_set = |signal: &str| self.hard.iter().flatten().any(|(known, _)| known == signal);
        if self.hard.is_none() || self.merges_defaults == Some(true) {
            let defaults = EvictionThreshold::defaults().into_iter();
            thresholds.extend(defaults.filter(|threshold| !is_set(threshold.signal.name())));
        }
        self.set_graces(&mut thresholds, &mut wrong);
        self.set_reclaims(&mut thresholds, &mut wrong);
        let seconds = self.max_pod_grace.unwrap_or(0);
        if seconds < 0 {
            wrong(format!("evictionMaxPodGracePeriod {seconds} must not be negative"));
        }
        EvictionPolicy {
            thresholds,
            transition: self.pressure_transition.unwrap_or(Duration::from_secs(300)),
            max_pod_grace: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
        }
    }

    fn set_graces(&self, thresholds: &mut [EvictionThreshold], wrong: &mut impl FnMut(String)) {
        let graces = self.soft_grace.iter().flatten();
        let mut known = BTreeMap::new();
        for (signal, text) in graces {
            match (EvictionSignal::named(signal), duration(text)) {
                (Err(why), _) => wrong(format!("evictionSoftGracePeriod: {why}")),
                (_, Err(why)) => wrong(format!("evictionSoftGracePeriod.{signal}: {why}")),
                (Ok(signal), Ok(grace)) => _ = known.insert(signal, grace),
            }
        }
        for threshold in thresholds.iter_mut().filter(|threshold| threshold.grace.is_some()) {
            match known.get(&threshold.signal) {
                Some(grace) => *threshold = threshold.with_grace(*grace),
                None => wrong(format!(
                    "grace period must be specified for the soft eviction threshold {}",
                    threshold.signal.name()
                )),
            }
        }
    }

    fn set_reclaims(&self, thresholds: &mut [EvictionThreshold], wrong: &mut impl FnMut(String)) {
        for (name, amount) in self.reclaim.iter().flatten() {
            let signal = EvictionSignal::named(name);
            if let Err(why) = &signal {
                wrong(format!("evictionMinimumReclaim: {why}"));
            }
            let own = thresholds.iter_mut().filter(|one| Ok(one.signal) == signal);
            for threshold in own {
                match threshold.with_reclaim(amount) {
                    Ok(changed) => *threshold = changed,
                    Err(why) => wrong(format!("evictionMinimumReclaim: {why}")),
                }
            }
        }
    }
}

/// An object of texts; an empty one is unset, as in Go.
fn texts(field: &str, value: &Value) -> Result<Option<BySignal>, String> {
    let fields = value.as_object().into_iter().flat_map(|fields| fields.iter());
    let pair = |(signal, amount): (&str, &Value)| {
        let wrong = || format!("{field}.{signal} must be a string");
        Ok((signal.to_owned(), amount.as_str().ok_or_else(wrong)?.to_owned()))
    };
    let pairs = fields.map(|(signal, amount)| pair((signal.as_ref(), amount)));
    let pairs: BySignal = pairs.collect::<Result<_, String>>()?;
    Ok(Some(pairs).filter(|pairs| !pairs.is_empty()))
}
