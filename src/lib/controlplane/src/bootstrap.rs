//! What a fresh cluster needs before it is ready: the namespaces that every cluster has, then the
//! steps that others registered.

use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::Reason;
use ferrokube_registry::{Local, Registry};

/// They are made at the first start; `default` cannot be deleted.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Makes the namespaces that are not there, if namespaces are served.
///
/// # Errors
/// What the pipeline said.
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
