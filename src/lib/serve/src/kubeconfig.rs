//! The kubeconfig file of a client with a certificate.
