//! The values of a component's gates in the Lease that it renews anyway. Silence is not agreement:
//! a server sees there that a component is alive and has another value, whose reports do not
//! arrive.

use ferrokube_features::{Gates, LEASE_USES};
use kube::api::ObjectMeta;
use tokio::sync::watch;

/// A component's values in its Lease.
#[derive(Clone, Debug)]
pub struct LeaseUses {
    gates: Gates,
    /// Whether Features are served, and the values of central ones are read.
    is_known: watch::Receiver<bool>,
}

impl LeaseUses {
    pub(crate) fn new(gates: Gates, is_known: watch::Receiver<bool>) -> Self {
        Self { gates, is_known }
    }

    /// Sets the annotation of a Lease that is about to be written; removes it where no Features are
    /// served.
    pub fn annotate(&self, metadata: &mut ObjectMeta) {
        let asked = self.gates.all().filter(|gate| gate.asked);
        let values: Vec<String> =
            asked.map(|gate| format!("{}={}", gate.gate.name, gate.enabled)).collect();
        if *self.is_known.borrow() && !values.is_empty() {
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert(LEASE_USES.to_owned(), values.join(","));
        } else if let Some(annotations) = &mut metadata.annotations {
            annotations.remove(LEASE_USES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_features::LOG_TRACKING;

    #[test]
    fn a_lease_says_what_was_asked_while_features_are_served() {
        let (known, is_known) = watch::channel(false);
        let gates = Gates::default();
        let uses = LeaseUses::new(gates.clone(), is_known);
        let mut metadata = ObjectMeta::default();
        let mut said = || {
            uses.annotate(&mut metadata);
            metadata.annotations.as_ref().and_then(|all| all.get(LEASE_USES)).cloned()
        };
        known.send_replace(true);
        assert_eq!(said(), None, "nothing was asked");
        gates.enabled(&LOG_TRACKING);
        assert_eq!(said().as_deref(), Some("LogTracking=true"));
        gates.follow("LogTracking", false);
        assert_eq!(said().as_deref(), Some("LogTracking=false"));
        known.send_replace(false);
        assert_eq!(said(), None, "without the API no Lease changes");
    }
}
