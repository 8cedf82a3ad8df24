//! The shared state of a provider: the script, the records, and the counters that tests wait for.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::cache::Cache;
use crate::captured::{CapturedRequest, RefusedRequest, Wire};
use crate::issued::IssuedAnswers;
use crate::protocol::{ApiError, Settings};
use crate::reply::Reply;

/// The state shared by the handle, the handlers and the bodies of running answers.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    /// A standard mutex, because it is held only briefly and never across an await.
    state: Mutex<State>,
    progress: watch::Sender<RequestProgress>,
}

/// Computes a reply from a request.
#[derive(Clone)]
pub(crate) struct Responder(pub(crate) Arc<dyn Fn(&CapturedRequest) -> Reply + Send + Sync>);

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}

/// The source of the reply to a request.
#[derive(Debug)]
pub(crate) enum ReplySource {
    /// The script or the default reply.
    Script(Reply),
    /// A closure, which must be called without the lock.
    Responder(Responder, CapturedRequest),
}

impl ReplySource {
    /// Returns the reply, and calls the closure if there is one.
    pub(crate) fn resolve(self) -> Reply {
        match self {
            Self::Script(reply) => reply,
            Self::Responder(Responder(respond), request) => respond(&request),
        }
    }
}

/// The script and the records.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) queue: VecDeque<Reply>,
    pub(crate) default_reply: Reply,
    pub(crate) responder: Option<Responder>,
    pub(crate) requests: Vec<CapturedRequest>,
    pub(crate) refusals: Vec<RefusedRequest>,
    pub(crate) issued: IssuedAnswers,
    pub(crate) cache: Cache,
    /// The number of the newest request, from which its ids are derived.
    newest_number: u64,
}

/// Counters that a test can wait for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestProgress {
    pub(crate) received: usize,
    pub(crate) running: usize,
}

impl Shared {
    pub(crate) fn new(settings: Settings) -> Self {
        let state = State {
            queue: VecDeque::new(),
            default_reply: Reply::echo(),
            responder: None,
            requests: Vec::new(),
            refusals: Vec::new(),
            issued: IssuedAnswers::default(),
            cache: Cache::default(),
            newest_number: 0,
        };
        Self { settings, state: Mutex::new(state), progress: watch::Sender::default() }
    }

    /// Locks the state. Poisoning is ignored, because no section that holds the lock leaves a change half done.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Notifies waiting tests that a request was captured. Called after the lock is released, so that a woken test
    /// does not wait for it.
    pub(crate) fn announce_request(&self) {
        self.progress.send_modify(|progress| progress.received += 1);
    }

    /// Counts an answer as running until the guard is dropped.
    pub(crate) fn begin_answer(self: &Arc<Self>) -> RunningGuard {
        self.progress.send_modify(|progress| progress.running += 1);
        RunningGuard { shared: Arc::clone(self) }
    }

    /// Waits until the counters satisfy a condition.
    pub(crate) async fn wait_for(&self, condition: impl FnMut(&RequestProgress) -> bool) {
        // The only error is a dropped sender, and the sender is in `self`.
        let _ = self.progress.subscribe().wait_for(condition).await;
    }
}

impl State {
    /// Records a request and returns its number.
    pub(crate) fn record_request(&mut self, request: CapturedRequest) -> u64 {
        self.requests.push(request);
        self.newest_number += 1;
        self.newest_number
    }

    /// Records a request that violated a rule of a wire.
    pub(crate) fn record_refusal(&mut self, wire: Wire, error: &ApiError) {
        let status = error.status.as_u16();
        self.refusals.push(RefusedRequest { wire: Some(wire), status, reason: error.message.clone() });
    }

    /// Takes the next reply of the script. If the script is empty, the responder or the default reply answers the
    /// newest request.
    pub(crate) fn next_reply(&mut self) -> ReplySource {
        if let Some(reply) = self.queue.pop_front() {
            return ReplySource::Script(reply);
        }
        match (&self.responder, self.requests.last()) {
            (Some(responder), Some(request)) => ReplySource::Responder(responder.clone(), request.clone()),
            _ => ReplySource::Script(self.default_reply.clone()),
        }
    }
}

/// RAII guard: an answer counts as running while it is held.
#[derive(Debug)]
pub(crate) struct RunningGuard {
    shared: Arc<Shared>,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.shared.progress.send_modify(|progress| progress.running -= 1);
    }
}
