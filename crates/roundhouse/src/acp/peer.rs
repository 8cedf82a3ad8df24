//! The client on the other side: what is sent to it, and the requests that it has yet to answer.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::rpc::{self, Answer, RpcError};
use super::stdio::Output;

/// The client.
pub(super) struct Peer {
    output: Output,
    next_id: Cell<u64>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Answer>>>,
}

/// A request that the client has yet to answer.
pub(super) struct SentRequest {
    pub(super) id: u64,
    /// Resolves with the answer, or fails if the request was withdrawn.
    pub(super) answer: oneshot::Receiver<Answer>,
}

impl Peer {
    pub(super) fn new(output: Output) -> Self {
        Self { output, next_id: Cell::new(1), waiting: RefCell::default() }
    }

    pub(super) async fn respond(&self, id: &Value, outcome: Result<Value, RpcError>) {
        self.output.write(rpc::response(id, outcome)).await;
    }

    /// Sends updates of a session, in order.
    pub(super) async fn update(&self, session_id: &str, updates: impl IntoIterator<Item = Value>) {
        for update in updates {
            let params = json!({"sessionId": session_id, "update": update});
            self.output.write(rpc::notification("session/update", &params)).await;
        }
    }

    pub(super) async fn request(&self, method: &str, params: &Value) -> SentRequest {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let (sender, answer) = oneshot::channel();
        self.waiting.borrow_mut().insert(id, sender);
        self.output.write(rpc::request(id, method, params)).await;
        SentRequest { id, answer }
    }

    /// Tells the client that a request needs no answer any more. One that comes nevertheless is ignored.
    pub(super) async fn withdraw(&self, id: u64) {
        if self.forget(id) {
            self.output.write(rpc::notification("$/cancel_request", &json!({"requestId": id}))).await;
        }
    }

    /// Expects no answer to a request any more. Returns whether one was expected.
    pub(super) fn forget(&self, id: u64) -> bool {
        self.waiting.borrow_mut().remove(&id).is_some()
    }

    /// Takes the client's answer to a request. One to no request, or to one that was withdrawn, is ignored.
    pub(super) fn settle(&self, id: &Value, answer: Answer) {
        let sender = id.as_u64().and_then(|id| self.waiting.borrow_mut().remove(&id));
        if let Some(sender) = sender {
            // Whoever asked may have ended meanwhile.
            let _ = sender.send(answer);
        }
    }
}
