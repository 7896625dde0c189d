//! A limit on parallel pulls that the runtime enforces (KEP-3673): CRI has no field for it.
//!
//! The contract:
//! - A runtime that takes the limit lists [`EXTENSION`] as a key of verbose `Status.info`.
//! - The kubelet adds the annotation [`EXTENSION`] to `PullImageRequest.image`: a decimal number;
//!   absent or 0: no limit.
//! - `PullImage` of a present image succeeds immediately. Else, while the number of pulls is not
//!   below the limit, the runtime checks again up to three times, 10 s apart, then fails with
//!   `RESOURCE_EXHAUSTED` and a message that starts with [`TOO_MANY`].
//!
//! A runtime sees pulls of all its clients, and forgets none when the kubelet restarts.

use crate::error::{CallCode, CriError};
use crate::messages::{
    ImageStatusRequest, ImageStatusResponse, PullImageRequest, PullImageResponse,
    RuntimeStatusResponse, path,
};
use crate::runtime::{Runtime, Transport, TransportFuture};
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;

/// Key in `Status.info`, and annotation of an image to pull.
pub const EXTENSION: &str = "ferrokube.dev/max-parallel-image-pulls";
/// Start of the message of a refused pull, and the reason shown on the pod.
pub const TOO_MANY: &str = "TooManyPullingInParallelErr";
/// Checks after the first.
const RETRIES: u32 = 3;
/// Time between two checks.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Whether an error is a runtime's refusal to pull more in parallel.
pub fn is_refusal(error: &CriError) -> bool {
    error.code == CallCode::ResourceExhausted && error.message.starts_with(TOO_MANY)
}

/// The runtime's side of the limit, in front of a runtime that lacks it.
pub struct LimitedRuntime {
    inner: Arc<dyn Transport>,
    runtime: Runtime,
    pulling: Mutex<u32>,
}

impl LimitedRuntime {
    /// In front of `inner`.
    pub fn new(inner: Arc<dyn Transport>) -> Self {
        let runtime = Runtime::new(Arc::clone(&inner));
        Self { inner, runtime, pulling: Mutex::new(0) }
    }

    async fn status(&self, request: Bytes) -> Result<Bytes, CriError> {
        let response = self.inner.call(path::status, request).await?;
        let mut status = RuntimeStatusResponse::decode(response).map_err(damaged)?;
        status.info.insert(EXTENSION.to_owned(), "true".to_owned());
        Ok(status.encode_to_vec().into())
    }

    async fn pull(&self, bytes: Bytes) -> Result<Bytes, CriError> {
        let request = PullImageRequest::decode(bytes.clone()).map_err(damaged)?;
        let spec = request.image.unwrap_or_default();
        let limit = spec.annotations.get(EXTENSION).and_then(|text| text.parse().ok()).unwrap_or(0);
        if limit == 0 {
            return self.inner.call(path::pull_image, bytes).await;
        }
        let lookup = ImageStatusRequest { image: Some(spec), verbose: false };
        let present: ImageStatusResponse = self.runtime.call(path::image_status, lookup).await?;
        if let Some(image) = present.image {
            return Ok(PullImageResponse { image_ref: image.id }.encode_to_vec().into());
        }
        let _slot = self.slot(limit).await?;
        self.inner.call(path::pull_image, bytes).await
    }

    async fn slot(&self, limit: u32) -> Result<PullSlot<'_>, CriError> {
        for retry in 0..=RETRIES {
            if retry > 0 {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            let mut pulling = self.pulling.lock();
            if *pulling < limit {
                *pulling += 1;
                return Ok(PullSlot(&self.pulling));
            }
        }
        let message = format!("{TOO_MANY}: {limit} images are being pulled");
        Err(CriError::new(CallCode::ResourceExhausted, message))
    }
}

/// A pull in progress, counted until dropped.
struct PullSlot<'a>(&'a Mutex<u32>);

impl Drop for PullSlot<'_> {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
    }
}

fn damaged(error: prost::DecodeError) -> CriError {
    CriError::new(CallCode::Internal, error.to_string())
}

impl Transport for LimitedRuntime {
    fn call(&self, method: &'static str, request: Bytes) -> TransportFuture<'_> {
        match method {
            path::status => Box::pin(self.status(request)),
            path::pull_image => Box::pin(self.pull(request)),
            _ => self.inner.call(method, request),
        }
    }
}
