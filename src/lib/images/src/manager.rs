//! Ensures that a container's image is present.

use crate::access::ImageAccess;
use crate::backoff::PullBackoff;
use crate::flights::{FlightState, Flights, PullFailure, Pulled, in_background};
use crate::metrics::PullMetrics;
use crate::reference::with_default_tag;
use ferrokube_cri::limit::{EXTENSION, TOO_MANY, is_refusal};
use ferrokube_cri::{
    CriError, ImageSpec, ImageStatusRequest, PodSandboxConfig, RegistryAuth, Runtime,
    RuntimeStatusRequest,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Interval between progress events of a pull.
const PROGRESS_EVENTS: Duration = Duration::from_secs(30);

/// Limits of pulls.
#[derive(Clone, Copy, Debug)]
pub struct PullConfig {
    /// One pull at a time, regardless of `max_parallel`.
    pub is_serial: bool,
    /// One pull at a time while the feature gate of `max_parallel` is off.
    pub is_serial_without_limit: bool,
    /// Max concurrent pulls; `None` or 0: no limit.
    pub max_parallel: Option<u32>,
    /// Pulls per second; 0: no limit.
    pub registry_qps: u32,
    /// Burst above the rate.
    pub registry_burst: u32,
    /// Time without progress after which a pull is cancelled.
    pub progress_timeout: Duration,
}

impl PullConfig {
    pub(crate) fn limit(&self) -> Option<u32> {
        self.max_parallel.filter(|limit| *limit > 0)
    }
}

impl Default for PullConfig {
    fn default() -> Self {
        Self {
            is_serial: true,
            is_serial_without_limit: false,
            max_parallel: None,
            registry_qps: 5,
            registry_burst: 10,
            progress_timeout: Duration::from_secs(600),
        }
    }
}

/// A container's `imagePullPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Contacts the registry each time.
    Always,
    /// Pulls only missing images.
    IfNotPresent,
    /// Never pulls.
    Never,
}

/// The pod that needs an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Namespace of the pod and its events.
    pub namespace: String,
    /// Name within the namespace.
    pub name: String,
    /// Distinguishes it from an earlier pod with the same name.
    pub uid: String,
}

/// An image that a container needs.
#[derive(Clone)]
pub struct PullRequest {
    /// The pod on which events are reported.
    pub pod: PodIdentity,
    /// Path of the container in it, for events: `spec.containers{main}`.
    pub field: String,
    /// The image as named in the container.
    pub image: String,
    /// The container's policy.
    pub policy: PullPolicy,
    /// Tried in order; empty: anonymous.
    pub credentials: Vec<RegistryAuth>,
    /// How many of them are the pod's own, in front; others are the node's, for all its pods.
    pub own_credentials: usize,
    /// Config of the pod's sandbox.
    pub sandbox: Option<PodSandboxConfig>,
    /// Handler of the pod's runtime class.
    pub runtime_handler: String,
    /// The pod's annotations, passed along with the image.
    pub annotations: BTreeMap<String, String>,
}

impl PullRequest {
    pub(crate) fn own(&self) -> &[RegistryAuth] {
        self.credentials.get(..self.own_credentials).unwrap_or(&self.credentials)
    }
}

/// Why there is no image: the waiting container's reason and message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct PullError {
    /// `ErrImagePull`, `ImagePullBackOff`, `TooManyPullingInParallelErr`, ...
    pub reason: &'static str,
    /// Details.
    pub message: String,
}

/// An event to report on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullEvent {
    /// Type `Warning`, else `Normal`.
    pub is_warning: bool,
    /// kubelet's word: `Pulling`, `Pulled`, `Failed`, `BackOff`, ...
    pub reason: &'static str,
    /// kubelet's message.
    pub message: String,
    /// Path of the container in the pod; empty if it is about the pod.
    pub field: String,
}

/// Receives events. Must not block.
pub trait PullEvents: Send + Sync {
    /// Reports an event about a pod.
    fn report(&self, pod: &PodIdentity, event: PullEvent);
}

