//! One step of a model: which one is asked, within what budget, what of its answer is told, and what is done where it
//! gives none.

use std::sync::Arc;
use std::time::Duration;

use contract::MessageId;
use contract::event::{Event, Failure, FailureCode, Lifecycle};
use futures::StreamExt as _;

use super::aside::{billed_answer, billed_failure};
use super::asking::{Asking, Remedy, TooSmall};
use super::attachments::{Attachments, Loaded, NotLoaded};
use super::compaction;
use super::ending;
use super::run::{Stopped, TurnRun};
use super::telling::Tell;
use crate::brain::WriteError;
use crate::brain::steps::Step;
use crate::models::{
    self, Answer, Message, ModelError, ModelErrorKind, Part, Repaired, Request, Route, StopCause, Tokens,
    estimate,
};
use crate::sabotage::{self, Saboteur};

/// An answer of fewer tokens than this is not worth its prompt.
pub(super) const LEAST_ANSWER: u64 = 256;

/// How a model step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The model answered.
    Answered,
    /// It was not asked, for that would break a budget.
    NoBudget,
}

impl TurnRun {
    /// Asks until a model answers or there is no hope.
    pub(super) async fn ask_model(&mut self) -> Result<Asked, Stopped> {
        let means = self.life.means.clone();
        let routes =
            means.gateway.routes().map_err(|error| Stopped::Failed(ending::provider_failure(&error)))?;
        // A model that stood in does so for the rest of the turn; a sub-agent has its own.
        let wanted = self.model_of_focus().or(self.stand_in.as_deref());
        let chain = means.gateway.chain(wanted, means.clock.monotonic());
        let chain = chain.map_err(|error| Stopped::Failed(ending::provider_failure(&error)))?;
        self.forget_agents_words();
        let usual = routes.chain_of(self.model_of_focus());
        let usual = usual.first().map(|route| route.name.clone()).unwrap_or_default();
        let Some(mut asking) = Asking::new(chain, usual, routes.retry, means.reactive) else {
            let error = ModelError::new(ModelErrorKind::NotConfigured, "no model is configured");
            return Err(Stopped::Failed(ending::provider_failure(&error)));
        };
        loop {
            let route = Arc::clone(asking.route());
            let prompt = self.prompt_tokens();
            if prompt > compaction::threshold(&route) {
                match asking.too_small(prompt) {
                    TooSmall::Shorten if self.shorten_near(&route, &mut asking).await? => continue,
                    TooSmall::Shorten | TooSmall::AsItIs => {}
                    TooSmall::PassOver => continue,
                    TooSmall::GiveUp => {
                        return Err(Stopped::Failed(ending::provider_failure(&asking.gave_up(None))));
                    }
                }
            }
            let prompt = self.prompt_tokens();
            // Prompt and answer share the window.
            let most = route.max_output.min(route.context_window.saturating_sub(prompt)).max(LEAST_ANSWER);
            let Some(room) = self.room_for(prompt, most, LEAST_ANSWER)? else {
                self.void_told(asking.attempts()).await?;
                return Ok(Asked::NoBudget);
            };
            let bound = room.bound.or((most < route.max_output).then_some(most));
            let attempt = asking.begin();
            let error = match self.attempt(&route, attempt, (prompt, bound), room.is_cut).await? {
                Ok(answer) => {
                    means.gateway.note(&route, Ok(&answer.usage), means.clock.monotonic());
                    if self.focus.is_none()
                        && routes.chain.first().is_none_or(|usual| usual.name != route.name)
                    {
                        self.stand_in = Some(route.name.clone());
                    }
                    return self.answered(&route, answer, room.is_cut).await;
                }
                Err(error) => error,
            };
            let now = means.clock.monotonic();
            means.gateway.note(&route, Err(&error), now);
            self.spent(&route, error.spent).await?;
            let remedy = asking.after(&error, now, jitter());
            if remedy == Remedy::StandIn && !error.is_about_request() {
                means.gateway.gave_up(&route, now);
            }
            tracing::warn!(
                turn.id = %self.life.turn_id(), attempt, model = route.name, kind = ?error.kind,
                ?remedy, "A model call failed."
            );
            if !self.remedy(remedy, &route, &mut asking).await? {
                return Err(Stopped::Failed(ending::provider_failure(&asking.gave_up(Some(error)))));
            }
        }
    }

