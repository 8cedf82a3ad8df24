//! One model step: selects a model, reserves its budget, sends its answer to clients as it arrives, and
//! recovers if there is none.

use std::sync::Arc;
use std::time::Duration;

use api::MessageId;
use api::event::{Event, Failure, FailureCode, Lifecycle};
use futures::StreamExt as _;
use http_service::backoff::jitter;
use llm::{
    self, Answer, FinishReason, Message, ModelError, ModelErrorKind, RepairedHistory, Request, Route,
    StreamEvent, TokenUsage, estimate,
};
use store::WriteError;
use store::steps::Step;

use super::active_turn::{ActiveTurn, Interrupt};
use super::attachments::{AttachmentError, Attachments, LoadedAttachments};
use super::auxiliary_call::{billed_answer, billed_failure};
use super::compaction_plan;
use super::retry_policy::{Remedy, StepAttempts, WindowDecision};
use super::stream_reconciler::Emit;
use super::turn_end;

/// An answer of fewer tokens than this is not worth its prompt.
pub(super) const MIN_ANSWER_TOKENS: u64 = 256;

/// How a model step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// The model answered.
    Answered,
    /// The model was not called because that would exceed a budget.
    BudgetExhausted,
}

impl ActiveTurn {
    /// Calls models until one answers or no remedy is left.
    pub(super) async fn call_model(&mut self) -> Result<StepOutcome, Interrupt> {
        let services = self.context.services.clone();
        let routes = services
            .gateway
            .routes()
            .map_err(|error| Interrupt::Failed(turn_end::provider_failure(&error)))?;
        // A fallback model is used for the rest of the turn; a sub-agent has its own model.
        let preferred = self.sub_agent_model().or(self.fallback_model.as_deref());
        let chain = services.gateway.chain(preferred, services.clock.monotonic());
        let chain = chain.map_err(|error| Interrupt::Failed(turn_end::provider_failure(&error)))?;
        self.reset_sub_agent_stream();
        let primary = routes.chain_for(self.sub_agent_model());
        let primary = primary.first().map(|route| route.name.clone()).unwrap_or_default();
        let Some(mut attempts) =
            StepAttempts::new(chain, primary, routes.retry, services.reactive_compaction)
        else {
            let error = ModelError::new(ModelErrorKind::NotConfigured, "no model is configured");
            return Err(Interrupt::Failed(turn_end::provider_failure(&error)));
        };
        loop {
            let route = Arc::clone(attempts.route());
            let prompt = self.prompt_tokens();
            if prompt > compaction_plan::threshold_tokens(&route) {
                match attempts.fit_window(prompt) {
                    WindowDecision::Compact if self.compact_near_limit(&route, &mut attempts).await? => {
                        continue;
                    }
                    WindowDecision::Compact | WindowDecision::SendAsIs => {}
                    WindowDecision::SkipModel => continue,
                    WindowDecision::GiveUp => {
                        return Err(Interrupt::Failed(turn_end::provider_failure(
                            &attempts.into_error(None),
                        )));
                    }
                }
            }
            let prompt = self.prompt_tokens();
            // Prompt and answer share the window.
            let max_tokens =
                route.max_output.min(route.context_window.saturating_sub(prompt)).max(MIN_ANSWER_TOKENS);
            let Some(allowance) = self.reserve(prompt, max_tokens, MIN_ANSWER_TOKENS)? else {
                self.void_sent(attempts.attempts()).await?;
                return Ok(StepOutcome::BudgetExhausted);
            };
            let output_limit = allowance.max_tokens.or((max_tokens < route.max_output).then_some(max_tokens));
            let attempt = attempts.begin_attempt();
            let error = match self
                .attempt(&route, attempt, (prompt, output_limit), allowance.is_reduced)
                .await?
            {
                Ok(answer) => {
                    services.gateway.record_outcome(&route, Ok(&answer.usage), services.clock.monotonic());
                    if self.active_sub_agent.is_none()
                        && routes.chain.first().is_none_or(|primary| primary.name != route.name)
                    {
                        self.fallback_model = Some(route.name.clone());
                    }
                    return self.commit_answer(&route, answer, allowance.is_reduced).await;
                }
                Err(error) => error,
            };
            let now = services.clock.monotonic();
            services.gateway.record_outcome(&route, Err(&error), now);
            self.commit_usage(&route, error.usage).await?;
            let remedy = attempts.remedy_for(&error, now, jitter());
            if remedy == Remedy::Fallback && !error.is_request_error() {
                services.gateway.open_circuit(&route, now);
            }
            tracing::warn!(
                turn_id = %self.context.turn_id(), attempt, model = route.name, kind = ?error.kind,
                ?remedy, "A model call failed."
            );
            if !self.apply_remedy(remedy, &route, &mut attempts).await? {
                return Err(Interrupt::Failed(turn_end::provider_failure(&attempts.into_error(Some(error)))));
            }
        }
    }

