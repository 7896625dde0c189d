//! Runs a thread in lockstep with the thread that drives it, for reproducible tests. Unused in
//! production.

use parking_lot::{Condvar, Mutex};

/// Connects a driver with the one thread that it drives.
#[derive(Default)]
pub(crate) struct StepGate {
    state: Mutex<StepGateState>,
    changed: Condvar,
}

#[derive(Default)]
struct StepGateState {
    /// Steps that the thread may take.
    granted: usize,
    /// The thread is waiting for steps.
    is_waiting: bool,
    /// The thread has ended.
    is_over: bool,
    /// The thread runs freely.
    is_open: bool,
}

impl StepGate {
    /// Takes a step, once it is granted.
    pub(crate) fn step(&self) {
        let mut state = self.state.lock();
        while state.granted == 0 && !state.is_open {
            state.is_waiting = true;
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
        state.is_waiting = false;
        state.granted = state.granted.saturating_sub(1);
    }

    /// Marks the thread as ended.
    pub(crate) fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Grants steps, and waits until they are taken or the thread has ended.
    pub(crate) fn advance(&self, steps: usize) {
        let mut state = self.state.lock();
        state.granted = steps;
        if steps > 0 {
            state.is_waiting = false;
            self.changed.notify_all();
        }
        while !(state.is_over || (state.is_waiting && state.granted == 0)) {
            self.changed.wait(&mut state);
        }
    }

    /// Lets the thread run freely.
    pub(crate) fn open(&self) {
        self.state.lock().is_open = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().is_over
    }
}
