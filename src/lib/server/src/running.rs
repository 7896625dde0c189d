//! A running control plane: its background tasks, and orderly shutdown.

use crate::assembly::{self, Assembled, RemoteStorage};
use crate::builder::{ControlPlane, ControlPlaneBuilder};
use crate::data_dir::DataDir;
use crate::error::{BuildError, ServeError};
use crate::listener::{ADMIN_KUBECONFIG, Listener};
use ferrokube_auth::audit::AuditLog;
use ferrokube_controlplane::{ApiServer, EarlyHandler};
use ferrokube_pki::{Pki, PkiError};
use ferrokube_serve::{Handler, InProcess, ListenerStats, Shutdown, ShutdownTrigger};
use ferrokube_storage::Store;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinError, JoinSet};

/// Time limit of [`RunningControlPlane::stop`] for requests and tasks; the rest is cut off.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(35);
/// Time limit for closing the store after that.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A running control plane. [`Self::stop`] ends it without losing an acknowledged write; dropping
/// it cuts off its connections and tasks.
pub struct RunningControlPlane {
    api: ApiServer,
    store: Store,
    audit: AuditLog,
    pki: Pki,
    url: String,
    in_process: InProcess,
    kubeconfig: PathBuf,
    /// The listener; returns the number of connections that were cut off. Dropped before the
    /// trigger, which would let it drain.
    serving: JoinSet<usize>,
    tasks: JoinSet<()>,
    trigger: ShutdownTrigger,
    shutdown: Shutdown,
    /// Names of the admission steps.
    steps: Vec<&'static str>,
    /// Locked until the end: dropped last.
    directory: DataDir,
}

/// A listener that serves.
struct Listening {
    stats: Arc<ListenerStats>,
    url: String,
    in_process: InProcess,
    /// Dropped before the trigger, as above.
    serving: JoinSet<usize>,
    tasks: JoinSet<()>,
    trigger: ShutdownTrigger,
    shutdown: Shutdown,
}

impl Listening {
    fn begin(
        listener: Listener,
        handler: Arc<dyn Handler>,
        pki: &Pki,
        directory: &DataDir,
    ) -> Result<Self, PkiError> {
        let (trigger, shutdown) = ShutdownTrigger::new();
        let (mut serving, mut tasks) = (JoinSet::new(), JoinSet::new());
        let (stats, url, in_process) = (listener.stats(), listener.url(), listener.in_process());
        let serve = listener.start(handler, pki.clone(), directory, &shutdown, &mut tasks)?;
        serving.spawn(serve);
        Ok(Self { stats, url, in_process, trigger, shutdown, serving, tasks })
    }

    /// Cleans up after a failed start, so that the address is free again.
    async fn abandon(mut self) {
        self.serving.shutdown().await;
        self.tasks.shutdown().await;
    }
}

impl RunningControlPlane {
    pub(crate) async fn start(plane: ControlPlane) -> Result<Self, ServeError> {
        let ControlPlane { directory, pki, store, listener, assembled } = plane;
        let handler = assembled.api.handler();
        let listening = Listening::begin(listener, handler, &pki, &directory)?;
        Self::run(directory, pki, store, assembled, listening).await
    }

    /// Listens while waiting for the storage.
    pub(crate) async fn start_remote(
        mut builder: ControlPlaneBuilder,
        remote: RemoteStorage,
    ) -> Result<Self, ServeError> {
        builder.check()?;
        let directory = builder.open_directory()?;
        let prepared = assembly::prepare(&builder, &directory)?;
        let pki = prepared.pki.clone();
        let listener =
            Listener::bind(builder.listener_config(), &pki).map_err(BuildError::Input)?;
        let early = EarlyHandler::new();
        let handler = Arc::clone(&early) as Arc<dyn Handler>;
        let listening = Listening::begin(listener, handler, &pki, &directory)?;
        let waits = Arc::clone(&builder.waits);
        let assembled = async {
            let opened = prepared.attach(remote, &*waits).await?;
            let store = opened.store.clone();
            Ok((store, assembly::assemble(builder, &directory, opened)?))
        };
        match assembled.await {
            Ok((store, assembled)) => {
                early.hand_over(assembled.api.handler());
                Self::run(directory, pki, store, assembled, listening).await
            }
            Err(error) => {
                listening.abandon().await;
                Err(ServeError::Build(error))
            }
        }
    }

