//! What happens to calls that are being answered, said by other requests of their caller. It concerns connections
//! that are open now, so it is kept nowhere.

use api::HitlId;
use tokio::sync::broadcast;
use uuid::Uuid;

use crate::http::json_rpc::RequestId;

/// How many signals a call may be behind before it misses one.
const CAPACITY: usize = 256;

/// The signals to all calls that are being answered.
pub(in crate::http) struct CallSignals(broadcast::Sender<(Uuid, Signal)>);

/// What a caller said.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Signal {
    /// It does not want the answer to this request any more.
    Cancelled(RequestId),
    /// Its user did not answer this question.
    Dismissed(HitlId),
}

impl CallSignals {
    pub(in crate::http) fn new() -> Self {
        Self(broadcast::Sender::new(CAPACITY))
    }

    /// Tells the calls of a session.
    pub(super) fn send(&self, session: Uuid, signal: Signal) {
        // An error means that nobody listens.
        let _ = self.0.send((session, signal));
    }

    /// The signals to the call `id` of a session.
    pub(super) fn subscribe(&self, session: Uuid, id: RequestId) -> CallListener {
        CallListener { session, id, signals: self.0.subscribe() }
    }
}

/// The signals to a call.
pub(super) struct CallListener {
    session: Uuid,
    id: RequestId,
    signals: broadcast::Receiver<(Uuid, Signal)>,
}

impl CallListener {
    /// The next signal. Cancel safe.
    pub(super) async fn next(&mut self) -> Signal {
        loop {
            match self.signals.recv().await {
                Ok((session, signal)) if self.concerns(session, &signal) => return signal,
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "A call of the Model Context Protocol missed signals.");
                }
                // The engine stops.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    /// Whether the call was cancelled and nobody has seen that yet.
    pub(super) fn is_cancelled(&mut self) -> bool {
        while let Ok((session, signal)) = self.signals.try_recv() {
            if self.concerns(session, &signal) && matches!(signal, Signal::Cancelled(_)) {
                return true;
            }
        }
        false
    }

    fn concerns(&self, session: Uuid, signal: &Signal) -> bool {
        session == self.session
            && match signal {
                Signal::Cancelled(id) => *id == self.id,
                Signal::Dismissed(_) => true,
            }
    }
}
