//! Runs schedules when they are due. One task owns all of them: it decides about each due time, and commits the
//! decision together with the message that begins the run's turn. So a kill at any instant leaves a due time either
//! undecided, and the next start decides, or queued.

use std::time::Duration;

use api::schedules::{RunOutcome, ScheduleDefinition, ScheduleRun};
use api::turns::TurnState;
use api::{ClientRequestId, TaskId, Timestamp, TurnId};
use schedule::{Due, decide};
use store::event_log::{EventLogs, Recorder};
use store::{NewQueuedTurn, NewRun, ScheduleFire, ScheduleRow, TaskRow};

use super::super::AgentError;
use super::super::attachment_intake::Intake;
use super::super::transfer::Transfers;
use super::super::turn_launch::TurnLauncher;
use super::super::turn_request::TurnRequest;
use super::definition;

/// The longest pause: the wall clock may be set meanwhile.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// How long to wait before what failed is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Runs the schedules.
#[derive(Clone)]
pub(in crate::agent) struct ScheduleRunner {
    launcher: TurnLauncher,
    event_logs: EventLogs,
    transfers: Transfers,
}

/// A run whose message has its place in the queue and is yet to be stored.
struct QueuedRun {
    task_id: TaskId,
    turn_id: TurnId,
    message: (TaskRow, NewQueuedTurn),
    /// Holds the event log of a task that the run creates, so that no turn begins it before that.
    new_task: Option<Recorder>,
}

impl QueuedRun {
    fn turn(&self) -> (TaskId, TurnId) {
        (self.task_id.clone(), self.turn_id)
    }
}

impl ScheduleRunner {
    pub(in crate::agent) fn new(
        launcher: &TurnLauncher,
        event_logs: &EventLogs,
        transfers: &Transfers,
    ) -> Self {
        Self { launcher: launcher.clone(), event_logs: event_logs.clone(), transfers: transfers.clone() }
    }

