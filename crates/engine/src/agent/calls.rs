//! The tool calls of an answer: who may run, what is on record before it does, and what came of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use contract::HitlId;
use contract::event::{Event, HitlKind, ToolCall, ToolResult, WorkingMemoryUpdate};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use service::clock::Clock;

use super::run::{Stopped, TurnRun};
use super::thread::{OUTCOME_UNKNOWN, OpenCall, OpenStage};
use crate::brain::WriteError;
use crate::brain::steps::{MemoryWrite, Step};
use crate::channel::Record;
use crate::models::{ToolOutcome, ToolUse};
use crate::sabotage::{self, Saboteur};
use crate::tools::{Delegation, Invocation, Permission, Question, Tool, ToolError, ToolOutput, ToolStep};

/// What is to be done with a call.
enum Course {
    /// Run it, for the first time or anew.
    Run(Arc<dyn Tool>),
    /// Run the sub-agent that it asks for, or let it go on.
    Delegate(Arc<dyn Tool>, Delegation),
    /// Ask a person first.
    AskLeave(Arc<dyn Tool>),
    /// Do not run it, for this reason.
    Refuse(String),
}

/// A run of a tool that came to an end or to a question.
struct Ran {
    call: ToolUse,
    result: Result<ToolStep, ToolError>,
    duration_ms: u64,
}

impl TurnRun {
    /// Sees to calls of an answer: those that were under way when the engine stopped, new ones, and those that a
    /// person has given leave to.
    pub(super) async fn run_tools(&mut self, calls: Vec<OpenCall>) -> Result<(), Stopped> {
        let (mut ready, mut delegations) = (Vec::new(), Vec::new());
        for open in calls {
            match self.decide(&open) {
                Course::Run(tool) => ready.push((open, tool)),
                Course::Delegate(tool, delegation) => delegations.push((open, tool, delegation)),
                Course::AskLeave(tool) => {
                    let question = Question { text: tool.leave_for(&open.call.input), options: None };
                    self.ask(&open.call, HitlKind::Permission, question).await?;
                }
                Course::Refuse(reason) => self.refuse(&open, reason).await?,
            }
        }
        self.intend(&ready).await?;
        let clock = &self.life.means.clock.clone();
        let mut running: FuturesUnordered<_> =
            ready.into_iter().map(|(open, tool)| run(open, tool, clock)).collect();
        while let Some(ran) = self.attend(running.next()).await? {
            self.ran(ran).await?;
        }
        for (open, tool, delegation) in delegations {
            // One after the other, and none while a person is waited for: see `Thread::next`.
            if !self.thread.asked().is_empty() {
                break;
            }
            let call = (open, tool);
            self.intend(std::slice::from_ref(&call)).await?;
            self.delegate(call.0, delegation).await?;
        }
        Ok(())
    }

    fn decide(&self, OpenCall { call, stage, .. }: &OpenCall) -> Course {
        if let Some(reason) = &call.broken {
            return Course::Refuse(reason.clone());
        }
        // An agent has the tools that it was told of, and no others.
        let offered = self.specs().iter().any(|spec| spec.name == call.name);
        let tool = self.life.means.toolbox.find(&call.name).filter(|_| offered);
        if let Some((tool, delegation)) =
            tool.as_ref().and_then(|tool| Some((tool, tool.delegates(&call.input)?)))
        {
            return match delegation {
                Ok(_) if *stage == OpenStage::New && self.thread.calls_left() < 2 => {
                    Course::Refuse("the turn may ask no more models, so no agent can be run".into())
                }
                Ok(delegation) => Course::Delegate(Arc::clone(tool), delegation),
                Err(ToolError(reason)) => Course::Refuse(reason),
            };
        }
        match (stage, tool) {
            // It may have run, also if the tool is no longer there.
            (OpenStage::Running, tool) => match tool {
                Some(tool) if tool.idempotent() || sabotage::by(Saboteur::RerunTool) => Course::Run(tool),
                _ => Course::Refuse(OUTCOME_UNKNOWN.into()),
            },
            (_, None) => Course::Refuse(format!("there is no tool called `{}`", call.name)),
            (OpenStage::Ready, Some(tool)) => Course::Run(tool),
            (OpenStage::New, Some(tool)) => match tool.permission() {
                Permission::Allow => Course::Run(tool),
                Permission::Ask if self.is_granted(&call.name) => Course::Run(tool),
                Permission::Ask => Course::AskLeave(tool),
                Permission::Deny => Course::Refuse(format!("the tool `{}` may not be used here", call.name)),
            },
        }
    }

