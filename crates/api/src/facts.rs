//! What an engine knows about its user now: the knowledge in force, when it was said, what it replaced, and where
//! it came from.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::memory::Source;
use crate::serde_helpers::BoundedInt;
use crate::{MemoryId, MessageId, TaskId, Timestamp, TurnId};

/// The most earlier statements that a list shows of each fact.
pub const MAX_LISTED_REPLACED: usize = 10;
/// The most earlier statements that a single fact shows.
pub const MAX_REPLACED: usize = 200;

/// Query of `GET /memory/facts`, and `params` of `memory.facts`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ListFacts {
    /// The maximum number of facts; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 100>>,
    /// The number of facts to skip; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<BoundedInt<0, { i64::MAX }>>,
    /// Only facts with exactly this tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Only facts of this origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// Response of `GET /memory/facts`, and result of `memory.facts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = FactList)]
pub struct Facts {
    /// The facts in force, the last said first. Of what each has replaced, the 10 newest statements are listed.
    pub facts: Vec<Fact>,
    /// The number of facts that match the query, on all pages.
    pub total: u64,
}

/// Body of `PUT /memory/facts/{id}`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CorrectFact {
    /// The right statement: 1 to 16,384 bytes, not blank.
    pub content: String,
    /// Its tags: at most 32, each 1 to 128 bytes. Without them it keeps those of the fact that it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
}

/// A fact: a record of knowledge with its history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fact {
    /// The record's id.
    pub id: MemoryId,
    /// The statement itself.
    pub content: String,
    /// The record's tags.
    pub tags: Vec<String>,
    /// Who it came from.
    pub source: Source,
    /// When it was said, which is when it came into force.
    pub said_at: Timestamp,
    /// When it ceased to be in force; null while it is.
    pub held_until: Option<Timestamp>,
    /// The turn that it came from; null if it was saved over HTTP or its task was deleted.
    pub origin: Option<FactOrigin>,
    /// The statement that replaced it; null if none did.
    pub replaced_by: Option<Statement>,
    /// The statements that it replaced, one after the other, the newest first; at most 200.
    pub replaced: Vec<Statement>,
    /// How many these are in all.
    pub replaced_total: u64,
}

/// The turn that a fact came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FactOrigin {
    /// The task.
    pub task_id: TaskId,
    /// The turn; null if it is not known.
    pub turn_id: Option<TurnId>,
    /// The user's message that the turn answered; null if it is not known.
    pub message_id: Option<MessageId>,
}

/// An earlier or a later statement of a fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Statement {
    /// The record's id.
    pub id: MemoryId,
    /// The statement itself.
    pub content: String,
    /// Who it came from.
    pub source: Source,
    /// When it was said.
    pub said_at: Timestamp,
    /// Until when it held; null while it does.
    pub held_until: Option<Timestamp>,
}
