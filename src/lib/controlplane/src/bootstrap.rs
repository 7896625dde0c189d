//! The system namespaces.

use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::Reason;
use ferrokube_registry::{Local, Registry};

/// Created at every start if missing; `default` cannot be deleted.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates the missing system namespaces, if namespaces are served.
///
/// # Errors
/// The registry's failure.
pub(crate) async fn namespaces(registry: &Registry) -> Result<(), String> {
    let Some(client) = Local::new(registry, "", "v1", "namespaces") else { return Ok(()) };
    for name in NAMESPACES {
        let found = client
            .get("", name)
            .await
            .map_err(|failure| format!("cannot read namespace {name}: {failure}"))?;
        if found.is_some() {
            continue;
        }
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let namespace = Document::from_value(namespace).expect("an object literal");
        match client.create("", namespace).await {
            Ok(_) => tracing::info!(k8s.namespace = name, "made a namespace"),
            Err(failure) if failure.reason == Some(Reason::AlreadyExists) => {}
            Err(failure) => return Err(format!("cannot make namespace {name}: {failure}")),
        }
    }
    Ok(())
}
