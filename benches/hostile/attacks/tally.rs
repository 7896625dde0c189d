//! Running attackers, and counting what they see.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Responses and connection ends seen by attackers, counted.
#[derive(Default)]
pub(crate) struct AttackTally(Mutex<BTreeMap<String, u64>>);

impl AttackTally {
    /// Counts an event.
    pub(crate) fn count(&self, what: impl Into<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(what.into()).or_default() += 1;
    }

    /// What has not been counted.
    pub(crate) fn lacks(&self, proof: &[&'static str]) -> Vec<&'static str> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        proof.iter().filter(|what| !counts.contains_key(**what)).copied().collect()
    }

    /// Counts a response, or the reason for its absence.
    pub(crate) fn answer(&self, answer: &anyhow::Result<(u16, String)>) {
        match answer {
            Ok((status, _)) => self.count(status.to_string()),
            Err(_) => self.count("cut"),
        }
    }
}

impl fmt::Display for AttackTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let words: Vec<_> =
            counts.iter().map(|(what, count)| format!("{count} x {what}")).collect();
        f.write_str(&words.join(", "))
    }
}

/// Runs `number` instances of `attacker` concurrently, restarting each when it ends.
pub(super) async fn at_once<F, R>(number: usize, attacker: F)
where
    F: Fn(usize) -> R,
    R: Future<Output = ()>,
{
    let repeated = (0..number).map(|index| {
        let attacker = &attacker;
        async move {
            loop {
                attacker(index).await;
                // Do not spin if it ends at once.
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
    });
    futures::future::join_all(repeated).await;
}
