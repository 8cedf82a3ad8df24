//! The requests of `roundhouse acp` beyond sending messages: conversations in pages, turns and approvals.

use api::approvals::{ApprovalRequest, ApprovalRespond, ApprovalResponded, Approvals};
use api::conversations::{Conversation, ConversationMessages, Conversations, UpdateConversation};
use api::engine::Deleted;
use api::turns::{TurnList, TurnRecord, TurnState};
use api::{ErrorCode, HitlId, MessageId, TaskId};

use super::{ClientError, Engine};

impl Engine {
    /// Returns a page of the conversations that are not archived, and where the next one begins.
    pub(crate) async fn conversation_page(
        &self,
        limit: u32,
        after: Option<&str>,
    ) -> Result<(Vec<Conversation>, Option<String>), ClientError> {
        let limit = limit.to_string();
        let mut query = vec![("archived", "false"), ("limit", limit.as_str())];
        query.extend(after.map(|after| ("after", after)));
        let url = self.url_with(&["conversations"], &query)?;
        let Conversations { conversations, next } = self.send_json(self.http.get(url)).await?;
        Ok((conversations, next))
    }

    /// Returns a page of a task's messages, oldest first: those just before `before`, or the newest.
    pub(crate) async fn message_page(
        &self,
        task_id: &TaskId,
        limit: u32,
        before: Option<MessageId>,
    ) -> Result<ConversationMessages, ClientError> {
        let (limit, before) = (limit.to_string(), before.as_ref().map(ToString::to_string));
        let mut query = vec![("limit", limit.as_str())];
        query.extend(before.as_deref().map(|before| ("before", before)));
        let url = self.url_with(&["tasks", task_id.as_str(), "messages"], &query)?;
        self.send_json(self.http.get(url)).await
    }

    /// Returns the turn of a task that is running or waits for a person.
    pub(crate) async fn running_turn(&self, task_id: &TaskId) -> Result<Option<TurnRecord>, ClientError> {
        let url = self.url_with(&["tasks", task_id.as_str(), "turns"], &[])?;
        let TurnList { turns } = self.send_json(self.http.get(url)).await?;
        let is_running =
            |turn: &TurnRecord| matches!(turn.state, TurnState::Running | TurnState::WaitingForPerson);
        Ok(turns.into_iter().find(is_running))
    }

    /// Changes what a product shows of a conversation.
    pub(crate) async fn update_conversation(
        &self,
        task_id: &TaskId,
        update: &UpdateConversation,
    ) -> Result<(), ClientError> {
        let url = self.url_with(&["tasks", task_id.as_str(), "conversation"], &[])?;
        let Conversation { .. } = self.send_json(self.http.patch(url).json(update)).await?;
        Ok(())
    }

    /// Deletes a task. One that does not exist is deleted already.
    pub(crate) async fn delete_task(&self, task_id: &TaskId) -> Result<(), ClientError> {
        let url = self.url_with(&["tasks", task_id.as_str()], &[])?;
        match self.send_json::<Deleted>(self.http.delete(url)).await {
            Err(ClientError::Refused { code: ErrorCode::TaskNotFound, .. }) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Returns the tool calls of a task that wait for a decision.
    pub(crate) async fn approvals(&self, task_id: &TaskId) -> Result<Vec<ApprovalRequest>, ClientError> {
        let url = self.url_with(&["tasks", task_id.as_str(), "approvals"], &[])?;
        let Approvals { approvals } = self.send_json(self.http.get(url)).await?;
        Ok(approvals)
    }

    /// Sends the user's decision about a tool call.
    pub(crate) async fn decide(
        &self,
        task_id: &TaskId,
        request_id: HitlId,
        answer: &ApprovalRespond,
    ) -> Result<(), ClientError> {
        let request_id = request_id.to_string();
        let url = self.url_with(&["tasks", task_id.as_str(), "approvals", &request_id], &[])?;
        let ApprovalResponded { .. } = self.send_json(self.http.post(url).json(answer)).await?;
        Ok(())
    }
}
