//! A webhook's client config: by URL or by service.

use crate::certificates::CertificateFaults;
use crate::credentials::{WebhookCredentials, WebhookUser};
use crate::service::{ServiceResolver, ServiceTarget};
use ferrokube_apimachinery::document::Value;
use reqwest::Url;
use std::sync::Arc;

/// Access to webhooks: services, credentials, trust.
#[derive(Clone, Debug)]
pub struct WebhookAccess {
    /// Resolves webhooks behind services.
    pub services: Arc<dyn ServiceResolver>,
    /// This server's credentials for webhooks.
    pub credentials: Arc<WebhookCredentials>,
    /// Counts refused certificates.
    pub certificates: CertificateFaults,
}

impl WebhookAccess {
    /// Without credentials.
    pub fn anonymous(services: Arc<dyn ServiceResolver>) -> Self {
        Self { services, credentials: Arc::default(), certificates: CertificateFaults::default() }
    }
}

/// The address of a webhook, and the CAs of its certificate.
#[derive(Clone, Debug)]
pub struct WebhookAddress {
    /// Without query.
    pub(crate) url: String,
    /// PEM in base64; empty for the system's roots.
    pub(crate) ca_bundle: String,
    /// Set if the host name of the URL stands for a service.
    pub(crate) service: Option<ServiceTarget>,
    /// Credentials of the calls; `None`: anonymous.
    pub(crate) user: Option<Arc<WebhookUser>>,
    pub(crate) certificates: CertificateFaults,
}

impl WebhookAddress {
    /// Reads a `clientConfig`.
    pub fn of(config: &Value, access: &WebhookAccess) -> Self {
        let ca_bundle = text(config, "caBundle").to_owned();
        let certificates = access.certificates.clone();
        let Some(service) = config.get("service").filter(|service| !service.is_null()) else {
            let url = cleaned(text(config, "url"));
            let user = user_of_url(&url, &access.credentials);
            return Self { url, ca_bundle, service: None, user, certificates };
        };
        let port = service.get("port").and_then(Value::as_u64).unwrap_or(443);
        let target = ServiceTarget {
            namespace: text(service, "namespace").to_owned(),
            name: text(service, "name").to_owned(),
            port: u16::try_from(port).unwrap_or(443),
            services: Arc::clone(&access.services),
        };
        // The certificate is for this name; the port is that of the resolved address.
        let host = format!("{}.{}.svc", target.name, target.namespace);
        let url = cleaned(&format!("https://{host}/{}", text(service, "path")));
        let user = access.credentials.find(&host, target.port);
        Self { url, ca_bundle, service: Some(target), user, certificates }
    }

    /// The URL that errors show, with the port of a service.
    pub fn shown(&self) -> String {
        let Some(service) = &self.service else { return self.url.clone() };
        let host = format!("https://{}.{}.svc", service.name, service.namespace);
        let path = self.url.strip_prefix(&host).unwrap_or_default();
        format!("{host}:{}{path}", service.port)
    }
}

fn user_of_url(url: &str, credentials: &WebhookCredentials) -> Option<Arc<WebhookUser>> {
    let url = Url::parse(url).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']);
    credentials.find(host, url.port_or_known_default()?)
}

/// Without the empty segments and dots of its path, which kube-apiserver does not send, and many
/// servers redirect.
fn cleaned(url: &str) -> String {
    let after = url.find("://").map_or(0, |at| at + 3);
    let Some(start) = url[after..].find('/').map(|at| after + at) else { return url.to_owned() };
    let mut segments = Vec::new();
    for segment in url[start..].split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    format!("{}/{}", &url[..start], segments.join("/"))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned() {
        for (given, sent) in [
            ("https://h:1//a", "https://h:1/a"),
            ("https://h/a//b/./c/../d/", "https://h/a/b/d"),
            ("https://h/../..", "https://h/"),
            ("https://h", "https://h"),
            ("https://[::1]:1/a%2F..", "https://[::1]:1/a%2F.."),
            ("", ""),
        ] {
            assert_eq!(cleaned(given), sent, "{given}");
        }
    }
}
