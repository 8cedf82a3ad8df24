//! Begins turns: claims the task for a request, or joins the turn that the same request has already begun, and
//! opens the turn.

use std::sync::Arc;

use api::engine::Execute;
use api::{TaskId, TurnId};
use resources::threads::run_blocking;
use store::IdempotencyKey;
use store::event_log::{EventReader, Follow, Recorder};
use store::steps::TurnBase;
use tokio::sync::watch;
use tracing::Instrument as _;

use super::branch::Branch;
use super::turn_context::TurnSlot;
use super::turn_open::{PriorThread, TurnOpening};
use super::turn_registry::{Commands, Registration, RegistryGuard};
use super::turn_request::TurnRequest;
use super::{Agent, AgentError, run_until_cancelled, thread_loader, turn_lifecycle};

/// The most bytes of text, over all turns, that may wait to be stored before new turns are refused.
const MAX_UNSTORED_BYTES: usize = 64 * 1024 * 1024;

/// A turn that has claimed its task's event log and is about to be opened.
struct ClaimedTurn {
    recorder: Recorder,
    registration: Registration,
    commands: Commands,
    reader: EventReader,
}

/// The outcome of claiming a task for a request.
enum Claim {
    /// The request begins a new turn.
    New(ClaimedTurn),
    /// An earlier request with the same idempotency key began this turn. The receiver reports when it is open.
    Existing(EventReader, watch::Receiver<bool>),
}

impl Agent {
    /// Begins a turn, or joins the turn that an earlier request with the same idempotency key began. Returns a
    /// reader of its events from the first one on.
    pub async fn execute(&self, request: Execute) -> Result<EventReader, AgentError> {
        let turn_request = self.parse_request(request).await?;
        let tasks_lock = self.transfers.lock_tasks().await?;
        let ClaimedTurn { recorder, registration, commands, reader } = loop {
            match self.claim(&turn_request)? {
                Claim::New(claimed) => break claimed,
                // A turn that is never opened cannot be joined; the request begins its own then.
                Claim::Existing(reader, mut opened) => {
                    if opened.wait_for(|opened| *opened).await.is_ok() {
                        return Ok(reader);
                    }
                }
            }
        };
        let permit =
            Arc::clone(&self.turn_permits).try_acquire_owned().map_err(|_| AgentError::TooManyTurns)?;
        let idempotency_key = turn_request.idempotency_key.clone();
        // An edit or a retry fails at once if its message does not exist.
        let prior = if turn_request.rewinds() {
            Some(self.load_branch(&recorder, turn_request.base()).await?)
        } else {
            None
        };
        let (opened, rewind) = turn_request.resolve(prior.as_ref(), self.services.clock.now())?;
        let prior = prior.map_or(PriorThread::NotLoaded, |branch| PriorThread::Loaded(Box::new(branch)));
        let slot = TurnSlot::new(Arc::clone(&self.turn_permits), Some(permit), registration);
        let context = self.turn_context(recorder, opened.message_id, slot, commands);
        let opening = TurnOpening { idempotency_key, opened, rewind, prior };

        // From here on the turn runs on its own, even if the caller is gone before the reply.
        let (reply_sender, reply) = tokio::sync::oneshot::channel();
        let stopped = self.stopped.clone();
        let turn = async move {
            // A stop does not interrupt the opening: a caller who learns that the turn did not begin may
            // resend.
            let begun = opening.open(context).await;
            drop(tasks_lock);
            let (outcome, context) = match begun {
                Ok(context) => (Ok(()), Some(context)),
                Err(error) => (Err(error), None),
            };
            // The caller may have hung up.
            let _ = reply_sender.send(outcome);
            if let Some((context, thread)) = context {
                run_until_cancelled(stopped, Box::pin(turn_lifecycle::begin(context, thread))).await;
            }
        };
        // The turn's log lines carry the span of the request that began it.
        self.tracker.spawn(turn.in_current_span());
        match reply.await {
            Ok(outcome) => outcome?,
            // The runtime is shutting down.
            Err(_) => return Err(AgentError::Stopping),
        }
        Ok(reader)
    }

