//! Lets a thread move only when another one says so, which waits meanwhile: for tests that must be repeatable. Without it costs nothing.

use crate::sync;
use std::sync::{Condvar, Mutex};

/// Between a driver and the one thread that it drives.
#[derive(Default)]
pub(crate) struct StepGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Steps that the thread may take.
    granted: usize,
    /// The thread waits for steps.
    is_waiting: bool,
    /// The thread has ended.
    is_over: bool,
    /// The thread need not wait any more.
    is_open: bool,
}

impl StepGate {
    /// The thread's next step; waits until it is granted.
    pub(crate) fn step(&self) {
        let mut state = sync::lock(&self.state);
        while state.granted == 0 && !state.is_open {
            state.is_waiting = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state.is_waiting = false;
        state.granted = state.granted.saturating_sub(1);
    }

    /// The thread ends.
    pub(crate) fn end(&self) {
        sync::lock(&self.state).is_over = true;
        self.changed.notify_all();
    }

    /// Grants steps, and waits until they are taken or the thread has ended.
    pub(crate) fn advance(&self, steps: usize) {
        let mut state = sync::lock(&self.state);
        state.granted = steps;
        if steps > 0 {
            state.is_waiting = false;
            self.changed.notify_all();
        }
        while !(state.is_over || (state.is_waiting && state.granted == 0)) {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// The thread need not wait any more.
    pub(crate) fn open(&self) {
        sync::lock(&self.state).is_open = true;
        self.changed.notify_all();
    }

    /// Whether the thread has ended.
    pub(crate) fn is_over(&self) -> bool {
        sync::lock(&self.state).is_over
    }
}