/// Pulls images for the pods of a node. Cheap to clone.
#[derive(Clone)]
pub struct ImageManager {
    flights: Arc<Flights>,
    backoff: Arc<PullBackoff>,
    events: Arc<dyn PullEvents>,
}

impl ImageManager {
    /// Creates a manager for a runtime; call [`Self::learn_capabilities`] next.
    pub fn new(
        runtime: Runtime,
        config: PullConfig,
        events: Arc<dyn PullEvents>,
        metrics: Arc<PullMetrics>,
    ) -> Self {
        let flights = Arc::new(Flights::new(runtime, config, metrics));
        Self { flights, backoff: Arc::default(), events }
    }

    /// Applies `max_parallel` only while a feature gate is on; otherwise it counts as unset. Call
    /// it before the first pull.
    #[must_use]
    pub fn limited_by(mut self, gate: Arc<AtomicBool>) -> Self {
        self.flights = Arc::new(self.flights.renewed(Some(gate), self.flights.access.clone()));
        self
    }

    /// Lets pods use present images only as this says; otherwise any pod may. Call it before the
    /// first pull.
    #[must_use]
    pub fn accessed_by(mut self, access: ImageAccess) -> Self {
        self.flights =
            Arc::new(self.flights.renewed(self.flights.gate.clone(), Some(Arc::new(access))));
        self
    }

    /// Forgets who may use an image that was removed.
    pub(crate) async fn forget(&self, image_ref: &str) {
        let Some(access) = self.flights.access.clone() else { return };
        let image_ref = image_ref.to_owned();
        if let Err(error) = in_background(move || access.removed(&image_ref)).await {
            tracing::warn!(%error, "cannot record the removal of an image");
        }
    }

    /// Queries whether the runtime enforces the limit itself. Call it at start and whenever the
    /// runtime may have changed; running flights are not affected.
    ///
    /// # Errors
    /// The runtime's; the previous result is kept.
    pub async fn learn_capabilities(&self) -> Result<bool, CriError> {
        let runtime = self.flights.runtime.within(Some(Duration::from_secs(120)));
        let status = runtime.status(RuntimeStatusRequest { verbose: true }).await?;
        let is_offered = status.info.contains_key(EXTENSION);
        if self.flights.is_offered.swap(is_offered, Ordering::Relaxed) != is_offered {
            tracing::info!(is_offered, "the runtime's own limit of parallel image pulls");
        }
        Ok(is_offered)
    }

    /// The image service, for short calls.
    pub fn runtime(&self) -> Runtime {
        self.flights.runtime.within(Some(Duration::from_secs(120)))
    }

    /// Whether [`Self::ensure`] needs the pod's credentials: to pull the image, or to use it. True
    /// if unknown.
    pub async fn needs_credentials(&self, request: &PullRequest) -> bool {
        let Ok(image) = with_default_tag(&request.image) else { return false };
        if request.policy == PullPolicy::Always {
            return true;
        }
        match self.image_ref(&image, request).await {
            Ok(Some(image_ref)) => !self.flights.permits(&image, &image_ref, &[]),
            _ => request.policy == PullPolicy::IfNotPresent,
        }
    }

