//! Settings of the kubelet's own server.

use super::duration;
use ferrokube_apimachinery::document::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Port of kubelets.
const PORT: i64 = 10250;

/// As in a file or flags; `None`: not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSettings {
    /// Whether to serve.
    pub is_on: Option<bool>,
    /// To listen on.
    pub address: Option<String>,
    /// To listen on; 0: any free one.
    pub port: Option<i64>,
    /// Port of the unauthenticated server, which is not implemented.
    pub read_only_port: Option<i64>,
    /// Chain of the serving certificate.
    pub tls_cert_file: Option<String>,
    /// PEM; set if and only if the chain is.
    pub tls_private_key_file: Option<String>,
    /// Whether the serving certificate is requested from the API server.
    pub requests_certificate: Option<bool>,
    /// CAs of client certificates.
    pub client_ca_file: Option<String>,
    /// Whether bearer tokens are reviewed by the API server.
    pub token_webhook: Option<bool>,
    /// Whether anonymous requests are accepted; `true` is an error.
    pub anonymous: Option<bool>,
    /// `Webhook`.
    pub authorization_mode: Option<String>,
    /// How long a reviewed token counts.
    pub token_ttl: Option<Duration>,
    /// How long a right counts.
    pub allowed_ttl: Option<Duration>,
    /// How long a missing right counts.
    pub denied_ttl: Option<Duration>,
}

/// Checked, with defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// To listen on; port 0: any free one.
    pub address: SocketAddr,
    /// Chain and key of the serving certificate; `None`: a self-signed one.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Whether, without such files, a certificate is requested from the API server.
    pub requests_certificate: bool,
    /// CAs of client certificates; `None`: what the API server publishes.
    pub client_ca: Option<PathBuf>,
    /// Whether bearer tokens are reviewed by the API server.
    pub reviews_tokens: bool,
    /// How long a reviewed token counts.
    pub token_ttl: Duration,
    /// How long a right counts.
    pub allowed_ttl: Duration,
    /// How long a missing right counts.
    pub denied_ttl: Duration,
}

