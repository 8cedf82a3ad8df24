//! Compacts a turn's conversation that is too long: plans, requests a summary, and records what is sent
//! instead.

use std::sync::Arc;
use std::time::Duration;

use api::event::{Compaction, CompactionReason, Event};
use api::usage::UsagePurpose;
use llm::{Message, Route, estimate};
use store::steps::{Compacted, Replacement, Step};

use super::attachments::Attachments;
use super::auxiliary_call::call_auxiliary;
use super::budget::reserve_in_turn;
use super::compaction_plan::{self, CompactionPlan, SUMMARY_PROMPT};
use super::compaction_view::RewriteKind;
use super::conversation::Conversation;
use super::interrupt::Interrupt;
use super::journal::Journal;
use super::model_request;
use super::retry_policy::{CompactionStage, StepAttempts};
use super::turn_context::TurnDeps;

/// The most tokens of a summary, including what models that always reason spend before it.
const MAX_SUMMARY_TOKENS: u64 = 8_000;
/// How long to wait for a summary.
const SUMMARY_TIMEOUT: Duration = Duration::from_mins(3);

/// Compacts a conversation that is close to the limit of the model's context window, if that is worthwhile.
/// Returns whether it did.
pub(super) async fn compact_near_limit(
    deps: &TurnDeps,
    conversation: &mut Conversation<'_>,
    route: &Arc<Route>,
    attempts: &mut StepAttempts,
) -> Result<bool, Interrupt> {
    match attempts.next_compaction(false) {
        Some(stage) => compact(deps, conversation, route, stage, CompactionReason::Threshold).await,
        None => Ok(false),
    }
}

/// Compacts a conversation that the provider refused as too long, through as many stages as necessary.
/// Returns whether it could.
pub(super) async fn compact_after_refusal(
    deps: &TurnDeps,
    conversation: &mut Conversation<'_>,
    route: &Arc<Route>,
    attempts: &mut StepAttempts,
) -> Result<bool, Interrupt> {
    while let Some(stage) = attempts.next_compaction(true) {
        if compact(deps, conversation, route, stage, CompactionReason::Reactive).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Compacts the conversation if that is worthwhile. Returns whether it did.
async fn compact(
    deps: &TurnDeps,
    conversation: &mut Conversation<'_>,
    route: &Arc<Route>,
    stage: CompactionStage,
    reason: CompactionReason,
) -> Result<bool, Interrupt> {
    let before = conversation.prompt_tokens();
    let prefix = conversation.prefix_tokens();
    let branch = conversation.journal.active_thread().branch();
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
                summarise(deps, conversation, route, plan, max_tokens.saturating_sub(prefix)).await?;
            (step, collapsed, max_tokens)
        }
    };
    let after = prefix + tokens_if_compacted(conversation.journal, &compacted);
    if after > max_tokens {
        return Ok(false);
    }
    let event = Event::CompactionEvent(Compaction {
        reason,
        messages_collapsed: collapsed,
        tokens_before: before,
        tokens_after: after,
    });
    let turn_id = conversation.journal.turn_id();
    tracing::info!(%turn_id, before, after, ?reason, "A conversation was compacted.");
    conversation.journal.commit(Step::Compacted(compacted), vec![event]).await?;
    Ok(true)
}

/// The step that carries out `plan`, and the number of messages it removes. An excerpt replaces the model's
/// summary if that would leave more than `max_tokens` tokens.
async fn summarise(
    deps: &TurnDeps,
    conversation: &mut Conversation<'_>,
    route: &Arc<Route>,
    plan: CompactionPlan,
    max_tokens: u64,
) -> Result<(Compacted, u64), Interrupt> {
    let branch = conversation.journal.active_thread().branch();
    let (collapsed, summarised) = (plan.collapsed_count(branch), plan.summarised_messages(branch).to_vec());
    if let (0, Some(replacement)) = (collapsed, branch.replacement().cloned()) {
        return Ok((plan.to_step(replacement), 0));
    }
    let excerpts = plan.to_step(Replacement::Summary { text: compaction_plan::excerpt_summary(&summarised) });
    if summarised.is_empty() {
        return Ok((excerpts, collapsed));
    }
    let summary = request_summary(deps, conversation, route, &summarised).await?;
    let summary = summary.map(|text| plan.to_step(Replacement::Summary { text }));
    Ok((
        summary
            .filter(|step| tokens_if_compacted(conversation.journal, step) <= max_tokens)
            .unwrap_or(excerpts),
        collapsed,
    ))
}

fn tokens_if_compacted(journal: &Journal, compacted: &Compacted) -> u64 {
    let branch = journal.active_thread().branch();
    estimate::messages(&branch.preview_rewrite(RewriteKind::Compacted(compacted.clone())))
}

/// Returns the model's summary of `messages`, if it gives one.
async fn request_summary(
    deps: &TurnDeps,
    conversation: &mut Conversation<'_>,
    route: &Arc<Route>,
    messages: &[Message],
) -> Result<Option<String>, Interrupt> {
    // Prompt and summary share the window, and the estimate may be off.
    let margin = route.context_window / 10;
    let available = route
        .context_window
        .saturating_sub(conversation.prefix_tokens() + max_summary_tokens(route) + margin);
    let mut input = compaction_plan::summary_input(messages, available);
    input.push(Message::user(SUMMARY_PROMPT));
    let prompt = conversation.prefix_tokens() + estimate::messages(&input);
    let max_tokens = max_summary_tokens(route);
    let size = (prompt, max_tokens, max_tokens);
    let Some(_allowance) = reserve_in_turn(deps, conversation, route, size)? else { return Ok(None) };
    let attachments = Attachments::for_model(&input, &*route.model);
    let attachments = model_request::load_attachments(deps, conversation, attachments).await?;
    // Tools and thinking are sent as usual; otherwise the provider would not find the conversation in its
    // cache.
    let events = model_request::stream(conversation, route, &input, attachments, Some(max_tokens), None);
    let (call, purpose) = ((events, prompt), UsagePurpose::Compaction);
    let answer = call_auxiliary(&deps.services, conversation, route, call, SUMMARY_TIMEOUT, purpose).await?;
    Ok(answer.map(|answer| answer.text()).filter(|text| !text.trim().is_empty()))
}

/// The most tokens of a summary by `route`, including what models that always reason spend before it.
fn max_summary_tokens(route: &Route) -> u64 {
    MAX_SUMMARY_TOKENS.min(route.context_window / 10)
}