    /// Ensures that the image is present. Returns the runtime's reference to it.
    ///
    /// Dropping the future leaves the queue, and cancels the pull if no other pod needs it.
    ///
    /// # Errors
    /// [`PullError`]. The caller may retry at any time: failures back off here.
    pub async fn ensure(&self, request: &PullRequest) -> Result<String, PullError> {
        let policy = match request.policy {
            PullPolicy::Always => "always",
            PullPolicy::IfNotPresent => "ifnotpresent",
            PullPolicy::Never => "never",
        };
        let metrics = &self.flights.metrics;
        let image = with_default_tag(&request.image).map_err(|error| {
            metrics.ensured(policy, None, None);
            let message = format!("Failed to apply default image tag {:?}: {error}", request.image);
            self.warn(request, "InspectFailed", message.clone());
            PullError { reason: "InvalidImageName", message }
        })?;
        let mut is_present = false;
        if request.policy != PullPolicy::Always {
            let present = self.present(&image, request).await;
            let present = present.inspect_err(|_| metrics.ensured(policy, None, None))?;
            let may_use = |it: &String| self.flights.permits(&image, it, request.own());
            is_present = present.is_some();
            if let Some(image_ref) = present.filter(may_use) {
                metrics.ensured(policy, Some(true), Some(false));
                self.report(request, "Pulled", is_present_text(&request.image));
                return Ok(image_ref);
            }
            if request.policy == PullPolicy::Never {
                metrics.ensured(policy, Some(is_present), None);
                let what = if is_present {
                    "is present with pull policy of Never but does not have the proper credentials \
                     to access the image"
                } else {
                    "is not present with pull policy of Never"
                };
                let message = format!("Container image {:?} {what}", request.image);
                self.warn(request, "ErrImageNeverPull", message.clone());
                return Err(PullError { reason: "ErrImageNeverPull", message });
            }
        }
        let present = (request.policy != PullPolicy::Always).then_some(is_present);
        metrics.ensured(policy, present, Some(true));
        self.pull(&image, request).await
    }

    async fn present(
        &self,
        image: &str,
        request: &PullRequest,
    ) -> Result<Option<String>, PullError> {
        self.image_ref(image, request).await.map_err(|error| {
            let message = format!("Failed to inspect image {image:?}: {error}");
            self.warn(request, "InspectFailed", message.clone());
            PullError { reason: "ImageInspectError", message }
        })
    }

    /// The runtime's reference; `None` if it does not have the image.
    async fn image_ref(
        &self,
        image: &str,
        request: &PullRequest,
    ) -> Result<Option<String>, CriError> {
        let spec = ImageSpec {
            image: image.to_owned(),
            annotations: request.annotations.clone(),
            runtime_handler: request.runtime_handler.clone(),
            ..ImageSpec::default()
        };
        let runtime = self.runtime();
        let lookup = ImageStatusRequest { image: Some(spec), verbose: false };
        Ok(runtime.image_status(lookup).await?.image.map(|image| image.id))
    }

    async fn pull(&self, image: &str, request: &PullRequest) -> Result<String, PullError> {
        let name = &request.image;
        let key = format!("{}_{name}", request.pod.uid);
        if let Some(earlier) = self.backoff.pending(&key) {
            let message = format!("Back-off pulling image {name:?}");
            self.report(request, "BackOff", message.clone());
            let message = format!("{message}: {earlier}");
            return Err(PullError { reason: "ImagePullBackOff", message });
        }
        let began = Instant::now();
        match self.fly(image, request).await {
            Ok(pulled) => {
                self.backoff.tidy();
                let message = match pulled.pull {
                    None => is_present_text(name),
                    Some(pull) => format!(
                        "Successfully pulled image {name:?} in {} ({} including waiting). Image \
                         size: {} bytes.",
                        go_duration(pull),
                        // A pod that joined late has waited for less than the pull.
                        go_duration(began.elapsed().max(pull)),
                        pulled.size
                    ),
                };
                self.report(request, "Pulled", message);
                Ok(pulled.image_ref)
            }
            Err(failure) => {
                let error = self.failed(request, &failure);
                self.backoff.failed(&key, error.to_string());
                Err(error)
            }
        }
    }

