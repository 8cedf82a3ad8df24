//! The journal of an active turn: the only place that commits its steps, sends its events, and applies the
//! steps to the conversation. So the conversation in memory is always what is stored.

use api::approvals::ApprovalRequest;
use api::event::{Event, Failure, HitlKind, HitlRequest, Lifecycle};
use api::{CallId, HitlId, TaskId, TurnId};
use llm::{Message, StreamEvent, ToolOutcome, ToolUse};
use store::event_log::Commit;
use store::steps::Step;
use store::{Brain, CallUsage, TaskRow, ToolUsage, WriteError};
use tools::Question;

use super::answer_stream::AnswerStream;
use super::approval_prompt::ApprovalPrompt;
use super::attribution::{agent_name, wrap_event, wrap_step};
use super::call_events::{never_run_event, tool_call_event, unknown_outcome_event};
use super::caps::CapNotices;
use super::journal_writer::JournalWriter;
use super::thread::{NextAction, OpenCall, Thread};
use super::thread_loader::{self, LoadError};

/// The state of a turn, as its journal and events tell it.
pub(super) struct JournalState {
    thread: Thread,
    stream: AnswerStream,
    /// How many starts of the engine have resumed the current model step.
    engine_starts: u32,
    /// Whether clients had received anything of the current model step when the state was read.
    has_sent_events: bool,
}

/// The journal of an active turn.
pub(super) struct Journal {
    writer: JournalWriter,
    state: JournalState,
    /// The sub-agent that is running. Its conversation is the active one.
    sub_agent: Option<RunningSubAgent>,
    /// Model calls that are counted with the next commit.
    uncounted_calls: Vec<CallUsage>,
}

struct RunningSubAgent {
    /// The call that runs it.
    call_id: CallId,
    name: String,
}

impl JournalState {
    /// The state of a turn that was just opened.
    pub(super) fn opened(thread: Thread) -> Self {
        Self { thread, stream: AnswerStream::default(), engine_starts: 0, has_sent_events: false }
    }

    /// Reads the state from the brain. `engine_starts` counts the starts of the engine that have resumed the
    /// current model step. Blocks.
    pub(super) fn load(
        brain: &Brain,
        task: TaskRow,
        turn_id: TurnId,
        engine_starts: u32,
    ) -> Result<Self, LoadError> {
        let thread = thread_loader::load(brain, task, turn_id)?;
        // Events after the last recorded step belong to a model call that is repeated.
        let events = brain.all_events_after(task, thread.turn().last_step_ts())?;
        let has_sent_events = events.iter().any(|event| !matches!(event, Event::ThreadLifecycle(_)));
        let stream = AnswerStream::from_events(events, brain.block_counts(task, turn_id)?);
        Ok(Self { thread, stream, engine_starts, has_sent_events })
    }

    /// What memory is to be searched for, and the model that the request chose, if nothing has followed the opening of
    /// a turn that recalls memories. What its model has begun to answer does not change any more.
    pub(super) fn message_to_recall_for(&self) -> Option<(String, Option<String>)> {
        let message = self.thread.message_to_recall_for().filter(|_| !self.has_sent_events)?;
        Some((message, self.thread.turn().model().map(str::to_owned)))
    }

    /// Applies a committed step that follows the opening.
    pub(super) fn apply(&mut self, step: Step, ts: i64) {
        self.thread.apply(step, ts);
    }

    /// Returns whether the turn can only wait for its user.
    pub(super) fn awaits_human(&self) -> bool {
        matches!(self.thread.next_action(), NextAction::AwaitHuman(_))
    }
}

impl Journal {
    pub(super) fn new(writer: JournalWriter, state: JournalState) -> Self {
        Self { writer, state, sub_agent: None, uncounted_calls: Vec::new() }
    }

    /// Drops the state in memory and keeps what writes the journal.
    pub(super) fn into_writer(self) -> JournalWriter {
        self.writer
    }

