//! The tool calls of an answer: decides which may run, records them before they run, and commits their results.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use api::event::{Event, HitlKind, ToolCall, ToolResult, WorkingMemoryUpdate};
use api::memory::Source;
use api::{HitlId, MemoryId};
use catalog::Permission;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use llm::{ToolOutcome, ToolUse};
use resources::threads::run_blocking;
use store::event_log::Commit;
use store::steps::{MemoryWrite, Step};
use store::{KnowledgeDraft, NewKnowledge, TaskRow, WriteError};
use tokio::sync::OwnedSemaphorePermit;
use tools::{Delegation, Invocation, Question, Tool, ToolError, ToolOutput, ToolStep, approval, grants};

use super::active_turn::{ActiveTurn, Interrupt};
use super::compaction_view::MAX_WORKING_MEMORY_BYTES;
use super::loaded_skills::deduplicate;
use super::thread::{OUTCOME_UNKNOWN, OpenCall, OpenStage};
use super::{Services, provenance};

/// The most calls of one answer that run at once.
const MAX_CONCURRENT_CALLS_PER_ANSWER: usize = 8;

/// The decision about a call.
enum CallDecision {
    /// Run it, for the first time or again.
    Run(Arc<dyn Tool>),
    /// Run or resume the sub-agent that it requests.
    Delegate(Arc<dyn Tool>, Delegation),
    /// Ask the user for approval. There may be a grant for an earlier version of the tool.
    AskPermission(Arc<dyn Tool>, GrantStatus),
    /// Do not run it, for this reason.
    Refuse(String),
}

/// Whether a grant covers a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantStatus {
    /// The call is granted.
    Granted,
    /// There is a grant, but the tool has changed since, or its identity was not recorded.
    ToolChanged,
    /// There is no grant.
    NotGranted,
}

/// A tool run that has ended or has asked a question.
struct ToolRun {
    call: ToolUse,
    result: Result<ToolStep, ToolError>,
    duration_ms: u64,
}

/// A call that may run, and its tool.
type ReadyCall = (OpenCall, Arc<dyn Tool>);

/// A permit to run a call, from those of all turns. The semaphore is never closed; if it were, running without
/// a permit would still be better than not running.
type CallPermit = Option<OwnedSemaphorePermit>;

/// The events that [`ActiveTurn::run_concurrently`] waits for.
enum CallEvent {
    /// A call has ended.
    Finished(Option<Box<ToolRun>>),
    /// There is a permit for one more call.
    PermitAcquired(CallPermit),
}

impl ActiveTurn {
    /// Handles the calls of an answer: those interrupted when the engine stopped, new ones, and those that the
    /// user has approved.
    pub(super) async fn run_tools(&mut self, calls: Vec<OpenCall>) -> Result<(), Interrupt> {
        let (mut ready, mut delegations) = (Vec::new(), Vec::new());
        let mut calls = VecDeque::from(calls);
        while let Some(open) = calls.pop_front() {
            match self.decide(&open) {
                CallDecision::Run(tool) => ready.push((open, tool)),
                CallDecision::Delegate(tool, delegation) => delegations.push((open, tool, delegation)),
                CallDecision::AskPermission(tool, grant) => {
                    let question = self
                        .run_while_handling_commands(approval_question(tool, grant, open.call.clone()))
                        .await?;
                    // Meanwhile the user may have approved this call together with another one.
                    if matches!(self.decide(&open), CallDecision::AskPermission(..)) {
                        self.ask_human(&open.call, HitlKind::Permission, question).await?;
                    } else {
                        calls.push_front(open);
                    }
                }
                CallDecision::Refuse(reason) => self.refuse(&open, reason).await?,
            }
        }
        self.run_concurrently(ready).await?;
        for (open, tool, delegation) in delegations {
            // One after another, and none while a request is pending: see `Thread::next_action`.
            if !self.thread.pending_hitl().is_empty() {
                break;
            }
            let call = (open, tool);
            self.check_stopping()?.commit_intents(std::slice::from_ref(&call)).await?;
            self.run_sub_agent(call.0, delegation).await?;
        }
        Ok(())
    }

