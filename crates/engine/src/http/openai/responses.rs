//! `/v1/responses`: responses as the vendor's API has them, from turns and their events.

use std::time::Duration;

use api::conversations::ForkTask;
use api::engine::Execute;
use api::serde_helpers::BoundedInt;
use api::turns::ListTurns;
use api::{ClientRequestId, TaskId, TurnId};
use axum::extract::State as Extract;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use http_service::http::{Path, Query};
use serde::Deserialize;
use serde_json::{Value, json};

use super::chat::{MAX_WAIT, idempotency_key, new_task};
use super::error::VendorErrorBody;
use super::refusals;
use super::responses_items::Settings;
use super::responses_projection::ResponseProjection;
use super::responses_request::{Place, ResponseRequest};
use super::{BearerAuthenticated, Vendor, VendorBody, VendorError, annotate, ids, task_of_header};
use crate::agent::{Accepted, AgentError, FollowedTurn, TurnEvents};
use crate::http::front_schemas::{CreateResponseRequest, DeletedResponse, ResponseEvent, ResponseObject};
use crate::http::projection::{Projector as _, patient_response, stream_response};
use crate::http::{AppState, Shared};

/// How long a cancelled turn may take to end.
const CANCEL_WAIT: Duration = Duration::from_secs(10);

/// Runs a turn and answers in the form of OpenAI's responses.
#[utoipa::path(
    post, path = "/v1/responses", operation_id = "openai_create_response", tag = "openai",
    request_body = CreateResponseRequest, security(("engine_key" = []), ("bearer" = [])),
    params(
        ("Roundhouse-Task" = Option<String>, Header, description = "The task to continue; a new one by default"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the request safe to repeat"),
    ),
    responses(
        (status = 200, description = "The response, or its events", content(
            (ResponseObject = "application/json"), (inline(ResponseEvent) = "text/event-stream"),
        )),
        (status = 400, description = refusals::INVALID_FIELD, body = VendorErrorBody),
        (status = 401, description = refusals::WRONG_KEY, body = VendorErrorBody),
        (status = 403, description = refusals::TOKEN, body = VendorErrorBody),
        (status = 404, description = refusals::UNKNOWN_MODEL_OR_RESPONSE, body = VendorErrorBody),
        (status = 408, description = refusals::LATE_BODY, body = VendorErrorBody),
        (status = 409, description = refusals::BUSY, body = VendorErrorBody),
        (status = 413, description = refusals::LARGE_BODY, body = VendorErrorBody),
        (status = 429, description = refusals::CAP, body = VendorErrorBody),
        (status = 500, description = refusals::INTERNAL, body = VendorErrorBody),
        (status = 503, description = refusals::STOPPING, body = VendorErrorBody),
    ),
)]
pub(in crate::http) async fn create_response(
    _: BearerAuthenticated,
    Extract(AppState(shared)): Extract<AppState>,
    headers: HeaderMap,
    VendorBody(body, memory): VendorBody,
) -> Result<Response, VendorError> {
    let request_id = idempotency_key(&headers)?;
    let fresh_task = new_task("response", request_id.as_ref())?;
    let request = ResponseRequest::parse(body, task_of_header(&headers)?, fresh_task.clone())?;
    let (is_streamed, in_background) = (request.is_streamed, request.in_background);
    let task_id = find_task(&shared, &request.place, fresh_task, request_id.as_ref()).await?;
    let (execute, without_effect) = request.into_execute(task_id.clone())?;
    let settings = Settings::of_request(&execute, in_background);
    let execute = Execute { client_request_id: request_id, ..execute };
    let Accepted { turn, stream } = shared.agent.submit(execute).await?;
    // The turn has what it needs of the body.
    drop(memory);
    let events = TurnEvents::new(stream);
    let projection = ResponseProjection::new(turn.turn_id, turn.task_id, settings, None);
    let mut response = if is_streamed {
        stream_response(events, projection)
    } else {
        let until = if in_background { Until::Begun } else { Until::EndedOrWaiting };
        patient_response(async move { response_object(&shared, events, projection, until).await }).await
    };
    annotate(response.headers_mut(), task_id.as_str(), &without_effect);
    Ok(response)
}