    /// The turn's own conversation.
    pub(super) fn thread(&self) -> &Thread {
        &self.state.thread
    }

    /// The active conversation: the running sub-agent's, or else the turn's own.
    pub(super) fn active_thread(&self) -> &Thread {
        let thread = &self.state.thread;
        let sub_agent = self.sub_agent.as_ref().and_then(|running| thread.sub_agent(running.call_id));
        sub_agent.unwrap_or(thread)
    }

    /// The id of the turn.
    pub(super) fn turn_id(&self) -> TurnId {
        self.writer.turn_id()
    }

    /// The task of the turn.
    pub(super) fn task(&self) -> TaskRow {
        self.writer.task()
    }

    /// The id of the task.
    pub(super) fn task_id(&self) -> &TaskId {
        self.writer.recorder().event_log().task_id()
    }

    /// Commits a step of the active conversation together with its events, and applies it to the thread.
    pub(super) async fn commit(&mut self, step: Step, events: Vec<Event>) -> Result<(), WriteError> {
        self.commit_all(Commit::new(), vec![step], events).await
    }

    /// Commits `commit` with steps of the active conversation and their events, and applies the steps to the
    /// thread.
    pub(super) async fn commit_all(
        &mut self,
        commit: Commit,
        steps: Vec<Step>,
        events: Vec<Event>,
    ) -> Result<(), WriteError> {
        let owner = self.sub_agent.as_ref().map(|running| running.call_id);
        let steps = steps.into_iter().map(|step| wrap_step(owner, step)).collect();
        let events = events.into_iter().map(|event| self.wrap_active_event(event)).collect();
        self.commit_to_turn(commit, steps, events).await
    }

    /// Commits `commit` with steps of the turn itself and their events, and applies the steps to the thread.
    pub(super) async fn commit_to_turn(
        &mut self,
        commit: Commit,
        steps: Vec<Step>,
        events: Vec<Event>,
    ) -> Result<(), WriteError> {
        let counts_calls = !self.uncounted_calls.is_empty();
        let (commit, notices) = self.count_calls(commit);
        let commit = steps.iter().cloned().fold(commit, Commit::step).events(events);
        self.writer.commit(notices.add_to(commit)).await?;
        drop(notices);
        let ts = self.writer.recorder().last_ts();
        for step in steps {
            if step.is_progress() {
                self.state.engine_starts = 0;
                self.writer.reset_store_retries();
            }
            self.state.thread.apply(step, ts);
        }
        if counts_calls {
            // Turns that commit at the same moment do not see each other's calls; together they may pass a cap.
            self.tell(self.writer.late_cap_notices()).await?;
        }
        Ok(())
    }

    /// Counts a model call of the active conversation, together with the next commit. A call that is billed has a
    /// step, which must be committed next.
    pub(super) fn count_call(&mut self, call: CallUsage) {
        let agent = self.sub_agent.as_ref().map(|running| running.name.clone());
        self.uncounted_calls.push(CallUsage { task: Some(self.task()), agent, ..call });
    }

    /// Counts the model calls that are not counted yet, and returns what clients are told about caps.
    fn count_calls(&mut self, commit: Commit) -> (Commit, CapNotices) {
        let notices = self.writer.cap_notices(&self.uncounted_calls);
        if self.uncounted_calls.is_empty() {
            return (commit, notices);
        }
        let commit = self.uncounted_calls.drain(..).fold(commit, Commit::count_call);
        (self.writer.take_first_delta().into_iter().fold(commit, Commit::count_first_delta), notices)
    }

    /// Tells clients about caps.
    pub(super) async fn tell(&self, notices: CapNotices) -> Result<(), WriteError> {
        if notices.is_empty() {
            return Ok(());
        }
        self.writer.commit(notices.add_to(Commit::new())).await
    }

