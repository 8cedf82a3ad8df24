//! At most so many restarts at once; those that somebody waits for come first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contract::EngineId;
use tokio::sync::oneshot;

/// See the module.
pub(super) struct Gate {
    state: Arc<Mutex<State>>,
}

struct State {
    free: usize,
    waiting: Vec<Waiting>,
}

struct Waiting {
    engine_id: EngineId,
    urgent: bool,
    open: oneshot::Sender<Permit>,
}

/// Leave to go through. Given back when it is dropped.
pub(in crate::fleet) struct Permit {
    state: Arc<Mutex<State>>,
}

impl Gate {
    pub(super) fn new(at_once: usize) -> Self {
        Self { state: Arc::new(Mutex::new(State { free: at_once, waiting: Vec::new() })) }
    }

    /// Waits for a permit to restart `engine_id`.
    pub(super) async fn permit(&self, engine_id: EngineId) -> Permit {
        let (open, opened) = oneshot::channel();
        {
            let mut state = lock(&self.state);
            if state.free > 0 {
                state.free -= 1;
                return Permit { state: Arc::clone(&self.state) };
            }
            state.waiting.push(Waiting { engine_id, urgent: false, open });
        }
        match opened.await {
            Ok(permit) => permit,
            // A sender is dropped only with the gate itself.
            Err(_) => std::future::pending().await,
        }
    }

    /// Somebody waits for the restart of `engine_id`.
    pub(super) fn hurry(&self, engine_id: EngineId) {
        for waiting in &mut lock(&self.state).waiting {
            waiting.urgent |= waiting.engine_id == engine_id;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let next = {
            let mut state = lock(&self.state);
            if state.waiting.is_empty() {
                state.free += 1;
                return;
            }
            let first = state.waiting.iter().position(|waiting| waiting.urgent).unwrap_or_default();
            state.waiting.remove(first)
        };
        // To one that has given up it comes back, and goes on to the next as it is dropped.
        drop(next.open.send(Self { state: Arc::clone(&self.state) }));
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn who_is_waited_for_comes_first_and_who_gave_up_not_at_all() {
        let gate = Gate::new(1);
        let (first, second, third) = (EngineId::new(), EngineId::new(), EngineId::new());
        let held = gate.permit(EngineId::new()).await;
        let mut gone = Box::pin(gate.permit(EngineId::new()));
        let (mut one, mut two, mut three) =
            (Box::pin(gate.permit(first)), Box::pin(gate.permit(second)), Box::pin(gate.permit(third)));
        for waiting in [&mut gone, &mut one, &mut two, &mut three] {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        drop(gone);
        gate.hurry(second);
        drop(held);
        let held = two.await;
        assert!(one.as_mut().now_or_never().is_none());
        drop(held);
        let held = one.await;
        assert!(three.as_mut().now_or_never().is_none());
        drop(held);
        drop(three.await);
        assert!(gate.permit(first).now_or_never().is_some());
    }
}
