//! What a session asks of the engine and of the client without waiting: what comes of it is an [`Input`] of the session.

use std::collections::BTreeMap;

use api::approvals::{ApprovalDecision, ApprovalRequest, ApprovalRespond};
use api::conversations::{MAX_METADATA_VALUE_BYTES, UpdateConversation};
use api::engine::HitlRespond;
use api::{ErrorCode, TaskId};
use tokio::sync::mpsc;

use super::log;
use super::peer::SentRequest;
use super::rpc::{Answer, RpcError};
use super::session::{Context, Input};
use crate::client::ClientError;
use crate::remote::Remote;

/// The entry of a conversation's metadata that holds the working directory of the session.
pub(super) const CWD_METADATA: &str = "acp_cwd";
/// What the agent is told if the client cannot ask.
const UNASKED: &str = "The user could not be asked.";

/// The requests of one session.
pub(super) struct SessionRequests {
    remote: Remote,
    task: TaskId,
    inputs: mpsc::Sender<Input>,
}

impl SessionRequests {
    pub(super) fn new(context: &Context, task: TaskId, inputs: mpsc::Sender<Input>) -> Self {
        Self { remote: context.remote.clone(), task, inputs }
    }

    /// Runs `request`, whose outcome, if there is one, is an input of the session.
    fn spawn(&self, request: impl Future<Output = Option<Input>> + 'static) {
        let inputs = self.inputs.clone();
        tokio::task::spawn_local(async move {
            if let Some(input) = request.await {
                // If the session has ended, nobody waits for it.
                let _ = inputs.send(input).await;
            }
        });
    }

    /// Waits for the client's answer.
    pub(super) fn await_answer(&self, sent: SentRequest, input: impl FnOnce(Answer) -> Input + 'static) {
        self.spawn(async move { sent.answer.await.ok().map(input) });
    }

    /// Finds out whether a tool call still waits for a decision.
    pub(super) fn check(&self, request: Box<ApprovalRequest>) {
        let (remote, task) = (self.remote.clone(), self.task.clone());
        self.spawn(async move {
            let open = remote.call(async |engine| engine.approvals(&task).await).await;
            // If that is not known, a person is rather asked in vain.
            let is_open =
                open.map_or(true, |open| open.iter().any(|other| other.request_id == request.request_id));
            Some(Input::Checked { request, is_open })
        });
    }

    /// Passes on a person's decision.
    pub(super) fn decide(
        &self,
        request: Box<ApprovalRequest>,
        decision: ApprovalDecision,
        message: Option<&str>,
    ) {
        let (remote, task) = (self.remote.clone(), self.task.clone());
        let answer =
            ApprovalRespond { decision, pattern: None, input: None, message: message.map(str::to_owned) };
        self.spawn(async move {
            let request_id = request.request_id;
            let sent =
                remote.call_patiently(async |engine| engine.decide(&task, request_id, &answer).await).await;
            let error = sent.err().filter(|error| !is_answered(error))?;
            log(&format!("a decision could not be passed on: {:#}", anyhow::Error::new(error)));
            Some(Input::Undecided(request))
        });
    }

    pub(super) fn deny_unasked(&self, request: Box<ApprovalRequest>) {
        log("the client could not ask for a permission, which is therefore denied");
        self.decide(request, ApprovalDecision::Deny, Some(UNASKED));
    }

    /// Passes on the answer to a question.
    pub(super) fn answer(&self, answer: HitlRespond) {
        let remote = self.remote.clone();
        self.spawn(async move {
            let sent = remote.call_patiently(async |engine| engine.respond(&answer).await).await;
            sent.err().map(|error| Input::NotAnswered(RpcError::from(error)))
        });
    }

    /// Cancels the turn of the task.
    pub(super) fn cancel(&self) {
        let (remote, task) = (self.remote.clone(), self.task.clone());
        self.spawn(async move {
            match remote.call(async |engine| engine.cancel(&task).await).await {
                Ok(()) | Err(ClientError::Refused { code: ErrorCode::TaskNotRunning, .. }) => {}
                Err(error) => log(&format!("a turn could not be cancelled: {:#}", anyhow::Error::new(error))),
            }
            None
        });
    }

    /// Notes in the conversation in which directory of the client it was begun.
    pub(super) fn remember_cwd(&self, cwd: String) {
        if cwd.len() > MAX_METADATA_VALUE_BYTES {
            return;
        }
        let (remote, task) = (self.remote.clone(), self.task.clone());
        let metadata = BTreeMap::from([(CWD_METADATA.to_owned(), Some(cwd))]);
        let update = UpdateConversation { metadata: Some(metadata), ..UpdateConversation::default() };
        self.spawn(async move {
            let noted = remote.call(async |engine| engine.update_conversation(&task, &update).await).await;
            if let Err(error) = noted {
                log(&format!("the working directory could not be noted: {:#}", anyhow::Error::new(error)));
            }
            None
        });
    }
}

/// Whether somebody else has decided, or nothing waits any more.
const fn is_answered(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Refused {
            code: ErrorCode::ApprovalAnswered | ErrorCode::ApprovalNotFound | ErrorCode::TaskNotFound,
            ..
        }
    )
}
