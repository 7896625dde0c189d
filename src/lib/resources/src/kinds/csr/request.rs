//! Validates the PEM fields of a signing request.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::field::quote;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::FromDer;

const BEGIN: &[u8] = b"-----BEGIN ";

/// A request must be one PEM block with a certification request signed by its own key.
///
/// kube-apiserver reads the first block, but readers disagree on which that is: some skip a block
/// with a malformed end, others do not. Approvers and signers must see the request that was checked
/// here, so there is no second one.
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
    if bytes.windows(BEGIN.len()).filter(|part| *part == BEGIN).nth(1).is_some() {
        return Err("only one PEM block is allowed".to_owned());
    }
    let (rest, request) = X509CertificationRequest::from_der(&pem.contents)
        .map_err(|_| "not a certification request")?;
    if !rest.is_empty() {
        return Err("asn1: syntax error: trailing data".to_owned());
    }
    request.verify_signature().map_err(|_| "the request's signature does not verify".to_owned())
}

/// An issued certificate must be PEM blocks of certificates only. Empty is valid.
///
/// # Errors
/// An error message.
pub(super) fn check_certificate(encoded: &str) -> Result<(), String> {
    if encoded.is_empty() {
        return Ok(());
    }
    let bytes = STANDARD.decode(encoded).map_err(|_| "not base64")?;
    let mut blocks = 0;
    for pem in Pem::iter_from_buffer(&bytes) {
        let pem = pem.map_err(|_| "not PEM")?;
        if pem.label != "CERTIFICATE" {
            return Err(format!(
                "only CERTIFICATE PEM blocks are allowed, found {}",
                quote(&pem.label)
            ));
        }
        pem.parse_x509().map_err(|_| "a block is no certificate")?;
        blocks += 1;
    }
    if blocks == 0 {
        return Err("must contain at least one CERTIFICATE PEM block".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=ok`.
    const REQUEST: &str = "\
-----BEGIN CERTIFICATE REQUEST-----
MIHHMG8CAQAwDTELMAkGA1UEAwwCb2swWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AAQSH/IbYY2suroNDOT/xZ8giwIOHVjQMRdJwijmlg0Po3dOz0j3QAV67u3W/u4T
r5T62EREVGCunm7Dkwbo2sujoAAwCgYIKoZIzj0EAwIDSAAwRQIgFnf8Vp7w5ZOo
Q96TLNhCTeCNbl/hoBPcHA0fLsM2wY0CIQCT8SZdfC5WmzM7dEuj25NK6zV08NXU
lebDdL4+29ztxw==
-----END CERTIFICATE REQUEST-----";

    fn check(pem: &str) -> Result<(), String> {
        check_request(&STANDARD.encode(pem))
    }

    /// One whose end is malformed is no block to Go, which takes the next one: a request of
    /// `system:masters` behind a harmless one.
    #[test]
    fn a_request_is_the_same_to_whoever_reads_it() {
        assert_eq!(check(REQUEST), Ok(()));
        assert_eq!(check(&format!("Certificate Request:\n  Data:\n{REQUEST}\n")), Ok(()));
        let only_one = Err("only one PEM block is allowed".to_owned());
        let other = REQUEST.replace("CERTIFICATE REQUEST", "OTHER");
        for second in [REQUEST, &other, &REQUEST.replace('\n', "\r\n")] {
            assert_eq!(check(&format!("{REQUEST}\n{second}")), only_one);
            let open = REQUEST.replace("END CERTIFICATE REQUEST", "END CERTIFICATE");
            assert_eq!(check(&format!("{open}\n{second}")), only_one);
        }
        assert_eq!(check(&other), Err("PEM block type must be CERTIFICATE REQUEST".to_owned()));
    }

    #[test]
    fn bytes_after_the_request_in_its_block_are_refused() {
        let (_, pem) = parse_x509_pem(REQUEST.as_bytes()).unwrap();
        let longer = [&pem.contents[..], b"\x30\x00"].concat();
        let label = "CERTIFICATE REQUEST";
        let text =
            format!("-----BEGIN {label}-----\n{}\n-----END {label}-----", STANDARD.encode(longer));
        assert_eq!(check(&text), Err("asn1: syntax error: trailing data".to_owned()));
    }
}
