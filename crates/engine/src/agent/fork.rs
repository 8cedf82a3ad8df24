//! Forks: where the copy of a conversation ends, and making one.
//!
//! A conversation is a fold of its journal. Up to a message it is therefore a prefix of the journal: all up to the
//! step at which the message became its last one, and what belongs to the message (what was recalled for it, the
//! results of its calls, the end of its turn). Only messages that the user sent while the model was answering stand in
//! the journal before the answer that they follow; where they do not belong to the copy they are left out.

use std::collections::HashSet;

use api::conversations::{Conversation, ForkTask};
use api::{MessageId, TaskId, TurnId};
use store::steps::{MemoryWrite, Step};
use store::{Brain, Forked, NewFork, StoredStep, TaskRow};

use super::branch::Branch;
use super::conversations::parse_title;
use super::journal_fold::{FoldError, JournalFold, MissingOpening};
use super::messages::MessageList;
use super::thread_loader::LoadError;
use super::{Agent, AgentError};

/// The end of a copy.
#[derive(Debug, PartialEq)]
struct ForkPoint {
    /// The last message.
    after: MessageId,
    /// The last step.
    last_step: i64,
    /// The steps before it that are left out.
    left_out: Vec<i64>,
    /// The number of listed messages.
    message_count: u64,
    /// The working memory.
    memory: Vec<MemoryWrite>,
}

impl Agent {
    /// Makes a new task with the conversation of `origin` up to a message, or returns the one that the same request
    /// has made before.
    pub async fn fork(&self, origin: &TaskId, request: ForkTask) -> Result<Conversation, AgentError> {
        let ForkTask { task_id, after, title } = request;
        let title = title.map(|title| parse_title(&title)).transpose()?;
        let row = self.brain.task(origin)?.ok_or(AgentError::UnknownTask)?.row;
        if let Some(existing) = self.existing_fork(origin, &task_id, after.as_deref()).await? {
            return Ok(existing);
        }
        let unknown = || AgentError::UnknownMessage("`after`: there is no such message in this task".into());
        let after = after.map(|id| id.parse::<MessageId>().map_err(|_| unknown())).transpose()?;
        let tasks_lock = self.transfers.lock_tasks().await?;
        let recorder = {
            let _turns = self.registry.lock();
            let event_log = self.event_logs.open(&task_id)?;
            // Claims the new task like a turn, so that no turn begins it before the fork is committed.
            event_log.begin_turn(TurnId::new()).map_err(|_| AgentError::TaskBusy)?
        };
        let point = self.brain.run_blocking(move |brain| fork_point(brain, row, after)).await;
        let point = point.ok_or(AgentError::Stopping)??.ok_or_else(unknown)?;
        let ForkPoint { after, last_step, left_out, message_count, memory } = point;
        let fork = NewFork {
            origin: (row, origin.clone()),
            task_id: task_id.clone(),
            after,
            last_step,
            left_out,
            message_count,
            memory,
            title,
            // An id that says nothing, and that no other conversation has.
            family: TurnId::new().to_string(),
        };
        let (brain, event_logs, registry) =
            (self.brain.clone(), self.event_logs.clone(), self.registry.clone());
        let at = self.services.clock.now();
        // Runs in a task of its own, so that it completes even if the caller is gone.
        let forking = self.tracker.spawn(async move {
            let (task, new_id) = (recorder.event_log().task(), fork.task_id.clone());
            let forked = brain.write(move |rows| rows.fork_task(task, &fork, at)).await;
            // The event log that turns use from here on is that of a task that exists.
            let _turns = registry.lock();
            event_logs.remove(&new_id);
            drop(recorder);
            drop(tasks_lock);
            forked
        });
        match forking.await.map_err(|_| AgentError::Stopping)?? {
            Forked::Yes => self.conversation(&task_id).await,
            Forked::OriginGone => Err(AgentError::UnknownTask),
            // The same request may have made it meanwhile.
            Forked::TaskExists => {
                let after = after.to_string();
                let existing = self.existing_fork(origin, &task_id, Some(&after)).await?;
                existing.ok_or(AgentError::UnknownTask)
            }
        }
    }

