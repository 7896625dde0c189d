//! Errors of building and running a control plane. None of them is worth a retry without a change
//! of the configuration or of the machine.

use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_auth::audit::AuditError;
use ferrokube_auth::bootstrap::RolesError;
use ferrokube_controlplane::StartError;
use ferrokube_pki::PkiError;
use ferrokube_pki::files::FileError;
use ferrokube_resource::BundleError;
use ferrokube_serve::reload::ReloadError;
use ferrokube_serve::{ServerError, TlsError};
use ferrokube_storage::OpenError;
use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A control plane cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The bundles do not fit together.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The roles of a bundle are malformed.
    #[error(transparent)]
    Roles(#[from] RolesError),
    /// An unknown admission step was disabled.
    #[error("no admission step {name:?} to leave out; there are {known}")]
    UnknownStep {
        /// As given.
        name: String,
        /// Steps of this control plane.
        known: String,
    },
    /// Two admission steps have the same name.
    #[error("two admission steps are called {0}")]
    DuplicateStep(&'static str),
    /// A kind without a storage prefix has no handler.
    #[error("{0} is not stored and has no handler: call ControlPlaneBuilder::computed")]
    NoHandler(GroupResource),
    /// A subresource of a kind of its own, or one that is created, has no handler.
    #[error("{0}/{1} has no handler: call ControlPlaneBuilder::computed")]
    NoSubresourceHandler(GroupResource, &'static str),
    /// A subresource with `Verbs::CONNECT` goes nowhere.
    #[error("{0}/{1} connects to nothing: call ControlPlaneBuilder::connection")]
    NoConnection(GroupResource, &'static str),
    /// A handler is for a resource or subresource that no bundle serves.
    #[error("a handler for {0}, which no bundle serves")]
    UnknownResource(String),
    /// Two handlers are for the same resource or subresource.
    #[error("two handlers for {0}")]
    DuplicateHandler(String),
    /// Two routes have the same path, or one is relative or conflicts with a built-in path.
    #[error("the path {0:?} of a route is taken or does not begin with a slash")]
    Path(String),
    /// A choice lacks something that it depends on.
    #[error("{of} do not work without {missing}, which are left out")]
    Incomplete {
        /// Plural name, or an authenticator.
        of: &'static str,
        /// Plural name.
        missing: &'static str,
    },
    /// A setting has an invalid value.
    #[error("{0}")]
    Setting(&'static str),
    /// There is no Tokio runtime, or none that can wait for the storage.
    #[error("no Tokio runtime that fits: {0}")]
    Runtime(&'static str),
    /// A file, directory or address cannot be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The storage cannot be opened.
    #[error("cannot open the state")]
    Storage(#[source] OpenError),
    /// The journal is gone.
    #[error("cannot open the state: {advice}")]
    StateGone {
        /// Advice on how to continue.
        advice: String,
        /// The storage's error.
        source: OpenError,
    },
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// No data directory was chosen; with memory storage it has the keys.
    #[error("no data directory: call ControlPlaneBuilder::data_dir")]
    NoDirectory,
}

/// A file, directory or address cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The error, often with a remedy.
    #[error("{0}")]
    Unusable(String),
    /// The operation that failed.
    #[error("{what}")]
    Failed {
        /// The operation, with names.
        what: String,
        /// Cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Neither `XDG_DATA_HOME` nor `HOME` is set.
    #[error("neither XDG_DATA_HOME nor HOME is set")]
    NoHome,
    /// Another process has the data directory.
    #[error("{} is in use by {holder}: stop it, or choose another directory", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process, if known.
        holder: String,
    },
    /// Names of the serving certificate are malformed.
    #[error("cannot make the serving certificate")]
    Names(#[source] PkiError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Address {
        /// As configured.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the server cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A key or certificate.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The listener.
    #[error(transparent)]
    Server(ServerError),
    /// Certificates of the listener.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Files of the listener.
    #[error(transparent)]
    Reload(#[from] ReloadError),
}

/// Wraps causes.
pub(crate) trait Because<T> {
    /// Adds the failed operation to the error.
    fn because(self, what: impl FnOnce() -> String) -> Result<T, InputError>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Because<T> for Result<T, E> {
    fn because(self, what: impl FnOnce() -> String) -> Result<T, InputError> {
        self.map_err(|error| InputError::Failed { what: what(), source: error.into() })
    }
}

impl From<ServerError> for InputError {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Bind { address, source } => Self::Address { address, source },
            error => Self::Server(error),
        }
    }
}

impl InputError {
    pub(crate) fn missing(path: &Path) -> Self {
        Self::Unusable(format!("{} does not exist", path.display()))
    }
}

/// A control plane does not start, or stopped by itself. The process should exit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// [`ControlPlaneBuilder::start`](crate::ControlPlaneBuilder::start) cannot build it.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A bootstrap step failed.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The administrator's kubeconfig cannot be written.
    #[error(transparent)]
    Kubeconfig(#[from] PkiError),
    /// The storage failed: nothing is acknowledged anymore.
    #[error("the store failed: {0}")]
    Store(String),
    /// The listener ended.
    #[error("the listener stopped unexpectedly: {0}")]
    Listener(String),
    /// Signals cannot be received.
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
}
