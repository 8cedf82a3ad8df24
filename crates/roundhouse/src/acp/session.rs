//! A session: follows the turns of one task, sends what happens to the client, and passes on what a person decides.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use api::approvals::ApprovalRequest;
use api::engine::{Execute, HitlRespond};
use api::event::{Event, HitlKind, HitlRequest, SentEvent};
use api::{HitlId, TaskId};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::config::Choices;
use super::params::ClientFeatures;
use super::peer::Peer;
use super::permission;
use super::prompt::Message;
use super::rpc::{Answer, RpcError};
use super::session_requests::SessionRequests;
use super::updates::{TurnUpdates, stop};
use crate::remote::Remote;
use crate::turn_reader::{Start, TurnReader, TurnUpdate};

/// How many inputs wait for a session.
const MAX_INPUTS_AHEAD: usize = 64;
/// How many updates of a turn wait for the client; then the stream waits.
const MAX_UPDATES_AHEAD: usize = 64;

/// What a session needs of the program.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) remote: Remote,
    pub(super) peer: Rc<Peer>,
    pub(super) features: ClientFeatures,
}

/// What a session is to do, or what has come of something.
pub(super) enum Input {
    Prompt {
        id: Value,
        message: Message,
    },
    /// Cancel what is going on.
    Cancel,
    /// Cancel it if it is this prompt.
    CancelPrompt(Value),
    /// End the session. The turn goes on.
    Detach,
    /// Cancel what is going on, and end the session.
    Close,
    /// It is known whether a tool call still waits for a decision.
    Checked {
        request: Box<ApprovalRequest>,
        is_open: bool,
    },
    PermissionAnswered {
        request: Box<ApprovalRequest>,
        answer: Answer,
    },
    /// A decision could not be passed on.
    Undecided(Box<ApprovalRequest>),
    QuestionAnswered {
        request: HitlRequest,
        answer: Answer,
    },
    /// A prompt that answers a question could not be passed on.
    NotAnswered(RpcError),
}

/// An open session, for the server.
#[derive(Clone)]
pub(super) struct SessionHandle {
    pub(super) choices: Rc<RefCell<Choices>>,
    inputs: mpsc::Sender<Input>,
}

impl SessionHandle {
    /// Gives the session an input.
    ///
    /// # Errors
    /// It has ended, or has too much to do.
    pub(super) fn send(&self, input: Input) -> Result<(), RpcError> {
        let refusal = |_| RpcError::invalid_request("the session is closed, or has too much to do");
        self.inputs.try_send(input).map_err(refusal)
    }
}

/// Where a session begins.
pub(super) struct SessionStart {
    pub(super) task: TaskId,
    /// The working directory of a session that the engine does not know yet.
    pub(super) new_in: Option<String>,
    pub(super) choices: Rc<RefCell<Choices>>,
    /// The `ts` of the last event that the client has seen.
    pub(super) last_ts: i64,
    /// Whether a turn is running, to be followed from there.
    pub(super) is_running: bool,
}

/// A session.
pub(super) struct Session {
    context: Context,
    requests: SessionRequests,
    task: TaskId,
    new_in: Option<String>,
    last_ts: i64,
    /// Whether a turn may be running whose end was not seen.
    is_unseen: bool,
    choices: Rc<RefCell<Choices>>,
    inputs: mpsc::Receiver<Input>,
    turn: Option<ActiveTurn>,
}

/// The turn that is followed.
struct ActiveTurn {
    /// The prompt that waits for its end.
    prompt: Option<Value>,
    /// A prompt whose turn is to begin after this one, which was not this client's.
    next: Option<(Value, Message)>,
    /// Whether the events are those of the turn that was asked for, rather than of one before it.
    is_own: bool,
    is_cancelling: bool,
    /// The requests that wait for a person, with the client's request once it was asked.
    asked: HashMap<HitlId, Option<u64>>,
    /// The question that the next prompt answers.
    question: Option<HitlRequest>,
    updates: TurnUpdates,
    events: mpsc::Receiver<TurnUpdate>,
    reader: AbortHandle,
}

