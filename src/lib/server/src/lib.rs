//! A control plane as a library: resources, authentication, authorization, storage and listener are
//! chosen in code.
//!
//! [`ControlPlane::builder`] opens the storage, keys and listener, and wires the crates of the API
//! server; the executable's roles are users of it, with flags. Parts left out are absent from
//! discovery, OpenAPI and the RBAC policy, and run no steps, loops or endpoints.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use ferrokube_server::ControlPlane;
//!
//! let server = ControlPlane::builder()
//!     .bundle(ferrokube_resources::bundle().without(["*.flowcontrol.apiserver.k8s.io"]))
//!     .data_dir("/var/lib/example")
//!     .build()?
//!     .start()
//!     .await?;
//! println!("{} {}", server.url(), server.kubeconfig().display());
//! server.run_until_signal().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Must never know flags, controllers or the kubelet. Start reading at [`builder`], then
//! `assembly`.

mod admission;
mod assembly;
mod authentication_info;
pub mod builder;
mod client_certificate;
pub mod config;
mod connections;
mod context;
pub mod data_dir;
pub mod error;
mod expiry;
pub mod listener;
mod rights;
pub mod running;
pub mod static_tokens;
pub mod token_keys;

pub use assembly::{AUDIT_RESERVE, value_codec};
pub use builder::{ControlPlane, ControlPlaneBuilder};
pub use config::{
    AggregationConfig, AuthenticatorKind, FrontProxyConfig, KubeletAccessConfig, ListenerConfig,
    ServiceAccountConfig, StorageConfig, WebhookConfig,
};
pub use context::{ServerContext, StoreContext};
pub use data_dir::DataDir;
pub use error::{BuildError, InputError, ServeError};
pub use running::RunningControlPlane;
pub use token_keys::KeyFiles;

// Re-exports for authors of control planes, who then need few direct dependencies.
pub use ferrokube_admission as admission_steps;
pub use ferrokube_apimachinery as apimachinery;
pub use ferrokube_auth as auth;
pub use ferrokube_controlplane as api;
pub use ferrokube_pki as pki;
pub use ferrokube_registry as registry;
pub use ferrokube_resource as resource;
pub use ferrokube_serve as serve;
