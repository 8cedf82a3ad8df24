//! Opens a turn: commits its opening, and what is recalled for it as a step of its own.
//!
//! Searching a large memory takes about as long as preparing and storing the opening, so both happen at the same
//! time; a small one is searched while the writer stores the opening. An opening that leaves nothing to do meanwhile
//! is stored by the thread that prepared it. The model is called when both are done; that what was recalled is stored
//! is not waited for.

use std::ops::RangeInclusive;

use api::event::{Event, Lifecycle};
use store::event_log::{Commit, PendingCommit, Recorder, TaskEventLog};
use store::memory_format::source_of;
use store::steps::{Opened, Step, TurnBase};
use store::{
    Brain, Corrections, IdempotencyKey, NewTurn, OpeningNotes, Rewind, SearchHit, WriteError,
    has_content_words,
};
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
    /// Loads the conversation of a task if it has not been loaded and can be. Blocks.
    fn or_load(self, brain: &Brain, event_log: &TaskEventLog) -> Self {
        match self {
            Self::NotLoaded if event_log.is_new() => Self::Loaded(Box::default()),
            Self::NotLoaded => {
                let loaded = thread_loader::load_branch(brain, event_log.task(), TurnBase::End);
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

/// The size up to which a message is looked at before a search is started for it, in bytes. A longer one is taken to
/// have something to search for.
const MAX_CHECKED_BYTES: usize = 2 * 1024;

/// Where memory is searched for what a turn recalls.
enum Search {
    /// Nowhere: the turn recalls nothing, or there is nothing to search for.
    Nothing,
    /// On a thread of its own.
    Started(JoinHandle<Vec<SearchHit>>),
    /// On the thread that opens the turn, while the writer stores the opening; for an edit, after that.
    Here,
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
        let search = self.start_search(&context);
        let begun = brain.run_turn_open(move |_| {
            let sent = self.send(&context, search, &runtime);
            (context, sent)
        });
        // `None` if the runtime is shutting down.
        let (context, sent) = begun.await.ok_or(AgentError::Stopping)?;
        let SentOpening { opening, mut thread, recalls, corrections, memories } = sent?;
        let memories = memories.find().await;
        let recalled = if recalls { Recalled { corrections, memories }.into_commit() } else { None };
        let recall = match recalled {
            Some((commit, step)) => {
                send_recall(context.writer.recorder(), commit, step, thread.as_mut()).await
            }
            None => None,
        };
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

    /// Begins to search memory on a thread of its own, if that saves time. A search that nobody waits for ends at its
    /// deadline.
    fn start_search(&self, context: &TurnContext) -> Search {
        let message = &self.opened.message;
        if self.opened.recall_at.is_none() {
            return Search::Nothing;
        }
        if message.len() <= MAX_CHECKED_BYTES && !has_content_words(message) {
            return Search::Nothing;
        }
        // Memory is searched as an edit leaves it.
        if self.is_edit() {
            return Search::Here;
        }
        let (deps, task) = (context.deps.clone(), context.writer.task());
        let (message, model) = (message.clone(), self.opened.model().map(str::to_owned));
        let started =
            context.deps.brain.start_recall(move |_| recall::search(&deps, task, message, model.as_deref()));
        started.map_or(Search::Here, Search::Started)
    }

    fn is_edit(&self) -> bool {
        matches!(self.opened.base, TurnBase::Edit { .. })
    }

    /// Sends the opening, and searches memory if that is to happen on this thread. Blocks.
    fn send(
        self,
        context: &TurnContext,
        search: Search,
        runtime: &Handle,
    ) -> Result<SentOpening, WriteError> {
        let is_edit = self.is_edit();
        let (commit, opened, prior, corrections) = self.prepare(context);
        let recorder = context.writer.recorder();
        let last_ts_before = recorder.last_ts();
        let opening = match search {
            Search::Here if !is_edit => runtime.block_on(recorder.send(commit))?,
            _ => recorder.send_here(commit, runtime)?,
        };
        let stamps = last_ts_before + 1..=recorder.last_ts();
        let opening = if is_edit {
            runtime.block_on(opening.wait())?;
            None
        } else {
            Some(opening)
        };
        let memories = match search {
            Search::Nothing => Memories::Found(Vec::new()),
            Search::Started(search) => Memories::Searched(search),
            Search::Here => {
                let (task, message) = (context.writer.task(), opened.message.clone());
                Memories::Found(recall::search(&context.deps, task, message, opened.model()))
            }
        };
        let recalls = opened.recall_at.is_some();
        let thread = prior.into_thread(opened, stamps);
        Ok(SentOpening { opening, thread, recalls, corrections, memories })
    }

    /// Prepares the opening commit, with the notes that precede the user's message. Returns it with the corrections
    /// among them. Blocks.
    fn prepare(self, context: &TurnContext) -> (Commit, Opened, PriorThread, Vec<SearchHit>) {
        let Self { idempotency_key, mut opened, rewind, prior, from_queue } = self;
        let TurnDeps { brain, services, snapshot } = &context.deps;
        let task = context.writer.task();
        let OpeningNotes { corrections, skills } = brain.opening_notes(task, opened.base);
        let corrections = corrections.unwrap_or_else(|error| {
            tracing::error!(%error, "Corrections and lessons could not be read; the turn begins without them.");
            Corrections::default()
        });
        let corrections = recall::corrections(&context.deps, corrections, &opened.message, opened.model());
        let skills = SkillsNote::new(snapshot, opened.base, skills);
        opened.notes.extend(corrections_note::note(&corrections));
        opened.notes_source = source_of(&corrections).into();
        opened.notes.extend(skills.text());
        opened.prompt = Some(snapshot.prompt_hashes(services.gateway.context_window()));
        let prior = prior.or_load(brain, context.writer.recorder().event_log());
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
    /// The conversation, if it could be loaded.
    thread: Option<Thread>,
    /// Whether anything is recalled for the turn.
    recalls: bool,
    /// The corrections in the opening, of which clients are told together with the memories.
    corrections: Vec<SearchHit>,
    memories: Memories,
}

/// The memories that are relevant to the message.
enum Memories {
    Found(Vec<SearchHit>),
    /// They are being searched for on another thread.
    Searched(JoinHandle<Vec<SearchHit>>),
}

impl Memories {
    async fn find(self) -> Vec<SearchHit> {
        match self {
            Self::Found(memories) => memories,
            Self::Searched(search) => search.await.unwrap_or_default(),
        }
    }
}

/// Sends what was recalled. `None` if that fails, because the opening has failed, or the turn's next commit will fail
/// as well.
async fn send_recall(
    recorder: &Recorder,
    commit: Commit,
    step: Step,
    thread: Option<&mut Thread>,
) -> Option<PendingCommit> {
    let recall = recorder.send(commit).await.ok();
    if let Some(thread) = thread {
        thread.apply(step, recorder.last_ts());
    }
    recall
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
