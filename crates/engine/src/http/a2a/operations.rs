//! The operations of the protocol.

use std::sync::Arc;
use std::time::Duration;

use api::engine::Execute;
use api::turns::{BackgroundTurn, TurnRecord, TurnState};
use api::{ClientRequestId, TaskId, TurnId};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::errors;
use super::parts::Content;
use super::request::{self, ListTasks, Message, OneTask, SendMessage};
use super::stream::{Beginning, TaskStream};
use super::task::TaskView;
use crate::agent::{Accepted, AgentError, TurnEvents};
use crate::http::Shared;
use crate::http::admission::BodyMemory;
use crate::http::json_rpc::{self, Fault, RequestId};
use crate::http::projection::{patient_json, stream_response};

/// How long a call without a stream waits for its task.
const MAX_WAIT: Duration = Duration::from_mins(10);
/// The number of tasks on a page unless the request sets it.
const DEFAULT_PAGE_SIZE: i64 = 50;

/// A turn that a request is about.
struct Turn {
    events: TurnEvents,
    task_id: TaskId,
    turn_id: TurnId,
    /// From where on a stream shows it.
    beginning: Beginning,
}

/// Performs a request.
pub(super) async fn perform(
    shared: &Arc<Shared>,
    id: RequestId,
    method: &str,
    params: Map<String, Value>,
    memory: BodyMemory,
) -> Result<Response, Fault> {
    let result = match method {
        "SendMessage" | "SendStreamingMessage" => {
            let send: SendMessage = request::parse(params)?;
            let returns_immediately = send.configuration.return_immediately;
            let turn = send_message(shared, send).await?;
            // The turn has what it needs of the body.
            drop(memory);
            if method == "SendStreamingMessage" {
                return Ok(stream(id, turn));
            }
            let wait = if returns_immediately { Duration::ZERO } else { MAX_WAIT };
            return Ok(answer_with_task(Arc::clone(shared), id, turn, wait).await);
        }
        "SubscribeToTask" => {
            let (turn, record) = find_turn(shared, &request::parse::<OneTask>(params)?.id).await?;
            if record.ended_at.is_some() {
                return Err(errors::unsupported("the task has ended; GetTask returns it"));
            }
            return Ok(stream(id, turn));
        }
        "GetTask" => {
            let (turn, _) = find_turn(shared, &request::parse::<OneTask>(params)?.id).await?;
            read_task(shared, turn, Duration::ZERO).await?
        }
        "CancelTask" => cancel(shared, &request::parse::<OneTask>(params)?.id).await?,
        "ListTasks" => list(shared, request::parse(params)?).await?,
        "CreateTaskPushNotificationConfig"
        | "GetTaskPushNotificationConfig"
        | "ListTaskPushNotificationConfigs"
        | "DeleteTaskPushNotificationConfig" => return Err(errors::push_not_supported()),
        "GetExtendedAgentCard" => return Err(errors::no_extended_card()),
        _ => return Err(Fault::unknown_method(method)),
    };
    Ok(json_rpc::respond(StatusCode::OK, json_rpc::result(&id, &result)))
}

fn stream(id: RequestId, turn: Turn) -> Response {
    let Turn { events, task_id, turn_id, beginning } = turn;
    stream_response(events, TaskStream::new(id, beginning, (task_id, turn_id)))
}

/// The response with the task, once it has ended, waits for a person, or is to be waited for no longer.
async fn answer_with_task(shared: Arc<Shared>, id: RequestId, turn: Turn, wait: Duration) -> Response {
    patient_json(async move {
        match read_task(&shared, turn, wait).await {
            Ok(task) => json_rpc::result(&id, &json!({"task": task})),
            Err(fault) => json_rpc::error(Some(&id), &fault),
        }
    })
    .await
}

async fn read_task(shared: &Shared, turn: Turn, wait: Duration) -> Result<Value, Fault> {
    let Turn { events, task_id, turn_id, .. } = turn;
    let report = shared.agent.report(events, (task_id, turn_id), false, wait).await;
    Ok(TaskView::of_report(&report.map_err(errors::of_agent)?).task())
}

