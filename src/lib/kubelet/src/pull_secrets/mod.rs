//! Credentials for a pod's images: its pull secrets, or those of its service account, and those
//! of the node's credential provider plug-ins.

mod keyring;
pub(crate) mod providers;

use crate::objects::{PodObjectError, PodObjects};
use crate::pod::NodePod;
use ferrokube_cri::RegistryAuth;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{LocalObjectReference, Secret};
use keyring::Keyring;
use providers::CredentialProviders;
use std::collections::BTreeMap;
use std::time::Duration;

/// Timeout for reading an object. Without its secrets, a pod can pull only public images.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Max secrets read per pod.
const MAX_SECRETS: usize = 64;

/// Credentials for pulling an image.
#[derive(Default)]
pub(crate) struct ImageCredentials {
    /// In the order in which to try them; empty: anonymous.
    pub(crate) credentials: Vec<RegistryAuth>,
    /// How many of them are the pod's, in front. Plug-ins have those of the node.
    pub(crate) own: usize,
    /// Names of secrets that could not be used.
    pub(crate) unusable: Vec<String>,
}

/// Reads the secrets, and selects the credentials that match the image.
pub(crate) async fn credentials(
    objects: &dyn PodObjects,
    providers: &CredentialProviders,
    pod: &NodePod,
    image: &str,
) -> ImageCredentials {
    let (mut keyring, mut unusable) = (Keyring::default(), Vec::new());
    for name in names(objects, pod).await {
        let read = objects.secret(&pod.namespace, &name);
        let secret = tokio::time::timeout(READ_TIMEOUT, read).await;
        let is_read = match secret {
            Ok(Ok(Some(secret))) => add(&mut keyring, secret),
            _ => false,
        };
        if !is_read {
            unusable.push(name);
        }
    }
    let mut credentials = keyring.lookup(image);
    let own = credentials.len();
    // Those of the pod come first.
    let mut provided = Keyring::default();
    providers.add(&mut provided, image).await;
    for auth in provided.lookup(image) {
        if !credentials.contains(&auth) {
            credentials.push(auth);
        }
    }
    ImageCredentials { credentials, own, unusable }
}

/// Names of the pod's secrets, or of its service account's if it names none, as kube-apiserver's
/// admission would have copied them.
async fn names(objects: &dyn PodObjects, pod: &NodePod) -> Vec<String> {
    let listed = |list: &Option<Vec<LocalObjectReference>>| {
        let all = list.iter().flatten().map(|one| one.name.clone());
        all.filter(|name| !name.is_empty()).take(MAX_SECRETS).collect::<Vec<_>>()
    };
    let own = listed(&pod.spec.image_pull_secrets);
    if !own.is_empty() || pod.is_static {
        return own;
    }
    let account = objects.service_account(&pod.namespace, pod.service_account());
    let account = tokio::time::timeout(READ_TIMEOUT, account).await.unwrap_or_else(|_| {
        Err(PodObjectError::Unread {
            kind: "serviceaccount",
            name: pod.service_account().to_owned(),
            why: "context deadline exceeded".to_owned(),
        })
    });
    match account {
        Ok(account) => listed(&account.and_then(|account| account.image_pull_secrets)),
        Err(error) => {
            tracing::warn!(
                namespace = pod.namespace,
                pod = pod.name,
                %error,
                "cannot read the service account's pull secrets"
            );
            Vec::new()
        }
    }
}

/// Whether the secret has credentials, by its type.
fn add(keyring: &mut Keyring, secret: Secret) -> bool {
    let data: BTreeMap<String, ByteString> = secret.data.unwrap_or_default();
    let of = |key: &str| data.get(key).map(|bytes| bytes.0.as_slice());
    match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => {
            of(".dockerconfigjson").is_some_and(|bytes| keyring.add_config(bytes))
        }
        Some("kubernetes.io/dockercfg") => {
            of(".dockercfg").is_some_and(|bytes| keyring.add_legacy(bytes))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::ObjectFuture;
    use k8s_openapi::api::authentication::v1::TokenRequestStatus;
    use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount, ServiceAccountTokenProjection};
    use serde_json::json;

    /// Secrets whose user names are their own names; a service account with one of them.
    struct RegistryObjects;

    fn ready<'a, T: Send + 'a>(object: Option<T>) -> ObjectFuture<'a, T> {
        Box::pin(std::future::ready(Ok(object)))
    }

    impl PodObjects for RegistryObjects {
        fn config_map<'a>(&'a self, _: &'a str, _: &'a str) -> ObjectFuture<'a, ConfigMap> {
            ready(None)
        }

        fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Secret> {
            assert_eq!(namespace, "default");
            let auths = json!({"r.io": {"username": name, "password": "p"}}).to_string();
            let config = format!("{{\"auths\": {auths}}}");
            let (key, text) = match name {
                "legacy" => (".dockercfg", auths.as_str()),
                "broken" => (".dockerconfigjson", "{"),
                _ => (".dockerconfigjson", config.as_str()),
            };
            let kind = match name {
                "opaque" => "Opaque".to_owned(),
                _ => format!("kubernetes.io/{}", key.trim_start_matches('.')),
            };
            let bytes = ByteString(text.as_bytes().to_vec());
            let secret = Secret {
                data: Some(BTreeMap::from([(key.to_owned(), bytes)])),
                type_: Some(kind),
                ..Secret::default()
            };
            match name {
                "hanging" => Box::pin(std::future::pending()),
                "none" => ready(None),
                _ => ready(Some(secret)),
            }
        }

        fn service_account<'a>(
            &'a self,
            _: &'a str,
            name: &'a str,
        ) -> ObjectFuture<'a, ServiceAccount> {
            let account = json!({"imagePullSecrets": [{"name": format!("of-{name}")}]});
            ready(serde_json::from_value(account).ok())
        }

        fn token<'a>(
            &'a self,
            _: &'a NodePod,
            _: &'a ServiceAccountTokenProjection,
        ) -> ObjectFuture<'a, TokenRequestStatus> {
            ready(None)
        }
    }

    async fn found(secrets: &str, image: &str) -> (Vec<String>, Vec<String>) {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{serviceAccountName: sa, \
             containers: [{{name: a, image: i}}], imagePullSecrets: [{secrets}]}}}}"
        );
        let mut pod = NodePod::from_file(text.as_bytes(), "n").unwrap();
        pod.is_static = false;
        let ImageCredentials { credentials, own, unusable } =
            credentials(&RegistryObjects, &CredentialProviders::default(), &pod, image).await;
        assert_eq!(own, credentials.len(), "no plug-in has any");
        (credentials.into_iter().map(|auth| auth.username).collect(), unusable)
    }

    #[tokio::test(start_paused = true)]
    async fn secrets_are_the_pods_else_its_service_accounts() {
        let check = async |secrets: &str, users: &[&str], unusable: &[&str]| {
            let (found, bad) = found(secrets, "r.io/a").await;
            assert_eq!((found.as_slice(), bad.as_slice()), (&*texts(users), &*texts(unusable)));
        };
        check("", &["of-sa"], &[]).await;
        check("{name: one}, {name: legacy}", &["one", "legacy"], &[]).await;
        check("{name: ''}", &["of-sa"], &[]).await;
        let bad = "{name: none}, {name: broken}, {name: opaque}, {name: hanging}, {name: one}";
        check(bad, &["one"], &["none", "broken", "opaque", "hanging"]).await;
        assert!(found("{name: one}", "other.io/a").await.0.is_empty(), "anonymously");
    }

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }
}
