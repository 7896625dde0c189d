//! Credential provider plug-ins: executables of the node that return credentials for images of some
//! registries.
//!
//! A plug-in reads a `CredentialProviderRequest` on its standard input, and writes a
//! `CredentialProviderResponse`. It runs at most once at a time, for a minute; its response is
//! cached for the duration in it.

use super::keyring::{Keyring, is_for, repository};
use crate::background::in_background;
use crate::config::duration;
use ferrokube_apimachinery::yaml;
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

const CONFIG: &str = "CredentialProviderConfig";
const CONFIG_VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
const VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];
/// Time that a plug-in has; kubelet's.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// Bytes of a response.
const MAX_RESPONSE: u64 = 1 << 20;
/// Max bytes read of a plug-in's standard error.
const MAX_ERROR: u64 = 1024;
/// Max cached responses of a plug-in.
const MAX_CACHED: usize = 1000;

/// A configuration of plug-ins that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialProviderError {
    /// The file cannot be read.
    #[error("cannot read the credential provider config {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is not one, or contradicts itself.
    #[error("cannot use the credential provider config {path}: {why}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
}

/// The plug-ins of a node.
#[derive(Debug, Default)]
pub struct CredentialProviders(Vec<CredentialProvider>);

#[derive(Debug)]
struct CredentialProvider {
    config: ProviderConfig,
    executable: PathBuf,
    default_duration: Duration,
    cache: Mutex<BTreeMap<String, CachedCredentials>>,
    /// The right to run it.
    turn: Semaphore,
}

/// Not shown by `Debug`: secret.
struct CachedCredentials {
    auths: BTreeMap<String, ProvidedAuth>,
    until: Instant,
}

impl std::fmt::Debug for CachedCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedCredentials").field("until", &self.until).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProvidersFile {
    api_version: String,
    kind: String,
    #[serde(default)]
    providers: Vec<ProviderConfig>,
}

/// A field that is not implemented is refused as unknown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProviderConfig {
    name: String,
    #[serde(default)]
    match_images: Vec<String>,
    #[serde(default)]
    default_cache_duration: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<ProviderVariable>,
}

#[derive(Clone, Debug, Deserialize)]
struct ProviderVariable {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProviderResponse {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    cache_key_type: String,
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<BTreeMap<String, ProvidedAuth>>,
}

#[derive(Clone, Deserialize)]
struct ProvidedAuth {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl CredentialProviders {
    /// Reads a file; its plug-ins are executables of the directory.
    ///
    /// # Errors
    /// [`CredentialProviderError`].
    pub fn read(path: &Path, executables: &Path) -> Result<Self, CredentialProviderError> {
        let body = std::fs::read(path)
            .map_err(|source| CredentialProviderError::Read { path: path.to_owned(), source })?;
        Self::parse(&body, executables)
            .map_err(|why| CredentialProviderError::Invalid { path: path.to_owned(), why })
    }

    fn parse(body: &[u8], executables: &Path) -> Result<Self, String> {
        let read = yaml::read(body).map_err(|error| error.to_string())?;
        let json = ferrokube_apimachinery::json::to_vec(&read.document.into_value());
        let file: ProvidersFile =
            serde_json::from_slice(&json).map_err(|error| error.to_string())?;
        if file.kind != CONFIG || !CONFIG_VERSIONS.contains(&&*file.api_version) {
            let ProvidersFile { kind, api_version, .. } = file;
            return Err(format!("no kind {kind:?} is registered for version {api_version:?}"));
        }
        if file.providers.is_empty() {
            return Err("providers: Required value: at least 1 item in plugins is required".into());
        }
        let mut names = std::collections::BTreeSet::new();
        let mut providers = Vec::new();
        for config in file.providers {
            if !names.insert(config.name.clone()) {
                return Err(format!("providers: Duplicate value: {:?}", config.name));
            }
            providers.push(CredentialProvider::new(config, executables)?);
        }
        Ok(Self(providers))
    }

    /// Adds the plug-ins' credentials for an image. Failures are logged; other plug-ins may
    /// succeed.
    pub(super) async fn add(&self, keyring: &mut Keyring, image: &str) {
        let repository = repository(image);
        for provider in &self.0 {
            let patterns = &provider.config.match_images;
            if !patterns.iter().any(|pattern| is_for(pattern, &repository)) {
                continue;
            }
            match provider.credentials(&repository).await {
                Ok(auths) => {
                    for (place, auth) in auths {
                        keyring.add_provided(&place, auth.username, auth.password);
                    }
                }
                Err(why) => {
                    let plugin = &provider.config.name;
                    tracing::warn!(plugin, image, why, "a credential provider plug-in failed");
                }
            }
        }
    }
}

impl CredentialProvider {
    fn new(config: ProviderConfig, executables: &Path) -> Result<Self, String> {
        let name = &config.name;
        let is_path =
            name.contains('/') || name.contains(' ') || matches!(&**name, "" | "." | "..");
        if is_path {
            return Err(format!("providers.name: Invalid value: {name:?}"));
        }
        if config.match_images.is_empty() {
            let why =
                "providers.matchImages: Required value: at least 1 item in matchImages is required";
            return Err(why.to_owned());
        }
        if !VERSIONS.contains(&&*config.api_version) {
            let (given, known) = (&config.api_version, VERSIONS.join(", "));
            return Err(format!(
                "providers.apiVersion: Unsupported value: {given:?}: supported values: {known}"
            ));
        }
        let default_duration = duration(&config.default_cache_duration)
            .map_err(|why| format!("providers.defaultCacheDuration: {why}"))?;
        let executable = executables.join(name);
        if !executable.is_file() {
            let shown = executable.display();
            return Err(format!("plugin binary executable {shown} did not exist"));
        }
        Ok(Self {
            config,
            executable,
            default_duration,
            cache: Mutex::default(),
            turn: Semaphore::new(1),
        })
    }

