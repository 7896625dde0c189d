//! Where several servers share the state, a request first waits until this one has caught up with
//! all writes that its client may have seen at another. Credentials, rights, definitions, webhooks,
//! policies, namespaces and quotas are then as new as the requested object.
//!
//! Requests that accept any state (reads with a resourceVersion) do not wait, nor do paths other
//! than discovery. All that wait at the same time share one probe. While this server is the only
//! writer, a request that writes an object relies on that instead; see
//! [`ferrokube_storage::remote`].

use crate::action::Action;
use crate::exchange::Incoming;
use crate::rejection::Rejection;
use ferrokube_apiextensions::DefinitionLoop;
use ferrokube_registry::Registry;
use ferrokube_storage::Prefix;
use ferrokube_storage::remote::{BoxFuture, Reliance};
use std::sync::Arc;

const DEFINITIONS: &str = "customresourcedefinitions";

/// The wait of a request.
pub(crate) enum StateWait<'a> {
    /// None.
    Nothing,
    /// None, as long as no other server writes.
    Relying(Arc<Reliance>),
    Waiting(BoxFuture<'a, Result<(), Rejection>>),
}

pub(crate) fn wait<'a>(
    registry: &'a Registry,
    custom: &'a DefinitionLoop,
    incoming: &Incoming,
) -> StateWait<'a> {
    let store = registry.store();
    if !store.is_shared() {
        return StateWait::Nothing;
    }
    let action = &incoming.action;
    let is_resource = action.resource().is_some();
    // Discovery keeps working while the storage is unavailable.
    if !needs_state(action) || !is_resource && store.trouble().is_some() {
        return StateWait::Nothing;
    }
    let are_served = || latest_definition(registry).is_none_or(|latest| custom.has_served(latest));
    if writes_one(action)
        && are_served()
        && let Some(reliance) = registry.rely()
    {
        return StateWait::Relying(reliance);
    }
    let Some(reached) = registry.reached() else { return StateWait::Nothing };
    StateWait::Waiting(Box::pin(async move {
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

/// Whether it ends with the write of an object, as a rule, and has no other effect here.
fn writes_one(action: &Action) -> bool {
    let writes = matches!(action.verb(), "create" | "update" | "patch" | "delete");
    writes && action.resource().is_some_and(|it| matches!(it.subresource(), "" | "status"))
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
