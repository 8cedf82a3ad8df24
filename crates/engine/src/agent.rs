//! The agent: runs turns, which requests begin and which are resumed after a restart, and everything around
//! them: commands to turns, replay, learning, erasure and maintenance.

mod active_turn;
mod answer_stream;
mod attachments;
mod attribution;
mod auxiliary_call;
mod branch;
mod budget;
mod call_events;
mod compaction_driver;
mod compaction_plan;
mod compaction_view;
mod control;
mod conversation;
mod corrections_note;
mod direct_calls;
mod erasure;
mod error;
mod hitl;
mod inbox;
mod interrupt;
mod journal;
mod journal_writer;
mod learning;
mod loaded_skills;
mod loop_detector;
mod maintenance;
mod memory;
mod messages;
mod model_request;
mod model_step;
mod planning;
mod provenance;
mod recall;
mod reload;
mod retry_policy;
mod skill_runs;
mod skills;
mod skills_note;
mod snapshot;
mod stream;
mod stream_reconciler;
mod sub_agent;
mod tasks;
mod thread;
mod thread_loader;
mod tool_calls;
mod tool_decision;
mod transfer;
mod turn;
mod turn_context;
mod turn_end;
mod turn_lifecycle;
mod turn_open;
mod turn_registry;
mod turn_request;

use std::sync::Arc;
use std::time::Duration;

use api::engine::{Execute, HitlRespond};
use api::{HitlId, MessageId, TaskId, TurnId};
use branch::Branch;
pub use direct_calls::DirectError;
use erasure::Eraser;
pub use error::AgentError;
use hitl::HitlResponse;
use http_service::clock::Clock;
use inbox::Inbox;
use journal_writer::JournalWriter;
use learning::Learner;
use llm::Gateway;
use mcp::Mcp;
pub(crate) use reload::CatalogReloader;
pub use reload::ReloadError;
use resources::memory_budget::MemoryBudget;
use resources::threads::run_blocking;
use sandbox::Sandbox;
pub(crate) use snapshot::{AgentSnapshot, SnapshotSource};
use store::event_log::{EventLogs, EventReader, Follow, Recorder};
use store::steps::TurnBase;
use store::{Brain, IdempotencyKey};
pub use tasks::MessagePage;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tools::SpillDir;
use tools::skills::SkillDirs;
use tracing::Instrument as _;
pub use transfer::Export;
use transfer::Transfers;
use turn_context::{TurnContext, TurnDeps, TurnSlot};
use turn_open::{PriorThread, TurnOpening};
use turn_registry::{Command, Commands, Registration, RegistryGuard, TurnRegistry};
use turn_request::TurnRequest;

/// The most turns that may run at once. Turns that wait for their user do not count.
const MAX_TURNS_AT_ONCE: usize = 256;
/// The most tools that may run at once, for all turns together.
const MAX_CALLS_AT_ONCE: usize = 64;
/// The most bytes of text, over all turns, that may wait to be stored before new turns are refused.
const MAX_UNSTORED_BYTES: usize = 64 * 1024 * 1024;

/// How long the final commits of turns may take when the engine stops.
const FINAL_COMMIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The dependencies of a turn.
pub(crate) struct Services {
    pub(crate) gateway: Arc<Gateway>,
    /// The agent as the catalog defines it.
    pub(crate) snapshots: SnapshotSource,
    pub(crate) clock: Arc<dyn Clock>,
    /// The user's connections to tool servers.
    pub(crate) mcp: Mcp,
    /// The sandbox in which programs run, if this machine supports one.
    pub(crate) sandbox: Option<Arc<Sandbox>>,
    /// The directories in which the user's own skills are laid out for programs.
    pub(crate) skill_dirs: Arc<SkillDirs>,
    /// Where long output of tools is stored.
    pub(crate) outputs: SpillDir,
    /// The memory budget for large objects.
    pub(crate) memory_budget: MemoryBudget,
    /// Permits for tool calls of turns, which bound how many run at once.
    pub(crate) tool_permits: Arc<Semaphore>,
    /// The token reservations of current model calls.
    pub(crate) reservations: Arc<budget::Reservations>,
    /// Whether a conversation is compacted when the provider rejects it as too long.
    pub(crate) reactive_compaction: bool,
    /// How long the user may take to answer.
    pub(crate) hitl_ttl: Duration,
    /// How long the deltas of an ended turn are kept.
    pub(crate) replay_ttl: Duration,
    /// The interval between learning batches; `None` if they run only on request.
    pub(crate) batch_interval: Option<Duration>,
}

