//! Kills the engine at a chosen event.
//!
//! Every observer reports events here. If it is the awaited event, the signal is sent at once, by the thread that
//! saw it: any delay would let the engine proceed.

use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::sync::Notify;

/// Sends a signal to the engine when the armed event is reported.
#[derive(Debug, Default)]
pub(crate) struct KillTrigger {
    state: Mutex<TriggerState>,
    fired: Notify,
}

#[derive(Debug, Default)]
struct TriggerState {
    /// The engine that runs.
    target: Option<OwnedFd>,
    armed: Option<ArmedTrigger>,
}

/// What to wait for.
#[derive(Debug)]
struct ArmedTrigger {
    event: String,
    /// Sent at once; without a signal the trigger only reports that the event has come.
    signal: Option<Signal>,
}

impl KillTrigger {
    /// This engine runs now.
    pub(crate) fn set_target(&self, target: OwnedFd) {
        let mut state = self.state.lock();
        (state.target, state.armed) = (Some(target), None);
    }

    /// Waits for `event`.
    pub(crate) fn arm(&self, event: &str, signal: Option<Signal>) {
        self.state.lock().armed = Some(ArmedTrigger { event: event.to_owned(), signal });
    }

    /// Something happened.
    pub(crate) fn notify(&self, event: &str) {
        let mut state = self.state.lock();
        let Some(armed) = state.armed.take_if(|armed| armed.event == event) else { return };
        if let Some(signal) = armed.signal {
            send_signal(&mut state, signal);
        }
        drop(state);
        self.fired.notify_one();
    }

    /// Waits until the moment has come.
    pub(crate) async fn wait_fired(&self) {
        self.fired.notified().await;
    }

    /// Sends `signal` to the engine if it was not sent one yet. Gives whether it was sent now.
    pub(crate) fn fire(&self, signal: Signal) -> bool {
        let mut state = self.state.lock();
        state.armed = None;
        send_signal(&mut state, signal)
    }
}

fn send_signal(state: &mut TriggerState, signal: Signal) -> bool {
    // A process that has ended by itself is found by whoever waits for it.
    state.target.take().is_some_and(|target| pidfd_send_signal(&target, signal).is_ok())
}
