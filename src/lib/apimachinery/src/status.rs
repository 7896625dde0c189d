//! `Failure`: every error that clients see, and the only place that chooses its HTTP status.

use crate::document::{Document, Value, json};
use crate::field::{FieldError, MAX_ERRORS, quote};
use crate::gvk::GroupResource;
use std::collections::HashSet;

/// The machine-readable reason of a failed request (`status.reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// 400
    BadRequest,
    /// 401
    Unauthorized,
    /// 403
    Forbidden,
    /// 404
    NotFound,
    /// 409: the name is taken.
    AlreadyExists,
    /// 409: the object changed, or another manager owns a field.
    Conflict,
    /// 410: the resource is gone for good.
    Gone,
    /// 410: a resource version or continue token is too old.
    Expired,
    /// 422
    Invalid,
    /// 500: try again, with the delay in `retry_after_seconds`.
    ServerTimeout,
    /// 504
    Timeout,
    /// 429
    TooManyRequests,
    /// 406
    NotAcceptable,
    /// 405
    MethodNotAllowed,
    /// 415
    UnsupportedMediaType,
    /// 413
    RequestEntityTooLarge,
    /// 500
    InternalError,
    /// 503
    ServiceUnavailable,
    /// 507: the disk of the store is full; reads and deletes continue.
    InsufficientStorage,
}

impl Reason {
    /// The HTTP status of a reason. No other place chooses one.
    pub fn code(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Gone | Self::Expired => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::TooManyRequests => 429,
            Self::ServerTimeout | Self::InternalError => 500,
            Self::ServiceUnavailable => 503,
            Self::Timeout => 504,
            Self::InsufficientStorage => 507,
        }
    }

    /// Name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Gone => "Gone",
            Self::Expired => "Expired",
            Self::Invalid => "Invalid",
            Self::ServerTimeout => "ServerTimeout",
            Self::Timeout => "Timeout",
            Self::TooManyRequests => "TooManyRequests",
            Self::NotAcceptable => "NotAcceptable",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::InternalError => "InternalError",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::InsufficientStorage => "InsufficientStorage",
        }
    }
}

/// One cause in `status.details.causes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Name in the API, such as `FieldValueRequired`.
    pub reason: String,
    /// For users.
    pub message: String,
    /// Path of the field; empty if the cause concerns none.
    pub field: String,
}

/// `status.details`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Name of the object.
    pub name: String,
    /// Group of the object.
    pub group: String,
    /// Plural resource or, in an `Invalid` failure, kind.
    pub kind: String,
    /// Uid of the object.
    pub uid: String,
    /// Individual errors.
    pub causes: Vec<Cause>,
    /// Delay before a retry; 0 if unspecified. Also sent as `Retry-After`.
    pub retry_after_seconds: u32,
}

/// A failed request as its client sees it. Safe to show: contains no secrets and no internal error
/// chain, which is logged where it is handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// `None` for the few errors that kube-apiserver sends without a reason.
    pub reason: Option<Reason>,
    /// The reason of a webhook that rejected the request; may be empty.
    pub other_reason: Option<Box<str>>,
    /// HTTP status.
    pub code: u16,
    /// For users.
    pub message: String,
    /// Object and causes.
    pub details: Option<Details>,
    /// `metadata.continue` of an `Expired` list: continues it inconsistently.
    pub continue_token: Option<String>,
}

