//! Sub-agents: a call of `run_agent` has a conversation of its own, with its own prompt, tools, cap and budget, and
//! works within the turn that called it.
//!
//! The turn runs one sub-agent at a time, by the same machine that runs itself: while one is in **focus**, the
//! steps that are put on record are steps of its conversation, and what it does is told as `agent_event`. So a
//! sub-agent is as durable as its turn: killed at any point, it goes on after its last step.

use std::sync::Arc;

use contract::event::{AgentEvent, Event, StopReason};
use contract::{CallId, MessageId};

use super::calls::tool_result;
use super::model_step::Asked;
use super::order::sent_at;
use super::run::{Stopped, TurnRun};
use super::skills_told;
use super::stream::Blocks;
use super::telling::Telling;
use super::thread::{Next, OpenCall, Thread};
use crate::brain::steps::{Base, Opened, Step, TurnOptions};
use crate::catalog::AgentSpec;
use crate::models::ToolOutcome;
use crate::tools::{Delegation, LOAD_SKILL, Offer};

/// The sub-agent that is at work.
pub(super) struct Focus {
    /// The call that runs it.
    call_id: CallId,
    /// Who it is.
    agent: Arc<AgentSpec>,
    /// The tools that it may call.
    offer: Offer,
}

/// How far a sub-agent came.
enum Reached {
    /// To its end, with this answer.
    End(String, StopReason),
    /// To where a person is needed.
    Person,
}

impl TurnRun {
    /// The conversation that is worked on: the sub-agent's if one is at work, else the turn's own.
    pub(super) fn conversation(&self) -> &Thread {
        let sub = self.focus.as_ref().and_then(|focus| self.thread.sub(focus.call_id));
        sub.unwrap_or(&self.thread)
    }

    /// Who the model is to be.
    pub(super) fn system(&self) -> &str {
        self.focus.as_ref().map_or(&self.life.kit.soul, |focus| &focus.agent.prompt)
    }

    /// The tools that the model may call.
    pub(super) fn offer(&self) -> &Offer {
        self.focus.as_ref().map_or(&self.offer, |focus| &focus.offer)
    }

    /// The model that the sub-agent at work wants.
    pub(super) fn model_of_focus(&self) -> Option<&str> {
        self.focus.as_ref()?.agent.model.as_deref()
    }

    /// What the sub-agent at work may still spend, if that is bounded.
    pub(super) fn left_of_focus(&self) -> Option<u64> {
        let budget = self.focus.as_ref()?.agent.max_tokens?;
        let usage = self.conversation().turn().usage();
        Some(budget.saturating_sub(usage.input_tokens + usage.output_tokens))
    }

    /// What clients have of a sub-agent's step says nothing about the turn's own.
    pub(super) fn forget_agents_words(&mut self) {
        let agents = std::mem::replace(&mut self.agent_told, self.focus.is_some());
        if agents && self.focus.is_none() {
            self.telling = Telling::default();
        }
    }

    /// The blocks of the stream that is told.
    pub(super) fn blocks(&mut self) -> &mut Blocks {
        if self.focus.is_some() { &mut self.life.agent_blocks } else { &mut self.life.blocks }
    }

    /// A step as one of the conversation that is worked on.
    pub(super) fn as_step_of_focus(&self, step: Step) -> Step {
        let owner = self.focus.as_ref().map(|focus| focus.call_id);
        under(owner, step)
    }

    /// An event as one of the conversation that is worked on.
    pub(super) fn as_event_of_focus(&self, event: Event) -> Event {
        match &self.focus {
            Some(focus) => nested(focus.call_id, &focus.agent.name, event),
            None => event,
        }
    }

