//! The turns of a task as they can be looked up: their state, their times and how they ended. How a turn ended is
//! its last event; a turn whose events an edit has removed is not found, nor is one that a fork copied, which brings none.

use api::event::{Event, Lifecycle};
use api::turn_options::TurnOverrides;
use api::turns::{TurnRecord, TurnState};
use api::{TaskId, TurnId};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::queries::{optional_timestamp, parse_column, parse_step, timestamp};
use super::steps::Step;
use super::turn_queue::QueueEnd;
use super::{Brain, StoreError, TaskRow};

/// The turns that have begun, with their last events. The conditions of a query follow.
const BEGUN: &str = "
    SELECT turn_id, message_id, turns.queued_at, opened_at, ended_at,
           EXISTS (SELECT 1 FROM pending WHERE pending.turn = turns.turn), last.kind, last.data
    FROM turns LEFT JOIN events AS last ON last.task = turns.task AND last.ts = (
        SELECT ts FROM events
        WHERE events.task = turns.task AND events.turn = turns.turn AND ts >= COALESCE(opened_ts, 0)
        AND ts < COALESCE(
            (SELECT next.opened_ts FROM turns AS next
             WHERE next.task = turns.task AND next.turn > turns.turn AND next.opened_ts IS NOT NULL
             ORDER BY next.turn LIMIT 1),
            9223372036854775807)
        ORDER BY ts DESC LIMIT 1
    )
    WHERE turns.task = ?1 AND (ended_at IS NULL OR last.kind IS NOT NULL) AND (opened_ts IS NULL OR EXISTS (
        SELECT 1 FROM events WHERE events.task = turns.task AND ts = opened_ts AND events.turn = turns.turn
    ))";

/// The messages in the queue, or those that left it without a turn. The conditions of a query follow.
const QUEUED: &str = "
    SELECT turn_id, queued_at, ended_at, outcome,
           (SELECT COUNT(*) FROM queued_turns AS earlier
            WHERE earlier.task = queued_turns.task AND earlier.ended_at IS NULL
            AND (earlier.interrupts > queued_turns.interrupts OR (
                earlier.interrupts = queued_turns.interrupts AND earlier.entry <= queued_turns.entry)))
    FROM queued_turns WHERE task = ?1";

/// A page of the turns that have begun, of one task or of all.
#[derive(Clone, Debug)]
pub struct TurnPage {
    /// The turns with their tasks, the newest first.
    pub turns: Vec<(TaskId, TurnRecord)>,
    /// The turn before which the next page begins; `None` on the last one.
    pub next: Option<TurnId>,
    /// The number of turns on all pages.
    pub total: u64,
}

/// How a turn began.
#[derive(Clone, Debug)]
pub struct TurnStart {
    /// The task.
    pub task_id: TaskId,
    /// The `ts` of its first event.
    pub opened_ts: i64,
    /// What its request set for it only.
    pub overrides: Option<Box<TurnOverrides>>,
}

impl Brain {
    /// A turn of a task, queued or begun. Blocks.
    pub fn turn_record(&self, task: TaskRow, turn_id: TurnId) -> Result<Option<TurnRecord>, StoreError> {
        self.read_long(|reader| turn_record(reader, task, turn_id))
    }

    /// The task of a turn that has begun.
    pub fn task_of_turn(&self, turn_id: TurnId) -> Result<Option<TaskId>, StoreError> {
        self.read(|reader| {
            let mut query = reader
                .prepare_cached("SELECT task_id FROM turns JOIN tasks USING (task) WHERE turn_id = ?1")?;
            query.query_row([turn_id.to_string()], |row| task_id_column(row, 0)).optional()
        })
    }

    /// The newest turns that have begun, or those before `before`, of one task or of all: at most `limit`. `None` if
    /// there is no turn `before`. Blocks.
    pub fn turn_page(
        &self,
        task: Option<TaskRow>,
        limit: i64,
        before: Option<TurnId>,
    ) -> Result<Option<TurnPage>, StoreError> {
        self.read_long(|reader| turn_page(reader, task, limit, before))
    }

    /// Whether an answer of a person with this id, which is its caller's own, has continued a turn. Blocks.
    pub fn has_answer(&self, turn_id: TurnId, answer_id: &str) -> Result<bool, StoreError> {
        self.read_long(|reader| has_answer(reader, turn_id, answer_id))
    }

    /// How a turn began; `None` if it has not begun, or if an edit has removed its events. Blocks.
    pub fn turn_start(&self, turn_id: TurnId) -> Result<Option<TurnStart>, StoreError> {
        self.read_long(|reader| turn_start(reader, turn_id))
    }

    /// The newest turns of a task, or those before `before`: at most `limit`, without their texts. `None` if there
    /// is no turn `before`. Blocks.
    pub fn turn_records(
        &self,
        task: TaskRow,
        limit: i64,
        before: Option<TurnId>,
    ) -> Result<Option<Vec<TurnRecord>>, StoreError> {
        self.read_long(|reader| turn_records(reader, task, limit, before))
    }
}