    /// Claims the task's event log for a new turn, or finds the turn that the request has already begun.
    fn claim(&self, turn_request: &TurnRequest) -> Result<Claim, AgentError> {
        let mut turns = self.registry.lock();
        if let Some(key) = &turn_request.idempotency_key
            && let Some(claim) = self.join(&turns, &turn_request.task_id, key)?
        {
            return Ok(claim);
        }
        if self.stopping.is_cancelled() {
            return Err(AgentError::Stopping);
        }
        turns.check_not_quiesced(self.services.clock.monotonic())?;
        if self.event_logs.waiting_bytes() > MAX_UNSTORED_BYTES {
            return Err(AgentError::StoreBacklogFull);
        }
        let event_log = if turn_request.rewinds() {
            self.event_logs.open_existing(&turn_request.task_id)?.ok_or(AgentError::UnknownTask)?
        } else {
            self.event_logs.open(&turn_request.task_id)?
        };
        let turn_id = TurnId::new();
        let recorder = event_log.begin_turn(turn_id).map_err(|_| AgentError::TaskBusy)?;
        let after = recorder.last_ts();
        let reader = event_log.read(after, Follow::Turn(turn_id));
        let (registration, commands) =
            self.registry.register(&mut turns, &recorder, turn_request.idempotency_key.clone(), after);
        Ok(Claim::New(ClaimedTurn { recorder, registration, commands, reader }))
    }

    /// Finds the turn that the request with this idempotency key has begun on the task, if any.
    fn join(
        &self,
        turns: &RegistryGuard<'_>,
        task_id: &TaskId,
        key: &IdempotencyKey,
    ) -> Result<Option<Claim>, AgentError> {
        let active = turns.get(task_id).and_then(|handle| {
            let existing = handle.idempotency_key.as_ref().filter(|existing| existing.id == key.id)?;
            Some((existing.hash.clone(), handle.turn_id, handle.events_after, handle.opened.clone()))
        });
        let (hash, turn_id, after, opened) = match active {
            Some(found) => found,
            None => match self.brain.turn_by_request(task_id, &key.id)? {
                Some(turn) if turn.opened_event_exists => {
                    (turn.hash, turn.turn_id, turn.opened_ts - 1, watch::channel(true).1)
                }
                Some(_) => {
                    let message = "`client_request_id`: the turn that it began was removed by an edit";
                    return Err(AgentError::UnknownMessage(message.into()));
                }
                None => return Ok(None),
            },
        };
        if hash != key.hash {
            let message = "`client_request_id`: was already used for a different request; use a new one";
            return Err(AgentError::Invalid(message.into()));
        }
        let event_log = self.event_logs.open(task_id)?;
        Ok(Some(Claim::Existing(event_log.read(after, Follow::Turn(turn_id)), opened)))
    }

    /// Validates a request. Attachments may be large, so they are checked on a blocking thread.
    async fn parse_request(&self, request: Execute) -> Result<TurnRequest, AgentError> {
        let model = self.services.gateway.model().ok();
        if request.media.is_empty() {
            return TurnRequest::parse(request, model.as_deref());
        }
        let parse = move || TurnRequest::parse(request, model.as_deref());
        run_blocking(parse).await.unwrap_or(Err(AgentError::Stopping))
    }

    /// Loads the conversation of a task between two turns. The next turn continues from `base`.
    async fn load_branch(&self, recorder: &Recorder, base: TurnBase) -> Result<Branch, AgentError> {
        let task = recorder.event_log().task();
        match self.brain.run_turn_open(move |brain| thread_loader::load_branch(brain, task, base)).await {
            Some(branch) => Ok(branch?),
            None => Err(AgentError::Stopping),
        }
    }
}
