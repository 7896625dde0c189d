//! `includeObject`: the objects in rows of Tables.

use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::status::Failure;

/// Object in a row, next to its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Include {
    /// `null`
    None,
    /// `PartialObjectMetadata`
    Metadata,
    /// The whole object.
    Object,
}

impl Include {
    /// Parses `includeObject`.
    ///
    /// # Errors
    /// 400 for any other word.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        match text {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => {
                let error = FieldError::invalid(
                    "includeObject",
                    other,
                    "must be 'Metadata', 'Object', 'None', or empty",
                );
                Err(Failure::bad_request(format!(
                    "Unable to convert to Table as requested: {}: {}",
                    error.field, error.message
                )))
            }
        }
    }
}