    /// Does what helps; whether anything does.
    async fn remedy(
        &mut self,
        remedy: Remedy,
        route: &Arc<Route>,
        asking: &mut Asking,
    ) -> Result<bool, Stopped> {
        match remedy {
            Remedy::Wait(delay) => {
                self.pause(delay).await?;
                Ok(true)
            }
            Remedy::StandIn => Ok(true),
            Remedy::Shorten => self.shorten_for_good(route, asking).await,
            Remedy::DropReasoning => {
                self.commit(Step::ReasoningDropped, Vec::new()).await?;
                Ok(true)
            }
            Remedy::GiveUp => Ok(false),
        }
    }

    async fn pause(&mut self, delay: Duration) -> Result<(), Stopped> {
        let clock = self.life.means.clock.clone();
        self.attend_until_stop(async move { clock.sleep(delay).await }).await
    }

    /// How many tokens the next prompt is.
    pub(super) fn prompt_tokens(&self) -> u64 {
        let branch = self.conversation().branch();
        match branch.measured() {
            Some((counted, since)) => counted + estimate::messages(since),
            None => self.beginning_tokens() + estimate::messages(branch.messages()),
        }
    }

    /// How many tokens stand before the conversation.
    pub(super) fn beginning_tokens(&self) -> u64 {
        estimate::text(self.system()) + self.offer().tokens()
    }

    /// Asks the model once, and tells of its answer while it comes.
    async fn attempt(
        &mut self,
        route: &Route,
        number: u32,
        (prompt, bound): (u64, Option<u64>),
        is_cut: bool,
    ) -> Result<Result<Answer, ModelError>, Stopped> {
        self.telling.begin_attempt();
        let attached = self.attached(Attachments::of(self.conversation().messages())).await?;
        let repaired = self.repaired(self.conversation().messages());
        let messages =
            repaired.as_ref().map_or(self.conversation().messages(), |repaired| &repaired.messages);
        let mut parts = route.model.ask(&Request {
            system: &sabotage::busted(self.system()),
            messages: &self.offer().sent(&attached.put_into(messages)),
            tools: self.offer().specs(),
            thinking: self.conversation().turn().options().super_thinking,
            max_output: bound,
            may_call: true,
            cache_key: self.life.recorder.channel().task_id().as_str(),
        });
        // What is still to be sent has its own hold on it.
        drop(attached);
        while let Some(part) = self.attend(parts.next()).await? {
            match part {
                Ok(Part::Done(answer)) => {
                    let answer = self.offer().received(billed_answer(answer, prompt));
                    if answer.is_empty() && !self.may_be_empty(&answer, is_cut) {
                        return Ok(Err(empty_answer(&answer)));
                    }
                    let last = self.telling.finish();
                    self.tell(last, number).await?;
                    return Ok(Ok(answer));
                }
                Ok(part) => {
                    let next = self.telling.tell(part);
                    self.tell(next, number).await?;
                }
                Err(error) => return Ok(Err(billed_failure(error, prompt))),
            }
        }
        Ok(Err(ModelError::ended_early()))
    }

    /// Whether an empty answer ends the turn well: after steps that said or did something it says that nothing is left
    /// to do, and one that was cut short by a budget had no room for more.
    fn may_be_empty(&self, answer: &Answer, is_cut: bool) -> bool {
        self.conversation().turn().has_answered() || (is_cut && answer.stop == StopCause::Length)
    }

