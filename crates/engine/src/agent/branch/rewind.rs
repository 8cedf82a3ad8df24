//! Going back to a message of a branch: where an edit or a retry continues, and what it removes.

use api::MessageId;
use store::Rewind;
use store::steps::{MemoryWrite, TurnBase};

use super::{Branch, MessageOrigin};

/// Why a turn cannot continue from a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BranchPointError {
    /// There is no such message, or it is no longer on the branch.
    #[error("there is no such message in this task, or it is no longer on the current branch")]
    Unknown,
    /// The message did not begin a turn.
    #[error("only a message that began a turn can be edited")]
    NotEditable,
}

impl Branch {
    /// Returns whether everything that a turn from `base` needs is in memory.
    pub(in crate::agent) fn can_continue_from(&self, base: TurnBase) -> bool {
        match base {
            TurnBase::Edit { message_id } | TurnBase::Retry { message_id } if self.evicted.count > 0 => {
                let at = self.origins.iter().position(|origin| origin.message_id() == Some(message_id));
                // A retried answer needs its question as well.
                let has_question = !base.is_retry() || self.retried_message(message_id).is_ok();
                has_question && at.is_some_and(|at| at >= self.evicted.floor)
            }
            TurnBase::End | TurnBase::Edit { .. } | TurnBase::Retry { .. } => true,
        }
    }

    /// Rewinds to the point from which a turn continues. An unknown message changes nothing.
    pub(crate) fn rewind_to(&mut self, base: TurnBase) {
        let Ok(kept) = self.kept_count(base) else { return };
        self.messages.truncate(kept);
        self.origins.truncate(kept);
        self.memory_writes.retain(|(at, _)| *at <= kept);
        self.unsent_memory_writes.retain(|(at, _)| *at <= kept);
        self.tool_texts.retain(|at| *at < kept);
        if kept < self.measured.map_or(0, |(at, _)| at) {
            self.measured = None;
        }
        self.rewrites.retain(|rewrite| rewrite.made_at <= kept);
        self.rebuild_view();
        if let TurnBase::Edit { message_id } = base
            && let Some(at) = self.listed.iter().position(|listed| *listed == message_id)
        {
            self.listed.truncate(at);
        }
    }

    /// Returns what a turn that continues from `base` removes from the task.
    pub(crate) fn rewind_effects(&self, base: TurnBase) -> Result<Rewind, BranchPointError> {
        let keep = self.kept_count(base)?;
        let (events_from, messages) = match (base, self.origins.get(keep)) {
            (TurnBase::Edit { message_id }, Some(MessageOrigin::Opening { events_from, .. })) => {
                let before = self.listed.iter().position(|listed| *listed == message_id);
                let removed = before.map_or(0, |before| self.listed.len() - before);
                (Some(*events_from), u64::try_from(removed).unwrap_or(0))
            }
            (TurnBase::Edit { .. }, _) => return Err(BranchPointError::NotEditable),
            (TurnBase::End | TurnBase::Retry { .. }, _) => (None, 0),
        };
        let (kept, undone): (Vec<_>, Vec<_>) = self.memory_writes.iter().partition(|(at, _)| *at <= keep);
        let mut memory: Vec<(String, Option<serde_json::Value>)> = Vec::new();
        for (_, MemoryWrite { key, .. }) in undone {
            if !memory.iter().any(|(seen, _)| seen == key) {
                let before = kept.iter().rev().find(|(_, write)| write.key == *key);
                memory.push((key.clone(), before.map(|(_, write)| write.value.clone())));
            }
        }
        Ok(Rewind { events_from, messages, memory })
    }

    /// Returns the user's message that a retry from `message_id` answers.
    pub(crate) fn retried_message(&self, message_id: MessageId) -> Result<MessageId, BranchPointError> {
        let kept = self.kept_count(TurnBase::Retry { message_id })?;
        let before = self.origins.iter().take(kept).rev();
        before
            .filter(|origin| origin.is_user())
            .find_map(|origin| origin.message_id())
            .ok_or(BranchPointError::Unknown)
    }

    /// Returns how many messages are kept.
    fn kept_count(&self, base: TurnBase) -> Result<usize, BranchPointError> {
        let find = |message_id| {
            let at = self.origins.iter().position(|origin| origin.message_id() == Some(message_id));
            at.ok_or(BranchPointError::Unknown)
        };
        match base {
            TurnBase::End => Ok(self.messages.len()),
            TurnBase::Edit { message_id } => find(message_id),
            TurnBase::Retry { message_id } => {
                let at = find(message_id)?;
                let is_user = self.origins.get(at).is_some_and(|origin| origin.is_user());
                Ok(at + usize::from(is_user))
            }
        }
    }
}
