//! Failures of calls, shown as clients of gRPC in Go show them: events quote them.

use std::fmt;

/// A call that failed. Whether to retry is the caller's decision; nothing here retries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code} desc = {message}")]
pub struct CriError {
    /// Kind of the failure.
    pub code: CallCode,
    /// The runtime's message.
    pub message: String,
}

impl CriError {
    /// An error of this kind.
    pub fn new(code: CallCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Whether the runtime knows no such object.
    pub fn is_not_found(&self) -> bool {
        self.code == CallCode::NotFound
    }
}

/// Codes of gRPC, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallCode {
    /// Cancelled by the caller.
    Canceled = 1,
    /// Anything else.
    Unknown,
    /// A wrong request.
    InvalidArgument,
    /// No response in time.
    DeadlineExceeded,
    /// No such object.
    NotFound,
    /// An object with that id or name exists.
    AlreadyExists,
    /// Forbidden.
    PermissionDenied,
    /// A limit is reached.
    ResourceExhausted,
    /// Wrong state.
    FailedPrecondition,
    /// Aborted because of a concurrent call.
    Aborted,
    /// Past the end.
    OutOfRange,
    /// Not supported.
    Unimplemented,
    /// A defect of the runtime.
    Internal,
    /// Not reachable.
    Unavailable,
    /// Data is lost.
    DataLoss,
    /// Credentials are missing or wrong.
    Unauthenticated,
}

impl CallCode {
    const ALL: [Self; 16] = [
        Self::Canceled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// Code by gRPC's number; unknown numbers are `Unknown`.
    pub fn from_number(number: i32) -> Self {
        let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        index.and_then(|index| Self::ALL.get(index)).copied().unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for CallCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
