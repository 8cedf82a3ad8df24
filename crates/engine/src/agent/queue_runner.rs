//! Begins the turns of queued messages, one after another in each task, as soon as the task is free.

use std::sync::Arc;
use std::time::Duration;

use api::engine::Execute;
use api::{TaskId, Timestamp, TurnId};
use resources::memory_budget::MemoryUse;
use store::QueueEnd;
use store::event_log::{EventLogs, Follow};
use tokio::sync::OwnedSemaphorePermit;

use super::AgentError;
use super::transfer::Transfers;
use super::turn_launch::{ClaimedTurn, TurnLauncher};
use super::turn_open::{PriorThread, TurnOpening};
use super::turn_request::TurnRequest;

/// How long to wait before a turn that could not begin is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// The memory of a queued message and its parsed content, as a multiple of its size.
const PARSED_SIZE_FACTOR: usize = 3;

/// Begins the turns of queued messages. Clones share its state.
#[derive(Clone)]
pub(super) struct QueueRunner {
    launcher: TurnLauncher,
    event_logs: EventLogs,
    transfers: Transfers,
}

/// Why the turn of a queued message did not begin.
enum StartError {
    /// Its row cannot be read as a message; it never can.
    Unreadable,
    /// Another turn has begun on the task.
    Overtaken,
    /// It may begin later.
    Later(AgentError),
}

impl<E: Into<AgentError>> From<E> for StartError {
    fn from(error: E) -> Self {
        Self::Later(error.into())
    }
}

/// A queued message that was taken to begin its turn.
struct TakenEntry {
    task_id: TaskId,
    turn_id: TurnId,
    bytes: u64,
}

impl QueueRunner {
    pub(super) fn new(launcher: &TurnLauncher, event_logs: &EventLogs, transfers: &Transfers) -> Self {
        Self { launcher: launcher.clone(), event_logs: event_logs.clone(), transfers: transfers.clone() }
    }

    /// Begins turns whenever a task with queued messages is free, until it is dropped when the engine stops.
    pub(super) async fn run(self) {
        loop {
            let registry = &self.launcher.registry;
            registry.wait_until(|turns| turns.can_start_queued().then_some(())).await;
            // Before a message is taken: until then it can be taken out of the queue.
            let permits = Arc::clone(&self.launcher.turn_permits);
            let Ok(permit) = permits.acquire_owned().await else { return };
            let taken = registry.lock().take_queued();
            if let Some((task_id, turn_id, bytes)) = taken {
                let entry = TakenEntry { task_id, turn_id, bytes };
                // A task of its own: a stop interrupts no opening.
                self.launcher.tracker.spawn(self.clone().begin(entry, permit));
            }
        }
    }

    /// Begins the turn of an entry, or returns the entry to the queue.
    async fn begin(self, entry: TakenEntry, permit: OwnedSemaphorePermit) {
        let Err(error) = self.try_begin(&entry, permit).await else { return };
        let TakenEntry { task_id, turn_id, .. } = entry;
        let registry = &self.launcher.registry;
        match error {
            StartError::Unreadable => {
                tracing::error!(%turn_id, "A queued message cannot be read; it is given up.");
                if self.give_up(turn_id).await {
                    let mut turns = registry.lock();
                    turns.queue.ended(&task_id, turn_id, QueueEnd::Failed);
                    turns.notify_queue();
                    return;
                }
                self.wait_to_retry().await;
            }
            StartError::Overtaken => {}
            StartError::Later(_) if self.launcher.stopping.is_cancelled() => {}
            StartError::Later(error) => {
                tracing::warn!(%error, %turn_id, "The turn of a queued message could not begin yet.");
                self.wait_to_retry().await;
            }
        }
        let mut turns = registry.lock();
        turns.queue.start_failed(&task_id, turn_id);
        turns.notify_queue();
    }

    /// Takes a message whose turn cannot begin out of the queue. Returns whether that could be stored.
    async fn give_up(&self, turn_id: TurnId) -> bool {
        let at = self.launcher.services.clock.now();
        let end = move |tx: &store::WriteTx<'_>| tx.end_queued_turn(turn_id, QueueEnd::Failed, at);
        self.launcher.brain.write(end).await.is_ok()
    }

    /// Waits before another try, or until the engine stops.
    async fn wait_to_retry(&self) {
        tokio::select! {
            () = self.launcher.stopping.cancelled() => {}
            () = self.launcher.services.clock.sleep(RETRY_DELAY) => {}
        }
    }

    async fn try_begin(&self, entry: &TakenEntry, permit: OwnedSemaphorePermit) -> Result<(), StartError> {
        let size = usize::try_from(entry.bytes).unwrap_or(usize::MAX).saturating_mul(PARSED_SIZE_FACTOR);
        let _reserved = self.launcher.services.memory_budget.reserve(MemoryUse::Requests, size).await?;
        let (request, sent_at) = self.load(entry.turn_id).await?;
        let idempotency_key = request.idempotency_key.clone();
        let (opened, rewind) = request.resolve(None, sent_at).map_err(|_| StartError::Unreadable)?;
        let prior = PriorThread::NotLoaded;
        let opening = TurnOpening { idempotency_key, opened, rewind, prior, from_queue: true };
        let tasks_lock = self.transfers.lock_tasks().await?;
        let claimed = loop {
            match self.claim(entry, &opening)? {
                Ok(claimed) => break claimed,
                Err(held) => held.wait_free().await,
            }
        };
        self.launcher.launch(claimed, opening, permit, tasks_lock).await?;
        Ok(())
    }

    /// Claims the task. Fails with its event log if something other than a turn holds it, which is brief.
    fn claim(
        &self,
        TakenEntry { task_id, turn_id, .. }: &TakenEntry,
        opening: &TurnOpening,
    ) -> Result<Result<ClaimedTurn, Arc<store::event_log::TaskEventLog>>, StartError> {
        let registry = &self.launcher.registry;
        let mut turns = registry.lock();
        if self.launcher.stopping.is_cancelled() {
            return Err(AgentError::Stopping.into());
        }
        turns.check_not_quiesced(self.launcher.services.clock.monotonic())?;
        if turns.queue.is_interrupted(task_id) {
            return Err(StartError::Overtaken);
        }
        let event_log = self.event_logs.open_existing(task_id)?.ok_or(StartError::Unreadable)?;
        let Ok(recorder) = event_log.begin_turn(*turn_id) else {
            return if turns.running(task_id).is_some() {
                Err(StartError::Overtaken)
            } else {
                Ok(Err(event_log))
            };
        };
        let events_after = recorder.last_ts();
        let reader = event_log.read(events_after, Follow::Turn(*turn_id));
        let key = opening.idempotency_key.clone();
        let (registration, commands) = registry.register(&mut turns, &recorder, key, events_after);
        Ok(Ok(ClaimedTurn { turn_id: *turn_id, recorder, registration, commands, events_after, reader }))
    }

    /// Reads and parses a queued message. Returns it with the time at which it was sent.
    async fn load(&self, turn_id: TurnId) -> Result<(TurnRequest, Timestamp), StartError> {
        let read = move |brain: &store::Brain| {
            let Some((body, queued_at)) = brain.queued_request(turn_id)? else { return Ok(None) };
            let parsed = serde_json::from_str::<Execute>(&body).ok();
            let request = parsed.and_then(|request| TurnRequest::parse(request, None, None).ok());
            Ok(request.map(|request| (request, queued_at)))
        };
        let read: Option<Result<_, store::StoreError>> = self.launcher.brain.run_blocking(read).await;
        read.ok_or(AgentError::Stopping)??.ok_or(StartError::Unreadable)
    }
}
