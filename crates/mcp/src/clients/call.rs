//! A tool call in progress at a server: sending it, answering the server's questions, and its result.

use std::collections::VecDeque;
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, ElicitRequestParams, ElicitResult, InputRequest,
    InputRequiredResult, InputResponses, RequestMetaObject, ServerResult,
};
use rmcp::service::{PeerRequestOptions, RequestHandle, ServiceError};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tools::Question;
use traces::gen_ai::MCP_TRACEPARENT;

use super::content::CallResult;
use super::elicitation::{ParsedAnswer, Prompt, decline_result};
use super::elicitation_router::{CallRegistration, ElicitationRequest};
use super::failure::{CallFailure, call_failure};
use super::session::Session;
use super::{CallOutcome, ClientError, ToolCall};

/// How many rounds of input a server may request in one call before the call fails.
const MAX_ROUNDS: usize = 10;
/// The maximum number of questions in one call; further ones are declined.
const MAX_QUESTIONS: usize = 32;
/// How often a person is asked again after an invalid answer.
const MAX_ANSWER_ATTEMPTS: usize = 3;
/// The delay before retrying a call that the server merely postponed.
const EMPTY_ROUND_DELAY: Duration = Duration::from_secs(1);

/// A call in progress. Dropping it cancels it at the server.
pub(super) struct Call {
    params: CallToolRequestParams,
    request: InFlightRequest,
    registration: CallRegistration,
    elicitations: mpsc::Receiver<ElicitationRequest>,
    pending_prompt: Option<PendingPrompt>,
    round: Option<InputRound>,
    round_count: usize,
    question_count: usize,
    may_elicit: bool,
}

/// A question that waits for a person.
struct PendingPrompt {
    prompt: Prompt,
    attempts: usize,
    target: AnswerTarget,
}

/// The recipient of an answer.
enum AnswerTarget {
    /// The server, whose request waits for it.
    Server(oneshot::Sender<ElicitResult>),
    /// The next round of the call, under this name.
    Round(String),
}

/// The input that a server requests before it continues a call, as in the revision of 2026-07-28.
struct InputRound {
    request_state: Option<String>,
    unanswered: VecDeque<(String, ElicitRequestParams)>,
    responses: InputResponses,
}

/// A request at the server. Dropping it before the response cancels it there.
struct InFlightRequest(Option<RequestHandle<RoleClient>>);

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let (Some(handle), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        runtime.spawn(handle.cancel(Some("the result is no longer needed".into())));
    }
}

impl InFlightRequest {
    async fn response(&mut self) -> Option<Result<ServerResult, ServiceError>> {
        let handle = self.0.as_mut()?;
        let response = (&mut handle.rx).await.ok();
        self.0 = None;
        response
    }
}

impl Call {
    /// Sends a call.
    pub(super) async fn send(session: &Session, call: &ToolCall<'_>) -> Result<Self, CallFailure> {
        let mut params = CallToolRequestParams::new(call.tool.to_owned());
        params.arguments = Some(call.input.as_object().cloned().unwrap_or_default());
        let may_elicit = call.may_elicit;
        let (registration, elicitations) = session.router.register(may_elicit);
        let request = send_request(session, &registration, params.clone()).await?;
        Ok(Self {
            params,
            request,
            registration,
            elicitations,
            pending_prompt: None,
            round: None,
            round_count: 0,
            question_count: 0,
            may_elicit,
        })
    }

