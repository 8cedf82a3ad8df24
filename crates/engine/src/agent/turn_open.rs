//! Opens a turn: commits its opening, and what is recalled for it as a step of its own.
//!
//! Searching a large memory takes about as long as preparing and storing the opening, so both happen at the same time; a
//! small one is searched while the opening is being stored. The model is called when both are done; that what was recalled
//! is stored is not waited for.

use std::ops::RangeInclusive;

use api::event::{Event, Lifecycle};
use store::event_log::{Commit, PendingCommit, Recorder};
use store::memory_format::source_of;
use store::steps::{Opened, Step, TurnBase};
use store::{Brain, IdempotencyKey, NewTurn, Rewind, SearchHit, TaskRow, WriteError};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::branch::Branch;
use super::recall::{self, Recalled};
use super::skills_note::SkillsNote;
use super::thread::Thread;
use super::turn_context::{TurnContext, TurnDeps};
use super::{AgentError, corrections_note, planning, thread_loader};

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
        // All in one blocking job that also sends the commits: switching threads for each part takes longer than
        // the work.
        let brain = context.deps.brain.clone();
        let searching = self.start_search(&context);
        let begun = brain.run_turn_open(move |_| {
            let sent = self.send(&context, searching, &runtime);
            (context, sent)
        });
        // `None` if the runtime is shutting down.
        let (context, sent) = begun.await.ok_or(AgentError::Stopping)?;
        let SentOpening { opening, recall, thread } = sent?;
        if let Some(opening) = opening {
            opening.wait().await?;
        }
        // A thread need not wait until what it has recalled is stored: what the turn writes next is stored behind that,
        // or fails with it. But one that is yet to be loaded is read from the journal.
        if let (None, Some(recall)) = (&thread, recall) {
            // The turn is open, so a failure is that of its next commit.
            let _ = recall.wait().await;
        }
        Ok((context, thread))
    }

    /// Begins to search memory on a thread of its own, if that saves time. `None` if the turn recalls nothing, or is an
    /// edit: memory is searched as that leaves it. A search that nobody waits for ends at its deadline.
    fn start_search(&self, context: &TurnContext) -> Option<JoinHandle<Vec<SearchHit>>> {
        if self.opened.recall_at.is_none() || matches!(self.opened.base, TurnBase::Edit { .. }) {
            return None;
        }
        let (deps, task) = (context.deps.clone(), context.writer.task());
        let (message, model) = (self.opened.message.clone(), self.opened.model().map(str::to_owned));
        context.deps.brain.start_recall(move |_| recall::search(&deps, task, message, model.as_deref()))
    }

    /// Sends the opening, and what the search finds as soon as it is done. Blocks.
    fn send(
        self,
        context: &TurnContext,
        searching: Option<JoinHandle<Vec<SearchHit>>>,
        runtime: &Handle,
    ) -> Result<SentOpening, WriteError> {
        let (commit, opened, prior, corrections) = self.prepare(context);
        let recorder = context.writer.recorder();
        let last_ts_before = recorder.last_ts();
        let opening = runtime.block_on(recorder.send(commit))?;
        let stamps = last_ts_before + 1..=recorder.last_ts();
        let opening = match opened.base {
            TurnBase::Edit { .. } => {
                runtime.block_on(opening.wait())?;
                None
            }
            TurnBase::End | TurnBase::Retry { .. } => Some(opening),
        };
        let recalled = opened.recall_at.and_then(|_| {
            let memories = if let Some(searching) = searching {
                runtime.block_on(searching).unwrap_or_default()
            } else {
                let (task, message) = (context.writer.task(), opened.message.clone());
                recall::search(&context.deps, task, message, opened.model())
            };
            Recalled { corrections, memories }.into_commit()
        });
        let mut thread = prior.into_thread(opened, stamps);
        let recall = recalled.and_then(|(commit, step)| {
            // It fails only if the opening has failed, or the turn's next commit will fail as well.
            let recall = runtime.block_on(recorder.send(commit)).ok();
            if let Some(thread) = &mut thread {
                thread.apply(step, recorder.last_ts());
            }
            recall
        });
        Ok(SentOpening { opening, recall, thread })
    }

    /// Prepares the opening commit, with the notes that precede the user's message. Returns it with the corrections
    /// among them. Blocks.
    fn prepare(self, context: &TurnContext) -> (Commit, Opened, PriorThread, Vec<SearchHit>) {
        let Self { idempotency_key, mut opened, rewind, prior, from_queue } = self;
        let TurnDeps { brain, services, snapshot } = &context.deps;
        let task = context.writer.task();
        let corrections =
            recall::corrections(&context.deps, task, (opened.base, &opened.message), opened.model());
        let skills = SkillsNote::load(brain, snapshot, task, opened.base);
        opened.notes.extend(corrections_note::note(&corrections));
        opened.notes_source = source_of(&corrections).into();
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
        let mut commit = recall::record(commit, &corrections);
        if opened.recall_at.is_none() {
            // Otherwise clients receive them together with the memories.
            commit = commit.events(recall::event(corrections.iter()));
        }
        (skills.add_to_commit(commit), opened, prior, corrections)
    }
}

/// A turn whose opening was sent.
struct SentOpening {
    /// The opening, unless it is stored.
    opening: Option<PendingCommit>,
    /// What was recalled, if anything was.
    recall: Option<PendingCommit>,
    /// The conversation, with what was recalled.
    thread: Option<Thread>,
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
