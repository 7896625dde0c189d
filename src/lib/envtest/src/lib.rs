//! The `etcd` and `kube-apiserver` executables for controller-runtime's envtest and other test
//! suites that start them from `KUBEBUILDER_ASSETS`.
//!
//! Must never know the API server, its flags or its storage. Start at [`stand_in`]: it listens
//! where etcd would, answers the probes of its parent process, and names a directory; [`probe`]
//! asks it from the API server's side. [`assets`] lays out the directory with the executables,
//! [`keys`] reads key files with the modes that envtest gives them.

pub mod assets;
pub mod keys;
pub mod probe;
pub mod stand_in;
