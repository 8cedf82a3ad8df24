//! Schedules, and what became of their due times. One commit advances a schedule, records the run and queues its
//! message, so each due time is decided once, whenever the engine is killed.

use api::schedules::{
    MAX_SCHEDULES, RunOutcome, Schedule, ScheduleDefinition, ScheduleId, ScheduleRun, ScheduleState,
};
use api::{ClientRequestId, TaskId, Timestamp, TurnId};
use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};
use tokio::sync::Notify;

use super::queries::{optional_timestamp, parse_column, timestamp};
use super::turn_queue::NewQueuedTurn;
use super::{Brain, ErasureScope, StoreError, TaskRow, WriteTx, to_json};

/// The number of runs of a schedule that are kept.
const KEPT_RUNS: i64 = 50;
/// The most schedules that are read at once because they are due.
const DUE_AT_ONCE: u32 = MAX_SCHEDULES;

/// What those who set and run schedules share.
#[derive(Default)]
pub(super) struct Coordination {
    /// Signalled when a schedule may be due earlier.
    changed: Notify,
    /// See [`Brain::lock_schedule_places`].
    places: tokio::sync::Mutex<()>,
}

/// A schedule that is due or to be planned.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleRow {
    row: i64,
    /// The id.
    pub id: ScheduleId,
    /// The definition; `None` if this version cannot read it.
    pub definition: Option<ScheduleDefinition>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed by a caller.
    pub updated_at: Timestamp,
    /// The time up to which every due time is decided.
    pub last_due_at: Option<Timestamp>,
    /// When it is due next; `None` if that is to be computed.
    pub next_due_at: Option<Timestamp>,
    /// The turn of the newest run.
    pub last_turn_id: Option<TurnId>,
}

/// A due time, or several that were missed, with what became of it.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// The due time, or the first one; `None` if the run was requested.
    pub due_at: Option<Timestamp>,
    /// What became of it.
    pub outcome: RunOutcome,
    /// The task and the turn that it begins.
    pub turn: Option<(TaskId, TurnId)>,
    /// The number of due times and the last one, if they were missed.
    pub missed: Option<(u64, Timestamp)>,
    /// The id of the request for it, if it was requested with one.
    pub request_id: Option<ClientRequestId>,
}

/// What is committed when a schedule is due, or a run of it is requested.
#[derive(Clone, Debug)]
pub struct ScheduleFire {
    /// The schedule as it was read.
    pub schedule: ScheduleRow,
    /// When it is decided.
    pub at: Timestamp,
    /// The time up to which every due time is decided with this, and the next due time if there is one; `None` if a
    /// run was requested.
    pub decided: Option<(Timestamp, Option<Timestamp>)>,
    /// What became of the due times, or the requested run.
    pub runs: Vec<NewRun>,
    /// The message that is queued for its task.
    pub message: Option<(TaskRow, NewQueuedTurn)>,
    /// The id of the task, if the commit creates it.
    pub new_task: Option<TaskId>,
}

/// A change of the schedules by a turn.
#[derive(Clone, Debug, PartialEq)]
pub enum ScheduleChange {
    /// Sets a schedule, unless there is one with its id.
    Set {
        /// The schedule.
        schedule: Box<Schedule>,
        /// Whether its runs are in the task of the turn.
        in_task: bool,
    },
    /// Deletes a schedule.
    Delete(ScheduleId),
}

/// What became of a new schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleInsertion {
    /// It is stored.
    Inserted,
    /// There is one with its id.
    IdTaken,
    /// The engine has [`MAX_SCHEDULES`].
    NoRoom,
}

/// The name of a state in the brain.
pub(super) const fn state_name(state: ScheduleState) -> &'static str {
    match state {
        ScheduleState::Active => "active",
        ScheduleState::Paused => "paused",
        ScheduleState::Finished => "finished",
    }
}

/// Parses what [`state_name`] returns.
pub(super) fn parse_state(name: &str) -> Option<ScheduleState> {
    [ScheduleState::Active, ScheduleState::Paused, ScheduleState::Finished]
        .into_iter()
        .find(|state| state_name(*state) == name)
}

const fn outcome_name(outcome: RunOutcome) -> &'static str {
    match outcome {
        RunOutcome::Run => "run",
        RunOutcome::Requested => "requested",
        RunOutcome::Missed => "missed",
        RunOutcome::PreviousWaiting => "previous_waiting",
        RunOutcome::QueueFull => "queue_full",
    }
}

