//! `/ui/trace/`: serves crate timeline's pages behind authentication and authorization, and feeds
//! the ring.

use super::pages::{self, UiPage, check_method};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_apimachinery::work;
use ferrokube_auth::{Access, Authorizer, ResourceAccess, RightsScope};
use ferrokube_controlplane::{Observer, RequestRecord, Route, RouteFuture, RouteRequest};
use ferrokube_serve::Response;
use ferrokube_timeline::line::LoggedRequest;
use ferrokube_timeline::{
    CONTENT_SECURITY_POLICY, MAX_PAGE_BYTES, ObjectRef, Page, Ring, TracePages,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Path of the pages.
pub(super) const PATH: &str = "/ui/trace/";
/// Objects of whose events the rights are checked for a page, each for up to half a millisecond;
/// those of others are left out.
const MAX_DECISIONS: usize = 2000;

/// The pages and the authorizer that filters them.
pub(super) struct TracePage {
    pub(super) pages: TracePages,
    pub(super) authorizer: Arc<dyn Authorizer>,
}

impl TracePage {
    fn respond(&self, request: &RouteRequest) -> Result<Response, Failure> {
        let uri = &request.head.uri;
        check_method(&request.head.method)?;
        let Some(rest) = request.path.strip_prefix(PATH) else {
            return Ok(response(Page {
                status: 308,
                media_type: "",
                location: "trace/".to_owned(),
                body: String::new(),
            }));
        };
        let rights = RefCell::new(EventRights {
            page: self,
            user: &request.user,
            of_none: None,
            known: HashMap::new(),
        });
        let may = |object: Option<&ObjectRef>| rights.borrow_mut().may(object);
        Ok(response(self.pages.answer(rest, uri.query().unwrap_or_default(), &may)))
    }

    /// A user that may get the object (list the resource, for a collection) may see its events;
    /// those without an object require the right to get everything.
    fn may(&self, user: &UserInfo, object: Option<&ObjectRef>) -> bool {
        let all =
            ResourceAccess { group: "*", version: "*", resource: "*", ..ResourceAccess::default() };
        let (verb, resource) = object.map_or(("get", all), |object| {
            let verb = if object.name.is_empty() { "list" } else { "get" };
            let ObjectRef { group, version, resource, namespace, name } = object;
            (verb, ResourceAccess { group, version, resource, subresource: "", namespace, name })
        });
        self.authorizer
            .authorize(&Access { user, verb, resource: Some(resource), path: "" })
            .is_allowed()
    }
}

/// A user's rights to the events of a page.
struct EventRights<'a> {
    page: &'a TracePage,
    user: &'a UserInfo,
    /// To events without an object.
    of_none: Option<bool>,
    known: HashMap<ObjectRef, bool>,
}

impl EventRights<'_> {
    fn may(&mut self, object: Option<&ObjectRef>) -> bool {
        work::breathe();
        let (page, user) = (self.page, self.user);
        let Some(object) = object else {
            return *self.of_none.get_or_insert_with(|| page.may(user, None));
        };
        if let Some(known) = self.known.get(object) {
            return *known;
        }
        if self.known.len() >= MAX_DECISIONS {
            return false;
        }
        work::breathe_now();
        let is_allowed = page.may(user, Some(object));
        self.known.insert(object.clone(), is_allowed);
        is_allowed
    }
}

impl Route for TracePage {
    fn room(&self) -> usize {
        MAX_PAGE_BYTES
    }

    fn answer<'a>(&'a self, request: RouteRequest) -> RouteFuture<'a> {
        Box::pin(async move {
            // The events may be of objects in any namespace.
            if let Some(wait) = self.authorizer.catch_up(&request.user, RightsScope::Everywhere) {
                wait.await;
            }
            self.respond(&request)
        })
    }
}

fn response(page: Page) -> Response {
    pages::response(UiPage {
        status: page.status,
        media_type: page.media_type,
        location: page.location,
        body: page.body,
        policy: CONTENT_SECURITY_POLICY,
    })
}

/// Records requests in the ring.
pub(super) struct RingObserver(pub(super) Arc<Ring>);

impl Observer for RingObserver {
    fn observe(&self, record: &RequestRecord<'_>) {
        let ResourceAccess { group, version, resource, namespace, name, .. } = record.resource;
        let object = ObjectRef {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        // A create's path ends with the collection; use the name of the created object.
        let is_named =
            name.is_empty() || record.verb != "create" || !record.resource.subresource.is_empty();
        let uri = if is_named { record.path.to_owned() } else { format!("{}/{name}", record.path) };
        let received = record.received.try_into().ok();
        let request = LoggedRequest {
            verb: record.verb.into(),
            uri,
            user: record.user.into(),
            code: record.code.into(),
            audit_id: record.audit_id.into(),
            received,
        };
        let ended = record.received.checked_add(record.took).and_then(|time| time.try_into().ok());
        self.0.request(record.trace, object, request, ended);
    }
}
