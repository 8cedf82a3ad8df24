//! A turn whose conversation is too long shortens it: plans, asks for a summary, puts on record what is sent instead.

use std::sync::Arc;
use std::time::Duration;

use contract::event::{Compaction, CompactionReason, Event};

use super::asking::{Asking, Shortening};
use super::attachments::Attachments;
use super::compaction::{self, ASK_SUMMARY, Plan};
use super::rewrite::RewriteKind;
use super::run::{Stopped, TurnRun};
use crate::brain::steps::{Compacted, Instead, Step};
use crate::models::{Message, Request, Route, estimate};
use crate::sabotage::{self, Saboteur};

/// The most tokens of a summary, with what models that always reason spend before it.
const SUMMARY: u64 = 8_000;
/// How long a summary is waited for.
const DEADLINE: Duration = Duration::from_mins(3);

impl TurnRun {
    /// Shortens a conversation that has come near the end of the model's context window, if that is worth it; whether it
    /// was.
    pub(super) async fn shorten_near(
        &mut self,
        route: &Arc<Route>,
        asking: &mut Asking,
    ) -> Result<bool, Stopped> {
        match asking.shorten(false) {
            Some(stage) => self.shorten(route, stage, CompactionReason::Threshold).await,
            None => Ok(false),
        }
    }

    /// Shortens a conversation that the provider has refused as too long, as far as it takes; whether it could.
    pub(super) async fn shorten_for_good(
        &mut self,
        route: &Arc<Route>,
        asking: &mut Asking,
    ) -> Result<bool, Stopped> {
        while let Some(stage) = asking.shorten(true) {
            if self.shorten(route, stage, CompactionReason::Reactive).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Shortens the conversation, if that is worth it; whether it was.
    async fn shorten(
        &mut self,
        route: &Arc<Route>,
        stage: Shortening,
        reason: CompactionReason,
    ) -> Result<bool, Stopped> {
        let before = self.prompt_tokens();
        let beginning = self.beginning_tokens();
        let branch = self.conversation().branch();
        let (compacted, collapsed, most) = match stage {
            Shortening::Reset => {
                let (compacted, collapsed) = compaction::reset(branch, route.context_window);
                (compacted, collapsed, before.saturating_sub(1))
            }
            Shortening::Summary { time } => {
                let bound = route.context_window.min(before).saturating_sub(beginning);
                let Some(plan) = Plan::new(branch, bound, time) else { return Ok(false) };
                if !plan.is_worth(branch, beginning, before) {
                    return Ok(false);
                }
                let most = compaction::worth(before);
                let (step, collapsed) = self.summarised(route, plan, most.saturating_sub(beginning)).await?;
                (step, collapsed, most)
            }
        };
        let after = beginning + self.would_be(&compacted);
        if after > most && !sabotage::by(Saboteur::CompactForever) {
            return Ok(false);
        }
        let event = Event::CompactionEvent(Compaction {
            reason,
            messages_collapsed: collapsed,
            tokens_before: before,
            tokens_after: after,
        });
        tracing::info!(turn.id = %self.life.turn_id(), before, after, ?reason, "A conversation was shortened.");
        self.commit(Step::Compacted(compacted), vec![event]).await?;
        Ok(true)
    }

    /// What `plan` puts on record, and how many messages it takes out. Where a summary by the model leaves more than
    /// `most` tokens, notes take its place.
    async fn summarised(
        &mut self,
        route: &Arc<Route>,
        plan: Plan,
        most: u64,
    ) -> Result<(Compacted, u64), Stopped> {
        let branch = self.conversation().branch();
        let (collapsed, gone) = (plan.collapses(branch), plan.summarised(branch).to_vec());
        if let (0, Some(instead)) = (collapsed, branch.instead().cloned()) {
            return Ok((plan.step(instead), 0));
        }
        let notes = plan.step(Instead::Summary { text: compaction::notes(&gone) });
        if gone.is_empty() {
            return Ok((notes, collapsed));
        }
        let summary = self.summary(route, &gone).await?;
        let summary = summary.map(|text| plan.step(Instead::Summary { text }));
        Ok((summary.filter(|step| self.would_be(step) <= most).unwrap_or(notes), collapsed))
    }

    fn would_be(&self, compacted: &Compacted) -> u64 {
        let branch = self.conversation().branch();
        estimate::messages(&branch.rewritten(RewriteKind::Compacted(compacted.clone())))
    }

    /// A summary of `messages`, by the model if it gives one.
    async fn summary(&mut self, route: &Arc<Route>, messages: &[Message]) -> Result<Option<String>, Stopped> {
        // Prompt and summary share the window, and the estimate may be off.
        let margin = route.context_window / 10;
        let bound =
            route.context_window.saturating_sub(self.beginning_tokens() + most_summary(route) + margin);
        let mut asked = compaction::to_summarise(messages, bound);
        asked.push(Message::user(ASK_SUMMARY));
        let prompt = self.beginning_tokens() + estimate::messages(&asked);
        let most = most_summary(route);
        let Some(_room) = self.room_for(prompt, most, most)? else { return Ok(None) };
        let attached = self.attached(Attachments::of(&asked)).await?;
        let repaired = self.repaired(&asked);
        let messages = repaired.as_ref().map_or(&asked, |repaired| &repaired.messages);
        // Tools and thinking are told as ever, or the provider would not find the conversation in its cache.
        let parts = route.model.ask(&Request {
            system: self.system(),
            messages: &self.offer().sent(&attached.put_into(messages)),
            tools: self.offer().specs(),
            thinking: self.conversation().turn().options().super_thinking,
            max_output: Some(most),
            may_call: true,
            cache_key: self.life.recorder.channel().task_id().as_str(),
        });
        drop(attached);
        let answer = self.ask_aside(route, (parts, prompt), DEADLINE).await?;
        Ok(answer.map(|answer| answer.text()).filter(|text| !text.trim().is_empty()))
    }
}

/// The most tokens of a summary, with what models that always reason spend before it.
fn most_summary(route: &Route) -> u64 {
    SUMMARY.min(route.context_window / 10)
}