    /// Runs several calls at once. Each is recorded as soon as it has its permit, just before it runs: a call
    /// that is waiting has not begun if the engine dies. Once the engine is stopping, no further call begins.
    async fn run_concurrently(&mut self, ready: Vec<ReadyCall>) -> Result<(), Interrupt> {
        let services = &self.context.services.clone();
        let task = self.context.recorder.event_log().task();
        let stopping = self.context.stopping.clone();
        let (mut waiting, mut running) = (VecDeque::from(ready), FuturesUnordered::new());
        let mut permits: Vec<CallPermit> = Vec::new();
        loop {
            let free = MAX_CONCURRENT_CALLS_PER_ANSWER.saturating_sub(running.len()).min(waiting.len());
            while permits.len() < free
                && let Ok(permit) = Arc::clone(&services.tool_permits).try_acquire_owned()
            {
                permits.push(Some(permit));
            }
            if stopping.is_cancelled() {
                permits.clear();
            }
            let next: Vec<_> = waiting.drain(..permits.len()).collect();
            self.commit_intents(&next).await?;
            let next = next.into_iter().zip(permits.drain(..));
            running
                .extend(next.map(|((open, tool), permit)| execute_call(open, tool, task, permit, services)));
            let permit = Arc::clone(&services.tool_permits).acquire_owned();
            if running.is_empty() {
                if waiting.is_empty() {
                    return Ok(());
                }
                permits.push(self.run_until_stop(permit).await?.ok());
                continue;
            }
            let may_begin = !waiting.is_empty()
                && running.len() < MAX_CONCURRENT_CALLS_PER_ANSWER
                && !stopping.is_cancelled();
            let event = async {
                tokio::select! {
                    biased;
                    run = running.next() => CallEvent::Finished(run.map(Box::new)),
                    permit = permit, if may_begin => CallEvent::PermitAcquired(permit.ok()),
                }
            };
            match self.run_while_handling_commands(event).await? {
                CallEvent::Finished(run) => {
                    if let Some(run) = run {
                        self.commit_run(*run).await?;
                    }
                }
                CallEvent::PermitAcquired(permit) => permits.push(permit),
            }
        }
    }

    fn decide(&self, OpenCall { call, stage, .. }: &OpenCall) -> CallDecision {
        if let Some(reason) = &call.broken {
            return CallDecision::Refuse(reason.clone());
        }
        // An agent may call only the tools that it was offered.
        let is_exposed = self.tool_set().contains(&call.name);
        let tool = self.context.snapshot.toolbox.find(&call.name).filter(|_| is_exposed);
        let toolbox = &self.context.snapshot.toolbox;
        if *stage == OpenStage::New
            && let Some(tool) = &tool
        {
            if let Err(reason) = toolbox.validate_input(&call.name, &call.input) {
                return CallDecision::Refuse(reason);
            }
            match toolbox.permission(&call.name, &**tool) {
                Permission::Deny => {
                    return CallDecision::Refuse(format!("the tool `{}` is not permitted", call.name));
                }
                Permission::Ask => match self.grant_status(call, &**tool) {
                    GrantStatus::Granted => {}
                    grant @ (GrantStatus::ToolChanged | GrantStatus::NotGranted) => {
                        return CallDecision::AskPermission(Arc::clone(tool), grant);
                    }
                },
                Permission::Allow => {}
            }
        }
        if let Some((tool, delegation)) =
            tool.as_ref().and_then(|tool| Some((tool, tool.sub_agent(&call.input)?)))
        {
            return match delegation {
                Ok(_) if *stage != OpenStage::Running && self.thread.model_calls_left() < 2 => {
                    CallDecision::Refuse(
                        "the turn has too few model calls left, so no agent can be run".into(),
                    )
                }
                Ok(delegation) => CallDecision::Delegate(Arc::clone(tool), delegation),
                Err(ToolError(reason)) => CallDecision::Refuse(reason),
            };
        }
        match (stage, tool) {
            // The call may have run, even if the tool no longer exists.
            (OpenStage::Running, tool) => match tool {
                Some(tool) if tool.idempotent() => CallDecision::Run(tool),
                _ => CallDecision::Refuse(OUTCOME_UNKNOWN.into()),
            },
            (_, None) => CallDecision::Refuse(format!("there is no tool called `{}`", call.name)),
            (OpenStage::New | OpenStage::Ready, Some(tool)) => CallDecision::Run(tool),
        }
    }

