//! `toys/play`: a subresource that is computed from what is stored.

use ferrokube_server::apimachinery::document::Document;
use ferrokube_server::apimachinery::gvk::GroupResource;
use ferrokube_server::apimachinery::status::{Failure, Reason};
use ferrokube_server::registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_server::registry::{ComputedResource, Local};

/// The handler of `toys/play`.
pub struct Play;

impl ComputedResource for Play {
    fn create<'a>(&'a self, call: ComputedCall<'a>, mut object: Document) -> ComputedFuture<'a> {
        Box::pin(async move {
            let toys = Local::of(call.registry, call.target.served.clone());
            let namespace = call.target.namespace.as_deref().unwrap_or_default();
            let name = call.target.name.as_deref().unwrap_or_default();
            let resource = GroupResource::new("toy.example.com", "toys");
            let toy = toys.get(namespace, name).await?;
            let toy = toy.ok_or_else(|| Failure::not_found(&resource, name))?;
            if toy.str(&["status", "phase"]) != Some("Made") {
                let why = format!("toy {name:?} is not made yet");
                return Err(Failure::new(Reason::Conflict, why));
            }
            let player = &call.context.user.name;
            object.set(&["status", "mood"], format!("{player} is happy"));
            Ok(object)
        })
    }
}
