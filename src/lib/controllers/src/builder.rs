//! `ControllerManager::builder()`: which controllers run, and their identities.

use crate::manager::{self, ManagerConfig, ManagerError, OwnController};
use crate::resource_quota::CountedAs;
use crate::secret_tokens::Signer;
use ferrokube_client::{Connection, LeaseTiming};
use ferrokube_features::Gates;
use ferrokube_pki::RequestSigner;
use ferrokube_serve::Shutdown;
use kube::Client;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::watch;

/// Runs controllers against an API server.
#[derive(Clone)]
pub struct ControllerManager {
    config: ManagerConfig,
    chosen: BTreeSet<&'static str>,
}

/// Made by [`ControllerManager::builder`].
#[must_use]
pub struct ManagerBuilder {
    config: ManagerConfig,
}

impl ManagerBuilder {
    /// Chooses among [`NAMES`](crate::NAMES): names, `*` for all, `-name` to exclude one, `-*` to
    /// exclude all. Later words win. Default: all.
    ///
    /// Controllers get identities of their own: they need a server with service accounts.
    pub fn controllers<T: Into<String>>(mut self, words: impl IntoIterator<Item = T>) -> Self {
        self.config.controllers = words.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a controller of the program. `run` ends only by being dropped; its client acts as the
    /// service account `kube-system/<account>`, or as the manager if `account` is empty.
    pub fn controller<F>(
        mut self,
        name: impl Into<String>,
        account: impl Into<String>,
        run: impl Fn(Client) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.config.own.push(OwnController {
            name: name.into(),
            account: account.into(),
            start: Arc::new(move |client| Box::pin(run(client))),
        });
        self
    }

    /// Acts only while holding the lease `kube-system/kube-controller-manager`, under an identity
    /// that is unique among the managers. Default: the only manager.
    pub fn leader_election(mut self, identity: impl Into<String>, timing: LeaseTiming) -> Self {
        self.config.leader_elect = true;
        self.config.identity = identity.into();
        self.config.timing = timing;
        self
    }

    /// CA that verifies the API server, in PEM, for the root CA publisher; default: that of the
    /// connection.
    pub fn root_ca(mut self, pem: impl Into<Arc<str>>) -> Self {
        self.config.root_ca = pem.into();
        self
    }

    /// Maps resources to the quota keys that count them; default: none, so that no quota is
    /// maintained. The server's is `ferrokube_admission::quota::names`.
    pub fn counted_as(mut self, counted_as: CountedAs) -> Self {
        self.config.counted_as = counted_as;
        self
    }

    /// Name of the process among its like: features that are turned on in a percentage of the
    /// components first choose by it. Default: `kube-controller-manager`.
    pub fn component(mut self, name: impl Into<String>) -> Self {
        self.config.component = name.into();
        self
    }

    /// Feature gates, whose use is reported to the Feature API, and which follow it; default: their
    /// defaults, none of which was asked.
    pub fn gates(mut self, gates: Gates) -> Self {
        self.config.gates = gates;
        self
    }

    /// Signs tokens of secrets; without it those secrets are left alone.
    pub fn signer(mut self, signer: Option<Signer>) -> Self {
        self.config.signer = signer;
        self
    }

    /// Signs certificate requests of kubelets; without it they are neither approved, signed nor
    /// removed.
    pub fn request_signer(mut self, signer: Option<RequestSigner>) -> Self {
        self.config.request_signer = signer;
        self
    }

    /// Opens nothing.
    ///
    /// # Errors
    /// [`ManagerError::UnknownController`], [`ManagerError::DuplicateController`].
    pub fn build(self) -> Result<ControllerManager, ManagerError> {
        let chosen = manager::choose(&self.config.controllers)?;
        let mut seen: BTreeSet<&str> = crate::NAMES.into();
        for own in &self.config.own {
            if !seen.insert(&own.name) {
                return Err(ManagerError::DuplicateController(own.name.clone()));
            }
        }
        Ok(ControllerManager { config: self.config, chosen })
    }
}

impl ControllerManager {
    /// All controllers, against the API server of the connection, which has the manager's own
    /// identity.
    pub fn builder(connection: Connection) -> ManagerBuilder {
        let root_ca = connection.ca_pem().into();
        ManagerBuilder {
            config: ManagerConfig {
                connection,
                controllers: vec!["*".to_owned()],
                own: Vec::new(),
                leader_elect: false,
                timing: LeaseTiming::default(),
                identity: String::new(),
                root_ca,
                counted_as: |_, _| Vec::new(),
                gates: Gates::default(),
                component: "kube-controller-manager".to_owned(),
                signer: None,
                request_signer: None,
            },
        }
    }

    /// Runs until shutdown or loss of leadership. `leading` turns true when the controllers start.
    ///
    /// # Errors
    /// [`ManagerError`].
    pub async fn run(
        self,
        shutdown: Shutdown,
        leading: watch::Sender<bool>,
    ) -> Result<(), ManagerError> {
        manager::run(self.config, &self.chosen, shutdown, leading).await
    }
}
