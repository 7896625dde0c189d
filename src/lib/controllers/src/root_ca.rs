//! Publishes the ConfigMap `kube-root-ca.crt`, with the CA that verifies the API server, in each
//! namespace.

use crate::queue::{Next, WorkQueue};
use crate::rest::code;
use crate::watching;
use ferrokube_client::cause;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME: &str = "kube-root-ca.crt";
const KEY: &str = "ca.crt";
const WORKERS: usize = 2;

/// Runs until dropped. `reader` watches and reads as the manager; `client` writes as the
/// controller's own identity, which may do nothing else. `ca` is PEM.
pub(crate) async fn run(reader: Client, client: Client, ca: Arc<str>) {
    let queue: WorkQueue<String> = WorkQueue::default();
    let namespaces = watching::live_namespaces(reader.clone(), &queue);
    let only = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let all: Api<PartialObjectMeta<ConfigMap>> = Api::all(reader.clone());
    let maps = watching::each(all, only, |map, _| {
        queue.add(map.namespace().unwrap_or_default(), cause(&map.metadata))
    });
    let work = queue.run("root-ca-certificate-publisher", WORKERS, move |namespace, trace| {
        let maps = |client: &Client| Api::namespaced(trace.client(client), &namespace);
        ensure(maps(&reader), maps(&client), ca.clone())
    });
    tokio::join!(namespaces, maps, work);
}

async fn ensure(
    reader: Api<ConfigMap>,
    maps: Api<ConfigMap>,
    ca: Arc<str>,
) -> Result<Next, kube::Error> {
    let wanted = BTreeMap::from([(KEY.to_owned(), ca.to_string())]);
    let outcome = match reader.get_opt(NAME).await? {
        Some(map) if map.data.as_ref() == Some(&wanted) => return Ok(Next::Done),
        Some(mut map) => {
            map.data = Some(wanted);
            maps.replace(NAME, &PostParams::default(), &map).await
        }
        None => {
            let note = (
                "kubernetes.io/description".to_owned(),
                "The CA bundle that verifies the API server, for clients inside the cluster."
                    .to_owned(),
            );
            let metadata = ObjectMeta {
                name: Some(NAME.to_owned()),
                annotations: Some(BTreeMap::from([note])),
                ..ObjectMeta::default()
            };
            maps.create(
                &PostParams::default(),
                &ConfigMap { metadata, data: Some(wanted), ..ConfigMap::default() },
            )
            .await
        }
    };
    match outcome {
        // The namespace is gone or terminating.
        Err(error) if matches!(code(&error), 403 | 404) => Ok(Next::Done),
        other => other.map(|_| Next::Done),
    }
}
