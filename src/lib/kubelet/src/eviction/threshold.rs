//! Signals, and the amounts below which a node is short of something: `evictionHard`.

use super::figures::{NodeFigures, ResourceFigure};
use ferrokube_apimachinery::quantity::{Format, Quantity};
use std::time::Duration;

/// When pods are evicted.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionPolicy {
    /// Any of them that is missed counts.
    pub thresholds: Vec<EvictionThreshold>,
    /// How long a condition lasts after its cause.
    pub transition: Duration,
}

/// What a threshold is about, in the order in which shortages are dealt with.
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

/// Names, amounts by default, and the resource as messages name it.
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

/// An amount below which pods are evicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionThreshold {
    /// The signal that it watches.
    pub(crate) signal: EvictionSignal,
    least: LeastAmount,
}

impl EvictionSignal {
    /// As messages name it.
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
        let row = SIGNALS.iter().find(|row| row.1 == signal);
        let signal = row.ok_or_else(|| format!("unknown eviction signal {signal}"))?.0;
        let wrong = || format!("invalid eviction threshold {amount:?}");
        let least = match amount.strip_suffix('%') {
            Some(percent) => {
                let percent: f64 = percent.parse().map_err(|_| wrong())?;
                if percent == 0.0 || percent == 100.0 {
                    return Ok(None);
                }
                if !(0.0..100.0).contains(&percent) {
                    return Err(format!(
                        "eviction percentage threshold {amount} must be >= 0% and <= 100%"
                    ));
                }
                LeastAmount::Share(percent / 100.0)
            }
            None => {
                let quantity = Quantity::parse(amount).map_err(|_| wrong())?.value();
                let quantity = u64::try_from(quantity)
                    .map_err(|_| format!("eviction threshold {amount} must be positive"))?;
                LeastAmount::Absolute(quantity)
            }
        };
        Ok(Some(Self { signal, least }))
    }

    /// The amount for this capacity.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a share between 0 and 1 of a count"
    )]
    pub(crate) fn least(&self, capacity: u64) -> u64 {
        match self.least {
            LeastAmount::Absolute(amount) => amount,
            LeastAmount::Share(share) => (capacity as f64 * share) as u64,
        }
    }

    /// The figure, if less than the threshold is left of it.
    pub(crate) fn missed(&self, figures: &NodeFigures) -> Option<ResourceFigure> {
        let figure = self.signal.figure(figures)?;
        (figure.available < self.least(figure.capacity)).then_some(figure)
    }

    /// As kubelet shows it.
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

/// Bytes as kubelet shows them, or a count.
pub(crate) fn amount(signal: EvictionSignal, value: u64) -> String {
    let counts =
        [EvictionSignal::NodeInodes, EvictionSignal::ImageInodes, EvictionSignal::Processes];
    if counts.contains(&signal) {
        return value.to_string();
    }
    // Whole kibibytes, as its own statistics have them.
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
        assert_eq!(memory.missed(&figures), None);
        let low = ResourceFigure { capacity: 1 << 30, available: (100 << 20) - 1 };
        figures.memory = Some(low);
        assert_eq!(memory.missed(&figures), Some(low));
        assert_eq!(
            memory.message(low),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 102399Ki. "
        );
        figures.memory = Some(ResourceFigure { available: 100 << 20, ..low });
        assert_eq!(memory.missed(&figures), None);
    }
}
