//! The records of the document. Unknown fields are ignored, because a later minor version may have written them.

use std::collections::BTreeMap;
use std::fmt;

use api::conversations::{ForkedFrom, TitleSource};
use api::memory::Source;
use api::{ClientRequestId, EpisodeId, MemoryId, MessageId, TaskId, Timestamp, TurnId};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;

/// Stored JSON, which is written unchanged, byte by byte.
pub(super) type RawJson = Box<RawValue>;

/// A task, with its working memory.
#[derive(Serialize, Deserialize)]
pub(super) struct TaskRecord {
    pub(super) task_id: TaskId,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    /// The number of listed messages.
    pub(super) message_count: u32,
    /// The number of messages that the conversation no longer shows, determined when it had `covered_at` messages.
    #[serde(default)]
    pub(super) covered: u32,
    #[serde(default)]
    pub(super) covered_at: u32,
    #[serde(default)]
    pub(super) working_memory: BTreeMap<String, RawJson>,
}

/// What is shown of a conversation.
#[derive(Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts of a record, each independent of the others")]
pub(super) struct ConversationRecord {
    pub(super) task_id: TaskId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) title_source: Option<TitleSource>,
    /// Whether a model was asked for a title.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) title_asked: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) pinned: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) archived: bool,
    /// The task that it continues, and the last message that was copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) forked_from: Option<ForkedFrom>,
    /// What it has in common with its forks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) family: Option<String>,
    /// Whether what it copied came from a tool in part.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) tainted: bool,
}

/// A turn.
#[derive(Serialize, Deserialize)]
pub(super) struct TurnRecord {
    pub(super) turn_id: TurnId,
    pub(super) task_id: TaskId,
    /// The user's message.
    pub(super) message_id: MessageId,
    /// When its message was queued, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) queued_at: Option<Timestamp>,
    pub(super) opened_at: Timestamp,
    pub(super) ended_at: Timestamp,
    /// The `ts` of its first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) opened_ts: Option<i64>,
    /// The idempotency key of the request that began the turn, and a hash of the request's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client_request_id: Option<ClientRequestId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) request_hash: Option<String>,
    /// Whether its episode exists and its messages are indexed.
    #[serde(default)]
    pub(super) taken_in: bool,
}

/// A queued message. An import starts nothing, so it leaves these out.
#[derive(Serialize)]
pub(super) struct QueuedTurnRecord {
    pub(super) turn_id: TurnId,
    pub(super) task_id: TaskId,
    pub(super) queued_at: Timestamp,
    /// The request that brought it.
    pub(super) request: RawJson,
}

/// A schedule.
#[derive(Serialize, Deserialize)]
pub(super) struct ScheduleRecord {
    pub(super) id: String,
    pub(super) definition: RawJson,
    pub(super) state: String,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_due_at: Option<Timestamp>,
}

/// A step of a turn, as the journal stores it.
#[derive(Serialize, Deserialize)]
pub(super) struct StepRecord {
    pub(super) turn_id: TurnId,
    pub(super) at: Timestamp,
    pub(super) ts: i64,
    pub(super) step: RawJson,
}

/// An indexed message of a conversation: the position of its step. In the order of the conversation.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct MessageRecord(pub(super) u32);

/// A memory record that the conversation of the step's task shows.
#[derive(Serialize, Deserialize)]
pub(super) struct RecalledRecord {
    pub(super) step: u32,
    pub(super) kind: String,
    pub(super) id: String,
}

/// An event as clients received it; deltas are left out.
#[derive(Serialize, Deserialize)]
pub(super) struct EventRecord {
    pub(super) task_id: TaskId,
    pub(super) turn_id: TurnId,
    pub(super) ts: i64,
    pub(super) event: String,
    pub(super) data: RawJson,
}

/// The episode of a turn.
#[derive(Serialize, Deserialize)]
pub(super) struct EpisodeRecord {
    pub(super) id: EpisodeId,
    pub(super) turn_id: TurnId,
    /// The last step of the turn.
    pub(super) step: u32,
    pub(super) content: String,
    pub(super) source: Source,
    pub(super) created_at: Timestamp,
}

/// The actions of a turn and its outcome.
#[derive(Serialize, Deserialize)]
pub(super) struct TrajectoryRecord {
    pub(super) turn_id: TurnId,
    pub(super) step: u32,
    pub(super) outcome: String,
    pub(super) did: RawJson,
    pub(super) at: Timestamp,
}

/// A knowledge record.
#[derive(Serialize, Deserialize)]
pub(super) struct KnowledgeRecord {
    pub(super) id: MemoryId,
    pub(super) content: String,
    #[serde(default)]
    pub(super) tags: Vec<String>,
    pub(super) source: Source,
    pub(super) created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) valid_until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) supersedes: Option<MemoryId>,
    /// The step from which it was drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<u32>,
}

/// A custom skill of the user.
#[derive(Serialize, Deserialize)]
pub(super) struct SkillRecord {
    pub(super) name: String,
    pub(super) skill: RawJson,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
}

/// A learning batch that has ended.
#[derive(Serialize, Deserialize)]
pub(super) struct BatchRecord {
    pub(super) id: String,
    pub(super) state: RawJson,
    pub(super) started_at: Timestamp,
    pub(super) ended_at: Timestamp,
}

/// The user's feedback on a turn.
#[derive(Serialize, Deserialize)]
pub(super) struct FeedbackRecord {
    pub(super) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task_id: Option<TaskId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) turn_id: Option<TurnId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<u32>,
    pub(super) said: RawJson,
    pub(super) created_at: Timestamp,
    /// The batch that processed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) batch: Option<String>,
}

/// The evidence of a lesson, which is a knowledge record.
#[derive(Serialize, Deserialize)]
pub(super) struct LessonRecord {
    pub(super) id: MemoryId,
    pub(super) evidence: RawJson,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) batch: Option<String>,
}

/// An attachment, with the tasks that use it.
#[derive(Serialize, Deserialize)]
pub(super) struct MediaRecord {
    /// The SHA-256 of the bytes, in lower-case hex.
    pub(super) hash: String,
    pub(super) data: Base64Bytes,
    #[serde(default)]
    pub(super) task_ids: Vec<TaskId>,
}

/// Bytes that are encoded in base64.
pub(super) struct Base64Bytes(pub(super) Vec<u8>);

impl Serialize for Base64Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&base64::display::Base64Display::new(&self.0, &BASE64))
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Base64Visitor;

        impl de::Visitor<'_> for Base64Visitor {
            type Value = Base64Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes in base64")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Base64Bytes, E> {
                BASE64.decode(text).map(Base64Bytes).map_err(|_| E::custom("must be base64, with padding"))
            }
        }

        deserializer.deserialize_str(Base64Visitor)
    }
}
