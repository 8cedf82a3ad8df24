//! Conversations as a product lists them: titles, metadata, pins and the archive, beside the tasks themselves.

use std::collections::BTreeMap;

use api::conversations::{Conversation, ForkedFrom, TitleSource};
use api::engine::TaskStatus;
use api::{MessageId, TaskId};
use resources::text::{first_chars, shorten_to_chars};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::queries::{task_id, timestamp};
use super::{Brain, StoreError, TaskRow, WriteTx, to_json};

/// The most characters of a title that is the beginning of a message.
const MAX_PLAIN_TITLE_CHARS: usize = 60;
/// The part of a message that such a title is made from, in characters.
const MAX_TITLED_CHARS: usize = 400;

/// What to change of a conversation; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationChange {
    /// The title that the user sets, or removes.
    pub title: Option<Option<String>>,
    /// The entries of metadata that are set, or removed.
    pub metadata: BTreeMap<String, Option<String>>,
    /// Whether it is pinned.
    pub pinned: Option<bool>,
    /// Whether it is archived.
    pub archived: Option<bool>,
}

/// What came of a change of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConversationChanged {
    /// It is stored.
    Yes,
    /// There is no such task.
    UnknownTask,
    /// There would be more entries of metadata than the limit.
    TooMuchMetadata,
}

/// Which conversations are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConversationFilter {
    /// Only archived ones, or only others.
    pub archived: Option<bool>,
    /// Only pinned ones, or only others.
    pub pinned: Option<bool>,
}

/// The place of a conversation in the list, which is ordered by the time of the last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConversationCursor {
    updated_at: i64,
    task: i64,
}

impl ConversationCursor {
    /// Reads the form of [`ConversationCursor::encode`].
    pub fn parse(text: &str) -> Option<Self> {
        let (updated_at, task) = text.split_once('-')?;
        Some(Self { updated_at: updated_at.parse().ok()?, task: task.parse().ok()? })
    }

    /// The cursor as clients send it back; they know nothing of its form.
    pub fn encode(self) -> String {
        format!("{}-{}", self.updated_at, self.task)
    }
}

impl WriteTx<'_> {
    /// Changes what is shown of a conversation. `max_metadata` limits its entries of metadata.
    pub fn change_conversation(
        &self,
        task_id: &TaskId,
        change: &ConversationChange,
        max_metadata: usize,
    ) -> Result<ConversationChanged, StoreError> {
        let Some(task) = self.find_task(task_id)? else { return Ok(ConversationChanged::UnknownTask) };
        self.execute("INSERT INTO conversations (task) VALUES (?1) ON CONFLICT DO NOTHING", [task])?;
        if !change.metadata.is_empty() {
            let mut metadata = self.transaction.query_row(
                "SELECT metadata FROM conversations WHERE task = ?1",
                [task],
                |row| metadata_column(row, 0),
            )?;
            for (key, value) in &change.metadata {
                match value {
                    Some(value) => metadata.insert(key.clone(), value.clone()),
                    None => metadata.remove(key),
                };
            }
            if metadata.len() > max_metadata {
                return Ok(ConversationChanged::TooMuchMetadata);
            }
            let sql = "UPDATE conversations SET metadata = ?2 WHERE task = ?1";
            self.execute(sql, params![task, to_json(&metadata)?])?;
        }
        if let Some(title) = &change.title {
            let source = title.as_ref().map(|_| TitleSource::User.as_str());
            let sql = "UPDATE conversations SET title = ?2, title_source = ?3 WHERE task = ?1";
            self.execute(sql, params![task, title, source])?;
            // The user has decided: no model is asked any more.
            self.drop_title_request(TaskRow(task))?;
            self.execute("UPDATE conversations SET title_asked = 1 WHERE task = ?1", [task])?;
        }
        self.execute(
            "UPDATE conversations SET pinned = COALESCE(?2, pinned), archived = COALESCE(?3, archived)
             WHERE task = ?1",
            params![task, change.pinned, change.archived],
        )?;
        Ok(ConversationChanged::Yes)
    }

    /// The row of a task.
    pub(super) fn find_task(&self, task_id: &TaskId) -> Result<Option<i64>, StoreError> {
        let sql = "SELECT task FROM tasks WHERE task_id = ?1";
        let mut query = self.transaction.prepare_cached(sql)?;
        Ok(query.query_row([task_id.as_str()], |row| row.get(0)).optional()?)
    }
}

impl Brain {
    /// A page of the conversations, most recently changed first, and the cursor of the next page. Blocks.
    pub fn conversations(
        &self,
        filter: ConversationFilter,
        after: Option<ConversationCursor>,
        limit: usize,
    ) -> Result<(Vec<Conversation>, Option<ConversationCursor>), StoreError> {
        self.read_long(|reader| list(reader, filter, after, limit))
    }

    /// What is shown of a conversation. Blocks.
    pub fn conversation(&self, task: TaskRow) -> Result<Option<Conversation>, StoreError> {
        self.read_long(|reader| conversation(reader, task))
    }
}