    /// Runs the sub-agent of a call, from its beginning or from where it stands.
    pub(super) async fn delegate(&mut self, open: OpenCall, delegation: Delegation) -> Result<(), Stopped> {
        let call_id = open.call.call_id;
        let Delegation { agent, task } = delegation;
        let offer = self.life.kit.toolbox.offer_for(&agent, self.life.means.gateway.window());
        let opened = self.thread.sub(call_id).is_some();
        // The turn's own cap holds for all that works within it, and leaves the agent itself a word.
        let max_turns = agent.max_turns.min(self.thread.calls_left().saturating_sub(1));
        let options = TurnOptions { max_turns, direct: true, ..self.thread.turn().options() };
        self.focus = Some(Focus { call_id, agent, offer });
        if !opened {
            let message_id = MessageId::new();
            let mut notes = vec![sent_at(self.life.means.clock.now())];
            if self.offer().has(LOAD_SKILL) {
                notes.extend(skills_told::of_all(&self.life.brain).await);
            }
            let media = Vec::new();
            let opening = Opened { message_id, notes, message: task, media, options, base: Base::End };
            self.commit(Step::Opened(opening), Vec::new()).await?;
        }
        let began = self.life.means.clock.monotonic();
        let reached = Box::pin(self.sub_steps()).await;
        let (output, error) = match reached {
            Ok(Reached::Person) => {
                self.focus = None;
                return Ok(());
            }
            Ok(Reached::End(text, reason)) => (ended(text, reason), None),
            // The agent that called it may know another way.
            Err(Stopped::Failed(failure)) => {
                (String::new(), Some(format!("the agent failed: {}", failure.message)))
            }
            Err(stopped) => return Err(stopped),
        };
        if let Some(stop) = self.life.agent_blocks.stop() {
            self.send(stop).await?;
        }
        self.telling = Telling::default();
        self.agent_told = false;
        self.focus = None;
        let elapsed = self.life.means.clock.monotonic().saturating_sub(began);
        let duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let outcome = ToolOutcome { output, error, duration_ms };
        let events = vec![tool_result(&open.call, &outcome)];
        Ok(self.commit(Step::Resulted { call_id, outcome, memory: Vec::new() }, events).await?)
    }

    async fn sub_steps(&mut self) -> Result<Reached, Stopped> {
        loop {
            let reason = match self.conversation().next() {
                Next::AskModel => match self.before_step()?.ask_model().await? {
                    Asked::Answered => continue,
                    Asked::NoBudget => StopReason::Budget,
                },
                Next::RunTools(calls) => {
                    self.before_step()?.run_tools(calls).await?;
                    continue;
                }
                Next::Wait(_) => return Ok(Reached::Person),
                Next::Complete(reason) => reason,
            };
            let answer = self.conversation().turn().last_answer();
            return Ok(Reached::End(answer.map(|(_, answer)| answer.text()).unwrap_or_default(), reason));
        }
    }

    /// What ends the blocks and calls of sub-agents that clients have seen begin.
    pub(super) fn closing_of_agents(&mut self) -> Vec<Event> {
        let mut stop = self.life.agent_blocks.stop();
        let mut events = Vec::new();
        for (call, sub) in self.thread.delegating() {
            let agent = agent_of(&call.input);
            let open = sub.calls_told_open();
            let results = open.map(|open| super::ending::without_result(open.call_id, open.name.clone()));
            let inner = stop.take().into_iter().chain(results);
            events.extend(inner.map(|event| nested(call.call_id, agent, event)));
        }
        events
    }
}

/// A step as one of the sub-agent that the call `owner` runs, or of the turn itself.
pub(super) fn under(owner: Option<CallId>, step: Step) -> Step {
    match owner {
        Some(call_id) => Step::Delegated { call_id, did: Box::new(step) },
        None => step,
    }
}

/// An event as one of the sub-agent that the call runs, unless it concerns the turn as a whole.
pub(super) fn nested(call_id: CallId, agent: &str, event: Event) -> Event {
    match &event {
        Event::HitlRequest(_)
        | Event::HitlResolved(_)
        | Event::WorkingMemoryUpdate(_)
        | Event::Usage(_)
        | Event::Error(_)
        | Event::Heartbeat(_)
        | Event::AgentEvent(_) => event,
        // An event can always be written as JSON.
        _ => AgentEvent::new(call_id, agent, &event).map_or(event, Event::AgentEvent),
    }
}

/// The agent that a call of `run_agent` names.
pub(super) fn agent_of(input: &serde_json::Value) -> &str {
    input.get("agent").and_then(serde_json::Value::as_str).unwrap_or_default()
}

/// What the agent that called a sub-agent is told of its end.
fn ended(text: String, reason: StopReason) -> String {
    let why = match reason {
        StopReason::EndTurn => return text,
        StopReason::MaxTurns => "it had asked its model as often as it may",
        StopReason::Budget => "its token budget was used up",
        StopReason::Loop => "it repeated itself",
    };
    format!("{text}\n\n[The agent was stopped before it was done: {why}.]").trim_start().to_owned()
}

#[cfg(test)]
#[path = "delegate_tests.rs"]
mod tests;
