//! Names the flag that helps with an error of the control plane.

use anyhow::anyhow;
use ferrokube_server::{BuildError, InputError, ServeError};
use std::io::ErrorKind;

/// [`advise`] for a start.
pub(super) fn of_start(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Build(error) => advise(error),
        error => error.into(),
    }
}

/// The error in terms of the command line.
pub(super) fn advise(error: impl Into<BuildError>) -> anyhow::Error {
    match error.into() {
        BuildError::Input(InputError::Address { address, source }) => {
            let advice = match source.kind() {
                ErrorKind::AddrInUse => {
                    "in use by another process; stop it, or choose another port with --secure-port (0 takes any free one)"
                }
                ErrorKind::AddrNotAvailable => {
                    "not an address of this machine; choose another with --bind-address"
                }
                ErrorKind::PermissionDenied => {
                    "not permitted; choose a port above 1023 with --secure-port"
                }
                _ => return InputError::Address { address, source }.into(),
            };
            anyhow!("cannot listen on {address}: {advice}")
        }
        BuildError::Input(error) => {
            let flag = match &error {
                InputError::NoHome | InputError::Locked { .. } => "--data-dir",
                InputError::Names(_) => "--tls-san",
                _ => return error.into(),
            };
            anyhow::Error::from(error).context(format!("see {flag}"))
        }
        error => error.into(),
    }
}