    /// The task `task_id` if it is this fork.
    async fn existing_fork(
        &self,
        origin: &TaskId,
        task_id: &TaskId,
        after: Option<&str>,
    ) -> Result<Option<Conversation>, AgentError> {
        let existing = match self.conversation(task_id).await {
            Ok(existing) => existing,
            Err(AgentError::UnknownTask) => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_same = existing.forked_from.as_ref().is_some_and(|from| {
            from.task_id == *origin && after.is_none_or(|after| from.message_id.to_string() == after)
        });
        if is_same { Ok(Some(existing)) } else { Err(AgentError::TaskExists) }
    }
}

/// Finds the end of a copy that ends with the message `after`, or with the newest one; `None` if there is no such
/// message. Blocks.
fn fork_point(
    brain: &Brain,
    task: TaskRow,
    after: Option<MessageId>,
) -> Result<Option<ForkPoint>, LoadError> {
    let list = MessageList::load(brain, task)?;
    let mut ids = list.ids();
    let Some(after) = (match after {
        Some(after) => ids.find(|id| *id == after),
        None => ids.last(),
    }) else {
        return Ok(None);
    };
    let before: HashSet<MessageId> = list.ids().take_while(|id| *id != after).chain([after]).collect();
    let mut search = PointSearch::new(after, &before);
    let mut failed = None;
    brain.for_each_step(task, 0, |row, _, stored| match search.apply(row, stored) {
        Ok(goes_on) => goes_on,
        Err(error) => {
            failed = Some(error);
            false
        }
    })?;
    match failed {
        Some(FoldError::MissingOpening(error)) => return Err(error.into()),
        Some(FoldError::BaseNotInMemory(turn_id)) => return Err(MissingOpening(turn_id).into()),
        None => {}
    }
    let Some((last_step, left_out)) = search.into_found() else { return Ok(None) };
    let message_count = u64::try_from(before.len()).unwrap_or(u64::MAX);
    let memory = memory_at(brain, task, last_step, &left_out)?;
    Ok(Some(ForkPoint { after, last_step, left_out, message_count, memory }))
}

/// The working memory of the copy: all its keys, with null for those that were removed. Blocks.
fn memory_at(
    brain: &Brain,
    task: TaskRow,
    last_step: i64,
    left_out: &[i64],
) -> Result<Vec<MemoryWrite>, LoadError> {
    // What a compaction covers is held only if a turn of the copy goes back behind it.
    for branch in [Branch::default(), Branch::retaining_all()] {
        let mut fold = JournalFold::new(branch);
        let mut failed = None;
        brain.for_each_step(task, 0, |row, _, stored| {
            if row <= last_step && !left_out.contains(&row) {
                failed = fold.apply(stored).err();
            }
            row < last_step && failed.is_none()
        })?;
        match failed {
            None => return Ok(fold.into_branch().current_memory()),
            Some(FoldError::BaseNotInMemory(_)) => {}
            Some(FoldError::MissingOpening(error)) => return Err(error.into()),
        }
    }
    Ok(Vec::new())
}

/// Finds the last step of a copy while a journal is read. Pure.
struct PointSearch<'a> {
    after: MessageId,
    /// The messages of the copy.
    copied: &'a HashSet<MessageId>,
    fold: JournalFold,
    left_out: Vec<i64>,
    /// The turn that was sent the last message, and its newest step, while the model has not got the message.
    waiting: Option<(TurnId, i64)>,
    found: Option<Found>,
}

/// What belongs to the copy as far as the journal was read.
struct Found {
    /// The turn of the last message, if more steps may belong to it.
    turn_id: Option<TurnId>,
    last_step: i64,
    /// Whether the last message opened the turn. Of what follows only what was recalled belongs to it.
    is_opening: bool,
}

impl<'a> PointSearch<'a> {
    fn new(after: MessageId, copied: &'a HashSet<MessageId>) -> Self {
        let fold = JournalFold::new(Branch::order_only());
        Self { after, copied, fold, left_out: Vec::new(), waiting: None, found: None }
    }

    /// Applies the next step. Returns whether later ones may belong to the copy.
    fn apply(&mut self, row: i64, stored: StoredStep) -> Result<bool, FoldError> {
        if let Step::Steered { message_id, .. } = &stored.step
            && !self.copied.contains(message_id)
        {
            self.left_out.push(row);
            return Ok(true);
        }
        let turn_id = stored.turn_id;
        let expected =
            self.found.as_ref().map(|found| found.turn_id).or(self.waiting.map(|(turn, _)| Some(turn)));
        if expected.is_some_and(|expected| expected != Some(turn_id)) {
            return Ok(false);
        }
        let is_opening = self.found.as_ref().is_some_and(|found| found.is_opening);
        if is_opening && !matches!(&stored.step, Step::Recalled { .. }) {
            return Ok(false);
        }
        let is_last = |message_id: &MessageId| *message_id == self.after;
        let opens = matches!(&stored.step, Step::Opened(opened) if is_last(&opened.message_id));
        let answers = matches!(&stored.step, Step::Answered { message_id, .. } if is_last(message_id));
        if self.waiting.is_some()
            || matches!(&stored.step, Step::Steered { message_id, .. } if is_last(message_id))
        {
            self.waiting = Some((turn_id, row));
        }
        self.fold.apply(stored)?;
        if self.fold.last_listed() != Some(self.after) {
            return Ok(self.found.is_none());
        }
        // The results of an answer's calls, and the end of its turn, belong to it. To a message of the user belongs
        // what was recalled for it; the rest is the work on its answer.
        let belongs = |found: &Found| found.turn_id.is_some() && !found.is_opening;
        let goes_on = answers || opens || self.found.as_ref().is_some_and(belongs);
        self.found = Some(Found { turn_id: goes_on.then_some(turn_id), last_step: row, is_opening: opens });
        Ok(goes_on)
    }

    /// The last step and the steps before it that are left out. A turn that was given up, or is running, ends with
    /// the messages that wait for its model.
    fn into_found(self) -> Option<(i64, Vec<i64>)> {
        let last_step = self.found.map(|found| found.last_step).or(self.waiting.map(|(_, row)| row))?;
        Some((last_step, self.left_out.into_iter().filter(|row| *row < last_step).collect()))
    }
}

#[cfg(test)]
#[path = "../../tests/unit/agent/fork.rs"]
mod tests;