    /// Applies a remedy. Returns whether it helps.
    async fn apply_remedy(
        &mut self,
        remedy: Remedy,
        route: &Arc<Route>,
        attempts: &mut StepAttempts,
    ) -> Result<bool, Interrupt> {
        match remedy {
            Remedy::Wait(delay) => {
                self.pause(delay).await?;
                Ok(true)
            }
            Remedy::Fallback => Ok(true),
            Remedy::Compact => self.compact_after_refusal(route, attempts).await,
            Remedy::DropReasoning => {
                self.commit(Step::ReasoningDropped, Vec::new()).await?;
                Ok(true)
            }
            Remedy::GiveUp => Ok(false),
        }
    }

    async fn pause(&mut self, delay: Duration) -> Result<(), Interrupt> {
        let clock = self.context.services.clock.clone();
        self.run_until_stop(async move { clock.sleep(delay).await }).await
    }

    /// The number of tokens of the next prompt.
    pub(super) fn prompt_tokens(&self) -> u64 {
        let branch = self.active_thread().branch();
        match branch.measured_tokens() {
            Some((counted, since)) => counted + estimate::messages(since),
            None => self.prefix_tokens() + estimate::messages(branch.messages()),
        }
    }

    /// The number of tokens before the conversation: system prompt and tools.
    pub(super) fn prefix_tokens(&self) -> u64 {
        estimate::text(self.system_prompt()) + self.tool_set().tokens()
    }

    /// Calls the model once and sends its answer to clients while it arrives.
    async fn attempt(
        &mut self,
        route: &Route,
        number: u32,
        (prompt, max_output): (u64, Option<u64>),
        is_reduced: bool,
    ) -> Result<Result<Answer, ModelError>, Interrupt> {
        self.reconciler.begin_attempt();
        let attachments =
            self.load_attachments(Attachments::in_messages(self.active_thread().messages())).await?;
        let repaired = self.repaired_messages(self.active_thread().messages());
        let messages =
            repaired.as_ref().map_or(self.active_thread().messages(), |repaired| &repaired.messages);
        let mut events = route.model.stream(&Request {
            system: self.system_prompt(),
            messages: &self.tool_set().messages_to_wire(&attachments.insert_into(messages)),
            tools: self.tool_set().declarations(),
            thinking: self.active_thread().turn().options().super_thinking,
            max_output,
            allow_tool_calls: true,
            cache_key: self.context.recorder.event_log().task_id().as_str(),
        });
        // The request that is being sent holds the data itself.
        drop(attachments);
        while let Some(event) = self.run_while_handling_commands(events.next()).await? {
            match event {
                Ok(StreamEvent::Done(answer)) => {
                    let answer = self.tool_set().answer_from_wire(billed_answer(answer, prompt));
                    if answer.is_empty() && !self.accepts_empty(&answer, is_reduced) {
                        return Ok(Err(empty_answer(&answer)));
                    }
                    let last = self.reconciler.finish();
                    self.emit(last, number).await?;
                    return Ok(Ok(answer));
                }
                Ok(event) => {
                    let next = self.reconciler.reconcile(event);
                    self.emit(next, number).await?;
                }
                Err(error) => return Ok(Err(billed_failure(error, prompt))),
            }
        }
        Ok(Err(ModelError::ended_early()))
    }

    /// Returns whether an empty answer is a valid end of the turn: after an earlier answer it means that
    /// nothing is left to do, and one that a budget cut short had no room for more.
    fn accepts_empty(&self, answer: &Answer, is_reduced: bool) -> bool {
        self.active_thread().turn().has_answered() || (is_reduced && answer.stop == FinishReason::Length)
    }

