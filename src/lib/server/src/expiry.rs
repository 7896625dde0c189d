//! Warns of certificates in files before they expire, in the log and by a metric. Those that the
//! server issues itself are renewed in time and need no attention.

use crate::config::{AggregationConfig, ListenerConfig};
use crate::data_dir::DataDir;
use ferrokube_pki::{Ca, CertificateFacts, Validity, files};
use ferrokube_serve::Shutdown;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Interval of checks.
const PERIOD: Duration = Duration::from_secs(3600);
/// Checks from one log line about a certificate to the next: a day.
const QUIET_CHECKS: u32 = 24;

type FileLabels = [(&'static str, String); 1];

/// The certificate files of a server.
#[derive(Clone, Debug)]
pub(crate) struct ExpiryWatch {
    files: Vec<PathBuf>,
    ends: Family<FileLabels, Gauge>,
}

impl ExpiryWatch {
    pub(crate) fn new(
        directory: &DataDir,
        listener: &ListenerConfig,
        aggregation: &AggregationConfig,
    ) -> Self {
        let own = Ca::ALL.map(|ca| directory.join("pki").join(format!("{}.crt", ca.name())));
        let of_the_user = [
            listener.files.serving.as_ref().map(|(chain, _)| chain),
            listener.files.client_ca.as_ref(),
            listener.files.proxy_ca.as_ref(),
            aggregation.client_certificate.as_ref().map(|(chain, _)| chain),
        ];
        let files = own.into_iter().chain(of_the_user.into_iter().flatten().cloned()).collect();
        Self { files, ends: Family::default() }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "ferrokube_certificate_expiration_timestamp_seconds",
            "When the first certificate of a file expires",
            self.ends.clone(),
        );
    }

    /// Checks at once and hourly until shutdown.
    pub(crate) async fn watch(self, shutdown: Shutdown) {
        let mut logged = vec![(Validity::Valid, 0); self.files.len()];
        loop {
            let now = SystemTime::now();
            for (path, (before, checks)) in self.files.iter().zip(&mut logged) {
                let validity = self.check(path, now);
                *checks = if validity == *before { *checks + 1 } else { 0 };
                *before = validity;
                if *checks % QUIET_CHECKS == 0 {
                    warn(path, validity);
                }
            }
            tokio::select! {
                () = shutdown.begun() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }

    /// The worst validity of a file's certificates; sets the metric. Unreadable files are reported
    /// by their users.
    fn check(&self, path: &Path, now: SystemTime) -> Validity {
        let pem = files::read_regular(path).ok().flatten().unwrap_or_default();
        let Ok(all) = CertificateFacts::read_all(&pem) else { return Validity::Valid };
        let first = all.iter().map(|facts| facts.not_after).min().unwrap_or(now);
        let seconds = first.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let labels = [("file", path.display().to_string())];
        self.ends.get_or_create(&labels).set(i64::try_from(seconds).unwrap_or(i64::MAX));
        all.iter().map(|facts| facts.validity(now)).max().unwrap_or(Validity::Valid)
    }
}

fn warn(path: &Path, validity: Validity) {
    let file = path.display();
    match validity {
        Validity::Valid => {}
        Validity::ExpiresSoon => tracing::warn!(%file, "a certificate expires soon"),
        Validity::NotYetValid => tracing::warn!(%file, "a certificate is not yet valid"),
        Validity::Expired => tracing::error!(%file, "a certificate has expired"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_pki::Pki;

    #[test]
    fn the_metric_names_the_first_end_and_broken_files_are_left_to_their_users() {
        let folder = tempfile::tempdir().unwrap();
        let directory = DataDir::open(Some(folder.path().join("data").as_path())).unwrap();
        let pki = Pki::open(&directory.join("pki")).unwrap();
        let serving = pki.with_lifetime(Duration::from_secs(1000)).serving(&["a".into()]).unwrap();
        let chain = folder.path().join("chain.crt");
        let ca = std::fs::read_to_string(directory.join("pki/ca.crt")).unwrap();
        std::fs::write(&chain, format!("{}{ca}", serving.chain_pem)).unwrap();
        let broken = folder.path().join("broken.crt");
        std::fs::write(&broken, &serving.chain_pem[..80]).unwrap();
        let mut listener = ListenerConfig::default();
        listener.files.serving = Some((chain.clone(), folder.path().join("key")));
        listener.files.client_ca = Some(broken.clone());
        let watch = ExpiryWatch::new(&directory, &listener, &AggregationConfig::default());
        assert_eq!(watch.files.len(), 5);
        let now = SystemTime::now();
        assert_eq!(watch.check(&chain, now), Validity::Valid);
        assert_eq!(watch.check(&chain, now + Duration::from_secs(900)), Validity::ExpiresSoon);
        assert_eq!(watch.check(&chain, now + Duration::from_secs(1100)), Validity::Expired);
        assert_eq!(watch.check(&broken, now), Validity::Valid);
        let mut registry = Registry::default();
        watch.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let end = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + 1000;
        let line = text.lines().find(|line| line.contains("chain.crt")).unwrap();
        let shown: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(shown.abs_diff(end) < 60, "{line}");
        assert!(!text.contains("broken.crt"), "{text}");
    }
}
