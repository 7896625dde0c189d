//! Flights: one pull per image and credentials, shared by all pods that request it meanwhile.

use crate::access::{BegunPull, ImageAccess};
use crate::list::{Arrival, GatedLimit, PullList};
use crate::manager::{PullConfig, PullPolicy, PullRequest};
use crate::metrics::PullMetrics;
use crate::{bucket::PullBucket, progress};
use ferrokube_cri::limit::{self, EXTENSION};
use ferrokube_cri::{
    CriError, ImageSpec, ImageStatusRequest, PullImageRequest, RegistryAuth, Runtime,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Progress of a flight. States occur in this order; `Queued` and `Pulling` may be skipped.
#[derive(Clone)]
pub(crate) enum FlightState {
    /// Has a slot, or needs none.
    Ready,
    /// Waiting for a slot, behind `running` pulls and `ahead` queued ones.
    Queued { running: usize, ahead: usize },
    /// The runtime is pulling.
    Pulling,
    /// Finished.
    Over(Result<Pulled, PullFailure>),
}

/// Result of a flight.
#[derive(Clone)]
pub(crate) struct Pulled {
    /// The runtime's reference.
    pub(crate) image_ref: String,
    /// Bytes; 0 if unknown.
    pub(crate) size: u64,
    /// Duration of the pull without waiting; `None`: the image was present when the slot became
    /// free.
    pub(crate) pull: Option<Duration>,
}

/// Why a flight failed. The pod's back-off decides when to retry.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum PullFailure {
    /// Registry QPS and burst.
    #[error("pull QPS exceeded")]
    Throttled,
    /// Cancelled after this time without progress.
    #[error("no progress for {}s, cancelled", .0.as_secs())]
    Stalled(Duration),
    /// The runtime's errors, one per credentials.
    #[error("{}", join(.0))]
    Runtime(Vec<CriError>),
    /// A file of [`ImageAccess`] that cannot be written.
    #[error("failed to record image pull intent for container image {image:?}: {why}")]
    Record { image: String, why: String },
    /// A panic, or the end of the process.
    #[error("the pull ended unexpectedly")]
    Lost,
}

