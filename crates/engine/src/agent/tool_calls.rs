//! The tool calls of an answer: decides which may run, records them before they run, and commits their results.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use api::citations::NumberedPage;
use api::event::{Event, HitlKind, HookPhase, WorkingMemoryUpdate};
use api::memory::Source;
use api::tool_names::RUN_AGENT;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use llm::{ToolOutcome, ToolUse};
use store::event_log::Commit;
use store::steps::{MemoryWrite, Step};
use store::{Brain, NewKnowledge, ScheduleChange, TaskRow, WriteError};
use tokio::sync::{MutexGuard, OwnedSemaphorePermit};
use tools::hooks::ToolHooks;
use tools::{
    Delegation, Invocation, KnowledgeChange, Tool, ToolError, ToolOutput, ToolStep, insert_numbers,
    no_schedule_place,
};
use traces::{Span, gen_ai};

use super::approval_prompt::ApprovalPrompt;
use super::call_events::{tool_call_event, tool_result_event};
use super::conversation::Conversation;
use super::interrupt::Interrupt;
use super::journal::Journal;
use super::skill_deduplication::deduplicate;
use super::thread::{OpenCall, OpenStage, Thread};
use super::tool_decision::{CallDecision, decide};
use super::tool_hooks::{self, DueHooks};
use super::turn_context::TurnDeps;
use super::working_memory::MAX_WORKING_MEMORY_BYTES;
use super::{Services, provenance, turn_overrides};

/// The most calls of one answer that run at once.
const MAX_CONCURRENT_CALLS_PER_ANSWER: usize = 8;

/// Runs the tools that the agents of a turn call.
pub(super) struct ToolRunner {
    deps: TurnDeps,
}

/// A tool run that has ended or has asked a question.
struct ToolRun {
    call: ToolUse,
    result: Result<ToolStep, ToolError>,
    duration_ms: u64,
}

impl ToolRun {
    /// Whether the run erases something once its result is committed.
    const fn erases(&self) -> bool {
        matches!(
            &self.result,
            Ok(ToolStep::Done(
                ToolOutput { knowledge: Some(KnowledgeChange::Forget(_)), .. }
                    | ToolOutput { schedule: Some(ScheduleChange::Delete(_)), .. }
            ))
        )
    }

    /// If the run sets a schedule, checks that there is a place for it, which nobody else takes while the lock is held;
    /// without one the run has failed.
    async fn take_schedule_place<'a>(&mut self, brain: &'a Brain) -> Option<MutexGuard<'a, ()>> {
        if !self.sets_schedule() {
            return None;
        }
        let lock = brain.lock_schedule_places().await;
        match brain.run_blocking(Brain::has_schedule_place).await {
            Some(Ok(true)) => return Some(lock),
            Some(Ok(false)) => self.result = Err(no_schedule_place()),
            Some(Err(error)) => {
                self.result = Err(ToolError(format!("the schedules cannot be read: {error}")));
            }
            None => self.result = Err(ToolError("the engine is stopping".into())),
        }
        None
    }

    /// Whether the run sets a schedule once its result is committed.
    const fn sets_schedule(&self) -> bool {
        matches!(
            &self.result,
            Ok(ToolStep::Done(ToolOutput { schedule: Some(ScheduleChange::Set { .. }), .. }))
        )
    }
}

/// What the result of a call changes beside the conversation.
#[derive(Default)]
pub(super) struct ResultEffects {
    /// The writes to working memory.
    memory: Vec<MemoryWrite>,
    /// The change of what is remembered beyond the task.
    knowledge: Option<KnowledgeChange>,
    /// The change of the schedules.
    schedule: Option<ScheduleChange>,
    /// The pages that the result shows.
    pages: Vec<NumberedPage>,
}

/// A call that may run, and its tool.
type ReadyCall = (OpenCall, Arc<dyn Tool>);

/// A call that may run a sub-agent.
pub(super) struct DelegatedCall {
    ready: ReadyCall,
    delegation: Delegation,
}

/// A permit to run a call, from those of all turns. The semaphore is never closed; if it were, running without
/// a permit would still be better than not running.
type CallPermit = Option<OwnedSemaphorePermit>;

/// The events that [`ToolRunner::run_concurrently`] waits for.
enum CallEvent {
    /// A call has ended.
    Finished(Option<Box<ToolRun>>),
    /// There is a permit for one more call.
    PermitAcquired(CallPermit),
}

impl DelegatedCall {
    /// Records that the call is about to run. Returns the call and what it delegates.
    pub(super) async fn commit_intent(
        self,
        journal: &mut Journal,
    ) -> Result<(ToolUse, Delegation), WriteError> {
        commit_intents(journal, std::slice::from_ref(&self.ready)).await?;
        let (open, _) = self.ready;
        Ok((open.call, self.delegation))
    }
}