impl Services {
    /// Creates the permits for tool calls of turns.
    pub(crate) fn new_tool_permits() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(MAX_CALLS_AT_ONCE))
    }
}

/// The agent of one engine, with everything that its turns share.
pub struct Agent {
    brain: Brain,
    event_logs: EventLogs,
    services: Arc<Services>,
    turn_permits: Arc<Semaphore>,
    /// Exports and imports of memory.
    transfers: Transfers,
    registry: TurnRegistry,
    learner: Learner,
    eraser: Eraser,
    tracker: TaskTracker,
    /// Cancelled when the engine stops: no turn begins, and running ones stop after their current step.
    stopping: CancellationToken,
    /// Cancelled when a stop no longer waits for turns.
    stopped: CancellationToken,
}

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
    pub(crate) fn new(brain: Brain, services: Services) -> Self {
        let (services, registry, stopping) =
            (Arc::new(services), TurnRegistry::default(), CancellationToken::new());
        let learner = Learner::new(brain.clone(), Arc::clone(&services), registry.clone(), stopping.clone());
        let eraser = Eraser::new(brain.clone(), Arc::clone(&services), stopping.clone());
        Self {
            event_logs: EventLogs::new(brain.clone(), Arc::clone(&services.clock)),
            brain,
            services,
            turn_permits: Arc::new(Semaphore::new(MAX_TURNS_AT_ONCE)),
            transfers: Transfers::default(),
            registry,
            eraser,
            learner,
            tracker: TaskTracker::new(),
            stopping,
            stopped: CancellationToken::new(),
        }
    }

    /// The memory budget for large objects.
    pub(crate) fn memory_budget(&self) -> &MemoryBudget {
        &self.services.memory_budget
    }

    /// The user's connections to tool servers.
    pub(crate) fn mcp(&self) -> &Mcp {
        &self.services.mcp
    }

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

    fn turn_context(
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
            writer: JournalWriter::new(recorder, message_id, Arc::clone(&services)),
            inbox: Inbox::new(commands, stopping, gateway, Arc::clone(&snapshot)),
            slot,
            deps: TurnDeps { brain: self.brain.clone(), services, snapshot },
        }
    }

    /// Cancels the turn that is running on a task or waiting for its user.
    pub async fn cancel(&self, task_id: &TaskId) -> Result<TurnId, AgentError> {
        self.send_command(task_id, Command::Cancel).await
    }

    /// Sends a message from the user to the turn that is running on a task.
    pub async fn steer(&self, task_id: &TaskId, message: String) -> Result<MessageId, AgentError> {
        if message.trim().is_empty() {
            return Err(AgentError::Invalid("`message`: must not be empty or blank".into()));
        }
        self.send_command(task_id, |reply| Command::Steer(message, reply)).await
    }

    /// Answers the pending HITL request of a task.
    pub async fn respond(&self, respond: HitlRespond) -> Result<HitlId, AgentError> {
        let task_id = respond.task_id.clone();
        let response = HitlResponse::new(self.brain.pending_of_task(&task_id)?, respond);
        let outcome = match response {
            Ok(response) => {
                let now = self.services.clock.monotonic();
                self.refine_error(&task_id, self.registry.respond(&task_id, response, now).await)
            }
            Err(error) => Err(error),
        };
        match outcome {
            Err(AgentError::NotRunning | AgentError::UnknownTask) => Err(AgentError::NotPending),
            outcome => outcome,
        }
    }

    async fn send_command<T>(
        &self,
        task_id: &TaskId,
        command: impl FnOnce(turn_registry::Reply<T>) -> Command,
    ) -> Result<T, AgentError> {
        self.refine_error(task_id, self.registry.send(task_id, command).await)
    }

    /// Refines the error of a command: an unknown task or a stopping engine instead of a turn that is not
    /// running.
    fn refine_error<T>(&self, task_id: &TaskId, outcome: Result<T, AgentError>) -> Result<T, AgentError> {
        match outcome {
            Err(AgentError::NotRunning) if self.brain.task(task_id)?.is_none() => {
                Err(AgentError::UnknownTask)
            }
            Err(AgentError::NotRunning) if self.stopping.is_cancelled() => Err(AgentError::Stopping),
            outcome => outcome,
        }
    }

    /// Reads the events after `after` of `task_id`, or of the task that ran last.
    pub fn replay(&self, task_id: Option<TaskId>, after: i64) -> Result<EventReader, AgentError> {
        let task_id = match task_id {
            Some(task_id) => task_id,
            None => self.brain.last_task()?.ok_or(AgentError::UnknownTask)?,
        };
        let event_log = self.event_logs.open_existing(&task_id)?.ok_or(AgentError::UnknownTask)?;
        Ok(event_log.read(after, Follow::Task))
    }

    /// Resumes the turns and the learning batch that an earlier run of the engine left open, and starts
    /// maintenance.
    pub fn resume(&self) -> Result<(), store::StoreError> {
        for turn in self.brain.open_turns()? {
            let event_log = self.event_logs.open(&turn.task_id)?;
            let Ok(recorder) = event_log.begin_turn(turn.turn_id) else {
                // Opening a turn ends one that was left open, so two open turns of a task should not occur.
                tracing::error!(
                    turn_id = %turn.turn_id,
                    "A task has two open turns; the second one is not resumed."
                );
                continue;
            };
            let (registration, commands) = self.registry.register(
                &mut self.registry.lock(),
                &recorder,
                turn.request.clone(),
                turn.opened_ts - 1,
            );
            let slot = TurnSlot::new(Arc::clone(&self.turn_permits), None, registration);
            let context = self.turn_context(recorder, turn.message_id, slot, commands);
            let resumed = turn_lifecycle::resume(context, turn);
            self.tracker.spawn(run_until_cancelled(self.stopped.clone(), resumed));
        }
        for warning in self.available_skills().shadowed_warnings() {
            tracing::warn!(warning, "A skill of the catalog is ignored.");
        }
        let maintenance_loop =
            maintenance::run(self.brain.clone(), self.services.clock.clone(), self.services.replay_ttl);
        self.tracker.spawn(run_until_cancelled(self.stopping.clone(), maintenance_loop));
        self.tracker.spawn(self.eraser.clone().run_in_background());
        self.learner.mark_unfinished_batch()?;
        self.tracker.spawn(run_until_cancelled(self.stopped.clone(), self.learner.clone().run()));
        Ok(())
    }

    /// Stops the agent: refuses new turns and gives running ones until `deadline` to finish their current step.
    /// They are resumed at the next start. Streams end then.
    pub async fn stop(&self, deadline: Duration) {
        self.stopping.cancel();
        self.tracker.close();
        if tokio::time::timeout(deadline, self.tracker.wait()).await.is_err() {
            tracing::info!(
                turns = self.tracker.len(),
                "Turns did not finish their step in time and are interrupted; the next start resumes them."
            );
            self.stopped.cancel();
            // Commits in progress are not interrupted.
            if tokio::time::timeout(FINAL_COMMIT_TIMEOUT, self.tracker.wait()).await.is_err() {
                tracing::warn!(
                    turns = self.tracker.len(),
                    "The final commits of turns did not complete in time."
                );
            }
        }
        self.stopped.cancel();
    }

    /// Cancelled when all turns have stopped; streams end with it.
    pub fn stopped(&self) -> &CancellationToken {
        &self.stopped
    }
}

