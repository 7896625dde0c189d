//! Credentials of this server at webhooks: the users of a kubeconfig, which are named after the
//! hosts and services of webhooks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::{Array, Document, Value};
use ferrokube_apimachinery::yaml;
use ferrokube_pki::files::{self, FileError};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why credentials cannot be used. Never shows them.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file cannot be read, or others may read it.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file does not exist.
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// The kubeconfig is malformed.
    #[error("{path} is no kubeconfig: {why}")]
    Malformed {
        /// The kubeconfig.
        path: PathBuf,
        /// The error, without the file.
        why: String,
    },
    /// A user cannot be used.
    #[error("user {user:?} of {path}: {why}")]
    User {
        /// The kubeconfig.
        path: PathBuf,
        /// User name in the kubeconfig.
        user: String,
        /// The error.
        why: &'static str,
    },
}

/// The users of a kubeconfig. None by default: webhooks then get no credentials.
#[derive(Debug, Default)]
pub struct WebhookCredentials {
    users: BTreeMap<String, Arc<WebhookUser>>,
    /// Name of the current context.
    current: Option<String>,
}

/// Credentials of one user for a webhook.
pub(crate) struct WebhookUser {
    /// Authorization and impersonation.
    pub(crate) headers: HeaderMap,
    pub(crate) certificate: Option<ClientCertificate>,
}

impl fmt::Debug for WebhookUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookUser").finish_non_exhaustive()
    }
}

/// A checked certificate and its key.
pub(crate) struct ClientCertificate {
    /// For TLS with a CA bundle.
    pub(crate) key: Arc<CertifiedKey>,
    /// Chain and key, for TLS with the system's roots.
    pub(crate) pem: Vec<u8>,
}

impl WebhookCredentials {
    /// Reads a kubeconfig and the files that it names. They are not read again.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub fn read(path: &Path) -> Result<Self, CredentialsError> {
        let malformed = |why: String| CredentialsError::Malformed { path: path.to_owned(), why };
        let config = yaml::read(&private(path)?).map_err(|error| malformed(error.to_string()))?;
        let config = config.document;
        let is_config = matches!(config.kind(), "" | "Config");
        if !is_config || !matches!(config.api_version(), "" | "v1") {
            return Err(malformed("want apiVersion v1, kind Config".to_owned()));
        }
        let mut credentials = Self::default();
        for named in config.list(&["users"]) {
            let name = text(named, "name").to_owned();
            let reader = UserReader { path, name: &name, user: named.get("user") };
            let user = Arc::new(reader.read()?);
            if credentials.users.contains_key(&name) {
                return Err(malformed(format!("two users are named {name:?}")));
            }
            credentials.users.insert(name, user);
        }
        credentials.current = current_user(&config);
        Ok(credentials)
    }

    /// The user for a host, without brackets, and port: named after it, after a parent domain
    /// (`*.example.com`), `*`, or that of the current context. The default port may be left out.
    pub(crate) fn find(&self, host: &str, port: u16) -> Option<Arc<WebhookUser>> {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let known = |name: &str| self.users.get(name);
        let named = |target: &str| {
            let mut parents = target.match_indices('.').map(|(dot, _)| &target[dot..]);
            known(target).or_else(|| parents.find_map(|parent| known(&format!("*{parent}"))))
        };
        let found = named(&format!("{host}:{port}"))
            .or_else(|| if port == 443 { named(&host) } else { None })
            .or_else(|| known("*"))
            .or_else(|| known(self.current.as_deref()?));
        found.cloned()
    }
}

/// The user of the current context.
fn current_user(config: &Document) -> Option<String> {
    let current = config.str(&["current-context"]).filter(|name| !name.is_empty())?;
    let named =
        config.list(&["contexts"]).iter().find(|context| text(context, "name") == current)?;
    let user = text(named.get("context")?, "user");
    (!user.is_empty()).then(|| user.to_owned())
}

/// Fields of a user.
const TEXTS: [&str; 10] = [
    "token",
    "tokenFile",
    "username",
    "password",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "as",
    "as-uid",
];

/// One user of a kubeconfig.
struct UserReader<'a> {
    path: &'a Path,
    name: &'a str,
    user: Option<&'a Value>,
}

