//! Titles that a model makes: which tasks wait for one, and what came of it.

use api::{TaskId, Timestamp};
use rusqlite::{Connection, Error, OptionalExtension as _, params};

use super::message_text::{MessageText, Speaker};
use super::queries::task_id;
use super::{Brain, CallUsage, StoreError, TaskRow, WriteTx};

/// A task that waits for a title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TitleRequest {
    /// The task.
    pub task: TaskRow,
    /// The id of the task.
    pub task_id: TaskId,
    /// How often a model was asked.
    pub tries: u32,
    /// The first message of the user that has text.
    pub question: String,
    /// The first answer that has text.
    pub answer: String,
}

impl WriteTx<'_> {
    /// Requests a title for a task, unless it has one or a model was asked before.
    pub(super) fn request_title(&self, TaskRow(task): TaskRow) -> Result<(), StoreError> {
        self.execute(
            "INSERT INTO conversations (task) SELECT task FROM tasks WHERE task = ?1 ON CONFLICT DO NOTHING",
            [task],
        )?;
        self.execute(
            "INSERT INTO title_requests (task)
             SELECT task FROM conversations WHERE task = ?1 AND title IS NULL AND NOT title_asked
             ON CONFLICT DO NOTHING",
            [task],
        )?;
        self.execute("UPDATE conversations SET title_asked = 1 WHERE task = ?1 AND NOT title_asked", [task])
    }

    /// Counts a call of a model for a title, before it is made.
    pub fn count_title_try(&self, TaskRow(task): TaskRow) -> Result<(), StoreError> {
        self.execute("UPDATE title_requests SET tries = tries + 1 WHERE task = ?1", [task])
    }

    /// Stores what a call has spent and the title that it gave, unless the task has one by now. Without a title the
    /// request stays.
    pub fn finish_title_try(
        &self,
        TaskRow(task): TaskRow,
        title: Option<&str>,
        usage: Option<&CallUsage>,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        usage.map_or(Ok(()), |usage| self.insert_call_usage(at, usage))?;
        let Some(title) = title else { return Ok(()) };
        self.execute(
            "UPDATE conversations SET title = ?2, title_source = 'model' WHERE task = ?1 AND title IS NULL
             AND EXISTS (SELECT 1 FROM title_requests WHERE task = ?1)",
            params![task, title],
        )?;
        self.drop_title_request(TaskRow(task))
    }

    /// Gives up a title: the beginning of the first message serves.
    pub fn drop_title_request(&self, TaskRow(task): TaskRow) -> Result<(), StoreError> {
        self.execute("DELETE FROM title_requests WHERE task = ?1", [task])
    }

    /// Gives up all titles, because no model makes any.
    pub fn drop_title_requests(&self) -> Result<(), StoreError> {
        self.execute("DELETE FROM title_requests", [])
    }
}

impl Brain {
    /// The task that waits for a title and was tried least. Blocks.
    pub fn next_title_request(&self) -> Result<Option<TitleRequest>, StoreError> {
        self.read_long(next_request)
    }

    /// Reports that a turn has requested a title, which was committed.
    pub fn notify_title_request(&self) {
        self.shared.title_requested.notify_one();
    }

    /// Waits until a turn has requested a title since the last call.
    pub async fn title_requested(&self) {
        self.shared.title_requested.notified().await;
    }
}

fn next_request(reader: &Connection) -> Result<Option<TitleRequest>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT task, task_id, tries FROM title_requests JOIN tasks USING (task) ORDER BY tries, task LIMIT 1",
    )?;
    let found = query.query_row([], |row| {
        let (question, answer) = (String::new(), String::new());
        Ok(TitleRequest {
            task: TaskRow(row.get(0)?),
            task_id: task_id(row, 1)?,
            tries: row.get(2)?,
            question,
            answer,
        })
    });
    let Some(mut request) = found.optional()? else { return Ok(None) };
    let mut messages = reader.prepare_cached(
        "SELECT body FROM said JOIN steps USING (step) WHERE said.task = ?1 AND nth < 8 ORDER BY nth",
    )?;
    let mut rows = messages.query([request.task.0])?;
    while let Some(row) = rows.next()? {
        let Some(message) = MessageText::from_stored(row.get_ref(0)?.as_str()?) else { continue };
        let first = match message.speaker {
            Speaker::User => &mut request.question,
            Speaker::Agent => &mut request.answer,
        };
        if first.is_empty() {
            *first = message.text;
        }
    }
    Ok(Some(request))
}