/// Finds the task of a request. What follows a response that is not the last one of its task becomes a fork.
async fn find_task(
    shared: &Shared,
    place: &Place,
    fresh_task: TaskId,
    request_id: Option<&ClientRequestId>,
) -> Result<TaskId, VendorError> {
    let id = match place {
        Place::New => return Ok(fresh_task),
        Place::Task(task_id) => return Ok(task_id.clone()),
        Place::After(id) => id,
    };
    let turn = find_turn(shared, id).await.map_err(|error| error.about("previous_response_id"))?;
    let record = shared.agent.turn(&turn.task_id, &turn_id_of(id)?.to_string()).await?;
    let page = ListTurns { limit: serde_json::from_value(json!(1)).ok(), before: None };
    let newest = shared.agent.turns(&turn.task_id, page).await?.turns.into_iter().next();
    let is_newest = newest.is_none_or(|newest| newest.turn_id == record.turn_id);
    // A repeated request finds the turn that it has begun in the task itself.
    let is_repeated = request_id.is_some_and(|id| is_known(shared, &turn.task_id, id));
    if is_newest || is_repeated {
        return Ok(turn.task_id);
    }
    let Some(after) = record.answer_message_id else {
        let message = "`previous_response_id`: that response has no answer, and others came after it";
        return Err(VendorError::conflict(message, "response_not_completed").about("previous_response_id"));
    };
    let fork = ForkTask { task_id: fresh_task.clone(), after: Some(after.to_string()), title: None };
    shared.agent.fork(&turn.task_id, fork).await?;
    Ok(fresh_task)
}

fn is_known(shared: &Shared, task_id: &TaskId, request_id: &ClientRequestId) -> bool {
    shared.brain.turn_by_request(task_id, request_id.as_str()).is_ok_and(|turn| turn.is_some())
}

fn unknown_response() -> VendorError {
    VendorError::not_found("there is no such response; its task may have been deleted", "response_not_found")
}

fn turn_id_of(id: &str) -> Result<TurnId, VendorError> {
    let turn_id = ids::turn_of("resp_", id).ok_or_else(unknown_response)?;
    turn_id.parse().map_err(|_| unknown_response())
}

/// Finds the turn of a response.
async fn find_turn(shared: &Shared, id: &str) -> Result<FollowedTurn, VendorError> {
    match shared.agent.follow(&turn_id_of(id)?.to_string()).await {
        Err(AgentError::UnknownTurn(_)) => Err(unknown_response()),
        found => Ok(found?),
    }
}

/// When a response's object is complete enough.
#[derive(Clone, Copy, PartialEq)]
enum Until {
    /// Its turn has begun.
    Begun,
    /// All that has happened so far is in it.
    Now,
    /// Its turn has ended, or waits for a person.
    EndedOrWaiting,
    /// Its turn has ended.
    Ended,
}

/// Reads events until the response's object is complete enough.
async fn response_object(
    shared: &Shared,
    mut events: TurnEvents,
    mut projection: ResponseProjection,
    until: Until,
) -> Result<Value, VendorError> {
    let read = async {
        let (mut has_begun, mut unused) = (false, String::new());
        loop {
            let is_enough = match until {
                Until::Begun => has_begun,
                Until::Now => events.is_caught_up(),
                Until::EndedOrWaiting => events.is_caught_up() && projection.is_waiting(),
                Until::Ended => false,
            };
            if is_enough || projection.has_ended() {
                return Ok::<_, VendorError>(true);
            }
            let Some(event) = events.next().await.map_err(AgentError::from)? else { return Ok(false) };
            projection.apply(event, &mut unused);
            unused.clear();
            has_begun = true;
        }
    };
    // What is not there in time is in progress: the client asks again.
    let is_read = tokio::time::timeout(MAX_WAIT, read).await.unwrap_or(Ok(true))?;
    if !is_read && !projection.has_ended() {
        let (task_id, turn_id) = projection.turn();
        let record = shared.agent.turn(task_id, &turn_id.to_string()).await;
        if record.is_ok_and(|record| record.ended_at.is_some()) {
            projection.give_up();
        }
    }
    Ok(projection.object())
}

/// The query of [`read_response`].
#[derive(Deserialize)]
pub(in crate::http) struct ReadResponse {
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    starting_after: Option<BoundedInt<0, { i64::MAX }>>,
}

/// Returns a response, or streams its events: from the first one, or from the one after `starting_after`.
#[utoipa::path(
    get, path = "/v1/responses/{response_id}", operation_id = "openai_read_response", tag = "openai",
    security(("engine_key" = []), ("bearer" = [])),
    params(
        ("response_id" = String, Path, description = "The response"),
        ("stream" = Option<bool>, Query, description = "Whether to stream its events"),
        ("starting_after" = Option<i64>, Query, description = "The number of the last event that the client has"),
    ),
    responses(
        (status = 200, description = "The response, or its events", content(
            (ResponseObject = "application/json"), (inline(ResponseEvent) = "text/event-stream"),
        )),
        (status = 400, description = refusals::INVALID_PARAMETER, body = VendorErrorBody),
        (status = 401, description = refusals::WRONG_KEY, body = VendorErrorBody),
        (status = 403, description = refusals::TOKEN, body = VendorErrorBody),
        (status = 404, description = refusals::UNKNOWN_RESPONSE, body = VendorErrorBody),
        (status = 500, description = refusals::INTERNAL, body = VendorErrorBody),
    ),
)]
pub(in crate::http) async fn read_response(
    _: BearerAuthenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Vendor(Path(id)): Vendor<Path<String>>,
    Vendor(Query(query)): Vendor<Query<ReadResponse>>,
) -> Result<Response, VendorError> {
    let turn = find_turn(&shared, &id).await?;
    let after = query.starting_after.map(BoundedInt::get);
    let settings = Settings::of_turn(turn.overrides);
    let projection = ResponseProjection::new(turn_id_of(&id)?, turn.task_id, settings, after);
    if query.stream.unwrap_or_default() {
        return Ok(stream_response(turn.events, projection));
    }
    let object = response_object(&shared, turn.events, projection, Until::Now).await?;
    Ok(axum::Json(object).into_response())
}