/// Parses what [`outcome_name`] returns. A word of a later version counts as missed.
fn parse_outcome(name: &str) -> RunOutcome {
    [RunOutcome::Run, RunOutcome::Requested, RunOutcome::PreviousWaiting, RunOutcome::QueueFull]
        .into_iter()
        .find(|outcome| outcome_name(*outcome) == name)
        .unwrap_or(RunOutcome::Missed)
}

impl WriteTx<'_> {
    /// Inserts a schedule, unless there is no room for it or one with its id.
    pub fn insert_schedule(&self, schedule: &Schedule) -> Result<ScheduleInsertion, StoreError> {
        let sql = "SELECT COUNT(*), COUNT(*) FILTER (WHERE id = ?1) FROM schedules";
        let counts = |row: &Row<'_>| Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?));
        match self.transaction.query_row(sql, [schedule.id.as_str()], counts)? {
            (_, same_id) if same_id > 0 => return Ok(ScheduleInsertion::IdTaken),
            (all, _) if all >= MAX_SCHEDULES => return Ok(ScheduleInsertion::NoRoom),
            _ => {}
        }
        self.insert_schedule_row(schedule)?;
        Ok(ScheduleInsertion::Inserted)
    }

    /// Applies what a turn has changed. The turn holds the lock of the places if it sets a schedule.
    pub(super) fn change_schedules(
        &self,
        TaskRow(task): TaskRow,
        change: &ScheduleChange,
    ) -> Result<(), StoreError> {
        match change {
            ScheduleChange::Set { schedule, in_task: false } => self.insert_schedule_row(schedule),
            ScheduleChange::Set { schedule, in_task: true } => {
                let sql = "SELECT task_id FROM tasks WHERE task = ?1";
                let task_id: String = self.transaction.query_row(sql, [task], |row| row.get(0))?;
                let mut schedule = schedule.clone();
                schedule.definition.task_id = TaskId::new(task_id).ok();
                self.insert_schedule_row(&schedule)
            }
            ScheduleChange::Delete(id) => {
                self.delete_schedule(id)?;
                self.enqueue_erasure(&ErasureScope::default())
            }
        }
    }

    fn insert_schedule_row(&self, schedule: &Schedule) -> Result<(), StoreError> {
        let sql = "INSERT INTO schedules
                       (id, task_id, definition, state, created_at, updated_at, last_due_at, next_due_at)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING";
        let Schedule { id, definition, state, created_at, updated_at, last_due_at, next_due_at, .. } =
            schedule;
        let values = params![
            id.as_str(),
            definition.task_id.as_ref().map(TaskId::as_str),
            to_json(definition)?,
            state_name(*state),
            created_at.unix_ms(),
            updated_at.unix_ms(),
            last_due_at.map(Timestamp::unix_ms),
            next_due_at.map(Timestamp::unix_ms),
        ];
        self.execute(sql, values)
    }

    /// Replaces the schedule `before`, and queues the erasure of what it said. Returns `false` if it has changed
    /// since it was read.
    pub fn update_schedule(&self, before: &Schedule, after: &Schedule) -> Result<bool, StoreError> {
        let sql = "UPDATE schedules SET task_id = ?2, definition = ?3, state = ?4, updated_at = ?5, next_due_at = ?6
                   WHERE id = ?1 AND updated_at = ?7 AND last_due_at IS ?8 AND next_due_at IS ?9";
        let Schedule { id, definition, state, updated_at, next_due_at, .. } = after;
        let values = params![
            id.as_str(),
            definition.task_id.as_ref().map(TaskId::as_str),
            to_json(definition)?,
            state_name(*state),
            updated_at.unix_ms(),
            next_due_at.map(Timestamp::unix_ms),
            before.updated_at.unix_ms(),
            before.last_due_at.map(Timestamp::unix_ms),
            before.next_due_at.map(Timestamp::unix_ms),
        ];
        let updated = self.transaction.prepare_cached(sql)?.execute(values)? > 0;
        if updated && before.definition != after.definition {
            self.enqueue_erasure(&ErasureScope::default())?;
        }
        Ok(updated)
    }

    /// Deletes a schedule with the record of its runs. Returns whether it existed.
    pub fn delete_schedule(&self, id: &ScheduleId) -> Result<bool, StoreError> {
        let sql = "DELETE FROM schedules WHERE id = ?1";
        Ok(self.transaction.prepare_cached(sql)?.execute([id.as_str()])? > 0)
    }

    /// Sets the next due time of a schedule that has none yet, or that it is never due again.
    pub fn plan_schedule(&self, schedule: &ScheduleRow, next: Option<Timestamp>) -> Result<(), StoreError> {
        let state = state_name(if next.is_some() { ScheduleState::Active } else { ScheduleState::Finished });
        let sql = "UPDATE schedules SET next_due_at = ?2, state = ?3
                   WHERE schedule = ?1 AND state = 'active' AND next_due_at IS NULL";
        self.execute(sql, params![schedule.row, next.map(Timestamp::unix_ms), state])
    }

    /// Pauses a schedule that cannot be run.
    pub fn pause_schedule(&self, schedule: &ScheduleRow) -> Result<(), StoreError> {
        let sql = "UPDATE schedules SET next_due_at = NULL, state = 'paused' WHERE schedule = ?1";
        self.execute(sql, [schedule.row])
    }

    /// Advances a schedule that is due, or leaves it as it is if a run was requested: records the runs and queues
    /// their message. Returns `false`, and changes nothing, if it or its task has changed since it was read, or the
    /// same request has begun a run before.
    pub fn fire_schedule(&self, fire: &ScheduleFire) -> Result<bool, StoreError> {
        let ScheduleFire { schedule, at, decided, runs, message, new_task } = fire;
        let at = *at;
        if let Some((TaskRow(task), _)) = message {
            let exists = "SELECT EXISTS (SELECT 1 FROM tasks WHERE task = ?1)";
            let exists: bool = self.transaction.query_row(exists, [task], |row| row.get(0))?;
            if !exists && new_task.is_none() {
                return Ok(false);
            }
        }
        let is_current = match decided {
            Some((last_due_at, next_due_at)) => self.advance(schedule, *last_due_at, *next_due_at)?,
            None => self.may_run_on_request(schedule, runs)?,
        };
        if !is_current {
            return Ok(false);
        }
        for run in runs {
            self.insert_run(schedule.row, run, at)?;
        }
        let sql = "DELETE FROM schedule_runs WHERE schedule = ?1 AND run NOT IN (
                       SELECT run FROM schedule_runs WHERE schedule = ?1 ORDER BY run DESC LIMIT ?2
                   )";
        self.execute(sql, [schedule.row, KEPT_RUNS])?;
        if let Some((task, turn)) = message {
            if let Some(task_id) = new_task {
                self.insert_task(*task, task_id, at)?;
            }
            self.insert_queued_turn(*task, turn, at)?;
        }
        Ok(true)
    }

    /// Sets what is decided of a schedule and when it is due next, unless it has changed since it was read.
    fn advance(
        &self,
        schedule: &ScheduleRow,
        last_due_at: Timestamp,
        next_due_at: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        let state = if next_due_at.is_some() { ScheduleState::Active } else { ScheduleState::Finished };
        let sql = "UPDATE schedules SET last_due_at = ?2, next_due_at = ?3, state = ?4
                   WHERE schedule = ?1 AND state = 'active' AND next_due_at IS ?5 AND id = ?6 AND updated_at = ?7";
        let values = params![
            schedule.row,
            last_due_at.unix_ms(),
            next_due_at.map(Timestamp::unix_ms),
            state_name(state),
            schedule.next_due_at.map(Timestamp::unix_ms),
            schedule.id.as_str(),
            schedule.updated_at.unix_ms(),
        ];
        Ok(self.transaction.prepare_cached(sql)?.execute(values)? > 0)
    }

    /// Whether a schedule is as it was read, and no run has one of the request ids of `runs`.
    fn may_run_on_request(&self, schedule: &ScheduleRow, runs: &[NewRun]) -> Result<bool, StoreError> {
        let sql =
            "SELECT EXISTS (SELECT 1 FROM schedules WHERE schedule = ?1 AND id = ?2 AND updated_at = ?3)";
        let values = params![schedule.row, schedule.id.as_str(), schedule.updated_at.unix_ms()];
        let mut may_run: bool = self.transaction.query_row(sql, values, |row| row.get(0))?;
        for request_id in runs.iter().filter_map(|run| run.request_id.as_ref()) {
            let sql =
                "SELECT NOT EXISTS (SELECT 1 FROM schedule_runs WHERE schedule = ?1 AND request_id = ?2)";
            let values = params![schedule.row, request_id.as_str()];
            may_run &= self.transaction.query_row(sql, values, |row| row.get::<_, bool>(0))?;
        }
        Ok(may_run)
    }

    fn insert_run(&self, schedule: i64, run: &NewRun, at: Timestamp) -> Result<(), StoreError> {
        let NewRun { due_at, outcome, turn, missed, request_id } = run;
        let (task_id, turn_id) = turn.as_ref().map(|(task, turn)| (task.as_str(), turn.to_string())).unzip();
        let (count, last) = missed.map(|(count, last)| (count, last.unix_ms())).unzip();
        let count = count.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        let sql = "INSERT INTO schedule_runs
                       (schedule, due_at, at, outcome, task_id, turn_id, missed, last_due_at, request_id)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let due_at = due_at.map(Timestamp::unix_ms);
        let outcome = outcome_name(*outcome);
        let request_id = request_id.as_ref().map(ClientRequestId::as_str);
        let values =
            params![schedule, due_at, at.unix_ms(), outcome, task_id, turn_id, count, last, request_id];
        self.execute(sql, values)
    }
}

