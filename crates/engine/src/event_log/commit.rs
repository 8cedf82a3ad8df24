//! What is committed together: steps, the events that tell of them, and what they change.

use bytes::Bytes;
use contract::event::{Event, HitlRequest};
use contract::memory::MemoryKind;
use contract::{HitlId, Timestamp, TurnId};

use crate::llm::{Content, Media};
use crate::store::steps::{MemoryWrite, Step};
use crate::store::{Durability, NewGrant, NewKnowledge, NewTurn, Rewind, TaskRow, WriteTx};

/// See the module. What it holds is written in its order.
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

/// A change beside the journal and the events.
pub(super) enum StateChange {
    BeginTurn(NewTurn),
    IncrementStartCount,
    ResetStartCount,
    Rewind(Rewind),
    WorkingMemory(MemoryWrite),
    Media { hash: String, data: Bytes },
    OpenHitlRequest(HitlRequest),
    CloseHitlRequest(HitlId),
    Grant(NewGrant),
    Knowledge(NewKnowledge),
    Recalled(MemoryKind, String),
    SkillsNote(String),
}

impl Commit {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The turn begins. Its first event must be in the same record.
    #[must_use]
    pub fn begin_turn(self, turn: NewTurn) -> Self {
        self.change(StateChange::BeginTurn(turn))
    }

    /// A start of the engine takes the turn up.
    #[must_use]
    pub fn increment_start_count(self) -> Self {
        self.change(StateChange::IncrementStartCount)
    }

    /// The turn rests: no start of the engine tries it.
    #[must_use]
    pub fn reset_start_count(self) -> Self {
        self.change(StateChange::ResetStartCount)
    }

    /// The task loses what an edit or a retry makes void.
    #[must_use]
    pub fn rewind(self, cut: Rewind) -> Self {
        self.change(StateChange::Rewind(cut))
    }

    /// A step of the turn.
    #[must_use]
    pub fn step(self, step: Step) -> Self {
        self.push_part(CommitPart::Step(Box::new(step)))
    }

    /// An event.
    #[must_use]
    pub fn event(self, event: Event) -> Self {
        self.push_part(CommitPart::Event(event))
    }

    /// Events, in their order.
    #[must_use]
    pub fn events(self, events: impl IntoIterator<Item = Event>) -> Self {
        events.into_iter().fold(self, Self::event)
    }

    /// A value of the task's working memory.
    #[must_use]
    pub fn working_memory(self, write: MemoryWrite) -> Self {
        self.change(StateChange::WorkingMemory(write))
    }

    /// What was attached to a message or an answer.
    #[must_use]
    pub fn attachments(self, contents: &[Content]) -> Self {
        contents.iter().fold(self, |record, content| match content {
            Content::Media(Media { hash, data: Some(data), .. }) => {
                record.change(StateChange::Media { hash: hash.clone(), data: data.clone() })
            }
            Content::Media(_) | Content::Text { .. } | Content::Note { .. } => record,
        })
    }

    /// A person is asked.
    #[must_use]
    pub fn open_hitl_request(self, request: HitlRequest) -> Self {
        self.change(StateChange::OpenHitlRequest(request))
    }

    /// A person answered.
    #[must_use]
    pub fn close_hitl_request(self, request_id: HitlId) -> Self {
        self.change(StateChange::CloseHitlRequest(request_id))
    }

    /// A person gave leave for good.
    #[must_use]
    pub fn grant(self, grant: NewGrant) -> Self {
        self.change(StateChange::Grant(grant))
    }

    /// Something is known from here on.
    #[must_use]
    pub fn knowledge(self, record: NewKnowledge) -> Self {
        self.change(StateChange::Knowledge(record))
    }

    /// The turn was told what is remembered. Its opening must be before it in the same record.
    #[must_use]
    pub fn recalled(self, kind: MemoryKind, id: String) -> Self {
        self.change(StateChange::Recalled(kind, id))
    }

    /// The turn was told of the user's skills, in a text with this hash. Its opening must be before it in the same
    /// record.
    #[must_use]
    pub fn skills_note(self, hash: String) -> Self {
        self.change(StateChange::SkillsNote(hash))
    }

    /// The commit must hold against power loss.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durability = Durability::PowerLoss;
        self
    }

    fn change(self, write: StateChange) -> Self {
        self.push_part(CommitPart::Change(write))
    }

    fn push_part(mut self, part: CommitPart) -> Self {
        self.parts.push(part);
        self
    }
}

impl StateChange {
    /// Writes it. `ts` is that of the first event of its record.
    pub(super) fn apply(
        &self,
        rows: &WriteTx<'_>,
        task: TaskRow,
        turn_id: TurnId,
        ts: i64,
        at: Timestamp,
    ) -> Result<(), rusqlite::Error> {
        match self {
            Self::BeginTurn(turn) => rows.insert_turn(task, turn, ts, at),
            Self::IncrementStartCount => rows.increment_start_count(turn_id),
            Self::ResetStartCount => rows.reset_start_count(turn_id),
            Self::Rewind(cut) => rows.rewind(task, cut),
            Self::WorkingMemory(write) => rows.set_working_memory(task, write),
            Self::Media { hash, data } => rows.insert_media(task, hash, data),
            Self::OpenHitlRequest(request) => rows.insert_pending(task, turn_id, request),
            Self::CloseHitlRequest(request_id) => rows.delete_pending(*request_id),
            Self::Grant(grant) => rows.insert_grant(task, grant, at),
            Self::Knowledge(record) => rows.save_knowledge_from_turn(record, task, at),
            Self::Recalled(kind, id) => rows.insert_recalled(task, *kind, id),
            Self::SkillsNote(hash) => rows.insert_skills_note(task, hash),
        }
    }
}
