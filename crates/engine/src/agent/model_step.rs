//! One model step: selects a model, reserves its budget, sends its answer to clients as it arrives, and
//! recovers if there is none.

use std::sync::Arc;
use std::time::Duration;

use api::MessageId;
use api::event::{Event, Failure, FailureCode};
use api::usage::UsagePurpose;
use futures::StreamExt as _;
use http_service::backoff::jitter;
use llm::{Answer, FinishReason, ModelError, ModelErrorKind, Route, Routes, StreamEvent};
use store::event_log::Commit;
use store::steps::Step;

use super::attachments::{Attachments, has_files};
use super::auxiliary_call::{billed_answer, billed_failure, call_usage, commit_usage, cost_usd};
use super::budget::{Allowance, reserve_in_turn, unreadable};
use super::compaction_driver::{compact_after_refusal, compact_near_limit};
use super::compaction_view::RewriteKind;
use super::conversation::Conversation;
use super::interrupt::{Interrupt, StepOutcome};
use super::retry_policy::{Remedy, StepAttempts, WindowDecision};
use super::turn_context::TurnDeps;
use super::{caps, compaction_plan, model_request, structured_output, turn_end};

/// An answer of fewer tokens than this is not worth its prompt.
pub(super) const MIN_ANSWER_TOKENS: u64 = 256;

/// Calls the models of a turn.
pub(super) struct ModelCaller {
    deps: TurnDeps,
    /// The model that answered last, if it is not the preferred one. It is called first for the rest of the
    /// turn.
    fallback_model: Option<String>,
}

/// The size of one model call.
struct CallSize {
    /// The number of tokens of the prompt.
    prompt: u64,
    /// The most tokens of the answer; `None` if only the model itself limits it.
    max_output: Option<u64>,
    /// Held until the actual cost is recorded.
    allowance: Allowance,
}

impl ModelCaller {
    pub(super) fn new(deps: TurnDeps) -> Self {
        Self { deps, fallback_model: None }
    }

    /// Calls models until one answers or no remedy is left.
    pub(super) async fn call(
        &mut self,
        conversation: &mut Conversation<'_>,
    ) -> Result<StepOutcome, Interrupt> {
        let routes = self.deps.services.gateway.routes().map_err(|error| failed(&error))?;
        let mut attempts = self.attempts(&routes, conversation).map_err(|error| failed(&error))?;
        conversation.journal.begin_step();
        loop {
            let route = Arc::clone(attempts.route());
            let prompt = conversation.prompt_tokens();
            if prompt > compaction_plan::threshold_tokens(&route) {
                let deps = &self.deps;
                match attempts.fit_window(prompt) {
                    WindowDecision::Compact
                        if compact_near_limit(deps, conversation, &route, &mut attempts).await? =>
                    {
                        continue;
                    }
                    WindowDecision::Compact | WindowDecision::SendAsIs => {}
                    WindowDecision::SkipModel => continue,
                    WindowDecision::GiveUp => return Err(failed(&attempts.into_error(None))),
                }
            }
            let Some(size) = self.reserve(conversation, &route)? else {
                conversation.journal.void_answer(attempts.attempts()).await?;
                return self.end_at_budget(conversation, &route).await;
            };
            attempts.begin_attempt();
            match self.attempt(conversation, &route, &attempts, &size).await? {
                Ok(answer) => {
                    self.record_success(&routes, &route, &answer, conversation);
                    let (capped, drop) = (size.allowance.is_reduced, attempts.is_media_dropped());
                    return commit_answer(conversation, &route, answer, capped, drop).await;
                }
                Err(error) => {
                    if !self.recover(conversation, &route, &mut attempts, &error).await? {
                        return Err(failed(&attempts.into_error(Some(error))));
                    }
                }
            }
        }
    }

    /// The attempts of a step of the conversation.
    fn attempts(&self, routes: &Routes, conversation: &Conversation<'_>) -> Result<StepAttempts, ModelError> {
        let services = &self.deps.services;
        let agent_model = conversation.agent.model();
        let turn_model = conversation.journal.thread().turn().model();
        // A fallback model is used for the rest of the turn; a sub-agent has its own model.
        let preferred = agent_model.or(self.fallback_model.as_deref()).or(turn_model);
        let chain = services.gateway.chain(preferred, services.clock.monotonic())?;
        let primary = routes.chain_for(agent_model.or(turn_model));
        let primary = primary.first().map(|route| route.name.clone()).unwrap_or_default();
        StepAttempts::new(chain, primary, routes.retry, services.reactive_compaction)
            .ok_or_else(|| ModelError::new(ModelErrorKind::NotConfigured, "no model is configured"))
    }

