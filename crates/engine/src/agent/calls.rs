//! The tool calls of an answer: who may run, what is on record before it does, and what came of it.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use contract::event::{Event, HitlKind, ToolCall, ToolResult, WorkingMemoryUpdate};
use contract::memory::Source;
use contract::{HitlId, MemoryId};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::OwnedSemaphorePermit;

use super::Means;
use super::life::blocking;
use super::loaded::told_once;
use super::rewrite::MAX_MEMORY;
use super::run::{Stopped, TurnRun};
use super::thread::{OUTCOME_UNKNOWN, OpenCall, OpenStage};
use crate::brain::steps::{MemoryWrite, Step};
use crate::brain::{NewKnowledge, TaskRow, ToKnow, WriteError};
use crate::channel::Record;
use crate::models::{ToolOutcome, ToolUse};
use crate::sabotage::{self, Saboteur};
use crate::tools::{
    Delegation, Invocation, Permission, Question, Tool, ToolError, ToolOutput, ToolStep, grants, leave,
};

/// How many calls of one answer run at once.
const MAX_AT_ONCE: usize = 8;

/// What is to be done with a call.
enum Course {
    /// Run it, for the first time or anew.
    Run(Arc<dyn Tool>),
    /// Run the sub-agent that it asks for, or let it go on.
    Delegate(Arc<dyn Tool>, Delegation),
    /// Ask a person first. They may have allowed it for good when it was another tool.
    AskLeave(Arc<dyn Tool>, Allowed),
    /// Do not run it, for this reason.
    Refuse(String),
}

/// What a person has allowed of a call for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allowed {
    /// The call.
    Yes,
    /// Such a call of a tool that has changed since, or of which nobody noted what it was.
    OfAnother,
    /// Nothing.
    No,
}

/// A run of a tool that came to an end or to a question.
struct Ran {
    call: ToolUse,
    result: Result<ToolStep, ToolError>,
    duration_ms: u64,
}

/// A call that may run, and its tool.
type ReadyCall = (OpenCall, Arc<dyn Tool>);

/// A call's place among those of all turns. They are never closed, and a call without a place would still be better than
/// none.
type CallPlace = Option<OwnedSemaphorePermit>;

/// What calls that run are waited for.
enum Happened {
    /// One ended.
    Ran(Option<Box<Ran>>),
    /// There is a place for one more.
    Place(CallPlace),
}

impl TurnRun {
    /// Sees to calls of an answer: those that were under way when the engine stopped, new ones, and those that a
    /// person has given leave to.
    pub(super) async fn run_tools(&mut self, calls: Vec<OpenCall>) -> Result<(), Stopped> {
        let (mut ready, mut delegations) = (Vec::new(), Vec::new());
        let mut calls = VecDeque::from(calls);
        while let Some(open) = calls.pop_front() {
            match self.decide(&open) {
                Course::Run(tool) => ready.push((open, tool)),
                Course::Delegate(tool, delegation) => delegations.push((open, tool, delegation)),
                Course::AskLeave(tool, allowed) => {
                    let question = self.attend(leave_for(tool, allowed, open.call.clone())).await?;
                    // Meanwhile a person may have allowed this one too, with one beside it.
                    if matches!(self.decide(&open), Course::AskLeave(..)) {
                        self.ask(&open.call, HitlKind::Permission, question).await?;
                    } else {
                        calls.push_front(open);
                    }
                }
                Course::Refuse(reason) => self.refuse(&open, reason).await?,
            }
        }
        self.run_side_by_side(ready).await?;
        for (open, tool, delegation) in delegations {
            // One after the other, and none while a person is waited for: see `Thread::next`.
            if !self.thread.asked().is_empty() {
                break;
            }
            let call = (open, tool);
            self.before_step()?.intend(std::slice::from_ref(&call)).await?;
            self.delegate(call.0, delegation).await?;
        }
        Ok(())
    }

