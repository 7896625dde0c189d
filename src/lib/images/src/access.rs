//! Which pods may use an image that is present (KEP-2535): those that have credentials with which
//! it was pulled, and all pods if it was pulled without any, or with those of the node.
//!
//! Kept in a file, so that it outlives the process. Before a pull the file says that it begins: an
//! image whose pull was cut off counts as pulled, not as preloaded.

use crate::reference::without_tag;
use ferrokube_cri::RegistryAuth;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Credentials that are kept for an image; the oldest are dropped.
const MAX_CREDENTIALS: usize = 100;

/// Images that a pod may use only if it may pull them: kubelet's
/// `imagePullCredentialsVerificationPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CredentialVerification {
    /// None.
    Never,
    /// Those that a kubelet has pulled.
    #[default]
    PulledImages,
    /// All but those with these names that no kubelet has pulled. A name that ends with `/*` stands
    /// for all below it.
    AllBut(Vec<String>),
    /// All.
    Always,
}

/// Records of pulled images, and the directory that keeps them.
pub struct ImageAccess {
    verification: CredentialVerification,
    file: PathBuf,
    known: Mutex<KnownPulls>,
    /// Held while the file is written, so that the newest state is written last.
    writing: Mutex<()>,
}

/// Content of the file. Bounded by the images of the node, and by pulls that were cut off.
#[derive(Debug, Default, Serialize, Deserialize)]
struct KnownPulls {
    /// Pulls that have begun and not ended, by full reference.
    pulling: BTreeMap<String, usize>,
    /// By the runtime's reference, then by name without tag and digest.
    pulled: BTreeMap<String, BTreeMap<String, PulledWith>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct PulledWith {
    /// Without credentials of a pod.
    is_open: bool,
    /// Digests, newest last.
    credentials: Vec<String>,
}

impl ImageAccess {
    /// Reads the file if it exists.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(file: PathBuf, verification: CredentialVerification) -> io::Result<Self> {
        let known = match fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => KnownPulls::default(),
            read => serde_json::from_slice(&read?)?,
        };
        Ok(Self { verification, file, known: Mutex::new(known), writing: Mutex::default() })
    }

    /// Whether a pod with these credentials of its own may use an image without pulling it.
    pub(crate) fn permits(&self, image: &str, image_ref: &str, own: &[RegistryAuth]) -> bool {
        let known = self.known.lock();
        let name = without_tag(image);
        match (&self.verification, known.pulled.get(image_ref)) {
            (CredentialVerification::Never, _) => true,
            (_, Some(names)) => names.get(name).is_some_and(|with| {
                with.is_open || own.iter().any(|auth| with.credentials.contains(&digest(auth)))
            }),
            _ if known.pulling.contains_key(image) => false,
            (CredentialVerification::PulledImages, None) => true,
            (CredentialVerification::AllBut(names), None) => {
                names.iter().any(|pattern| is_named(name, pattern))
            }
            (CredentialVerification::Always, None) => false,
        }
    }

    /// Records that a pull begins; it ends when dropped. Blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn begin(self: &Arc<Self>, image: &str) -> io::Result<BegunPull> {
        *self.known.lock().pulling.entry(image.to_owned()).or_default() += 1;
        let begun = BegunPull { access: Arc::clone(self), image: image.to_owned() };
        self.write()?;
        Ok(begun)
    }

    /// Records a pull's success, with the credentials of a pod, or others. Blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn pulled(
        &self,
        begun: BegunPull,
        image_ref: &str,
        own: Option<&RegistryAuth>,
    ) -> io::Result<()> {
        {
            let mut known = self.known.lock();
            let names = known.pulled.entry(image_ref.to_owned()).or_default();
            let with = names.entry(without_tag(&begun.image).to_owned()).or_default();
            match own.map(digest) {
                None => with.is_open = true,
                Some(digest) => {
                    with.credentials.retain(|other| *other != digest);
                    with.credentials.push(digest);
                    let excess = with.credentials.len().saturating_sub(MAX_CREDENTIALS);
                    with.credentials.drain(..excess);
                }
            }
        }
        drop(begun);
        self.write()
    }

    /// Forgets an image that was removed. Blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn removed(&self, image_ref: &str) -> io::Result<()> {
        if self.known.lock().pulled.remove(image_ref).is_none() {
            return Ok(());
        }
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        let _writing = self.writing.lock();
        let text = serde_json::to_vec(&*self.known.lock())?;
        let next = self.file.with_extension("new");
        let mut file =
            OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&next)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&next, &self.file)?;
        let folder = self.file.parent().unwrap_or(Path::new("."));
        fs::File::open(folder)?.sync_all()
    }
}