    /// Reserves the budget for the next call of `route`; `None` if too little is left.
    fn reserve(&self, conversation: &Conversation<'_>, route: &Route) -> Result<Option<CallSize>, Interrupt> {
        let prompt = conversation.prompt_tokens();
        // Prompt and answer share the window.
        let max_tokens =
            route.max_output.min(route.context_window.saturating_sub(prompt)).max(MIN_ANSWER_TOKENS);
        let size = (prompt, max_tokens, MIN_ANSWER_TOKENS);
        let allowance = reserve_in_turn(&self.deps, conversation, route, size)?;
        Ok(allowance.map(|allowance| {
            let max_output = allowance.max_tokens.or((max_tokens < route.max_output).then_some(max_tokens));
            CallSize { prompt, max_output, allowance }
        }))
    }

    /// Ends a step for which too little is left. If that is because of a cap, clients are told; and a turn without
    /// any answer fails, so that its message is not taken for answered.
    async fn end_at_budget(
        &self,
        conversation: &Conversation<'_>,
        route: &Route,
    ) -> Result<StepOutcome, Interrupt> {
        let (services, brain) = (&self.deps.services, &self.deps.brain);
        let (journal, prompt) = (&conversation.journal, conversation.prompt_tokens());
        let call = (prompt.saturating_add(MIN_ANSWER_TOKENS), prompt, route.prices);
        let (notices, reached) = caps::exhausted_notices(services, brain, journal.task(), call)
            .map_err(|error| unreadable(&error))?;
        journal.tell(notices).await?;
        match reached {
            Some(cap) if !journal.thread().turn().has_answered() => Err(Interrupt::Failed(Failure {
                code: FailureCode::UsageCapReached,
                message: cap.to_string(),
                retryable: cap.retry_after_s.is_some(),
            })),
            _ => Ok(StepOutcome::BudgetExhausted),
        }
    }

    /// Calls the model once and sends its answer to clients while it arrives.
    async fn attempt(
        &self,
        conversation: &mut Conversation<'_>,
        route: &Route,
        attempts: &StepAttempts,
        size: &CallSize,
    ) -> Result<Result<Answer, ModelError>, Interrupt> {
        let number = attempts.attempts();
        conversation.journal.begin_attempt();
        let branch = conversation.journal.active_thread().branch();
        let without_files =
            attempts.is_media_dropped().then(|| branch.preview_rewrite(RewriteKind::MediaDropped));
        let messages = without_files.as_deref().unwrap_or(branch.messages());
        let attachments = Attachments::for_model(messages, &*route.model);
        let attachments = model_request::load_attachments(&self.deps, conversation, attachments).await?;
        let messages = conversation.journal.active_thread().messages();
        let messages = without_files.as_deref().unwrap_or(messages);
        let format = structured_output::format_of(conversation.journal.active_thread().turn());
        let mut events =
            model_request::stream(conversation, route, messages, attachments, size.max_output, format);
        let Conversation { agent, journal, inbox } = conversation;
        while let Some(event) = inbox.run_while_handling_commands(journal, events.next()).await? {
            match event {
                Ok(StreamEvent::Done(answer)) => {
                    let answer = agent.tools().answer_from_wire(billed_answer(answer, size.prompt));
                    // After an earlier answer, an empty one means that nothing is left to do, and one that a
                    // budget cut short had no room for more.
                    let accepts_empty = journal.active_thread().turn().has_answered()
                        || (size.allowance.is_reduced && answer.stop == FinishReason::Length);
                    if answer.is_empty() && !accepts_empty {
                        return Ok(Err(empty_answer(&answer)));
                    }
                    journal.finish_answer(number).await?;
                    return Ok(Ok(answer));
                }
                Ok(event) => journal.send_part(event, number).await?,
                Err(error) => return Ok(Err(billed_failure(error, size.prompt))),
            }
        }
        Ok(Err(ModelError::ended_early()))
    }

