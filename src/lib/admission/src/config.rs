//! `--admission-control-config-file`: an AdmissionConfiguration, with a section per step.

use crate::webhook::WebhookCredentials;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::yaml;
use ferrokube_pki::files::{self, FileError};
use ferrokube_webhook::CredentialsError;
use std::path::{Path, PathBuf};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionConfigError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file does not exist.
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// A file is neither YAML nor JSON.
    #[error("{path} cannot be read: {why}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Position and reason.
        why: String,
    },
    /// A field is wrong.
    #[error("{field}: {why}")]
    Invalid {
        /// `plugins[0].configuration.kubeConfigFile`
        field: String,
        /// The error.
        why: String,
    },
    /// The kubeconfig of a step is unusable.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// The sections of the file; none without one.
#[derive(Debug, Default)]
pub struct AdmissionConfig {
    sections: Vec<AdmissionSection>,
}

/// The configuration of a step.
#[derive(Debug)]
pub struct AdmissionSection {
    /// Name of the step.
    pub name: String,
    /// Path in errors: `plugins[0].configuration`, or the file that it is in.
    pub path: String,
    /// A configuration of a kind of the step's own.
    pub object: Document,
}

impl AdmissionSection {
    /// An error of a field of the section.
    pub fn invalid(&self, field: &str, why: impl Into<String>) -> AdmissionConfigError {
        AdmissionConfigError::Invalid { field: format!("{}.{field}", self.path), why: why.into() }
    }

    /// Checks the kind and that there are no other fields than these.
    ///
    /// # Errors
    /// [`AdmissionConfigError::Invalid`].
    pub fn expect(
        &self,
        api_version: &str,
        kind: &str,
        fields: &[&str],
    ) -> Result<(), AdmissionConfigError> {
        if self.object.api_version() != api_version || self.object.kind() != kind {
            return Err(self.invalid("kind", format!("want apiVersion {api_version}, kind {kind}")));
        }
        let known = |field: &str| matches!(field, "apiVersion" | "kind") || fields.contains(&field);
        match self.object.fields().keys().find(|field| !known(field)) {
            Some(unknown) => Err(self.invalid(unknown, "unknown field")),
            None => Ok(()),
        }
    }
}

impl AdmissionConfig {
    /// Reads the file, and those that its sections are in.
    ///
    /// # Errors
    /// [`AdmissionConfigError`]; unknown and repeated fields are errors.
    pub fn read(path: &Path) -> Result<Self, AdmissionConfigError> {
        let file = read(path)?;
        let invalid =
            |field: String, why: &str| AdmissionConfigError::Invalid { field, why: why.into() };
        let known = ["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];
        if file.kind() != "AdmissionConfiguration" || !known.contains(&file.api_version()) {
            let want = "want apiVersion apiserver.config.k8s.io/v1, kind AdmissionConfiguration";
            return Err(invalid("kind".to_owned(), want));
        }
        let fields = file.fields();
        let is_known = |field: &str| matches!(field, "apiVersion" | "kind" | "plugins");
        if let Some(unknown) = fields.keys().find(|field| !is_known(field)) {
            return Err(invalid(unknown.to_string(), "unknown field"));
        }
        let mut config = Self::default();
        for (index, plugin) in file.list(&["plugins"]).iter().enumerate() {
            let at = format!("plugins[{index}]");
            let Value::Object(given) = plugin else { return Err(invalid(at, "not an object")) };
            let is_known = |field: &str| matches!(field, "name" | "path" | "configuration");
            if let Some(unknown) = given.keys().find(|field| !is_known(field)) {
                return Err(invalid(format!("{at}.{unknown}"), "unknown field"));
            }
            let text = |field: &str| given.get(field).and_then(Value::as_str).unwrap_or_default();
            let name = text("name").to_owned();
            let nested = given.get("configuration").filter(|nested| !nested.is_null());
            let (path, object) = match (nested, text("path")) {
                (Some(nested), _) => {
                    let at = format!("{at}.configuration");
                    let object = Document::from_value(nested.clone())
                        .map_err(|_| invalid(at.clone(), "not an object"))?;
                    (at, object)
                }
                (None, "") => continue,
                (None, file) => {
                    let file = path.parent().unwrap_or(Path::new("")).join(file);
                    (file.display().to_string(), read(&file)?)
                }
            };
            config.sections.push(AdmissionSection { name, path, object });
        }
        Ok(config)
    }

    /// The names of the steps that have a section.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sections.iter().map(|section| section.name.as_str())
    }