/// Begins a turn, or answers the question of one.
async fn send_message(shared: &Shared, send: SendMessage) -> Result<Turn, Fault> {
    send.check()?;
    let message = send.message;
    if !message.task_id.is_empty() {
        return answer(shared, message).await;
    }
    let Message { message_id, context_id, parts, .. } = message;
    let invalid = |name: &str, error: &dyn std::fmt::Display| {
        Fault::invalid_params(format!("`message.{name}`: {error}"))
    };
    let request_id = format!("a2a-{message_id}");
    // A message that is sent again without a context finds the one that it began.
    let context = if context_id.is_empty() { request_id.clone() } else { context_id };
    let task_id = TaskId::new(context).map_err(|error| invalid("contextId", &error))?;
    let request_id = ClientRequestId::new(request_id).map_err(|error| invalid("messageId", &error))?;
    let (text, media) = Content::parse(parts)?.into_prompt()?;
    let execute =
        Execute { client_request_id: Some(request_id), media, ..Execute::new(task_id.clone(), text) };
    let accepted = shared.agent.submit(execute).await.map_err(errors::of_agent)?;
    let Accepted { turn: BackgroundTurn { task_id, turn_id, .. }, stream } = accepted;
    Ok(Turn { events: TurnEvents::new(stream), task_id, turn_id, beginning: Beginning::First })
}

/// Answers the question of a turn. The stream then has what follows.
async fn answer(shared: &Shared, message: Message) -> Result<Turn, Fault> {
    let (turn, record) = find_turn(shared, &message.task_id).await?;
    if !message.context_id.is_empty() && message.context_id != turn.task_id.as_str() {
        return Err(Fault::invalid_params("`message.contextId`: must be that of the task"));
    }
    let content = Content::parse(message.parts)?;
    let message_id = message.message_id;
    // What waits is read first: if this message has answered the question before it, the journal says so by now.
    let pending = shared.agent.pending_requests().await.map_err(errors::of_agent)?;
    if shared.agent.has_answer(turn.turn_id, message_id.clone()).await.map_err(errors::of_agent)? {
        return Ok(turn);
    }
    if record.ended_at.is_some() {
        return Err(errors::unsupported("the task has ended; send the message without `taskId`"));
    }
    let is_waiting = record.state == TurnState::WaitingForPerson;
    let request = pending.iter().find(|request| is_waiting && request.task_id == turn.task_id);
    let not_waiting = || errors::unsupported("the task works and asks nothing; wait for it, or cancel it");
    let Some(respond) = content.into_answer(request.ok_or_else(not_waiting)?)? else { return Ok(turn) };
    match shared.agent.respond_as(respond, Some(message_id)).await {
        // Another answer was faster.
        Ok(_) | Err(AgentError::NotPending) => Ok(turn),
        Err(error) => Err(errors::of_agent(error)),
    }
}

/// The turn that a task of the protocol is.
async fn find_turn(shared: &Shared, id: &str) -> Result<(Turn, TurnRecord), Fault> {
    let followed = shared.agent.follow(id).await.map_err(errors::of_agent)?;
    let turn_id: TurnId = id.parse().map_err(|_| errors::task_not_found())?;
    let record = shared.agent.turn(&followed.task_id, id).await.map_err(errors::of_agent)?;
    let (events, task_id) = (followed.events, followed.task_id);
    Ok((Turn { events, task_id, turn_id, beginning: Beginning::Now }, record))
}

async fn cancel(shared: &Shared, id: &str) -> Result<Value, Fault> {
    let (turn, record) = find_turn(shared, id).await?;
    if record.ended_at.is_some() {
        return Err(errors::task_not_cancelable());
    }
    match shared.agent.cancel(&turn.task_id, Some(turn.turn_id)).await {
        Ok(_) => read_task(shared, turn, Duration::ZERO).await,
        Err(AgentError::NotRunning | AgentError::UnknownTask) => Err(errors::task_not_cancelable()),
        Err(error) => Err(errors::of_agent(error)),
    }
}

/// A page of the tasks of a context, or of all, the newest first.
async fn list(shared: &Shared, list: ListTasks) -> Result<Value, Fault> {
    let ListTasks { context_id, page_size, page_token, include_artifacts, .. } = list;
    let limit = page_size.map_or(DEFAULT_PAGE_SIZE, i64::from);
    let context = match context_id.as_str() {
        "" => None,
        id => Some(TaskId::new(id).map_err(|error| Fault::invalid_params(format!("`contextId`: {error}")))?),
    };
    let unknown_page = || Fault::invalid_params("`pageToken`: there is no such page");
    let before: Option<TurnId> = match page_token.as_str() {
        "" => None,
        token => Some(token.parse().map_err(|_| unknown_page())?),
    };
    let page = shared.agent.turn_page(context, limit, before).await.map_err(errors::of_agent)?;
    let page = page.ok_or_else(unknown_page)?;
    let tasks: Vec<Value> = page
        .turns
        .iter()
        .map(|(task_id, record)| {
            let view = TaskView::of_record(task_id, record);
            if include_artifacts { view.task() } else { view.without_artifacts().task() }
        })
        .collect();
    let next = page.next.map_or_else(String::new, |turn_id| turn_id.to_string());
    Ok(json!({"tasks": tasks, "nextPageToken": next, "pageSize": tasks.len(), "totalSize": page.total}))
}