impl UserReader<'_> {
    fn wrong(&self, why: &'static str) -> CredentialsError {
        CredentialsError::User { path: self.path.to_owned(), user: self.name.to_owned(), why }
    }

    fn text(&self, field: &str) -> &str {
        self.user.map_or("", |user| text(user, field))
    }

    fn read(&self) -> Result<WebhookUser, CredentialsError> {
        let is_given = |field: &str| {
            self.user.and_then(|user| user.get(field)).is_some_and(|value| !value.is_null())
        };
        if is_given("exec") || is_given("auth-provider") {
            return Err(self.wrong("exec and auth-provider are not supported"));
        }
        // `username: n` is a boolean in YAML.
        let texts = TEXTS.iter().filter_map(|field| self.user.and_then(|user| user.get(field)));
        if texts.into_iter().any(|value| !value.is_null() && value.as_str().is_none()) {
            return Err(self.wrong("names, tokens, passwords and paths must be texts"));
        }
        Ok(WebhookUser { headers: self.headers()?, certificate: self.certificate()? })
    }

    fn headers(&self) -> Result<HeaderMap, CredentialsError> {
        let mut headers = HeaderMap::new();
        if let Some(authorization) = self.authorization()? {
            let mut value = HeaderValue::try_from(authorization)
                .map_err(|_| self.wrong("its credentials cannot stand in a header"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut add = |name: String, value: &str| {
            let name = HeaderName::try_from(name);
            let value = HeaderValue::try_from(value);
            let (Ok(name), Ok(value)) = (name, value) else {
                return Err(self.wrong("whom it impersonates cannot stand in a header"));
            };
            headers.append(name, value);
            Ok(())
        };
        for (field, header) in [("as", "impersonate-user"), ("as-uid", "impersonate-uid")] {
            if !self.text(field).is_empty() {
                add(header.to_owned(), self.text(field))?;
            }
        }
        let listed = |value: Option<&Value>| -> Vec<String> {
            let items = value.and_then(Value::as_array).map_or(&[][..], Array::as_slice);
            items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let field = |name: &str| self.user.and_then(|user| user.get(name));
        for group in listed(field("as-groups")) {
            add("impersonate-group".to_owned(), &group)?;
        }
        let extra = field("as-user-extra").and_then(Value::as_object);
        for (key, values) in extra.into_iter().flatten() {
            for value in listed(Some(values)) {
                add(format!("impersonate-extra-{key}"), &value)?;
            }
        }
        Ok(headers)
    }

    fn authorization(&self) -> Result<Option<String>, CredentialsError> {
        let token = match (self.text("token"), self.text("tokenFile")) {
            ("", "") => String::new(),
            ("", file) => {
                let bytes = private(&self.relative(file))?;
                String::from_utf8_lossy(&bytes).trim().to_owned()
            }
            (token, _) => token.to_owned(),
        };
        let (name, password) = (self.text("username"), self.text("password"));
        let is_basic = !name.is_empty() || !password.is_empty();
        match (token.as_str(), is_basic) {
            ("", false) => Ok(None),
            ("", true) => {
                Ok(Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))))
            }
            (token, false) => Ok(Some(format!("Bearer {token}"))),
            _ => Err(self.wrong("username/password or bearer token may be set, but not both")),
        }
    }

    fn certificate(&self) -> Result<Option<ClientCertificate>, CredentialsError> {
        let chain = self.pem("client-certificate", files::read)?;
        let key = self.pem("client-key", files::read_private)?;
        let (chain, key) = match (chain, key) {
            (None, None) => return Ok(None),
            (Some(chain), Some(key)) => (chain, key),
            _ => return Err(self.wrong("a client certificate and its key must be set together")),
        };
        let unusable = || self.wrong("its client certificate or key cannot be used");
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&chain)
            .collect::<Result<_, _>>()
            .map_err(|_| unusable())?;
        let private_key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| unusable())?;
        if certificates.is_empty() {
            return Err(unusable());
        }
        let certified =
            CertifiedKey::from_der(certificates, private_key, &ring::default_provider())
                .map_err(|_| unusable())?;
        Ok(Some(ClientCertificate {
            key: Arc::new(certified),
            pem: [&chain[..], b"\n", &key].concat(),
        }))
    }

    /// The value of `FIELD-data`, else the content of the file in `FIELD`.
    fn pem(
        &self,
        field: &str,
        read: impl Fn(&Path) -> Result<Option<Vec<u8>>, FileError>,
    ) -> Result<Option<Vec<u8>>, CredentialsError> {
        match (self.text(&format!("{field}-data")), self.text(field)) {
            ("", "") => Ok(None),
            ("", file) => {
                let path = self.relative(file);
                read(&path)?.map(Some).ok_or(CredentialsError::Missing(path))
            }
            (data, _) => {
                let decoded = STANDARD.decode(data);
                decoded.map(Some).map_err(|_| self.wrong("its certificate or key is not base64"))
            }
        }
    }

    /// A path relative to the kubeconfig.
    fn relative(&self, file: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(file)
    }
}