impl Brain {
    /// Reports that a schedule may be due earlier than before.
    pub fn notify_schedules_changed(&self) {
        self.shared.schedules.changed.notify_one();
    }

    /// Waits until a schedule may be due earlier than when this was called last.
    pub async fn schedules_changed(&self) {
        self.shared.schedules.changed.notified().await;
    }

    /// Waits until nobody else sets a schedule. The lock is held from the check for a free place until the schedule is
    /// committed.
    pub async fn lock_schedule_places(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shared.schedules.places.lock().await
    }

    /// Whether there is a place for one more schedule. Blocks.
    pub fn has_schedule_place(&self) -> Result<bool, StoreError> {
        self.read(|reader| {
            reader.query_row("SELECT COUNT(*) < ?1 FROM schedules", [MAX_SCHEDULES], |row| row.get(0))
        })
    }

    /// All schedules without their runs, the oldest first, but those that only a later version can read. Blocks.
    pub fn schedules(&self) -> Result<Vec<Schedule>, StoreError> {
        self.read_long(|reader| {
            let mut query = reader.prepare_cached(&format!("{SELECT_SCHEDULES} ORDER BY schedule"))?;
            query.query_map([], read_schedule)?.filter_map(Result::transpose).collect()
        })
    }

    /// The schedule with the id `id`, with its newest runs, the newest first. The states of their turns are not
    /// known here. Blocks.
    pub fn schedule(&self, id: &ScheduleId) -> Result<Option<Schedule>, StoreError> {
        self.read_long(|reader| {
            let mut query = reader.prepare_cached(&format!("{SELECT_SCHEDULES} WHERE id = ?1"))?;
            let found = query.query_row([id.as_str()], read_schedule).optional()?.flatten();
            found.map(|schedule| Ok(Schedule { runs: Some(runs(reader, id)?), ..schedule })).transpose()
        })
    }