/// A pull that has begun. After a crash it is still in the file.
pub(crate) struct BegunPull {
    access: Arc<ImageAccess>,
    image: String,
}

impl Drop for BegunPull {
    fn drop(&mut self) {
        let mut known = self.access.known.lock();
        if let Some(count) = known.pulling.get_mut(&self.image) {
            *count -= 1;
            if *count == 0 {
                known.pulling.remove(&self.image);
            }
        }
    }
}

fn is_named(name: &str, pattern: &str) -> bool {
    let below = pattern.strip_suffix('*').filter(|prefix| prefix.ends_with('/'));
    below.map_or(name == pattern, |prefix| name.starts_with(prefix))
}

fn digest(auth: &RegistryAuth) -> String {
    let digest = Sha256::digest(ferrokube_cri::encoded(auth));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth(username: &str) -> RegistryAuth {
        RegistryAuth { username: username.to_owned(), ..RegistryAuth::default() }
    }

    #[test]
    fn images_that_no_kubelet_has_pulled_are_of_all_pods_as_configured() {
        let folder = tempfile::tempdir().unwrap();
        let permits = |verification, image| {
            let access = ImageAccess::open(folder.path().join("a"), verification).unwrap();
            access.permits(image, "id", &[auth("any")])
        };
        let listed = || {
            let names = ["r.io/one", "r.io/all/*"].map(str::to_owned);
            CredentialVerification::AllBut(names.into())
        };
        assert!(permits(CredentialVerification::Never, "r.io/a:v1"));
        assert!(permits(CredentialVerification::PulledImages, "r.io/a:v1"));
        assert!(!permits(CredentialVerification::Always, "r.io/a:v1"));
        for (image, expected) in [
            ("r.io/one:v1", true),
            ("r.io/one/more:v1", false),
            ("r.io/all/a/b@sha256:0", true),
            ("r.io/alles:v1", false),
        ] {
            assert_eq!(permits(listed(), image), expected, "{image}");
        }
    }

    #[test]
    fn what_is_known_outlives_the_process_and_so_does_a_pull_that_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("images.json");
        let open = || Arc::new(ImageAccess::open(file.clone(), Default::default()).unwrap());
        let access = open();
        let begun = access.begin("r.io/a:v1").unwrap();
        assert!(!access.permits("r.io/a:v1", "id", &[auth("one")]));
        assert!(!open().permits("r.io/a:v1", "id", &[]), "as after kill -9");
        access.pulled(begun, "id", Some(&auth("one"))).unwrap();
        let access = open();
        assert!(access.permits("r.io/a:v2", "id", &[auth("two"), auth("one")]), "any tag");
        assert!(!access.permits("r.io/a:v1", "id", &[auth("two")]));
        assert!(!access.permits("r.io/b:v1", "id", &[auth("one")]), "of another registry");
        let begun = access.begin("r.io/b:v1").unwrap();
        access.pulled(begun, "id", None).unwrap();
        assert!(access.permits("r.io/b:v1", "id", &[]) && !access.permits("r.io/a:v1", "id", &[]));
        access.removed("id").unwrap();
        assert!(open().permits("r.io/a:v1", "id", &[]), "loaded by other means since");
        let failed = access.begin("r.io/c:v1").unwrap();
        drop(failed);
        assert!(access.permits("r.io/c:v1", "id", &[]));
        fs::write(&file, "{").unwrap();
        assert!(ImageAccess::open(file, CredentialVerification::default()).is_err());
    }

    #[test]
    fn credentials_of_an_image_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let access = ImageAccess::open(folder.path().join("a"), Default::default()).unwrap();
        let access = Arc::new(access);
        for number in 0..=MAX_CREDENTIALS {
            let begun = access.begin("r.io/a:v1").unwrap();
            access.pulled(begun, "id", Some(&auth(&number.to_string()))).unwrap();
        }
        assert!(!access.permits("r.io/a:v1", "id", &[auth("0")]));
        assert!(access.permits("r.io/a:v1", "id", &[auth("1")]));
    }
}
