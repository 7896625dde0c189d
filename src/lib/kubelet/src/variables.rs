//! Variables, and the bound of their bytes.

use crate::objects::PodObjectError;
use std::collections::BTreeMap;

/// Bytes of a container's variables; Linux gives a process at most 6 MiB.
pub(crate) const MAX_VARIABLES: usize = 8 << 20;

/// By name.
pub(crate) type Variables = BTreeMap<String, String>;

/// Bytes that the variables of a container may still take: names and values from other objects, and
/// values that replace references.
pub(crate) struct VariableRoom {
    pub(crate) left: usize,
}

impl VariableRoom {
    pub(crate) fn new() -> Self {
        Self { left: MAX_VARIABLES }
    }

    /// Reserves bytes, before they are copied.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), PodObjectError> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            PodObjectError::Invalid(format!("the variables are larger than {MAX_VARIABLES} bytes"))
        })?;
        Ok(())
    }
}
