//! Conversations as API callers list, describe, page and search them.

use std::time::{Duration, Instant};

use api::TaskId;
use api::conversations::{
    Conversation, ConversationHits, ConversationMessages, Conversations, ListConversations,
    MAX_METADATA_ENTRIES, MAX_METADATA_KEY_BYTES, MAX_METADATA_VALUE_BYTES, MAX_SEARCH_BYTES,
    MAX_TITLE_CHARS, PageMessages, SearchConversations, UpdateConversation, trim_title,
};
use api::serde_helpers::BoundedInt;
use store::{ConversationChange, ConversationChanged, ConversationCursor, ConversationFilter};

use super::{Agent, AgentError};

/// The size of a page unless the request sets it.
const DEFAULT_PAGE: usize = 50;
/// The number of results of a search unless the request sets it.
const DEFAULT_RESULTS: usize = 20;
/// How long a search may take.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);

impl Agent {
    /// A page of the conversations, most recently changed first.
    pub async fn conversations(&self, query: ListConversations) -> Result<Conversations, AgentError> {
        let cursor = query.after.as_deref().map(|text| {
            let refused = || AgentError::Invalid("`after`: must be the `next` of a page".into());
            ConversationCursor::parse(text).ok_or_else(refused)
        });
        let (cursor, limit) = (cursor.transpose()?, limit(query.limit, DEFAULT_PAGE));
        let filter = ConversationFilter { archived: query.archived, pinned: query.pinned };
        let page = self.read(move |brain| brain.conversations(filter, cursor, limit)).await?;
        let (conversations, next) = page;
        Ok(Conversations { conversations, next: next.map(ConversationCursor::encode) })
    }

    /// What is shown of a task's conversation.
    pub async fn conversation(&self, task_id: &TaskId) -> Result<Conversation, AgentError> {
        let task = self.brain.task(task_id)?.ok_or(AgentError::UnknownTask)?.row;
        let found = self.read(move |brain| brain.conversation(task)).await?;
        // A task that is about to begin has a row and is not stored yet.
        found.ok_or(AgentError::UnknownTask)
    }

    /// Changes what is shown of a task's conversation.
    pub async fn update_conversation(
        &self,
        task_id: &TaskId,
        update: UpdateConversation,
    ) -> Result<Conversation, AgentError> {
        let change = parse_update(update)?;
        let id = task_id.clone();
        let write =
            move |rows: &store::WriteTx<'_>| rows.change_conversation(&id, &change, MAX_METADATA_ENTRIES);
        match self.brain.write(write).await? {
            ConversationChanged::Yes => self.conversation(task_id).await,
            ConversationChanged::UnknownTask => Err(AgentError::UnknownTask),
            ConversationChanged::TooMuchMetadata => Err(AgentError::Invalid(format!(
                "`metadata`: a conversation has at most {MAX_METADATA_ENTRIES} entries; remove some with null"
            ))),
        }
    }

    /// A page of the messages of a task, oldest first: the newest, or those just before or after one.
    pub async fn page_messages(
        &self,
        task_id: &TaskId,
        query: PageMessages,
    ) -> Result<ConversationMessages, AgentError> {
        let PageMessages { limit: most, before, after } = query;
        if before.is_some() && after.is_some() {
            return Err(AgentError::Invalid("`after`: cannot be combined with `before`".into()));
        }
        let before = before.as_deref().map(|id| ("before", id));
        let after = after.as_deref().map(|id| ("after", id));
        self.message_page(task_id, limit(most, DEFAULT_PAGE), before, after).await
    }

    /// Searches the messages of all conversations.
    pub async fn search_conversations(
        &self,
        query: SearchConversations,
    ) -> Result<ConversationHits, AgentError> {
        let SearchConversations { q, limit: most } = query;
        if q.trim().is_empty() || q.len() > MAX_SEARCH_BYTES {
            let message = format!("`q`: must be 1 to {MAX_SEARCH_BYTES} bytes of text that is not blank");
            return Err(AgentError::Invalid(message));
        }
        let (most, deadline) = (limit(most, DEFAULT_RESULTS), Instant::now() + SEARCH_TIMEOUT);
        let results = self.read(move |brain| brain.search_conversations(&q, most, deadline)).await?;
        Ok(ConversationHits { results })
    }
}

fn limit<const MAX: i64>(asked: Option<BoundedInt<1, MAX>>, default: usize) -> usize {
    asked.and_then(|limit| usize::try_from(limit.get()).ok()).unwrap_or(default)
}

/// Validates a change of a conversation.
fn parse_update(update: UpdateConversation) -> Result<ConversationChange, AgentError> {
    let UpdateConversation { title, metadata, pinned, archived } = update;
    let title = title.map(|title| title.map(|title| parse_title(&title)).transpose()).transpose()?;
    let metadata = metadata.unwrap_or_default();
    for (key, value) in &metadata {
        if key.trim().is_empty() || key.len() > MAX_METADATA_KEY_BYTES {
            return Err(AgentError::Invalid(format!(
                "`metadata`: a key must be 1 to {MAX_METADATA_KEY_BYTES} bytes of text that is not blank"
            )));
        }
        if value.as_ref().is_some_and(|value| value.len() > MAX_METADATA_VALUE_BYTES) {
            return Err(AgentError::Invalid(format!(
                "`metadata`: the value of `{key}` must be at most {MAX_METADATA_VALUE_BYTES} bytes long"
            )));
        }
    }
    Ok(ConversationChange { title, metadata, pinned, archived })
}

/// Validates a title; spaces around it are left out.
pub(super) fn parse_title(title: &str) -> Result<String, AgentError> {
    trim_title(title).map(str::to_owned).ok_or_else(|| {
        AgentError::Invalid(format!(
            "`title`: must be 1 to {MAX_TITLE_CHARS} characters in one line, not all of them blank"
        ))
    })
}
