//! Environment variables, and their size budget.

use crate::objects::PodObjectError;
use std::collections::BTreeMap;

/// Max bytes of a container's variables; Linux accepts at most 6 MiB per process.
pub(crate) const MAX_VARIABLES: usize = 8 << 20;

/// By name.
pub(crate) type Variables = BTreeMap<String, String>;

/// Remaining bytes for a container's variables: names and values from objects, and expanded
/// references.
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
