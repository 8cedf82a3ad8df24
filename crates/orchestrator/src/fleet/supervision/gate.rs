//! At most so many restarts at once; those that somebody waits for come first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contract::EngineId;
use tokio::sync::oneshot;

/// See the module.
pub(super) struct Gate {
    state: Arc<Mutex<State>>,
}

struct State {
    free: usize,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    engine_id: EngineId,
    urgent: bool,
    open: oneshot::Sender<Permit>,
}

/// Leave to go through. Given back when it is dropped.
pub(in crate::fleet) struct Permit {
    /// None once it is given back.
    state: Option<Arc<Mutex<State>>>,
}

impl Gate {
    pub(super) fn new(at_once: usize) -> Self {
        Self { state: Arc::new(Mutex::new(State { free: at_once, waiting: VecDeque::new() })) }
    }

    /// Waits for a permit to restart `engine_id`; `urgent`: somebody waits for it.
    pub(super) async fn permit(&self, engine_id: EngineId, urgent: bool) -> Permit {
        let (open, opened) = oneshot::channel();
        {
            let mut state = lock(&self.state);
            if state.free > 0 {
                state.free -= 1;
                return Permit::of(&self.state);
            }
            state.waiting.push_back(Waiting { engine_id, urgent, open });
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

impl Permit {
    fn of(state: &Arc<Mutex<State>>) -> Self {
        Self { state: Some(Arc::clone(state)) }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        loop {
            let next = {
                let mut state = lock(&state);
                let first = state.waiting.iter().position(|waiting| waiting.urgent).unwrap_or_default();
                let Some(next) = state.waiting.remove(first) else {
                    state.free += 1;
                    return;
                };
                next
            };
            // To one that has given up it comes back, and is for the next.
            match next.open.send(Self::of(&state)) {
                Ok(()) => return,
                Err(mut refused) => drop(refused.state.take()),
            }
        }
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
        let held = gate.permit(EngineId::new(), false).await;
        let mut gone = Box::pin(gate.permit(EngineId::new(), false));
        let (mut one, mut two, mut three) = (
            Box::pin(gate.permit(first, false)),
            Box::pin(gate.permit(second, false)),
            Box::pin(gate.permit(third, false)),
        );
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
        assert!(gate.permit(first, false).now_or_never().is_some());
    }
}
