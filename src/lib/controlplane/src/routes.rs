//! Non-resource paths that others answer, and paths that are open to everybody.

use crate::route::Route;
use ferrokube_auth::access::OPEN_PATHS;
use std::sync::Arc;

/// One mounted route.
struct Mounted {
    path: String,
    open: bool,
    route: Arc<dyn Route>,
}

impl Mounted {
    /// Whether it is this path, a slash at its end left out.
    fn is(&self, path: &str) -> bool {
        self.path == path || path.strip_suffix('/') == Some(&self.path)
    }
}

/// The mounted routes.
#[derive(Default)]
pub(crate) struct Routes(Vec<Mounted>);

impl Routes {
    /// From the builder's list: path, whether it is open, who answers.
    pub(crate) fn new(routes: Vec<(String, bool, Arc<dyn Route>)>) -> Self {
        Self(routes.into_iter().map(|(path, open, route)| Mounted { path, open, route }).collect())
    }

    /// Whether a path is open to everybody.
    pub(crate) fn is_open(&self, path: &str) -> bool {
        OPEN_PATHS.contains(&path) || self.0.iter().any(|mounted| mounted.open && mounted.is(path))
    }

    /// Who answers a path: the longest that matches.
    pub(crate) fn find(&self, path: &str) -> Option<Arc<dyn Route>> {
        let matches = |mounted: &&Mounted| {
            mounted.is(path) || (mounted.path.ends_with('/') && path.starts_with(&mounted.path))
        };
        self.0
            .iter()
            .filter(matches)
            .max_by_key(|mounted| mounted.path.len())
            .map(|mounted| Arc::clone(&mounted.route))
    }

    /// The paths, for the root's list.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|mounted| mounted.path.as_str())
    }
}
