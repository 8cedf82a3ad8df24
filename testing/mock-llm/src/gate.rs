//! A synchronization point in the middle of an answer: the test waits until the answer reaches it, and then
//! releases the answer.

use std::sync::Arc;

use tokio::sync::watch;

/// Holds an answer at a chosen delta, see [`Reply::hold`](crate::Reply::hold). Clones refer to the same gate. Once
/// released, it stays open.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    state: Arc<GateState>,
}

#[derive(Debug, Default)]
struct GateState {
    reached: watch::Sender<bool>,
    released: watch::Sender<bool>,
}

impl Gate {
    /// Creates a closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until an answer has reached the gate. Everything before the gate has been sent by then.
    pub async fn reached(&self) {
        wait_until_true(&self.state.reached).await;
    }

    /// Opens the gate.
    pub fn release(&self) {
        self.state.released.send_replace(true);
    }

    /// Reports that an answer has reached the gate, and waits until the gate opens.
    pub(crate) async fn wait_for_release(&self) {
        self.state.reached.send_replace(true);
        wait_until_true(&self.state.released).await;
    }
}

async fn wait_until_true(flag: &watch::Sender<bool>) {
    // The only error is a dropped sender, and `flag` is the sender.
    let _ = flag.subscribe().wait_for(|is_set| *is_set).await;
}
