//! The cluster and its highest revision, in a file: known also after a restart.
//!
//! An etcd that is restored from an older backup reuses revisions that clients have seen with
//! other contents. While a server runs, `connection.rs` notices that. The file lets the next start
//! notice it, too. It is written once a second, without syncs: after a power cut an older one does
//! no harm.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(1);

/// State of etcd as a server has seen it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remembered {
    /// Cluster id; 0: none yet.
    pub(crate) cluster: u64,
    /// Highest revision.
    pub(crate) revision: i64,
}

impl Remembered {
    fn parse(text: &str) -> Option<Self> {
        let (cluster, revision) =
            text.strip_prefix("cluster ")?.trim_end().split_once(" revision ")?;
        let cluster = u64::from_str_radix(cluster, 16).ok()?;
        Some(Self { cluster, revision: revision.parse().ok()? })
    }

    fn text(self) -> String {
        format!("cluster {:x} revision {}\n", self.cluster, self.revision)
    }

    /// The default if the file is missing, or empty after a power cut.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        if text.trim_matches(['\0', '\n']).is_empty() {
            return Ok(Self::default());
        }
        Self::parse(&text).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it is malformed"))
    }

    /// Replaces the file.
    pub(crate) fn write(self, path: &Path) -> io::Result<()> {
        let next = path.with_extension("next");
        std::fs::write(&next, self.text())?;
        std::fs::rename(next, path)
    }
}

/// Keeps the file current with `seen`.
pub(crate) async fn run(path: PathBuf, seen: impl Fn() -> Remembered + Send) {
    let (mut written, mut is_failing) = (seen(), false);
    loop {
        tokio::time::sleep(INTERVAL).await;
        let seen = seen();
        if seen == written {
            continue;
        }
        let target = path.clone();
        let outcome = tokio::task::spawn_blocking(move || seen.write(&target)).await;
        match outcome.map_err(io::Error::other).and_then(|outcome| outcome) {
            Ok(()) => (written, is_failing) = (seen, false),
            Err(error) if !is_failing => {
                is_failing = true;
                let path = path.display();
                tracing::warn!(%path, %error, "cannot note etcd's revision: a restart forgets it");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_revision_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etcd-revision");
        assert_eq!(Remembered::read(&path).unwrap(), Remembered::default());
        let seen = Remembered { cluster: u64::MAX, revision: i64::MAX };
        seen.write(&path).unwrap();
        assert_eq!(Remembered::read(&path).unwrap(), seen);
        for (text, is_nothing) in
            [("", true), ("\0\0\0", true), ("cluster", false), ("cluster x revision 1", false)]
        {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Remembered::read(&path).is_ok(), is_nothing, "{text:?}");
        }
    }
}
