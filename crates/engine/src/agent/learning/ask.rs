//! Calls of a model beside turns: within the budgets that turns share, and within a deadline.

use std::time::Duration;

use super::Learner;
use crate::agent::aside::whole;
use crate::agent::budget::room_beside;
use crate::brain::Spent;
use crate::models::{Answer, Message, ModelError, Request, Route, StopCause, Tokens, ToldTool, estimate};

/// How long an answer is waited for.
const DEADLINE: Duration = Duration::from_mins(3);
/// The most tokens of an answer, with what models that always reason spend before it.
const MAX_ANSWER: u64 = 4_000;

/// What is asked.
pub(super) struct Question<'a> {
    pub(super) system: &'a str,
    pub(super) messages: &'a [Message],
    pub(super) tools: &'a [ToldTool],
    pub(super) cache_key: &'a str,
}

/// What came of a call.
pub(super) enum Outcome {
    /// The model answered.
    Answered(Answer),
    /// It will not answer this, however often it is asked.
    Never,
    /// There is no answer for now: no model, no budget, or the provider failed.
    NotNow,
}

impl Learner {
    /// Asks the model that answers, and where that fails those that stand in for it, once each; what came of it, and
    /// what it cost.
    pub(super) async fn ask(
        &self,
        question: &Question<'_>,
    ) -> Result<(Outcome, Vec<Spent>), rusqlite::Error> {
        let gateway = &self.means.gateway;
        let chain = gateway.chain(None, self.means.clock.monotonic()).unwrap_or_default();
        let mut spent = Vec::new();
        for route in chain {
            let outcome = self.ask_route(&route, question, &mut spent).await?;
            if !matches!(outcome, Outcome::NotNow) {
                return Ok((outcome, spent));
            }
        }
        Ok((Outcome::NotNow, spent))
    }

    async fn ask_route(
        &self,
        route: &Route,
        question: &Question<'_>,
        spent: &mut Vec<Spent>,
    ) -> Result<Outcome, rusqlite::Error> {
        let Question { system, messages, tools, cache_key } = *question;
        let prompt = estimate::text(system) + estimate::tools(tools) + estimate::messages(messages);
        let most = MAX_ANSWER.min(route.max_output);
        if prompt + most > route.context_window {
            return Ok(Outcome::Never);
        }
        // Held until the call is over. What it did cost is on record a moment later.
        let Some(_room) = room_beside(&self.means, &self.brain, (prompt, most, most))? else {
            tracing::info!("Nothing is learned for now: the budget is used up.");
            return Ok(Outcome::NotNow);
        };
        let parts = route.model.ask(&Request {
            system,
            messages,
            tools,
            thinking: false,
            max_output: Some(most),
            may_call: false,
            cache_key,
        });
        let answer = whole(parts, prompt, &*self.means.clock, DEADLINE).await;
        let tokens = answer.as_ref().map_or_else(|error| error.spent, |answer| answer.usage);
        if tokens != Tokens::default() {
            spent.push(Spent { model: route.model.name().to_owned(), tokens });
        }
        Ok(self.outcome(route, answer))
    }

    fn outcome(&self, route: &Route, answer: Result<Answer, ModelError>) -> Outcome {
        let (gateway, now) = (&self.means.gateway, self.means.clock.monotonic());
        gateway.note(route, answer.as_ref().map(|answer| &answer.usage), now);
        match answer {
            Ok(answer) if answer.stop == StopCause::Refusal => Outcome::Never,
            Ok(answer) => Outcome::Answered(answer),
            Err(error) => {
                tracing::warn!(kind = ?error.kind, model = route.name, "A question for learning has no answer.");
                if error.is_about_request() { Outcome::Never } else { Outcome::NotNow }
            }
        }
    }
}
