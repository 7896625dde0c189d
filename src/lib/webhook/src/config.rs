//! A webhook's client config: by URL or by service.

use crate::service::{ServiceResolver, ServiceTarget};
use ferrokube_apimachinery::document::Value;
use std::sync::Arc;

/// Where a webhook is, and whom its certificate must be signed by.
#[derive(Clone, Debug)]
pub struct WebhookAddress {
    /// Without query.
    pub(crate) url: String,
    /// PEM in base64; empty for the system's roots.
    pub(crate) ca_bundle: String,
    /// Set if the host name of the URL stands for a service.
    pub(crate) service: Option<ServiceTarget>,
}

impl WebhookAddress {
    /// Reads a `clientConfig`.
    pub fn of(config: &Value, services: &Arc<dyn ServiceResolver>) -> Self {
        let ca_bundle = text(config, "caBundle").to_owned();
        let Some(service) = config.get("service").filter(|service| !service.is_null()) else {
            return Self { url: text(config, "url").to_owned(), ca_bundle, service: None };
        };
        let port = service.get("port").and_then(Value::as_u64).unwrap_or(443);
        let target = ServiceTarget {
            namespace: text(service, "namespace").to_owned(),
            name: text(service, "name").to_owned(),
            port: u16::try_from(port).unwrap_or(443),
            services: Arc::clone(services),
        };
        let path = text(service, "path");
        let slash = if path.is_empty() || path.starts_with('/') { "" } else { "/" };
        // The certificate is for this name; the port is that of the resolved address.
        let url = format!("https://{}.{}.svc{slash}{path}", target.name, target.namespace);
        Self { url, ca_bundle, service: Some(target) }
    }

    /// The URL that errors show, with the port of a service.
    pub fn shown(&self) -> String {
        let Some(service) = &self.service else { return self.url.clone() };
        let host = format!("https://{}.{}.svc", service.name, service.namespace);
        let path = self.url.strip_prefix(&host).unwrap_or_default();
        format!("{host}:{}{path}", service.port)
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