    /// Runs schedules whenever they are due, until it is dropped when the engine stops.
    pub(in crate::agent) async fn run(self) {
        loop {
            let clock = &self.launcher.services.clock;
            match self.run_due().await {
                Ok(Some(pause)) => tokio::select! {
                    () = self.launcher.brain.schedules_changed() => {}
                    () = clock.sleep(pause) => {}
                },
                Ok(None) => self.launcher.brain.schedules_changed().await,
                Err(error) => {
                    if !matches!(error, AgentError::Quiesced | AgentError::Stopping) {
                        tracing::warn!(%error, "A schedule that is due could not be run yet.");
                    }
                    clock.sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Runs what is due. Returns the pause until a schedule may be due; `None` if there is none.
    async fn run_due(&self) -> Result<Option<Duration>, AgentError> {
        let (brain, now) = (&self.launcher.brain, self.launcher.services.clock.now());
        let due = brain.run_blocking(move |brain| brain.due_schedules(now)).await;
        let mut failure = None;
        for schedule in due.ok_or(AgentError::Stopping)?? {
            // One that fails does not keep the others from running.
            if let Err(error) = self.handle(schedule, now).await {
                failure = Some(error);
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        let (next, now) = (brain.next_due_at()?, self.launcher.services.clock.now());
        let pause = next.map(|next| next.unix_ms().saturating_sub(now.unix_ms()).max(0).unsigned_abs());
        Ok(pause.map(|ms| Duration::from_millis(ms).min(MAX_PAUSE)))
    }

    /// Plans a schedule, or runs it if it is due.
    async fn handle(&self, schedule: ScheduleRow, now: Timestamp) -> Result<(), AgentError> {
        let brain = &self.launcher.brain;
        let definition = schedule.definition.clone();
        let parsed = definition.and_then(|definition| {
            let timing = schedule::definition::timing(&definition.when, schedule.created_at).ok()?;
            Some((timing, definition))
        });
        let Some((timing, definition)) = parsed else {
            tracing::error!(schedule = %schedule.id, "A schedule cannot be read; it is paused.");
            return Ok(brain.write(move |tx| tx.pause_schedule(&schedule)).await?);
        };
        let Some(due_at) = schedule.next_due_at else {
            let next = timing.next_after(schedule.last_due_at.map_or(now, |last| last.max(now)));
            return Ok(brain.write(move |tx| tx.plan_schedule(&schedule, next)).await?);
        };
        match decide(&timing, due_at, definition.missed, now) {
            Some(due) => match self.run_once(schedule.clone(), &definition, due).await {
                Err(AgentError::Invalid(reason)) => {
                    tracing::error!(schedule = %schedule.id, reason, "A schedule cannot be run; it is paused.");
                    Ok(brain.write(move |tx| tx.pause_schedule(&schedule)).await?)
                }
                ran => ran,
            },
            None => Ok(()),
        }
    }

    /// Commits what was decided about the due times of a schedule.
    async fn run_once(
        &self,
        schedule: ScheduleRow,
        definition: &ScheduleDefinition,
        due: Due,
    ) -> Result<(), AgentError> {
        let Due { run, missed, last, next } = due;
        let missed = missed.map(|missed| NewRun {
            due_at: Some(missed.first),
            outcome: RunOutcome::Missed,
            turn: None,
            missed: Some((missed.count, missed.last)),
            request_id: None,
        });
        let mut fire = ScheduleFire {
            at: self.launcher.services.clock.now(),
            decided: Some((last, next)),
            runs: missed.into_iter().collect(),
            message: None,
            new_task: None,
            schedule,
        };
        let Some(due_at) = run else { return self.commit(fire, None).await.map(drop) };
        let new_run =
            |outcome, turn| NewRun { due_at: Some(due_at), outcome, turn, missed: None, request_id: None };
        let is_waiting = |turn_id| self.launcher.registry.lock().queue.contains(turn_id);
        if fire.schedule.last_turn_id.is_some_and(is_waiting) {
            fire.runs.push(new_run(RunOutcome::PreviousWaiting, None));
            return self.commit(fire, None).await.map(drop);
        }
        // Held until the commit: no import is applied in between.
        let tasks_lock = self.transfers.lock_tasks().await?;
        let queued = match self.queue(&fire.schedule, definition, Some(due_at)) {
            Ok(queued) => Some(queued),
            Err(AgentError::QueueFull(_)) => None,
            Err(error) => return Err(error),
        };
        let outcome = if queued.is_some() { RunOutcome::Run } else { RunOutcome::QueueFull };
        fire.runs.push(new_run(outcome, queued.as_ref().map(QueuedRun::turn)));
        let committed = self.commit(fire, queued).await.map(drop);
        drop(tasks_lock);
        committed
    }

    /// Begins a run that was requested, whatever the state of the schedule. Returns `None`, and begins none, if the
    /// schedule was changed meanwhile or the same request has begun one.
    pub(super) async fn run_on_request(
        &self,
        schedule: ScheduleRow,
        definition: &ScheduleDefinition,
        request_id: Option<ClientRequestId>,
    ) -> Result<Option<ScheduleRun>, AgentError> {
        let now = self.launcher.services.clock.now();
        let tasks_lock = self.transfers.lock_tasks().await?;
        let queued = self.queue(&schedule, definition, None)?;
        let (task_id, turn_id) = queued.turn();
        let run = NewRun {
            due_at: None,
            outcome: RunOutcome::Requested,
            turn: Some((task_id.clone(), turn_id)),
            missed: None,
            request_id,
        };
        let fire =
            ScheduleFire { schedule, at: now, decided: None, runs: vec![run], message: None, new_task: None };
        let committed = self.commit(fire, Some(queued)).await;
        drop(tasks_lock);
        Ok(committed?.then_some(ScheduleRun {
            due_at: now,
            at: now,
            outcome: RunOutcome::Requested,
            task_id: Some(task_id),
            turn_id: Some(turn_id),
            turn_state: Some(TurnState::Queued),
            count: None,
            last_due_at: None,
        }))
    }

    /// Gives the message of a run its place in the queue. A run without a due time was requested.
    fn queue(
        &self,
        schedule: &ScheduleRow,
        definition: &ScheduleDefinition,
        due_at: Option<Timestamp>,
    ) -> Result<QueuedRun, AgentError> {
        let turn_id = TurnId::new();
        // Any number of runs can be requested at one time.
        let name = due_at.map_or_else(|| format!("requested-{turn_id}"), |due_at| due_at.to_string());
        let invalid = |error: api::text::InvalidText| AgentError::Invalid(error.to_string());
        let id = &schedule.id;
        let task_id = match &definition.task_id {
            Some(task_id) => task_id.clone(),
            None => TaskId::new(format!("schedule-{id}-{name}")).map_err(invalid)?,
        };
        // A schedule that was deleted and created again is another one.
        let request_id = format!("schedule-{id}-{}-{name}", schedule.created_at.unix_ms());
        let request_id = ClientRequestId::new(request_id).map_err(invalid)?;
        let request = definition::request(definition, task_id.clone(), Some(request_id));
        let body = serde_json::to_string(&request).map_err(|error| AgentError::Invalid(error.to_string()))?;
        let key = TurnRequest::parse(request, Intake::default(), None, None)?.idempotency_key;
        let launcher = &self.launcher;
        let mut turns = launcher.registry.lock();
        if launcher.stopping.is_cancelled() {
            return Err(AgentError::Stopping);
        }
        turns.check_not_quiesced(launcher.services.clock.monotonic())?;
        let (task, new_task) = if let Some(task) = launcher.brain.task(&task_id)? {
            (task.row, None)
        } else {
            let event_log = self.event_logs.open(&task_id)?;
            // Its first turn is about to be stored.
            let recorder = event_log.begin_turn(TurnId::new()).map_err(|_| AgentError::TaskBusy)?;
            (event_log.task(), Some(recorder))
        };
        let bytes = u64::try_from(body.len()).unwrap_or(u64::MAX);
        let (entry, _) = turns.queue.push(&task_id, turn_id, bytes, key.clone(), false)?;
        let message = (task, NewQueuedTurn { entry, turn_id, body, request: key, interrupts: false });
        Ok(QueuedRun { task_id, turn_id, message, new_task })
    }

    /// Commits the decision with the message, which the queue accepts then. Returns `false`, and commits nothing, if the
    /// schedule was changed meanwhile.
    async fn commit(&self, mut fire: ScheduleFire, queued: Option<QueuedRun>) -> Result<bool, AgentError> {
        let (brain, registry) = (self.launcher.brain.clone(), self.launcher.registry.clone());
        let event_logs = self.event_logs.clone();
        // Runs in a task of its own: a stop does not separate the commit from the queue.
        let committing = self.launcher.tracker.spawn(async move {
            let queued = queued.map(|QueuedRun { task_id, turn_id, message, new_task }| {
                fire.new_task = new_task.is_some().then(|| task_id.clone());
                fire.message = Some(message);
                (task_id, turn_id, new_task)
            });
            let committed = brain.write(move |tx| tx.fire_schedule(&fire)).await;
            let Some((task_id, turn_id, new_task)) = queued else { return committed };
            let mut turns = registry.lock();
            if let Some(recorder) = new_task {
                // The event log that turns use from here on is that of a task that exists.
                event_logs.remove(&task_id);
                drop(recorder);
            }
            if matches!(committed, Ok(true)) {
                turns.queue.accept(&task_id, turn_id);
            } else {
                turns.queue.discard(&task_id, turn_id);
            }
            turns.notify_queue();
            committed
        });
        committing.await.map_err(|_| AgentError::Stopping)?.map_err(AgentError::from)
    }
}
