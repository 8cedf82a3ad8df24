//! Begins the turns of queued messages, one after another in each task, as soon as the task is free, and cancels
//! the turns whose place one takes.

use std::sync::Arc;
use std::time::Duration;

use api::engine::Execute;
use api::{TaskId, Timestamp, TurnId};
use resources::memory_budget::MemoryUse;
use store::event_log::{EventLogs, Follow};
use store::{IdempotencyKey, QueueEnd, QueuedRequest};
use tokio::sync::OwnedSemaphorePermit;

use super::AgentError;
use super::transfer::Transfers;
use super::turn_launch::{ClaimedTurn, TurnLauncher};
use super::turn_registry::{Command, RegistryState};
use super::turn_request::TurnRequest;
use resources::threads::run_blocking;

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
    /// It never can.
    Never(QueueEnd),
    /// Another turn has begun on the task, or another message has become the next one.
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

    /// Begins and cancels turns whenever there is something to do, until it is dropped when the engine stops.
    pub(super) async fn run(self) {
        tokio::join!(self.begin_turns(), self.interrupt_turns());
    }

    /// Begins a turn whenever a task with queued messages is free.
    async fn begin_turns(&self) {
        loop {
            let registry = &self.launcher.registry;
            registry.wait_for_queue(|turns| turns.can_start_queued().then_some(())).await;
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

    /// Cancels a turn whenever a message takes its place.
    async fn interrupt_turns(&self) {
        loop {
            let (task_id, turn_id) =
                self.launcher.registry.wait_for_queue(RegistryState::take_interrupted).await;
            self.launcher.tracker.spawn(self.clone().interrupt(task_id, turn_id));
        }
    }

    async fn interrupt(self, task_id: TaskId, turn_id: TurnId) {
        let registry = &self.launcher.registry;
        match registry.send(&task_id, Some(turn_id), Command::Cancel).await {
            Ok(_) | Err(AgentError::NotRunning) => {}
            Err(error) => {
                tracing::warn!(%error, %turn_id, "A turn whose place a message takes could not be cancelled yet.");
                self.wait_to_retry().await;
                let mut turns = registry.lock();
                turns.interrupt_again(&task_id, turn_id);
                turns.notify_queue();
            }
        }
    }

    /// Begins the turn of an entry, or returns the entry to the queue.
    async fn begin(self, entry: TakenEntry, permit: OwnedSemaphorePermit) {
        let Err(error) = self.try_begin(&entry, permit).await else { return };
        let TakenEntry { task_id, turn_id, .. } = entry;
        let registry = &self.launcher.registry;
        match error {
            StartError::Never(end) => {
                tracing::error!(%turn_id, ?end, "The turn of a queued message can never begin; it is given up.");
                if self.give_up(turn_id, end).await {
                    let mut turns = registry.lock();
                    turns.queue.ended(&task_id, turn_id, end);
                    turns.notify_queue();
                } else {
                    self.delay(&task_id, turn_id).await;
                }
            }
            StartError::Overtaken => {
                let mut turns = registry.lock();
                turns.queue.start_failed(&task_id, turn_id);
                turns.notify_queue();
            }
            StartError::Later(error) => {
                if !self.launcher.stopping.is_cancelled() {
                    tracing::warn!(%error, %turn_id, "The turn of a queued message could not begin yet.");
                }
                self.delay(&task_id, turn_id).await;
            }
        }
    }

    /// Returns an entry to the queue, to be tried again after a while. Meanwhile it can be taken out.
    async fn delay(&self, task_id: &TaskId, turn_id: TurnId) {
        let registry = &self.launcher.registry;
        registry.lock().queue.delay(task_id, turn_id);
        self.wait_to_retry().await;
        let mut turns = registry.lock();
        turns.queue.end_delay(task_id, turn_id);
        turns.notify_queue();
    }

    /// Takes a message whose turn cannot begin out of the queue. Returns whether that could be stored.
    async fn give_up(&self, turn_id: TurnId, end: QueueEnd) -> bool {
        let at = self.launcher.services.clock.now();
        let write = move |tx: &store::WriteTx<'_>| tx.end_queued_turn(turn_id, end, at);
        self.launcher.brain.write(write).await.is_ok()
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
        let tasks_lock = self.transfers.lock_tasks().await?;
        let claimed = loop {
            match self.claim(entry, &request)? {
                Ok(claimed) => break claimed,
                Err(held) => held.wait_free().await,
            }
        };
        let key = request.idempotency_key.clone();
        match self.launcher.begin(claimed, request, (sent_at, true), permit, tasks_lock).await {
            Ok(_) => Ok(()),
            // Only an edit or a retry looks for a message.
            Err(AgentError::UnknownMessage(_) | AgentError::Invalid(_)) => {
                Err(StartError::Never(QueueEnd::UnknownMessage))
            }
            Err(AgentError::Write(_)) if self.has_begun(entry, key).await? => {
                Err(StartError::Never(QueueEnd::Failed))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the request of a message has begun another turn of its task: it begins no second one.
    async fn has_begun(&self, entry: &TakenEntry, key: Option<IdempotencyKey>) -> Result<bool, AgentError> {
        let Some(IdempotencyKey { id, .. }) = key else { return Ok(false) };
        let task_id = entry.task_id.clone();
        let read = move |brain: &store::Brain| brain.turn_by_request(&task_id, &id);
        let found = self.launcher.brain.run_blocking(read).await.ok_or(AgentError::Stopping)??;
        Ok(found.is_some_and(|turn| turn.turn_id != entry.turn_id))
    }

    /// Claims the task. Fails with its event log if something other than a turn holds it, which is brief.
    fn claim(
        &self,
        TakenEntry { task_id, turn_id, .. }: &TakenEntry,
        request: &TurnRequest,
    ) -> Result<Result<ClaimedTurn, Arc<store::event_log::TaskEventLog>>, StartError> {
        let registry = &self.launcher.registry;
        let mut turns = registry.lock();
        if self.launcher.stopping.is_cancelled() {
            return Err(AgentError::Stopping.into());
        }
        turns.check_not_quiesced(self.launcher.services.clock.monotonic())?;
        if !turns.queue.is_first(task_id, *turn_id) {
            return Err(StartError::Overtaken);
        }
        let event_log = self.event_logs.open_existing(task_id)?.ok_or(StartError::Never(QueueEnd::Failed))?;
        let Ok(recorder) = event_log.begin_turn(*turn_id) else {
            return if turns.running(task_id).is_some() {
                Err(StartError::Overtaken)
            } else {
                Ok(Err(event_log))
            };
        };
        let events_after = recorder.last_ts();
        let reader = event_log.read(events_after, Follow::Turn(*turn_id));
        let key = request.idempotency_key.clone();
        let (registration, commands) = registry.register(&mut turns, &recorder, key, events_after);
        Ok(Ok(ClaimedTurn { turn_id: *turn_id, recorder, registration, commands, events_after, reader }))
    }

    /// Reads and parses a queued message. Returns it with the time at which it was sent.
    async fn load(&self, turn_id: TurnId) -> Result<(TurnRequest, Timestamp), StartError> {
        let read = move |brain: &store::Brain| {
            let Some(QueuedRequest { body, queued_at, request: key }) = brain.queued_request(turn_id)? else {
                return Ok(None);
            };
            let request = serde_json::from_str::<Execute>(&body).ok();
            Ok(request.map(|request| (request, key, queued_at)))
        };
        let read: Option<Result<_, store::StoreError>> = self.launcher.brain.run_blocking(read).await;
        let read = read.ok_or(AgentError::Stopping)??;
        let (mut request, key, queued_at) = read.ok_or(StartError::Never(QueueEnd::Failed))?;
        let intake = tokio::select! {
            intake = self.launcher.services.take_in_accepted(&mut request.media) => intake?,
            () = self.launcher.stopping.cancelled() => return Err(AgentError::Stopping.into()),
        };
        let parse = move || TurnRequest::parse(request, intake, None, None);
        let parsed = run_blocking(parse).await.ok_or(AgentError::Stopping)?;
        let mut request = parsed.map_err(|_| StartError::Never(QueueEnd::Failed))?;
        // The key as it was accepted: another version may compute another hash.
        request.idempotency_key = key;
        Ok((request, queued_at))
    }
}