    /// Whether a person has allowed the tool for good.
    fn is_granted(&self, tool: &str) -> bool {
        let task = self.life.recorder.channel().task();
        self.life.brain.is_granted(task, tool).unwrap_or_else(|error| {
            tracing::warn!(%error, "Grants could not be read; a person is asked.");
            false
        })
    }

    /// Puts on record that these calls are about to run, before the first of them does.
    async fn intend(&mut self, calls: &[(OpenCall, Arc<dyn Tool>)]) -> Result<(), WriteError> {
        let (mut record, mut steps, mut events) = (Record::new(), Vec::new(), Vec::new());
        for (open, tool) in calls.iter().filter(|(open, _)| open.stage != OpenStage::Running) {
            steps.push(Step::Intended { call_id: open.call.call_id });
            if !open.told {
                events.push(tool_call(&open.call));
            }
            if !tool.idempotent() {
                record = record.against_power_loss();
            }
        }
        if steps.is_empty() {
            return Ok(());
        }
        if sabotage::by(Saboteur::SkipIntent) {
            steps.clear();
        }
        self.commit_all(record, steps, events).await
    }

    /// A call that is not run, or not again.
    async fn refuse(&mut self, open: &OpenCall, reason: String) -> Result<(), WriteError> {
        let outcome = ToolOutcome { output: String::new(), error: Some(reason), duration_ms: 0 };
        let mut events: Vec<Event> = (!open.told).then(|| tool_call(&open.call)).into_iter().collect();
        events.push(tool_result(&open.call, &outcome));
        let step = Step::Resulted { call_id: open.call.call_id, outcome, memory: Vec::new() };
        self.commit(step, events).await
    }

    async fn ran(&mut self, Ran { call, result, duration_ms }: Ran) -> Result<(), WriteError> {
        let ended = |output: String, error| ToolOutcome { output, error, duration_ms };
        let (outcome, memory) = match result {
            Ok(ToolStep::Ask(question)) => return self.ask(&call, HitlKind::Question, question).await,
            Ok(ToolStep::Done(ToolOutput { text, working_memory })) => (ended(text, None), working_memory),
            Err(ToolError(error)) => (ended(String::new(), Some(error)), Vec::new()),
        };
        let memory: Vec<_> = memory.into_iter().map(|(key, value)| MemoryWrite { key, value }).collect();
        let record = memory.iter().cloned().fold(Record::new(), Record::memory);
        let updates = memory.iter().map(|MemoryWrite { key, value }| {
            Event::WorkingMemoryUpdate(WorkingMemoryUpdate { key: key.clone(), value: value.clone() })
        });
        let events = updates.chain([tool_result(&call, &outcome)]).collect();
        let step = Step::Resulted { call_id: call.call_id, outcome, memory };
        self.commit_all(record, vec![step], events).await
    }

    /// A person is needed for `call`. Who waits for one already is shown first.
    async fn ask(&mut self, call: &ToolUse, kind: HitlKind, question: Question) -> Result<(), WriteError> {
        let Question { text: question, options } = question;
        let request_id = HitlId::new();
        let (mut record, mut events) = (Record::new(), Vec::new());
        if self.thread.asked().is_empty() {
            let request = self.life.request(request_id, kind, question.clone(), options.clone());
            events.push(Event::HitlRequest(request.clone()));
            record = record.ask(request);
        }
        let step = Step::Asked { request_id, call_id: call.call_id, kind, question, options };
        self.commit_all(record, vec![step], events).await
    }
}

/// Runs one tool. What goes wrong in it becomes the call's outcome.
async fn run(open: OpenCall, tool: Arc<dyn Tool>, clock: &Arc<dyn Clock>) -> Ran {
    let OpenCall { call, answers, .. } = open;
    let began = clock.monotonic();
    let invocation = Invocation { input: call.input.clone(), answers };
    let result = AssertUnwindSafe(tool.run(invocation)).catch_unwind().await;
    let elapsed = clock.monotonic().saturating_sub(began);
    let duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    let result = result.unwrap_or_else(|_| Err(ToolError("the tool crashed".into())));
    Ran { call, result, duration_ms }
}

/// The event that tells of a call.
pub(super) fn tool_call(call: &ToolUse) -> Event {
    Event::ToolCall(ToolCall {
        tool_call_id: call.call_id,
        tool: call.name.clone(),
        input: call.input.clone(),
    })
}

/// The event that tells what came of a call.
pub(super) fn tool_result(call: &ToolUse, outcome: &ToolOutcome) -> Event {
    Event::ToolResult(ToolResult {
        tool_call_id: call.call_id,
        tool: call.name.clone(),
        output: outcome.output.clone(),
        error: outcome.error.clone(),
        duration_ms: outcome.duration_ms,
    })
}
