//! A clock set by hand.

use crate::clock::Clock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

type WakeCall = Arc<dyn Fn() + Send + Sync>;

/// Stands still unless advanced.
pub struct ManualClock {
    state: Mutex<(Duration, SystemTime)>,
    listeners: Mutex<Vec<WakeCall>>,
}

impl Default for ManualClock {
    fn default() -> Self {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        Self { state: Mutex::new((Duration::from_secs(1000), wall)), listeners: Mutex::default() }
    }
}

impl ManualClock {
    /// Advances both clocks.
    pub fn advance(&self, by: Duration) {
        {
            let mut state = self.state.lock();
            state.0 += by;
            state.1 += by;
        }
        self.tell();
    }

    /// Sets the wall clock only.
    pub fn set_wall(&self, wall: SystemTime) {
        self.state.lock().1 = wall;
        self.tell();
    }

    fn tell(&self) {
        let listeners = self.listeners.lock().clone();
        for listener in listeners {
            listener();
        }
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Duration {
        self.state.lock().0
    }

    fn wall(&self) -> SystemTime {
        self.state.lock().1
    }

    fn on_leap(&self, wake: WakeCall) {
        self.listeners.lock().push(wake);
    }
}