fn private(path: &Path) -> Result<Vec<u8>, CredentialsError> {
    files::read_private(path)?.ok_or_else(|| CredentialsError::Missing(path.to_owned()))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn read(text: &str) -> Result<WebhookCredentials, CredentialsError> {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
            path
        };
        write("token", "from-file\n");
        WebhookCredentials::read(&write("config", text))
    }

    fn authorization(credentials: &WebhookCredentials, host: &str, port: u16) -> String {
        let Some(user) = credentials.find(host, port) else { return "none".to_owned() };
        let value = user.headers.get(AUTHORIZATION);
        value.map_or("anonymous".to_owned(), |value| value.to_str().expect("ASCII").to_owned())
    }

    #[test]
    fn users_are_found_by_host_port_and_wildcard() {
        let named = ["a.b.example.com:8443", "*.example.com:8443", "plain.org", "*.org", "[::1]:1"]
            .map(|name| format!("{{name: '{name}', user: {{token: '{name}'}}}}"))
            .join(", ");
        let rest = "{name: '*', user: {tokenFile: token}}";
        let credentials = read(&format!("users: [{named}, {rest}]")).expect("valid");
        for (host, port, want) in [
            ("a.b.example.com", 8443, "a.b.example.com:8443"),
            ("c.b.example.com", 8443, "*.example.com:8443"),
            ("c.b.example.com", 443, "from-file"),
            ("plain.org", 443, "plain.org"),
            ("plain.org", 444, "from-file"),
            ("other.org", 443, "*.org"),
            ("::1", 1, "[::1]:1"),
        ] {
            assert_eq!(authorization(&credentials, host, port), format!("Bearer {want}"));
        }
    }

    #[test]
    fn the_current_context_is_the_last_resort() {
        let config = "{users: [{name: u, user: {username: 'n', password: p}}], \
            contexts: [{name: c, context: {user: u}}], current-context: c}";
        let credentials = read(config).expect("valid");
        assert_eq!(authorization(&credentials, "h", 443), "Basic bjpw");
        let none = read("{users: [{name: u, user: {token: t}}]}").expect("valid");
        assert_eq!(authorization(&none, "h", 443), "none");
    }

    #[test]
    fn impersonation_is_passed_on() {
        let config = "{users: [{name: '*', user: {as: alice, as-groups: [a, b], \
            as-user-extra: {scope: [x]}}}]}";
        let user = read(config).expect("valid").find("h", 443).expect("a user");
        let all = |name: &str| -> Vec<_> { user.headers.get_all(name).iter().cloned().collect() };
        assert_eq!(all("impersonate-user"), ["alice"]);
        assert_eq!(all("impersonate-group"), ["a", "b"]);
        assert_eq!(all("impersonate-extra-scope"), ["x"]);
    }

    #[test]
    fn unusable_credentials_are_refused_without_showing_them() {
        for (config, want) in [
            ("[]", "no kubeconfig"),
            ("{kind: Pod}", "kind Config"),
            ("{users: [{name: a, user: {token: s3cret, username: 'n'}}]}", "not both"),
            ("{users: [{name: a, user: {username: n, password: s3cret}}]}", "must be texts"),
            ("{users: [{name: a, user: {exec: {command: x}}}]}", "not supported"),
            ("{users: [{name: a, user: {tokenFile: missing}}]}", "missing does not exist"),
            ("{users: [{name: a, user: {client-key-data: czNjcmV0}}]}", "together"),
            ("{users: [{name: a}, {name: a}]}", "two users"),
            (
                "{users: [{name: a, user: {client-key-data: czNjcmV0, client-certificate-data: eA==}}]}",
                "cannot be used",
            ),
        ] {
            let why = read(config).expect_err("it is unusable").to_string();
            assert!(why.contains(want) && !why.contains("s3cret"), "{why}");
        }
        let credentials = read("{users: [{name: '*', user: {token: s3cret}}]}").expect("valid");
        assert!(!format!("{credentials:?}").contains("s3cret"));
    }
}
