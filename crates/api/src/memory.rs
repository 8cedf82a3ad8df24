//! What an engine remembers beyond a task: knowledge, what became of turns, and what was said.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::serde_helpers::{BoundedInt, null_as_default};
use crate::{EpisodeId, MemoryId, MessageId, TaskId, Timestamp, TurnId};

/// The longest content of a record of knowledge, in bytes.
pub const MAX_CONTENT: usize = 16 * 1024;
/// The most tags of a record.
pub const MAX_TAGS: usize = 32;
/// The longest tag, in bytes.
pub const MAX_TAG: usize = 128;
/// The longest query, in bytes.
pub const MAX_QUERY: usize = 16 * 1024;

/// Where a record came from. The engine stamps it; nobody can choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Whoever holds the engine's key.
    User,
    /// The agent, from what the user and it said.
    Agent,
    /// A tool, the web, or the agent when it had seen what those gave: data, never instruction.
    Tool,
    /// What a person said of a turn.
    Feedback,
    /// Learned from turns and feedback.
    Learned,
}

impl Source {
    /// The source as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Agent => "agent",
            Self::Tool => "tool",
            Self::Feedback => "feedback",
            Self::Learned => "learned",
        }
    }
}

/// A source that there is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be `user`, `agent`, `tool`, `feedback` or `learned`")]
pub struct UnknownSource;

impl FromStr for Source {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, UnknownSource> {
        [Self::User, Self::Agent, Self::Tool, Self::Feedback, Self::Learned]
            .into_iter()
            .find(|source| source.as_str() == text)
            .ok_or(UnknownSource)
    }
}

/// What kind of thing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// A record of knowledge.
    Knowledge,
    /// What became of a turn.
    Episode,
    /// Some messages of a task, one after the other.
    Message,
}

impl MemoryKind {
    /// The kind as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Knowledge => "knowledge",
            Self::Episode => "episode",
            Self::Message => "message",
        }
    }
}

/// Body of `POST /memory/knowledge/search`, and `params` of `memory.search`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MemorySearch {
    /// What is looked for: words, in any language and form.
    pub query: String,
    /// How many results at most; 10 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 100>>,
}

/// Answer of `POST /memory/knowledge/search`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KnowledgeResults {
    /// What was found, the best first. Only what is in force.
    pub results: Vec<KnowledgeResult>,
}

/// A record of knowledge that was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KnowledgeResult {
    /// Its id.
    pub id: MemoryId,
    /// What is known.
    pub content: String,
    /// Where it came from.
    pub source: Source,
    /// Words that it was filed under.
    pub tags: Vec<String>,
    /// How well it fits, to compare the results of one search: more is better.
    pub score: f64,
    /// When it was saved.
    pub created_at: Timestamp,
}

/// Result of `memory.search`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryResults {
    /// What was found, the best first. Only what is in force.
    pub results: Vec<MemoryResult>,
}

/// Something remembered that was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryResult {
    /// What it is.
    pub kind: MemoryKind,
    /// Its id: `mem_…`, `ep_…`, or the first of its messages.
    pub id: String,
    /// What is remembered.
    pub content: String,
    /// Where it came from; absent for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Words that it was filed under.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// How well it fits, to compare the results of one search: more is better.
    pub score: f64,
    /// When it was saved, or the last of the messages was said.
    pub created_at: Timestamp,
    /// The task that it is of; absent for knowledge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// The messages, where it is some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub message_ids: Vec<MessageId>,
}

/// Body of `POST /memory/knowledge`, and `params` of `memory.save`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SaveKnowledge {
    /// What is to be known: 1 to 16,384 bytes, not blank.
    pub content: String,
    /// Words to file it under: at most 32, each 1 to 128 bytes.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The record in whose place it comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<String>,
}

/// Query of `GET /memory/knowledge` and `GET /memory/episodes`, and `params` of `memory.list`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ListMemory {
    /// How many at most; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 1_000>>,
    /// How many to leave out; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<BoundedInt<0, { i64::MAX }>>,
}

/// Answer of `GET /memory/knowledge`, and result of `memory.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KnowledgeList {
    /// The records, the newest first, those too that are no longer in force.
    pub knowledge: Vec<Knowledge>,
    /// How many there are in all.
    pub total: u64,
}

/// A record of knowledge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Knowledge {
    /// Its id.
    pub id: MemoryId,
    /// What is known.
    pub content: String,
    /// Where it came from.
    pub source: Source,
    /// Words that it was filed under.
    pub tags: Vec<String>,
    /// When it was saved: from then on it is in force.
    pub created_at: Timestamp,
    /// Until when it was in force; absent while it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<Timestamp>,
    /// The record in whose place it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<MemoryId>,
}

/// Answer of `GET /memory/episodes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Episodes {
    /// What became of turns, the newest first.
    pub episodes: Vec<Episode>,
    /// How many there are in all.
    pub total: u64,
}

/// What is remembered of a turn that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Episode {
    /// Its id.
    pub id: EpisodeId,
    /// The task.
    pub task_id: TaskId,
    /// The turn.
    pub turn_id: TurnId,
    /// What the user said and what came of it, in short.
    pub content: String,
    /// When the turn ended.
    pub created_at: Timestamp,
}
