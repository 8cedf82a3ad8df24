//! Accepts messages: begins a turn, joins the turn that the same request has already begun, or does what the
//! request says about a busy task.

use std::sync::Arc;

use api::engine::Execute;
use api::turns::{BackgroundStatus, BackgroundTurn, BusyUpdate, OnBusy};
use api::{MessageId, TaskId, TurnId};
use resources::threads::run_blocking;
use store::event_log::{EventReader, Follow, TaskEventLog};
use store::{IdempotencyKey, NewQueuedTurn, QueueEnd};
use tokio::sync::{OwnedRwLockReadGuard, watch};

use super::attachment_intake::{self, Intake};
use super::turn_launch::ClaimedTurn;
use super::turn_queue::QueueProgress;
use super::turn_registry::{Command, RegistryGuard};
use super::turn_request::TurnRequest;
use super::turn_stream::{QueueReader, TurnStream, encode};
use super::{Agent, AgentError, caps, turn_request};

/// The most bytes of text, over all turns, that may wait to be stored before new turns are refused.
const MAX_UNSTORED_BYTES: usize = 64 * 1024 * 1024;

/// A message that was accepted.
pub struct Accepted {
    /// What became of it.
    pub turn: BackgroundTurn,
    /// The events that its sender receives.
    pub stream: TurnStream,
}

/// The outcome of claiming a task for a request.
enum Claim {
    /// The request begins a new turn.
    New(ClaimedTurn),
    /// An earlier request had the same idempotency key.
    Known(Known),
    /// The message is in the queue, with this number of its entry, and is yet to be stored.
    Queued(QueuedEntry, i64),
    /// The task is busy.
    Busy(BusyTask),
}

/// What became of an earlier request with the same idempotency key.
enum Known {
    /// It began this turn. The receiver reports when it is open.
    Turn(TurnId, EventReader, watch::Receiver<bool>),
    /// Its message is in the queue.
    Queued(QueuedEntry),
    /// Its message left the queue without a turn.
    Ended(TurnId, QueueEnd),
}

/// A request whose attachments were to be made ready.
enum TakenIn {
    /// They are.
    Ready(Box<Execute>, Intake),
    /// The request was accepted earlier.
    Joined(Box<Accepted>),
}

/// An entry of the queue.
struct QueuedEntry {
    turn_id: TurnId,
    progress: watch::Receiver<QueueProgress>,
}

/// Why a task is busy.
enum BusyTask {
    /// This turn is running on it. The receiver reports when the turn is open.
    Turn(TurnId, Arc<TaskEventLog>, watch::Receiver<bool>),
    /// Something other than a turn holds its event log, which is brief.
    Held(Arc<TaskEventLog>),
    /// Its next turn is about to begin.
    Reserved,
}

impl Agent {
    /// Accepts a message.
    pub async fn submit(&self, request: Execute) -> Result<Accepted, AgentError> {
        let (request, intake) = match self.take_in(request).await? {
            TakenIn::Ready(request, intake) => (*request, intake),
            TakenIn::Joined(accepted) => return Ok(*accepted),
        };
        // Needed only if the task is busy, but parsing consumes the request.
        let (request, body) = serialize_for_queue(request).await?;
        let turn_request = self.parse_request(request, intake).await?;
        loop {
            let tasks_lock = self.transfers.lock_tasks().await?;
            match self.claim(&turn_request, body.as_deref())? {
                Claim::New(claimed) => {
                    let permit = Arc::clone(&self.launcher.turn_permits).try_acquire_owned();
                    let permit = permit.map_err(|_| AgentError::TooManyTurns)?;
                    let (task_id, turn_id) = (turn_request.task_id.clone(), claimed.turn_id);
                    let sent = (self.services.clock.now(), false);
                    let reader = self.launcher.begin(claimed, turn_request, sent, permit, tasks_lock).await?;
                    return Ok(accepted(task_id, turn_id, BackgroundStatus::Started, reader.into()));
                }
                Claim::Known(known) => {
                    if !matches!(known, Known::Turn(..)) {
                        drop(tasks_lock);
                    }
                    if let Some(accepted) = self.join_known(&turn_request.task_id, known).await? {
                        return Ok(accepted);
                    }
                }
                Claim::Queued(entry, number) => {
                    let new = NewQueuedTurn {
                        entry: number,
                        turn_id: entry.turn_id,
                        body: body.clone().unwrap_or_default(),
                        request: turn_request.idempotency_key.clone(),
                        interrupts: turn_request.on_busy == OnBusy::Interrupt,
                    };
                    if self.store_queued(&turn_request.task_id, new, tasks_lock).await?
                        && let Some(accepted) = self.join_queued(&turn_request.task_id, entry).await?
                    {
                        return Ok(accepted);
                    }
                }
                Claim::Busy(busy) => {
                    drop(tasks_lock);
                    if let Some(accepted) = self.handle_busy(&turn_request, busy).await? {
                        return Ok(accepted);
                    }
                }
            }
        }
    }