    /// Returns whether a grant covers such a call.
    fn grant_status(&self, call: &ToolUse, tool: &dyn Tool) -> GrantStatus {
        let task = self.context.recorder.event_log().task();
        let mut granted = match self.context.brain.grants_for_tool(task, &call.name) {
            Ok(granted) => granted,
            Err(error) => {
                tracing::warn!(%error, "Grants could not be read; the user is asked.");
                return GrantStatus::NotGranted;
            }
        };
        let command = tool.command(&call.input);
        granted.retain(|granted| grants::allows(granted.prefix.as_deref(), command.as_deref()));
        let binding = tool.binding();
        match granted.as_slice() {
            [] => GrantStatus::NotGranted,
            granted if granted.iter().any(|granted| granted.binding == binding) => GrantStatus::Granted,
            _ => GrantStatus::ToolChanged,
        }
    }

    /// Records that these calls are about to run, before the first of them does.
    async fn commit_intents(&mut self, calls: &[ReadyCall]) -> Result<(), WriteError> {
        let (mut commit, mut steps, mut events) = (Commit::new(), Vec::new(), Vec::new());
        for (open, tool) in calls.iter().filter(|(open, _)| open.stage != OpenStage::Running) {
            steps.push(Step::Intended { call_id: open.call.call_id });
            if !open.sent {
                events.push(tool_call_event(&open.call));
            }
            if !tool.idempotent() {
                commit = commit.durable();
            }
        }
        if steps.is_empty() {
            return Ok(());
        }
        self.commit_all(commit, steps, events).await
    }

    /// Commits an error as the result of a call that is not run, or not run again.
    async fn refuse(&mut self, open: &OpenCall, reason: String) -> Result<(), WriteError> {
        let outcome = ToolOutcome { output: String::new(), error: Some(reason), duration_ms: 0 };
        let mut events: Vec<Event> = (!open.sent).then(|| tool_call_event(&open.call)).into_iter().collect();
        events.push(tool_result_event(&open.call, &outcome));
        let source = provenance::source_of_result(&open.call.name, None);
        let step = Step::Resulted { call_id: open.call.call_id, outcome, memory: Vec::new(), source };
        self.commit(step, events).await
    }

    async fn commit_run(&mut self, ToolRun { call, result, duration_ms }: ToolRun) -> Result<(), WriteError> {
        let outcome_of = |output: String, error| ToolOutcome { output, error, duration_ms };
        let (outcome, memory, knowledge, source) = match result {
            Ok(ToolStep::Ask(question)) => return self.ask_human(&call, HitlKind::Question, question).await,
            Ok(ToolStep::Done(output)) => {
                let ToolOutput { text, source, working_memory, knowledge } = output;
                let writes = working_memory.into_iter().map(|(key, value)| MemoryWrite { key, value });
                let working_memory: Vec<_> = writes.collect();
                if !working_memory.is_empty() && !self.thread.branch().has_room_for(&working_memory) {
                    let refusal = outcome_of(String::new(), Some(working_memory_full()));
                    return self.commit_result(&call, (refusal, None), Vec::new(), None).await;
                }
                let text = deduplicate(self.active_thread().branch(), &call, text);
                (outcome_of(text, None), working_memory, knowledge, source)
            }
            Err(ToolError(error)) => (outcome_of(String::new(), Some(error)), Vec::new(), None, None),
        };
        self.commit_result(&call, (outcome, source), memory, knowledge).await
    }

    /// Commits the result of a call, with the source that its output names.
    async fn commit_result(
        &mut self,
        call: &ToolUse,
        (outcome, source): (ToolOutcome, Option<Source>),
        memory: Vec<MemoryWrite>,
        knowledge: Option<(MemoryId, KnowledgeDraft)>,
    ) -> Result<(), WriteError> {
        let mut commit = memory.iter().cloned().fold(Commit::new(), Commit::working_memory);
        if let Some((id, draft)) = knowledge {
            commit = commit.knowledge(NewKnowledge { id, draft, source: self.memory_source() });
        }
        let updates = memory.iter().map(|MemoryWrite { key, value }| {
            Event::WorkingMemoryUpdate(WorkingMemoryUpdate { key: key.clone(), value: value.clone() })
        });
        let events = updates.chain([tool_result_event(call, &outcome)]).collect();
        let source = provenance::source_of_result(&call.name, source);
        let step = Step::Resulted { call_id: call.call_id, outcome, memory, source };
        self.commit_all(commit, vec![step], events).await
    }