    /// Runs calls, several at once. Each is on record as soon as it has its place among the calls of all turns, just
    /// before it runs: one that waits has not begun if the engine dies. Once the engine stops none begins any more.
    async fn run_side_by_side(&mut self, ready: Vec<ReadyCall>) -> Result<(), Stopped> {
        let means = &self.life.means.clone();
        let task = self.life.recorder.channel().task();
        let stopping = self.life.stopping.clone();
        let (mut waiting, mut running) = (VecDeque::from(ready), FuturesUnordered::new());
        let mut places: Vec<CallPlace> = Vec::new();
        loop {
            let free = MAX_AT_ONCE.saturating_sub(running.len()).min(waiting.len());
            while places.len() < free
                && let Ok(place) = Arc::clone(&means.calls).try_acquire_owned()
            {
                places.push(Some(place));
            }
            if stopping.is_cancelled() {
                places.clear();
            }
            let next: Vec<_> = waiting.drain(..places.len()).collect();
            self.intend(&next).await?;
            let next = next.into_iter().zip(places.drain(..));
            running.extend(next.map(|((open, tool), place)| run(open, tool, task, place, means)));
            let place = Arc::clone(&means.calls).acquire_owned();
            if running.is_empty() {
                if waiting.is_empty() {
                    return Ok(());
                }
                places.push(self.attend_until_stop(place).await?.ok());
                continue;
            }
            let may_begin = !waiting.is_empty() && running.len() < MAX_AT_ONCE && !stopping.is_cancelled();
            let happened = async {
                tokio::select! {
                    biased;
                    ran = running.next() => Happened::Ran(ran.map(Box::new)),
                    place = place, if may_begin => Happened::Place(place.ok()),
                }
            };
            match self.attend(happened).await? {
                Happened::Ran(ran) => {
                    if let Some(ran) = ran {
                        self.ran(*ran).await?;
                    }
                }
                Happened::Place(place) => places.push(place),
            }
        }
    }

