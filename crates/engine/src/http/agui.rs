//! AG-UI, the Agent User Interaction Protocol: `POST /agui` runs a turn and streams it as the events of a run. A thread is
//! a task. A run is a turn, or the part of a turn between two requests to a person; nothing is kept beside the log.

mod input;
mod projection;
mod resume;

use api::engine::Execute;
use api::{ClientRequestId, TaskId, TurnId};
use axum::extract::{FromRequest, FromRequestParts, Request, State as Extract};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use self::input::{RunInput, Start};
use self::projection::{KnownState, RunProjection, Seen};
use super::front_schemas::{RunAgentInput, RunEvent};
use super::openai::{BearerAuthenticated, VendorBody, VendorError, annotate, refusals};
use super::projection::stream_response;
use super::{AppState, Shared};
use crate::agent::{Accepted, AgentError, TurnEvents};

/// The body of a refusal: the event `RUN_ERROR`.
#[derive(Serialize, ToSchema)]
struct RunErrorEvent {
    #[serde(rename = "type")]
    kind: RunErrorType,
    /// What is wrong, where, and what to do.
    message: String,
    /// The code, by which programs recognize it.
    code: String,
}

/// The only type of [`RunErrorEvent`].
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum RunErrorType {
    /// The run is refused or has failed.
    RunError,
}

/// A refusal in the protocol's form: the event `RUN_ERROR`.
#[derive(Debug)]
pub(super) struct RunError(VendorError);

impl<E: Into<VendorError>> From<E> for RunError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for RunError {
    fn into_response(self) -> Response {
        let (message, code) = (self.0.message().to_owned(), self.0.code().to_owned());
        let event = axum::Json(RunErrorEvent { kind: RunErrorType::RunError, message, code });
        let (head, _) = self.0.into_response().into_parts();
        Response::from_parts(head, event.into_response().into_body())
    }
}

/// A caller with the valid key.
pub(super) struct RunCaller;

impl FromRequestParts<AppState> for RunCaller {
    type Rejection = RunError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, RunError> {
        BearerAuthenticated::from_request_parts(parts, state).await?;
        Ok(Self)
    }
}

/// The body of a request, and its memory.
pub(super) struct RunBody(VendorBody);

impl FromRequest<AppState> for RunBody {
    type Rejection = RunError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, RunError> {
        Ok(Self(VendorBody::from_request(request, state).await?))
    }
}

