//! Writes the condition of an APIService.

use crate::service::{Available, RegisteredService};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::time;
use ferrokube_registry::Local;
use std::time::SystemTime;

/// Whether the service was available and is no longer. No write if nothing changes; objects that
/// are gone are ignored.
///
/// # Errors
/// The registry's, conflicts included.
pub(crate) async fn write(
    client: &Local,
    name: &str,
    condition: &Available,
) -> Result<bool, Failure> {
    let Some(stored) = client.get("", name).await? else { return Ok(false) };
    let mut object = stored.clone();
    condition.put(&mut object, &time::rfc3339_seconds(SystemTime::now()));
    if object == stored {
        return Ok(false);
    }
    let was_available = RegisteredService::of(&stored).is_available();
    client.update(object, "status").await?;
    Ok(was_available && !condition.is_true())
}
