//! The certificates in files and in a data directory, for people and for checks. Reads only, never
//! waits, and accepts any content.

use crate::certificate::CertificateFacts;
use crate::files;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fs;
use std::path::{Path, PathBuf};

/// Max files read in a directory; others are skipped.
const MAX_FILES: usize = 256;

/// A certificate in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCertificate {
    /// The file.
    pub path: PathBuf,
    /// Facts of the certificate, or the error of reading them.
    pub facts: Result<CertificateFacts, String>,
}

/// The certificates of a data directory: of its CAs and its kubeconfigs, ordered by file name.
pub fn in_data_dir(directory: &Path) -> Vec<FoundCertificate> {
    let mut found = Vec::new();
    for (folder, ending) in [(directory.join("pki"), "crt"), (directory.to_owned(), "kubeconfig")] {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|is| is == ending))
            .take(MAX_FILES)
            .collect();
        paths.sort();
        found.extend(paths.iter().flat_map(|path| in_file(path)));
    }
    found
}

/// The certificates of a file: PEM, or a kubeconfig with them in it.
pub fn in_file(path: &Path) -> Vec<FoundCertificate> {
    let one = |facts| FoundCertificate { path: path.to_owned(), facts };
    let text = match files::read_regular(path) {
        Ok(Some(text)) => text,
        Ok(None) => return vec![one(Err("does not exist".to_owned()))],
        Err(error) => return vec![one(Err(chain(&error)))],
    };
    match CertificateFacts::read_all(&pem_of(text)) {
        Ok(all) => all.into_iter().map(|facts| one(Ok(facts))).collect(),
        Err(error) => vec![one(Err(error.to_string()))],
    }
}

/// PEM as it is; of a kubeconfig its CAs and client certificates.
fn pem_of(text: Vec<u8>) -> Vec<u8> {
    let readable = String::from_utf8_lossy(&text);
    let mut pem = Vec::new();
    for line in readable.lines() {
        let data = ["certificate-authority-data:", "client-certificate-data:"]
            .iter()
            .find_map(|name| line.trim_start_matches(['-', ' ', '\t']).strip_prefix(name));
        let Some(data) = data else { continue };
        let data = data.trim_matches([' ', '"', '\'', '\r']);
        pem.extend(STANDARD.decode(data).unwrap_or_default());
        pem.push(b'\n');
    }
    if pem.is_empty() { text } else { pem }
}

/// The error with its causes, but for those that it quotes itself.
fn chain(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    match error.source().map(chain) {
        Some(causes) if !text.contains(&causes) => format!("{text}: {causes}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig::Kubeconfig;
    use crate::{ADMIN, ADMIN_LIFETIME, Pki};

    #[test]
    fn a_data_directory_is_listed_whatever_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert_eq!(in_data_dir(&path("none")), []);
        let pki = Pki::open(&path("pki")).unwrap();
        let client = pki.client(&ADMIN, ADMIN_LIFETIME).unwrap();
        Kubeconfig {
            server: "https://127.0.0.1:6443",
            cluster: "c",
            user: "u",
            ca_pem: pki.ca_pem(),
            client: &client,
        }
        .write(&path("admin.kubeconfig"))
        .unwrap();
        let list = || {
            let all = in_data_dir(folder.path());
            let shown = all.into_iter().map(|found| {
                let name = found.path.file_name().unwrap().to_string_lossy().into_owned();
                let what = found.facts.map_or_else(|why| why, |facts| facts.subject);
                format!("{name}: {what}")
            });
            shown.collect::<Vec<_>>()
        };
        let whole = [
            "ca.crt: CN=ferrokube-ca",
            "client-ca.crt: CN=ferrokube-client-ca",
            "front-proxy-ca.crt: CN=ferrokube-front-proxy-ca",
            "admin.kubeconfig: CN=ferrokube-ca",
            "admin.kubeconfig: O=system:masters, CN=kubernetes-admin",
        ];
        assert_eq!(list(), whole);
        fs::write(path("pki/half.crt"), &client.chain_pem[..99]).unwrap();
        fs::create_dir(path("pki/zz.crt")).unwrap();
        fs::write(path("z.kubeconfig"), "client-certificate-data: %%%").unwrap();
        let hostile = list();
        assert_eq!(hostile[3], "half.crt: contains a block that is no certificate");
        assert!(hostile[4].ends_with("zz.crt is not a regular file"), "{hostile:?}");
        assert_eq!(hostile[7], "z.kubeconfig: contains no certificate in PEM");
    }
}