    /// When a schedule is due next, or is to be planned: then the time is 0.
    pub fn next_due_at(&self) -> Result<Option<Timestamp>, StoreError> {
        self.read(|reader| {
            let sql = "SELECT COALESCE(next_due_at, 0) FROM schedules WHERE state = 'active' ORDER BY next_due_at LIMIT 1";
            let mut query = reader.prepare_cached(sql)?;
            query.query_row([], |row| timestamp(row, 0)).optional()
        })
    }

    /// The schedule with the id `id`, and its run that a request with the id `request_id` has begun, whose turn's state
    /// is not known here. Blocks.
    pub fn schedule_row(
        &self,
        id: &ScheduleId,
        request_id: Option<&ClientRequestId>,
    ) -> Result<Option<(ScheduleRow, Option<ScheduleRun>)>, StoreError> {
        self.read_long(|reader| {
            let mut query = reader.prepare_cached(&format!("{SELECT_ROWS} WHERE id = ?1"))?;
            let Some(schedule) = query.query_row([id.as_str()], read_due).optional()? else {
                return Ok(None);
            };
            let mut query = reader.prepare_cached(&format!("{SELECT_RUNS} AND request_id = ?2"))?;
            let request_id = request_id.map(ClientRequestId::as_str);
            let run = query.query_row(params![id.as_str(), request_id], read_run).optional()?;
            Ok(Some((schedule, run)))
        })
    }

