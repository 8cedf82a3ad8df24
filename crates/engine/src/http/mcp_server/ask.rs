//! The tool `ask`: a call runs a turn and is answered by a stream that ends with the turn's outcome, or with what a
//! person must answer first.

use std::sync::Arc;

use api::engine::Execute;
use api::turns::BackgroundTurn;
use api::{ClientRequestId, HitlId, TaskId, TurnId};
use axum::http::StatusCode;
use axum::response::Response;
use futures::StreamExt as _;
use http_service::http::{ApiError, parse_fields};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::ask_projection::{AskProjection, Asking};
use super::caller::Caller;
use super::cancellation::{CallListener, Signal};
use super::elicitation::{self, Answer};
use super::resumption::EventId;
use super::tools::{self, ToolCall};
use crate::agent::{Accepted, Agent, AgentError, FollowedTurn, TurnEvents};
use crate::http::Shared;
use crate::http::admission::BodyMemory;
use crate::http::json_rpc::{self, Fault, RequestId};
use crate::http::projection::{Projector as _, next_chunk, sse_response};

/// The arguments.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskArguments {
    message: String,
    #[serde(default)]
    task_id: Option<TaskId>,
    #[serde(default)]
    client_request_id: Option<ClientRequestId>,
}

/// Answers a call: begins its turn, or goes on with the one that it began.
pub(super) async fn ask(
    shared: &Arc<Shared>,
    caller: &Caller,
    id: RequestId,
    call: ToolCall,
    memory: BodyMemory,
) -> Result<Response, Fault> {
    let ToolCall { arguments, progress_token, input_responses, request_state, .. } = call;
    // From here on a cancellation is heard.
    let listener = caller.session.map(|session| shared.mcp_calls.subscribe(session, id.clone()));
    let begun = match &request_state {
        Some(state) => go_on(shared, state, &input_responses).await?,
        None if !input_responses.is_empty() => {
            return Err(Fault::invalid_params("`requestState`: must be given with `inputResponses`"));
        }
        None => match begin(shared, caller, &id, arguments).await {
            Ok(begun) => begun,
            Err(error) => {
                let result = caller.revision.complete(tools::failure(&error.into_parts().1));
                return Ok(json_rpc::respond(StatusCode::OK, json_rpc::result(&id, &result)));
            }
        },
    };
    // The turn has what it needs of the body.
    drop(memory);
    let BegunTurn { events, task_id, turn_id, dismissed } = begun;
    let turn = (task_id.clone(), turn_id);
    let projection = AskProjection::new(id, caller.revision, asking(caller), progress_token, turn, dismissed);
    let first_event = projection.first_event();
    let open = OpenCall {
        events,
        projection,
        listener,
        turn: TurnOfCall { agent: Arc::clone(&shared.agent), task_id, turn_id },
        ends_with_connection: !caller.revision.has_handshake(),
    };
    Ok(stream(first_event, open))
}

/// Takes the stream of a call up again, after the event with this id.
pub(super) async fn take_up(shared: &Arc<Shared>, caller: &Caller, id: EventId) -> Result<Response, Fault> {
    let EventId { turn_id, request, progress_token, place } = id;
    let listener = caller.session.map(|session| shared.mcp_calls.subscribe(session, request.clone()));
    let unknown =
        || Fault::invalid_request("`Last-Event-ID`: there is no such event; its task may be deleted");
    let turn = match shared.agent.follow(&turn_id.to_string()).await {
        Err(AgentError::UnknownTurn(_)) => return Err(unknown()),
        turn => turn.map_err(|error| internal(&error))?,
    };
    let FollowedTurn { events, task_id, .. } = turn;
    let of_turn = (task_id.clone(), turn_id);
    let projection =
        AskProjection::new(request, caller.revision, asking(caller), progress_token, of_turn, Vec::new());
    let open = OpenCall {
        events,
        projection: projection.taken_up_at(place),
        listener,
        turn: TurnOfCall { agent: Arc::clone(&shared.agent), task_id, turn_id },
        ends_with_connection: false,
    };
    Ok(stream(None, open))
}

fn asking(caller: &Caller) -> Asking {
    match (caller.elicits, caller.revision.has_handshake()) {
        (false, _) => Asking::Never,
        (true, true) => Asking::ByRequest,
        (true, false) => Asking::ByResult,
    }
}

/// The response that streams an open call.
fn stream(first_event: Option<String>, open: OpenCall) -> Response {
    let messages = futures::stream::unfold(open, |mut open| async move {
        let chunk = open.next_chunk().await?;
        Some((chunk, open))
    });
    sse_response(futures::stream::iter(first_event).chain(messages))
}

/// The turn of a call.
struct BegunTurn {
    events: TurnEvents,
    task_id: TaskId,
    turn_id: TurnId,
    /// What the caller's user did not want to answer.
    dismissed: Vec<HitlId>,
}

