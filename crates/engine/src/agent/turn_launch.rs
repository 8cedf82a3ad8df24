//! Launches turns whose task has been claimed: opens them and runs them in tasks of their own.

use std::sync::Arc;

use api::{MessageId, Timestamp, TurnId};
use store::Brain;
use store::event_log::{EventReader, Recorder};
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::inbox::Inbox;
use super::journal_writer::JournalWriter;
use super::turn_context::{TurnContext, TurnDeps, TurnSlot};
use super::turn_open::{PriorThread, TurnOpening};
use super::turn_registry::{Commands, Registration, TurnRegistry};
use super::turn_request::TurnRequest;
use super::{AgentError, Services, run_until_cancelled, thread_loader, turn_lifecycle};

/// A turn that has claimed its task's event log and is about to be opened.
pub(super) struct ClaimedTurn {
    pub(super) turn_id: TurnId,
    pub(super) recorder: Recorder,
    pub(super) registration: Registration,
    pub(super) commands: Commands,
    /// The `ts` after which its events begin.
    pub(super) events_after: i64,
    /// A reader of its events from the first one on.
    pub(super) reader: EventReader,
}

/// What turns are launched with. Clones share it.
#[derive(Clone)]
pub(super) struct TurnLauncher {
    pub(super) brain: Brain,
    pub(super) services: Arc<Services>,
    pub(super) registry: TurnRegistry,
    pub(super) turn_permits: Arc<Semaphore>,
    pub(super) tracker: TaskTracker,
    /// Cancelled when the engine stops.
    pub(super) stopping: CancellationToken,
    /// Cancelled when a stop no longer waits for turns.
    pub(super) stopped: CancellationToken,
}

impl TurnLauncher {
    /// Creates what a turn needs while it runs.
    pub(super) fn turn_context(
        &self,
        recorder: Recorder,
        message_id: MessageId,
        slot: TurnSlot,
        commands: Commands,
    ) -> TurnContext {
        let services = Arc::clone(&self.services);
        let snapshot = services.snapshots.current();
        let (stopping, gateway) = (self.stopping.clone(), Arc::clone(&services.gateway));
        TurnContext {
            writer: JournalWriter::new(recorder, message_id, Arc::clone(&services), self.brain.clone()),
            inbox: Inbox::new(commands, stopping, gateway, Arc::clone(&snapshot)),
            slot,
            deps: TurnDeps { brain: self.brain.clone(), services, snapshot },
        }
    }

    /// Opens the turn of a request that was sent at `sent_at`, and waits for that. The turn then runs on its own.
    pub(super) async fn begin(
        &self,
        claimed: ClaimedTurn,
        request: TurnRequest,
        (sent_at, from_queue): (Timestamp, bool),
        permit: OwnedSemaphorePermit,
        tasks_lock: OwnedRwLockReadGuard<()>,
    ) -> Result<EventReader, AgentError> {
        let idempotency_key = request.idempotency_key.clone();
        // An edit or a retry fails at once if its message does not exist.
        let prior = if request.rewinds() {
            let (task, base) = (claimed.recorder.event_log().task(), request.base());
            let load = move |brain: &Brain| thread_loader::load_branch(brain, task, base);
            Some(self.brain.run_turn_open(load).await.ok_or(AgentError::Stopping)??)
        } else {
            None
        };
        let (opened, rewind) = request.resolve(prior.as_ref(), sent_at)?;
        let prior = prior.map_or(PriorThread::NotLoaded, |branch| PriorThread::Loaded(Box::new(branch)));
        let opening = TurnOpening { idempotency_key, opened, rewind, prior, from_queue };
        self.launch(claimed, opening, permit, tasks_lock).await
    }

    /// Opens a turn and waits for that.
    async fn launch(
        &self,
        claimed: ClaimedTurn,
        opening: TurnOpening,
        permit: OwnedSemaphorePermit,
        tasks_lock: OwnedRwLockReadGuard<()>,
    ) -> Result<EventReader, AgentError> {
        let ClaimedTurn { turn_id, recorder, registration, commands, events_after, reader } = claimed;
        let task_id = recorder.event_log().task_id().clone();
        let slot = TurnSlot::new(Arc::clone(&self.turn_permits), Some(permit), registration);
        let mut context = self.turn_context(recorder, opening.opened.message_id, slot, commands);
        context.writer.await_first_delta();
        let (registry, from_queue) = (self.registry.clone(), opening.from_queue);

        // From here on the turn runs on its own, even if the caller is gone before the reply.
        let (reply_sender, reply) = tokio::sync::oneshot::channel();
        let stopped = self.stopped.clone();
        let turn = async move {
            // A stop does not interrupt the opening: a caller who learns that the turn did not begin may
            // resend.
            let begun = opening.open(context).await;
            drop(tasks_lock);
            if from_queue && begun.is_ok() {
                let mut turns = registry.lock();
                turns.queue.begun(&task_id, turn_id, events_after);
                // The next message may interrupt this turn.
                turns.notify_queue();
            }
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
            Ok(outcome) => outcome.map(|()| reader),
            // The runtime is shutting down.
            Err(_) => Err(AgentError::Stopping),
        }
    }
}