    /// The source of what is saved now, given what this conversation and those of running sub-agents contain.
    fn memory_source(&self) -> Source {
        let conversations =
            std::iter::once(&self.thread).chain(self.thread.active_sub_agents().map(|(_, sub)| sub));
        let mut sources = conversations.map(|thread| thread.branch().memory_source());
        sources.find(|source| *source != Source::Agent).unwrap_or(Source::Agent)
    }

    /// Asks the user about `call`. A request that is already pending is shown first.
    async fn ask_human(
        &mut self,
        call: &ToolUse,
        kind: HitlKind,
        question: Question,
    ) -> Result<(), WriteError> {
        let Question { text: question, options } = question;
        let request_id = HitlId::new();
        let (mut commit, mut events) = (Commit::new(), Vec::new());
        if self.thread.pending_hitl().is_empty() {
            let request = self.context.hitl_request(request_id, kind, question.clone(), options.clone());
            events.push(Event::HitlRequest(request.clone()));
            commit = commit.open_hitl_request(request);
        }
        let step = Step::Asked { request_id, call_id: call.call_id, kind, question, options };
        self.commit_all(commit, vec![step], events).await
    }
}

/// Runs one tool. Its failure becomes the result of the call.
async fn execute_call(
    open: OpenCall,
    tool: Arc<dyn Tool>,
    task: TaskRow,
    permit: CallPermit,
    services: &Services,
) -> ToolRun {
    let OpenCall { call, answers, .. } = open;
    let started = services.clock.monotonic();
    let invocation =
        Invocation { call_id: call.call_id, task: Some(task), input: call.input.clone(), answers };
    let result = run_tool(&*tool, invocation).await;
    let elapsed = services.clock.monotonic().saturating_sub(started);
    let duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    let result = services.outputs.limit_output(call.call_id, result, tool.inline_limit(&call.input)).await;
    drop(permit);
    ToolRun { call, result, duration_ms }
}

/// The error for a value that does not fit into working memory.
pub(super) fn working_memory_full() -> String {
    format!(
        "working memory holds at most {MAX_WORKING_MEMORY_BYTES} bytes in all, and there is no room for this: store less, or remove what \
         is no longer needed by setting its key to null"
    )
}

/// The approval prompt for a call.
async fn approval_question(tool: Arc<dyn Tool>, grant: GrantStatus, call: ToolUse) -> Question {
    let default_text = approval::default_prompt(&call.name, &call.input);
    let render = move || {
        let mut text = tool.approval_prompt(&call.input);
        if grant == GrantStatus::ToolChanged {
            text.push_str(&approval::changed_tool_notice(&tool.spec().description));
        }
        match tool.command(&call.input) {
            Some(command) => format!("{text}\n\n{}", grants::describe_scope(&command)),
            None => text,
        }
    };
    Question { text: run_blocking(render).await.unwrap_or(default_text), options: None }
}

/// Runs a tool. A panic counts as its failure.
pub(super) async fn run_tool(tool: &dyn Tool, invocation: Invocation) -> Result<ToolStep, ToolError> {
    let result = AssertUnwindSafe(tool.run(invocation)).catch_unwind().await;
    result.unwrap_or_else(|_| Err(ToolError("the tool crashed".into())))
}

/// The event that announces a call.
pub(super) fn tool_call_event(call: &ToolUse) -> Event {
    Event::ToolCall(ToolCall {
        tool_call_id: call.call_id,
        tool: call.name.clone(),
        input: call.input.clone(),
    })
}

/// The event with the result of a call.
pub(super) fn tool_result_event(call: &ToolUse, outcome: &ToolOutcome) -> Event {
    Event::ToolResult(ToolResult {
        tool_call_id: call.call_id,
        tool: call.name.clone(),
        output: outcome.output.clone(),
        error: outcome.error.clone(),
        duration_ms: outcome.duration_ms,
    })
}
