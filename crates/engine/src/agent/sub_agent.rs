//! Sub-agents: a call of `run_agent` has a conversation of its own, with its own prompt, tools, call limit and
//! budget, and runs within the turn that called it.
//!
//! A turn runs one sub-agent at a time, through the same state machine as itself: while a sub-agent is
//! **active**, committed steps belong to its conversation and its events are sent as `agent_event`. So a
//! sub-agent is as durable as its turn: killed at any point, it continues after its last step.

use std::sync::Arc;

use api::event::{AgentEvent, Event, StopReason};
use api::memory::Source;
use api::tool_names::LOAD_SKILL;
use api::{CallId, MessageId};
use catalog::AgentSpec;
use llm::ToolOutcome;
use store::steps::{Opened, Step, TurnBase, TurnOptions};
use tools::{Delegation, ExposedTools};

use super::active_turn::{ActiveTurn, Interrupt};
use super::model_step::StepOutcome;
use super::stream::Blocks;
use super::stream_reconciler::StreamReconciler;
use super::thread::{NextAction, OpenCall, Thread};
use super::tool_calls::tool_result_event;
use super::turn_request::sent_at_note;
use super::{provenance, skills_note};

/// The sub-agent that is running.
pub(super) struct ActiveSubAgent {
    /// The call that runs it.
    call_id: CallId,
    /// Its definition in the catalog.
    agent: Arc<AgentSpec>,
    /// The tools that it may call.
    tool_set: ExposedTools,
}

/// How a run of a sub-agent ended.
enum SubAgentOutcome {
    /// It ended with this answer.
    Ended(String, StopReason),
    /// It waits for the user.
    AwaitingHuman,
}

impl ActiveTurn {
    /// The active conversation: the running sub-agent's, or else the turn's own.
    pub(super) fn active_thread(&self) -> &Thread {
        let sub = self.active_sub_agent.as_ref().and_then(|active| self.thread.sub_agent(active.call_id));
        sub.unwrap_or(&self.thread)
    }

    /// The system prompt of the active agent.
    pub(super) fn system_prompt(&self) -> &str {
        self.active_sub_agent.as_ref().map_or(&self.context.snapshot.soul, |active| &active.agent.prompt)
    }

    /// The tools that the active agent may call.
    pub(super) fn tool_set(&self) -> &ExposedTools {
        self.active_sub_agent.as_ref().map_or(&self.tool_set, |active| &active.tool_set)
    }

    /// The model configured for the running sub-agent, if any.
    pub(super) fn sub_agent_model(&self) -> Option<&str> {
        self.active_sub_agent.as_ref()?.agent.model.as_deref()
    }

    /// The tokens that the running sub-agent may still spend, if it has a budget.
    pub(super) fn sub_agent_tokens_left(&self) -> Option<u64> {
        let budget = self.active_sub_agent.as_ref()?.agent.max_tokens?;
        let usage = self.active_thread().turn().usage();
        Some(budget.saturating_sub(usage.input_tokens + usage.output_tokens))
    }

    /// Resets the reconciler when a step of a sub-agent is followed by one of the turn itself.
    pub(super) fn reset_sub_agent_stream(&mut self) {
        let was_sub_agent = std::mem::replace(&mut self.sent_by_sub_agent, self.active_sub_agent.is_some());
        if was_sub_agent && self.active_sub_agent.is_none() {
            self.reconciler = StreamReconciler::default();
        }
    }

    /// The block numbering of the active stream.
    pub(super) fn active_blocks(&mut self) -> &mut Blocks {
        if self.active_sub_agent.is_some() {
            &mut self.context.sub_agent_blocks
        } else {
            &mut self.context.blocks
        }
    }

    /// Wraps a step so that it belongs to the active conversation.
    pub(super) fn wrap_active_step(&self, step: Step) -> Step {
        let owner = self.active_sub_agent.as_ref().map(|active| active.call_id);
        wrap_step(owner, step)
    }

    /// Wraps an event so that it belongs to the active conversation.
    pub(super) fn wrap_active_event(&self, event: Event) -> Event {
        match &self.active_sub_agent {
            Some(active) => wrap_event(active.call_id, &active.agent.name, event),
            None => event,
        }
    }

