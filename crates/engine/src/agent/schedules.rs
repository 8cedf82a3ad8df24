//! Schedules as callers see and change them. The [`runner`] runs them when they are due.

mod definition;
mod runner;

use std::time::Duration;

use api::schedules::{
    CreateSchedule, MAX_SCHEDULES, Schedule, ScheduleDefinition, ScheduleId, ScheduleList, ScheduleRun,
    ScheduleState, UpdateSchedule,
};
use api::{ClientRequestId, Timestamp, TurnId};
pub(super) use runner::ScheduleRunner;
use store::{Brain, ScheduleInsertion, StoreError};

use super::attachment_intake::Intake;
use super::turn_request::TurnRequest;
use super::{Agent, AgentError};

/// How long before a due time the engine does not agree to sleep: it would be woken again at once.
const AWAKE_BEFORE_DUE: Duration = Duration::from_secs(10);
/// How often a change is tried again that another one, or a run, has overtaken.
const UPDATE_TRIES: u32 = 5;
/// How long to wait before the next try if a run is just creating its task.
const UPDATE_PAUSE: Duration = Duration::from_millis(50);

impl Agent {
    /// Creates a schedule, or returns the one that the same request has created before. Returns whether it is new.
    pub async fn create_schedule(&self, request: CreateSchedule) -> Result<(Schedule, bool), AgentError> {
        let CreateSchedule { id, name, when, message, task_id, missed, options, paused } = request;
        let mut definition = ScheduleDefinition { name, when, message, task_id, missed, options };
        let id = match id {
            Some(id) => {
                if let Some(existing) = self.existing_schedule(&id, &definition).await? {
                    return Ok((existing, false));
                }
                id
            }
            None => new_id()?,
        };
        let (now, requested) = (self.services.clock.now(), definition.clone());
        schedule::definition::set_start(&mut definition.when, now);
        let next = self.validate_definition(&definition, now)?;
        let (state, next_due_at) =
            if paused { (ScheduleState::Paused, None) } else { (ScheduleState::Active, Some(next)) };
        let schedule = Schedule {
            id,
            definition,
            state,
            next_due_at,
            last_due_at: None,
            created_at: now,
            updated_at: now,
            runs: None,
        };
        // The orchestrator learns the next due time after it has quiesced the engine; it must not change then.
        let _busy = self.registry.lock().begin_transfer(self.services.clock.monotonic())?;
        let new = schedule.clone();
        let _place = self.brain.lock_schedule_places().await;
        match self.brain.write(move |tx| tx.insert_schedule(&new)).await? {
            ScheduleInsertion::Inserted => {
                self.brain.notify_schedules_changed();
                Ok((schedule, true))
            }
            ScheduleInsertion::NoRoom => Err(AgentError::ScheduleLimit(MAX_SCHEDULES.into())),
            // By the same request at the same time, or by another version.
            ScheduleInsertion::IdTaken => {
                let existing = self.existing_schedule(&schedule.id, &requested).await?;
                existing.map(|existing| (existing, false)).ok_or(AgentError::ScheduleExists)
            }
        }
    }

