//! Kills the engine at a chosen moment.
//!
//! Whoever sees something happen says so here. If it is what was aimed at, the signal is sent on the spot, by
//! the thread that saw it: every detour would let the engine get on.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Signal, pidfd_send_signal};
use tokio::sync::Notify;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Trap {
    state: Mutex<State>,
    sprung: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The engine that runs.
    target: Option<OwnedFd>,
    aim: Option<Aim>,
}

/// What to wait for.
#[derive(Debug)]
struct Aim {
    moment: String,
    /// Sent on the spot; without one the trap only tells that the moment has come.
    signal: Option<Signal>,
}

impl Trap {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This engine runs now.
    pub(crate) fn watch(&self, target: OwnedFd) {
        let mut state = self.lock();
        (state.target, state.aim) = (Some(target), None);
    }

    /// Waits for `moment`.
    pub(crate) fn arm(&self, moment: &str, signal: Option<Signal>) {
        self.lock().aim = Some(Aim { moment: moment.to_owned(), signal });
    }

    /// Something happened.
    pub(crate) fn occurred(&self, moment: &str) {
        let mut state = self.lock();
        let Some(aim) = state.aim.take_if(|aim| aim.moment == moment) else { return };
        if let Some(signal) = aim.signal {
            send(&mut state, signal);
        }
        drop(state);
        self.sprung.notify_one();
    }

    /// Waits until the moment has come.
    pub(crate) async fn sprung(&self) {
        self.sprung.notified().await;
    }

    /// Sends `signal` to the engine if it was not sent one yet. Gives whether it was sent now.
    pub(crate) fn fire(&self, signal: Signal) -> bool {
        let mut state = self.lock();
        state.aim = None;
        send(&mut state, signal)
    }
}

fn send(state: &mut State, signal: Signal) -> bool {
    // A process that has ended by itself is found by whoever waits for it.
    state.target.take().is_some_and(|target| pidfd_send_signal(&target, signal).is_ok())
}
