//! Opens a turn: recalls what is relevant to it, and commits its opening together with that.

use std::ops::RangeInclusive;

use api::event::{Event, Lifecycle};
use store::event_log::{Commit, Recorder};
use store::steps::{Opened, Step, TurnBase};
use store::{Brain, IdempotencyKey, NewTurn, Rewind, TaskRow};
use tokio::runtime::Handle;

use super::branch::Branch;
use super::recall::{RecallBudgets, Recalled};
use super::skills_note::SkillsNote;
use super::thread::Thread;
use super::turn_context::{TurnContext, TurnDeps};
use super::{AgentError, planning, thread_loader};

/// The conversation before a turn.
pub(super) enum PriorThread {
    /// It has not been loaded.
    NotLoaded,
    /// The loaded conversation.
    Loaded(Box<Branch>),
}

impl PriorThread {
    /// Loads the conversation if it has not been loaded and can be. Blocks.
    fn or_load(self, brain: &Brain, task: TaskRow) -> Self {
        match self {
            Self::NotLoaded => {
                let loaded = thread_loader::load_branch(brain, task, TurnBase::End);
                loaded.map_or(Self::NotLoaded, |branch| Self::Loaded(Box::new(branch)))
            }
            loaded @ Self::Loaded(_) => loaded,
        }
    }

    /// Whether the conversation is known to have messages.
    fn has_messages(&self) -> bool {
        matches!(self, Self::Loaded(branch) if !branch.messages().is_empty())
    }

    /// Opens the turn on the conversation.
    fn into_thread(self, opened: Opened, stamps: RangeInclusive<i64>) -> Option<Thread> {
        match self {
            Self::Loaded(before) => Some(Thread::open(*before, opened, stamps)),
            Self::NotLoaded => None,
        }
    }
}

/// A turn that is to be opened.
pub(super) struct TurnOpening {
    /// The idempotency key of the request, if the caller gave one.
    pub(super) idempotency_key: Option<IdempotencyKey>,
    pub(super) opened: Opened,
    pub(super) rewind: Rewind,
    pub(super) prior: PriorThread,
    /// Whether its message was queued.
    pub(super) from_queue: bool,
}

impl TurnOpening {
    /// Opens the turn. Returns its context, and its thread if the conversation could be loaded; otherwise
    /// loading is tried again once the turn is open.
    pub(super) async fn open(
        self,
        context: TurnContext,
    ) -> Result<(TurnContext, Option<Thread>), AgentError> {
        let runtime = Handle::current();
        // All in one blocking job that also sends the commit: switching threads for each part takes longer than
        // the work.
        let brain = context.deps.brain.clone();
        let begun = brain.run_turn_open(move |_| {
            let (commit, opened, prior) = self.prepare(&context);
            let recorder = context.writer.recorder();
            let last_ts_before = recorder.last_ts();
            let committing = runtime.block_on(recorder.send(commit));
            // While the commit is being stored.
            let thread = prior.into_thread(opened, last_ts_before + 1..=recorder.last_ts());
            (context, thread, committing)
        });
        // `None` if the runtime is shutting down.
        let (context, thread, committing) = begun.await.ok_or(AgentError::Stopping)?;
        committing?.wait().await?;
        Ok((context, thread))
    }

    /// Prepares the opening commit, with the notes that precede the user's message. Blocks.
    fn prepare(self, context: &TurnContext) -> (Commit, Opened, PriorThread) {
        let Self { idempotency_key, mut opened, rewind, prior, from_queue } = self;
        let TurnDeps { brain, services, snapshot } = &context.deps;
        let task = context.writer.task();
        let model = opened.options.overrides.as_ref().and_then(|overrides| overrides.model.as_deref());
        let budgets = RecallBudgets::for_model(services, model);
        let recalled = Recalled::load(brain, budgets, task, (opened.base, &opened.message));
        let skills = SkillsNote::load(brain, snapshot, task, opened.base);
        opened.notes.extend(recalled.notes());
        opened.notes_source = recalled.source().into();
        opened.notes.extend(skills.text());
        opened.prompt = Some(snapshot.prompt_hashes(services.gateway.context_window()));
        let prior = prior.or_load(brain, task);
        // Stored with the opening, so a turn that is resumed does not decide anew.
        opened.options.direct |= planning::skips_plan(snapshot, &opened, prior.has_messages());
        if let PriorThread::Loaded(branch) = &prior {
            opened.notes.extend(branch.memory_note());
        }
        let commit = opening_commit(context.writer.recorder(), idempotency_key, &opened, rewind);
        let commit = if from_queue { commit.dequeue() } else { commit };
        let commit = recalled.add_to_commit(commit);
        (skills.add_to_commit(commit), opened, prior)
    }
}

/// The commit that opens a turn.
pub(super) fn opening_commit(
    recorder: &Recorder,
    request: Option<IdempotencyKey>,
    opened: &Opened,
    rewind: Rewind,
) -> Commit {
    let message_id = opened.message_id;
    let mut commit = Commit::new();
    if rewind != Rewind::default() {
        commit = commit.rewind(rewind);
    }
    commit = commit.begin_turn(NewTurn { turn_id: recorder.turn_id(), message_id, request });
    let started = Event::ThreadLifecycle(Lifecycle::Started { message_id });
    commit.attachments(&opened.media).step(Step::Opened(opened.clone())).event(started)
}