/// The turns whose events exist, with the conditions of a page: of the task `?1` if it is not null.
const LISTED: &str = "
    FROM turns JOIN tasks USING (task)
    WHERE (?1 IS NULL OR turns.task = ?1) AND opened_ts IS NOT NULL AND EXISTS (
        SELECT 1 FROM events WHERE events.task = turns.task AND ts = opened_ts AND events.turn = turns.turn)";

fn turn_page(
    reader: &Connection,
    task: Option<TaskRow>,
    limit: i64,
    before: Option<TurnId>,
) -> Result<Option<TurnPage>, Error> {
    let task = task.map(|TaskRow(task)| task);
    let before = match before {
        None => i64::MAX,
        Some(turn_id) => {
            let mut query = reader.prepare_cached("SELECT turn FROM turns WHERE turn_id = ?1")?;
            match query.query_row([turn_id.to_string()], |row| row.get(0)).optional()? {
                Some(turn) => turn,
                None => return Ok(None),
            }
        }
    };
    let mut count = reader.prepare_cached(&format!("SELECT COUNT(*) {LISTED}"))?;
    let total: i64 = count.query_row([task], |row| row.get(0))?;
    let sql =
        format!("SELECT task_id, turns.task, turn_id {LISTED} AND turn < ?2 ORDER BY turn DESC LIMIT ?3");
    let mut query = reader.prepare_cached(&sql)?;
    // One more than wanted says whether there is another page.
    let rows = query.query_map(params![task, before, limit.saturating_add(1)], |row| {
        Ok((task_id_column(row, 0)?, TaskRow(row.get(1)?), parse_column::<TurnId>(row, 2)?))
    })?;
    let found = rows.collect::<Result<Vec<_>, _>>()?;
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = found.len() > wanted;
    let mut turns = Vec::new();
    for (task_id, task, turn_id) in found.into_iter().take(wanted) {
        turns.extend(turn_record(reader, task, turn_id)?.map(|record| (task_id, record)));
    }
    let next = turns.last().filter(|_| has_more).map(|(_, record)| record.turn_id);
    Ok(Some(TurnPage { turns, next, total: u64::try_from(total).unwrap_or_default() }))
}

fn turn_start(reader: &Connection, turn_id: TurnId) -> Result<Option<TurnStart>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT task_id, opened_ts,
                (SELECT body FROM steps WHERE steps.task = turns.task AND steps.turn = turns.turn
                 ORDER BY step LIMIT 1)
         FROM turns JOIN tasks USING (task)
         WHERE turn_id = ?1 AND EXISTS (
             SELECT 1 FROM events WHERE events.task = turns.task AND ts = opened_ts AND events.turn = turns.turn)",
    )?;
    let row = |row: &Row<'_>| {
        let body: Option<String> = row.get(2)?;
        let overrides = match body.and_then(|body| parse_step(&body).ok()) {
            Some(Step::Opened(opened)) => opened.options.overrides,
            _ => None,
        };
        let (task_id, opened_ts) = (task_id_column(row, 0)?, row.get(1)?);
        Ok(TurnStart { task_id, opened_ts, overrides })
    };
    query.query_row([turn_id.to_string()], row).optional()
}

