//! Deletes expired bootstrap tokens.

use crate::queue::{Next, WorkQueue};
use crate::rest::code;
use crate::watching;
use ferrokube_client::cause;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use std::time::Duration;

const NAMESPACE: &str = "kube-system";
const KIND: &str = "bootstrap.kubernetes.io/token";

/// Runs until dropped.
pub(crate) async fn run(client: Client) {
    let queue: WorkQueue<String> = WorkQueue::default();
    let secrets = |client: Client| -> Api<Secret> { Api::namespaced(client, NAMESPACE) };
    let only = watcher::Config::default().fields(&format!("type={KIND}"));
    let all: Api<PartialObjectMeta<Secret>> = Api::namespaced(client.clone(), NAMESPACE);
    let watch = watching::each(all, only, |secret, gone| {
        if !gone {
            queue.add(secret.name_any(), cause(&secret.metadata));
        }
    });
    let work = queue
        .run("token-cleaner", 1, move |name, trace| clean(secrets(trace.client(&client)), name));
    tokio::join!(watch, work);
}

async fn clean(secrets: Api<Secret>, name: String) -> Result<Next, kube::Error> {
    let Some(secret) = secrets.get_opt(&name).await? else { return Ok(Next::Done) };
    let Some(left) = remaining(&secret) else { return Ok(Next::Done) };
    if !left.is_zero() {
        return Ok(Next::After(left));
    }
    let preconditions =
        Preconditions { uid: secret.uid(), resource_version: secret.resource_version() };
    match secrets
        .delete(
            &name,
            &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() },
        )
        .await
    {
        Err(error) if code(&error) == 404 => Ok(Next::Done),
        other => other.map(|_| Next::Done),
    }
}

/// Time until the token expires; `None` without a readable expiration (such a token does not
/// authenticate).
fn remaining(secret: &Secret) -> Option<Duration> {
    let bytes = secret.data.as_ref()?.get("expiration")?;
    let expires: jiff::Timestamp = std::str::from_utf8(&bytes.0).ok()?.trim().parse().ok()?;
    let seconds = expires.as_second().saturating_sub(jiff::Timestamp::now().as_second());
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use std::collections::BTreeMap;

    fn secret(expiration: &str) -> Secret {
        Secret {
            data: Some(BTreeMap::from([(
                "expiration".to_owned(),
                ByteString(expiration.as_bytes().to_vec()),
            )])),
            ..Secret::default()
        }
    }

    #[test]
    fn only_a_readable_expiration_counts() {
        assert_eq!(remaining(&Secret::default()), None);
        assert_eq!(remaining(&secret("soon")), None);
        assert_eq!(remaining(&secret("2001-01-01T00:00:00Z")), Some(Duration::ZERO));
        assert!(
            remaining(&secret("2999-01-01T00:00:00Z"))
                .is_some_and(|left| left > Duration::from_secs(3600))
        );
    }
}
