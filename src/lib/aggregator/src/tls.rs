//! TLS to aggregated servers: their CA, their name, and our identity as a front proxy.

use crate::service::RemoteService;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_relay::tls::AnyCertificate;
pub use ferrokube_relay::tls::{ClientIdentity as ProxyIdentity, IdentityError};
use ferrokube_webhook::bundle_verifier;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, crypto::ring};
use std::sync::Arc;

/// TLS configuration for one service; the error is for its condition.
pub(crate) fn config(
    service: &RemoteService,
    identity: &ProxyIdentity,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| "TLS cannot be set up".to_owned())?;
    let verified = if service.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate::default()))
    } else {
        let pem = STANDARD.decode(&service.ca_bundle);
        let pem = pem.map_err(|_| "its caBundle is not base64".to_owned())?;
        // No other CA signs names that end with `.svc`.
        builder.dangerous().with_custom_certificate_verifier(bundle_verifier(&pem)?)
    };
    let mut config = verified.with_client_cert_resolver(Arc::new(identity.clone()));
    // One request per connection at a time: on a shared one, the watches of one caller could take
    // all streams.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The name that the certificate must have, regardless of the address it is found at.
pub(crate) fn server_name(service: &RemoteService) -> Result<ServerName<'static>, String> {
    ServerName::try_from(format!("{}.{}.svc", service.name, service.namespace))
        .map_err(|_| "its name cannot stand in a certificate".to_owned())
}