impl Drop for ActiveTurn {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Whether the session goes on.
type Flow = std::ops::ControlFlow<()>;

impl Session {
    /// Starts a session.
    pub(super) fn spawn(context: Context, start: SessionStart) -> SessionHandle {
        let (sender, inputs) = mpsc::channel(MAX_INPUTS_AHEAD);
        let SessionStart { task, new_in, choices, last_ts, is_running } = start;
        let handle = SessionHandle { choices: Rc::clone(&choices), inputs: sender.clone() };
        let requests = SessionRequests::new(&context, task.clone(), sender);
        let mut session =
            Self { context, requests, task, new_in, last_ts, is_unseen: false, choices, inputs, turn: None };
        tokio::task::spawn_local(async move {
            if is_running {
                session.follow(Start::Turn, None);
            }
            session.run().await;
        });
        handle
    }

    async fn run(mut self) {
        loop {
            let flow = match &mut self.turn {
                None => match self.inputs.recv().await {
                    Some(input) => self.handle(input).await,
                    None => return,
                },
                Some(turn) => tokio::select! {
                    Some(input) = self.inputs.recv() => self.handle(input).await,
                    Some(update) = turn.events.recv() => {
                        self.handle_update(update).await;
                        Flow::Continue(())
                    }
                },
            };
            if flow.is_break() {
                return;
            }
        }
    }

    async fn handle(&mut self, input: Input) -> Flow {
        match input {
            Input::Prompt { id, message } => self.prompt(id, message).await,
            Input::Cancel => self.cancel().await,
            Input::CancelPrompt(id) => self.cancel_prompt(&id).await,
            Input::Detach => {
                self.detach(&RpcError::invalid_request("the session was loaded again")).await;
                return Flow::Break(());
            }
            Input::Close => {
                self.cancel().await;
                if let Some(turn) = &mut self.turn
                    && let Some(id) = turn.prompt.take()
                {
                    self.context.peer.respond(&id, Ok(stop("cancelled"))).await;
                }
                self.withdraw_all().await;
                return Flow::Break(());
            }
            Input::Checked { request, is_open } => self.ask_permission(request, is_open).await,
            Input::PermissionAnswered { request, answer } => self.decide(request, &answer).await,
            Input::Undecided(request) => self.check(request),
            Input::QuestionAnswered { request, answer } => {
                if self.take_asked(request.request_id) {
                    self.requests.answer(respond(&request, permission::question_answer(&answer), Vec::new()));
                }
            }
            Input::NotAnswered(error) => {
                if let Some(turn) = &mut self.turn
                    && let Some(id) = turn.prompt.take()
                {
                    self.context.peer.respond(&id, Err(error)).await;
                }
            }
        }
        Flow::Continue(())
    }

    /// Begins a turn; or answers the question that the agent waits with; or waits for a turn that another client began.
    async fn prompt(&mut self, id: Value, message: Message) {
        let Some(turn) = &mut self.turn else { return self.begin(id, message) };
        if let Some(question) = turn.question.take() {
            turn.prompt = Some(id);
            self.requests.answer(respond(&question, message.text, message.media));
        } else if turn.prompt.is_none() && turn.next.is_none() {
            turn.next = Some((id, message));
        } else {
            let error = RpcError::invalid_request(
                "a prompt is running in this session: wait for its end, or cancel it",
            );
            self.context.peer.respond(&id, Err(error)).await;
        }
    }

    fn begin(&mut self, id: Value, message: Message) {
        let choices = self.choices.borrow().clone();
        let execute = Execute {
            media: message.media,
            model: choices.model,
            effort: choices.effort,
            ..Execute::new(self.task.clone(), message.text)
        };
        let after_rest = std::mem::take(&mut self.is_unseen);
        self.follow(Start::Message { message: Box::new(execute), after_rest }, Some(id));
    }