/// A page of the conversations after `after`, most recently changed first, and the cursor of the next page.
fn list(
    reader: &Connection,
    filter: ConversationFilter,
    after: Option<ConversationCursor>,
    limit: usize,
) -> Result<(Vec<Conversation>, Option<ConversationCursor>), Error> {
    let mut query = reader.prepare_cached(
        "SELECT updated_at, task FROM tasks LEFT JOIN conversations USING (task)
         WHERE (updated_at, task) < (?1, ?2)
         AND (?3 IS NULL OR COALESCE(archived, 0) = ?3) AND (?4 IS NULL OR COALESCE(pinned, 0) = ?4)
         ORDER BY updated_at DESC, task DESC LIMIT ?5",
    )?;
    let after = after.unwrap_or(ConversationCursor { updated_at: i64::MAX, task: i64::MAX });
    let one_more = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
    let ConversationFilter { archived, pinned } = filter;
    let found = query
        .query_map(params![after.updated_at, after.task, archived, pinned, one_more], |row| {
            Ok(ConversationCursor { updated_at: row.get(0)?, task: row.get(1)? })
        })?;
    let mut found = found.collect::<Result<Vec<_>, _>>()?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().copied().filter(|_| has_more);
    let mut conversations = Vec::with_capacity(found.len());
    for ConversationCursor { task, .. } in found {
        conversations.extend(conversation(reader, TaskRow(task))?);
    }
    Ok((conversations, next))
}

/// A conversation.
pub(super) fn conversation(
    reader: &Connection,
    TaskRow(task): TaskRow,
) -> Result<Option<Conversation>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT tasks.task_id, title, title_source, COALESCE(metadata, '{}'), COALESCE(pinned, 0),
                COALESCE(archived, 0),
                EXISTS (SELECT 1 FROM turns WHERE turns.task = tasks.task AND ended_at IS NULL),
                EXISTS (SELECT 1 FROM pending WHERE pending.task = tasks.task),
                message_count, tasks.created_at, tasks.updated_at,
                (SELECT task_id FROM tasks AS origins WHERE origins.task = origin), forked_after
         FROM tasks LEFT JOIN conversations USING (task) WHERE tasks.task = ?1",
    )?;
    let found = query.query_row([task], conversation_from_row).optional()?;
    let Some(mut conversation) = found else { return Ok(None) };
    if conversation.title.is_none() {
        conversation.title = plain_title(&first_message(reader, task)?);
        conversation.title_source = conversation.title.as_ref().map(|_| TitleSource::Message);
    }
    Ok(Some(conversation))
}

fn conversation_from_row(row: &Row<'_>) -> Result<Conversation, Error> {
    let title: Option<String> = row.get(1)?;
    let is_from_model = row.get::<_, Option<String>>(2)?.as_deref() == Some(TitleSource::Model.as_str());
    let source = if is_from_model { TitleSource::Model } else { TitleSource::User };
    let after: Option<String> = row.get(12)?;
    let origin = match row.get_ref(11)? {
        rusqlite::types::ValueRef::Null => None,
        _ => Some(task_id(row, 11)?),
    };
    let after = after.and_then(|after| after.parse::<MessageId>().ok());
    Ok(Conversation {
        task_id: task_id(row, 0)?,
        title_source: title.as_ref().map(|_| source),
        title,
        metadata: metadata_column(row, 3)?,
        pinned: row.get(4)?,
        archived: row.get(5)?,
        status: task_status(row, 6)?,
        message_count: row.get::<_, i64>(8)?.try_into().unwrap_or(0),
        created_at: timestamp(row, 9)?,
        updated_at: timestamp(row, 10)?,
        forked_from: origin.zip(after).map(|(task_id, message_id)| ForkedFrom { task_id, message_id }),
    })
}

/// What a task is doing, from the columns of whether it has an open turn and a pending request.
pub(super) fn task_status(row: &Row<'_>, column: usize) -> Result<TaskStatus, Error> {
    Ok(match (row.get(column)?, row.get(column + 1)?) {
        (false, _) => TaskStatus::Idle,
        (true, false) => TaskStatus::Running,
        (true, true) => TaskStatus::Paused,
    })
}

/// Reads a column with entries of metadata.
pub(super) fn metadata_column(row: &Row<'_>, column: usize) -> Result<BTreeMap<String, String>, Error> {
    serde_json::from_str(row.get_ref(column)?.as_str()?)
        .map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

/// The beginning of the first message of a conversation; of one whose first turn is running, that of the turn.
fn first_message(reader: &Connection, task: i64) -> Result<String, Error> {
    let ended = "SELECT COALESCE(substr(body ->> '$.message', 1, ?2), '') FROM said JOIN steps USING (step)
                 WHERE said.task = ?1 AND place = 0";
    // Only the step that opened each turn is parsed.
    let running = "SELECT COALESCE(substr(body ->> '$.message', 1, ?2), '')
                   FROM turns JOIN steps ON steps.step = (
                       SELECT step FROM steps AS first WHERE first.task = ?1 AND first.turn = turns.turn
                       ORDER BY step LIMIT 1
                   )
                   WHERE turns.task = ?1 AND COALESCE(body ->> '$.base.from', 'end') <> 'retry'
                   ORDER BY turns.turn DESC LIMIT 1";
    for sql in [ended, running] {
        let values = params![task, i64::try_from(MAX_TITLED_CHARS).unwrap_or(i64::MAX)];
        let found = reader.prepare_cached(sql)?.query_row(values, |row| row.get(0)).optional()?;
        if let Some(message) = found {
            return Ok(message);
        }
    }
    Ok(String::new())
}

/// The title that a message gives: its first words.
fn plain_title(message: &str) -> Option<String> {
    let words: Vec<&str> = message.split_whitespace().collect();
    let line = words.join(" ");
    if line.is_empty() {
        return None;
    }
    let short = first_chars(&line, MAX_PLAIN_TITLE_CHARS);
    let cuts_word = !line.get(short.len()..).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    // A text without spaces, or with a very long word, is cut where it is too long.
    let end = short.rfind(' ').filter(|end| cuts_word && *end > 0);
    match end {
        Some(end) => Some(format!("{}…", line.get(..end)?)),
        None => Some(shorten_to_chars(&line, MAX_PLAIN_TITLE_CHARS)),
    }
}

#[cfg(test)]
#[path = "../tests/unit/conversations.rs"]
mod tests;
