//! Keys and certificates: CAs and token keys on disk, issuing and renewal of certificates, private
//! files, kubeconfigs.
//!
//! Must never know a listener, a protocol or a kind. Start reading at [`authority`].

pub mod authority;
pub mod files;
pub mod kubeconfig;

pub use authority::*;
