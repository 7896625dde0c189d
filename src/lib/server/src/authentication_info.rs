//! Publishes the CAs and headers for authentication by aggregated servers, in the ConfigMap
//! `kube-system/extension-apiserver-authentication`.

use crate::builder::ControlPlaneBuilder;
use crate::error::{Because, InputError};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::json as codec;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_controlplane::StepError;
use ferrokube_pki::{FRONT_PROXY, Pki};
use ferrokube_registry::{Local, Registry};
use std::path::Path;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
/// Attempts on conflicts with other servers.
const ATTEMPTS: usize = 5;

/// This server's data: certificates in PEM, names as lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuthenticationInfo {
    bundles: Vec<(&'static str, String)>,
    lists: Vec<(&'static str, Vec<String>)>,
}

impl AuthenticationInfo {
    /// Built from the configuration. Front proxies are the trusted ones, and this server if it
    /// aggregates others: by its own CA, unless its certificate comes from a file.
    pub(crate) fn new(
        builder: &ControlPlaneBuilder,
        pki: &Pki,
        aggregates: bool,
    ) -> Result<Self, InputError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).because(|| format!("cannot read {}", path.display()))
        };
        let mut clients = pki.client_ca_pem().to_owned();
        if let Some(path) = &builder.listener.files.client_ca {
            clients = join(&clients, &read(path)?);
        }
        let mut info = Self { bundles: vec![("client-ca-file", clients)], lists: Vec::new() };
        let trusted = builder.front_proxies.as_ref();
        let mut proxies =
            trusted.map(|trusted| read(&trusted.ca_file)).transpose()?.unwrap_or_default();
        let config = trusted.cloned().unwrap_or_default();
        let mut names = config.allowed_names;
        if aggregates && builder.aggregation.client_certificate.is_none() {
            // An empty list allows any name.
            if proxies.is_empty() || !names.is_empty() {
                names.push(FRONT_PROXY.to_owned());
            }
            proxies = join(&proxies, pki.front_proxy_ca_pem());
        }
        if !proxies.is_empty() {
            info.bundles.push(("requestheader-client-ca-file", proxies));
            info.lists = vec![
                ("requestheader-username-headers", config.username_headers),
                ("requestheader-uid-headers", config.uid_headers),
                ("requestheader-group-headers", config.group_headers),
                ("requestheader-extra-headers-prefix", config.extra_headers_prefix),
                ("requestheader-allowed-names", names),
            ];
        }
        Ok(info)
    }

    /// Adds missing keys to the ConfigMap, and keeps those of other servers. Does not write if none
    /// is missing.
    pub(crate) async fn publish(self, registry: Registry) -> Result<(), StepError> {
        let Some(maps) = Local::new(&registry, "", "v1", "configmaps") else { return Ok(()) };
        for attempt in 1.. {
            match self.publish_once(&maps).await {
                Err(failure)
                    if attempt < ATTEMPTS
                        && matches!(
                            failure.reason,
                            Some(Reason::Conflict | Reason::AlreadyExists | Reason::NotFound)
                        ) => {}
                // The ConfigMap is immutable, for example: that must not prevent a start.
                Err(failure) if is_refused(&failure) => {
                    tracing::error!(
                        %failure,
                        k8s.namespace = NAMESPACE,
                        k8s.name = NAME,
                        "cannot publish how users are authenticated"
                    );
                    return Ok(());
                }
                other => {
                    return other.map_err(|failure| {
                        StepError::new(
                            format!("cannot write {NAMESPACE}/{NAME}: {failure}"),
                            &failure,
                        )
                    });
                }
            }
        }
        Ok(())
    }

    async fn publish_once(&self, maps: &Local) -> Result<(), Failure> {
        let stored = maps.get(NAMESPACE, NAME).await?;
        let map = stored.clone().unwrap_or_else(|| {
            let named = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}});
            Document::from_value(named).expect("an object literal")
        });
        let merged = self.merged(map);
        match stored {
            Some(stored) if stored == merged => Ok(()),
            Some(_) => maps.update(merged, "").await.map(drop),
            None => maps.create(NAMESPACE, merged).await.map(drop),
        }
    }

    fn merged(&self, mut map: Document) -> Document {
        for (key, ours) in &self.bundles {
            let bundle = join(map.str(&["data", key]).unwrap_or_default(), ours);
            map.set(&["data", key], bundle);
        }
        for (key, ours) in &self.lists {
            let mut all = codec::read_value(map.str(&["data", key]).unwrap_or_default().as_bytes())
                .ok()
                .and_then(|list| list.as_array().cloned())
                .unwrap_or_default();
            let missing: Vec<Value> = ours
                .iter()
                .map(|word| Value::from(word.as_str()))
                .filter(|word| !all.contains(word))
                .collect();
            all.extend(missing);
            let text = String::from_utf8(codec::to_vec(&Value::Array(all))).expect("JSON is UTF-8");
            map.set(&["data", key], text);
        }
        map
    }
}

/// Whether the failure is due to the object, not the storage.
fn is_refused(failure: &Failure) -> bool {
    let refused =
        [Reason::BadRequest, Reason::Forbidden, Reason::Invalid, Reason::RequestEntityTooLarge];
    failure.reason.is_some_and(|reason| refused.contains(&reason))
}

/// Concatenates two bundles, skipping certificates of the second that are in the first.
fn join(first: &str, second: &str) -> String {
    match (first.trim(), second.trim()) {
        ("", second) => format!("{second}\n"),
        (first, second) if second.is_empty() || first.contains(second) => format!("{first}\n"),
        (first, second) => format!("{first}\n{second}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_other_servers_stay_without_duplicates() {
        let info = AuthenticationInfo {
            bundles: vec![("client-ca-file", "OURS\n".to_owned())],
            lists: vec![("requestheader-allowed-names", vec!["a".to_owned(), "b".to_owned()])],
        };
        let first = info.merged(Document::new());
        assert_eq!(first.str(&["data", "client-ca-file"]), Some("OURS\n"));
        assert_eq!(first.str(&["data", "requestheader-allowed-names"]), Some(r#"["a","b"]"#));
        assert_eq!(info.merged(first.clone()), first);
        let theirs = Document::from_value(json!({"data": {"client-ca-file": "THEIRS\n", "requestheader-allowed-names": "[\"b\",\"c\"]"}})).expect("an object");
        let both = info.merged(theirs);
        assert_eq!(both.str(&["data", "client-ca-file"]), Some("THEIRS\nOURS\n"));
        assert_eq!(both.str(&["data", "requestheader-allowed-names"]), Some(r#"["b","c","a"]"#));
    }
}
