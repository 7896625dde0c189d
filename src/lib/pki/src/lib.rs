//! Keys and certificates: the CAs and token keys on disk, certificates issued from them, their
//! renewal; files readable by their owner only; kubeconfigs.
//!
//! Used by every role that has an identity. Must never know a listener, a protocol or a kind. Start
//! reading at [`authority`].

pub mod authority;
pub mod files;
pub mod kubeconfig;

pub use authority::*;
