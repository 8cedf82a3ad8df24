//! Compacts a turn's conversation that is too long: plans, requests a summary, and records what is sent
//! instead.

use std::sync::Arc;
use std::time::Duration;

use api::event::{Compaction, CompactionReason, Event};
use llm::{Message, Request, Route, estimate};
use store::steps::{Compacted, Replacement, Step};

use super::active_turn::{ActiveTurn, Interrupt};
use super::attachments::Attachments;
use super::compaction_plan::{self, CompactionPlan, SUMMARY_PROMPT};
use super::compaction_view::RewriteKind;
use super::retry_policy::{CompactionStage, StepAttempts};

/// The most tokens of a summary, including what models that always reason spend before it.
const MAX_SUMMARY_TOKENS: u64 = 8_000;
/// How long to wait for a summary.
const SUMMARY_TIMEOUT: Duration = Duration::from_mins(3);

impl ActiveTurn {
    /// Compacts a conversation that is close to the limit of the model's context window, if that is worthwhile.
    /// Returns whether it did.
    pub(super) async fn compact_near_limit(
        &mut self,
        route: &Arc<Route>,
        attempts: &mut StepAttempts,
    ) -> Result<bool, Interrupt> {
        match attempts.next_compaction(false) {
            Some(stage) => self.compact(route, stage, CompactionReason::Threshold).await,
            None => Ok(false),
        }
    }

    /// Compacts a conversation that the provider refused as too long, through as many stages as necessary.
    /// Returns whether it could.
    pub(super) async fn compact_after_refusal(
        &mut self,
        route: &Arc<Route>,
        attempts: &mut StepAttempts,
    ) -> Result<bool, Interrupt> {
        while let Some(stage) = attempts.next_compaction(true) {
            if self.compact(route, stage, CompactionReason::Reactive).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Compacts the conversation if that is worthwhile. Returns whether it did.
    async fn compact(
        &mut self,
        route: &Arc<Route>,
        stage: CompactionStage,
        reason: CompactionReason,
    ) -> Result<bool, Interrupt> {
        let before = self.prompt_tokens();
        let prefix = self.prefix_tokens();
        let branch = self.active_thread().branch();
        let (compacted, collapsed, max_tokens) = match stage {
            CompactionStage::Reset => {
                let (compacted, collapsed) = compaction_plan::reset(branch, route.context_window);
                (compacted, collapsed, before.saturating_sub(1))
            }
            CompactionStage::Summary { pass } => {
                let available = route.context_window.min(before).saturating_sub(prefix);
                let Some(plan) = CompactionPlan::new(branch, available, pass) else { return Ok(false) };
                if !plan.is_worthwhile(branch, prefix, before) {
                    return Ok(false);
                }
                let max_tokens = compaction_plan::max_remaining_tokens(before);
                let (step, collapsed) =
                    self.summarise(route, plan, max_tokens.saturating_sub(prefix)).await?;
                (step, collapsed, max_tokens)
            }
        };
        let after = prefix + self.tokens_if_compacted(&compacted);
        if after > max_tokens {
            return Ok(false);
        }
        let event = Event::CompactionEvent(Compaction {
            reason,
            messages_collapsed: collapsed,
            tokens_before: before,
            tokens_after: after,
        });
        tracing::info!(turn_id = %self.context.turn_id(), before, after, ?reason, "A conversation was compacted.");
        self.commit(Step::Compacted(compacted), vec![event]).await?;
        Ok(true)
    }

    /// The step that carries out `plan`, and the number of messages it removes. An excerpt replaces the model's
    /// summary if that would leave more than `max_tokens` tokens.
    async fn summarise(
        &mut self,
        route: &Arc<Route>,
        plan: CompactionPlan,
        max_tokens: u64,
    ) -> Result<(Compacted, u64), Interrupt> {
        let branch = self.active_thread().branch();
        let (collapsed, summarised) =
            (plan.collapsed_count(branch), plan.summarised_messages(branch).to_vec());
        if let (0, Some(replacement)) = (collapsed, branch.replacement().cloned()) {
            return Ok((plan.to_step(replacement), 0));
        }
        let excerpts =
            plan.to_step(Replacement::Summary { text: compaction_plan::excerpt_summary(&summarised) });
        if summarised.is_empty() {
            return Ok((excerpts, collapsed));
        }
        let summary = self.request_summary(route, &summarised).await?;
        let summary = summary.map(|text| plan.to_step(Replacement::Summary { text }));
        Ok((
            summary.filter(|step| self.tokens_if_compacted(step) <= max_tokens).unwrap_or(excerpts),
            collapsed,
        ))
    }

    fn tokens_if_compacted(&self, compacted: &Compacted) -> u64 {
        let branch = self.active_thread().branch();
        estimate::messages(&branch.preview_rewrite(RewriteKind::Compacted(compacted.clone())))
    }

    /// Returns the model's summary of `messages`, if it gives one.
    async fn request_summary(
        &mut self,
        route: &Arc<Route>,
        messages: &[Message],
    ) -> Result<Option<String>, Interrupt> {
        // Prompt and summary share the window, and the estimate may be off.
        let margin = route.context_window / 10;
        let available =
            route.context_window.saturating_sub(self.prefix_tokens() + max_summary_tokens(route) + margin);
        let mut input = compaction_plan::summary_input(messages, available);
        input.push(Message::user(SUMMARY_PROMPT));
        let prompt = self.prefix_tokens() + estimate::messages(&input);
        let max_tokens = max_summary_tokens(route);
        let Some(_allowance) = self.reserve(prompt, max_tokens, max_tokens)? else { return Ok(None) };
        let attachments = self.load_attachments(Attachments::in_messages(&input)).await?;
        let repaired = self.repaired_messages(&input);
        let messages = repaired.as_ref().map_or(&input, |repaired| &repaired.messages);
        // Tools and thinking are sent as usual; otherwise the provider would not find the conversation in its
        // cache.
        let events = route.model.stream(&Request {
            system: self.system_prompt(),
            messages: &self.tool_set().messages_to_wire(&attachments.insert_into(messages)),
            tools: self.tool_set().declarations(),
            thinking: self.active_thread().turn().options().super_thinking,
            max_output: Some(max_tokens),
            allow_tool_calls: true,
            cache_key: self.context.recorder.event_log().task_id().as_str(),
        });
        drop(attachments);
        let answer = self.call_auxiliary(route, (events, prompt), SUMMARY_TIMEOUT).await?;
        Ok(answer.map(|answer| answer.text()).filter(|text| !text.trim().is_empty()))
    }
}

/// The most tokens of a summary by `route`, including what models that always reason spend before it.
fn max_summary_tokens(route: &Route) -> u64 {
    MAX_SUMMARY_TOKENS.min(route.context_window / 10)
}