/// Runs a turn, or continues one that waits for a person, and streams it as AG-UI events. The same `runId` again is the
/// same run: it streams what `messages` does not have yet.
#[utoipa::path(
    post, path = "/agui", operation_id = "run_agui_agent", tag = "agui",
    request_body = RunAgentInput, security(("engine_key" = []), ("bearer" = [])),
    responses(
        (status = 200, description = "The events of the run", body = inline(RunEvent), content_type = "text/event-stream"),
        (status = 400, description = refusals::INVALID_FIELD, body = RunErrorEvent),
        (status = 401, description = refusals::WRONG_KEY, body = RunErrorEvent),
        (status = 404, description = refusals::UNKNOWN_INTERRUPT, body = RunErrorEvent),
        (status = 408, description = refusals::LATE_BODY, body = RunErrorEvent),
        (status = 409, description = refusals::BUSY_THREAD, body = RunErrorEvent),
        (status = 413, description = refusals::LARGE_BODY, body = RunErrorEvent),
        (status = 429, description = refusals::CAP, body = RunErrorEvent),
        (status = 500, description = refusals::INTERNAL, body = RunErrorEvent),
        (status = 503, description = refusals::STOPPING, body = RunErrorEvent),
    ),
)]
pub(super) async fn run_agui_agent(
    _: RunCaller,
    Extract(AppState(shared)): Extract<AppState>,
    RunBody(VendorBody(body, memory)): RunBody,
) -> Result<Response, RunError> {
    let RunInput { thread, run_id, start, mut without_effect } = RunInput::parse(body)?;
    let (events, projection) = match start {
        Start::Message { request, messages } => {
            let request_id = request_id(&run_id)?;
            let known =
                shared.brain.turn_by_request(&thread, request_id.as_str()).map_err(AgentError::from)?;
            let known = known.map(|turn| turn.turn_id);
            let (messages, seen) = split_seen(messages, known);
            // Of a known run it is not known whether its thread was new then.
            let has_history = shared.brain.task(&thread).map_err(AgentError::from)?.is_some();
            let second = known.map(|_| (request.clone(), messages.clone()));
            let (execute, unused_fields) = request.into_execute(&thread, messages, has_history)?;
            without_effect.extend(unused_fields);
            let first = submit(&shared, execute, &request_id).await;
            let events = match (first, second) {
                (Err(_), Some((request, messages))) => {
                    let (execute, _) = request.into_execute(&thread, messages, !has_history)?;
                    submit(&shared, execute, &request_id).await?
                }
                (first, _) => first?,
            };
            let state = known_state(&shared, &thread).await?;
            (events, RunProjection::new(thread.as_str(), run_id, seen, state))
        }
        Start::Resume { entry, messages } => {
            let interrupt = resume::Interrupt::parse(&entry.interrupt_id)?;
            let (_, seen) = split_seen(messages, Some(interrupt.turn_id));
            let expected = resume::answer(&shared, &thread, &interrupt, entry).await?;
            let turn = resume::follow(&shared, &thread, &interrupt).await?;
            let state = known_state(&shared, &thread).await?;
            let projection = RunProjection::new(thread.as_str(), run_id, seen, state);
            (turn.events, projection.resuming(interrupt.request_id, expected))
        }
    };
    // The turn has what it needs of the body.
    drop(memory);
    let mut response = stream_response(events, projection);
    annotate(response.headers_mut(), thread.as_str(), &without_effect);
    Ok(response)
}

/// The working memory of a thread, for whoever opens it.
async fn known_state(shared: &Shared, thread: &TaskId) -> Result<KnownState, RunError> {
    // The time is read first: what was written until then is in the memory.
    let Some(task) = shared.brain.task(thread).map_err(AgentError::from)? else {
        return Ok(KnownState::default());
    };
    match shared.agent.working_memory(thread).await {
        Ok(memory) => Ok(KnownState { memory, as_of: task.last_ts }),
        // The thread is being deleted.
        Err(AgentError::UnknownTask) => Ok(KnownState::default()),
        Err(error) => Err(error.into()),
    }
}

fn request_id(run_id: &str) -> Result<ClientRequestId, RunError> {
    let id = ClientRequestId::new(format!("agui-{run_id}"));
    Ok(id.map_err(|error| VendorError::invalid("runId", error))?)
}

async fn submit(
    shared: &Shared,
    execute: Execute,
    request_id: &ClientRequestId,
) -> Result<TurnEvents, RunError> {
    let execute = Execute { client_request_id: Some(request_id.clone()), ..execute };
    let Accepted { stream, .. } = shared.agent.submit(execute).await?;
    Ok(TurnEvents::new(stream))
}

/// Takes out of `messages` what the client has of this turn already.
fn split_seen(messages: Vec<Value>, turn_id: Option<TurnId>) -> (Vec<Value>, Seen) {
    let mut seen = Seen::default();
    let Some(turn_id) = turn_id else { return (messages, seen) };
    let prefix = projection::message_prefix(turn_id);
    let is_of_turn =
        |message: &Value| message.get("id").and_then(Value::as_str).is_some_and(|id| id.starts_with(&prefix));
    let (of_turn, others) = messages.into_iter().partition::<Vec<_>, _>(is_of_turn);
    for message in &of_turn {
        seen.add(message);
    }
    (others, seen)
}

#[cfg(test)]
#[path = "../../tests/unit/http/agui.rs"]
mod tests;