    async fn credentials(
        &self,
        repository: &str,
    ) -> Result<BTreeMap<String, ProvidedAuth>, String> {
        let registry = repository.split('/').next().unwrap_or_default();
        // Requests for the same registry wait, and then find the cached response. Never closed.
        let _turn = self.turn.acquire().await;
        if let Some(auths) = self.cached(&[repository, registry, ""]) {
            return Ok(auths);
        }
        let (config, executable) = (self.config.clone(), self.executable.clone());
        let image = repository.to_owned();
        let run = in_background(move || Ok(run(&config, &executable, &image))).await;
        let response = run.map_err(|error| error.to_string())??;
        let key = match &*response.cache_key_type {
            "Image" => repository,
            "Registry" => registry,
            "Global" => "",
            other => {
                return Err(format!(
                    "credential provider plugin returned an unknown cacheKeyType {other:?}"
                ));
            }
        };
        let duration = match response.cache_duration {
            Some(text) => duration(&text)?,
            None => self.default_duration,
        };
        let auths = response.auth.unwrap_or_default();
        if !duration.is_zero() {
            let mut cache = self.cache.lock();
            if cache.len() >= MAX_CACHED {
                cache.clear();
            }
            let cached =
                CachedCredentials { auths: auths.clone(), until: Instant::now() + duration };
            cache.insert(key.to_owned(), cached);
        }
        Ok(auths)
    }

