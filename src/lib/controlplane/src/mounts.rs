//! Mounted non-resource paths, and paths that are readable without authorization.

use crate::route::Route;
use ferrokube_auth::access::OPEN_PATHS;
use std::sync::Arc;

/// First segments of the server's paths.
const OWN: [&str; 9] =
    ["api", "apis", "healthz", "index.html", "livez", "metrics", "openapi", "readyz", "version"];

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

/// Whether the server itself responds to the path, or to paths below it: no route is reached there.
pub fn is_own(path: &str) -> bool {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    match segments.next() {
        None => true,
        Some("debug") => segments.next().is_none_or(|table| table == "api_priority_and_fairness"),
        Some(first) => OWN.contains(&first),
    }
}

/// Routes by the paths that they are mounted at.
#[derive(Default)]
pub(crate) struct Mounts(Vec<MountedRoute>);

impl Mounts {
    pub(crate) fn new(routes: Vec<(String, bool, Arc<dyn Route>)>) -> Self {
        Self(
            routes
                .into_iter()
                .map(|(path, open, route)| MountedRoute { path, open, route })
                .collect(),
        )
    }

    /// Whether the path is readable without authorization; its route decides.
    pub(crate) fn is_open(&self, path: &str) -> bool {
        OPEN_PATHS.contains(&path)
            || !is_own(path) && self.mounted(path).is_some_and(|mounted| mounted.open)
    }

    /// The route with the longest matching path.
    pub(crate) fn find(&self, path: &str) -> Option<Arc<dyn Route>> {
        Some(Arc::clone(&self.mounted(path)?.route))
    }

    fn mounted(&self, path: &str) -> Option<&MountedRoute> {
        let serves = |mounted: &&MountedRoute| {
            mounted.matches(path)
                || (mounted.path.ends_with('/') && path.starts_with(&mounted.path))
        };
        self.0.iter().filter(serves).max_by_key(|mounted| mounted.path.len())
    }

    /// For the list at `/`.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|mounted| mounted.path.as_str())
    }
}
