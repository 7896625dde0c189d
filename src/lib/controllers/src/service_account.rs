//! Creates the service account `default` in each namespace.

use crate::queue::{Next, WorkQueue};
use crate::rest::code;
use crate::watching;
use ferrokube_client::cause;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{ObjectMeta, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};

const NAME: &str = "default";
const WORKERS: usize = 2;

/// Runs until dropped. `reader` watches and reads as the manager; `client` writes as the
/// controller's own identity, which may do nothing else.
pub(crate) async fn run(reader: Client, client: Client) {
    let queue: WorkQueue<String> = WorkQueue::default();
    let namespaces = watching::live_namespaces(reader.clone(), &queue);
    let only = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let all: Api<PartialObjectMeta<ServiceAccount>> = Api::all(reader.clone());
    let accounts = watching::each(all, only, |account, gone| {
        if gone {
            queue.add(account.namespace().unwrap_or_default(), cause(&account.metadata));
        }
    });
    let work = queue.run("serviceaccount", WORKERS, move |namespace, trace| {
        ensure(trace.client(&reader), trace.client(&client), namespace)
    });
    tokio::join!(namespaces, accounts, work);
}

async fn ensure(reader: Client, client: Client, namespace: String) -> Result<Next, kube::Error> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client, &namespace);
    if Api::<ServiceAccount>::namespaced(reader, &namespace).get_metadata_opt(NAME).await?.is_some()
    {
        return Ok(Next::Done);
    }
    let account = ServiceAccount {
        metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
        ..ServiceAccount::default()
    };
    match accounts.create(&PostParams::default(), &account).await {
        // Created concurrently, or the namespace is gone or terminating.
        Err(error) if matches!(code(&error), 403 | 404 | 409) => Ok(Next::Done),
        other => other.map(|_| Next::Done),
    }
}
