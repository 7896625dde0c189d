//! Keys and certificates: CAs and token keys on disk, issuing and renewal of certificates, private
//! files, kubeconfigs.
//!
//! Must never know a listener, a protocol or a kind. Start reading at [`authority`].

pub mod authority;
pub mod certificate;
pub mod error;
pub mod files;
pub mod inventory;
pub mod kubeconfig;
pub mod renewal;
pub mod request;
pub mod upkeep;

pub use authority::*;
pub use certificate::{CertificateFacts, Validity};
pub use error::PkiError;
pub use renewal::{Renewal, renew};
pub use request::{
    CertificatePurpose, CertificateRequest, CertificateTerms, RequestError, RequestSigner,
    RequestedKey,
};
pub use upkeep::Ca;