    fn follow(&mut self, start: Start, prompt: Option<Value>) {
        let (sender, events) = mpsc::channel(MAX_UPDATES_AHEAD);
        let reader = TurnReader::new(self.context.remote.clone(), self.task.clone(), self.last_ts, sender);
        let is_own = matches!(start, Start::Turn);
        let reader = tokio::task::spawn_local(reader.run(start)).abort_handle();
        self.turn = Some(ActiveTurn {
            prompt,
            next: None,
            is_own,
            is_cancelling: false,
            asked: HashMap::new(),
            question: None,
            updates: TurnUpdates::new(self.context.features),
            events,
            reader,
        });
    }

    async fn handle_update(&mut self, update: TurnUpdate) {
        match update {
            TurnUpdate::Event(event) => self.handle_event(event).await,
            TurnUpdate::Request { event, request, is_open } => {
                self.handle_event(event).await;
                // A permission is asked for with its call.
                if is_open && request.kind == HitlKind::Question {
                    self.ask_question(request).await;
                }
            }
            TurnUpdate::OwnTurn => self.begin_own_turn(),
            TurnUpdate::Back => self.cancel_again(),
            TurnUpdate::RestFirst | TurnUpdate::Away => {}
            TurnUpdate::Ended(ended) => self.end_turn(ended).await,
        }
    }

    fn begin_own_turn(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.is_own = true;
            turn.updates = TurnUpdates::new(self.context.features);
        }
        if let Some(cwd) = self.new_in.take() {
            self.requests.remember_cwd(cwd);
        }
        self.cancel_again();
    }

    /// Cancels the turn if that was wanted before it was known to run.
    fn cancel_again(&self) {
        if self.turn.as_ref().is_some_and(|turn| turn.is_cancelling && turn.is_own) {
            self.requests.cancel();
        }
    }

    async fn handle_event(&mut self, event: SentEvent) {
        self.last_ts = self.last_ts.max(event.ts);
        let Some(turn) = &mut self.turn else { return };
        let updates = turn.updates.apply(&event);
        self.context.peer.update(self.task.as_str(), updates).await;
        match event.event {
            Event::ApprovalRequest(request) => self.check(request),
            Event::HitlResolved(resolved) => self.withdraw(resolved.request_id).await,
            Event::ApprovalResolved(resolved) => self.withdraw(resolved.request_id).await,
            _ => {}
        }
    }

    /// Asks for a permission once it is known to be needed: what is replayed may have been decided long ago.
    fn check(&mut self, request: Box<ApprovalRequest>) {
        if let Some(turn) = &mut self.turn {
            turn.asked.insert(request.request_id, None);
            self.requests.check(request);
        }
    }

    /// Asks for a permission, unless it was decided meanwhile.
    async fn ask_permission(&mut self, request: Box<ApprovalRequest>, is_open: bool) {
        let Some(turn) = &mut self.turn else { return };
        let Some(asked) = turn.asked.get_mut(&request.request_id).filter(|asked| asked.is_none()) else {
            return;
        };
        if !is_open || turn.is_cancelling {
            turn.asked.remove(&request.request_id);
            return;
        }
        let params = permission::permission_params(self.task.as_str(), &request);
        let sent = self.context.peer.request("session/request_permission", &params).await;
        *asked = Some(sent.id);
        self.requests.await_answer(sent, |answer| Input::PermissionAnswered { request, answer });
    }

    async fn decide(&mut self, request: Box<ApprovalRequest>, answer: &Answer) {
        if !self.take_asked(request.request_id) {
            return;
        }
        match permission::permission_answer(&request, answer) {
            permission::PermissionAnswer::Decided(decision) => self.requests.decide(request, decision, None),
            permission::PermissionAnswer::Cancelled => self.cancel().await,
            permission::PermissionAnswer::Unusable => self.requests.deny_unasked(request),
        }
    }