    fn decide(&self, OpenCall { call, stage, .. }: &OpenCall) -> Course {
        if let Some(reason) = &call.broken {
            return Course::Refuse(reason.clone());
        }
        // An agent has the tools that it was told of, and no others.
        let offered = self.offer().has(&call.name);
        let tool = self.life.kit.toolbox.find(&call.name).filter(|_| offered);
        let toolbox = &self.life.kit.toolbox;
        if *stage == OpenStage::New
            && let Some(tool) = &tool
        {
            if let Err(reason) = toolbox.check(&call.name, &call.input) {
                return Course::Refuse(reason);
            }
            match toolbox.permission(&call.name, &**tool) {
                Permission::Deny => {
                    return Course::Refuse(format!("the tool `{}` may not be used here", call.name));
                }
                Permission::Ask => match self.allowed(call, &**tool) {
                    Allowed::Yes => {}
                    allowed @ (Allowed::OfAnother | Allowed::No) => {
                        return Course::AskLeave(Arc::clone(tool), allowed);
                    }
                },
                Permission::Allow => {}
            }
        }
        if let Some((tool, delegation)) =
            tool.as_ref().and_then(|tool| Some((tool, tool.delegates(&call.input)?)))
        {
            return match delegation {
                Ok(_) if *stage != OpenStage::Running && self.thread.calls_left() < 2 => {
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
            (OpenStage::New | OpenStage::Ready, Some(tool)) => Course::Run(tool),
        }
    }

    /// What a person has allowed of such a call for good.
    fn allowed(&self, call: &ToolUse, tool: &dyn Tool) -> Allowed {
        let task = self.life.recorder.channel().task();
        let mut granted = match self.life.brain.granted(task, &call.name) {
            Ok(granted) => granted,
            Err(error) => {
                tracing::warn!(%error, "Grants could not be read; a person is asked.");
                return Allowed::No;
            }
        };
        let command = tool.command(&call.input);
        granted.retain(|granted| grants::allows(granted.prefix.as_deref(), command.as_deref()));
        let binding = tool.binding();
        match granted.as_slice() {
            [] => Allowed::No,
            granted if granted.iter().any(|granted| granted.binding == binding) => Allowed::Yes,
            _ => Allowed::OfAnother,
        }
    }

    /// Puts on record that these calls are about to run, before the first of them does.
    async fn intend(&mut self, calls: &[ReadyCall]) -> Result<(), WriteError> {
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
        let (outcome, memory, knowledge) = match result {
            Ok(ToolStep::Ask(question)) => return self.ask(&call, HitlKind::Question, question).await,
            Ok(ToolStep::Done(output)) => {
                let ToolOutput { text, working_memory, knowledge } = output;
                let writes = working_memory.into_iter().map(|(key, value)| MemoryWrite { key, value });
                let working_memory: Vec<_> = writes.collect();
                if !working_memory.is_empty() && !self.thread.branch().has_room_for(&working_memory) {
                    let refused = ended(String::new(), Some(no_room()));
                    return self.resulted(&call, refused, Vec::new(), None).await;
                }
                let text = told_once(self.conversation().branch(), &call, text);
                (ended(text, None), working_memory, knowledge)
            }
            Err(ToolError(error)) => (ended(String::new(), Some(error)), Vec::new(), None),
        };
        self.resulted(&call, outcome, memory, knowledge).await
    }

    /// Puts on record what came of a call.
    async fn resulted(
        &mut self,
        call: &ToolUse,
        outcome: ToolOutcome,
        memory: Vec<MemoryWrite>,
        knowledge: Option<(MemoryId, ToKnow)>,
    ) -> Result<(), WriteError> {
        let mut record = memory.iter().cloned().fold(Record::new(), Record::memory);
        if let Some((id, to_know)) = knowledge {
            record = record.knowledge(NewKnowledge { id, to_know, source: self.source() });
        }
        let updates = memory.iter().map(|MemoryWrite { key, value }| {
            Event::WorkingMemoryUpdate(WorkingMemoryUpdate { key: key.clone(), value: value.clone() })
        });
        let events = updates.chain([tool_result(call, &outcome)]).collect();
        let step = Step::Resulted { call_id: call.call_id, outcome, memory };
        self.commit_all(record, vec![step], events).await
    }

    /// Where what is saved now came from: from what the conversation, or that of the sub-agent at work, has shown.
    fn source(&self) -> Source {
        let conversations = std::iter::once(&self.thread).chain(self.thread.delegating().map(|(_, sub)| sub));
        let mut sources = conversations.map(|thread| thread.branch().source());
        sources.find(|source| *source != Source::Agent).unwrap_or(Source::Agent)
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
async fn run(open: OpenCall, tool: Arc<dyn Tool>, task: TaskRow, place: CallPlace, means: &Means) -> Ran {
    let OpenCall { call, answers, .. } = open;
    let began = means.clock.monotonic();
    let invocation =
        Invocation { call_id: call.call_id, task: Some(task), input: call.input.clone(), answers };
    let result = run_tool(&*tool, invocation).await;
    let elapsed = means.clock.monotonic().saturating_sub(began);
    let duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    let result = means.outputs.bounded(call.call_id, result, tool.most_whole(&call.input)).await;
    drop(place);
    Ran { call, result, duration_ms }
}

/// Why a value is not kept.
pub(super) fn no_room() -> String {
    format!(
        "working memory holds at most {MAX_MEMORY} bytes in all, and there is no room for this: keep less, or take out what \
         is no longer needed by setting its key to null"
    )
}

/// What a person is asked before a call.
async fn leave_for(tool: Arc<dyn Tool>, allowed: Allowed, call: ToolUse) -> Question {
    let plain = leave::plain(&call.name, &call.input);
    let asked = move || {
        let mut text = tool.leave_for(&call.input);
        if allowed == Allowed::OfAnother {
            text.push_str(&leave::changed(&tool.spec().description));
        }
        match tool.command(&call.input) {
            Some(command) => format!("{text}\n\n{}", grants::in_words(&command)),
            None => text,
        }
    };
    Question { text: blocking(asked).await.unwrap_or(plain), options: None }
}

/// Runs a tool. One that crashes has failed.
pub(super) async fn run_tool(tool: &dyn Tool, invocation: Invocation) -> Result<ToolStep, ToolError> {
    let result = AssertUnwindSafe(tool.run(invocation)).catch_unwind().await;
    result.unwrap_or_else(|_| Err(ToolError("the tool crashed".into())))
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