    /// The use of a tool that the last answer of the active conversation has called.
    pub(super) fn tool_usage(&self, tool: &str, outcome: &ToolOutcome) -> ToolUsage {
        let messages = self.active_thread().messages().iter().rev();
        let model = messages.into_iter().find_map(|message| match message {
            Message::Assistant { model, .. } => Some(model.clone()),
            _ => None,
        });
        ToolUsage {
            model: model.unwrap_or_default(),
            agent: self.sub_agent.as_ref().map(|running| running.name.clone()),
            tool: tool.to_owned(),
            is_failure: outcome.error.is_some(),
            time_ms: outcome.duration_ms,
        }
    }

    /// Ends the turn with `failure`.
    pub(super) async fn commit_failure(&mut self, failure: Failure) -> Result<(), WriteError> {
        let before = self.closing_events();
        let (commit, notices) = self.count_calls(Commit::new());
        self.writer.commit_failure(notices.add_to(commit), before, failure).await
    }

    /// Asks the user about `call`. A request that is already pending is shown first.
    pub(super) async fn ask(
        &mut self,
        call: &ToolUse,
        kind: HitlKind,
        question: Question,
    ) -> Result<(), WriteError> {
        self.ask_with(call, HitlId::new(), kind, question, None).await
    }

    /// Asks the user to approve `call`. Clients receive the call before the request.
    pub(super) async fn ask_approval(
        &mut self,
        OpenCall { call, sent, .. }: &OpenCall,
        question: Question,
        prompt: ApprovalPrompt,
    ) -> Result<(), WriteError> {
        let request_id = HitlId::new();
        let agent = self.sub_agent.as_ref().map(|running| running.name.clone());
        let request = prompt.into_request(request_id, call, agent, self.writer.now());
        // A call is asked about again if a hook has changed what was approved.
        let announcement = (!sent).then(|| tool_call_event(call));
        self.ask_with(call, request_id, HitlKind::Permission, question, Some((announcement, request))).await
    }

    async fn ask_with(
        &mut self,
        call: &ToolUse,
        request_id: HitlId,
        kind: HitlKind,
        question: Question,
        approval: Option<(Option<Event>, ApprovalRequest)>,
    ) -> Result<(), WriteError> {
        let Question { text: question, options } = question;
        let (mut commit, mut events) = (Commit::new(), Vec::new());
        let reason = approval.as_ref().map(|(_, request)| request.reason);
        if let Some((announcement, request)) = approval {
            events.extend(announcement);
            events.push(Event::ApprovalRequest(Box::new(request.clone())));
            commit = commit.open_approval(request);
        }
        if self.state.thread.pending_hitl().is_empty() {
            let request = self.hitl_request(request_id, kind, question.clone(), options.clone());
            events.push(Event::HitlRequest(request.clone()));
            commit = commit.open_hitl_request(request);
        }
        let step = Step::Asked { request_id, call_id: call.call_id, kind, question, options, reason };
        self.commit_all(commit, vec![step], events).await
    }

    /// Creates a HITL request that is shown now, and starts its time limit.
    pub(super) fn hitl_request(
        &mut self,
        request_id: HitlId,
        kind: HitlKind,
        question: String,
        options: Option<Vec<String>>,
    ) -> HitlRequest {
        self.writer.hitl_request(request_id, kind, question, options)
    }

    /// Makes the conversation of the sub-agent that a call runs the active one.
    pub(super) fn begin_sub_agent(&mut self, call_id: CallId, name: String) {
        self.sub_agent = Some(RunningSubAgent { call_id, name });
    }

    /// Makes the turn's own conversation the active one while the sub-agent waits for the user.
    pub(super) fn suspend_sub_agent(&mut self) {
        self.sub_agent = None;
    }

    /// Makes the turn's own conversation the active one, because the sub-agent has ended.
    pub(super) async fn end_sub_agent(&mut self) -> Result<(), WriteError> {
        if let Some(stop) = self.state.stream.stop_sub_agent_block() {
            self.send(stop).await?;
        }
        self.state.stream.forget_sub_agent_step();
        self.sub_agent = None;
        Ok(())
    }

