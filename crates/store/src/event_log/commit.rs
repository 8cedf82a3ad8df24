//! The unit of a commit: steps, the events that report them, and the state changes that belong to them.

use std::time::Duration;

use api::approvals::{ApprovalDecision, ApprovalRequest};
use api::event::{Event, HitlRequest};
use api::memory::MemoryKind;
use api::{HitlId, MemoryId, Timestamp, TurnId};
use bytes::Bytes;
use llm::{Content, Media};

use crate::steps::{MemoryWrite, Step};
use crate::{
    CallUsage, CapMark, Durability, NewGrant, NewKnowledge, NewTurn, Rewind, ScheduleChange, StoreError,
    TaskRow, ToolUsage, WriteTx,
};

/// Steps, events and state changes that are committed together, written in the order in which they were added.
#[derive(Default)]
pub struct Commit {
    pub(super) parts: Vec<CommitPart>,
    pub(super) durability: Durability,
}

pub(super) enum CommitPart {
    Step(Box<Step>),
    Change(StateChange),
    Event(Event),
}

/// A state change other than a step or an event.
pub(super) enum StateChange {
    BeginTurn(NewTurn),
    Dequeue,
    IncrementStartCount,
    ResetStartCount,
    Rewind(Rewind),
    WorkingMemory(MemoryWrite),
    Media { hash: String, data: Bytes },
    OpenHitlRequest(HitlRequest),
    CloseHitlRequest(HitlId),
    OpenApproval(Box<ApprovalRequest>),
    CloseApproval(HitlId, ApprovalDecision),
    Grant(NewGrant),
    Knowledge(NewKnowledge),
    Forget(MemoryId),
    Schedules(ScheduleChange),
    Recalled(MemoryKind, String),
    SkillsNote(String),
    RequestTitle,
    CountCall(CallUsage),
    CountFirstDelta(Duration),
    CountTool(ToolUsage),
    MarkCap(CapMark),
}

impl Commit {
    /// Creates an empty commit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the turn. Its first event must be in the same commit.
    #[must_use]
    pub fn begin_turn(self, turn: NewTurn) -> Self {
        self.change(StateChange::BeginTurn(turn))
    }

    /// Takes the message of the turn out of the queue. The turn must have been begun in the same commit.
    #[must_use]
    pub fn dequeue(self) -> Self {
        self.change(StateChange::Dequeue)
    }

    /// Counts a start of the engine that resumes the turn.
    #[must_use]
    pub fn increment_start_count(self) -> Self {
        self.change(StateChange::IncrementStartCount)
    }

    /// Resets the turn's start count because it waits for the user; engine starts do not resume it meanwhile.
    #[must_use]
    pub fn reset_start_count(self) -> Self {
        self.change(StateChange::ResetStartCount)
    }

    /// Removes from the task what an edit or a retry invalidates.
    #[must_use]
    pub fn rewind(self, rewind: Rewind) -> Self {
        self.change(StateChange::Rewind(rewind))
    }

    /// Adds a step of the turn.
    #[must_use]
    pub fn step(self, step: Step) -> Self {
        self.push_part(CommitPart::Step(Box::new(step)))
    }

    /// Adds an event.
    #[must_use]
    pub fn event(self, event: Event) -> Self {
        self.push_part(CommitPart::Event(event))
    }

    /// Adds events in the given order.
    #[must_use]
    pub fn events(self, events: impl IntoIterator<Item = Event>) -> Self {
        events.into_iter().fold(self, Self::event)
    }

    /// Sets a value in the task's working memory.
    #[must_use]
    pub fn working_memory(self, write: MemoryWrite) -> Self {
        self.change(StateChange::WorkingMemory(write))
    }

    /// Stores the attachments of a message or an answer.
    #[must_use]
    pub fn attachments(self, contents: &[Content]) -> Self {
        contents.iter().fold(self, |commit, content| match content {
            Content::Media(Media { hash, data, text, .. }) => {
                let bytes = data.iter().map(|data| (hash, data));
                let text = text.iter().filter_map(|text| Some((&text.hash, text.data.as_ref()?)));
                bytes.chain(text).fold(commit, |commit, (hash, data)| {
                    commit.change(StateChange::Media { hash: hash.clone(), data: data.clone() })
                })
            }
            Content::Text { .. } | Content::Note { .. } => commit,
        })
    }

    /// Opens a request that waits for an answer of the user.
    #[must_use]
    pub fn open_hitl_request(self, request: HitlRequest) -> Self {
        self.change(StateChange::OpenHitlRequest(request))
    }

    /// Closes a request that the user has answered.
    #[must_use]
    pub fn close_hitl_request(self, request_id: HitlId) -> Self {
        self.change(StateChange::CloseHitlRequest(request_id))
    }

    /// Opens a request for the approval of a call.
    #[must_use]
    pub fn open_approval(self, request: ApprovalRequest) -> Self {
        self.change(StateChange::OpenApproval(Box::new(request)))
    }

