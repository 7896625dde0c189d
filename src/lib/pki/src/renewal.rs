//! Renewal of certificates by the wall clock, while running.

use std::time::{Duration, SystemTime};

/// How often the wall clock is read: it may be set, and the machine may sleep, which a timer does
/// not notice.
const POLL: Duration = Duration::from_secs(10);
/// Delay after a failed renewal.
const RETRY: Duration = Duration::from_secs(60);
/// Certificates are backdated for clients whose clock is slow.
pub(crate) const BACKDATED: Duration = Duration::from_secs(300);

/// When to replace a certificate, by the wall clock: after two thirds of its lifetime, or when the
/// clock was set back to before its validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    not_before: SystemTime,
    at: SystemTime,
}

impl Renewal {
    pub(crate) fn of(issued: SystemTime, lifetime: Duration) -> Self {
        Self { not_before: issued - BACKDATED, at: issued + lifetime * 2 / 3 }
    }

    /// The earlier of both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { not_before: self.not_before.max(other.not_before), at: self.at.min(other.at) }
    }

    /// The time left, unless the clock is set.
    fn left(self, now: SystemTime) -> Duration {
        if now < self.not_before {
            Duration::ZERO
        } else {
            self.at.duration_since(now).unwrap_or_default()
        }
    }

    /// Resolves when it is due.
    pub async fn due(self) {
        self.due_by(SystemTime::now).await;
    }

    async fn due_by(self, clock: impl Fn() -> SystemTime) {
        loop {
            let left = self.left(clock());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(POLL)).await;
        }
    }
}

/// Calls `issue` whenever its last certificate is due, until `end` resolves. `issue` installs the
/// new certificate and returns when that is due; after an error it is called again within a minute.
pub async fn renew<E: std::error::Error + 'static>(
    first: Renewal,
    end: impl Future<Output = ()>,
    issue: impl FnMut() -> Result<Renewal, E>,
) {
    renew_by(SystemTime::now, first, end, issue).await;
}

async fn renew_by<E: std::error::Error + 'static>(
    clock: impl Fn() -> SystemTime,
    first: Renewal,
    end: impl Future<Output = ()>,
    mut issue: impl FnMut() -> Result<Renewal, E>,
) {
    let mut end = std::pin::pin!(end);
    let mut next = first;
    let mut pause = Duration::ZERO;
    loop {
        tokio::select! {
            () = &mut end => return,
            () = async {
                tokio::time::sleep(pause).await;
                next.due_by(&clock).await;
            } => {}
        }
        pause = match issue() {
            Ok(renewal) => {
                tracing::info!("certificates renewed");
                next = renewal;
                Duration::ZERO
            }
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot renew certificates"
                );
                RETRY
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LEAF_LIFETIME;

    #[tokio::test]
    async fn certificates_are_renewed_while_running_and_failures_are_retried() {
        let end = tokio::sync::Notify::new();
        let mut calls = 0;
        let soon = || Renewal {
            not_before: SystemTime::UNIX_EPOCH,
            at: SystemTime::now() + Duration::from_millis(20),
        };
        renew(soon(), end.notified(), || {
            calls += 1;
            if calls == 2 {
                end.notify_one();
            }
            Ok::<_, std::io::Error>(soon())
        })
        .await;
        assert_eq!(calls, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn fault_14_a_clock_that_is_set_either_way_renews_within_seconds() {
        let wall = std::sync::Mutex::new(SystemTime::now());
        let clock = || *wall.lock().unwrap();
        let end = tokio::sync::Notify::new();
        let (renewed, seen) = tokio::sync::watch::channel(0);
        let mut calls = 0;
        let renewing = renew_by(clock, Renewal::of(clock(), LEAF_LIFETIME), end.notified(), || {
            calls += 1;
            renewed.send_replace(calls);
            // The second time it fails.
            if calls == 2 {
                Err(std::io::Error::other("no"))
            } else {
                Ok(Renewal::of(clock(), LEAF_LIFETIME))
            }
        });
        let setting = async {
            let waits = async |count, bound| {
                let begun = tokio::time::Instant::now();
                seen.clone().wait_for(|seen| *seen == count).await.unwrap();
                assert!(begun.elapsed() <= bound, "{:?}", begun.elapsed());
            };
            tokio::time::sleep(POLL * 10).await;
            assert_eq!(*seen.borrow(), 0);
            *wall.lock().unwrap() += LEAF_LIFETIME;
            waits(1, POLL).await;
            *wall.lock().unwrap() -= LEAF_LIFETIME * 3;
            waits(2, POLL).await;
            waits(3, RETRY).await;
            tokio::time::sleep(POLL * 10).await;
            assert_eq!(*seen.borrow(), 3);
            end.notify_one();
        };
        tokio::join!(renewing, setting);
    }
}