    /// Drives the call until it is done or asks a question.
    pub(super) async fn drive(&mut self, session: &Session) -> Result<CallOutcome, CallFailure> {
        let timeout = session.spec.timeout;
        let received_before = session.transport_state.received_count();
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(question) = self.next_round_question(session) {
                return Ok(CallOutcome::Ask(question));
            }
            if let Some(round) = self.round.take() {
                self.send_round(session, round).await?;
            }
            let response = tokio::select! {
                biased;
                response = self.request.response() => response,
                Some(request) = self.elicitations.recv() => {
                    match self.handle_elicitation(session, request) {
                        Some(question) => return Ok(CallOutcome::Ask(question)),
                        None => continue,
                    }
                }
                () = session.transport_state.wait_ended() => None,
                () = tokio::time::sleep_until(deadline) => {
                    session.record_timeout(received_before);
                    return Err(CallFailure::TimedOut(format!("it did not answer within {} seconds", timeout.as_secs_f64())));
                }
            };
            let result = match response {
                Some(Ok(result)) => result,
                Some(Err(error)) => return Err(call_failure(error, &session.transport_state)),
                None => return Err(CallFailure::OutcomeUnknown(session.transport_state.reason().to_owned())),
            };
            match result {
                ServerResult::InputRequiredResult(result) => self.begin_round(result)?,
                ServerResult::CreateTaskResult(_) => {
                    return Err(CallFailure::OutcomeUnknown(
                        "it returned a task, which was not requested".into(),
                    ));
                }
                result => return Ok(call_outcome(&result)),
            }
        }
    }

    /// Accepts a person's answer; returns the question again if the answer is invalid.
    pub(super) fn submit_answer(&mut self, session: &Session, answer: &str) -> Option<Question> {
        let mut pending = self.pending_prompt.take()?;
        let result = match pending.prompt.parse_answer(answer) {
            ParsedAnswer::Valid(result) => result,
            ParsedAnswer::Invalid(_) if pending.attempts == MAX_ANSWER_ATTEMPTS => decline_result(),
            ParsedAnswer::Invalid(reason) => {
                pending.attempts += 1;
                let question = pending.prompt.question(&session.spec.name, Some(&reason));
                self.pending_prompt = Some(pending);
                return Some(question);
            }
        };
        match pending.target {
            AnswerTarget::Server(server) => drop(server.send(result)),
            AnswerTarget::Round(name) => self.record_response(name, &result),
        }
        self.registration.set_waiting_for_user(false);
        None
    }

    fn handle_elicitation(&mut self, session: &Session, request: ElicitationRequest) -> Option<Question> {
        let Some(prompt) = self.prompt_for(&request.params) else {
            // A server that no longer waits has withdrawn its question.
            drop(request.answer.send(decline_result()));
            return None;
        };
        Some(self.begin_prompt(session, prompt, AnswerTarget::Server(request.answer)))
    }

    /// Returns the prompt for a person; `None` if no person is available, or the question cannot be put to one.
    fn prompt_for(&self, params: &ElicitRequestParams) -> Option<Prompt> {
        if self.may_elicit && self.question_count < MAX_QUESTIONS {
            Prompt::from_params(params)
        } else {
            None
        }
    }

    fn begin_prompt(&mut self, session: &Session, prompt: Prompt, target: AnswerTarget) -> Question {
        let question = prompt.question(&session.spec.name, None);
        self.pending_prompt = Some(PendingPrompt { prompt, attempts: 0, target });
        self.question_count += 1;
        self.registration.set_waiting_for_user(true);
        question
    }

    /// Returns the next unanswered question of the round. Questions that cannot be put to a person are declined.
    fn next_round_question(&mut self, session: &Session) -> Option<Question> {
        loop {
            let (name, params) = self.round.as_mut()?.unanswered.pop_front()?;
            match self.prompt_for(&params) {
                Some(prompt) => return Some(self.begin_prompt(session, prompt, AnswerTarget::Round(name))),
                None => self.record_response(name, &decline_result()),
            }
        }
    }

    fn record_response(&mut self, name: String, result: &ElicitResult) {
        if let (Some(round), Ok(result)) = (&mut self.round, serde_json::to_value(result)) {
            round.responses.insert(name, result);
        }
    }

    fn begin_round(&mut self, required: InputRequiredResult) -> Result<(), CallFailure> {
        let refused = |reason: &str| CallFailure::Refused(ClientError::Failed(reason.into()));
        self.round_count += 1;
        if self.round_count > MAX_ROUNDS {
            return Err(refused("it asked for input too many times"));
        }
        let mut unanswered = VecDeque::new();
        for (name, request) in required.input_requests.unwrap_or_default() {
            let InputRequest::Elicitation(request) = request else {
                return Err(refused("it asked for input of a kind that this client does not support"));
            };
            unanswered.push_back((name, request.params));
        }
        self.round = Some(InputRound {
            request_state: required.request_state,
            unanswered,
            responses: InputResponses::new(),
        });
        Ok(())
    }

    async fn send_round(&mut self, session: &Session, round: InputRound) -> Result<(), CallFailure> {
        if round.responses.is_empty() {
            tokio::time::sleep(EMPTY_ROUND_DELAY).await;
        }
        let mut params = self.params.clone();
        params.input_responses = (!round.responses.is_empty()).then_some(round.responses);
        params.request_state = round.request_state;
        self.request = send_request(session, &self.registration, params).await?;
        Ok(())
    }
}

async fn send_request(
    session: &Session,
    registration: &CallRegistration,
    params: CallToolRequestParams,
) -> Result<InFlightRequest, CallFailure> {
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let mut options = PeerRequestOptions::no_options();
    options.meta = trace_meta(session);
    let handle = session.peer.send_request_with_option(request, options).await;
    let handle = handle.map_err(|_| CallFailure::NotSent(session.transport_state.reason().to_owned()))?;
    registration.set_request(&handle.id);
    Ok(InFlightRequest(Some(handle)))
}

/// By which a server of the product continues the trace. One that the user has added is nobody the operator knows.
fn trace_meta(session: &Session) -> Option<RequestMetaObject> {
    let traceparent = traces::outgoing_traceparent().filter(|_| !session.spec.is_of_user())?;
    let mut meta = RequestMetaObject::default();
    meta.insert(MCP_TRACEPARENT.to_owned(), traceparent.into());
    Some(meta)
}

fn call_outcome(result: &ServerResult) -> CallOutcome {
    CallOutcome::Done(CallResult::parse(&serde_json::to_value(result).unwrap_or(Value::Null)))
}

/// A call that waits for a person, and since when.
pub(super) struct SuspendedCall {
    pub(super) call: Call,
    pub(super) suspended_at: Instant,
}
