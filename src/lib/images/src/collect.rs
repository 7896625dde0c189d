//! Garbage collection of unused images, least recently used first, with kubelet's order and
//! thresholds.

use crate::manager::ImageManager;
use ferrokube_cri::{CriError, ImageSpec, ImageSummary, ListImagesRequest, RemoveImageRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// When images are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageCollection {
    /// Disk usage in percent above which images are removed.
    pub high_percent: u8,
    /// Disk usage in percent at which removal stops.
    pub low_percent: u8,
    /// Minimum time since an image was first seen before it may be removed.
    pub least_age: Duration,
    /// Idle time after which an image is removed regardless of disk usage; `None`: never.
    pub longest_unused: Option<Duration>,
}

impl ImageCollection {
    /// Bytes to free on a file system with this capacity and availability; `None`: none.
    pub fn excess(&self, capacity: u64, available: u64) -> Option<u64> {
        let used = capacity.saturating_sub(available);
        let is_full =
            u128::from(used) * 100 >= u128::from(capacity) * u128::from(self.high_percent);
        let room = u128::from(capacity) * u128::from(100 - self.low_percent.min(100)) / 100;
        let room = u64::try_from(room).unwrap_or(u64::MAX);
        (capacity > 0 && is_full).then(|| room.saturating_sub(available))
    }
}

/// Known state of an image.
#[derive(Clone, Copy)]
struct TrackedImage {
    first: Instant,
    used: Option<Instant>,
}

/// Tracks when images were last used. Bounded by the images of the node.
pub struct ImageCollector {
    images: ImageManager,
    policy: ImageCollection,
    seen: BTreeMap<String, TrackedImage>,
}

impl ImageCollector {
    /// Collects the images of this manager.
    pub fn new(images: ImageManager, policy: ImageCollection) -> Self {
        Self { images, policy, seen: BTreeMap::new() }
    }

    /// Scans the images. `in_use` has the references of containers, in any form.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn scan(&mut self, in_use: &BTreeSet<String>) -> Result<Vec<UnusedImage>, CriError> {
        let now = Instant::now();
        let all = self.images.runtime().list_images(ListImagesRequest::default()).await?.images;
        let ids: BTreeSet<&str> = all.iter().map(|image| &*image.id).collect();
        self.seen.retain(|id, _| ids.contains(&**id));
        let mut unused = Vec::new();
        for image in &all {
            let seen = self.seen.entry(image.id.clone());
            let seen = seen.or_insert(TrackedImage { first: now, used: None });
            if is_used(image, in_use) {
                seen.used = Some(now);
            } else if !image.pinned {
                let TrackedImage { first, used } = *seen;
                unused.push(UnusedImage { id: image.id.clone(), size: image.size, first, used });
            }
        }
        unused.sort_by_key(|image| (image.used, image.first));
        Ok(unused)
    }

    /// Removes images that were unused for too long.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn remove_old(&mut self, in_use: &BTreeSet<String>) -> Result<(), CriError> {
        let unused = self.scan(in_use).await?;
        let Some(longest) = self.policy.longest_unused else { return Ok(()) };
        for image in unused {
            if image.used.unwrap_or(image.first).elapsed() > longest {
                self.remove(&image).await?;
            }
        }
        Ok(())
    }

    /// Removes images until at least these bytes were freed. Returns the bytes freed.
    ///
    /// # Errors
    /// The runtime's, from the list. Failures to remove an image are only logged.
    pub async fn free(&mut self, in_use: &BTreeSet<String>, bytes: u64) -> Result<u64, CriError> {
        let mut freed: u64 = 0;
        for image in self.scan(in_use).await? {
            if freed >= bytes {
                break;
            }
            // A new image belongs to a pod that is about to start.
            if image.first.elapsed() < self.policy.least_age {
                continue;
            }
            match self.remove(&image).await {
                Ok(()) => freed = freed.saturating_add(image.size),
                Err(error) => tracing::warn!(image = image.id, %error, "cannot remove an image"),
            }
        }
        Ok(freed)
    }

    async fn remove(&mut self, image: &UnusedImage) -> Result<(), CriError> {
        tracing::info!(image = image.id, bytes = image.size, "removing an unused image");
        let spec = ImageSpec { image: image.id.clone(), ..ImageSpec::default() };
        self.images.runtime().remove_image(RemoveImageRequest { image: Some(spec) }).await?;
        self.seen.remove(&image.id);
        self.images.forget(&image.id).await;
        Ok(())
    }
}

/// An image without a container.
#[derive(Debug)]
pub struct UnusedImage {
    id: String,
    size: u64,
    first: Instant,
    used: Option<Instant>,
}

fn is_used(image: &ImageSummary, in_use: &BTreeSet<String>) -> bool {
    let names = image.repo_tags.iter().chain(&image.repo_digests);
    in_use.contains(&image.id) || names.into_iter().any(|name| in_use.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_to_free_follow_from_the_two_percentages() {
        let policy = ImageCollection {
            high_percent: 85,
            low_percent: 80,
            least_age: Duration::ZERO,
            longest_unused: None,
        };
        assert_eq!(policy.excess(1000, 151), None);
        assert_eq!(policy.excess(1000, 150), Some(50));
        assert_eq!(policy.excess(1000, 0), Some(200));
        assert_eq!(policy.excess(0, 0), None, "unknown");
        assert_eq!(policy.excess(u64::MAX, 0), Some(u64::MAX / 5));
    }
}