    /// Closes a request for an approval that the user has decided about.
    #[must_use]
    pub fn close_approval(self, request_id: HitlId, decision: ApprovalDecision) -> Self {
        self.change(StateChange::CloseApproval(request_id, decision))
    }

    /// Stores a lasting approval (grant) of the user.
    #[must_use]
    pub fn grant(self, grant: NewGrant) -> Self {
        self.change(StateChange::Grant(grant))
    }

    /// Saves a knowledge record.
    #[must_use]
    pub fn knowledge(self, record: NewKnowledge) -> Self {
        self.change(StateChange::Knowledge(record))
    }

    /// Deletes a fact with all that it replaced, and queues the erasure of its traces.
    #[must_use]
    pub fn forget(self, id: MemoryId) -> Self {
        self.change(StateChange::Forget(id))
    }

    /// Sets or deletes a schedule.
    #[must_use]
    pub fn change_schedules(self, change: ScheduleChange) -> Self {
        self.change(StateChange::Schedules(change))
    }

    /// Records that the turn's notes contain a memory record. The step that opens the turn must precede it.
    #[must_use]
    pub fn recalled(self, kind: MemoryKind, id: String) -> Self {
        self.change(StateChange::Recalled(kind, id))
    }

    /// Records that the turn was sent a note about the user's skills, whose text has this hash. The step that
    /// opens the turn must precede it in the same commit.
    #[must_use]
    pub fn skills_note(self, hash: String) -> Self {
        self.change(StateChange::SkillsNote(hash))
    }

    /// Requests that a model makes a title for the task, unless it has one or a model was asked before.
    #[must_use]
    pub fn request_title(self) -> Self {
        self.change(StateChange::RequestTitle)
    }

    /// Counts a call of a model, whose result is in the same commit if it has one.
    #[must_use]
    pub fn count_call(self, call: CallUsage) -> Self {
        self.change(StateChange::CountCall(call))
    }

    /// Counts the time until the turn's first text, with the call of the model that has written it.
    #[must_use]
    pub fn count_first_delta(self, time: Duration) -> Self {
        self.change(StateChange::CountFirstDelta(time))
    }

    /// Counts the use of a tool, whose result is in the same commit.
    #[must_use]
    pub fn count_tool(self, usage: ToolUsage) -> Self {
        self.change(StateChange::CountTool(usage))
    }

    /// Notes that clients are told about a cap, by an event in the same commit.
    #[must_use]
    pub fn mark_cap(self, mark: CapMark) -> Self {
        self.change(StateChange::MarkCap(mark))
    }

    /// Requires the commit to survive a power loss.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durability = Durability::PowerLoss;
        self
    }

    fn change(self, change: StateChange) -> Self {
        self.push_part(CommitPart::Change(change))
    }

    fn push_part(mut self, part: CommitPart) -> Self {
        self.parts.push(part);
        self
    }
}

impl StateChange {
    /// Writes the change. `ts` is that of the first event of its commit.
    pub(super) fn apply(
        &self,
        tx: &WriteTx<'_>,
        task: TaskRow,
        turn_id: TurnId,
        ts: i64,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        match self {
            Self::BeginTurn(turn) => tx.insert_turn(task, turn, ts, at),
            Self::Dequeue => tx.dequeue_turn(turn_id),
            Self::IncrementStartCount => tx.increment_start_count(turn_id),
            Self::ResetStartCount => tx.reset_start_count(turn_id),
            Self::Rewind(rewind) => tx.rewind(task, rewind),
            Self::WorkingMemory(write) => tx.set_working_memory(task, write),
            Self::Media { hash, data } => tx.insert_media(task, hash, data),
            Self::OpenHitlRequest(request) => tx.insert_pending(task, turn_id, request),
            Self::CloseHitlRequest(request_id) => tx.delete_pending(*request_id),
            Self::OpenApproval(request) => tx.insert_approval(task, turn_id, request),
            Self::CloseApproval(request_id, decision) => tx.close_approval(*request_id, *decision),
            Self::Grant(grant) => tx.insert_grant(task, grant, at),
            Self::Knowledge(record) => tx.save_knowledge_from_turn(record, task, at),
            Self::Forget(id) => tx.forget_fact(*id),
            Self::Schedules(change) => tx.change_schedules(task, change),
            Self::Recalled(kind, id) => tx.insert_recalled(task, *kind, id),
            Self::SkillsNote(hash) => tx.insert_skills_note(task, hash),
            Self::RequestTitle => tx.request_title(task),
            Self::CountCall(call) => tx.count_call(at, call),
            Self::CountFirstDelta(time) => tx.count_first_delta_of_day(at, *time),
            Self::CountTool(usage) => tx.count_tool(task, at, usage),
            Self::MarkCap(mark) => tx.mark_cap(mark),
        }
    }
}
