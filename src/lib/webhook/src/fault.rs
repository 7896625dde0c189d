//! Why a call failed, as clients may know it.

use crate::service::ServiceError;
use std::fmt;

/// The class of a failed call. Its causes (addresses, system errors, certificates, contents of the
/// answer) reveal the server's network, which writers of configurations need not know: they are
/// only logged, without the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// The configuration has no usable address or certificate.
    Config(String),
    /// The service has no addresses.
    Service(String),
    /// No answer in time.
    Timeout,
    /// No connection.
    Unreachable,
    /// The connection broke.
    Broken,
    /// Another status than 200.
    Status(u16),
    /// More bytes than this.
    TooLong(usize),
}

impl fmt::Display for CallFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(why) | Self::Service(why) => f.write_str(why),
            Self::Timeout => f.write_str("it did not answer in time"),
            Self::Unreachable => f.write_str("it could not be reached"),
            Self::Broken => f.write_str("the call failed"),
            Self::Status(code) => write!(f, "it answered with status {code}"),
            Self::TooLong(limit) => write!(f, "its answer is longer than {limit} bytes"),
        }
    }
}

impl From<&reqwest::Error> for CallFault {
    /// The class; the causes are logged.
    fn from(error: &reqwest::Error) -> Self {
        let mut fault = match (error.is_timeout(), error.is_connect()) {
            (true, _) => Self::Timeout,
            (_, true) => Self::Unreachable,
            _ => Self::Broken,
        };
        let (mut causes, mut cause) = (Vec::new(), std::error::Error::source(error));
        while let Some(inner) = cause {
            if let Some(service) = inner.downcast_ref::<ServiceError>() {
                // The writer of the configuration knows the service.
                fault = Self::Service(service.to_string());
            }
            causes.push(inner.to_string());
            cause = inner.source();
        }
        tracing::warn!(class = %fault, causes = causes.join(": "), "calling a webhook failed");
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_47_only_the_class_of_a_call_error_is_returned() {
        // The only error of this kind that needs no connection.
        let error = reqwest::Proxy::all("http://[").expect_err("no address");
        assert!(std::error::Error::source(&error).is_some(), "it has a cause");
        assert_eq!(CallFault::from(&error).to_string(), "the call failed");
    }
}
