//! Validates the PEM fields of a signing request.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::FromDer;

/// A request must be one PEM block with a certification request signed by its own key.
///
/// # Errors
/// An error message.
pub(super) fn check_request(encoded: &str) -> Result<(), String> {
    let bytes = STANDARD.decode(encoded).map_err(|_| "not base64")?;
    let (_, pem) =
        parse_x509_pem(&bytes).map_err(|_| "PEM block type must be CERTIFICATE REQUEST")?;
    if pem.label != "CERTIFICATE REQUEST" {
        return Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
    }
    let (_, request) = X509CertificationRequest::from_der(&pem.contents)
        .map_err(|_| "not a certification request")?;
    request.verify_signature().map_err(|_| "the request's signature does not verify".to_owned())
}

/// An issued certificate must be PEM blocks of certificates only. Empty is valid.
///
/// # Errors
/// An error message.
pub(super) fn check_certificate(encoded: &str) -> Result<(), &'static str> {
    if encoded.is_empty() {
        return Ok(());
    }
    let bytes = STANDARD.decode(encoded).map_err(|_| "not base64")?;
    let mut blocks = 0;
    for pem in Pem::iter_from_buffer(&bytes) {
        let pem = pem.map_err(|_| "not PEM")?;
        if pem.label != "CERTIFICATE" {
            return Err("only CERTIFICATE PEM blocks are allowed");
        }
        pem.parse_x509().map_err(|_| "a block is no certificate")?;
        blocks += 1;
    }
    if blocks == 0 { Err("must contain at least one CERTIFICATE PEM block") } else { Ok(()) }
}