    /// Makes the attachments of a request ready, unless the request was accepted earlier or cannot be now:
    /// then nothing is fetched.
    async fn take_in(&self, mut request: Execute) -> Result<TakenIn, AgentError> {
        if !attachment_intake::is_needed(&request.media) {
            return Ok(TakenIn::Ready(Box::new(request), Intake::default()));
        }
        let key = move || {
            let key = turn_request::early_key(&mut request);
            (request, key)
        };
        let (mut request, key) = run_blocking(key).await.ok_or(AgentError::Stopping)?;
        let task_id = request.task_id.clone();
        if let Some(key) = &key {
            // A turn that is never opened, and an entry that is never stored, cannot be joined.
            loop {
                let tasks_lock = self.transfers.lock_tasks().await?;
                let Some(known) = self.known(&task_id, key)? else { break };
                drop(tasks_lock);
                if let Some(accepted) = self.join_known(&task_id, known).await? {
                    return Ok(TakenIn::Joined(Box::new(accepted)));
                }
            }
        }
        let models = self.services.gateway.routes().ok();
        let snapshot = self.services.snapshots.current();
        turn_request::check_early(&mut request, models.as_deref(), &snapshot.toolbox)?;
        if let Some(cap) = caps::reached(&self.services, &self.brain, Some(&task_id))? {
            return Err(AgentError::UsageCapReached(cap));
        }
        if request.on_busy == OnBusy::Reject && self.registry.lock().running(&task_id).is_some() {
            return Err(AgentError::TaskBusy);
        }
        // The engine is not put to sleep meanwhile.
        let _busy = self.begin_transfer()?;
        let mut intake = Box::pin(self.services.take_in("media", &mut request.media)).await?;
        intake.key = key;
        Ok(TakenIn::Ready(Box::new(request), intake))
    }

    fn known(&self, task_id: &TaskId, key: &IdempotencyKey) -> Result<Option<Known>, AgentError> {
        self.find_known(&self.registry.lock(), task_id, key)
    }

    /// Joins what an earlier request has begun. Returns `None` if that never comes to be; the request then
    /// begins its own turn.
    async fn join_known(&self, task_id: &TaskId, known: Known) -> Result<Option<Accepted>, AgentError> {
        match known {
            Known::Turn(turn_id, reader, mut opened) => {
                let is_open = opened.wait_for(|opened| *opened).await.is_ok();
                let joined = || accepted(task_id.clone(), turn_id, BackgroundStatus::Started, reader.into());
                Ok(is_open.then(joined))
            }
            Known::Queued(entry) => self.join_queued(task_id, entry).await,
            Known::Ended(turn_id, end) => self.already_ended(task_id.clone(), turn_id, end).map(Some),
        }
    }

