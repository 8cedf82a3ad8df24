//! Model calls outside turns that a request waits for: within the budgets and caps, within a deadline, and counted.

use std::sync::Arc;
use std::time::Duration;

use api::usage::UsagePurpose;
use llm::{Answer, EventStream, ModelError, Route, TokenUsage};
use store::Brain;
use tokio_util::sync::CancellationToken;

use super::auxiliary_call::{call_usage, collect_answer};
use super::budget::{Allowance, reserve_outside_turn};
use super::{Agent, AgentError, Services};

/// Calls models for one request.
pub(super) struct OutsideCaller {
    brain: Brain,
    services: Arc<Services>,
    purpose: UsagePurpose,
    /// The deadline on the monotonic clock.
    deadline: Duration,
    /// Cancelled when nobody waits for an answer any more.
    stopping: CancellationToken,
}

impl Agent {
    /// A caller for a request that may take `timeout`, and ends early when `stopping` is cancelled.
    pub(super) fn outside_caller(
        &self,
        purpose: UsagePurpose,
        timeout: Duration,
        stopping: CancellationToken,
    ) -> OutsideCaller {
        OutsideCaller {
            brain: self.brain.clone(),
            services: Arc::clone(&self.services),
            purpose,
            deadline: self.services.clock.monotonic().saturating_add(timeout),
            stopping,
        }
    }
}

impl OutsideCaller {
    /// What the calls are made with.
    pub(super) fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// Reserves the budget for a call of `route`; `None` if too little is left.
    pub(super) fn reserve(
        &self,
        route: &Route,
        size: (u64, u64, u64),
    ) -> Result<Option<Allowance>, AgentError> {
        Ok(reserve_outside_turn(&self.services, &self.brain, (route, None), size)?)
    }

    /// Collects the answer of `route` to a prompt of that many tokens. Its cost is recorded when this returns, even if
    /// it was cancelled.
    pub(super) async fn collect(
        &self,
        route: &Route,
        events: EventStream,
        prompt: u64,
    ) -> Result<Result<Answer, ModelError>, AgentError> {
        let services = &self.services;
        let left = self.deadline.saturating_sub(services.clock.monotonic());
        let outcome = tokio::select! {
            biased;
            outcome = collect_answer(events, prompt, &*services.clock, left) => outcome,
            () = self.stopping.cancelled() => {
                let usage = TokenUsage { input: prompt, estimated: true, ..TokenUsage::default() };
                self.record_usage(route, usage, true).await?;
                return Err(AgentError::Stopping);
            }
        };
        services.gateway.record_outcome(
            route,
            outcome.as_ref().map(|answer| &answer.usage),
            services.clock.monotonic(),
        );
        let usage = outcome.as_ref().map_or_else(|error| error.usage, |answer| answer.usage);
        self.record_usage(route, usage, outcome.is_err()).await?;
        Ok(outcome)
    }

    /// Returns an error if nobody waits for an answer any more.
    pub(super) fn check_wanted(&self) -> Result<(), AgentError> {
        if self.stopping.is_cancelled() { Err(AgentError::Stopping) } else { Ok(()) }
    }

    /// Whether the deadline is later than after `pause`.
    pub(super) fn has_time_for(&self, pause: Duration) -> bool {
        self.services.clock.monotonic().saturating_add(pause) < self.deadline
    }

    /// Waits before another attempt.
    pub(super) async fn pause(&self, pause: Duration) -> Result<(), AgentError> {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => Err(AgentError::Stopping),
            () = self.services.clock.sleep(pause) => Ok(()),
        }
    }

    /// Records the usage of a call, so that budgets count it.
    async fn record_usage(
        &self,
        route: &Route,
        tokens: TokenUsage,
        is_failure: bool,
    ) -> Result<(), AgentError> {
        let usage = call_usage(route, tokens, self.purpose, is_failure);
        let at = self.services.clock.now();
        Ok(self.brain.write(move |rows| rows.insert_call_usage(at, &usage)).await?)
    }
}
