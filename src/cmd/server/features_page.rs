//! `/ui/features/`: serves crate feature-admin's pages to users who may list or get the Features.

use super::pages::{UiPage, check_method, response};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_apimachinery::work;
use ferrokube_auth::{Access, ResourceAccess, RightsScope};
use ferrokube_controlplane::{Route, RouteFuture, RouteRequest};
use ferrokube_feature_admin::board::{
    BoardPage, BoardRequest, CONTENT_SECURITY_POLICY, MAX_PAGE_BYTES, board, feature, message,
    style,
};
use ferrokube_serve::Response;
use ferrokube_server::ServerContext;
use ferrokube_storage::Prefix;

/// Path of the pages.
pub(super) const PATH: &str = "/ui/features/";
const GROUP: &str = "features.k8s.io";
const VERSION: &str = "v1alpha1";
const PLURAL: &str = "features";

/// The pages, over the server's storage.
pub(super) struct FeaturesPage(pub(super) ServerContext);

impl FeaturesPage {
    async fn respond(&self, request: RouteRequest) -> Result<Response, Failure> {
        check_method(&request.head.method)?;
        let Some(rest) = request.path.strip_prefix(PATH) else {
            return Ok(response(UiPage {
                status: 308,
                media_type: "",
                location: "features/".to_owned(),
                body: String::new(),
                policy: CONTENT_SECURITY_POLICY,
            }));
        };
        let query = request.head.uri.query().unwrap_or_default();
        let page = match BoardRequest::parse(rest, query) {
            BoardRequest::Style => style(),
            BoardRequest::Unknown => message(404, "", "There is no such page."),
            BoardRequest::Namespace(namespace) => {
                match self.may(&request.user, "list", &namespace, "").await {
                    true => self.board(&namespace),
                    false => refused("list features", &namespace),
                }
            }
            BoardRequest::Feature { namespace, name } => {
                match self.may(&request.user, "get", &namespace, &name).await {
                    true => self.feature(&namespace, &name),
                    false => refused(&format!("get feature {name}"), &namespace),
                }
            }
        };
        Ok(response(UiPage {
            status: page.status,
            media_type: page.media_type,
            location: String::new(),
            body: page.body,
            policy: CONTENT_SECURITY_POLICY,
        }))
    }

    /// The rights of the API, so that the pages show nothing that it would not.
    async fn may(&self, user: &UserInfo, verb: &str, namespace: &str, name: &str) -> bool {
        if let Some(wait) = self.0.authorizer.catch_up(user, RightsScope::Namespace(namespace)) {
            wait.await;
        }
        let resource = ResourceAccess {
            group: GROUP,
            version: VERSION,
            resource: PLURAL,
            subresource: "",
            namespace,
            name,
        };
        let access = Access { user, verb, resource: Some(resource), path: "" };
        self.0.authorizer.authorize(&access).is_allowed()
    }

    fn prefix(&self) -> Option<Prefix> {
        let served = self.0.catalog.find(GROUP, VERSION, PLURAL)?;
        Prefix::new(served.definition.storage_prefix.as_deref()?).ok()
    }

    fn board(&self, namespace: &str) -> BoardPage {
        let Some(prefix) = self.prefix() else { return not_served(namespace) };
        let snapshot = self.0.store.snapshot(&prefix);
        let stored = snapshot.range(Some(namespace), None).map(|entry| {
            work::breathe_now();
            &*entry.bytes
        });
        board(namespace, stored)
    }

    fn feature(&self, namespace: &str, name: &str) -> BoardPage {
        let Some(prefix) = self.prefix() else { return not_served(namespace) };
        let entry = prefix.key(Some(namespace), name).ok().and_then(|key| self.0.store.get(&key));
        feature(namespace, name, entry.as_deref().map(|entry| &*entry.bytes))
    }
}

fn refused(what: &str, namespace: &str) -> BoardPage {
    message(403, namespace, &format!("You may not {what} in {namespace}."))
}

fn not_served(namespace: &str) -> BoardPage {
    message(404, namespace, "This server does not serve features.")
}

impl Route for FeaturesPage {
    fn room(&self) -> usize {
        MAX_PAGE_BYTES
    }

    fn answer<'a>(&'a self, request: RouteRequest) -> RouteFuture<'a> {
        Box::pin(async move { self.respond(request).await })
    }
}
