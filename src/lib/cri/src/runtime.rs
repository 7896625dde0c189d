//! Typed calls over a transport.

use crate::error::{CallCode, CriError};
use bytes::Bytes;
use prost::Message;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Default of a call's deadline: kubelet's `runtimeRequestTimeout`.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A response, not yet decoded.
pub type TransportFuture<'a> = Pin<Box<dyn Future<Output = Result<Bytes, CriError>> + Send + 'a>>;

/// Carries encoded requests to a runtime.
pub trait Transport: Send + Sync {
    /// Calls a method by its full path. Dropping the future cancels the call. The ids of the
    /// current trace context, if any, go along.
    fn call(&self, path: &'static str, request: Bytes) -> TransportFuture<'_>;
}

/// A container runtime. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    transport: Arc<dyn Transport>,
    deadline: Option<Duration>,
}

impl Runtime {
    /// Calls over this transport, each limited to two minutes.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, deadline: Some(CALL_TIMEOUT) }
    }

    /// The same runtime with another limit on the time of a call; `None`: no limit.
    pub fn within(&self, deadline: Option<Duration>) -> Self {
        Self { transport: Arc::clone(&self.transport), deadline }
    }

    /// Calls a method by its full path. Other services of the same conventions use it, too.
    ///
    /// # Errors
    /// The runtime's, `DeadlineExceeded`, or `Internal` for a response that cannot be decoded.
    pub async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, CriError>
    where
        Q: Message,
        A: Message + Default,
    {
        let call = self.transport.call(path, request.encode_to_vec().into());
        let response = match self.deadline {
            None => call.await?,
            Some(deadline) => tokio::time::timeout(deadline, call).await.map_err(|_| {
                CriError::new(CallCode::DeadlineExceeded, "context deadline exceeded")
            })??,
        };
        A::decode(response)
            .map_err(|error| CriError::new(CallCode::Internal, format!("response: {error}")))
    }
}

/// A message's bytes: equal for equal messages.
pub fn encoded(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

/// Makes a function of [`Runtime`] and a constant in `path` for each method.
macro_rules! methods {
    ($($name:ident: $path:literal, $request:ty => $response:ty;)*) => {
        impl crate::Runtime {
            $(
                #[doc = concat!("Calls `", $path, "`.\n\n# Errors\nThe runtime's.")]
                pub async fn $name(&self, request: $request) -> Result<$response, crate::CriError> {
                    self.call($path, request).await
                }
            )*
        }

        /// Paths of the methods.
        #[allow(non_upper_case_globals)]
        pub mod path {
            $(
                #[doc = concat!("Of `Runtime::", stringify!($name), "`.")]
                pub const $name: &str = $path;
            )*
        }
    };
}
pub(crate) use methods;
