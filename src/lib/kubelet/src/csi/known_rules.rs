//! CSIDriver objects of a node's drivers, read as seldom as possible: all nodes of a cluster do.

use super::rules::DriverRules;
use crate::objects::{PodObjectError, PodObjects};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Age from which rules are read again.
const FRESH: Duration = Duration::from_secs(60);
/// Age at which those that no volume needs are forgotten, which bounds their number.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// The rules of drivers by name, as they were read last.
#[derive(Default)]
pub(super) struct KnownRules(Mutex<BTreeMap<String, (Instant, DriverRules)>>);

impl KnownRules {
    /// The rules of a driver as they are now.
    ///
    /// # Errors
    /// The object cannot be read.
    pub(super) async fn read(
        &self,
        objects: &dyn PodObjects,
        driver: &str,
    ) -> Result<DriverRules, PodObjectError> {
        let rules = DriverRules::of(objects.csi_driver(driver).await?);
        let mut known = self.0.lock();
        known.retain(|_, (at, _)| at.elapsed() < FORGOTTEN);
        known.insert(driver.to_owned(), (Instant::now(), rules.clone()));
        Ok(rules)
    }

    /// The rules of a driver with mounted volumes, at most a minute old; older without an API
    /// server, and `None` if they were never read.
    pub(super) async fn recent(
        &self,
        objects: &dyn PodObjects,
        driver: &str,
    ) -> Option<DriverRules> {
        let known = self.0.lock().get(driver).cloned();
        if let Some((at, rules)) = &known
            && at.elapsed() < FRESH
        {
            return Some(rules.clone());
        }
        let read = self.read(objects, driver).await;
        let read = read.inspect_err(|error| {
            tracing::debug!(driver, %error, "cannot read the object of a CSI driver");
        });
        read.ok().or(known.map(|(_, rules)| rules))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::ObjectFuture;
    use k8s_openapi::api::storage::v1::CSIDriver;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[derive(Default)]
    struct CountedObjects {
        reads: AtomicUsize,
        is_away: AtomicBool,
    }

    impl PodObjects for CountedObjects {
        fn csi_driver<'a>(&'a self, _: &'a str) -> ObjectFuture<'a, CSIDriver> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let read = match self.is_away.load(Ordering::Relaxed) {
                true => Err(PodObjectError::Invalid("away".to_owned())),
                false => Ok(None),
            };
            Box::pin(std::future::ready(read))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn volumes_of_a_driver_share_one_read_a_minute_and_its_last_result() {
        let (known, objects) = (KnownRules::default(), CountedObjects::default());
        let reads = || objects.reads.load(Ordering::Relaxed);
        objects.is_away.store(true, Ordering::Relaxed);
        assert_eq!(known.recent(&objects, "d").await, None);
        objects.is_away.store(false, Ordering::Relaxed);
        for _ in 0..3 {
            assert_eq!(known.recent(&objects, "d").await, Some(DriverRules::of(None)));
        }
        assert_eq!(reads(), 2);
        known.read(&objects, "d").await.unwrap();
        assert_eq!(reads(), 3, "for a volume that is not mounted");
        tokio::time::advance(FRESH).await;
        objects.is_away.store(true, Ordering::Relaxed);
        assert_eq!(known.recent(&objects, "d").await, Some(DriverRules::of(None)));
        assert_eq!(reads(), 4);
    }
}