impl Failure {
    /// A failure with the HTTP status of the reason.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason: Some(reason),
            other_reason: None,
            code: reason.code(),
            message: message.into(),
            details: None,
            continue_token: None,
        }
    }

    /// Sets the details.
    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(details);
        self
    }

    /// A failure without a reason.
    pub fn bare(code: u16, message: impl Into<String>) -> Self {
        Self {
            reason: None,
            other_reason: None,
            code,
            message: message.into(),
            details: None,
            continue_token: None,
        }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// 500 with reason `InternalError`. The message is shown to clients.
    pub fn internal(message: impl Into<String>) -> Self {
        let detail = message.into();
        let message = format!("Internal error occurred: {detail}");
        let cause = Cause { message: detail, ..Cause::default() };
        Self::new(Reason::InternalError, message)
            .with_details(Details { causes: vec![cause], ..Details::default() })
    }

    /// 404: the object does not exist.
    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        Self::new(Reason::NotFound, format!("{resource} {} not found", quote(name)))
            .with_details(Details::of(resource, name))
    }

    /// 409: the name is taken.
    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        Self::new(Reason::AlreadyExists, format!("{resource} {} already exists", quote(name)))
            .with_details(Details::of(resource, name))
    }

    /// 409: a precondition failed.
    pub fn conflict(resource: &GroupResource, name: &str, why: &str) -> Self {
        Self::new(
            Reason::Conflict,
            format!("Operation cannot be fulfilled on {resource} {}: {why}", quote(name)),
        )
        .with_details(Details::of(resource, name))
    }

    /// 403: the operation is not allowed.
    pub fn forbidden(resource: &GroupResource, name: &str, why: &str) -> Self {
        let subject = match name {
            _ if resource.group.is_empty() && resource.resource.is_empty() => {
                "forbidden".to_owned()
            }
            "" => format!("{resource} is forbidden"),
            name => format!("{resource} {} is forbidden", quote(name)),
        };
        Self::new(Reason::Forbidden, format!("{subject}: {why}"))
            .with_details(Details::of(resource, name))
    }

    /// 422 with a cause per field, at most [`MAX_ERRORS`]. `kind` is the kind, not the resource.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let more = errors.len().saturating_sub(MAX_ERRORS);
        let errors: Vec<FieldError> =
            errors.iter().take(MAX_ERRORS).map(FieldError::bounded).collect();
        // The message has no duplicates; the causes do.
        let mut said = HashSet::new();
        let texts = errors.iter().map(|error| format!("{}: {}", error.field, error.message));
        let mut texts: Vec<String> = texts.filter(|text| said.insert(text.clone())).collect();
        if more > 0 {
            texts.push(format!("and {more} more"));
        }
        let list =
            if texts.len() == 1 { texts.concat() } else { format!("[{}]", texts.join(", ")) };
        let subject = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let causes = errors
            .iter()
            .map(|error| Cause {
                reason: error.reason.as_str().to_owned(),
                message: error.message.clone(),
                field: error.field.clone(),
            })
            .collect();
        let details = Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            causes,
            ..Details::default()
        };
        Self::new(Reason::Invalid, format!("{subject} {} is invalid: {list}", quote(name)))
            .with_details(details)
    }

    /// The reason as in the `Status` object.
    pub fn reason_text(&self) -> Option<&str> {
        let other = self.other_reason.as_deref().filter(|reason| !reason.is_empty());
        self.reason.map(Reason::as_str).or(other)
    }

    /// Details as in the `Status` object; `None` without any.
    pub fn details_value(&self) -> Option<Value> {
        self.details.as_ref().map(Details::to_value)
    }

    /// `Status` object for the response.
    pub fn to_document(&self) -> Document {
        let mut status = Document::new();
        status.set(&["kind"], "Status");
        status.set(&["apiVersion"], "v1");
        status.set(&["metadata"], json!({}));
        if let Some(token) = &self.continue_token {
            status.set(&["metadata", "continue"], token.as_str());
        }
        status.set(&["status"], "Failure");
        if !self.message.is_empty() {
            status.set(&["message"], self.message.as_str());
        }
        if let Some(reason) = self.reason_text() {
            status.set(&["reason"], reason);
        }
        if let Some(details) = &self.details {
            status.set(&["details"], details.to_value());
        }
        status.set(&["code"], self.code);
        status
    }
}

impl Details {
    /// Details with the name of an object.
    pub fn of(resource: &GroupResource, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            group: resource.group.clone(),
            kind: resource.resource.clone(),
            ..Self::default()
        }
    }

    fn to_value(&self) -> Value {
        let mut out = Document::new();
        for (field, text) in
            [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)]
        {
            if !text.is_empty() {
                out.set(&[field], text.as_str());
            }
        }
        if !self.causes.is_empty() {
            out.set(&["causes"], Value::Array(self.causes.iter().map(Cause::to_value).collect()));
        }
        if self.retry_after_seconds > 0 {
            out.set(&["retryAfterSeconds"], self.retry_after_seconds);
        }
        out.into_value()
    }
}

impl Cause {
    fn to_value(&self) -> Value {
        let mut out = Document::new();
        for (field, text) in
            [("reason", &self.reason), ("message", &self.message), ("field", &self.field)]
        {
            if !text.is_empty() {
                out.set(&[field], text.as_str());
            }
        }
        out.into_value()
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_in_go() {
        let resource = GroupResource { group: String::new(), resource: "things".to_owned() };
        let name = "a\\b\"\0";
        let quoted = r#"things "a\\b\"\x00""#;
        for (failure, rest) in [
            (Failure::not_found(&resource, name), "not found"),
            (Failure::already_exists(&resource, name), "already exists"),
            (Failure::forbidden(&resource, name, "no"), "is forbidden: no"),
        ] {
            assert_eq!(failure.to_string(), format!("{quoted} {rest}"));
        }
        assert!(Failure::conflict(&resource, name, "no").to_string().contains(quoted));
        let none = GroupResource { group: String::new(), resource: String::new() };
        assert_eq!(Failure::forbidden(&none, "a", "no").to_string(), "forbidden: no");
    }
}