    /// Records that a model has answered.
    fn record_success(
        &mut self,
        routes: &Routes,
        route: &Arc<Route>,
        answer: &Answer,
        conversation: &Conversation<'_>,
    ) {
        let services = &self.deps.services;
        services.gateway.record_outcome(route, Ok(&answer.usage), services.clock.monotonic());
        let chain = routes.chain_for(conversation.journal.thread().turn().model());
        let is_primary = chain.first().is_some_and(|primary| primary.name == route.name);
        if !conversation.agent.is_sub_agent() && !is_primary {
            self.fallback_model = Some(route.name.clone());
        }
    }

    /// Records a failed attempt and applies the remedy for it. Returns whether there is one.
    async fn recover(
        &self,
        conversation: &mut Conversation<'_>,
        route: &Arc<Route>,
        attempts: &mut StepAttempts,
        error: &ModelError,
    ) -> Result<bool, Interrupt> {
        let services = &self.deps.services;
        let attempt = attempts.attempts();
        let now = services.clock.monotonic();
        services.gateway.record_outcome(route, Err(error), now);
        commit_usage(conversation.journal, route, error.usage, (UsagePurpose::Turn, true)).await?;
        attempts.set_has_files(has_files(conversation.journal.active_thread().messages(), &*route.model));
        let remedy = attempts.remedy_for(error, now, jitter());
        if remedy == Remedy::Fallback && !error.is_request_error() {
            services.gateway.open_circuit(route, now);
        }
        tracing::warn!(
            turn_id = %conversation.journal.turn_id(), attempt, model = route.name, kind = ?error.kind,
            ?remedy, "A model call failed."
        );
        match remedy {
            Remedy::Wait(delay) => {
                self.pause(conversation, delay).await?;
                Ok(true)
            }
            // That files are dropped is recorded with the answer: they may not be to blame.
            Remedy::Fallback | Remedy::DropMedia => Ok(true),
            Remedy::Compact => compact_after_refusal(&self.deps, conversation, route, attempts).await,
            Remedy::DropReasoning => {
                conversation.journal.commit(Step::ReasoningDropped, Vec::new()).await?;
                Ok(true)
            }
            Remedy::GiveUp => Ok(false),
        }
    }

    async fn pause(&self, conversation: &mut Conversation<'_>, delay: Duration) -> Result<(), Interrupt> {
        let clock = self.deps.services.clock.clone();
        let Conversation { journal, inbox, .. } = conversation;
        inbox.run_until_stop(journal, async move { clock.sleep(delay).await }).await
    }
}

async fn commit_answer(
    conversation: &mut Conversation<'_>,
    route: &Route,
    answer: Answer,
    capped: bool,
    media_dropped: bool,
) -> Result<StepOutcome, Interrupt> {
    let model = route.model.name().to_owned();
    let cost_usd = cost_usd(route, &answer.usage);
    let usage = conversation.journal.thread().turn().usage_after_call(&model, answer.usage, cost_usd);
    let declined = answer.refusal();
    conversation.journal.count_call(call_usage(route, answer.usage, UsagePurpose::Turn, declined.is_some()));
    let answered = Step::Answered { message_id: MessageId::new(), model, answer, cost_usd, capped };
    let steps = media_dropped.then_some(Step::MediaDropped).into_iter().chain([answered]).collect();
    conversation.journal.commit_all(Commit::new(), steps, vec![Event::Usage(usage)]).await?;
    match declined {
        Some(error) => Err(failed(&error)),
        None => Ok(StepOutcome::Answered),
    }
}

/// The turn fails with a provider's error.
fn failed(error: &ModelError) -> Interrupt {
    Interrupt::Failed(turn_end::provider_failure(error))
}

/// The failure of a model that answered with nothing, which is billed like any answer. A retry may well
/// succeed.
pub(super) fn empty_answer(answer: &Answer) -> ModelError {
    let message = match answer.stop {
        FinishReason::Length => "the model reached its output limit before it produced any text",
        _ => "the model's answer was empty: it had neither text nor a tool call",
    };
    ModelError { usage: answer.usage, ..ModelError::new(ModelErrorKind::Empty, message) }
}
