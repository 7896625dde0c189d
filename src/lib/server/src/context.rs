//! State for parts that the program makes: authenticators, authorizers, steps, handlers, routes.

use ferrokube_auth::Authorizer;
use ferrokube_registry::Catalog;
use ferrokube_storage::Store;
use std::sync::Arc;

/// State that authenticators and authorizers can read and watch. The catalog has all native kinds.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoreContext {
    /// The storage.
    pub store: Store,
    /// The served resources.
    pub catalog: Arc<Catalog>,
}

/// State that admission steps, handlers and routes can use.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerContext {
    /// The storage.
    pub store: Store,
    /// The served resources.
    pub catalog: Arc<Catalog>,
    /// The server's authorizer.
    pub authorizer: Arc<dyn Authorizer>,
}

/// Makes a part before the server has an authorizer.
pub(crate) type FromStore<T> = Box<dyn FnOnce(&StoreContext) -> Arc<T> + Send>;
/// Makes a part of the server.
pub(crate) type FromServer<T> = Box<dyn FnOnce(&ServerContext) -> Arc<T> + Send>;

/// Whether a native kind is served, in any version.
pub(crate) fn serves(catalog: &Catalog, group: &str, plural: &str) -> bool {
    catalog.definition(group, plural).is_some()
}
