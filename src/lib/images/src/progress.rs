//! Detects stalled pulls: CRI shows progress only as usage of the image file system.

use ferrokube_cri::{ImageFsInfoRequest, Runtime};
use std::time::Duration;
use tokio::time::Instant;

/// Max poll interval.
const INTERVAL: Duration = Duration::from_secs(10);

/// Returns once the image file system has not changed for this long.
pub(crate) async fn stalled(runtime: &Runtime, timeout: Duration) {
    let mut last = None;
    let mut since = Instant::now();
    while since.elapsed() < timeout {
        tokio::time::sleep(INTERVAL.min(timeout / 10)).await;
        let used = used(runtime).await;
        if used != last {
            (last, since) = (used, Instant::now());
        }
    }
}

/// Bytes used according to the runtime and to the file system: the runtime does not count partial
/// downloads.
async fn used(runtime: &Runtime) -> Option<(u64, u64)> {
    let info = runtime.image_fs_info(ImageFsInfoRequest {}).await.ok()?;
    let filesystem = info.image_filesystems.first()?;
    let by_runtime = filesystem.used_bytes.as_ref().map_or(0, |bytes| bytes.value);
    let path = filesystem.fs_id.as_ref().map_or("", |id| id.mountpoint.as_str());
    let on_disk = rustix::fs::statvfs(path).map_or(0, |disk| disk.f_blocks - disk.f_bfree);
    Some((by_runtime, on_disk))
}
