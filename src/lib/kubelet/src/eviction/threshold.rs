//! Eviction signals and their thresholds (`evictionHard`).

use super::figures::{NodeFigures, ResourceFigure};
use ferrokube_apimachinery::quantity::{Format, Quantity};
use std::time::Duration;

/// When pods are evicted.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionPolicy {
    /// Crossing any of them triggers eviction.
    pub thresholds: Vec<EvictionThreshold>,
    /// How long a pressure condition outlasts its cause.
    pub transition: Duration,
    /// Max grace period of a pod evicted by a soft threshold.
    pub max_pod_grace: Duration,
}

/// The part of the capacity for pods: the eviction thresholds are reserved.
pub(crate) fn left(
    thresholds: &[EvictionThreshold],
    signal: EvictionSignal,
    figures: &NodeFigures,
) -> u64 {
    let capacity = signal.figure(figures).map_or(0, |it| it.capacity);
    let own = thresholds.iter().filter(|it| it.signal == signal && it.grace.is_none());
    let kept = own.map(|it| it.least(capacity)).max().unwrap_or(0);
    capacity.saturating_sub(kept)
}

/// Eviction signals, in the order in which they are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionSignal {
    /// `memory.available`
    Memory,
    /// `nodefs.available`
    NodeDisk,
    /// `nodefs.inodesFree`
    NodeInodes,
    /// `imagefs.available`
    ImageDisk,
    /// `imagefs.inodesFree`
    ImageInodes,
    /// `pid.available`
    Processes,
}

/// Name, default threshold, and the resource's name in messages.
const SIGNALS: [(EvictionSignal, &str, Option<&str>, &str); 6] = [
    (EvictionSignal::Memory, "memory.available", Some("100Mi"), "memory"),
    (EvictionSignal::NodeDisk, "nodefs.available", Some("10%"), "ephemeral-storage"),
    (EvictionSignal::NodeInodes, "nodefs.inodesFree", Some("5%"), "inodes"),
    (EvictionSignal::ImageDisk, "imagefs.available", Some("15%"), "ephemeral-storage"),
    (EvictionSignal::ImageInodes, "imagefs.inodesFree", Some("5%"), "inodes"),
    (EvictionSignal::Processes, "pid.available", None, "pids"),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum LeastAmount {
    Absolute(u64),
    /// Fraction of the capacity: from 0 to 1.
    Share(f64),
}

/// A threshold: pods are evicted while less is available.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionThreshold {
    /// The monitored signal.
    pub(crate) signal: EvictionSignal,
    least: LeastAmount,
    /// How long it is crossed before pods are evicted; `None`: evicts immediately (hard).
    pub(crate) grace: Option<Duration>,
    /// Amount above it from which the signal recovers.
    reclaim: Option<LeastAmount>,
}

impl LeastAmount {
    /// `None` for 0% and 100%.
    fn parse(amount: &str) -> Result<Option<Self>, String> {
        let wrong = || format!("invalid eviction threshold {amount:?}");
        let Some(percent) = amount.strip_suffix('%') else {
            let quantity = Quantity::parse(amount).map_err(|_| wrong())?.value();
            let quantity = u64::try_from(quantity)
                .map_err(|_| format!("eviction threshold {amount} must be positive"))?;
            return Ok(Some(Self::Absolute(quantity)));
        };
        let percent: f64 = percent.parse().map_err(|_| wrong())?;
        if percent == 0.0 || percent == 100.0 {
            return Ok(None);
        }
        if !(0.0..100.0).contains(&percent) {
            return Err(format!(
                "eviction percentage threshold {amount} must be >= 0% and <= 100%"
            ));
        }
        Ok(Some(Self::Share(percent / 100.0)))
    }

    /// The amount for this capacity.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a share between 0 and 1 of a count"
    )]
    fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Absolute(amount) => amount,
            Self::Share(share) => (capacity as f64 * share) as u64,
        }
    }
}

impl EvictionSignal {
    /// By the name in a configuration.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let row = SIGNALS.iter().find(|row| row.1 == name);
        Ok(row.ok_or_else(|| format!("unknown eviction signal {name}"))?.0)
    }

    /// As a configuration has it.
    pub(crate) fn name(self) -> &'static str {
        let row = SIGNALS.iter().find(|row| row.0 == self);
        row.map_or("", |row| row.1)
    }

    /// The resource's name in messages.
    pub(crate) fn resource(self) -> &'static str {
        let row = SIGNALS.iter().find(|row| row.0 == self);
        row.map_or("", |row| row.3)
    }

    pub(crate) fn is_of_disk(self) -> bool {
        !matches!(self, Self::Memory | Self::Processes)
    }

    pub(crate) fn figure(self, figures: &NodeFigures) -> Option<ResourceFigure> {
        match self {
            Self::Memory => figures.memory,
            Self::NodeDisk => figures.node_disk,
            Self::NodeInodes => figures.node_inodes,
            Self::ImageDisk => figures.image_disk,
            Self::ImageInodes => figures.image_inodes,
            Self::Processes => figures.processes,
        }
    }
}