    /// Asks a question in a form; without forms as a text of the agent, which the next prompt answers.
    async fn ask_question(&mut self, request: HitlRequest) {
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.is_cancelling) else { return };
        if self.context.features.forms {
            let params = permission::question_params(self.task.as_str(), &request);
            let sent = self.context.peer.request("elicitation/create", &params).await;
            turn.asked.insert(request.request_id, Some(sent.id));
            self.requests.await_answer(sent, |answer| Input::QuestionAnswered { request, answer });
            return;
        }
        let text = permission::question_text(&request);
        let update = json!({
            "sessionUpdate": "agent_message_chunk", "messageId": request.request_id,
            "content": {"type": "text", "text": text},
        });
        self.context.peer.update(self.task.as_str(), [update]).await;
        turn.question = Some(request);
        if let Some(id) = turn.prompt.take() {
            self.context.peer.respond(&id, Ok(stop("end_turn"))).await;
        }
    }

    /// Whether a request was waiting for its answer, and is no longer.
    fn take_asked(&mut self, request_id: HitlId) -> bool {
        let Some(turn) = &mut self.turn else { return false };
        turn.asked.remove(&request_id).is_some() && !turn.is_cancelling
    }

    /// A request needs no answer any more: it was answered elsewhere, or by this client.
    async fn withdraw(&mut self, request_id: HitlId) {
        let Some(turn) = &mut self.turn else { return };
        turn.question.take_if(|question| question.request_id == request_id);
        if let Some(Some(id)) = turn.asked.remove(&request_id) {
            self.context.peer.withdraw(id).await;
        }
    }

    async fn withdraw_all(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        for id in std::mem::take(&mut turn.asked).into_values().flatten() {
            self.context.peer.withdraw(id).await;
        }
    }

    /// Cancels the turn. A turn that this client did not begin, and that its prompt only waits for, goes on.
    async fn cancel(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        if let Some((id, _)) = turn.next.take() {
            self.context.peer.respond(&id, Ok(stop("cancelled"))).await;
        }
        if turn.is_cancelling {
            return;
        }
        turn.is_cancelling = true;
        turn.question = None;
        if turn.is_own {
            self.requests.cancel();
        } else if let Some(id) = turn.prompt.take() {
            // It is cancelled once it has begun.
            self.context.peer.respond(&id, Ok(stop("cancelled"))).await;
        }
    }

    async fn cancel_prompt(&mut self, id: &Value) {
        let Some(turn) = &mut self.turn else { return };
        if turn.prompt.as_ref() == Some(id) {
            self.cancel().await;
        } else if let Some((id, _)) = turn.next.take_if(|(next, _)| next == id) {
            self.context.peer.respond(&id, Ok(stop("cancelled"))).await;
        }
    }

    async fn end_turn(&mut self, ended: anyhow::Result<()>) {
        self.withdraw_all().await;
        let Some(mut turn) = self.turn.take() else { return };
        // The turn may be running, or not: the next prompt waits for its end.
        self.is_unseen = ended.is_err();
        let outcome = match ended {
            _ if turn.is_cancelling => Ok(stop("cancelled")),
            Ok(()) => turn.updates.outcome(),
            Err(error) => Err(RpcError::from(error)),
        };
        if let Some(id) = turn.prompt.take() {
            self.context.peer.respond(&id, outcome).await;
        }
        if let Some((id, message)) = turn.next.take() {
            self.begin(id, message);
        }
    }

    /// Ends the session while its turn goes on.
    async fn detach(&mut self, error: &RpcError) {
        self.withdraw_all().await;
        let Some(mut turn) = self.turn.take() else { return };
        let prompts = [turn.prompt.take(), turn.next.take().map(|(id, _)| id)];
        for id in prompts.into_iter().flatten() {
            self.context.peer.respond(&id, Err(error.clone())).await;
        }
    }
}

fn respond(request: &HitlRequest, answer: String, media: Vec<api::content::ContentBlock>) -> HitlRespond {
    HitlRespond {
        task_id: request.task_id.clone(),
        answer,
        feedback: None,
        content_blocks: media,
        request_id: Some(request.request_id.to_string()),
        scope: None,
    }
}
