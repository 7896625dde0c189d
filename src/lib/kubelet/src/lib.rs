//! The kubelet: runs the pods of a node on a container runtime.
//!
//! Must never know the API server's insides, or how images are pulled. Start at [`Kubelet`].
//!
//! - `config/` reads KubeletConfiguration; `images` (a crate) pulls; `cri` (a crate) is the runtime.
//! - **The runtime is the memory.** What runs is read from its sandboxes and containers, found by
//!   the labels that kubelet gives them. After kill -9 the next kubelet continues with what is
//!   there: nothing is started twice, and nothing is written down here.
//! - **A loop** (`pod_loop.rs`) compares the sources with the runtime, and starts and ends workers; how a
//!   pod ends is one value (`ends.rs`).
//! - **A worker per pod** (`worker.rs`) looks at the pod's sandbox and containers, does the next
//!   step (`next.rs`: a pure function of the pod and what was seen), and looks again. Dropped, it
//!   leaves the runtime as it is: a pod that is being deleted gets a worker that ends it.
//! - **Static pods** (`static_pods.rs`) come from files; a changed file is another pod; the
//!   previous one ends first.
//! - **Fail closed** (`supported.rs`): a pod with a field that is not implemented is refused by its
//!   name, never run without it.
//! - **The API server** (`api/`) is watched for the pods of this node. Workers post statuses to a
//!   board (`board.rs`), whose writer sends what has changed; a deleted pod leaves the API when it
//!   has ended. Until the first list is complete, no pod is ended for being missing.
//! - **Volumes** (`volumes/`) are made before the sandbox and updated all at once while the pod runs;
//!   a part of one (`sub_path.rs`) is bound for its container, and unbound before anything is removed.
//!   Variables (`environment.rs`) are read when a container starts, those of services from a watch. Tokens of service accounts
//!   (`api/tokens.rs`) are renewed long before they expire.
//! - **Probes** (`probes/`) are tasks next to the worker, which reads their results when it looks;
//!   **hooks** (`hooks.rs`) are part of the worker's start and stop of a container.
//! - Calls carry the ids of the pod's annotations (KEP-1668), and log lines show them.
//!
//! - **A node that is short of memory or disk** (`eviction/`) says so, takes no more pods, removes unused
//!   images, and ends pods, one after the other.
//! - **Logs** (`log_files/`) are rotated by size; a follower goes on from file to file.
//! - **The server** (`server/`) is for the API server: logs, the runtime's streams of commands and
//!   ports, and what pods use (`usage/`).
//!
//! Not here yet: persistent volumes other than directories of the machine.

mod api;
mod assemble;
mod board;
mod config;
mod desired;
mod ending;
mod ends;
mod environment;
mod eviction;
mod fields;
mod hooks;
mod host_ports;
mod kubelet;
mod log_files;
mod look;
mod next;
mod node;
mod objects;
mod pod;
mod pod_loop;
mod probes;
mod pull_secrets;
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
pub use config::{
    HousekeepingSettings, KubeletConfig, KubeletConfigError, KubeletConfigFile, KubeletSettings,
    ServerConfig, ServerSettings,
};
pub use eviction::figures::{FigureSource, NodeFigures, ResourceFigure};
pub use eviction::threshold::{EvictionPolicy, EvictionSignal, EvictionThreshold};
pub use kubelet::Kubelet;
pub use log_files::LogRotation;
pub use node::KubeletPaths;
pub use pod::{NodePod, NodePodError};
pub use server::{KubeletServer, KubeletServerError};
