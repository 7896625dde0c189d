//! Keys and certificates: the CA, serving and client certificates, renewal before they expire.
