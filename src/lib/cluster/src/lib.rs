//! What the server does for workloads besides storing them: their subresources that show or write
//! another kind.
//!
//! Must never know controllers, the kubelet or sockets. Start reading at [`install`].

mod scale;

use ferrokube_registry::Catalog;
use ferrokube_resource::{Composition, Dialect};
use scale::Scale;
use std::sync::Arc;

/// Serves the computed subresources of the native kinds in the catalog.
pub fn install(catalog: &Catalog, served: &Composition) {
    let Some(schema) = served.tables.get(scale::DEFINITION) else { return };
    for definition in &served.definitions {
        let has_scale = definition.versions.iter().any(|version| {
            version.subresources.iter().any(|subresource| subresource.name == scale::NAME)
        });
        if has_scale && definition.dialect == Dialect::Native {
            let computed = Arc::new(Scale::new(definition, Arc::clone(&schema)));
            catalog.put_computed(&definition.group, &definition.plural, scale::NAME, computed);
        }
    }
}