impl ToolRunner {
    pub(super) fn new(deps: TurnDeps) -> Self {
        Self { deps }
    }

    /// Handles the calls of an answer: those interrupted when the engine stopped, new ones, and those that the
    /// user has approved. Returns those that may run sub-agents.
    pub(super) async fn run(
        &self,
        conversation: &mut Conversation<'_>,
        calls: Vec<OpenCall>,
    ) -> Result<Vec<DelegatedCall>, Interrupt> {
        let due: Vec<_> = calls.iter().filter_map(|open| self.due_hooks(conversation, open)).collect();
        if !due.is_empty() {
            tool_hooks::run(&self.deps, conversation, due).await?;
            // What the calls need next depends on what the hooks decided.
            return Ok(Vec::new());
        }
        let (mut ready, mut delegated) = (Vec::new(), Vec::new());
        let mut calls = VecDeque::from(calls);
        while let Some(open) = calls.pop_front() {
            match self.decide(conversation, &open) {
                CallDecision::Run(tool) => ready.push((open, tool)),
                CallDecision::Delegate(tool, delegation) => {
                    delegated.push(DelegatedCall { ready: (open, tool), delegation });
                }
                CallDecision::AskPermission(tool, reason) => {
                    let Conversation { journal, inbox, .. } = conversation;
                    let has_untrusted = memory_source(journal.thread()) != Source::Agent;
                    let preparing = ApprovalPrompt::prepare(tool, reason, has_untrusted, open.call.clone());
                    let (question, prompt) = inbox.run_while_handling_commands(journal, preparing).await?;
                    // Meanwhile the user may have approved this call together with another one.
                    if matches!(self.decide(conversation, &open), CallDecision::AskPermission(..)) {
                        conversation.journal.ask_approval(&open, question, prompt).await?;
                    } else {
                        calls.push_front(open);
                    }
                }
                CallDecision::Refuse(reason) => refuse(conversation.journal, &open, reason).await?,
            }
        }
        self.run_concurrently(conversation, ready).await?;
        Ok(delegated)
    }

    /// The hooks that are to see a call now: those before it, unless it is refused anyway, or those after it. An input
    /// that a person has changed is seen by those before it, too.
    fn due_hooks(&self, conversation: &Conversation<'_>, open: &OpenCall) -> Option<DueHooks> {
        if let Some((outcome, source)) = open.returned.clone() {
            return Some(DueHooks::After { call: open.call.clone(), outcome, source });
        }
        let is_due = matches!(open.stage, OpenStage::New | OpenStage::Ready)
            && (!open.hooked || self.deps.snapshot.hooks.are_unknown())
            && self.deps.snapshot.hooks.apply_to(HookPhase::Before, &open.call.name)
            && !matches!(self.decide(conversation, open), CallDecision::Refuse(_));
        is_due.then(|| DueHooks::Before { call: open.call.clone(), sent: open.sent })
    }

    fn decide(&self, conversation: &Conversation<'_>, open: &OpenCall) -> CallDecision {
        let Conversation { agent, journal, .. } = conversation;
        let overrides = journal.thread().turn().overrides();
        if open.stage == OpenStage::New && !turn_overrides::allows_tool(overrides, &open.call.name) {
            let reason = format!("the tool `{}` may not be called for this message", open.call.name);
            return CallDecision::Refuse(reason);
        }
        let read_grants = |tool: &str| {
            self.deps.brain.grants_for_tool(journal.task(), tool).unwrap_or_else(|error| {
                tracing::warn!(%error, "Grants could not be read; the user is asked.");
                Vec::new()
            })
        };
        let calls_left = journal.thread().model_calls_left();
        // A hook may have written the input.
        let own_source = journal.active_thread().source_of_call(open.call.call_id);
        let has_untrusted =
            || own_source != Source::Agent || memory_source(journal.thread()) != Source::Agent;
        let toolbox = &self.deps.snapshot.toolbox;
        decide(open, toolbox, agent.tools(), calls_left, has_untrusted, read_grants)
    }

