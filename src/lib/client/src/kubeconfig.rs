//! Kubeconfig files, read by the YAML reader that everything else uses. kube's own is a second one:
//! its rules are not kubectl's, and its code for these types is hundreds of kilobytes.

use ferrokube_apimachinery::{json, yaml};
use kube::config::{Kubeconfig, KubeconfigError};
use serde_json::Value;
use std::path::Path;

/// Why a kubeconfig cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigFileError {
    /// It does not exist, or may not be read.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// Neither YAML nor JSON, or not of a kubeconfig's form.
    #[error("{0}")]
    Malformed(String),
    /// Contradicts itself or another one, or names what cannot be read.
    #[error(transparent)]
    Inconsistent(#[from] KubeconfigError),
}

/// Reads a kubeconfig. Files that it names are relative to its directory, as for kubectl.
///
/// # Errors
/// [`KubeconfigFileError`].
pub fn read(path: &Path) -> Result<Kubeconfig, KubeconfigFileError> {
    parse(&std::fs::read(path)?, path.parent())
}

/// Reads the text of a kubeconfig; an empty one is an empty kubeconfig.
pub(crate) fn parse(
    text: &[u8],
    directory: Option<&Path>,
) -> Result<Kubeconfig, KubeconfigFileError> {
    let malformed = |why: &dyn std::fmt::Display| KubeconfigFileError::Malformed(why.to_string());
    let read = yaml::read_any(text).map_err(|error| malformed(&error))?;
    let mut value: Value =
        serde_json::from_slice(&json::to_vec(&read.value)).map_err(|error| malformed(&error))?;
    if value.is_null() {
        return Ok(Kubeconfig::default());
    }
    if let Some(directory) = directory {
        resolve(&mut value, directory);
    }
    serde_json::from_value(value).map_err(|error| malformed(&error))
}

/// Makes paths absolute. A command without a separator is searched in PATH.
fn resolve(kubeconfig: &mut Value, directory: &Path) {
    const OF_CLUSTERS: [&str; 1] = ["/cluster/certificate-authority"];
    const OF_USERS: [&str; 3] = ["/user/client-certificate", "/user/client-key", "/user/tokenFile"];
    const COMMAND: &str = "/user/exec/command";
    let lists = [("clusters", &OF_CLUSTERS[..]), ("users", &OF_USERS[..])];
    for (list, pointers) in lists {
        for entry in kubeconfig.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let names_file = |entry: &Value| {
                entry.pointer(COMMAND).and_then(Value::as_str).is_some_and(|it| it.contains('/'))
            };
            let command = names_file(entry).then_some(COMMAND);
            for pointer in pointers.iter().copied().chain(command) {
                let Some(Value::String(path)) = entry.pointer_mut(pointer) else { continue };
                if !path.is_empty() && Path::new(&*path).is_relative() {
                    *path = directory.join(&*path).display().to_string();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
clusters:
- {name: c, cluster: {server: 'https://192.0.2.1', certificate-authority: ca.pem}}
users:
- {name: u, user: {client-certificate: own/cert.pem, client-key: /key.pem}}
- {name: e, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: ./login}}}
- {name: p, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}}}
";

    #[test]
    fn files_are_relative_to_the_kubeconfig() {
        let read = parse(FILE.as_bytes(), Some(Path::new("/etc/k"))).unwrap();
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.certificate_authority.as_deref(), Some("/etc/k/ca.pem"));
        let user = |index: usize| read.auth_infos[index].auth_info.clone().unwrap();
        assert_eq!(user(0).client_certificate.as_deref(), Some("/etc/k/own/cert.pem"));
        assert_eq!(user(0).client_key.as_deref(), Some("/key.pem"));
        let command = |index| user(index).exec.unwrap().command.unwrap();
        assert_eq!(command(1), "/etc/k/./login");
        assert_eq!(command(2), "aws", "searched in PATH");
    }

    #[test]
    fn fields_that_kubectl_writes_are_read() {
        const WRITTEN: &str = "\
apiVersion: v1
kind: Config
preferences: {}
contexts: null
clusters:
- name: c
  cluster:
    certificate-authority-data: Y2E=
    extensions:
    - {name: client.authentication.k8s.io/exec, extension: {audience: [a, 1]}}
    server: https://192.0.2.1
users:
- name: u
  user:
    client-key-data: a2V5
    exec:
      apiVersion: client.authentication.k8s.io/v1
      args: null
      command: login
      env: [{name: A, value: '1'}]
      interactiveMode: IfAvailable
      provideClusterInfo: true
    tokenFile: token
";
        let read = parse(WRITTEN.as_bytes(), Some(Path::new("/etc/k"))).unwrap();
        assert!(read.contexts.is_empty());
        let written = serde_json::to_value(&read).unwrap();
        let cluster = &written["clusters"][0]["cluster"];
        assert_eq!(cluster["certificate-authority-data"], "Y2E=");
        assert_eq!(cluster["extensions"][0]["extension"]["audience"][1], 1);
        let user = &written["users"][0]["user"];
        assert_eq!(user["client-key-data"], "a2V5", "a secret");
        assert_eq!(user["tokenFile"], "/etc/k/token");
        assert_eq!(user["exec"]["env"][0]["value"], "1");
        assert_eq!(user["exec"]["provideClusterInfo"], true);
    }

    #[test]
    fn no_text_is_an_empty_kubeconfig() {
        assert!(parse(b"", None).unwrap().clusters.is_empty());
        assert!(matches!(parse(b"clusters: 1", None), Err(KubeconfigFileError::Malformed(_))));
        assert!(matches!(parse(b"a: [", None), Err(KubeconfigFileError::Malformed(_))));
    }
}
