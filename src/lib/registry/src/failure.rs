//! Errors that several steps share.

use crate::catalog::Served;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::status::{Cause, Details, Failure, Reason};
use ferrokube_storage::{CommitError, Rejected, Revision, Unavailable};

/// 422 on the request's options, such as `ListOptions`.
pub(crate) fn invalid_options(kind: &str, errors: &[FieldError]) -> Failure {
    Failure::invalid("meta.k8s.io", kind, "", errors)
}

/// 422 on an object.
pub(crate) fn invalid_object(served: &Served, object: &Document, errors: &[FieldError]) -> Failure {
    let definition = &served.definition;
    let group = definition.policy.invalid_group.unwrap_or(&definition.group);
    // A custom object may claim another kind, which the error then names.
    let kind = if definition.dialect.is_typed() { &definition.kind } else { object.kind() };
    Failure::invalid(group, kind, object.name(), errors)
}

/// 409: the resourceVersion of an update is stale.
pub(crate) fn modified(served: &Served, name: &str) -> Failure {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    Failure::conflict(&served.definition.group_resource(), name, why)
}

/// A transaction that the store refused.
pub(crate) fn rejected(rejected: &Rejected) -> Failure {
    match rejected {
        Rejected::Busy => {
            let details = Details { retry_after_seconds: 1, ..Details::default() };
            Failure::new(
                Reason::TooManyRequests,
                "too many writes are waiting to be stored, please try again later",
            )
            .with_details(details)
        }
        Rejected::Guard(_) => Failure::new(
            Reason::ServerTimeout,
            "the object changed too often while it was written, please try again",
        ),
        _ => Failure::new(Reason::ServiceUnavailable, "the store takes no more writes"),
    }
}

/// An accepted transaction that failed.
pub(crate) fn lost(error: &CommitError) -> Failure {
    match error {
        CommitError::DiskFull => Failure::new(
            Reason::InsufficientStorage,
            "the disk is full: nothing was written; deletes and changes that make an object no larger are still taken",
        ),
        CommitError::Unavailable(why) => unavailable(&Unavailable(why.clone())),
        CommitError::Unknown(_) => {
            tracing::error!(error = %error, "the outcome of a write is unknown");
            Failure::new(
                Reason::Timeout,
                "the storage did not answer in time; whether the write happened is unknown",
            )
        }
        CommitError::Invalid(_) => {
            tracing::warn!(error = %error, "the storage refused a write");
            Failure::new(Reason::RequestEntityTooLarge, "the storage refuses a write of this size")
        }
        _ => {
            tracing::error!(error = %error, "a write was lost");
            Failure::internal(
                "the store failed; whether the write survived shows after the restart",
            )
        }
    }
}

/// 503: a storage on other machines does not answer.
pub(crate) fn unavailable(error: &Unavailable) -> Failure {
    tracing::debug!(error = %error, "a request failed");
    let details = Details { retry_after_seconds: 1, ..Details::default() };
    Failure::new(Reason::ServiceUnavailable, "the storage is unavailable, please try again later")
        .with_details(details)
}

/// 504: a resourceVersion that this server has not reached.
pub(crate) fn too_large(asked: u64, now: Revision) -> Failure {
    let details = Details { retry_after_seconds: 1, ..version_too_large() };
    Failure::new(
        Reason::Timeout,
        format!("Timeout: Too large resource version: {asked}, current: {now}"),
    )
    .with_details(details)
}

/// 410: a watch from a resourceVersion that this server has not reached.
pub(crate) fn future_version(asked: u64, now: Revision) -> Failure {
    Failure::new(Reason::Expired, format!("Too large resource version: {asked}, current: {now}"))
        .with_details(version_too_large())
}

fn version_too_large() -> Details {
    let cause = Cause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        field: String::new(),
    };
    Details { causes: vec![cause], ..Details::default() }
}

/// 413: the object exceeds the size limit.
pub(crate) fn too_large_object(bytes: usize, limit: usize) -> Failure {
    Failure::new(
        Reason::RequestEntityTooLarge,
        format!("the object has {bytes} bytes, the limit is {limit}"),
    )
}
