//! The agent: runs turns, which requests begin and which are resumed after a restart, and everything around
//! them: commands to turns, replay, learning, erasure and maintenance.

mod active_turn;
mod answer_stream;
mod approval_answer;
mod approval_prompt;
mod approvals;
mod attachment_intake;
mod attachments;
mod attribution;
mod auxiliary_call;
mod branch;
mod budget;
mod call_events;
mod caps;
mod cassettes;
mod citable_pages;
mod citations;
mod compaction_driver;
mod compaction_plan;
mod compaction_view;
mod control;
mod conversation;
mod conversations;
mod corrections_note;
mod direct_calls;
mod erasure;
mod error;
mod execute;
mod fork;
mod hitl;
mod inbox;
mod interrupt;
mod journal;
mod journal_fold;
mod journal_writer;
mod learning;
mod loaded_skills;
mod loop_detector;
mod maintenance;
mod media;
mod memory;
mod messages;
mod model_request;
mod model_step;
mod outside_call;
mod plan_decision;
mod planning;
mod provenance;
mod queue_runner;
mod recall;
mod reload;
mod retry_policy;
mod schedules;
mod skill_deduplication;
mod skill_runs;
mod skills;
mod skills_note;
mod snapshot;
mod stream;
mod stream_reconciler;
mod structured_output;
mod sub_agent;
mod tasks;
mod thread;
mod thread_loader;
mod titles;
mod tool_calls;
mod tool_decision;
mod tool_hooks;
mod transfer;
mod turn;
mod turn_context;
mod turn_end;
mod turn_events;
mod turn_launch;
mod turn_lifecycle;
mod turn_open;
mod turn_overrides;
mod turn_queue;
mod turn_records;
mod turn_registry;
mod turn_report;
mod turn_request;
mod turn_span;
mod turn_stream;
mod usage;
mod webhook;
mod working_memory;

use std::sync::Arc;
use std::time::Duration;

use api::engine::HitlRespond;
use api::{HitlId, MessageId, TaskId, TurnId};
use attachment_intake::Intake;
pub(crate) use caps::Caps;
pub use direct_calls::DirectError;
use erasure::Eraser;
pub use error::AgentError;
pub use execute::Accepted;
use fetch::WebClient;
use hitl::HitlResponse;
use http_service::clock::Clock;
use learning::Learner;
use llm::Gateway;
use mcp::Mcp;
use queue_runner::QueueRunner;
pub(crate) use recall::RECALLED_KEY;
pub(crate) use reload::CatalogReloader;
pub use reload::ReloadError;
use resources::memory_budget::MemoryBudget;
use sandbox::Sandbox;
pub(crate) use snapshot::{AgentSnapshot, SnapshotSource};
use store::Brain;
use store::event_log::{EventLogs, EventReader, Follow};
pub use tasks::MessagePage;
use titles::Titler;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tools::SpillDir;
use tools::documents::DocumentReader;
use tools::skills::SkillDirs;
pub use transfer::Export;
use transfer::Transfers;
use turn_context::TurnSlot;
pub(crate) use turn_events::TurnEvents;
use turn_launch::TurnLauncher;
use turn_registry::{Command, TurnRegistry};
pub(crate) use turn_report::{FollowedTurn, ReportFold};
pub use turn_stream::TurnStream;
use webhook::WebhookSender;

/// The most turns that may run at once. Turns that wait for their user do not count.
const MAX_TURNS_AT_ONCE: usize = 256;
/// The most tools that may run at once, for all turns together.
const MAX_CALLS_AT_ONCE: usize = 64;
/// The most calls of tools and skills outside turns that may run at once.
const MAX_DIRECT_CALLS: usize = 16;
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
    /// What reads documents.
    pub(crate) documents: DocumentReader,
    /// What fetches attachments that are given by an address.
    pub(crate) web: WebClient,
    /// Permits for tool calls of turns, which bound how many run at once.
    pub(crate) tool_permits: Arc<Semaphore>,
    /// The token reservations of current model calls.
    pub(crate) reservations: Arc<budget::Reservations>,
    /// The caps on usage.
    pub(crate) caps: caps::Caps,
    /// Whether a conversation is compacted when the provider rejects it as too long.
    pub(crate) reactive_compaction: bool,
    /// How long the user may take to answer.
    pub(crate) hitl_ttl: Duration,
    /// How long the deltas of an ended turn are kept.
    pub(crate) replay_ttl: Duration,
    /// What its orchestrator calls this engine.
    pub(crate) engine_id: Option<String>,
    /// How long usage is kept.
    pub(crate) usage_retention: Duration,
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
    /// Exports and imports of memory.
    transfers: Transfers,
    registry: TurnRegistry,
    launcher: TurnLauncher,
    learner: Learner,
    eraser: Eraser,
    tracker: TaskTracker,
    /// Cancelled when the engine stops: no turn begins, and running ones stop after their current step.
    stopping: CancellationToken,
    /// Cancelled when a stop no longer waits for turns.
    stopped: CancellationToken,
}