    /// Runs several calls at once. Each is recorded as soon as it has its permit, just before it runs: a call
    /// that is waiting has not begun if the engine dies. Once the engine is stopping, no further call begins.
    async fn run_concurrently(
        &self,
        conversation: &mut Conversation<'_>,
        ready: Vec<ReadyCall>,
    ) -> Result<(), Interrupt> {
        let services = &*self.deps.services;
        let Conversation { journal, inbox, .. } = conversation;
        let task = journal.task();
        let (mut waiting, mut running) = (VecDeque::from(ready), FuturesUnordered::new());
        let mut permits: Vec<CallPermit> = Vec::new();
        loop {
            let free = MAX_CONCURRENT_CALLS_PER_ANSWER.saturating_sub(running.len()).min(waiting.len());
            while permits.len() < free
                && let Ok(permit) = Arc::clone(&services.tool_permits).try_acquire_owned()
            {
                permits.push(Some(permit));
            }
            if inbox.is_stopping() {
                permits.clear();
            }
            let next: Vec<_> = waiting.drain(..permits.len()).collect();
            commit_intents(journal, &next).await?;
            let next = next.into_iter().zip(permits.drain(..));
            running
                .extend(next.map(|((open, tool), permit)| execute_call(open, tool, task, permit, services)));
            let permit = Arc::clone(&services.tool_permits).acquire_owned();
            if running.is_empty() {
                if waiting.is_empty() {
                    return Ok(());
                }
                permits.push(inbox.run_until_stop(journal, permit).await?.ok());
                continue;
            }
            let may_begin = !waiting.is_empty()
                && running.len() < MAX_CONCURRENT_CALLS_PER_ANSWER
                && !inbox.is_stopping();
            let event = async {
                tokio::select! {
                    biased;
                    run = running.next() => CallEvent::Finished(run.map(Box::new)),
                    permit = permit, if may_begin => CallEvent::PermitAcquired(permit.ok()),
                }
            };
            match inbox.run_while_handling_commands(journal, event).await? {
                CallEvent::Finished(run) => {
                    if let Some(mut run) = run {
                        let place = run.take_schedule_place(&self.deps.brain).await;
                        let (erases, sets_schedule) = (run.erases(), run.sets_schedule());
                        commit_run(journal, &self.deps.snapshot.hooks, *run).await?;
                        drop(place);
                        if erases {
                            self.deps.brain.request_erasure();
                        }
                        if sets_schedule {
                            self.deps.brain.notify_schedules_changed();
                        }
                    }
                }
                CallEvent::PermitAcquired(permit) => permits.push(permit),
            }
        }
    }
}

/// Records that these calls are about to run, before the first of them does.
async fn commit_intents(journal: &mut Journal, calls: &[ReadyCall]) -> Result<(), WriteError> {
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
    journal.commit_all(commit, steps, events).await
}

/// Commits an error as the result of a call that is not run, or not run again.
async fn refuse(journal: &mut Journal, open: &OpenCall, reason: String) -> Result<(), WriteError> {
    let outcome = ToolOutcome::new(String::new(), Some(reason), 0);
    let mut events: Vec<Event> = (!open.sent).then(|| tool_call_event(&open.call)).into_iter().collect();
    events.push(tool_result_event(&open.call, &outcome));
    let source = provenance::source_of_result(&open.call.name, None);
    let step = Step::Resulted { call_id: open.call.call_id, outcome, memory: Vec::new(), source };
    journal.commit(step, events).await
}

async fn commit_run(
    journal: &mut Journal,
    hooks: &ToolHooks,
    ToolRun { call, result, duration_ms }: ToolRun,
) -> Result<(), WriteError> {
    let outcome_of = |output: String, error| ToolOutcome::new(output, error, duration_ms);
    let (outcome, source, effects) = match result {
        Ok(ToolStep::Ask(question)) => return journal.ask(&call, HitlKind::Question, question).await,
        Ok(ToolStep::Done(output)) => {
            let ToolOutput {
                text,
                source,
                working_memory,
                knowledge,
                schedule,
                pages: shown,
                media,
                is_error,
            } = output;
            let writes = working_memory.into_iter().map(|(key, value)| MemoryWrite { key, value });
            let working_memory: Vec<_> = writes.collect();
            if !working_memory.is_empty() && !journal.thread().branch().has_room_for(&working_memory) {
                let refusal = outcome_of(String::new(), Some(working_memory_full()));
                return commit_result(journal, hooks, &call, (refusal, None), ResultEffects::default()).await;
            }
            let text = deduplicate(journal.active_thread().branch(), &call, text);
            // Numbers are those of the task, also for what a sub-agent finds.
            let (numbers, pages) = journal.thread().branch().citable_pages().number(&shown);
            let text = insert_numbers(&text, &shown, &numbers);
            let (output, error) = if is_error { (String::new(), Some(text)) } else { (text, None) };
            (
                ToolOutcome { media, ..outcome_of(output, error) },
                source,
                ResultEffects { memory: working_memory, knowledge, schedule, pages },
            )
        }
        Err(ToolError(error)) => (outcome_of(String::new(), Some(error)), None, ResultEffects::default()),
    };
    commit_result(journal, hooks, &call, (outcome, source), effects).await
}

