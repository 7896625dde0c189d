//! Writes the condition of an APIService.

use crate::service::Available;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::time;
use ferrokube_registry::Local;
use std::time::SystemTime;

/// No write if nothing changes; objects that are gone are ignored.
///
/// # Errors
/// The registry's, conflicts included.
pub(crate) async fn write(
    client: &Local,
    name: &str,
    condition: &Available,
) -> Result<(), Failure> {
    let Some(stored) = client.get("", name).await? else { return Ok(()) };
    let mut object = stored.clone();
    condition.put(&mut object, &time::rfc3339_seconds(SystemTime::now()));
    if object == stored { Ok(()) } else { client.update(object, "status").await.map(drop) }
}