    /// Does what the request says about a busy task. Returns `None` if the task is to be claimed again.
    async fn handle_busy(
        &self,
        request: &TurnRequest,
        busy: BusyTask,
    ) -> Result<Option<Accepted>, AgentError> {
        match (request.on_busy, busy) {
            (OnBusy::Reject, _) => return Err(AgentError::TaskBusy),
            (_, BusyTask::Held(event_log)) => event_log.wait_free().await,
            (OnBusy::Steer, BusyTask::Turn(turn_id, event_log, _)) => {
                return self.steer_into(request, turn_id, &event_log).await;
            }
            // The task may not be stored yet. A turn that is never opened frees it.
            (OnBusy::Queue | OnBusy::Interrupt, BusyTask::Turn(_, _, mut opened)) => {
                let _ = opened.wait_for(|opened| *opened).await;
            }
            (OnBusy::Queue | OnBusy::Interrupt | OnBusy::Steer, BusyTask::Reserved) => {
                self.wait_unreserved(&request.task_id).await;
            }
        }
        Ok(None)
    }

    /// Gives the message to a running turn. Returns `None` if that has just ended.
    async fn steer_into(
        &self,
        request: &TurnRequest,
        turn_id: TurnId,
        event_log: &Arc<TaskEventLog>,
    ) -> Result<Option<Accepted>, AgentError> {
        let task_id = request.task_id.clone();
        let last_ts = event_log.published_ts();
        let message = request.message().to_owned();
        let steer = |reply| Command::Steer(message, reply);
        let steered = self.registry.send(&task_id, Some(turn_id), steer).await;
        let message_id: MessageId = match steered {
            Ok(message_id) => message_id,
            Err(AgentError::NotRunning) => {
                event_log.wait_free().await;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let first = encode(&task_id, turn_id, last_ts, &BusyUpdate::Steered { message_id });
        let stream = TurnStream::after(first, event_log.read(last_ts, Follow::Turn(turn_id)));
        let mut accepted = accepted(task_id, turn_id, BackgroundStatus::Steered, stream);
        accepted.turn.message_id = Some(message_id);
        Ok(Some(accepted))
    }

    /// Waits until the next turn of a task has begun or none is about to.
    async fn wait_unreserved(&self, task_id: &TaskId) {
        let wait = self.registry.wait_for_queue(|turns| {
            (turns.running(task_id).is_some() || !turns.queue.holds(task_id)).then_some(())
        });
        tokio::select! {
            () = wait => {}
            () = self.stopping.cancelled() => {}
        }
    }

    /// Stores an entry of the queue. Returns `false` if its task was deleted meanwhile.
    async fn store_queued(
        &self,
        task_id: &TaskId,
        new: NewQueuedTurn,
        tasks_lock: OwnedRwLockReadGuard<()>,
    ) -> Result<bool, AgentError> {
        let (brain, registry, task_id) = (self.brain.clone(), self.registry.clone(), task_id.clone());
        let (turn_id, at) = (new.turn_id, self.services.clock.now());
        // Runs in a task of its own, so that it completes even if the caller is gone.
        let storing = self.tracker.spawn(async move {
            let stored = match brain.task(&task_id) {
                Ok(Some(task)) => {
                    let write = brain.write(move |tx| tx.insert_queued_turn(task.row, &new, at)).await;
                    write.map_err(AgentError::from)
                }
                Ok(None) => Ok(false),
                Err(error) => Err(error.into()),
            };
            drop(tasks_lock);
            let mut turns = registry.lock();
            if matches!(stored, Ok(true)) {
                turns.queue.accept(&task_id, turn_id);
            } else {
                turns.queue.discard(&task_id, turn_id);
            }
            turns.notify_queue();
            stored
        });
        storing.await.unwrap_or(Err(AgentError::Stopping))
    }

    /// Follows an entry of the queue from when it is accepted. Returns `None` if it is not accepted.
    async fn join_queued(
        &self,
        task_id: &TaskId,
        entry: QueuedEntry,
    ) -> Result<Option<Accepted>, AgentError> {
        let QueuedEntry { turn_id, mut progress } = entry;
        let accepted_as = progress.wait_for(|progress| *progress != QueueProgress::Storing).await;
        let Ok(accepted_as) = accepted_as.map(|progress| *progress) else { return Ok(None) };
        let (status, position) = match accepted_as {
            QueueProgress::Storing | QueueProgress::Begun { .. } => (BackgroundStatus::Started, None),
            QueueProgress::Waiting { position } => (BackgroundStatus::Queued, Some(position)),
            QueueProgress::Ended(end) => (end_status(end), None),
        };
        let reader = QueueReader {
            last_ts: self.event_logs.open(task_id)?.published_ts(),
            event_logs: self.event_logs.clone(),
            task_id: task_id.clone(),
            turn_id,
            progress,
            sent_position: None,
            clock: Arc::clone(&self.services.clock),
            stopping: self.stopping.clone(),
        };
        let mut accepted = accepted(task_id.clone(), turn_id, status, TurnStream::queued(reader));
        accepted.turn.position = position;
        Ok(Some(accepted))
    }

    /// The response to a repeated request whose message left the queue without a turn.
    fn already_ended(&self, task_id: TaskId, turn_id: TurnId, end: QueueEnd) -> Result<Accepted, AgentError> {
        let last_ts = self.event_logs.open(&task_id)?.published_ts();
        let stream = TurnStream::ended(&task_id, turn_id, last_ts, end);
        Ok(accepted(task_id, turn_id, end_status(end), stream))
    }

    /// Claims the task's event log for a new turn, or finds the turn that the request has already begun. `body`
    /// is the request as the queue stores it.
    fn claim(&self, request: &TurnRequest, body: Option<&str>) -> Result<Claim, AgentError> {
        let task_id = &request.task_id;
        let mut turns = self.registry.lock();
        if let Some(key) = &request.idempotency_key
            && let Some(known) = self.find_known(&turns, task_id, key)?
        {
            return Ok(Claim::Known(known));
        }
        if self.stopping.is_cancelled() {
            return Err(AgentError::Stopping);
        }
        turns.check_not_quiesced(self.services.clock.monotonic())?;
        if self.event_logs.waiting_bytes() > MAX_UNSTORED_BYTES {
            return Err(AgentError::StoreBacklogFull);
        }
        if let Some(cap) = caps::reached(&self.services, &self.brain, Some(task_id))? {
            return Err(AgentError::UsageCapReached(cap));
        }
        let event_log = if request.rewinds() {
            self.event_logs.open_existing(task_id)?.ok_or(AgentError::UnknownTask)?
        } else {
            self.event_logs.open(task_id)?
        };
        let turn_id = TurnId::new();
        let recorder = if turns.queue.holds(task_id) { None } else { event_log.begin_turn(turn_id).ok() };
        let Some(recorder) = recorder else {
            return claim_busy(&mut turns, request, body, (event_log, turn_id));
        };
        let events_after = recorder.last_ts();
        let reader = event_log.read(events_after, Follow::Turn(turn_id));
        let (registration, commands) =
            self.registry.register(&mut turns, &recorder, request.idempotency_key.clone(), events_after);
        Ok(Claim::New(ClaimedTurn { turn_id, recorder, registration, commands, events_after, reader }))
    }

    /// Finds the turn that the request with this idempotency key has begun on the task, or its message in the
    /// queue, if any.
    fn find_known(
        &self,
        turns: &RegistryGuard<'_>,
        task_id: &TaskId,
        key: &IdempotencyKey,
    ) -> Result<Option<Known>, AgentError> {
        let active = turns.get(task_id).and_then(|handle| {
            let existing = handle.idempotency_key.as_ref().filter(|existing| existing.id == key.id)?;
            Some((existing.hash.clone(), handle.turn_id, handle.events_after, handle.opened.clone()))
        });
        let (hash, turn_id, after, opened) = if let Some(found) = active {
            found
        } else {
            if let Some(found) = turns.queue.find(task_id, &key.id) {
                check_same_request(&found.hash, key)?;
                let entry = QueuedEntry { turn_id: found.turn_id, progress: found.progress };
                return Ok(Some(Known::Queued(entry)));
            }
            match self.brain.turn_by_request(task_id, &key.id)? {
                Some(turn) if turn.opened_event_exists => {
                    (turn.hash, turn.turn_id, turn.opened_ts - 1, watch::channel(true).1)
                }
                Some(_) => {
                    let message = "`client_request_id`: the turn that it began was removed by an edit";
                    return Err(AgentError::UnknownMessage(message.into()));
                }
                None => {
                    let Some(ended) = self.brain.ended_queued_turn(task_id, &key.id)? else {
                        return Ok(None);
                    };
                    check_same_request(&ended.hash, key)?;
                    return Ok(Some(Known::Ended(ended.turn_id, ended.end)));
                }
            }
        };
        check_same_request(&hash, key)?;
        let event_log = self.event_logs.open(task_id)?;
        Ok(Some(Known::Turn(turn_id, event_log.read(after, Follow::Turn(turn_id)), opened)))
    }

    /// Validates a request. Attachments may be large, so they are checked on a blocking thread.
    async fn parse_request(&self, request: Execute, intake: Intake) -> Result<TurnRequest, AgentError> {
        let is_short = request.media.is_empty();
        let models = self.services.gateway.routes().ok();
        let snapshot = self.services.snapshots.current();
        let parse = move || TurnRequest::parse(request, intake, models.as_deref(), Some(&snapshot.toolbox));
        if is_short {
            return parse();
        }
        run_blocking(parse).await.unwrap_or(Err(AgentError::Stopping))
    }
}

/// Finds out why the task is busy, and appends the message to its queue if the request says so.
fn claim_busy(
    turns: &mut RegistryGuard<'_>,
    request: &TurnRequest,
    body: Option<&str>,
    (event_log, turn_id): (Arc<TaskEventLog>, TurnId),
) -> Result<Claim, AgentError> {
    let task_id = &request.task_id;
    let running =
        turns.running(task_id).map(|handle| (handle.turn_id, *handle.opened.borrow(), handle.opened.clone()));
    let is_open = running.as_ref().is_some_and(|(_, is_open, _)| *is_open);
    if let Some(body) = body
        && (is_open || (running.is_none() && turns.queue.holds(task_id)))
    {
        let bytes = u64::try_from(body.len()).unwrap_or(u64::MAX);
        let key = request.idempotency_key.clone();
        let interrupts = request.on_busy == OnBusy::Interrupt;
        let (number, progress) = turns.queue.push(task_id, turn_id, bytes, key, interrupts)?;
        return Ok(Claim::Queued(QueuedEntry { turn_id, progress }, number));
    }
    Ok(Claim::Busy(match running {
        Some((turn_id, _, opened)) => BusyTask::Turn(turn_id, event_log, opened),
        None if turns.queue.holds(task_id) => BusyTask::Reserved,
        None => BusyTask::Held(event_log),
    }))
}

/// The request as the queue stores it, if it may have to.
async fn serialize_for_queue(request: Execute) -> Result<(Execute, Option<String>), AgentError> {
    if !matches!(request.on_busy, OnBusy::Queue | OnBusy::Interrupt) {
        return Ok((request, None));
    }
    // Texts, numbers and base64 can always be serialized.
    let serialize = |request: Execute| {
        let body = serde_json::to_string(&request).unwrap_or_default();
        (request, Some(body))
    };
    if request.media.is_empty() {
        return Ok(serialize(request));
    }
    run_blocking(move || serialize(request)).await.ok_or(AgentError::Stopping)
}

fn check_same_request(hash: &str, key: &IdempotencyKey) -> Result<(), AgentError> {
    if hash == key.hash {
        return Ok(());
    }
    let message = "`client_request_id`: was already used for a different request; use a new one";
    Err(AgentError::Invalid(message.into()))
}

fn accepted(task_id: TaskId, turn_id: TurnId, status: BackgroundStatus, stream: TurnStream) -> Accepted {
    let turn = BackgroundTurn { status, task_id, turn_id, position: None, message_id: None };
    Accepted { turn, stream }
}

const fn end_status(end: QueueEnd) -> BackgroundStatus {
    match end {
        QueueEnd::Cancelled => BackgroundStatus::Cancelled,
        QueueEnd::Failed | QueueEnd::UnknownMessage => BackgroundStatus::Failed,
    }
}