    /// The schedule with this id, if it was created with this definition.
    async fn existing_schedule(
        &self,
        id: &ScheduleId,
        definition: &ScheduleDefinition,
    ) -> Result<Option<Schedule>, AgentError> {
        let existing = match self.schedule(id.as_str()).await {
            Ok(existing) => existing,
            Err(AgentError::UnknownSchedule) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut wanted = definition.clone();
        if wanted.when.every_seconds.is_some() && wanted.when.start.is_none() {
            wanted.when.start = existing.definition.when.start;
        }
        if wanted == existing.definition { Ok(Some(existing)) } else { Err(AgentError::ScheduleExists) }
    }

    /// All schedules, the oldest first.
    pub async fn schedules(&self) -> Result<ScheduleList, AgentError> {
        Ok(ScheduleList { schedules: self.read(Brain::schedules).await?, limit: MAX_SCHEDULES.into() })
    }

    /// A schedule with its newest runs.
    pub async fn schedule(&self, id: &str) -> Result<Schedule, AgentError> {
        let id = parse_id(id)?;
        let found = self.read(move |brain| {
            let Some(mut schedule) = brain.schedule(&id)? else { return Ok(None) };
            schedule.runs.iter_mut().flatten().try_for_each(|run| set_turn_state(brain, run))?;
            Ok(Some(schedule))
        });
        found.await?.ok_or(AgentError::UnknownSchedule)
    }

    /// Changes, pauses or resumes a schedule.
    pub async fn update_schedule(&self, id: &str, change: UpdateSchedule) -> Result<Schedule, AgentError> {
        let _busy = self.registry.lock().begin_transfer(self.services.clock.monotonic())?;
        for _ in 0..UPDATE_TRIES {
            let before = self.schedule(id).await?;
            let after = self.changed_schedule(&before, change.clone())?;
            let (old, new) = (before.clone(), after.clone());
            if self.brain.write(move |tx| tx.update_schedule(&old, &new)).await? {
                self.brain.notify_schedules_changed();
                if before.definition != after.definition {
                    self.erase().await;
                }
                return Ok(after);
            }
        }
        Err(AgentError::ScheduleInUse)
    }

    fn changed_schedule(&self, before: &Schedule, change: UpdateSchedule) -> Result<Schedule, AgentError> {
        let now = self.services.clock.now();
        let mut after = before.clone();
        let is_new_time = change.when.is_some();
        let is_paused = change.paused.unwrap_or(before.state == ScheduleState::Paused);
        let UpdateSchedule { name, when, message, task_id, missed, options, paused: _ } = change;
        let definition = &mut after.definition;
        definition.name = name.unwrap_or_else(|| definition.name.clone());
        definition.message = message.unwrap_or_else(|| definition.message.clone());
        definition.task_id = task_id.unwrap_or_else(|| definition.task_id.clone());
        definition.missed = missed.unwrap_or(definition.missed);
        definition.options = options.unwrap_or_else(|| definition.options.clone());
        if let Some(when) = when {
            definition.when = when;
            schedule::definition::set_start(&mut definition.when, now);
        }
        // What was decided stays decided, whatever the clock says.
        let decided_until = before.last_due_at.map_or(now, |last| last.max(now));
        let next = self.validate_definition(&after.definition, decided_until);
        let is_planned = before.state == ScheduleState::Active && before.next_due_at.is_some();
        (after.state, after.next_due_at) = match next {
            Err(error) if is_new_time || !matches!(error, AgentError::NeverDue) => return Err(error),
            _ if is_paused => (ScheduleState::Paused, None),
            _ if is_planned && !is_new_time => (before.state, before.next_due_at),
            Ok(next) => (ScheduleState::Active, Some(next)),
            Err(_) => (ScheduleState::Finished, None),
        };
        after.updated_at = now.max(Timestamp::from_unix_ms(before.updated_at.unix_ms().saturating_add(1)));
        Ok(after)
    }

    /// Runs a schedule now, whatever its state; its due times stay as they are. Returns the run, and whether it is new:
    /// the same `request_id` begins one run.
    pub async fn run_schedule(
        &self,
        id: &str,
        request_id: Option<ClientRequestId>,
    ) -> Result<(ScheduleRun, bool), AgentError> {
        let id = parse_id(id)?;
        for _ in 0..UPDATE_TRIES {
            let (wanted, requested) = (id.clone(), request_id.clone());
            let found = self.read(move |brain| {
                let found = brain.schedule_row(&wanted, requested.as_ref())?;
                let Some((schedule, mut run)) = found else { return Ok(None) };
                run.iter_mut().try_for_each(|run| set_turn_state(brain, run))?;
                Ok(Some((schedule, run)))
            });
            let (schedule, run) = found.await?.ok_or(AgentError::UnknownSchedule)?;
            if let Some(run) = run.filter(|_| request_id.is_some()) {
                return Ok((run, false));
            }
            let definition = schedule.definition.clone().ok_or(AgentError::UnknownSchedule)?;
            let runner = self.schedule_runner();
            match runner.run_on_request(schedule, &definition, request_id.clone()).await {
                Ok(Some(run)) => return Ok((run, true)),
                Ok(None) => {}
                // Its task is being created.
                Err(AgentError::TaskBusy) => self.services.clock.sleep(UPDATE_PAUSE).await,
                Err(error) => return Err(error),
            }
        }
        Err(AgentError::ScheduleInUse)
    }

    /// Runs what is due, until it is dropped.
    pub(super) fn schedule_runner(&self) -> ScheduleRunner {
        ScheduleRunner::new(&self.launcher, &self.event_logs, &self.transfers)
    }

    /// Deletes a schedule and erases its words. Turns that it has begun stay.
    pub async fn delete_schedule(&self, id: &str) -> Result<(), AgentError> {
        let id = parse_id(id)?;
        let deleted = self.delete_and_erase(move |tx| tx.delete_schedule(&id)).await?;
        deleted.then_some(()).ok_or(AgentError::UnknownSchedule)
    }

    /// When the engine has to be awake next: when a schedule is due or an event is reported, or at once if it is at work or schedules may be
    /// changing. Asked before a sleep.
    pub fn next_due_at(&self) -> Result<Option<Timestamp>, AgentError> {
        if self.registry.lock().is_working() || self.is_importing() {
            return Ok(Some(self.services.clock.now()));
        }
        self.planned_due_at()
    }

    /// When a schedule is due or an event is reported next.
    fn planned_due_at(&self) -> Result<Option<Timestamp>, AgentError> {
        // A schedule that is yet to be planned may be due at once, and an event that was not tried yet is.
        let now = self.services.clock.now();
        let next = [self.brain.next_due_at()?, self.next_delivery_at()?].into_iter().flatten().min();
        Ok(next.map(|due| if due.unix_ms() == 0 { now } else { due }))
    }

    /// Whether a schedule is due or an event is reported so soon that the engine must stay awake.
    pub(super) fn is_due_soon(&self) -> bool {
        let soon = i64::try_from(AWAKE_BEFORE_DUE.as_millis()).unwrap_or(i64::MAX);
        let soon = self.services.clock.now().unix_ms().saturating_add(soon);
        // A brain that cannot be read would lose the due time.
        self.planned_due_at().map_or(true, |due| due.is_some_and(|due| due.unix_ms() <= soon))
    }

    /// Checks a definition as a request with its message would be checked. Returns its first due time after `after`.
    fn validate_definition(
        &self,
        definition: &ScheduleDefinition,
        after: Timestamp,
    ) -> Result<Timestamp, AgentError> {
        definition::check_size(definition)?;
        let timing = schedule::definition::timing(&definition.when, after).map_err(AgentError::Invalid)?;
        let models = self.services.gateway.routes().ok();
        let snapshot = self.services.snapshots.current();
        let request = definition::request(definition, definition::sample_task()?, None);
        TurnRequest::parse(request, Intake::default(), models.as_deref(), Some(&snapshot.toolbox))?;
        timing.next_after(after).ok_or(AgentError::NeverDue)
    }
}

fn set_turn_state(brain: &Brain, run: &mut ScheduleRun) -> Result<(), StoreError> {
    if let (Some(task_id), Some(turn_id)) = (&run.task_id, run.turn_id)
        && let Some(task) = brain.task(task_id)?
    {
        run.turn_state = brain.turn_record(task.row, turn_id)?.map(|turn| turn.state);
    }
    Ok(())
}

fn parse_id(id: &str) -> Result<ScheduleId, AgentError> {
    ScheduleId::new(id).map_err(|_| AgentError::UnknownSchedule)
}

/// A new id: that of a turn has the sortable part that every id has.
fn new_id() -> Result<ScheduleId, AgentError> {
    let id = TurnId::new().to_string().replacen("turn_", "sched_", 1);
    ScheduleId::new(id).map_err(|error| AgentError::Invalid(error.to_string()))
}

#[cfg(test)]
#[path = "../../tests/unit/agent/schedules.rs"]
mod tests;