/// Runs `work` until it ends or `token` is cancelled. A turn may be dropped at any await: its state is in its
/// journal, and the next start resumes it from there.
async fn run_until_cancelled(token: CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = token.cancelled() => {}
        () = work => {}
    }
}

#[cfg(test)]
#[path = "../tests/unit/agent/batches.rs"]
mod batches_tests;
#[cfg(test)]
#[path = "../tests/unit/agent/control.rs"]
mod control_tests;
#[cfg(test)]
#[path = "../tests/unit/agent/gateway.rs"]
mod gateway_tests;
#[cfg(test)]
#[path = "../tests/unit/agent/harness.rs"]
pub(crate) mod harness;
#[cfg(test)]
#[path = "../tests/unit/agent/learning.rs"]
pub(crate) mod learning_tests;
#[cfg(test)]
#[path = "../tests/unit/agent/memory_index.rs"]
mod memory_index_tests;
#[cfg(test)]
#[path = "../tests/unit/agent/memory_transfer.rs"]
mod memory_transfer_tests;
#[cfg(test)]
#[path = "../tests/unit/agent/programs.rs"]
mod programs_tests;
#[cfg(test)]
#[path = "../tests/unit/agent/provider.rs"]
mod provider_tests;
#[cfg(test)]
#[path = "../tests/unit/agent/recall.rs"]
pub(crate) mod recall_tests;
#[cfg(test)]
#[path = "../tests/unit/agent/resume.rs"]
mod resume_tests;
#[cfg(test)]
#[path = "../tests/unit/agent.rs"]
mod tests;