    /// Loads the media of a request that is about to be sent.
    pub(super) async fn load_attachments(
        &mut self,
        attachments: Attachments,
    ) -> Result<LoadedAttachments, Interrupt> {
        loop {
            let (brain, memory) = (self.context.brain.clone(), self.context.services.memory_budget.clone());
            match self.run_until_stop(attachments.clone().load(brain, memory)).await? {
                Ok(loaded) => return Ok(loaded),
                Err(AttachmentError::Stopping) => return Err(Interrupt::EngineStopping),
                // Other requests hold their memory no longer than a provider takes to answer, so waiting is
                // worthwhile.
                Err(AttachmentError::NoMemory(error)) => {
                    tracing::warn!(turn_id = %self.context.turn_id(), %error, "A turn is waiting for memory.");
                }
                Err(error @ AttachmentError::Read(_)) => {
                    tracing::error!(
                        turn_id = %self.context.turn_id(), %error,
                        "The attachments of a conversation could not be loaded; the turn fails."
                    );
                    let (code, retryable) = (FailureCode::InternalError, true);
                    return Err(Interrupt::Failed(Failure { code, message: error.to_string(), retryable }));
                }
            }
        }
    }

    /// Voids what clients have received of the step, because it will not be completed.
    async fn void_sent(&mut self, attempt: u32) -> Result<(), WriteError> {
        let void = self.reconciler.discard();
        self.emit(void, attempt).await
    }

    /// The conversation repaired so that every vendor accepts it; `None` if it is acceptable as it is.
    pub(super) fn repaired_messages(&self, messages: &[Message]) -> Option<RepairedHistory> {
        let repaired = llm::repair(messages)?;
        for note in &repaired.notes {
            tracing::warn!(turn_id = %self.context.turn_id(), note, "The conversation was repaired.");
        }
        Some(repaired)
    }

    async fn emit(&mut self, tell: Vec<Emit>, attempt: u32) -> Result<(), WriteError> {
        for tell in tell {
            let blocks = self.active_blocks();
            let event = match tell {
                Emit::Event(StreamEvent::BlockStart(kind)) => Some(blocks.start(kind)),
                Emit::Event(StreamEvent::Delta(text)) => blocks.delta(text),
                Emit::Event(StreamEvent::BlockStop) => blocks.stop(),
                Emit::Event(StreamEvent::Done(_)) => None,
                Emit::Void => {
                    if let Some(stop) = blocks.stop() {
                        self.send(stop).await?;
                    }
                    let turn = self.thread.turn();
                    let (message_id, void_after) = (turn.message_id(), turn.last_step_ts());
                    let attempt = self.engine_starts + attempt;
                    Some(Event::ThreadLifecycle(Lifecycle::Retrying { message_id, void_after, attempt }))
                }
            };
            if let Some(event) = event {
                self.send(event).await?;
            }
        }
        Ok(())
    }

    async fn commit_answer(
        &mut self,
        route: &Route,
        answer: Answer,
        capped: bool,
    ) -> Result<StepOutcome, Interrupt> {
        let model = route.model.name().to_owned();
        let cost_usd = route.prices.map(|prices| prices.cost(&answer.usage));
        let usage = self.thread.turn().usage_after_call(&model, answer.usage, cost_usd);
        let declined = answer.refusal();
        let step = Step::Answered { message_id: MessageId::new(), model, answer, cost_usd, capped };
        self.commit(step, vec![Event::Usage(usage)]).await?;
        if let Some(error) = declined {
            return Err(Interrupt::Failed(turn_end::provider_failure(&error)));
        }
        Ok(StepOutcome::Answered)
    }

    /// Records the usage of a call, which is billed even without an answer.
    pub(super) async fn commit_usage(&mut self, route: &Route, tokens: TokenUsage) -> Result<(), WriteError> {
        if tokens == TokenUsage::default() {
            return Ok(());
        }
        let cost_usd = route.prices.map(|prices| prices.cost(&tokens));
        // Clients receive the usage with the answer or at the end of the turn.
        self.commit(Step::Spent { model: route.model.name().to_owned(), tokens, cost_usd }, Vec::new()).await
    }
}

/// The failure of a model that answered with nothing, which is billed like any answer. A retry may well
/// succeed.
fn empty_answer(answer: &Answer) -> ModelError {
    let message = match answer.stop {
        FinishReason::Length => "the model reached its output limit before it produced any text",
        _ => "the model's answer was empty: it had neither text nor a tool call",
    };
    ModelError { usage: answer.usage, ..ModelError::new(ModelErrorKind::Empty, message) }
}
