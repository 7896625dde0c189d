//! Bounds that need nothing but the head: the query's size, the asked timeout. The body is bounded where it is read.

use crate::exchange::{Exchange, Stop};
use crate::query::{Query, parse_duration};
use crate::server::Shared;
use ferrokube_apimachinery::go::duration_fault;
use ferrokube_apimachinery::status::Failure;
use std::time::Duration;

/// The longest query.
const MAX_QUERY_BYTES: usize = 256 * 1024;

/// Checks the head, parses the query.
pub(crate) fn enter(shared: &Shared, exchange: &mut Exchange) -> Result<(), Stop> {
    exchange.audit_id = super::audit::id_of(&exchange.head.headers);
    let raw = exchange.head.uri.query();
    if raw.is_some_and(|raw| raw.len() > MAX_QUERY_BYTES) {
        return Err(Failure::bad_request(format!("the query is longer than {MAX_QUERY_BYTES} bytes")).into());
    }
    exchange.query = Query::parse(raw);
    exchange.timeout = timeout(exchange.query.text("timeout"), shared.limits.request)?;
    Ok(())
}

/// The asked timeout, at most the server's; nothing, zero and less ask for the server's.
fn timeout(text: &str, most: Duration) -> Result<Duration, Failure> {
    if text.is_empty() {
        return Ok(most);
    }
    let asked = parse_duration(text).ok_or_else(|| Failure::bad_request(format!("invalid timeout specified in the request URL - {}", duration_fault(text))))?;
    Ok(if asked.is_zero() { most } else { asked.min(most) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_timeouts_are_capped() {
        let most = Duration::from_secs(60);
        for (text, want) in [("", 60), ("0", 60), ("-5s", 60), ("999h", 60), ("1s", 1)] {
            assert_eq!(timeout(text, most).unwrap(), Duration::from_secs(want), "{text}");
        }
        let refused = timeout("abc", most).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (400, "invalid timeout specified in the request URL - time: invalid duration \"abc\""));
    }
}