fn join(errors: &[CriError]) -> String {
    match errors {
        [only] => only.to_string(),
        all => format!("[{}]", all.iter().map(CriError::to_string).collect::<Vec<_>>().join(", ")),
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct FlightKey {
    image: String,
    /// Encoded; secret, so neither printed nor logged.
    credentials: Vec<Vec<u8>>,
}

struct Flight {
    number: u64,
    joiners: usize,
    state: watch::Receiver<FlightState>,
    task: AbortHandle,
}

/// All flights of a node, and their limits.
pub(crate) struct Flights {
    pub(crate) runtime: Runtime,
    pub(crate) config: PullConfig,
    pub(crate) metrics: Arc<PullMetrics>,
    /// Whether the runtime enforces the limit.
    pub(crate) is_offered: AtomicBool,
    /// Whether the limit holds; `None`: always.
    pub(crate) gate: Option<Arc<AtomicBool>>,
    /// Access to present images; `None`: any pod may use them.
    pub(crate) access: Option<Arc<ImageAccess>>,
    list: Option<Arc<PullList>>,
    bucket: Option<PullBucket>,
    current: Mutex<CurrentFlights>,
}

#[derive(Default)]
struct CurrentFlights {
    number: u64,
    by_key: HashMap<FlightKey, Flight>,
}

/// A pod's participation in a flight; dropping it leaves the flight.
pub(crate) struct JoinedFlight {
    pub(crate) state: watch::Receiver<FlightState>,
    flights: Arc<Flights>,
    key: FlightKey,
    number: u64,
}

impl Flights {
    /// Without a gate, and with images for all pods.
    pub(crate) fn new(runtime: Runtime, config: PullConfig, metrics: Arc<PullMetrics>) -> Self {
        Self {
            runtime: runtime.within(None),
            list: None,
            gate: None,
            access: None,
            bucket: PullBucket::new(config.registry_qps, config.registry_burst),
            config,
            metrics,
            is_offered: AtomicBool::new(false),
            current: Mutex::default(),
        }
        .renewed(None, None)
    }

    /// A copy without flights, with this gate and access.
    pub(crate) fn renewed(
        &self,
        gate: Option<Arc<AtomicBool>>,
        access: Option<Arc<ImageAccess>>,
    ) -> Self {
        let Self { runtime, config, metrics, .. } = self;
        let gated = || {
            let while_off = config.is_serial_without_limit.then_some(1);
            gate.clone().map(|gate| GatedLimit { gate, while_off })
        };
        let list = match config.limit() {
            // Serial regardless of the limit.
            _ if config.is_serial => Some(PullList::new(1, None)),
            Some(limit) => Some(PullList::new(limit as usize, gated())),
            None => None,
        };
        Self {
            runtime: runtime.clone(),
            list,
            gate,
            access,
            bucket: PullBucket::new(config.registry_qps, config.registry_burst),
            config: *config,
            metrics: Arc::clone(metrics),
            is_offered: AtomicBool::new(false),
            current: Mutex::default(),
        }
    }

    /// Whether a pod with these credentials of its own may use a present image.
    pub(crate) fn permits(&self, image: &str, image_ref: &str, own: &[RegistryAuth]) -> bool {
        let access = self.access.as_ref();
        access.is_none_or(|access| access.permits(image, image_ref, own))
    }

    /// The limit to pass to the runtime with each pull.
    fn offered(&self) -> Option<u32> {
        let holds = self.gate.as_ref().is_none_or(|gate| gate.load(Ordering::Relaxed));
        let is_used = !self.config.is_serial && self.is_offered.load(Ordering::Relaxed);
        self.config.limit().filter(|_| holds && is_used)
    }

    /// Joins the flight with these credentials, or starts one, which enters the queue immediately.
    pub(crate) fn join(self: &Arc<Self>, image: &str, request: &PullRequest) -> JoinedFlight {
        let credentials = request.credentials.iter().map(ferrokube_cri::encoded).collect();
        let key = FlightKey { image: image.to_owned(), credentials };
        let mut current = self.current.lock();
        if let Some(flight) = current.by_key.get_mut(&key) {
            flight.joiners += 1;
            self.metrics.joins.inc();
            let (state, number) = (flight.state.clone(), flight.number);
            return JoinedFlight { state, flights: Arc::clone(self), key, number };
        }
        current.number += 1;
        let number = current.number;
        let limited = self.list.as_ref().filter(|_| self.offered().is_none());
        let arrival = limited.map(PullList::arrive);
        let begin = match arrival.as_ref().and_then(|arrival| arrival.behind) {
            Some((running, ahead)) => FlightState::Queued { running, ahead },
            None => FlightState::Ready,
        };
        let (sender, state) = watch::channel(begin);
        let flight = RunningFlight {
            flights: Arc::clone(self),
            spec: self.spec(image, request),
            request: request.clone(),
            state: sender,
        };
        let (key_of_task, context) = (key.clone(), ferrokube_trace::current());
        let run = async move {
            let outcome = match context {
                Some(context) => {
                    let run = flight.run(arrival);
                    ferrokube_trace::scoped(context, tracing::Span::none(), run).await
                }
                None => flight.run(arrival).await,
            };
            // First make it unjoinable, then finish it.
            flight.flights.remove(&key_of_task, number);
            flight.state.send_replace(FlightState::Over(outcome));
        };
        let task = tokio::spawn(run).abort_handle();
        let flight = Flight { number, joiners: 1, state: state.clone(), task };
        current.by_key.insert(key.clone(), flight);
        JoinedFlight { state, flights: Arc::clone(self), key, number }
    }

    fn spec(&self, image: &str, request: &PullRequest) -> ImageSpec {
        let mut annotations = request.annotations.clone();
        annotations.remove(EXTENSION);
        if let Some(limit) = self.offered() {
            annotations.insert(EXTENSION.to_owned(), limit.to_string());
        }
        ImageSpec {
            image: image.to_owned(),
            annotations,
            runtime_handler: request.runtime_handler.clone(),
            ..ImageSpec::default()
        }
    }

    fn remove(&self, key: &FlightKey, number: u64) {
        let mut current = self.current.lock();
        if current.by_key.get(key).is_some_and(|flight| flight.number == number) {
            current.by_key.remove(key);
        }
    }
}

impl Drop for JoinedFlight {
    fn drop(&mut self) {
        let mut current = self.flights.current.lock();
        let Some(flight) = current.by_key.get_mut(&self.key) else { return };
        if flight.number != self.number {
            return;
        }
        flight.joiners -= 1;
        if flight.joiners == 0 {
            flight.task.abort();
            current.by_key.remove(&self.key);
            self.flights.metrics.cancellations.inc();
        }
    }
}

/// State owned by a flight's task.
struct RunningFlight {
    flights: Arc<Flights>,
    spec: ImageSpec,
    request: PullRequest,
    state: watch::Sender<FlightState>,
}

impl RunningFlight {
    async fn run(&self, arrival: Option<Arrival>) -> Result<Pulled, PullFailure> {
        let flights = &self.flights;
        let arrived = Instant::now();
        let mut slot = None;
        if let Some(mut arrival) = arrival {
            let has_waited = arrival.behind.is_some();
            let queued = has_waited.then(|| Counted::new(&flights.metrics.queued));
            slot = Some(arrival.slot().await);
            drop(queued);
            if has_waited
                && self.request.policy != PullPolicy::Always
                && let Some(pulled) = self.present().await
                && flights.permits(&self.spec.image, &pulled.image_ref, self.request.own())
            {
                return Ok(pulled);
            }
        }
        if flights.bucket.as_ref().is_some_and(|bucket| !bucket.take()) {
            return Err(PullFailure::Throttled);
        }
        let record = self.begin().await?;
        let begun = Instant::now();
        self.state.send_replace(FlightState::Pulling);
        let (image_ref, own) = {
            let _in_flight = Counted::new(&flights.metrics.in_flight);
            tokio::select! {
                pulled = self.pull() => pulled?,
                () = progress::stalled(&flights.runtime, flights.config.progress_timeout) => {
                    flights.metrics.stalls.inc();
                    return Err(PullFailure::Stalled(flights.config.progress_timeout));
                }
            }
        };
        let pull = begun.elapsed();
        drop(slot);
        if let Some(record) = record {
            self.record(record, image_ref.clone(), own).await;
        }
        let size = self.present().await.map_or(0, |image| image.size);
        flights.metrics.pulled(size, begun - arrived, pull, pull + (begun - arrived));
        Ok(Pulled { image_ref, size, pull: Some(pull) })
    }

    async fn begin(&self) -> Result<Option<BegunPull>, PullFailure> {
        let Some(access) = self.flights.access.clone() else { return Ok(None) };
        let image = self.spec.image.clone();
        let begun = in_background(move || access.begin(&image)).await;
        let failed = |error: io::Error| {
            let image = self.request.image.clone();
            PullFailure::Record { image, why: error.to_string() }
        };
        begun.map(Some).map_err(failed)
    }

    async fn record(&self, begun: BegunPull, image_ref: String, own: Option<RegistryAuth>) {
        let Some(access) = self.flights.access.clone() else { return };
        let recorded = in_background(move || access.pulled(begun, &image_ref, own.as_ref())).await;
        // In memory it is recorded anyway.
        if let Err(error) = recorded {
            tracing::warn!(image = self.spec.image, %error, "cannot record a pull");
        }
    }

    async fn present(&self) -> Option<Pulled> {
        let request = ImageStatusRequest { image: Some(self.spec.clone()), verbose: false };
        let runtime = self.flights.runtime.within(Some(Duration::from_secs(120)));
        let image = runtime.image_status(request).await.ok()?.image?;
        Some(Pulled { image_ref: image.id, size: image.size, pull: None })
    }

    /// Tries the credentials in turn; without any, anonymously. Returns the image, and the
    /// credentials if they are the pod's own.
    async fn pull(&self) -> Result<(String, Option<RegistryAuth>), PullFailure> {
        let credentials = &self.request.credentials;
        let mut attempts: Vec<Option<RegistryAuth>> =
            credentials.iter().cloned().map(Some).collect();
        if attempts.is_empty() {
            attempts.push(None);
        }
        let mut errors = Vec::new();
        for (number, auth) in attempts.into_iter().enumerate() {
            let own = auth.clone().filter(|_| number < self.request.own_credentials);
            let request = PullImageRequest {
                image: Some(self.spec.clone()),
                auth,
                sandbox_config: self.request.sandbox.clone(),
            };
            match self.flights.runtime.pull_image(request).await {
                Ok(response) => return Ok((response.image_ref, own)),
                Err(error) => {
                    // Other credentials would be throttled as well.
                    let is_final = limit::is_refusal(&error);
                    errors.push(error);
                    if is_final {
                        break;
                    }
                }
            }
        }
        Err(PullFailure::Runtime(errors))
    }
}

/// Runs work on files off the async workers.
pub(crate) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Adds one to a gauge while it lives.
struct Counted(prometheus_client::metrics::gauge::Gauge);

impl Counted {
    fn new(gauge: &prometheus_client::metrics::gauge::Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
