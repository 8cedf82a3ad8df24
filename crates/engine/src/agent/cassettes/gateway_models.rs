//! The model of a run: one of the gateway, without fallbacks, so that its answers are its own.

use std::sync::Arc;

use http_service::backoff::jitter;
use llm::{Answer, FinishReason, ModelError, Request, RetryPolicy, Route, repair};

use super::super::AgentError;
use super::super::auxiliary_call::cost_usd;
use super::super::model_step::{MIN_ANSWER_TOKENS, empty_answer};
use super::super::outside_call::OutsideCaller;
use super::super::retry_policy::{Remedy, StepAttempts};
use super::player::{ModelAnswer, Models, NoAnswer, Prompt};

/// A model of the gateway. Its calls are counted.
pub(super) struct GatewayModel {
    pub(super) caller: OutsideCaller,
    pub(super) route: Arc<Route>,
    pub(super) retry: RetryPolicy,
}

impl From<AgentError> for NoAnswer {
    fn from(error: AgentError) -> Self {
        Self::Ended(error)
    }
}

impl Models for GatewayModel {
    async fn answer(
        &self,
        prompt: &Prompt,
        tokens_left: u64,
        is_first: bool,
    ) -> Result<ModelAnswer, NoAnswer> {
        let route = &self.route;
        let chain = vec![Arc::clone(route)];
        let Some(mut attempts) = StepAttempts::new(chain, route.name.clone(), self.retry, false) else {
            return Err(NoAnswer::Failed("no model is configured".to_owned()));
        };
        loop {
            attempts.begin_attempt();
            let error = match self.attempt(prompt, tokens_left).await? {
                Ok((answer, is_cut)) if is_first && answer.is_empty() && !is_cut => empty_answer(&answer),
                Ok((answer, is_cut)) => {
                    let cost_usd = cost_usd(route, &answer.usage);
                    let answer = prompt.tools.answer_from_wire(answer);
                    return Ok(ModelAnswer {
                        model: route.model.name().to_owned(),
                        answer,
                        cost_usd,
                        is_cut,
                    });
                }
                Err(error) => error,
            };
            let now = self.caller.services().clock.monotonic();
            match attempts.remedy_for(&error, now, jitter()) {
                Remedy::Wait(delay) if self.caller.has_time_for(delay) => self.caller.pause(delay).await?,
                _ => return Err(NoAnswer::Failed(error.message)),
            }
        }
    }
}

impl GatewayModel {
    /// Calls the model once. Returns its answer, and whether the budgets have cut it short.
    async fn attempt(
        &self,
        prompt: &Prompt,
        tokens_left: u64,
    ) -> Result<Result<(Answer, bool), ModelError>, NoAnswer> {
        self.caller.check_wanted()?;
        let (route, tokens) = (&self.route, prompt.tokens());
        if tokens > route.context_window {
            return Err(NoAnswer::Failed(format!(
                "the conversation has about {tokens} tokens, and the context window of the model has {}",
                route.context_window
            )));
        }
        let room = route.context_window.saturating_sub(tokens).max(MIN_ANSWER_TOKENS);
        let most = route.max_output.min(room);
        let max_tokens = most.min(tokens_left.saturating_sub(tokens));
        if max_tokens < MIN_ANSWER_TOKENS {
            return Err(NoAnswer::Budget);
        }
        let Some(allowance) = self.caller.reserve(route, (tokens, max_tokens, MIN_ANSWER_TOKENS))? else {
            return Err(NoAnswer::Budget);
        };
        let repaired = repair(&prompt.messages);
        let messages = repaired.as_ref().map_or(&prompt.messages[..], |repaired| &repaired.messages);
        let events = route.stream(&Request {
            system: &prompt.system,
            messages: &prompt.tools.messages_to_wire(messages),
            tools: prompt.tools.declarations(),
            thinking: prompt.options.thinking || prompt.options.effort.is_some(),
            effort: prompt.options.effort,
            max_output: allowance.max_tokens.or((max_tokens < route.max_output).then_some(max_tokens)),
            allow_tool_calls: !prompt.is_correction,
            output: prompt.options.response_format.as_ref(),
            cache_key: &prompt.cache_key,
        });
        let is_reduced = allowance.is_reduced || max_tokens < most;
        let collected = self.caller.collect(route, events, tokens).await?;
        Ok(collected.map(|answer| {
            let is_cut = is_reduced && answer.stop == FinishReason::Length;
            (answer, is_cut)
        }))
    }
}
