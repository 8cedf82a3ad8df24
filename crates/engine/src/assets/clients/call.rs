//! A call under way at a server: sent, asked in its course, answered, done.

use std::collections::VecDeque;
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, ElicitRequestParams, ElicitResult, InputRequest,
    InputRequiredResult, InputResponses, ServerResult,
};
use rmcp::service::{PeerRequestOptions, RequestHandle, ServiceError};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::content::told;
use super::desk::{Asked, Seat};
use super::elicitation::{Answer, Prompt, declined};
use super::failure::{Lost, lost};
use super::live::Live;
use super::{Called, ClientError, ToolCall};
use crate::sabotage::{Saboteur, by};
use crate::tools::Question;

/// How often a server may ask for input in one call before it is given up.
const MAX_ROUNDS: usize = 10;
/// The most questions of one call; more are declined.
const MAX_QUESTIONS: usize = 32;
/// How often a person is asked again for an answer that can be taken.
const MAX_TRIES: usize = 3;
/// How long to wait before a call is taken up again that a server only put off.
const PUT_OFF: Duration = Duration::from_secs(1);

/// A call under way. Dropped, it is cancelled at the server.
pub(super) struct Call {
    params: CallToolRequestParams,
    request: Sent,
    seat: Seat,
    asks: mpsc::Receiver<Asked>,
    asking: Option<Asking>,
    round: Option<Round>,
    rounds: usize,
    questions: usize,
    may_ask: bool,
}

/// A question that waits for a person.
struct Asking {
    prompt: Prompt,
    tries: usize,
    to: Whom,
}

/// Whom an answer goes to.
enum Whom {
    /// The server, which waits.
    Server(oneshot::Sender<ElicitResult>),
    /// The next round of the call, under this name.
    Round(String),
}

/// What a server wants to know before it goes on with a call, by the revision of 2026-07-28.
struct Round {
    state: Option<String>,
    open: VecDeque<(String, ElicitRequestParams)>,
    responses: InputResponses,
}

/// A request at the server. Dropped before it is answered, it is cancelled there.
struct Sent(Option<RequestHandle<RoleClient>>);

impl Drop for Sent {
    fn drop(&mut self) {
        if by(Saboteur::KeepCalling) {
            return;
        }
        let (Some(handle), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        runtime.spawn(handle.cancel(Some("nobody waits for it any more".into())));
    }
}

impl Sent {
    async fn response(&mut self) -> Option<Result<ServerResult, ServiceError>> {
        let handle = self.0.as_mut()?;
        let response = (&mut handle.rx).await.ok();
        self.0 = None;
        response
    }
}

impl Call {
    /// Sends a call.
    pub(super) async fn send(live: &Live, call: &ToolCall<'_>) -> Result<Self, Lost> {
        let mut params = CallToolRequestParams::new(call.tool.to_owned());
        params.arguments = Some(call.input.as_object().cloned().unwrap_or_default());
        let may_ask = call.may_ask;
        let (seat, asks) = live.desk.take_place(may_ask);
        let request = request(live, &seat, params.clone()).await?;
        Ok(Self { params, request, seat, asks, asking: None, round: None, rounds: 0, questions: 0, may_ask })
    }

    /// Goes on until it is done or asks something.
    pub(super) async fn go_on(&mut self, live: &Live) -> Result<Called, Lost> {
        let timeout = live.spec.timeout;
        let heard = live.line.heard();
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(question) = self.next_of_round(live) {
                return Ok(Called::Ask(question));
            }
            if let Some(round) = self.round.take() {
                self.send_round(live, round).await?;
            }
            let response = tokio::select! {
                biased;
                response = self.request.response() => response,
                Some(asked) = self.asks.recv() => {
                    match self.ask(live, asked) {
                        Some(question) => return Ok(Called::Ask(question)),
                        None => continue,
                    }
                }
                () = live.line.ended() => None,
                () = tokio::time::sleep_until(deadline) => {
                    live.timed_out(heard);
                    return Err(Lost::Late(format!("it did not answer within {} seconds", timeout.as_secs_f64())));
                }
            };
            let result = match response {
                Some(Ok(result)) => result,
                Some(Err(error)) => return Err(lost(error, &live.line)),
                None => return Err(Lost::Unknown(live.line.reason().to_owned())),
            };
            match result {
                ServerResult::InputRequiredResult(result) => self.begin_round(result)?,
                ServerResult::CreateTaskResult(_) => {
                    return Err(Lost::Unknown("it answers with a task, which was not asked for".into()));
                }
                result => return finished(&result),
            }
        }
    }

