//! Server-side behavior of workloads beyond storage: subresources that show or write another kind,
//! or act on the object; and the Service of the API servers.
//!
//! Must never know controllers, the kubelet or sockets. Start reading at [`install`], and at
//! [`KubernetesService`].

mod binding;
mod conditions;
mod eviction;
mod kubernetes_service;
mod scale;

pub use kubernetes_service::{KubernetesService, first_service_address};

use binding::PodBinding;
use eviction::PodEviction;
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::catalog::ComputedCall;
use ferrokube_registry::{Catalog, ComputedResource, Target};
use ferrokube_resource::{Composition, Definition};
use ferrokube_schema::Schema;
use scale::Scale;
use std::sync::Arc;

/// Makes the handler of a resource or subresource from the schema of its body.
type Make = fn(&Definition, Arc<Schema>) -> Arc<dyn ComputedResource>;

/// Resource (empty: any), subresource, the type of its body, and its handler.
const HANDLERS: [(&str, &str, &str, Make); 4] = [
    ("", "scale", "io.k8s.api.autoscaling.v1.Scale", |of, schema| Arc::new(Scale::new(of, schema))),
    ("bindings", "", "io.k8s.api.core.v1.Binding", |_, schema| Arc::new(PodBinding(schema))),
    ("pods", "binding", "io.k8s.api.core.v1.Binding", |_, schema| Arc::new(PodBinding(schema))),
    ("pods", "eviction", "io.k8s.api.policy.v1.Eviction", |_, schema| {
        Arc::new(PodEviction(schema))
    }),
];

/// Serves the computed resources and subresources of the native kinds in the catalog.
pub fn install(catalog: &Catalog, served: &Composition) {
    let bundled = |definition: &&Arc<Definition>| definition.dialect.is_bundled();
    for definition in served.definitions.iter().filter(bundled) {
        for (resource, subresource, body, make) in HANDLERS {
            let is_meant = match resource {
                "" => true,
                name => definition.group.is_empty() && definition.plural == name,
            };
            let has = |name| {
                let mut versions = definition.versions.iter();
                versions.any(|version| version.subresources.iter().any(|one| one.name == name))
            };
            if is_meant
                && (subresource.is_empty() || has(subresource))
                && let Some(schema) = served.tables.get(body)
            {
                let handler = make(definition, schema);
                catalog.put_computed(&definition.group, &definition.plural, subresource, handler);
            }
        }
    }
}

/// The pod that a subresource acts on, as the target for writing `subresource`.
///
/// # Errors
/// 400 without a name.
fn pod_target(call: &ComputedCall<'_>, name: &str, subresource: &str) -> Result<Target, Failure> {
    if name.is_empty() {
        return Err(Failure::bad_request("Name parameter required."));
    }
    let served = call.registry.catalog().find("", "v1", "pods");
    Ok(Target {
        served: served.ok_or_else(|| Failure::internal("pods are not served"))?,
        namespace: call.target.namespace.clone(),
        name: Some(name.to_owned()),
        subresource: subresource.to_owned(),
    })
}

/// The response of a subresource that returns no object.
fn success() -> Document {
    Document::from_value(json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
    }))
    .expect("an object literal")
}