    async fn run(
        directory: DataDir,
        pki: Pki,
        store: Store,
        assembled: Assembled,
        listening: Listening,
    ) -> Result<Self, ServeError> {
        let Listening { stats, url, in_process, trigger, shutdown, serving, mut tasks } = listening;
        let Assembled {
            api,
            audit,
            tokens,
            certificates,
            static_tokens,
            policy_status,
            expiry,
            steps,
        } = assembled;
        api.show_listener(stats);
        let kubeconfig = directory.join(ADMIN_KUBECONFIG);
        for certificate in certificates {
            tasks.spawn(certificate.renew(shutdown.clone()));
        }
        if let Some(tokens) = tokens {
            tasks.spawn(tokens.files.watch(tokens.tokens, tokens.read, shutdown.clone()));
        }
        if let Some(tokens) = static_tokens {
            tasks.spawn(tokens.watch(shutdown.clone()));
        }
        if let Some(policy_status) = policy_status {
            let shutdown = shutdown.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = policy_status.run() => {}
                    () = shutdown.begun() => {}
                }
            });
        }
        tasks.spawn(expiry.watch(shutdown.clone()));
        let running = Self {
            api,
            store,
            audit,
            pki,
            url,
            in_process,
            kubeconfig,
            trigger,
            shutdown,
            serving,
            tasks,
            steps,
            directory,
        };
        let started = tokio::select! {
            started = running.api.start() => started.map_err(ServeError::from),
            reason = running.store.failed() => Err(ServeError::Store(reason.to_string())),
        };
        match started {
            Ok(()) => Ok(running),
            Err(error) => {
                running.abandon().await;
                Err(error)
            }
        }
    }

    /// Cleans up after a failed start, so that address and directory are free again.
    async fn abandon(mut self) {
        self.api.begin_shutdown();
        self.trigger.begin();
        self.serving.shutdown().await;
        self.tasks.abort_all();
        self.close().await;
    }

    /// URL for clients on this machine.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Makes clients in this process, which need no connection: with a certificate of
    /// [`Self::pki`], or with a token of their own.
    pub fn in_process(&self) -> InProcess {
        self.in_process.clone()
    }

    /// The administrator's kubeconfig, renewed while the control plane runs.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Directory of keys, kubeconfig and journal; locked while this runs.
    pub fn directory(&self) -> &DataDir {
        &self.directory
    }

    /// The API server, for requests without a connection.
    pub fn api(&self) -> &ApiServer {
        &self.api
    }

    /// Names of the admission steps, in order.
    pub fn admission_steps(&self) -> &[&'static str] {
        &self.steps
    }

    /// Issues certificates, such as those of the program's own controllers.
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// Begins when the control plane stops.
    pub fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// Runs a task with the control plane. It must end when [`Self::shutdown`] begins;
    /// [`Self::stop`] waits for it after the last request.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while let Some(ended) = self.tasks.try_join_next() {
            report(ended);
        }
        self.tasks.spawn(task);
    }

    /// Waits for a failure after which the process should exit without [`Self::stop`].
    pub async fn failed(&mut self) -> ServeError {
        tokio::select! {
            reason = self.store.failed() => ServeError::Store(reason.to_string()),
            ended = self.serving.join_next() => ServeError::Listener(format!("{ended:?}")),
        }
    }

    /// Runs until SIGINT or SIGTERM, then stops.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn run_until_signal(mut self) -> Result<(), ServeError> {
        let listen = |kind| signal(kind).map_err(ServeError::Signals);
        let (mut interrupt, mut terminate) =
            (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            error = self.failed() => return Err(error),
        }
        self.stop().await;
        Ok(())
    }

    /// Finishes requests, then watches and the program's own tasks, then closes the store: in this
    /// order, so that no acknowledged write is lost. Requests and tasks that have not ended after
    /// 35 s are cut off.
    pub async fn stop(mut self) {
        self.api.begin_shutdown();
        self.trigger.begin();
        let in_order = async {
            match self.serving.join_next().await {
                Some(Ok(0)) | None => {}
                Some(Ok(cut)) => tracing::warn!(connections = cut, "requests were cut off"),
                Some(Err(error)) => tracing::error!(%error, "the listener failed"),
            }
            while let Some(ended) = self.tasks.join_next().await {
                report(ended);
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, in_order).await.is_err() {
            tracing::error!("requests or tasks did not end in time");
            self.serving.abort_all();
            self.tasks.abort_all();
        }
        self.close().await;
    }

    async fn close(self) {
        let closed = async {
            self.api.stopped().await;
            self.store.close().await;
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, closed).await.is_err() {
            tracing::error!("closing the store timed out");
        }
        let audit = self.audit;
        // Joins its thread.
        let _ = tokio::task::spawn_blocking(move || audit.close()).await;
    }
}

/// A task that panics is not missed until much later.
fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a task failed");
    }
}