    /// Cached credentials under the first of these keys that has some.
    fn cached(&self, keys: &[&str]) -> Option<BTreeMap<String, ProvidedAuth>> {
        let mut cache = self.cache.lock();
        let now = Instant::now();
        cache.retain(|_, cached| cached.until > now);
        keys.iter().find_map(|key| Some(cache.get(*key)?.auths.clone()))
    }
}

/// Runs a plug-in. Its output is secret, so errors omit it.
fn run(
    config: &ProviderConfig,
    executable: &Path,
    image: &str,
) -> Result<ProviderResponse, String> {
    let request = serde_json::json!({
        "apiVersion": config.api_version, "kind": "CredentialProviderRequest", "image": image,
    });
    let mut child = Command::new(executable)
        .args(&config.args)
        .envs(config.env.iter().map(|variable| (&variable.name, &variable.value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run it: {error}"))?;
    let output = child.stdout.take().map(|output| reading(output, MAX_RESPONSE + 1));
    let errors = child.stderr.take().map(|errors| reading(errors, MAX_ERROR));
    if let Some(mut input) = child.stdin.take() {
        let request = request.to_string();
        // On a thread that ends with the plug-in, which may not read it.
        std::thread::spawn(move || input.write_all(request.as_bytes()));
    }
    let deadline = std::time::Instant::now() + TIMEOUT;
    let status = ended(&mut child, deadline)?;
    let text = |receiver: Option<Receiver<Vec<u8>>>| {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        receiver.and_then(|receiver| receiver.recv_timeout(left).ok()).unwrap_or_default()
    };
    if !status.success() {
        let said = String::from_utf8_lossy(&text(errors)).trim().to_owned();
        return Err(format!("it ended with {status}: {said}"));
    }
    let output = text(output);
    if u64::try_from(output.len()).is_ok_and(|length| length > MAX_RESPONSE) {
        return Err(format!("its response is longer than {MAX_RESPONSE} bytes"));
    }
    let response: ProviderResponse =
        serde_json::from_slice(&output).map_err(|_| "its response cannot be read".to_owned())?;
    let (kind, version) = (&*response.kind, &*response.api_version);
    if kind != "CredentialProviderResponse" || version != config.api_version {
        return Err(format!("its response is {kind:?} of version {version:?}"));
    }
    Ok(response)
}

/// Reads on a thread of its own: a child of the plug-in may keep the pipe open.
fn reading(from: impl Read + Send + 'static, most: u64) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.take(most).read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

fn ended(
    child: &mut Child,
    deadline: std::time::Instant,
) -> Result<std::process::ExitStatus, String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if std::time::Instant::now() < deadline => std::thread::sleep(POLL),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it took longer than {} s", TIMEOUT.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// `sh` as a plug-in: it notes its call in a file, and says what it is to say.
    fn providers(calls: &Path, response: &Value, more: &str) -> CredentialProviders {
        let script = format!(
            "{more}; request=$(cat); echo \"$request $MARK\" >> {}; echo '{response}'",
            calls.display()
        );
        let config = json!({"apiVersion": CONFIG_VERSIONS[0], "kind": CONFIG, "providers": [{
            "name": "sh", "matchImages": ["*.r.io"], "defaultCacheDuration": "1h",
            "apiVersion": VERSIONS[0], "args": ["-c", script],
            "env": [{"name": "MARK", "value": "marked"}]}]});
        CredentialProviders::parse(config.to_string().as_bytes(), Path::new("/bin")).unwrap()
    }

    fn response(key: &str, duration: &str) -> Value {
        json!({"apiVersion": VERSIONS[0], "kind": "CredentialProviderResponse",
            "cacheKeyType": key, "cacheDuration": duration,
            "auth": {"a.r.io": {"username": "u", "password": "p"},
                "b.r.io": {"username": "other", "password": "q"}}})
    }

    async fn users(providers: &CredentialProviders, image: &str) -> Vec<String> {
        let mut keyring = Keyring::default();
        providers.add(&mut keyring, image).await;
        keyring.lookup(image).into_iter().map(|auth| auth.username).collect()
    }

    fn count(calls: &Path) -> usize {
        std::fs::read_to_string(calls).unwrap_or_default().lines().count()
    }

    #[tokio::test]
    async fn a_plug_in_is_asked_for_its_images_and_what_it_says_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        for (key, asked) in [("Image", 3), ("Registry", 2), ("Global", 1)] {
            let calls = folder.path().join(key);
            let providers = providers(&calls, &response(key, "1h"), "true");
            assert_eq!(users(&providers, "a.r.io/x:v1").await, ["u"]);
            let call = std::fs::read_to_string(&calls).unwrap();
            assert!(call.contains("\"image\":\"a.r.io/x\"") && call.contains("marked"), "{call}");
            assert_eq!(users(&providers, "a.r.io/x:v2").await, ["u"]);
            assert_eq!(users(&providers, "a.r.io/y").await, ["u"]);
            assert_eq!(users(&providers, "b.r.io/x").await, ["other"]);
            assert!(users(&providers, "other.io/x").await.is_empty(), "not its images");
            assert_eq!(count(&calls), asked, "{key}");
        }
        let calls = folder.path().join("uncached");
        let providers = providers(&calls, &response("Image", "0s"), "true");
        users(&providers, "a.r.io/x").await;
        users(&providers, "a.r.io/x").await;
        assert_eq!(count(&calls), 2);
    }

    #[tokio::test]
    async fn a_plug_in_that_fails_leaves_the_pull_without_its_credentials() {
        let folder = tempfile::tempdir().unwrap();
        let calls = folder.path().join("calls");
        let right = response("Image", "1h");
        assert!(users(&providers(&calls, &right, "exit 3"), "a.r.io/x").await.is_empty());
        assert!(users(&providers(&calls, &json!("text"), "true"), "a.r.io/x").await.is_empty());
        let mut other = right.clone();
        other["apiVersion"] = VERSIONS[1].into();
        assert!(users(&providers(&calls, &other, "true"), "a.r.io/x").await.is_empty());
        // What it leaves behind keeps its output open.
        let lingering = providers(&calls, &right, "sleep 1 & true");
        assert_eq!(users(&lingering, "a.r.io/x").await, ["u"]);
    }

    #[test]
    fn wrong_configurations_are_refused_by_what_is_wrong() {
        let right = json!({"name": "sh", "matchImages": ["r.io"], "defaultCacheDuration": "1h",
            "apiVersion": VERSIONS[0]});
        let parse = |field: &str, value: Value| {
            let mut provider = right.clone();
            provider[field] = value;
            let file = json!({"apiVersion": CONFIG_VERSIONS[0], "kind": CONFIG,
                "providers": [provider]});
            let parsed = CredentialProviders::parse(file.to_string().as_bytes(), Path::new("/bin"));
            parsed.map(|all| all.0.len())
        };
        assert_eq!(parse("name", "sh".into()), Ok(1));
        for (field, value, why) in [
            ("name", json!("../sh"), "providers.name"),
            ("name", json!("no-such-plug-in"), "did not exist"),
            ("matchImages", json!([]), "matchImages"),
            ("defaultCacheDuration", json!("soon"), "defaultCacheDuration"),
            ("apiVersion", json!("v1"), "apiVersion"),
            ("tokenAttributes", json!({}), "tokenAttributes"),
        ] {
            let refused = parse(field, value).unwrap_err();
            assert!(refused.contains(why), "{field}: {refused}");
        }
    }
}
