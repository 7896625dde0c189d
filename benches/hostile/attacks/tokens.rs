//! Tokens that nobody has issued.

use super::namespaces::token;
use super::tenants::JSON;
use super::{AttackTally, at_once};
use crate::testbed::Testbed;
use crate::wire::{Wire, WireProtocol};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Characters of a signature that are replaced, in base64url.
const FORGED: usize = 16;

/// Service account tokens with another signature each, as many on a connection as it takes.
pub(super) async fn forged(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let genuine = match token(&stage, "genuine").await {
        Ok(token) => token,
        Err(error) => return tally.count(format!("no token: {error:#}")),
    };
    let Some(claims) = genuine.len().checked_sub(2 * FORGED) else { return };
    let number = AtomicU64::new(0);
    at_once(60, |_| async {
        let Ok(mut wire) = Wire::connect(&stage, WireProtocol::Http1).await else {
            return tally.count("refused");
        };
        let mut answered = false;
        loop {
            let number = number.fetch_add(1, Ordering::Relaxed);
            let (begin, end) = (&genuine[..claims], &genuine[claims + FORGED..]);
            let token = format!("{begin}{number:0FORGED$x}{end}");
            let answer = wire.send("GET", "/version", &token, JSON, b"").await;
            if answer.is_err() && answered {
                // Closed after a response.
                return;
            }
            tally.answer(&answer);
            answered = true;
        }
    })
    .await;
}
