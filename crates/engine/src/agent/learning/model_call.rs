//! Model calls outside turns, within the budgets shared with turns and within a deadline.

use std::time::Duration;

use api::usage::UsagePurpose;
use llm::{Answer, FinishReason, Message, ModelError, Request, Route, ToolDeclaration, estimate};
use store::CallUsage;

use super::Learner;
use crate::agent::auxiliary_call::{call_usage, collect_answer};
use crate::agent::budget::reserve_outside_turn;

/// How long to wait for an answer.
const CALL_TIMEOUT: Duration = Duration::from_mins(3);
/// The most tokens of an answer, including what models that always reason spend before it.
const MAX_ANSWER_TOKENS: u64 = 4_000;

/// The input of a model call.
pub(super) struct ModelQuery<'a> {
    pub(super) system: &'a str,
    pub(super) messages: &'a [Message],
    pub(super) tools: &'a [ToolDeclaration],
    pub(super) cache_key: &'a str,
}

/// The outcome of a model call.
pub(super) enum CallOutcome {
    /// The model answered.
    Answered(Answer),
    /// The model will not answer this query, however often it is repeated.
    Declined,
    /// There is no answer for now: no model, no budget, or a provider failure.
    Unavailable,
}

impl Learner {
    /// Calls the preferred model and, if it fails, its fallbacks, once each. Returns the outcome and the usage
    /// of all calls.
    pub(super) async fn call_model(
        &self,
        query: &ModelQuery<'_>,
    ) -> Result<(CallOutcome, Vec<CallUsage>), store::StoreError> {
        let gateway = &self.services.gateway;
        let chain = gateway.chain(None, self.services.clock.monotonic()).unwrap_or_default();
        let mut usage = Vec::new();
        for route in chain {
            let outcome = self.call_route(&route, query, &mut usage).await?;
            if !matches!(outcome, CallOutcome::Unavailable) {
                return Ok((outcome, usage));
            }
        }
        Ok((CallOutcome::Unavailable, usage))
    }

    async fn call_route(
        &self,
        route: &Route,
        query: &ModelQuery<'_>,
        usage: &mut Vec<CallUsage>,
    ) -> Result<CallOutcome, store::StoreError> {
        let ModelQuery { system, messages, tools, cache_key } = *query;
        let prompt = estimate::text(system) + estimate::tools(tools) + estimate::messages(messages);
        let max_tokens = MAX_ANSWER_TOKENS.min(route.max_output);
        if prompt + max_tokens > route.context_window {
            return Ok(CallOutcome::Declined);
        }
        // Held until the call is over. Its actual cost is recorded a moment later.
        let Some(_allowance) = reserve_outside_turn(
            &self.services,
            &self.brain,
            (route, None),
            (prompt, max_tokens, max_tokens),
        )?
        else {
            tracing::info!("Learning is paused because the token budget is used up.");
            return Ok(CallOutcome::Unavailable);
        };
        let events = route.stream(&Request {
            system,
            messages,
            tools,
            thinking: false,
            effort: None,
            max_output: Some(max_tokens),
            allow_tool_calls: false,
            output: None,
            cache_key,
        });
        let answer = collect_answer(events, prompt, &*self.services.clock, CALL_TIMEOUT).await;
        let tokens = answer.as_ref().map_or_else(|error| error.usage, |answer| answer.usage);
        usage.push(call_usage(route, tokens, UsagePurpose::Learning, answer.is_err()));
        Ok(self.note_outcome(route, answer))
    }

    fn note_outcome(&self, route: &Route, answer: Result<Answer, ModelError>) -> CallOutcome {
        let (gateway, now) = (&self.services.gateway, self.services.clock.monotonic());
        gateway.record_outcome(route, answer.as_ref().map(|answer| &answer.usage), now);
        match answer {
            Ok(answer) if answer.stop == FinishReason::Refusal => CallOutcome::Declined,
            Ok(answer) => CallOutcome::Answered(answer),
            Err(error) => {
                tracing::warn!(kind = ?error.kind, model = route.name, "A model call of a learning batch failed.");
                if error.is_request_error() { CallOutcome::Declined } else { CallOutcome::Unavailable }
            }
        }
    }
}