    /// Takes a person's answer; a question again where it cannot be taken.
    pub(super) fn answer(&mut self, live: &Live, answer: &str) -> Option<Question> {
        let mut asking = self.asking.take()?;
        let result = match asking.prompt.read(answer) {
            Answer::Given(result) => result,
            Answer::Unclear(_) if asking.tries == MAX_TRIES => declined(),
            Answer::Unclear(reason) => {
                asking.tries += 1;
                let question = asking.prompt.question(&live.spec.name, Some(&reason));
                self.asking = Some(asking);
                return Some(question);
            }
        };
        match asking.to {
            Whom::Server(server) => drop(server.send(result)),
            Whom::Round(name) => self.respond(name, &result),
        }
        self.seat.set_parked(false);
        None
    }

    fn ask(&mut self, live: &Live, asked: Asked) -> Option<Question> {
        let Some(prompt) = self.prompt(&asked.params) else {
            // A server that waits no more has given up asking.
            drop(asked.answer.send(declined()));
            return None;
        };
        Some(self.wait(live, prompt, Whom::Server(asked.answer)))
    }

    /// What a person is asked; none where nobody is, or nobody can be asked that.
    fn prompt(&self, params: &ElicitRequestParams) -> Option<Prompt> {
        if self.may_ask && self.questions < MAX_QUESTIONS { Prompt::of(params) } else { None }
    }

    fn wait(&mut self, live: &Live, prompt: Prompt, to: Whom) -> Question {
        let question = prompt.question(&live.spec.name, None);
        self.asking = Some(Asking { prompt, tries: 0, to });
        self.questions += 1;
        self.seat.set_parked(true);
        question
    }

    /// What of a round nobody has answered yet. What no person can be asked is declined.
    fn next_of_round(&mut self, live: &Live) -> Option<Question> {
        loop {
            let (name, params) = self.round.as_mut()?.open.pop_front()?;
            match self.prompt(&params) {
                Some(prompt) => return Some(self.wait(live, prompt, Whom::Round(name))),
                None => self.respond(name, &declined()),
            }
        }
    }

    fn respond(&mut self, name: String, result: &ElicitResult) {
        if let (Some(round), Ok(result)) = (&mut self.round, serde_json::to_value(result)) {
            round.responses.insert(name, result);
        }
    }

    fn begin_round(&mut self, required: InputRequiredResult) -> Result<(), Lost> {
        let refused = |reason: &str| Lost::Refused(ClientError::Failed(reason.into()));
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Err(refused("it asks for input again and again"));
        }
        let mut open = VecDeque::new();
        for (name, request) in required.input_requests.unwrap_or_default() {
            let InputRequest::Elicitation(request) = request else {
                return Err(refused("it asks for something that this client does not offer"));
            };
            open.push_back((name, request.params));
        }
        self.round = Some(Round { state: required.request_state, open, responses: InputResponses::new() });
        Ok(())
    }

    async fn send_round(&mut self, live: &Live, round: Round) -> Result<(), Lost> {
        if round.responses.is_empty() {
            tokio::time::sleep(PUT_OFF).await;
        }
        let mut params = self.params.clone();
        params.input_responses = (!round.responses.is_empty()).then_some(round.responses);
        params.request_state = round.state;
        self.request = request(live, &self.seat, params).await?;
        Ok(())
    }
}

async fn request(live: &Live, seat: &Seat, params: CallToolRequestParams) -> Result<Sent, Lost> {
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let options = PeerRequestOptions::no_options();
    let handle = live.peer.send_request_with_option(request, options).await;
    let handle = handle.map_err(|_| Lost::Unsent(live.line.reason().to_owned()))?;
    seat.is_request(&handle.id);
    Ok(Sent(Some(handle)))
}

fn finished(result: &ServerResult) -> Result<Called, Lost> {
    let value = serde_json::to_value(result).unwrap_or(Value::Null);
    let told = told(&value);
    if told.is_error { Err(Lost::Refused(ClientError::Tool(told.text))) } else { Ok(Called::Done(told.text)) }
}

/// A call that waits for a person, since when.
pub(super) struct Parked {
    pub(super) call: Call,
    pub(super) since: Instant,
}
