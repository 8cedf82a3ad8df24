//! How a conversation is opened: what was said so far, and whether a turn is running.

use api::TaskId;
use api::engine::{Role, TaskMessage, TaskStatus};
use http_service::clock::{Clock as _, SystemClock};

use super::screen::message_texts;
use crate::client::ClientError;
use crate::remote::Remote;

/// How many earlier messages are shown.
const MAX_EARLIER_MESSAGES: u32 = 20;
/// How many messages are searched for the last one of the user.
const MAX_SEARCHED_MESSAGES: u32 = 1_000;

/// An opened conversation.
pub(super) struct Opening {
    pub(super) task: TaskId,
    pub(super) messages: Vec<TaskMessage>,
    /// Whether there are messages before these.
    pub(super) has_older: bool,
    /// Whether a turn is running, whose events after `last_ts` are to be shown.
    pub(super) is_running: bool,
    pub(super) last_ts: i64,
}

/// Opens a conversation for a person.
pub(super) async fn open(remote: &Remote, task: TaskId) -> Result<Opening, ClientError> {
    let found = remote.call(async |engine| engine.conversation(&task).await).await?;
    let now = SystemClock::new().now().unix_ms();
    let Some(conversation) = found else {
        return Ok(Opening { task, messages: Vec::new(), has_older: false, is_running: false, last_ts: now });
    };
    let mut messages =
        remote.call(async |engine| engine.newest_messages(&task, MAX_EARLIER_MESSAGES).await).await?;
    let has_older = conversation.message_count > messages.len() as u64;
    let is_running = conversation.status != TaskStatus::Idle;
    let mut last_ts = now;
    if is_running {
        // The turn's own messages are shown by its events.
        let turn = messages.iter().rposition(is_of_user);
        messages.truncate(turn.map_or(0, |turn| turn + 1));
        last_ts = messages.last().map_or(0, |message| message.created_at.unix_ms() - 1);
    }
    messages.retain(|message| !message.superseded);
    Ok(Opening { task, messages, has_older, is_running, last_ts })
}

/// Opens a conversation for a program: earlier events are skipped, except a request that waits for an answer.
pub(super) async fn open_quietly(remote: &Remote, task: TaskId) -> Result<Opening, ClientError> {
    let pending = remote.call(async |engine| engine.pending().await).await?;
    let waiting = pending.iter().find(|waiting| waiting.task_id == task);
    let last_ts = match waiting {
        Some(waiting) => waiting.created_at.unix_ms() - 1,
        None => SystemClock::new().now().unix_ms(),
    };
    let is_running = waiting.is_some();
    Ok(Opening { task, messages: Vec::new(), has_older: false, is_running, last_ts })
}

/// The last message that the user wrote, with its text.
pub(super) async fn last_message(
    remote: &Remote,
    task: &TaskId,
) -> Result<Option<(TaskMessage, String)>, ClientError> {
    let found = remote.call(async |engine| engine.newest_messages(task, MAX_SEARCHED_MESSAGES).await).await;
    let messages = match found {
        Err(ClientError::Refused { code: api::ErrorCode::TaskNotFound, .. }) => return Ok(None),
        found => found?,
    };
    let last = messages.into_iter().rfind(|message| is_of_user(message) && !message.superseded);
    Ok(last.map(|message| {
        let text = message_texts(&message.content).join("\n");
        (message, text)
    }))
}

/// Whether the user wrote it. The results of tools have the same role.
fn is_of_user(message: &TaskMessage) -> bool {
    let has_result = || {
        let blocks = message.content.as_array();
        blocks.is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_result"))
    };
    message.role == Role::User && !has_result()
}
