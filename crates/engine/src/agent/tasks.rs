//! Tasks as API callers list, read and delete them, their working memory, and the user's grants.

use std::collections::BTreeMap;

use api::conversations::ConversationMessages;
use api::engine::{Grant, PendingRequest, TaskMessage, Tasks};
use api::inbox::{MAX_QUESTIONS, MAX_REPORT_BYTES, WaitingQuestion, WaitingQuestions};
use api::proof::waiting_tag;
use api::{GrantId, KeyHash, TaskId, TurnId};
use resources::memory_budget::MemoryUse;
use serde_json::Value;
use store::steps::{MemoryWrite, TurnBase};
use store::{Brain, TaskDeletion};
use tools::validate_working_memory;

use super::messages::{MessageList, PagePlace, task_message};
use super::tool_calls::working_memory_full;
use super::{Agent, AgentError, thread_loader};

/// The size of messages in memory relative to the journal, including the answer that is built from them.
const LIST_MEMORY_FACTOR: usize = 3;

/// The most keys with which working memory can be replaced.
const MAX_WORKING_MEMORY_KEYS: usize = 100;

/// A page of the messages of a task.
pub struct MessagePage {
    /// The messages, oldest first.
    pub messages: Vec<TaskMessage>,
    /// Whether there are older ones.
    pub has_older: bool,
}

/// A change of a task's working memory between two turns.
enum MemoryChange {
    /// One value is set, or removed with null.
    Set(MemoryWrite),
    /// These are all values.
    Replace(BTreeMap<String, Value>),
}

impl MemoryChange {
    /// The field of the request.
    const fn field(&self) -> &'static str {
        match self {
            Self::Set(_) => "value",
            Self::Replace(_) => "memory",
        }
    }

    /// The writes that change `current`: the model is told of nothing that stays.
    fn into_writes(self, current: &BTreeMap<String, Value>) -> Vec<MemoryWrite> {
        match self {
            Self::Set(write) => vec![write],
            Self::Replace(memory) => {
                let removed = current.keys().filter(|key| !memory.contains_key(*key));
                let removed = removed.map(|key| MemoryWrite { key: key.clone(), value: Value::Null });
                let set = memory.iter().filter(|(key, value)| current.get(*key) != Some(value));
                let set = set.map(|(key, value)| MemoryWrite { key: key.clone(), value: value.clone() });
                removed.chain(set).collect()
            }
        }
    }
}

impl Agent {
    /// A page of the tasks, most recently changed first.
    pub async fn tasks(&self, limit: i64, offset: i64) -> Result<Tasks, AgentError> {
        self.read(move |brain| Ok(Tasks { tasks: brain.tasks(limit, offset)?, total: brain.task_count()? }))
            .await
    }

    /// The newest messages of a task, or those before `before`: at most `limit`, or all.
    pub async fn messages(
        &self,
        task_id: &TaskId,
        limit: Option<usize>,
        before: Option<&str>,
    ) -> Result<MessagePage, AgentError> {
        let before = before.map(|before| ("before", before));
        let page = self.message_page(task_id, limit.unwrap_or(usize::MAX), before, None).await?;
        let messages = page.messages.into_iter().map(task_message).collect();
        Ok(MessagePage { messages, has_older: page.has_older })
    }