async fn begin(
    shared: &Shared,
    caller: &Caller,
    id: &RequestId,
    arguments: Map<String, Value>,
) -> Result<BegunTurn, ApiError> {
    let AskArguments { message, task_id, client_request_id } = parse_fields(arguments)?;
    // Within a session an id names one request.
    let request_id =
        client_request_id.map(Ok).or_else(|| caller.session.map(|session| request_id(session, id)));
    let request_id = request_id.transpose()?;
    let task_id = match task_id {
        Some(task_id) => task_id,
        None => new_task(request_id.as_ref())?,
    };
    let execute = Execute { client_request_id: request_id, ..Execute::new(task_id, message) };
    let Accepted { turn: BackgroundTurn { task_id, turn_id, .. }, stream } =
        shared.agent.submit(execute).await?;
    Ok(BegunTurn { events: TurnEvents::new(stream), task_id, turn_id, dismissed: Vec::new() })
}

/// The idempotency key of a request of a session.
fn request_id(session: Uuid, id: &RequestId) -> Result<ClientRequestId, ApiError> {
    let digest = Sha256::digest(format!("{session} {}", id.to_json()));
    let name = format!("mcp-{}", hex::encode(digest));
    ClientRequestId::new(name).map_err(|error| AgentError::Invalid(error.to_string()).into())
}

/// The task of a call that names none: a new one, which a repeated call finds again.
fn new_task(request_id: Option<&ClientRequestId>) -> Result<TaskId, ApiError> {
    let name = request_id.map_or_else(
        || format!("mcp-{}", Uuid::now_v7().simple()),
        |id| format!("mcp-{}", id.as_str().trim_start_matches("mcp-")),
    );
    TaskId::new(name).map_err(|error| AgentError::Invalid(error.to_string()).into())
}

/// Goes on with the turn that `state` names, which an earlier answer to the call named. The state protects nothing:
/// whoever has the key may follow any turn.
async fn go_on(shared: &Shared, state: &str, responses: &Map<String, Value>) -> Result<BegunTurn, Fault> {
    let unknown =
        || Fault::invalid_params("`requestState`: there is no such turn; its task may have been deleted");
    let turn_id: TurnId = state.parse().map_err(|_| unknown())?;
    let turn = match shared.agent.follow(state).await {
        Err(AgentError::UnknownTurn(_)) => return Err(unknown()),
        turn => turn.map_err(|error| internal(&error))?,
    };
    let FollowedTurn { events, task_id, .. } = turn;
    let pending = shared.agent.pending_requests().await.map_err(|error| internal(&error))?;
    let mut dismissed = Vec::new();
    for (request_id, response) in responses {
        // Another answer may have been faster.
        let request = pending
            .iter()
            .find(|request| request.task_id == task_id && request.request_id.to_string() == *request_id);
        let Some(request) = request else { continue };
        let answer = elicitation::parse_answer(request, Some(response));
        match answer
            .map_err(|message| Fault::invalid_params(format!("`inputResponses.{request_id}`: {message}")))?
        {
            Answer::Dismissed => dismissed.push(request.request_id),
            Answer::Given(respond) => match shared.agent.respond(respond).await {
                Ok(_) | Err(AgentError::NotPending) => {}
                Err(AgentError::Invalid(message)) => return Err(Fault::invalid_params(message)),
                Err(error) => return Err(internal(&error)),
            },
        }
    }
    Ok(BegunTurn { events, task_id, turn_id, dismissed })
}

fn internal(error: &AgentError) -> Fault {
    Fault::new(json_rpc::INTERNAL_ERROR, error.to_string())
}

/// A call that is being answered.
struct OpenCall {
    events: TurnEvents,
    projection: AskProjection,
    /// What the caller says about it by other requests.
    listener: Option<CallListener>,
    turn: TurnOfCall,
    /// Whether a caller that closes the connection cancels the call.
    ends_with_connection: bool,
}

/// The turn that a call began.
struct TurnOfCall {
    agent: Arc<Agent>,
    task_id: TaskId,
    turn_id: TurnId,
}

impl TurnOfCall {
    /// Cancels the turn, whatever becomes of the call.
    fn cancel(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (agent, task_id, turn_id) = (Arc::clone(&self.agent), self.task_id.clone(), self.turn_id);
        runtime.spawn(async move {
            match agent.cancel(&task_id, Some(turn_id)).await {
                Ok(_) | Err(AgentError::NotRunning | AgentError::UnknownTask | AgentError::Stopping) => {}
                Err(error) => tracing::warn!(%error, %turn_id, "A turn could not be cancelled."),
            }
        });
    }
}

impl OpenCall {
    /// The next part of the stream; `None` at its end.
    async fn next_chunk(&mut self) -> Option<String> {
        let mut out = String::new();
        while out.is_empty() {
            if self.projection.has_ended() {
                return None;
            }
            let listener = self.listener.as_mut();
            let signal = async {
                match listener {
                    Some(listener) => listener.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                signal = signal => match signal {
                    Signal::Cancelled(_) => {
                        self.turn.cancel();
                        // Nothing answers a cancelled request.
                        self.projection.give_up();
                    }
                    Signal::Dismissed(request_id) => self.projection.dismiss(request_id, &mut out),
                },
                chunk = next_chunk(&mut self.events, &mut self.projection) => return chunk,
            }
        }
        Some(out)
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if self.projection.has_ended() {
            return;
        }
        // A cancellation may have arrived together with the end of the connection.
        if self.ends_with_connection || self.listener.as_mut().is_some_and(CallListener::is_cancelled) {
            self.turn.cancel();
        }
    }
}