    /// Begins or repeats a model step of the active conversation.
    pub(super) fn begin_step(&mut self) {
        self.state.stream.begin_step(self.sub_agent.is_some());
    }

    /// Begins an attempt at the step.
    pub(super) fn begin_attempt(&mut self) {
        self.state.stream.begin_attempt();
    }

    /// Sends what is new to clients in a part of the answer of an attempt.
    pub(super) async fn send_part(&mut self, part: StreamEvent, attempt: u32) -> Result<(), WriteError> {
        let retrying = self.retrying(attempt);
        let events = self.state.stream.receive(part, &retrying);
        self.send_all(events).await
    }

    /// Sends what is left to send of the complete answer of an attempt.
    pub(super) async fn finish_answer(&mut self, attempt: u32) -> Result<(), WriteError> {
        let retrying = self.retrying(attempt);
        let events = self.state.stream.finish(&retrying);
        self.send_all(events).await
    }

    /// Voids what clients have received of the step, because it will not be completed.
    pub(super) async fn void_answer(&mut self, attempt: u32) -> Result<(), WriteError> {
        let retrying = self.retrying(attempt);
        let events = self.state.stream.discard(&retrying);
        self.send_all(events).await
    }

    /// The event data that voids what was sent of the current model step before this attempt.
    fn retrying(&self, attempt: u32) -> Lifecycle {
        let turn = self.state.thread.turn();
        let (message_id, void_after) = (turn.message_id(), turn.last_step_ts());
        Lifecycle::Retrying { message_id, void_after, attempt: self.state.engine_starts + attempt }
    }

    async fn send_all(&mut self, events: Vec<Event>) -> Result<(), WriteError> {
        for event in events {
            let is_own_text = self.sub_agent.is_none() && matches!(event, Event::TextDelta(_));
            self.send(event).await?;
            if is_own_text {
                self.writer.note_delta();
            }
        }
        Ok(())
    }

    /// Sends an event of the active conversation.
    async fn send(&self, event: Event) -> Result<(), WriteError> {
        self.writer.recorder().emit(self.wrap_active_event(event)).await
    }

    /// Attributes an event to the active conversation.
    fn wrap_active_event(&self, event: Event) -> Event {
        match &self.sub_agent {
            Some(running) => wrap_event(running.call_id, &running.name, event),
            None => event,
        }
    }

    /// The text of the turn's own answer that clients have received of the current model step, if any. The
    /// text of a sub-agent is not part of it.
    pub(super) fn partial_text(&self) -> Option<String> {
        self.state.stream.own_text().filter(|_| self.sub_agent.is_none())
    }

    /// The events that leave nothing of the turn open for clients: the end of its block, and results for
    /// calls without one.
    pub(super) fn closing_events(&mut self) -> Vec<Event> {
        let JournalState { thread, stream, .. } = &mut self.state;
        let mut events: Vec<Event> = stream.stop_block().into_iter().collect();
        let mut stop = stream.stop_sub_agent_block();
        for (call, sub_agent) in thread.active_sub_agents() {
            let name = agent_name(&call.input);
            let inner = stop.take().into_iter().chain(results_of_open_calls(sub_agent));
            events.extend(inner.map(|event| wrap_event(call.call_id, name, event)));
        }
        events.extend(results_of_open_calls(thread));
        events.extend(thread.turn().unsent_usage().cloned().map(Event::Usage));
        events
    }
}

/// A result for each call of the conversation that clients have seen begin but not end.
fn results_of_open_calls(thread: &Thread) -> impl Iterator<Item = Event> {
    thread.sent_open_calls().map(|(call, has_begun)| {
        let event = if has_begun { unknown_outcome_event } else { never_run_event };
        event(call.call_id, call.name.clone())
    })
}