    /// Follows a flight to its end, reporting its states as they are entered.
    async fn fly(&self, image: &str, request: &PullRequest) -> Result<Pulled, PullFailure> {
        let name = &request.image;
        let mut joined = self.flights.join(image, request);
        let mut since = Instant::now();
        let mut is_reported = false;
        loop {
            let state = joined.state.borrow_and_update().clone();
            match state {
                FlightState::Queued { running, ahead } if !is_reported => {
                    is_reported = true;
                    let message = format!(
                        "Pull of image {name:?} is queued: {running} in progress, {ahead} ahead"
                    );
                    self.report(request, "Queued", message);
                }
                FlightState::Ready | FlightState::Queued { .. } => {}
                FlightState::Pulling => {
                    since = Instant::now();
                    self.report(request, "Pulling", format!("Pulling image {name:?}"));
                }
                FlightState::Over(outcome) => return outcome,
            }
            loop {
                let change = tokio::time::timeout(PROGRESS_EVENTS, joined.state.changed()).await;
                match change {
                    Ok(Ok(())) => break,
                    Ok(Err(_)) => return Err(PullFailure::Lost),
                    Err(_) if matches!(*joined.state.borrow(), FlightState::Pulling) => {
                        let seconds = since.elapsed().as_secs();
                        let message = format!("Still pulling image {name:?} after {seconds}s");
                        self.report(request, "Pulling", message);
                    }
                    Err(_) => {}
                }
            }
        }
    }

    fn failed(&self, request: &PullRequest, failure: &PullFailure) -> PullError {
        let name = &request.image;
        let event = format!("Failed to pull image {name:?}: {failure}");
        let last = match failure {
            PullFailure::Runtime(errors) => errors.last(),
            _ => None,
        };
        if last.is_some_and(is_refusal) {
            self.flights.metrics.refusals.inc();
            self.warn(request, TOO_MANY, event);
            return PullError { reason: TOO_MANY, message: failure.to_string() };
        }
        self.warn(request, "Failed", event);
        for (reason, what) in [
            ("RegistryUnavailable", "the registry is unavailable"),
            ("SignatureValidationFailed", "the signature validation failed"),
        ] {
            if let Some(details) = last.and_then(|error| error.message.strip_prefix(reason)) {
                let message = format!("image pull failed for {name} because {what}{details}");
                return PullError { reason, message };
            }
        }
        PullError { reason: "ErrImagePull", message: failure.to_string() }
    }

    fn report(&self, request: &PullRequest, reason: &'static str, message: String) {
        let PodIdentity { namespace, name, .. } = &request.pod;
        tracing::info!(namespace, pod = name, reason, details = message, "image");
        let event = PullEvent { is_warning: false, reason, message, field: request.field.clone() };
        self.events.report(&request.pod, event);
    }

    fn warn(&self, request: &PullRequest, reason: &'static str, message: String) {
        let PodIdentity { namespace, name, .. } = &request.pod;
        tracing::warn!(namespace, pod = name, reason, details = message, "image");
        let event = PullEvent { is_warning: true, reason, message, field: request.field.clone() };
        self.events.report(&request.pod, event);
    }
}

/// kubelet's message of an image that is there, and that the pod may use.
fn is_present_text(image: &str) -> String {
    format!("Container image {image:?} already present on machine and can be accessed by the pod")
}

/// Whole milliseconds, as Go prints durations: `1m2.5s`, `120ms`, `0s`.
pub fn go_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let (minutes, rest) = (milliseconds / 60_000, milliseconds % 60_000);
    let seconds = |rest: u128| {
        let fraction = format!(".{:03}", rest % 1000);
        let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
        format!("{}{fraction}s", rest / 1000)
    };
    match (minutes / 60, minutes % 60) {
        (0, 0) if milliseconds == 0 => "0s".to_owned(),
        (0, 0) if milliseconds < 1000 => format!("{milliseconds}ms"),
        (0, 0) => seconds(rest),
        (0, minutes) => format!("{minutes}m{}", seconds(rest)),
        (hours, minutes) => format!("{hours}h{minutes}m{}", seconds(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_as_in_go() {
        let check = |milliseconds: u64, text: &str| {
            assert_eq!(go_duration(Duration::from_millis(milliseconds)), text);
        };
        check(0, "0s");
        check(120, "120ms");
        check(1_500, "1.5s");
        check(61_025, "1m1.025s");
        check(3_600_000, "1h0m0s");
    }
}