impl EvictionThreshold {
    /// kubelet's.
    pub(crate) fn defaults() -> Vec<Self> {
        let rows = SIGNALS.iter().filter_map(|row| Some((row.1, row.2?)));
        rows.filter_map(|(name, amount)| Self::parse(name, amount).ok().flatten()).collect()
    }

    /// `None` for 0% and 100%, which turn a signal off.
    pub(crate) fn parse(signal: &str, amount: &str) -> Result<Option<Self>, String> {
        let signal = EvictionSignal::named(signal)?;
        let Some(least) = LeastAmount::parse(amount)? else { return Ok(None) };
        Ok(Some(Self { signal, least, grace: None, reclaim: None }))
    }

    /// Waits this long before it evicts.
    pub(crate) fn with_grace(self, grace: Duration) -> Self {
        Self { grace: Some(grace), ..self }
    }

    /// Once crossed, it stays so until this much more is available.
    pub(crate) fn with_reclaim(self, amount: &str) -> Result<Self, String> {
        Ok(Self { reclaim: LeastAmount::parse(amount)?, ..self })
    }

    /// The amount for this capacity.
    pub(crate) fn least(&self, capacity: u64) -> u64 {
        self.least.of(capacity)
    }

    /// The resource, if its availability is below the threshold, or if `was_crossed` below the
    /// threshold plus the amount to reclaim.
    pub(crate) fn crossed(
        &self,
        figures: &NodeFigures,
        was_crossed: bool,
    ) -> Option<ResourceFigure> {
        let figure = self.signal.figure(figures)?;
        let more = self.reclaim.filter(|_| was_crossed).map_or(0, |it| it.of(figure.capacity));
        let least = self.least(figure.capacity).saturating_add(more);
        (figure.available < least).then_some(figure)
    }

    /// Formatted as in kubelet's messages.
    pub(crate) fn message(&self, figure: ResourceFigure) -> String {
        let resource = self.signal.resource();
        let (least, left) = (self.least(figure.capacity), figure.available);
        let (least, left) = (amount(self.signal, least), amount(self.signal, left));
        format!(
            "The node was low on resource: {resource}. Threshold quantity: {least}, available: \
             {left}. "
        )
    }
}

/// Bytes as kubelet formats them, or a count.
pub(crate) fn amount(signal: EvictionSignal, value: u64) -> String {
    let counts =
        [EvictionSignal::NodeInodes, EvictionSignal::ImageInodes, EvictionSignal::Processes];
    if counts.contains(&signal) {
        return value.to_string();
    }
    // Whole kibibytes, as in kubelet's statistics.
    let bytes = i64::try_from(value / 1024 * 1024).unwrap_or(i64::MAX);
    Quantity::new(bytes, Format::BinarySi).canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_amounts_or_shares_and_unknown_signals_are_named() {
        let least = |signal: &str, amount: &str, capacity: u64| {
            EvictionThreshold::parse(signal, amount).map(|it| it.map(|it| it.least(capacity)))
        };
        assert_eq!(least("memory.available", "100Mi", 1 << 30), Ok(Some(100 << 20)));
        assert_eq!(least("nodefs.available", "12.5%", 1000), Ok(Some(125)));
        assert_eq!(least("nodefs.available", "0%", 1000), Ok(None));
        assert_eq!(least("nodefs.available", "100%", 1000), Ok(None));
        for (signal, amount) in [
            ("memory.used", "1"),
            ("memory.available", "-1"),
            ("memory.available", "101%"),
            ("memory.available", "much"),
            ("memory.available", "-1%"),
        ] {
            assert!(least(signal, amount, 1).is_err(), "{signal}<{amount}");
        }
        assert_eq!(EvictionThreshold::defaults().len(), 5);
    }

    #[test]
    fn a_figure_that_is_unknown_is_enough() {
        let [memory, ..] = EvictionThreshold::defaults()[..] else { panic!("the first") };
        let mut figures = NodeFigures::default();
        assert_eq!(memory.crossed(&figures, false), None);
        let low = ResourceFigure { capacity: 1 << 30, available: (100 << 20) - 1 };
        figures.memory = Some(low);
        assert_eq!(memory.crossed(&figures, false), Some(low));
        assert_eq!(
            memory.message(low),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 102399Ki. "
        );
        let enough = ResourceFigure { available: 100 << 20, ..low };
        figures.memory = Some(enough);
        assert_eq!(memory.crossed(&figures, false), None);
        assert_eq!(memory.crossed(&figures, true), None);
        let reclaiming = memory.with_reclaim("1Mi").unwrap();
        assert_eq!(reclaiming.crossed(&figures, false), None);
        assert_eq!(reclaiming.crossed(&figures, true), Some(enough));
        figures.memory = Some(ResourceFigure { available: 101 << 20, ..low });
        assert_eq!(reclaiming.crossed(&figures, true), None);
    }
}
