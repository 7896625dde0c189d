//! Replacement of certificates at run time: new connections use the new ones, existing connections
//! are kept.

use crate::connection::{EtcdTls, EtcdTlsSource};
use crate::shared::EtcdShared;

use std::sync::Arc;
use std::time::Duration;

/// Poll interval of the files.
const INTERVAL: Duration = Duration::from_secs(1);

/// Follows the certificate source. Unusable certificates are logged once and not applied.
pub(crate) async fn run(shared: Arc<EtcdShared>, source: EtcdTlsSource, mut used: EtcdTls) {
    let mut named = None;
    loop {
        tokio::time::sleep(INTERVAL).await;
        let read = Arc::clone(&source);
        let Ok(read) = tokio::task::spawn_blocking(move || read()).await else { return };
        if read.as_ref().is_ok_and(|tls| *tls == used) {
            named = None;
            continue;
        }
        let renewed = read.and_then(|tls| {
            shared.connection.renew(&tls).map_err(|error| error.to_string())?;
            Ok(tls)
        });
        match renewed {
            Ok(tls) => {
                tracing::info!("new connections to etcd use new certificates");
                (used, named) = (tls, None);
            }
            Err(why) if named.as_ref() != Some(&why) => {
                tracing::warn!(why, "the new certificates for etcd cannot be used");
                named = Some(why);
            }
            Err(_) => {}
        }
    }
}
