//! Sub-agents: a call of `run_agent` has a conversation of its own, with its own prompt, tools, call limit and
//! budget, and runs within the turn that called it.
//!
//! A turn runs one sub-agent at a time, through the same state machine as itself: while a sub-agent is
//! **active**, committed steps belong to its conversation and its events are sent as `agent_event`. So a
//! sub-agent is as durable as its turn: killed at any point, it continues after its last step.

use std::time::Duration;

use api::MessageId;
use api::event::StopReason;
use api::memory::Source;
use api::tool_names::LOAD_SKILL;
use llm::{ToolOutcome, ToolUse};
use store::WriteError;
use store::steps::{Opened, Step, TurnBase, TurnOptions};
use tools::Delegation;

use super::conversation::ActiveAgent;
use super::interrupt::{Interrupt, StepsOutcome};
use super::journal::Journal;
use super::tool_calls::{ResultEffects, commit_result};
use super::turn_context::TurnDeps;
use super::turn_request::sent_at_note;
use super::{skills_note, turn_overrides};

/// A run of a sub-agent, between its beginning and its end or its next question.
pub(super) struct SubAgentRun {
    agent: ActiveAgent,
    /// The call that runs it.
    call: ToolUse,
    /// When the run began, on the monotonic clock.
    started: Duration,
}

impl SubAgentRun {
    /// Begins or continues the sub-agent of a call: its conversation becomes the active one.
    pub(super) async fn begin(
        deps: &TurnDeps,
        journal: &mut Journal,
        call: ToolUse,
        delegation: Delegation,
    ) -> Result<Self, WriteError> {
        let Delegation { agent: spec, task } = delegation;
        let opened = journal.thread().sub_agent(call.call_id).is_some();
        // The turn's call limit covers everything within it and leaves the agent itself one more answer.
        let max_turns = spec.max_turns.min(journal.thread().model_calls_left().saturating_sub(1));
        let turn = journal.thread().turn();
        let options = TurnOptions {
            max_turns,
            super_thinking: turn.options().super_thinking,
            direct: true,
            overrides: turn_overrides::for_sub_agent(turn.overrides()),
        };
        let tools_note = turn.overrides().and_then(turn_overrides::tools_note);
        journal.begin_sub_agent(call.call_id, spec.name.clone());
        let agent = ActiveAgent::sub(deps, spec);
        if !opened {
            let message_id = MessageId::new();
            let mut notes = vec![sent_at_note(deps.services.clock.now())];
            if agent.tools().contains(LOAD_SKILL) {
                notes.extend(skills_note::sub_agent_note(&deps.brain).await);
            }
            notes.extend(tools_note);
            let media = Vec::new();
            let opening = Opened {
                message_id,
                notes,
                notes_source: Source::Agent.into(),
                recall_at: None,
                message: task,
                media,
                options,
                base: TurnBase::End,
                prompt: None,
                traceparent: None,
            };
            journal.commit(Step::Opened(opening), Vec::new()).await?;
        }
        Ok(Self { agent, call, started: deps.services.clock.monotonic() })
    }

    /// The sub-agent.
    pub(super) fn agent(&self) -> &ActiveAgent {
        &self.agent
    }

    /// Ends the run after its steps ended. If the sub-agent has ended too, its answer becomes the result of
    /// its call.
    pub(super) async fn end(
        self,
        deps: &TurnDeps,
        journal: &mut Journal,
        ended: Result<StepsOutcome, Interrupt>,
    ) -> Result<(), Interrupt> {
        let (output, error) = match ended {
            Ok(StepsOutcome::AwaitingHuman) => {
                journal.suspend_sub_agent();
                return Ok(());
            }
            Ok(StepsOutcome::Complete(reason)) => {
                let answer = journal.active_thread().turn().last_answer();
                let text = answer.map(|(_, answer)| answer.text()).unwrap_or_default();
                (with_stop_note(text, reason), None)
            }
            // The calling agent may know another way.
            Err(Interrupt::Failed(failure)) => {
                (String::new(), Some(format!("the agent failed: {}", failure.message)))
            }
            Err(interrupt) => return Err(interrupt),
        };
        journal.end_sub_agent().await?;
        let elapsed = deps.services.clock.monotonic().saturating_sub(self.started);
        let duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let outcome = ToolOutcome::new(output, error, duration_ms);
        commit_result(journal, &deps.snapshot.hooks, &self.call, (outcome, None), ResultEffects::default())
            .await?;
        Ok(())
    }
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