fn has_answer(reader: &Connection, turn_id: TurnId, answer_id: &str) -> Result<bool, Error> {
    let mut query = reader.prepare_cached("SELECT task, turn FROM turns WHERE turn_id = ?1")?;
    let row = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let Some((task, turn)) = query.query_row([turn_id.to_string()], row).optional()? else {
        return Ok(false);
    };
    // From the newest step on: a task may have a long journal, and the turn is one of its last.
    let mut query = reader.prepare_cached(
        "SELECT turn, CASE WHEN turn = ?2 AND instr(body, '\"answer_id\"') > 0 THEN body END
         FROM steps WHERE task = ?1 ORDER BY step DESC",
    )?;
    let mut rows = query.query([task, turn])?;
    while let Some(row) = rows.next()? {
        if row.get::<_, i64>(0)? < turn {
            break;
        }
        let body: Option<String> = row.get(1)?;
        let step = body.and_then(|body| parse_step(&body).ok());
        if step.as_ref().and_then(Step::answer_id) == Some(answer_id) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A column with the id of a task.
fn task_id_column(row: &Row<'_>, column: usize) -> Result<TaskId, Error> {
    let text: String = row.get(column)?;
    TaskId::new(text).map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

fn turn_record(
    reader: &Connection,
    TaskRow(task): TaskRow,
    turn_id: TurnId,
) -> Result<Option<TurnRecord>, Error> {
    let turn = turn_id.to_string();
    let mut begun = reader.prepare_cached(&format!("{BEGUN} AND turn_id = ?2"))?;
    if let Some(found) = begun.query_row(params![task, turn], begun_record).optional()? {
        return Ok(Some(found));
    }
    let mut queued = reader.prepare_cached(&format!("{QUEUED} AND turn_id = ?2"))?;
    queued.query_row(params![task, turn], queued_record).optional()
}

fn turn_records(
    reader: &Connection,
    TaskRow(task): TaskRow,
    limit: i64,
    before: Option<TurnId>,
) -> Result<Option<Vec<TurnRecord>>, Error> {
    let Some((before_entry, before_turn)) = page_start(reader, task, before)? else { return Ok(None) };
    let sql = format!("{QUEUED} AND ended_at IS NULL AND entry < ?2 ORDER BY entry DESC LIMIT ?3");
    let mut queued = reader.prepare_cached(&sql)?;
    let rows = queued.query_map([task, before_entry, limit], queued_record)?;
    let mut records = rows.collect::<Result<Vec<_>, _>>()?;
    let left = limit.saturating_sub(i64::try_from(records.len()).unwrap_or(i64::MAX));
    let mut begun =
        reader.prepare_cached(&format!("{BEGUN} AND turns.turn < ?2 ORDER BY turns.turn DESC LIMIT ?3"))?;
    let rows = begun.query_map([task, before_turn, left], begun_record)?;
    for record in rows {
        records.push(TurnRecord { text: None, ..record? });
    }
    Ok(Some(records))
}

/// The entry of the queue and the row of a turn before which a page begins; `None` if there is no turn `before`.
fn page_start(reader: &Connection, task: i64, before: Option<TurnId>) -> Result<Option<(i64, i64)>, Error> {
    let Some(before) = before.map(|turn_id| turn_id.to_string()) else {
        return Ok(Some((i64::MAX, i64::MAX)));
    };
    let row = |sql: &str| {
        let mut query = reader.prepare_cached(sql)?;
        query.query_row(params![task, before], |row| row.get::<_, i64>(0)).optional()
    };
    if let Some(turn) = row("SELECT turn FROM turns WHERE task = ?1 AND turn_id = ?2")? {
        return Ok(Some((0, turn)));
    }
    let entry = row("SELECT entry FROM queued_turns WHERE task = ?1 AND turn_id = ?2")?;
    Ok(entry.map(|entry| (entry, i64::MAX)))
}

fn begun_record(row: &Row<'_>) -> Result<TurnRecord, Error> {
    let ended_at = optional_timestamp(row, 4)?;
    let mut record = TurnRecord {
        turn_id: parse_column(row, 0)?,
        state: match (ended_at, row.get(5)?) {
            (None, true) => TurnState::WaitingForPerson,
            (None, false) => TurnState::Running,
            // It was given up, unless its last event says otherwise.
            (Some(_), _) => TurnState::Failed,
        },
        message_id: Some(parse_column(row, 1)?),
        queued_at: optional_timestamp(row, 2)?,
        started_at: Some(timestamp(row, 3)?),
        ended_at,
        position: None,
        stop_reason: None,
        answer_message_id: None,
        text: None,
        error: None,
    };
    let (kind, data): (Option<String>, Option<String>) = (row.get(6)?, row.get(7)?);
    let last = kind.zip(data).and_then(|(kind, data)| {
        let data = serde_json::from_str(&data).ok()?;
        Event::from_parts(&kind, data).ok()
    });
    match last.filter(|_| ended_at.is_some()) {
        Some(Event::ThreadLifecycle(Lifecycle::Completed {
            answer_message_id, text, stop_reason, ..
        })) => {
            record.state = TurnState::Completed;
            record.stop_reason = Some(stop_reason);
            record.answer_message_id = Some(answer_message_id);
            record.text = Some(text);
        }
        Some(Event::ThreadLifecycle(Lifecycle::Cancelled { .. })) => record.state = TurnState::Cancelled,
        Some(Event::Error(failure)) => record.error = Some(failure),
        _ => {}
    }
    Ok(record)
}

fn queued_record(row: &Row<'_>) -> Result<TurnRecord, Error> {
    let ended_at = optional_timestamp(row, 2)?;
    let outcome: Option<String> = row.get(3)?;
    let state = match outcome.filter(|_| ended_at.is_some()).as_deref().map(QueueEnd::parse) {
        None => TurnState::Queued,
        Some(QueueEnd::Cancelled) => TurnState::Cancelled,
        Some(QueueEnd::Failed | QueueEnd::UnknownMessage) => TurnState::Failed,
    };
    let position = u64::try_from(row.get::<_, i64>(4)?).ok();
    Ok(TurnRecord {
        turn_id: parse_column(row, 0)?,
        state,
        message_id: None,
        queued_at: Some(timestamp(row, 1)?),
        started_at: None,
        ended_at,
        position: position.filter(|_| state == TurnState::Queued),
        stop_reason: None,
        answer_message_id: None,
        text: None,
        error: None,
    })
}