impl Agent {
    pub(crate) fn new(brain: Brain, services: Services) -> Self {
        let (services, registry, stopping) =
            (Arc::new(services), TurnRegistry::default(), CancellationToken::new());
        let learner = Learner::new(brain.clone(), Arc::clone(&services), registry.clone(), stopping.clone());
        let eraser = Eraser::new(brain.clone(), Arc::clone(&services), stopping.clone());
        let (tracker, stopped) = (TaskTracker::new(), CancellationToken::new());
        let launcher = TurnLauncher {
            brain: brain.clone(),
            services: Arc::clone(&services),
            registry: registry.clone(),
            turn_permits: Arc::new(Semaphore::new(MAX_TURNS_AT_ONCE)),
            tracker: tracker.clone(),
            stopping: stopping.clone(),
            stopped: stopped.clone(),
        };
        Self {
            event_logs: EventLogs::new(brain.clone(), Arc::clone(&services.clock)),
            brain,
            services,
            transfers: Transfers::default(),
            registry,
            launcher,
            eraser,
            learner,
            tracker,
            stopping,
            stopped,
        }
    }

    /// The memory budget for large objects.
    pub(crate) fn memory_budget(&self) -> &MemoryBudget {
        &self.services.memory_budget
    }

    /// The names of the models that a request can choose; none if no provider is configured.
    pub(crate) fn model_names(&self) -> Vec<String> {
        let routes = self.services.gateway.routes();
        routes.map_or_else(
            |_| Vec::new(),
            |routes| routes.named.iter().map(|route| route.name.clone()).collect(),
        )
    }

    /// What other agents are told about this one.
    pub(crate) fn identity(&self) -> catalog::Identity {
        self.services.snapshots.current().identity.clone()
    }

    /// The user's connections to tool servers.
    pub(crate) fn mcp(&self) -> &Mcp {
        &self.services.mcp
    }

    /// Cancels the turn that is running on a task or waiting for its user, if it is `turn_id` or none is named.
    pub async fn cancel(&self, task_id: &TaskId, turn_id: Option<TurnId>) -> Result<TurnId, AgentError> {
        self.send_command(task_id, turn_id, Command::Cancel).await
    }

    /// Sends a message from the user to the turn that is running on a task, if it is `turn_id` or none is named.
    pub async fn steer(
        &self,
        task_id: &TaskId,
        turn_id: Option<TurnId>,
        message: String,
    ) -> Result<MessageId, AgentError> {
        if message.trim().is_empty() {
            return Err(AgentError::Invalid("`message`: must not be empty or blank".into()));
        }
        self.send_command(task_id, turn_id, |reply| Command::Steer(message, reply)).await
    }

    /// Answers the pending HITL request of a task.
    pub async fn respond(&self, respond: HitlRespond) -> Result<HitlId, AgentError> {
        self.respond_as(respond, None).await
    }

    /// Likewise; the journal keeps the caller's own id of the answer with it: see [`Agent::has_answer`].
    pub(crate) async fn respond_as(
        &self,
        mut respond: HitlRespond,
        answer_id: Option<String>,
    ) -> Result<HitlId, AgentError> {
        let task_id = respond.task_id.clone();
        let pending = self.brain.pending_of_task(&task_id)?;
        let intake = if pending.is_some() && attachment_intake::is_needed(&respond.content_blocks) {
            Box::pin(self.services.take_in("content_blocks", &mut respond.content_blocks)).await?
        } else {
            Intake::default()
        };
        let response = HitlResponse::new(pending, respond, intake, answer_id);
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
        turn_id: Option<TurnId>,
        command: impl FnOnce(turn_registry::Reply<T>) -> Command,
    ) -> Result<T, AgentError> {
        self.refine_error(task_id, self.registry.send(task_id, turn_id, command).await)
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
    /// the queue of messages and maintenance.
    pub fn resume(&self) -> Result<(), store::StoreError> {
        let (queued, next_entry) = self.brain.queued_turns()?;
        self.registry.lock().queue.load(queued, next_entry);
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
            let slot = TurnSlot::new(Arc::clone(&self.launcher.turn_permits), None, registration);
            let context = self.launcher.turn_context(recorder, turn.message_id, slot, commands);
            let resumed = turn_lifecycle::resume(context, turn);
            self.tracker.spawn(run_until_cancelled(self.stopped.clone(), resumed));
        }
        // Only now: the turns that are open come before the messages that wait.
        let queue_runner = QueueRunner::new(&self.launcher, &self.event_logs, &self.transfers);
        self.tracker.spawn(run_until_cancelled(self.stopping.clone(), queue_runner.run()));
        self.tracker.spawn(run_until_cancelled(self.stopping.clone(), self.schedule_runner().run()));
        for warning in self.available_skills().shadowed_warnings() {
            tracing::warn!(warning, "A skill of the catalog is ignored.");
        }
        let Services { clock, replay_ttl, usage_retention, .. } = &*self.services;
        let maintenance_loop =
            maintenance::run(self.brain.clone(), Arc::clone(clock), *replay_ttl, *usage_retention);
        self.tracker.spawn(run_until_cancelled(self.stopping.clone(), maintenance_loop));
        let reader_loop = maintenance::close_unused_readers(self.brain.clone(), Arc::clone(clock));
        self.tracker.spawn(run_until_cancelled(self.stopping.clone(), reader_loop));
        self.tracker.spawn(self.eraser.clone().run_in_background());
        let titler = Titler::new(self.brain.clone(), Arc::clone(&self.services));
        self.tracker.spawn(run_until_cancelled(self.stopping.clone(), titler.run()));
        let webhook = WebhookSender::new(self.brain.clone(), Arc::clone(&self.services));
        self.tracker.spawn(run_until_cancelled(self.stopping.clone(), webhook.run()));
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
