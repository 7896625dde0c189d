//! Mounted non-resource paths, and paths that are readable without authorization.

use crate::route::Route;
use ferrokube_auth::access::OPEN_PATHS;
use std::sync::Arc;

struct MountedRoute {
    path: String,
    open: bool,
    route: Arc<dyn Route>,
}

impl MountedRoute {
    /// Whether `path` is this one, with or without a trailing slash.
    fn matches(&self, path: &str) -> bool {
        self.path == path || path.strip_suffix('/') == Some(&self.path)
    }
}

#[derive(Default)]
pub(crate) struct Routes(Vec<MountedRoute>);

impl Routes {
    pub(crate) fn new(routes: Vec<(String, bool, Arc<dyn Route>)>) -> Self {
        Self(
            routes
                .into_iter()
                .map(|(path, open, route)| MountedRoute { path, open, route })
                .collect(),
        )
    }

    /// Whether anybody may read the path.
    pub(crate) fn is_open(&self, path: &str) -> bool {
        OPEN_PATHS.contains(&path)
            || self.0.iter().any(|mounted| mounted.open && mounted.matches(path))
    }

    /// The route with the longest matching path.
    pub(crate) fn find(&self, path: &str) -> Option<Arc<dyn Route>> {
        let serves = |mounted: &&MountedRoute| {
            mounted.matches(path)
                || (mounted.path.ends_with('/') && path.starts_with(&mounted.path))
        };
        self.0
            .iter()
            .filter(serves)
            .max_by_key(|mounted| mounted.path.len())
            .map(|mounted| Arc::clone(&mounted.route))
    }

    /// For the list at `/`.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|mounted| mounted.path.as_str())
    }
}
