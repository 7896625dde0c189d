//! Values of components in the Leases that they renew anyway: of those whose reports do not arrive,
//! as they lack the right, or their watch hangs. Silence is not agreement.
//!
//! Read at the end of an evaluation only, and without clocks: a component that has renewed its
//! Lease since the evaluation began is alive. One that has not is gone, or will report.

use ferrokube_apimachinery::json::scan;
use ferrokube_features::LEASE_USES;
use ferrokube_registry::Registry;
use ferrokube_storage::{Entry, Prefix};
use memchr::memmem::Finder;

/// Namespaces of Leases that components renew.
const NAMESPACES: [&str; 2] = ["kube-node-lease", "kube-system"];

/// Lease with `value`, such as `LogTracking=true`, that a component has written after a revision.
pub(super) fn with_value(registry: &Registry, value: &str, since: u64) -> Option<String> {
    let leases = registry.catalog().definition("coordination.k8s.io", "leases")?;
    let prefix = Prefix::new(leases.storage_prefix.as_ref()?).ok()?;
    let finder = Finder::new(LEASE_USES);
    let has_value = |lease: &Entry| {
        finder.find(&lease.bytes).is_some()
            && scan::str_field(&lease.bytes, &["metadata", "annotations", LEASE_USES])
                .is_some_and(|uses| uses.split(',').any(|one| one == value))
    };
    let snapshot = registry.store().snapshot(&prefix);
    let found = NAMESPACES.into_iter().find_map(|namespace| {
        let mut leases = snapshot.range(Some(namespace), None);
        let lease = leases.find(|lease| lease.revision.0 > since && has_value(lease))?;
        Some((namespace, lease.key.name()))
    })?;
    Some(format!("{}/{}", found.0, found.1))
}
