//! An engine's memory across tasks: knowledge, episodes (summaries of turns), and messages.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::serde_helpers::{BoundedInt, null_as_default};
use crate::{EpisodeId, MemoryId, MessageId, TaskId, Timestamp, TurnId};

/// The maximum length of a record of knowledge, in bytes.
pub const MAX_CONTENT: usize = 16 * 1024;
/// The maximum number of tags of a record.
pub const MAX_TAGS: usize = 32;
/// The maximum length of a tag, in bytes.
pub const MAX_TAG: usize = 128;
/// The maximum length of a query, in bytes.
pub const MAX_QUERY: usize = 16 * 1024;
/// The most results of a search that can be skipped.
pub const MAX_SEARCH_OFFSET: i64 = 1_000;

/// The origin of a record. The engine sets it; no caller can choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A holder of the engine's key.
    User,
    /// The agent, from its conversation with the user.
    Agent,
    /// A tool, the web, or the agent after it had seen their output: data, never an instruction.
    Tool,
    /// A person's feedback on a turn.
    Feedback,
    /// Learned from turns and feedback.
    Learned,
}

impl Source {
    /// Returns the source's name on the wire.
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

/// The error for an unknown source.
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

/// The kind of a search result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// A record of knowledge.
    Knowledge,
    /// The summary of a turn.
    Episode,
    /// Consecutive messages of a task.
    Message,
}

impl MemoryKind {
    /// Returns the kind's name on the wire.
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
    /// The words to search for, in any language and form.
    pub query: String,
    /// The maximum number of results; 10 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 100>>,
    /// The number of results to skip: pages of results; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<BoundedInt<0, { MAX_SEARCH_OFFSET }>>,
}

/// Response of `POST /memory/knowledge/search`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KnowledgeResults {
    /// The results, best first. Only records in force are searched.
    pub results: Vec<KnowledgeResult>,
}

/// A record of knowledge in a search result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KnowledgeResult {
    /// The record's id.
    pub id: MemoryId,
    /// The statement itself.
    pub content: String,
    /// The record's origin.
    pub source: Source,
    /// The record's tags.
    pub tags: Vec<String>,
    /// The relevance, comparable within one search: higher is better.
    pub score: f64,
    /// When it was saved.
    pub created_at: Timestamp,
}

/// Result of `memory.search`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryResults {
    /// The results, best first. Only records in force are searched.
    pub results: Vec<MemoryResult>,
}

/// A search result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryResult {
    /// The kind of result.
    pub kind: MemoryKind,
    /// The result's id: `mem_…`, `ep_…`, or the id of the first of its messages.
    pub id: String,
    /// The text that was found.
    pub content: String,
    /// The record's origin; absent for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The record's tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The relevance, comparable within one search: higher is better.
    pub score: f64,
    /// When the record was saved, or the last of the messages was written.
    pub created_at: Timestamp,
    /// The task that it comes from; absent for knowledge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// The ids of the messages; absent for other kinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub message_ids: Vec<MessageId>,
}

/// Body of `POST /memory/knowledge`, and `params` of `memory.save`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SaveKnowledge {
    /// The statement to remember: 1 to 16,384 bytes, not blank.
    pub content: String,
    /// Tags of the record: at most 32, each 1 to 128 bytes.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The id of the record that this one replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<String>,
}

/// Query of `GET /memory/knowledge` and `GET /memory/episodes`, and `params` of `memory.list`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ListMemory {
    /// The maximum number of records; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 1_000>>,
    /// The number of records to skip; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<BoundedInt<0, { i64::MAX }>>,
}

/// Response of `GET /memory/knowledge`, and result of `memory.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KnowledgeList {
    /// The records, newest first, including those no longer in force.
    pub knowledge: Vec<Knowledge>,
    /// The total number of records.
    pub total: u64,
}

/// A record of knowledge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Knowledge {
    /// The record's id.
    pub id: MemoryId,
    /// The statement itself.
    pub content: String,
    /// The record's origin.
    pub source: Source,
    /// The record's tags.
    pub tags: Vec<String>,
    /// When it was saved and came into force.
    pub created_at: Timestamp,
    /// When it ceased to be in force; absent if it still is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<Timestamp>,
    /// The id of the record that it replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<MemoryId>,
}

/// Response of `GET /memory/episodes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = EpisodeList)]
pub struct Episodes {
    /// The episodes, newest first.
    pub episodes: Vec<Episode>,
    /// The total number of episodes.
    pub total: u64,
}

/// A summary of a turn that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Episode {
    /// The episode's id.
    pub id: EpisodeId,
    /// The task of the turn.
    pub task_id: TaskId,
    /// The turn that it summarizes.
    pub turn_id: TurnId,
    /// A short summary of the user's message and its outcome.
    pub content: String,
    /// When the turn ended.
    pub created_at: Timestamp,
}
