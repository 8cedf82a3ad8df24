//! The turns of a task and its queue, as clients look them up, and how a queued message is taken out.

use api::turns::{ListTurns, QueuedMessage, TaskQueue, TurnList, TurnRecord};
use api::{TaskId, TurnId};
use resources::memory_budget::MemoryUse;
use store::{QueueEnd, TaskRow, TurnPage};

use super::turn_queue::QUEUE_LIMITS;
use super::{Agent, AgentError};

/// The number of turns on a page unless the request sets it.
const DEFAULT_LIMIT: i64 = 50;

impl Agent {
    /// A turn of a task, queued or begun.
    pub async fn turn(&self, task_id: &TaskId, turn_id: &str) -> Result<TurnRecord, AgentError> {
        let task = self.known_task(task_id)?;
        let turn_id = turn_id.parse().map_err(|_| unknown_turn())?;
        self.read(move |brain| brain.turn_record(task, turn_id)).await?.ok_or_else(unknown_turn)
    }

    /// Whether an answer with this id, which is its caller's own, has continued a turn.
    pub(crate) async fn has_answer(&self, turn_id: TurnId, answer_id: String) -> Result<bool, AgentError> {
        self.read(move |brain| brain.has_answer(turn_id, &answer_id)).await
    }

    /// A page of the turns of a task, the newest first.
    pub async fn turns(&self, task_id: &TaskId, page: ListTurns) -> Result<TurnList, AgentError> {
        let task = self.known_task(task_id)?;
        let unknown = || AgentError::UnknownTurn("`before`: there is no such turn in this task");
        let before = page.before.map(|id| id.parse().map_err(|_| unknown())).transpose()?;
        let limit = page.limit.map_or(DEFAULT_LIMIT, api::serde_helpers::BoundedInt::get);
        let turns = self.read(move |brain| brain.turn_records(task, limit, before)).await?;
        Ok(TurnList { turns: turns.ok_or_else(unknown)? })
    }

    /// A page of the turns that have begun, of a task or of all, the newest first; `None` if there is no turn `before`.
    pub(crate) async fn turn_page(
        &self,
        task_id: Option<TaskId>,
        limit: i64,
        before: Option<TurnId>,
    ) -> Result<Option<TurnPage>, AgentError> {
        let task = task_id.map(|task_id| self.known_task(&task_id)).transpose()?;
        self.read(move |brain| brain.turn_page(task, limit, before)).await
    }

    /// The messages that wait for their turn on a task.
    pub async fn queue(&self, task_id: &TaskId) -> Result<TaskQueue, AgentError> {
        let task = self.known_task(task_id)?;
        let bytes = self.registry.lock().queue.task_bytes(task_id);
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let _reserved = self.services.memory_budget.reserve(MemoryUse::Lists, size).await?;
        let entries: Vec<QueuedMessage> = self.read(move |brain| brain.queued_messages(task)).await?;
        Ok(TaskQueue { entries, limits: QUEUE_LIMITS })
    }

    /// Takes a message out of the queue and erases its words.
    pub async fn cancel_queued(&self, task_id: &TaskId, turn_id: &str) -> Result<TurnId, AgentError> {
        self.known_task(task_id)?;
        let unknown = AgentError::UnknownTurn("no such message waits for its turn; it may have begun");
        let Ok(turn_id) = turn_id.parse::<TurnId>() else { return Err(unknown) };
        if !self.registry.lock().queue.begin_end(task_id, turn_id) {
            return Err(unknown);
        }
        let (brain, registry, task_id) = (self.brain.clone(), self.registry.clone(), task_id.clone());
        let at = self.services.clock.now();
        // Runs in a task of its own, so that it completes even if the caller is gone.
        let ending = self.tracker.spawn(async move {
            let end = QueueEnd::Cancelled;
            let ended = brain.write(move |tx| tx.end_queued_turn(turn_id, end, at)).await;
            let mut turns = registry.lock();
            match &ended {
                Ok(_) => turns.queue.ended(&task_id, turn_id, end),
                Err(_) => turns.queue.end_failed(&task_id, turn_id),
            }
            turns.notify_queue();
            ended
        });
        ending.await.map_err(|_| AgentError::Stopping)??;
        self.erase().await;
        Ok(turn_id)
    }

    fn known_task(&self, task_id: &TaskId) -> Result<TaskRow, AgentError> {
        Ok(self.brain.task(task_id)?.ok_or(AgentError::UnknownTask)?.row)
    }
}

/// The error for a turn that the task does not have.
pub(super) fn unknown_turn() -> AgentError {
    AgentError::UnknownTurn("there is no such turn in this task")
}
