//! Images of the fake runtime.

use super::{FakeRuntime, decoded, encoded};
use crate::error::CriError;
use crate::messages::{
    FilesystemIdentifier, FilesystemUsage, ImageFsInfoResponse, ImageStatusRequest,
    ImageStatusResponse, ImageSummary, ListImagesResponse, PullImageRequest, PullImageResponse,
    RegistryAuth, RemoveImageRequest, RemoveImageResponse, UInt64Value, path,
};
use bytes::Bytes;
use ferrokube_trace::TraceContext;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of a pulled image.
const IMAGE_BYTES: u64 = 20 << 20;

/// Course of a pull.
#[derive(Clone, Debug)]
pub enum PullScript {
    /// Succeeds after this time.
    Takes(Duration),
    /// Fails after a second.
    Fails(CriError),
    /// Ends when [`FakeRuntime::release`] is called.
    Waits,
    /// Never ends; bytes arrive each second.
    Trickles,
}

impl Default for PullScript {
    fn default() -> Self {
        Self::Takes(Duration::from_secs(1))
    }
}

/// A pull that was called.
#[derive(Clone, Debug)]
pub struct PullRecord {
    /// The reference.
    pub image: String,
    /// Credentials.
    pub auth: Option<RegistryAuth>,
    /// Annotations of the image.
    pub annotations: BTreeMap<String, String>,
    /// Ids that came along.
    pub context: Option<TraceContext>,
    /// When it began.
    pub begun: Instant,
    /// When it ended: finished, failed or cancelled.
    pub ended: Option<Instant>,
    /// Whether it was cancelled by the caller.
    pub cancelled: bool,
    released: bool,
}

impl FakeRuntime {
    /// Makes an image present.
    pub fn add_image(&self, image: &str) {
        self.state.lock().images.insert(image.to_owned(), IMAGE_BYTES);
    }

    /// Names of the images that are present.
    pub fn images(&self) -> Vec<String> {
        self.state.lock().images.keys().cloned().collect()
    }

    /// Scripted outcomes of pulls of this image.
    pub fn script(&self, image: &str, script: PullScript) {
        self.state.lock().scripts.insert(image.to_owned(), script);
    }

    /// Scripted outcome of pulls of other images; default: success after a second.
    pub fn script_all(&self, script: PullScript) {
        self.state.lock().default_script = script;
    }

    /// Ends the pulls of an image that wait.
    pub fn release(&self, image: &str) {
        for pull in self.state.lock().pulls.iter_mut().filter(|pull| pull.image == image) {
            pull.released = true;
        }
        self.changed();
    }

    /// All pulls, in the order of their calls.
    pub fn pulls(&self) -> Vec<PullRecord> {
        self.state.lock().pulls.clone()
    }

    /// References in the order of the calls.
    pub fn pulled(&self) -> Vec<String> {
        self.pulls().into_iter().map(|pull| pull.image).collect()
    }

    /// Pulls in progress now.
    pub fn in_flight(&self) -> usize {
        self.state.lock().pulls.iter().filter(|pull| pull.ended.is_none()).count()
    }

    /// Largest number of pulls that were in progress at once.
    pub fn most_in_flight(&self) -> usize {
        let pulls = self.pulls();
        let at = |time: Instant| {
            let is_running = |pull: &&PullRecord| {
                pull.begun <= time && pull.ended.is_none_or(|ended| ended > time)
            };
            pulls.iter().filter(is_running).count()
        };
        pulls.iter().map(|pull| at(pull.begun)).max().unwrap_or(0)
    }

    pub(super) async fn image_call(
        &self,
        method: &'static str,
        request: &Bytes,
    ) -> Result<Bytes, CriError> {
        match method {
            path::pull_image => self.pull(decoded(request)?).await,
            path::image_status => {
                let request: ImageStatusRequest = decoded(request)?;
                let image = request.image.unwrap_or_default().image;
                let size = self.state.lock().images.get(&image).copied();
                let image = size.map(|size| summary(&image, size));
                Ok(encoded(&ImageStatusResponse { image, ..ImageStatusResponse::default() }))
            }
            path::list_images => {
                let state = self.state.lock();
                let images = state.images.iter().map(|(name, size)| summary(name, *size));
                Ok(encoded(&ListImagesResponse { images: images.collect() }))
            }
            path::remove_image => {
                let request: RemoveImageRequest = decoded(request)?;
                let image = request.image.unwrap_or_default().image;
                let image = image.strip_prefix("sha256:").unwrap_or(&image).to_owned();
                self.state.lock().images.remove(&image);
                Ok(encoded(&RemoveImageResponse {}))
            }
            _ => {
                let usage = FilesystemUsage {
                    fs_id: Some(FilesystemIdentifier { mountpoint: String::new() }),
                    used_bytes: Some(UInt64Value { value: self.state.lock().pulled_bytes }),
                    ..FilesystemUsage::default()
                };
                let image_filesystems = vec![usage];
                let container_filesystems = Vec::new();
                Ok(encoded(&ImageFsInfoResponse { image_filesystems, container_filesystems }))
            }
        }
    }

    async fn pull(&self, request: PullImageRequest) -> Result<Bytes, CriError> {
        let spec = request.image.unwrap_or_default();
        let (index, script) = {
            let mut state = self.state.lock();
            state.pulls.push(PullRecord {
                image: spec.image.clone(),
                auth: request.auth,
                annotations: spec.annotations,
                context: ferrokube_trace::current(),
                begun: Instant::now(),
                ended: None,
                cancelled: false,
                released: false,
            });
            let script = state.scripts.get(&spec.image).unwrap_or(&state.default_script).clone();
            (state.pulls.len() - 1, script)
        };
        self.changed();
        let mut running = RunningPull { runtime: self, index, is_over: false };
        let outcome = match script {
            PullScript::Takes(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            PullScript::Fails(error) => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Err(error)
            }
            PullScript::Waits => {
                self.until(|runtime| runtime.state.lock().pulls[index].released).await;
                Ok(())
            }
            PullScript::Trickles => loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                self.state.lock().pulled_bytes += 1;
            },
        };
        running.is_over = true;
        drop(running);
        outcome?;
        self.state.lock().images.insert(spec.image.clone(), IMAGE_BYTES);
        self.changed();
        Ok(encoded(&PullImageResponse { image_ref: format!("sha256:{}", spec.image) }))
    }
}

fn summary(image: &str, size: u64) -> ImageSummary {
    ImageSummary {
        id: format!("sha256:{image}"),
        repo_tags: vec![image.to_owned()],
        size,
        ..ImageSummary::default()
    }
}

/// Ends the record of a pull, also of one whose call was dropped.
struct RunningPull<'a> {
    runtime: &'a FakeRuntime,
    index: usize,
    is_over: bool,
}

impl Drop for RunningPull<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.runtime.state.lock();
            let pull = &mut state.pulls[self.index];
            pull.ended = Some(Instant::now());
            pull.cancelled = !self.is_over;
        }
        self.runtime.changed();
    }
}