    /// The first section of a step.
    pub fn section(&self, step: &str) -> Option<&AdmissionSection> {
        self.sections.iter().find(|section| section.name == step)
    }

    /// The credentials for webhooks of a step, from the kubeconfig that its section names.
    ///
    /// # Errors
    /// [`AdmissionConfigError`].
    pub fn credentials(&self, step: &str) -> Result<WebhookCredentials, AdmissionConfigError> {
        let Some(section) = self.section(step) else { return Ok(WebhookCredentials::default()) };
        let (version, kind) = ("apiserver.config.k8s.io/v1", "WebhookAdmissionConfiguration");
        section.expect(version, kind, &["kubeConfigFile", "staticManifestsDir"])?;
        let text = |field: &str| section.object.str(&[field]).unwrap_or_default();
        if !text("staticManifestsDir").is_empty() {
            return Err(section.invalid("staticManifestsDir", "not supported"));
        }
        match text("kubeConfigFile") {
            "" => Ok(WebhookCredentials::default()),
            file if !Path::new(file).is_absolute() => {
                Err(section.invalid("kubeConfigFile", "must be an absolute file path"))
            }
            file => Ok(WebhookCredentials::read(Path::new(file))?),
        }
    }
}

fn read(path: &Path) -> Result<Document, AdmissionConfigError> {
    let bytes = files::read(path)?.ok_or_else(|| AdmissionConfigError::Missing(path.to_owned()))?;
    let wrong = |why: String| AdmissionConfigError::Syntax { path: path.to_owned(), why };
    let decoded = yaml::read(&bytes).map_err(|error| wrong(error.to_string()))?;
    match decoded.duplicates.first() {
        Some(field) => Err(wrong(format!("duplicate field {field}"))),
        None => Ok(decoded.document),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    const STEP: &str = "MutatingAdmissionWebhook";

    /// A directory with the file `config`, the file `own`, and a kubeconfig.
    fn directory(plugins: &str) -> TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        };
        let section = "{apiVersion: apiserver.config.k8s.io/v1, \
            kind: WebhookAdmissionConfiguration, kubeConfigFile: 'DIR/kube'}";
        let here = directory.path().display().to_string();
        let own = section.replace("DIR", &here);
        let plugins = plugins.replace("OWN", &own);
        write("own", &own);
        write("kube", "{users: [{name: '*', user: {token: t}}]}");
        let kind = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";
        write("config", &format!("{kind}{plugins}"));
        directory
    }

    #[test]
    fn sections_are_nested_or_in_files_of_their_own() {
        for plugins in [
            format!("plugins: [{{name: {STEP}, configuration: OWN}}]"),
            format!("plugins: [{{name: {STEP}, path: own}}]"),
        ] {
            let directory = directory(&plugins);
            let config = AdmissionConfig::read(&directory.path().join("config")).expect("valid");
            assert_eq!(config.names().collect::<Vec<_>>(), [STEP]);
            let credentials = config.credentials(STEP).expect("valid");
            assert!(format!("{credentials:?}").contains('*'), "{credentials:?}");
            assert!(config.section("ValidatingAdmissionWebhook").is_none());
        }
    }

    #[test]
    fn errors_name_the_field() {
        let nested = |text: &str| format!("plugins: [{{name: {STEP}, configuration: {text}}}]");
        let kind = "apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration";
        for (plugins, want) in [
            ("other: 1".to_owned(), "other: unknown field"),
            (format!("plugins: [{{name: {STEP}, paht: x}}]"), "plugins[0].paht: unknown field"),
            (format!("plugins: [{{name: {STEP}, path: nowhere}}]"), "nowhere does not exist"),
            (nested("{kind: Other}"), "plugins[0].configuration.kind: want"),
            (
                nested(&format!("{{{kind}, kubeConfigFile: relative}}")),
                "kubeConfigFile: must be an absolute file path",
            ),
            (nested(&format!("{{{kind}, staticManifestsDir: /x}}")), "not supported"),
            (nested(&format!("{{{kind}, kubeconfigFile: /x}}")), "kubeconfigFile: unknown field"),
            ("plugins: [".to_owned(), "cannot be read"),
            ("plugins: []\nplugins: []".to_owned(), "duplicate field"),
        ] {
            let directory = directory(&plugins);
            let why = AdmissionConfig::read(&directory.path().join("config"))
                .and_then(|config| config.credentials(STEP).map(drop))
                .expect_err("it is wrong");
            assert!(why.to_string().contains(want), "{why}");
        }
    }
}
