//! Where several servers share the state, a request first waits until this one has caught up with
//! all writes that its client may have seen at another. Credentials, rights, definitions, webhooks,
//! policies, namespaces and quotas are then as new as the requested object.
//!
//! Requests that accept any state (reads with a resourceVersion) do not wait, nor do paths other
//! than discovery. All that wait at the same time share one probe.

use crate::action::Action;
use crate::exchange::Incoming;
use crate::rejection::Rejection;
use ferrokube_apiextensions::DefinitionLoop;
use ferrokube_registry::Registry;
use ferrokube_storage::Prefix;
use ferrokube_storage::remote::BoxFuture;

const DEFINITIONS: &str = "customresourcedefinitions";

/// `None`: nothing to wait for.
pub(crate) fn wait<'a>(
    registry: &'a Registry,
    custom: &'a DefinitionLoop,
    incoming: &Incoming,
) -> Option<BoxFuture<'a, Result<(), Rejection>>> {
    let store = registry.store();
    if !store.is_shared() {
        return None;
    }
    let action = &incoming.action;
    let is_resource = action.resource().is_some();
    // Discovery keeps working while the storage is unavailable.
    if !needs_state(action) || !is_resource && store.trouble().is_some() {
        return None;
    }
    let reached = registry.reached()?;
    Some(Box::pin(async move {
        match reached.await {
            Err(failure) if is_resource => return Err(failure.into()),
            _ => {}
        }
        if let Some(latest) = latest_definition(registry) {
            custom.wait_served(latest).await;
        }
        Ok(())
    }))
}

fn needs_state(action: &Action) -> bool {
    match action.resource() {
        Some(_) => !(action.is_read_only() && action.options().has_revision()),
        None => ["/api", "/openapi"].iter().any(|start| action.path().starts_with(start)),
    }
}

/// The last change of a definition; `None` if they are not served.
fn latest_definition(registry: &Registry) -> Option<u64> {
    registry.catalog().definition(ferrokube_apiextensions::GROUP, DEFINITIONS)?;
    Some(registry.store().latest(&Prefix::new(DEFINITIONS).ok()?).0)
}
