//! Conversations as a product shows them: titles, metadata, pages of messages, forks and search.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::citations::Citation;
use crate::engine::{Role, TaskStatus};
use crate::serde_helpers::BoundedInt;
use crate::turn_options::Metadata;
use crate::{CallId, MessageId, TaskId, Timestamp, TurnId};

/// The most characters of a title.
pub const MAX_TITLE_CHARS: usize = 200;
/// The most entries of a conversation's metadata.
pub const MAX_METADATA_ENTRIES: usize = 16;
/// The most bytes of a key of metadata.
pub const MAX_METADATA_KEY_BYTES: usize = 64;
/// The most bytes of a value of metadata.
pub const MAX_METADATA_VALUE_BYTES: usize = 512;
/// The most bytes of the text of a search.
pub const MAX_SEARCH_BYTES: usize = 1_024;

/// The title without the spaces around it; `None` if it is blank, longer than [`MAX_TITLE_CHARS`] or more than one line.
pub fn trim_title(title: &str) -> Option<&str> {
    let title = title.trim();
    let is_valid =
        !title.is_empty() && title.chars().count() <= MAX_TITLE_CHARS && !title.chars().any(char::is_control);
    is_valid.then_some(title)
}

/// Query of `GET /conversations`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListConversations {
    /// The maximum number of conversations; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 100>>,
    /// The `next` of the page before; by default the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Only archived ones, or only those that are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
    /// Only pinned ones, or only those that are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
}

/// Response of `GET /conversations`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ConversationList)]
pub struct Conversations {
    /// The conversations, the one changed last first.
    pub conversations: Vec<Conversation>,
    /// The `after` of the next page; null on the last one.
    pub next: Option<String>,
}

/// A conversation: a task with what a product shows of it in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Conversation {
    /// The task.
    pub task_id: TaskId,
    /// The title; null if there is none and the first message has no text.
    pub title: Option<String>,
    /// Who made the title; null without one.
    pub title_source: Option<TitleSource>,
    /// The product's own entries.
    pub metadata: BTreeMap<String, String>,
    /// Whether it is pinned.
    pub pinned: bool,
    /// Whether it is archived.
    pub archived: bool,
    /// What the task is doing.
    pub status: TaskStatus,
    /// The number of messages.
    pub message_count: u64,
    /// When it began.
    pub created_at: Timestamp,
    /// When its last message was added or its last turn ended.
    pub updated_at: Timestamp,
    /// The conversation that it continues; null if it is no fork or that one was deleted.
    pub forked_from: Option<ForkedFrom>,
}

/// Who made a title.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TitleSource {
    /// It was set by a request.
    User,
    /// A model made it.
    Model,
    /// It is the beginning of the first message.
    Message,
}

impl TitleSource {
    /// The source as the API and the brain write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Model => "model",
            Self::Message => "message",
        }
    }
}

/// Where a fork begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkedFrom {
    /// The task that was forked.
    pub task_id: TaskId,
    /// The last message that was copied.
    pub message_id: MessageId,
}

/// Body of `PATCH /tasks/{task_id}/conversation`. What is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UpdateConversation {
    /// The title: 1 to 200 characters, not blank. Null removes it.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub title: Option<Option<String>>,
    /// Entries to set, or to remove with null; others stay. At most 16 in all, keys of 1 to 64 bytes, values of at
    /// most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, Option<String>>>,
    /// Whether it is pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
    /// Whether it is archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
}

/// Distinguishes null from a field that is left out.
#[expect(clippy::option_option, reason = "null removes what a field that is left out keeps")]
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Query of `GET /tasks/{task_id}/messages`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PageMessages {
    /// The maximum number of messages; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 200>>,
    /// Return the messages just before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Return the messages just after this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Response of `GET /tasks/{task_id}/messages`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConversationMessages {
    /// The messages, oldest first.
    pub messages: Vec<ConversationMessage>,
    /// Whether there are messages before the first one of the page.
    pub has_older: bool,
    /// Whether there are messages after the last one of the page.
    pub has_newer: bool,
}

/// A message, with all that a client needs to draw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConversationMessage {
    /// The message's id.
    pub message_id: MessageId,
    /// The turn that it belongs to.
    pub turn_id: TurnId,
    /// The author.
    pub role: Role,
    /// Its parts, in their order; the results of its tool calls are the last ones.
    pub content: Vec<MessageBlock>,
    /// When it was written.
    pub created_at: Timestamp,
    /// Whether a retry has replaced it, so that the model no longer sees it.
    pub superseded: bool,
    /// The `metadata` of the turn, on the message that began it; of a retry, on its answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The pages that the answer names. Their ranges are those of its text: that of its text blocks, one after the
    /// other. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub citations: Vec<Citation>,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MessageBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// An attached image.
    Image(MediaReference),
    /// An attached document.
    Document(MediaReference),
    /// An attached sound recording.
    Audio(MediaReference),
    /// A call of a tool by the model.
    ToolUse {
        /// The id of the call.
        tool_call_id: CallId,
        /// The tool.
        tool: String,
        /// Its input.
        input: Value,
    },
    /// The result of a call.
    ToolResult {
        /// The id of the call.
        tool_call_id: CallId,
        /// The output.
        output: String,
        /// What went wrong; null if nothing did.
        error: Option<String>,
    },
}

/// An attachment without its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MediaReference {
    /// The SHA-256 of its bytes, in lower-case hex.
    pub hash: String,
    /// The media type, such as `image/png`.
    pub media_type: String,
    /// The file's name; null if it has none.
    pub name: Option<String>,
}

/// Body of `POST /tasks/{task_id}/fork`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkTask {
    /// The id of the new task. Repeating a request with the same ids makes no second one.
    pub task_id: TaskId,
    /// The last message to copy; by default the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The title of the new conversation; by default that of the forked one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// Query of `GET /conversations/search`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SearchConversations {
    /// The text to search for: 1 to 1,024 bytes.
    pub q: String,
    /// The maximum number of results; 20 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 50>>,
}

/// Response of `GET /conversations/search`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConversationHits {
    /// The results, the best first.
    pub results: Vec<ConversationHit>,
}

/// A message that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConversationHit {
    /// The task.
    pub task_id: TaskId,
    /// The conversation's title.
    pub title: Option<String>,
    /// Whether the conversation is archived.
    pub archived: bool,
    /// The message: its place in the conversation, for `before` and `after` of the messages.
    pub message_id: MessageId,
    /// The author.
    pub role: Role,
    /// When it was written.
    pub created_at: Timestamp,
    /// The part of the message that was found.
    pub snippet: Snippet,
}

/// A part of a message in which words of a search are marked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snippet {
    /// The text.
    pub text: String,
    /// The marked places, in order; they do not overlap.
    pub matches: Vec<Match>,
    /// Whether the message has text before the snippet.
    pub cut_before: bool,
    /// Whether the message has text after the snippet.
    pub cut_after: bool,
}

/// A marked place of a text, in characters (Unicode code points).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Match {
    /// The index of its first character.
    pub start: u32,
    /// The index of the character after it.
    pub end: u32,
}