    /// At most `limit` messages of a task before one, after one, or the newest.
    pub(super) async fn message_page(
        &self,
        task_id: &TaskId,
        limit: usize,
        before: Option<(&'static str, &str)>,
        after: Option<(&'static str, &str)>,
    ) -> Result<ConversationMessages, AgentError> {
        let task = self.brain.task(task_id)?.ok_or(AgentError::UnknownTask)?.row;
        let named = before.or(after);
        let unknown = || {
            let field = named.map_or("before", |(field, _)| field);
            AgentError::UnknownMessage(format!("`{field}`: there is no such message in this task"))
        };
        let message_id = named.map(|(_, id)| id.parse().map_err(|_| unknown())).transpose()?;
        let place = match message_id {
            Some(message_id) if before.is_some() => PagePlace::Before(message_id),
            Some(message_id) => PagePlace::After(message_id),
            None => PagePlace::End,
        };
        let list = self.brain.run_blocking(move |brain| MessageList::load(brain, task)).await;
        let list = list.ok_or(AgentError::Stopping)??;
        let page = list.page(limit, place).ok_or_else(unknown)?;
        let size = list.journal_bytes(page.clone()).saturating_mul(LIST_MEMORY_FACTOR);
        let _reserved = self.services.memory_budget.reserve(MemoryUse::Lists, size).await?;
        let (has_older, has_newer) = (page.start > 0, page.end < list.len());
        let load = move |brain: &Brain| list.load_messages(brain, task, page);
        let messages = self.brain.run_blocking(load).await.ok_or(AgentError::Stopping)??;
        Ok(ConversationMessages { messages, has_older, has_newer })
    }

    /// The working memory of a task by key, without deleted values.
    pub async fn working_memory(&self, task_id: &TaskId) -> Result<BTreeMap<String, Value>, AgentError> {
        let task = self.brain.task(task_id)?.ok_or(AgentError::UnknownTask)?;
        self.read(move |brain| brain.working_memory(task.row)).await
    }

    /// Writes to the working memory of a task between two turns; null deletes a value.
    pub async fn set_working_memory(&self, task_id: &TaskId, write: MemoryWrite) -> Result<(), AgentError> {
        validate_working_memory(&write.key, &write.value).map_err(AgentError::Invalid)?;
        self.write_working_memory(task_id, MemoryChange::Set(write)).await
    }

    /// Replaces the whole working memory of a task between two turns.
    pub async fn replace_working_memory(
        &self,
        task_id: &TaskId,
        memory: BTreeMap<String, Value>,
    ) -> Result<(), AgentError> {
        if memory.len() > MAX_WORKING_MEMORY_KEYS {
            let message = format!("`memory`: must have at most {MAX_WORKING_MEMORY_KEYS} keys");
            return Err(AgentError::Invalid(message));
        }
        for (key, value) in &memory {
            if value.is_null() {
                let message = format!("`memory`: the value of `{key}` must not be null; leave the key out");
                return Err(AgentError::Invalid(message));
            }
            validate_working_memory(key, value)
                .map_err(|reason| AgentError::Invalid(format!("`memory`: {reason}")))?;
        }
        self.write_working_memory(task_id, MemoryChange::Replace(memory)).await
    }

    async fn write_working_memory(&self, task_id: &TaskId, change: MemoryChange) -> Result<(), AgentError> {
        let tasks_lock = self.transfers.lock_tasks().await?;
        let recorder = {
            let _turns = self.registry.lock();
            let event_log = self.event_logs.open_existing(task_id)?.ok_or(AgentError::UnknownTask)?;
            // Claims the task like a turn, so that no turn begins before this is committed.
            event_log.begin_turn(TurnId::new()).map_err(|_| AgentError::TaskBusy)?
        };
        let task = recorder.event_log().task();
        let branch = self
            .brain
            .run_blocking(move |brain| thread_loader::load_branch(brain, task, TurnBase::End))
            .await;
        let branch = branch.ok_or(AgentError::Stopping)??;
        let field = change.field();
        let writes = change.into_writes(&self.read(move |brain| brain.working_memory(task)).await?);
        if !branch.has_room_for(&writes) {
            return Err(AgentError::Invalid(format!("`{field}`: {}", working_memory_full())));
        }
        if writes.is_empty() {
            return Ok(());
        }
        let (brain, at) = (self.brain.clone(), self.services.clock.now());
        // Runs in a task of its own, so that it completes even if the caller is gone.
        let writing = self.tracker.spawn(async move {
            let written = brain.write(move |rows| rows.write_memory_between_turns(task, &writes, at)).await;
            drop(recorder);
            drop(tasks_lock);
            written
        });
        let written = writing.await.map_err(|_| AgentError::Stopping)??;
        written.then_some(()).ok_or(AgentError::UnknownTask)
    }

    /// Deletes a value from the working memory of a task.
    pub async fn delete_working_memory(&self, task_id: &TaskId, key: String) -> Result<(), AgentError> {
        if !self.working_memory(task_id).await?.contains_key(&key) {
            let message = "working memory has no such key; GET /tasks/{task_id}/memory lists the keys";
            return Err(AgentError::UnknownRecord(message.into()));
        }
        self.set_working_memory(task_id, MemoryWrite { key, value: Value::Null }).await
    }

    /// Deletes a task with all data that only it had, and what was learned from it if `with_knowledge` is set.
    pub async fn delete(&self, task_id: &TaskId, with_knowledge: bool) -> Result<(), AgentError> {
        let tasks_lock = self.transfers.lock_tasks().await?;
        let recorder = {
            // While the registry is locked, no turn can begin.
            let turns = self.registry.lock();
            let event_log = self.event_logs.open_existing(task_id)?.ok_or(AgentError::UnknownTask)?;
            // Its next turn is about to begin.
            if turns.queue.holds(task_id) {
                return Err(AgentError::TaskBusy);
            }
            // Claims the task like a turn: no other turn can begin while it is being deleted.
            event_log.begin_turn(TurnId::new()).map_err(|_| AgentError::TaskBusy)?
        };
        let outputs = self.services.outputs.spilled_calls().await?;
        let deletion = TaskDeletion { with_knowledge, outputs };
        let (brain, event_logs, registry) =
            (self.brain.clone(), self.event_logs.clone(), self.registry.clone());
        let task_id = task_id.clone();
        // Runs in a task of its own, even if the caller is gone: nobody may open the event log before the task
        // is deleted.
        let deleting = self.tracker.spawn(async move {
            let task = recorder.event_log().task();
            brain.write(move |rows| rows.delete_task(task, &deletion)).await?;
            recorder.clear_published();
            // From here on the task id can be used anew.
            let _turns = registry.lock();
            event_logs.remove(&task_id);
            drop(recorder);
            drop(tasks_lock);
            Ok::<_, AgentError>(())
        });
        deleting.await.unwrap_or(Err(AgentError::Stopping))?;
        self.erase().await;
        Ok(())
    }

    /// The pending HITL requests of all tasks.
    pub async fn pending_requests(&self) -> Result<Vec<PendingRequest>, AgentError> {
        self.read(Brain::pending).await
    }

    /// What waits for a person, without its content: the oldest requests, as many as a report may have.
    pub async fn waiting_questions(&self) -> Result<WaitingQuestions, AgentError> {
        let ttl_ms = i64::try_from(self.services.hitl_ttl.as_millis()).unwrap_or(i64::MAX);
        let questions = self.read(move |brain| brain.waiting(ttl_ms, MAX_QUESTIONS)).await?;
        let mut room = MAX_REPORT_BYTES;
        let fits = |question: &WaitingQuestion| {
            let bytes = serde_json::to_string(question).map_or(usize::MAX, |text| text.len() + 1);
            room.checked_sub(bytes).is_some_and(|rest| {
                room = rest;
                true
            })
        };
        Ok(WaitingQuestions { questions: questions.into_iter().take_while(fits).collect() })
    }

    /// The tag of the set of requests that wait, for who has the key with this hash.
    pub fn waiting_tag(&self, hash: KeyHash) -> Result<String, AgentError> {
        let (count, latest) = self.brain.pending_set()?;
        Ok(waiting_tag(hash, count, &latest.map(|latest| latest.to_string()).unwrap_or_default()))
    }

    /// The user's grants.
    pub async fn grants(&self) -> Result<Vec<Grant>, AgentError> {
        self.read(Brain::grants).await
    }

    /// Revokes a grant. Returns whether it existed.
    pub async fn revoke(&self, id: GrantId) -> Result<bool, AgentError> {
        Ok(self.brain.write(move |rows| rows.delete_grant(id)).await?)
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Brain) -> Result<T, store::StoreError> + Send + 'static,
    ) -> Result<T, AgentError> {
        Ok(self.brain.run_blocking(read).await.ok_or(AgentError::Stopping)??)
    }
}
