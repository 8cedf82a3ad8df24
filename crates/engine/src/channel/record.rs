//! What is committed together: steps, the events that tell of them, and what they change.

use bytes::Bytes;
use contract::event::{Event, HitlRequest};
use contract::memory::MemoryKind;
use contract::{HitlId, Timestamp, TurnId};

use crate::brain::steps::{MemoryWrite, Step};
use crate::brain::{Cut, Durability, NewGrant, NewKnowledge, NewTurn, Rows, TaskRow};
use crate::models::{Content, Media};

/// See the module. What it holds is written in its order.
#[derive(Default)]
pub struct Record {
    pub(super) parts: Vec<Part>,
    pub(super) durability: Durability,
}

pub(super) enum Part {
    Step(Box<Step>),
    Write(Write),
    Event(Event),
}

/// A change beside the journal and the events.
pub(super) enum Write {
    Begin(NewTurn),
    Start,
    ForgetStarts,
    Cut(Cut),
    Memory(MemoryWrite),
    Media { hash: String, data: Bytes },
    Ask(HitlRequest),
    Settle(HitlId),
    Grant(NewGrant),
    Knowledge(NewKnowledge),
    Recalled(MemoryKind, String),
    SkillsTold(String),
}

impl Record {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The turn begins. Its first event must be in the same record.
    #[must_use]
    pub fn begin(self, turn: NewTurn) -> Self {
        self.write(Write::Begin(turn))
    }

    /// A start of the engine takes the turn up.
    #[must_use]
    pub fn start(self) -> Self {
        self.write(Write::Start)
    }

    /// The turn rests: no start of the engine tries it.
    #[must_use]
    pub fn forget_starts(self) -> Self {
        self.write(Write::ForgetStarts)
    }

    /// The task loses what an edit or a retry makes void.
    #[must_use]
    pub fn cut(self, cut: Cut) -> Self {
        self.write(Write::Cut(cut))
    }

    /// A step of the turn.
    #[must_use]
    pub fn step(self, step: Step) -> Self {
        self.with(Part::Step(Box::new(step)))
    }

    /// An event.
    #[must_use]
    pub fn event(self, event: Event) -> Self {
        self.with(Part::Event(event))
    }

    /// Events, in their order.
    #[must_use]
    pub fn events(self, events: impl IntoIterator<Item = Event>) -> Self {
        events.into_iter().fold(self, Self::event)
    }

    /// A value of the task's working memory.
    #[must_use]
    pub fn memory(self, write: MemoryWrite) -> Self {
        self.write(Write::Memory(write))
    }

    /// What was attached to a message or an answer.
    #[must_use]
    pub fn attached(self, contents: &[Content]) -> Self {
        contents.iter().fold(self, |record, content| match content {
            Content::Media(Media { hash, data: Some(data), .. }) => {
                record.write(Write::Media { hash: hash.clone(), data: data.clone() })
            }
            Content::Media(_) | Content::Text { .. } | Content::Note { .. } => record,
        })
    }

    /// A person is asked.
    #[must_use]
    pub fn ask(self, request: HitlRequest) -> Self {
        self.write(Write::Ask(request))
    }

    /// A person answered.
    #[must_use]
    pub fn settle(self, request_id: HitlId) -> Self {
        self.write(Write::Settle(request_id))
    }

    /// A person gave leave for good.
    #[must_use]
    pub fn grant(self, grant: NewGrant) -> Self {
        self.write(Write::Grant(grant))
    }

    /// Something is known from here on.
    #[must_use]
    pub fn knowledge(self, record: NewKnowledge) -> Self {
        self.write(Write::Knowledge(record))
    }

    /// The turn was told what is remembered. Its opening must be before it in the same record.
    #[must_use]
    pub fn recalled(self, kind: MemoryKind, id: String) -> Self {
        self.write(Write::Recalled(kind, id))
    }

    /// The turn was told of the user's skills, in a text with this hash. Its opening must be before it in the same
    /// record.
    #[must_use]
    pub fn skills_told(self, hash: String) -> Self {
        self.write(Write::SkillsTold(hash))
    }

    /// The commit must hold against power loss.
    #[must_use]
    pub fn against_power_loss(mut self) -> Self {
        self.durability = Durability::PowerLoss;
        self
    }

    fn write(self, write: Write) -> Self {
        self.with(Part::Write(write))
    }

    fn with(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }
}

impl Write {
    /// Writes it. `ts` is that of the first event of its record.
    pub(super) fn to(
        &self,
        rows: &Rows<'_>,
        task: TaskRow,
        turn_id: TurnId,
        ts: i64,
        at: Timestamp,
    ) -> Result<(), rusqlite::Error> {
        match self {
            Self::Begin(turn) => rows.insert_turn(task, turn, ts, at),
            Self::Start => rows.count_start(turn_id),
            Self::ForgetStarts => rows.forget_starts(turn_id),
            Self::Cut(cut) => rows.cut(task, cut),
            Self::Memory(write) => rows.set_working_memory(task, write),
            Self::Media { hash, data } => rows.insert_media(task, hash, data),
            Self::Ask(request) => rows.insert_pending(task, turn_id, request),
            Self::Settle(request_id) => rows.delete_pending(*request_id),
            Self::Grant(grant) => rows.insert_grant(task, grant, at),
            Self::Knowledge(record) => rows.save_knowledge_of(record, task, at),
            Self::Recalled(kind, id) => rows.insert_recalled(task, *kind, id),
            Self::SkillsTold(hash) => rows.insert_skills_told(task, hash),
        }
    }
}