/// Commits the result of a call, with the source that its output names, and its effects. If hooks are to
/// see the result, it is not sent yet.
pub(super) async fn commit_result(
    journal: &mut Journal,
    hooks: &ToolHooks,
    call: &ToolUse,
    (outcome, source): (ToolOutcome, Option<Source>),
    ResultEffects { memory, knowledge, schedule, pages }: ResultEffects,
) -> Result<(), WriteError> {
    // What a sub-agent does is counted there.
    let usage = (call.name != RUN_AGENT).then(|| journal.tool_usage(&call.name, &outcome));
    let mut commit = usage.into_iter().fold(Commit::new().attachments(&outcome.media), Commit::count_tool);
    commit = memory.iter().cloned().fold(commit, Commit::working_memory);
    commit = match knowledge {
        Some(KnowledgeChange::Save(id, draft)) => {
            // A hook may have written what is saved.
            let source = match journal.active_thread().source_of_call(call.call_id) {
                Source::Tool => Source::Tool,
                _ => memory_source(journal.thread()),
            };
            commit.knowledge(NewKnowledge { id, draft, source })
        }
        Some(KnowledgeChange::Forget(id)) => commit.forget(id).durable(),
        None => commit,
    };
    // One that was deleted does not come back with a power loss, and one that was set has been promised.
    commit = schedule.into_iter().fold(commit, |commit, change| commit.change_schedules(change).durable());
    let updates = memory.iter().map(|MemoryWrite { key, value }| {
        Event::WorkingMemoryUpdate(WorkingMemoryUpdate { key: key.clone(), value: value.clone() })
    });
    let mut events: Vec<Event> = updates.collect();
    let source = provenance::source_of_result(&call.name, source);
    let call_id = call.call_id;
    let step = if hooks.apply_to(HookPhase::After, &call.name) {
        Step::Returned { call_id, outcome, memory, source }
    } else {
        events.push(tool_result_event(call, &outcome));
        Step::Resulted { call_id, outcome, memory, source }
    };
    let numbered = (!pages.is_empty()).then_some(Step::Numbered { call_id, pages });
    journal.commit_all(commit, numbered.into_iter().chain([step]).collect(), events).await
}

/// The source of what is saved now, given what this conversation and those of running sub-agents contain.
fn memory_source(thread: &Thread) -> Source {
    let conversations = std::iter::once(thread).chain(thread.active_sub_agents().map(|(_, sub)| sub));
    let mut sources = conversations.map(|thread| thread.branch().memory_source());
    sources.find(|source| *source != Source::Agent).unwrap_or(Source::Agent)
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
    let at = services.clock.now();
    let invocation =
        Invocation { call_id: call.call_id, at, task: Some(task), input: call.input.clone(), answers };
    let span = gen_ai::execute_tool(&call.name, || call.call_id.to_string(), || call.input.to_string());
    let result = traces::in_span(&span, run_tool(&*tool, invocation)).await;
    end_tool_span(&span, &result);
    drop(span);
    let elapsed = services.clock.monotonic().saturating_sub(started);
    let duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    let result = services.outputs.limit_output(call.call_id, result, tool.inline_limit(&call.input)).await;
    drop(permit);
    ToolRun { call, result, duration_ms }
}

/// Says in the span of a call how it ended.
fn end_tool_span(span: &Span, result: &Result<ToolStep, ToolError>) {
    match result {
        Ok(ToolStep::Done(ToolOutput { text, is_error, .. })) => {
            gen_ai::set_tool_result(span, text);
            if *is_error {
                span.fail("tool_error");
            }
        }
        Ok(ToolStep::Ask(_)) => span.set("roundhouse.tool.asks", || true),
        Err(ToolError(error)) => {
            gen_ai::set_tool_result(span, error);
            span.fail("tool_error");
        }
    }
}

/// The error for a value that does not fit into working memory.
pub(super) fn working_memory_full() -> String {
    format!(
        "working memory holds at most {MAX_WORKING_MEMORY_BYTES} bytes in all, and there is no room for this: store less, or remove what \
         is no longer needed by setting its key to null"
    )
}

/// Runs a tool. A panic counts as its failure.
pub(super) async fn run_tool(tool: &dyn Tool, invocation: Invocation) -> Result<ToolStep, ToolError> {
    let result = AssertUnwindSafe(tool.run(invocation)).catch_unwind().await;
    result.unwrap_or_else(|_| Err(ToolError("the tool crashed".into())))
}