    /// The schedules that are due at `now` or are to be planned, in the order of their due times; of many, the first
    /// ones. Blocks.
    pub fn due_schedules(&self, now: Timestamp) -> Result<Vec<ScheduleRow>, StoreError> {
        self.read_long(|reader| {
            let mut query = reader.prepare_cached(&format!(
                "{SELECT_ROWS} WHERE state = 'active' AND COALESCE(next_due_at, 0) <= ?1 ORDER BY next_due_at LIMIT ?2"
            ))?;
            query.query_map(params![now.unix_ms(), DUE_AT_ONCE], read_due)?.collect()
        })
    }
}

const SELECT_ROWS: &str =
    "SELECT schedule, id, definition, created_at, updated_at, last_due_at, next_due_at, (
         SELECT turn_id FROM schedule_runs AS last
         WHERE last.schedule = schedules.schedule AND turn_id IS NOT NULL ORDER BY run DESC LIMIT 1
     ) FROM schedules";

const SELECT_SCHEDULES: &str =
    "SELECT id, definition, state, created_at, updated_at, last_due_at, next_due_at FROM schedules";

fn read_due(row: &Row<'_>) -> Result<ScheduleRow, Error> {
    let turn_id: Option<String> = row.get(7)?;
    Ok(ScheduleRow {
        row: row.get(0)?,
        id: schedule_id(row, 1)?,
        definition: serde_json::from_str(row.get_ref(2)?.as_str()?).ok(),
        created_at: timestamp(row, 3)?,
        updated_at: timestamp(row, 4)?,
        last_due_at: optional_timestamp(row, 5)?,
        next_due_at: optional_timestamp(row, 6)?,
        last_turn_id: turn_id.and_then(|id| id.parse().ok()),
    })
}

/// Reads a schedule without its runs; `None` if this version cannot read its definition.
fn read_schedule(row: &Row<'_>) -> Result<Option<Schedule>, Error> {
    let Ok(definition) = serde_json::from_str(row.get_ref(1)?.as_str()?) else { return Ok(None) };
    let state = parse_state(row.get_ref(2)?.as_str()?);
    Ok(Some(Schedule {
        id: schedule_id(row, 0)?,
        definition,
        state: state.unwrap_or(ScheduleState::Paused),
        created_at: timestamp(row, 3)?,
        updated_at: timestamp(row, 4)?,
        last_due_at: optional_timestamp(row, 5)?,
        next_due_at: optional_timestamp(row, 6)?,
        runs: None,
    }))
}

const SELECT_RUNS: &str = "SELECT COALESCE(due_at, at), at, outcome, schedule_runs.task_id, turn_id, missed,
         schedule_runs.last_due_at
     FROM schedule_runs JOIN schedules USING (schedule) WHERE id = ?1";

fn runs(reader: &Connection, id: &ScheduleId) -> Result<Vec<ScheduleRun>, Error> {
    let mut query = reader.prepare_cached(&format!("{SELECT_RUNS} ORDER BY run DESC"))?;
    query.query_map([id.as_str()], read_run)?.collect()
}

fn read_run(row: &Row<'_>) -> Result<ScheduleRun, Error> {
    let (task_id, has_turn): (Option<String>, bool) = (row.get(3)?, row.get_ref(4)? != ValueRef::Null);
    Ok(ScheduleRun {
        due_at: timestamp(row, 0)?,
        at: timestamp(row, 1)?,
        outcome: parse_outcome(row.get_ref(2)?.as_str()?),
        task_id: task_id.and_then(|id| TaskId::new(id).ok()),
        turn_id: has_turn.then(|| parse_column(row, 4)).transpose()?,
        turn_state: None,
        count: row.get::<_, Option<i64>>(5)?.and_then(|count| u64::try_from(count).ok()),
        last_due_at: optional_timestamp(row, 6)?,
    })
}

fn schedule_id(row: &Row<'_>, column: usize) -> Result<ScheduleId, Error> {
    let text: String = row.get(column)?;
    ScheduleId::new(text)
        .map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}