/// Cancels a response whose turn is running or waits for a person.
#[utoipa::path(
    post, path = "/v1/responses/{response_id}/cancel", operation_id = "openai_cancel_response", tag = "openai",
    security(("engine_key" = []), ("bearer" = [])),
    params(("response_id" = String, Path, description = "The response")),
    responses(
        (status = 200, description = "The response as it is now", body = ResponseObject),
        (status = 400, description = refusals::INVALID_PARAMETER, body = VendorErrorBody),
        (status = 401, description = refusals::WRONG_KEY, body = VendorErrorBody),
        (status = 403, description = refusals::TOKEN, body = VendorErrorBody),
        (status = 404, description = refusals::UNKNOWN_RESPONSE, body = VendorErrorBody),
        (status = 500, description = refusals::INTERNAL, body = VendorErrorBody),
        (status = 503, description = refusals::CANCEL_UNFINISHED, body = VendorErrorBody),
    ),
)]
pub(in crate::http) async fn cancel_response(
    _: BearerAuthenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Vendor(Path(id)): Vendor<Path<String>>,
) -> Result<axum::Json<Value>, VendorError> {
    let FollowedTurn { events, task_id, overrides, .. } = find_turn(&shared, &id).await?;
    let turn_id = turn_id_of(&id)?;
    let record = shared.agent.turn(&task_id, &turn_id.to_string()).await?;
    // One that has ended stays as it is.
    let is_open = record.ended_at.is_none();
    if is_open {
        match shared.agent.cancel(&task_id, Some(turn_id)).await {
            Ok(_) | Err(AgentError::NotRunning) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let projection = ResponseProjection::new(turn_id, task_id, Settings::of_turn(overrides), None);
    let until = if is_open { Until::Ended } else { Until::Now };
    let object = response_object(&shared, events, projection, until);
    let object = tokio::time::timeout(CANCEL_WAIT, object).await.unwrap_or_else(|_| {
        Err(VendorError::unfinished("turn_unfinished", "the turn is being cancelled and has not ended yet"))
    })?;
    Ok(axum::Json(object))
}

/// Deletes a response that is the only one of its task, with the task.
#[utoipa::path(
    delete, path = "/v1/responses/{response_id}", operation_id = "openai_delete_response", tag = "openai",
    security(("engine_key" = []), ("bearer" = [])),
    params(("response_id" = String, Path, description = "The response")),
    responses(
        (status = 200, description = "It was deleted", body = DeletedResponse),
        (status = 400, description = refusals::INVALID_PARAMETER, body = VendorErrorBody),
        (status = 401, description = refusals::WRONG_KEY, body = VendorErrorBody),
        (status = 403, description = refusals::TOKEN, body = VendorErrorBody),
        (status = 404, description = refusals::UNKNOWN_RESPONSE, body = VendorErrorBody),
        (status = 409, description = refusals::PART_OF_CONVERSATION, body = VendorErrorBody),
        (status = 500, description = refusals::INTERNAL, body = VendorErrorBody),
    ),
)]
pub(in crate::http) async fn delete_response(
    _: BearerAuthenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Vendor(Path(id)): Vendor<Path<String>>,
) -> Result<axum::Json<Value>, VendorError> {
    let task_id = find_turn(&shared, &id).await?.task_id;
    let page = ListTurns { limit: serde_json::from_value(json!(2)).ok(), before: None };
    if shared.agent.turns(&task_id, page).await?.turns.len() > 1 {
        let message = "the response is part of a conversation, from which nothing can be taken out; \
                       DELETE /tasks/{task_id} deletes all of it";
        return Err(VendorError::conflict(message, "response_in_conversation"));
    }
    shared.agent.delete(&task_id, false).await?;
    Ok(axum::Json(json!({"id": id, "object": "response", "deleted": true})))
}