    /// Reads what is attached to what is about to be sent.
    pub(super) async fn attached(&mut self, attachments: Attachments) -> Result<Loaded, Stopped> {
        loop {
            let (brain, memory) = (self.life.brain.clone(), self.life.means.memory.clone());
            match self.attend_until_stop(attachments.clone().load(brain, memory)).await? {
                Ok(loaded) => return Ok(loaded),
                Err(NotLoaded::Stopping) => return Err(Stopped::ForNow),
                // Others hold it no longer than a provider takes for a request, so it is worth the wait.
                Err(NotLoaded::NoMemory(error)) => {
                    tracing::warn!(turn.id = %self.life.turn_id(), %error, "A turn waits for memory.");
                }
                Err(error @ NotLoaded::Read(_)) => {
                    tracing::error!(turn.id = %self.life.turn_id(), %error, "A model cannot be sent what is attached.");
                    let (code, retryable) = (FailureCode::InternalError, true);
                    return Err(Stopped::Failed(Failure { code, message: error.to_string(), retryable }));
                }
            }
        }
    }

    /// Nothing more comes of the step: what clients have of it is void.
    async fn void_told(&mut self, attempt: u32) -> Result<(), WriteError> {
        let void = self.telling.give_up();
        self.tell(void, attempt).await
    }

    /// The conversation as every vendor takes it, where what there is would be refused.
    pub(super) fn repaired(&self, messages: &[Message]) -> Option<Repaired> {
        if sabotage::by(Saboteur::LeaveCallsOpen) {
            return None;
        }
        let repaired = models::repair(messages)?;
        for note in &repaired.notes {
            tracing::warn!(turn.id = %self.life.turn_id(), note, "The conversation had to be repaired.");
        }
        Some(repaired)
    }

    async fn tell(&mut self, tell: Vec<Tell>, attempt: u32) -> Result<(), WriteError> {
        for tell in tell {
            let blocks = self.blocks();
            let event = match tell {
                Tell::Show(Part::Start(kind)) => Some(blocks.start(kind)),
                Tell::Show(Part::Delta(text)) => blocks.delta(text),
                Tell::Show(Part::Stop) => blocks.stop(),
                Tell::Show(Part::Done(_)) => None,
                Tell::Void => {
                    if let Some(stop) = blocks.stop() {
                        self.send(stop).await?;
                    }
                    let turn = self.thread.turn();
                    let (message_id, void_after) = (turn.message_id(), turn.step_ts());
                    let attempt = self.starts + attempt;
                    Some(Event::ThreadLifecycle(Lifecycle::Retrying { message_id, void_after, attempt }))
                }
            };
            if let Some(event) = event {
                self.send(event).await?;
            }
        }
        Ok(())
    }

    async fn answered(&mut self, route: &Route, answer: Answer, capped: bool) -> Result<Asked, Stopped> {
        let model = route.model.name().to_owned();
        let cost_usd = route.prices.map(|prices| prices.cost(&answer.usage));
        let usage = self.thread.turn().usage_with(&model, answer.usage, cost_usd);
        let declined = answer.declined();
        let step = Step::Answered { message_id: MessageId::new(), model, answer, cost_usd, capped };
        self.commit(step, vec![Event::Usage(usage)]).await?;
        if let Some(error) = declined {
            return Err(Stopped::Failed(ending::provider_failure(&error)));
        }
        Ok(Asked::Answered)
    }

    /// A call that gave no answer is billed too.
    pub(super) async fn spent(&mut self, route: &Route, tokens: Tokens) -> Result<(), WriteError> {
        if tokens == Tokens::default() {
            return Ok(());
        }
        let cost_usd = route.prices.map(|prices| prices.cost(&tokens));
        // Clients are told with the answer, or at the end.
        self.commit(Step::Spent { model: route.model.name().to_owned(), tokens, cost_usd }, Vec::new()).await
    }
}

/// The failure of a model that answered with nothing, which is billed as any answer is. It may well say something when it
/// is asked again.
fn empty_answer(answer: &Answer) -> ModelError {
    let message = match answer.stop {
        StopCause::Length => "the model reached its output limit before it said anything",
        _ => "the model's answer was empty: it had neither text nor a tool call",
    };
    ModelError { spent: answer.usage, ..ModelError::new(ModelErrorKind::Empty, message) }
}

/// A random number from 0 to 1. Without randomness all engines back off alike, which is no reason to fail.
pub(super) fn jitter() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}
