//! The kubelet: runs the pods of a node on a container runtime.
//!
//! Must never know the API server's internals, or how images are pulled. Start at [`Kubelet`].
//!
//! - `config/` reads KubeletConfiguration; `images` (a crate) pulls; `cri` (a crate) is the
//!   runtime.
//! - **The runtime holds the state.** Running pods are read from its sandboxes and containers,
//!   identified by kubelet's labels. After `kill -9` the next kubelet adopts them: nothing is
//!   started twice, and the kubelet stores no state of pods of its own.
//! - **A loop** (`pod_loop.rs`) compares the sources with the runtime, and starts and stops
//!   workers; why a pod terminates is one value (`ends.rs`).
//! - **A worker per pod** (`worker.rs`) observes the pod's sandbox and containers, performs the
//!   next step (`next.rs`: a pure function of the pod and the observation), and repeats; updates of
//!   the pod reach it. When dropped, it leaves the runtime as it is; a deleted pod, and one past
//!   its deadline (`deadline.rs`), gets a task that terminates it (`ending.rs`) and removes its
//!   directory, but nothing that is mounted there (`removal.rs`).
//! - **Static pods** (`static_pods.rs`) come from files. A changed file is a new pod, which starts
//!   after the previous one has terminated.
//! - **Fail closed** (`supported.rs`): a pod with an unsupported field is rejected by the name of
//!   the field, never run without it.
//! - **The API server** (`api/`) is watched for the pods of this node. Workers post statuses to a
//!   board (`board.rs`), whose writer sends changes; a deleted pod is removed from the API once
//!   terminated. Until the first list is complete, no pod is terminated for being absent.
//! - **Volumes** (`volumes/`; those of CSI drivers: `csi/`) are created before the sandbox and
//!   updated atomically while the pod runs. A subPath (`sub_path.rs`) is bind-mounted for its
//!   container, and unmounted before anything is removed. Environment variables (`environment.rs`)
//!   are resolved when a container starts, those of services from a watch. Service account tokens
//!   (`api/tokens.rs`) are renewed long before they expire.
//! - **Names** (`names.rs`, `dns.rs`): host name, `/etc/hosts` and resolver of a pod.
//! - **Probes** (`probes/`) are tasks next to the worker, which reads their results when it
//!   observes the pod; **hooks** (`hooks.rs`) run as part of starting and stopping a container.
//! - Calls and log lines carry the trace ids in the pod's annotations (KEP-1668).
//!
//! - **Resizes** (`resize.rs`): changed CPU and memory of running containers, in place.
//! - **Under resource pressure** (`eviction/`) the node reports conditions, admits no more pods,
//!   removes unused images, and evicts pods one at a time.
//! - **Calls** to the runtime are counted by method (`operations.rs`).
//! - **Processes** of a pod are limited in number by control groups (`process_limit.rs`).
//! - **Logs** (`log_files/`) are rotated by size; followers continue in the next file.
//! - **Certificates** (`certificates/`) of the node are requested from the API server and renewed.
//! - **The server** (`server/`) serves logs, exec, attach, port-forward and resource usage
//!   (`usage/`) to the API server.

mod api;
mod assemble;
mod background;
mod board;
mod certificates;
mod config;
mod csi;
mod deadline;
mod desired;
mod directories;
mod dns;
mod ending;
mod ends;
mod environment;
mod eviction;
mod fields;
#[cfg(test)]
mod fixture;
mod hooks;
mod host_ports;
mod kubelet;
mod log_files;
mod names;
mod next;
mod node;
mod objects;
mod observe;
mod oom;
mod operations;
mod pod;
mod pod_loop;
mod probes;
mod process_limit;
mod pull_secrets;
mod removal;
mod resize;
mod room;
mod run_as;
mod runtime_class;
mod server;
mod service_links;
mod static_pods;
mod status;
mod supported;
mod termination;
mod usage;
mod variables;
mod volumes;
mod worker;

pub use api::{EventSink, NodeApi, NodeIdentity};
pub use certificates::{BootstrapFiles, NodeBootstrapError, NodeCertificates};
pub use config::{
    EvictionSettings, HousekeepingSettings, KubeletConfig, KubeletConfigError, KubeletConfigFile,
    KubeletSettings, LogRotation, NodeTaint, ServerConfig, ServerSettings,
};
pub use eviction::figures::{FigureSource, NodeFigures, ResourceFigure};
pub use eviction::threshold::{EvictionPolicy, EvictionSignal, EvictionThreshold};
pub use kubelet::Kubelet;
pub use node::KubeletPaths;
pub use operations::RuntimeOperations;
pub use pod::{NodePod, NodePodError};
pub use process_limit::ProcessLimit;
pub use pull_secrets::providers::{CredentialProviderError, CredentialProviders};
pub use server::{KubeletServer, KubeletServerError};