    /// Runs the sub-agent of a call, from its beginning or from where it was interrupted.
    pub(super) async fn run_sub_agent(
        &mut self,
        open: OpenCall,
        delegation: Delegation,
    ) -> Result<(), Interrupt> {
        let call_id = open.call.call_id;
        let Delegation { agent, task } = delegation;
        let tool_set = self
            .context
            .snapshot
            .toolbox
            .exposed_tools_for(&agent, self.context.services.gateway.context_window());
        let opened = self.thread.sub_agent(call_id).is_some();
        // The turn's call limit covers everything within it and leaves the agent itself one more answer.
        let max_turns = agent.max_turns.min(self.thread.model_calls_left().saturating_sub(1));
        let options = TurnOptions { max_turns, direct: true, ..self.thread.turn().options() };
        self.active_sub_agent = Some(ActiveSubAgent { call_id, agent, tool_set });
        if !opened {
            let message_id = MessageId::new();
            let mut notes = vec![sent_at_note(self.context.services.clock.now())];
            if self.tool_set().contains(LOAD_SKILL) {
                notes.extend(skills_note::sub_agent_note(&self.context.brain).await);
            }
            let media = Vec::new();
            let opening = Opened {
                message_id,
                notes,
                notes_source: Source::Agent.into(),
                message: task,
                media,
                options,
                base: TurnBase::End,
            };
            self.commit(Step::Opened(opening), Vec::new()).await?;
        }
        let started = self.context.services.clock.monotonic();
        let ended = Box::pin(self.run_sub_agent_steps()).await;
        let (output, error) = match ended {
            Ok(SubAgentOutcome::AwaitingHuman) => {
                self.active_sub_agent = None;
                return Ok(());
            }
            Ok(SubAgentOutcome::Ended(text, reason)) => (with_stop_note(text, reason), None),
            // The calling agent may know another way.
            Err(Interrupt::Failed(failure)) => {
                (String::new(), Some(format!("the agent failed: {}", failure.message)))
            }
            Err(interrupt) => return Err(interrupt),
        };
        if let Some(stop) = self.context.sub_agent_blocks.stop() {
            self.send(stop).await?;
        }
        self.reconciler = StreamReconciler::default();
        self.sent_by_sub_agent = false;
        self.active_sub_agent = None;
        let elapsed = self.context.services.clock.monotonic().saturating_sub(started);
        let duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let outcome = ToolOutcome { output, error, duration_ms };
        let events = vec![tool_result_event(&open.call, &outcome)];
        let source = provenance::source_of_result(&open.call.name, None);
        Ok(self.commit(Step::Resulted { call_id, outcome, memory: Vec::new(), source }, events).await?)
    }

    async fn run_sub_agent_steps(&mut self) -> Result<SubAgentOutcome, Interrupt> {
        loop {
            let reason = match self.active_thread().next_action() {
                NextAction::CallModel => match self.check_stopping()?.call_model().await? {
                    StepOutcome::Answered => continue,
                    StepOutcome::BudgetExhausted => StopReason::Budget,
                },
                NextAction::RunTools(calls) => {
                    self.check_stopping()?.run_tools(calls).await?;
                    continue;
                }
                NextAction::AwaitHuman(_) => return Ok(SubAgentOutcome::AwaitingHuman),
                NextAction::Complete(reason) => reason,
            };
            let answer = self.active_thread().turn().last_answer();
            return Ok(SubAgentOutcome::Ended(
                answer.map(|(_, answer)| answer.text()).unwrap_or_default(),
                reason,
            ));
        }
    }

    /// The events that end the blocks and calls of sub-agents that clients have seen begin.
    pub(super) fn sub_agent_closing_events(&mut self) -> Vec<Event> {
        let mut stop = self.context.sub_agent_blocks.stop();
        let mut events = Vec::new();
        for (call, sub) in self.thread.active_sub_agents() {
            let agent = agent_name(&call.input);
            let open = sub.sent_open_calls();
            let results =
                open.map(|open| super::turn_end::unknown_outcome_event(open.call_id, open.name.clone()));
            let inner = stop.take().into_iter().chain(results);
            events.extend(inner.map(|event| wrap_event(call.call_id, agent, event)));
        }
        events
    }
}

/// Attributes a step to the sub-agent that the call `owner` runs, or to the turn itself.
pub(super) fn wrap_step(owner: Option<CallId>, step: Step) -> Step {
    match owner {
        Some(call_id) => Step::Delegated { call_id, did: Box::new(step) },
        None => step,
    }
}

/// Attributes an event to the sub-agent that the call runs, unless it concerns the turn as a whole.
pub(super) fn wrap_event(call_id: CallId, agent: &str, event: Event) -> Event {
    match &event {
        Event::HitlRequest(_)
        | Event::HitlResolved(_)
        | Event::WorkingMemoryUpdate(_)
        | Event::Usage(_)
        | Event::Error(_)
        | Event::Heartbeat(_)
        | Event::AgentEvent(_) => event,
        // An event can always be serialized as JSON.
        _ => AgentEvent::new(call_id, agent, &event).map_or(event, Event::AgentEvent),
    }
}

/// The agent that a call of `run_agent` names.
pub(super) fn agent_name(input: &serde_json::Value) -> &str {
    input.get("agent").and_then(serde_json::Value::as_str).unwrap_or_default()
}

/// Appends a note for the calling agent if the sub-agent was stopped early.
fn with_stop_note(text: String, reason: StopReason) -> String {
    let cause = match reason {
        StopReason::EndTurn => return text,
        StopReason::MaxTurns => "it called its model as often as it may",
        StopReason::Budget => "its token budget was used up",
        StopReason::Loop => "it repeated itself",
    };
    format!("{text}\n\n[The agent was stopped before it was done: {cause}.]").trim_start().to_owned()
}

#[cfg(test)]
#[path = "../../tests/unit/agent/sub_agent.rs"]
mod tests;