impl ServerSettings {
    /// Sets a field whose type was checked. Returns whether the field is one of these.
    pub(super) fn set(&mut self, name: &str, value: &Value) -> Result<bool, String> {
        let text = || value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let number = || value.as_i64().filter(|number| *number != 0);
        match name {
            "enableServer" => self.is_on = value.as_bool(),
            "address" => self.address = text(),
            "port" => self.port = number(),
            "readOnlyPort" => self.read_only_port = number(),
            "tlsCertFile" => self.tls_cert_file = text(),
            "tlsPrivateKeyFile" => self.tls_private_key_file = text(),
            "serverTLSBootstrap" => self.requests_certificate = value.as_bool(),
            "authentication" => self.set_authentication(value)?,
            "authorization" => self.set_authorization(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_authentication(&mut self, value: &Value) -> Result<(), String> {
        each(value, |path, value| {
            match path {
                "anonymous.enabled" => self.anonymous = Some(boolean(path, value)?),
                "webhook.enabled" => self.token_webhook = Some(boolean(path, value)?),
                "webhook.cacheTTL" => self.token_ttl = time(path, value)?,
                "x509.clientCAFile" => self.client_ca_file = Some(string(path, value)?),
                _ => return Err(format!("unknown field \"authentication.{path}\"")),
            }
            Ok(())
        })
    }

    fn set_authorization(&mut self, value: &Value) -> Result<(), String> {
        each(value, |path, value| {
            match path {
                "mode" => self.authorization_mode = Some(string(path, value)?),
                "webhook.cacheAuthorizedTTL" => self.allowed_ttl = time(path, value)?,
                "webhook.cacheUnauthorizedTTL" => self.denied_ttl = time(path, value)?,
                _ => return Err(format!("unknown field \"authorization.{path}\"")),
            }
            Ok(())
        })
    }

    /// These settings, with unset ones taken from `below`.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            is_on: self.is_on.or(below.is_on),
            address: self.address.or(below.address),
            port: self.port.or(below.port),
            read_only_port: self.read_only_port.or(below.read_only_port),
            tls_cert_file: self.tls_cert_file.or(below.tls_cert_file),
            tls_private_key_file: self.tls_private_key_file.or(below.tls_private_key_file),
            requests_certificate: self.requests_certificate.or(below.requests_certificate),
            client_ca_file: self.client_ca_file.or(below.client_ca_file),
            token_webhook: self.token_webhook.or(below.token_webhook),
            anonymous: self.anonymous.or(below.anonymous),
            authorization_mode: self.authorization_mode.or(below.authorization_mode),
            token_ttl: self.token_ttl.or(below.token_ttl),
            allowed_ttl: self.allowed_ttl.or(below.allowed_ttl),
            denied_ttl: self.denied_ttl.or(below.denied_ttl),
        }
    }

    /// Checks and adds defaults; `None`: there is no server.
    pub(super) fn finish(self, mut wrong: impl FnMut(String)) -> Option<ServerConfig> {
        if self.read_only_port.is_some_and(|port| port != 0) {
            wrong(
                "readOnlyPort must be 0: there is no server without authentication; use the \
                 kubelet's port"
                    .to_owned(),
            );
        }
        if self.anonymous == Some(true) {
            wrong("authentication.anonymous.enabled must be false".to_owned());
        }
        let mode = self.authorization_mode.unwrap_or_default();
        if !matches!(mode.as_str(), "" | "Webhook") {
            wrong(format!("authorization.mode {mode:?} must be \"Webhook\""));
        }
        let port = self.port.unwrap_or(PORT);
        let number = u16::try_from(port).unwrap_or_else(|_| {
            wrong(format!("port (--port) {port} must be between 0 and 65535, inclusive"));
            0
        });
        let address = self.address.unwrap_or_else(|| Ipv4Addr::UNSPECIFIED.to_string());
        let ip = address.parse::<IpAddr>().unwrap_or_else(|_| {
            wrong(format!("address (--address) {address:?} must be an IP address"));
            Ipv4Addr::LOCALHOST.into()
        });
        let certificate = match (self.tls_cert_file, self.tls_private_key_file) {
            (Some(chain), Some(key)) => Some((chain.into(), key.into())),
            (None, None) => None,
            _ => {
                wrong("tlsCertFile and tlsPrivateKeyFile must be set together".to_owned());
                None
            }
        };
        self.is_on.unwrap_or(true).then(|| ServerConfig {
            address: (ip, number).into(),
            certificate,
            requests_certificate: self.requests_certificate.unwrap_or(false),
            client_ca: self.client_ca_file.filter(|path| !path.is_empty()).map(PathBuf::from),
            reviews_tokens: self.token_webhook.unwrap_or(true),
            token_ttl: self.token_ttl.unwrap_or(Duration::from_secs(120)),
            allowed_ttl: self.allowed_ttl.unwrap_or(Duration::from_secs(300)),
            denied_ttl: self.denied_ttl.unwrap_or(Duration::from_secs(30)),
        })
    }
}

/// Calls `set` with each value of an object and of the objects in it, by path.
fn each(
    value: &Value,
    mut set: impl FnMut(&str, &Value) -> Result<(), String>,
) -> Result<(), String> {
    for (name, value) in value.as_object().into_iter().flat_map(|object| object.iter()) {
        let name: &str = name.as_ref();
        match value.as_object() {
            Some(fields) => {
                for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                    let field: &str = field.as_ref();
                    set(&format!("{name}.{field}"), value)?;
                }
            }
            None if value.is_null() => {}
            None => set(name, value)?,
        }
    }
    Ok(())
}

fn boolean(path: &str, value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("{path} must be true or false"))
}

fn string(path: &str, value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{path} must be a string"))
}

/// A zero duration is unset, as in Go.
fn time(path: &str, value: &Value) -> Result<Option<Duration>, String> {
    Ok(Some(duration(&string(path, value)?)?).filter(|time| !time.is_zero()))
}
