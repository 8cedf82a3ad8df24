//! A gate in the middle of an answer: the test learns that the answer is there and lets it go on.

use std::sync::Arc;

use tokio::sync::watch;

/// Holds an answer at a chosen delta, see [`Reply::hold`](crate::Reply::hold). Clones are the same
/// gate; once released it stays open.
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
    /// A closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until an answer stands at the gate; everything before it has been handed to the client.
    pub async fn reached(&self) {
        wait_until_true(&self.state.reached).await;
    }

    /// Opens the gate.
    pub fn release(&self) {
        self.state.released.send_replace(true);
    }

    /// Stands at the gate until it opens.
    pub(crate) async fn wait_for_release(&self) {
        self.state.reached.send_replace(true);
        wait_until_true(&self.state.released).await;
    }
}

async fn wait_until_true(flag: &watch::Sender<bool>) {
    // The only error is a dropped sender, and `flag` is the sender.
    let _ = flag.subscribe().wait_for(|is_set| *is_set).await;
}
