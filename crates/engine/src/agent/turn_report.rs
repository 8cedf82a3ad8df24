//! The outcome of a turn in one piece: a fold of its events, and waiting for it.

use std::time::Duration;

use api::event::{Event, Lifecycle, SentEvent, StopReason};
use api::turn_options::TurnOverrides;
use api::turn_reports::{MAX_REPORTED_CALLS, ReportedCall, TurnReport};
use api::turns::{BusyUpdate, TurnState};
use api::{TaskId, TurnId};
use store::event_log::Follow;

use super::turn_events::TurnEvents;
use super::turn_queue::QueueProgress;
use super::turn_records::unknown_turn;
use super::turn_stream::{QueueReader, TurnStream};
use super::{Agent, AgentError};

/// A turn that began earlier, or whose message waits.
pub(crate) struct FollowedTurn {
    /// Its events, from the first one on.
    pub(crate) events: TurnEvents,
    /// The task.
    pub(crate) task_id: TaskId,
    /// What its request set for it only.
    pub(crate) overrides: Option<Box<TurnOverrides>>,
}

/// The fold of a turn's events into its report.
pub(crate) struct ReportFold {
    report: TurnReport,
    /// Whether the request set a form for the answer.
    is_structured: bool,
}

impl ReportFold {
    /// The report of a turn of which no event is known yet.
    pub(crate) fn new(task_id: TaskId, turn_id: TurnId, is_structured: bool) -> Self {
        let report = TurnReport {
            task_id,
            turn_id,
            status: TurnState::Running,
            position: None,
            message_id: None,
            answer_message_id: None,
            text: None,
            output: None,
            stop_reason: None,
            error: None,
            pending: Vec::new(),
            approvals: Vec::new(),
            tool_calls: Vec::new(),
            tool_call_count: 0,
            citations: Vec::new(),
            usage: None,
            last_ts: 0,
        };
        Self { report, is_structured }
    }

    /// Adds the next event.
    pub(crate) fn apply(&mut self, SentEvent { turn_id, ts, event, .. }: SentEvent) {
        let report = &mut self.report;
        report.turn_id = turn_id;
        report.last_ts = report.last_ts.max(ts);
        match event {
            Event::ThreadLifecycle(lifecycle) => self.apply_lifecycle(lifecycle),
            Event::BusyUpdate(update) => self.apply_busy_update(&update),
            Event::Error(failure) => {
                (report.status, report.error) = (TurnState::Failed, Some(failure));
                self.end();
            }
            Event::ToolCall(call) => {
                report.tool_call_count += 1;
                if report.tool_calls.len() < MAX_REPORTED_CALLS {
                    let (tool_call_id, tool) = (call.tool_call_id, call.tool);
                    report.tool_calls.push(ReportedCall {
                        tool_call_id,
                        tool,
                        finished: false,
                        error: None,
                        duration_ms: None,
                    });
                }
            }
            Event::ToolResult(result) => {
                let calls = report.tool_calls.iter_mut().rev();
                if let Some(call) = calls.into_iter().find(|call| call.tool_call_id == result.tool_call_id) {
                    call.finished = true;
                    (call.error, call.duration_ms) = (result.error, Some(result.duration_ms));
                }
            }
            Event::HitlRequest(request) => report.pending.push(request),
            Event::ApprovalRequest(request) => report.approvals.push(*request),
            Event::HitlResolved(resolved) => {
                report.pending.retain(|request| request.request_id != resolved.request_id);
                report.approvals.retain(|request| request.request_id != resolved.request_id);
            }
            Event::Usage(usage) => report.usage = Some(usage),
            Event::Citations(citations) => report.citations = citations.citations,
            _ => {}
        }
    }

    fn apply_lifecycle(&mut self, lifecycle: Lifecycle) {
        let report = &mut self.report;
        let (Lifecycle::Started { message_id }
        | Lifecycle::Completed { message_id, .. }
        | Lifecycle::Errored { message_id }
        | Lifecycle::Resumed { message_id }
        | Lifecycle::Retrying { message_id, .. }
        | Lifecycle::Cancelled { message_id }) = &lifecycle;
        report.message_id = Some(*message_id);
        (report.status, report.position) = (TurnState::Running, None);
        match lifecycle {
            Lifecycle::Completed { answer_message_id, text, stop_reason, .. } => {
                if self.is_structured && stop_reason == StopReason::EndTurn {
                    report.output = serde_json::from_str(&text).ok();
                }
                report.answer_message_id = Some(answer_message_id);
                (report.text, report.stop_reason) = (Some(text), Some(stop_reason));
                report.status = TurnState::Completed;
                self.end();
            }
            Lifecycle::Cancelled { .. } => {
                report.status = TurnState::Cancelled;
                self.end();
            }
            Lifecycle::Errored { .. } => {
                report.status = TurnState::Failed;
                self.end();
            }
            Lifecycle::Started { .. } | Lifecycle::Resumed { .. } | Lifecycle::Retrying { .. } => {}
        }
    }

    fn apply_busy_update(&mut self, update: &BusyUpdate) {
        let report = &mut self.report;
        match update {
            BusyUpdate::Queued { position } => {
                (report.status, report.position) = (TurnState::Queued, Some(*position));
            }
            BusyUpdate::Steered { message_id } => report.message_id = Some(*message_id),
            BusyUpdate::Cancelled {} => (report.status, report.position) = (TurnState::Cancelled, None),
            BusyUpdate::Failed { .. } => (report.status, report.position) = (TurnState::Failed, None),
        }
    }

    /// Nothing waits for a person any more.
    fn end(&mut self) {
        self.report.pending.clear();
        self.report.approvals.clear();
    }

    /// The report so far; that the turn waits for a person is not said in its status.
    pub(crate) const fn report(&self) -> &TurnReport {
        &self.report
    }

    /// Whether the turn has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.report.status, TurnState::Completed | TurnState::Failed | TurnState::Cancelled)
    }

    /// Whether something waits for a person. What the first events ask may be answered by later ones.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.report.pending.is_empty()
    }

    pub(super) fn into_report(self) -> TurnReport {
        let is_waiting = self.is_waiting() && !self.has_ended();
        let mut report = self.report;
        if is_waiting {
            report.status = TurnState::WaitingForPerson;
        }
        report
    }
}

impl Agent {
    /// Folds a turn's events into its report: until the turn ends or waits for a person, but no longer than `wait`.
    pub(crate) async fn report(
        &self,
        mut events: TurnEvents,
        (task_id, turn_id): (TaskId, TurnId),
        is_structured: bool,
        wait: Duration,
    ) -> Result<TurnReport, AgentError> {
        let mut fold = ReportFold::new(task_id, turn_id, is_structured);
        let deadline = self.services.clock.sleep(wait);
        tokio::pin!(deadline);
        let mut is_over = false;
        loop {
            // Judged only when all is read: what the first events asked may be answered by later ones.
            if events.is_caught_up() && (fold.is_waiting() || is_over) {
                return Ok(fold.into_report());
            }
            let next = tokio::select! {
                biased;
                next = events.next() => next?,
                () = &mut deadline, if !is_over => {
                    is_over = true;
                    continue;
                }
            };
            match next {
                Some(event) => fold.apply(event),
                None if fold.has_ended() => return Ok(fold.into_report()),
                None => return self.without_end(fold).await,
            }
        }
    }

    /// The report of a turn without an event that ends it: the engine stops, or the turn was given up.
    async fn without_end(&self, fold: ReportFold) -> Result<TurnReport, AgentError> {
        let mut report = fold.into_report();
        let record = self.turn(&report.task_id, &report.turn_id.to_string()).await;
        if let Ok(record) = record
            && record.ended_at.is_some()
        {
            (report.status, report.error) = (record.state, record.error);
            report.pending.clear();
            report.approvals.clear();
        }
        Ok(report)
    }

    /// Follows a turn of a task from its first event.
    pub(crate) async fn follow(&self, turn_id: &str) -> Result<FollowedTurn, AgentError> {
        let turn_id: TurnId = turn_id.parse().map_err(|_| unknown_turn())?;
        let start = self.read(move |brain| brain.turn_start(turn_id)).await?.ok_or_else(unknown_turn)?;
        let event_log = self.event_logs.open_existing(&start.task_id)?.ok_or_else(unknown_turn)?;
        let reader = event_log.read(start.opened_ts - 1, Follow::Turn(turn_id));
        Ok(FollowedTurn {
            events: TurnEvents::new(reader.into()),
            task_id: start.task_id,
            overrides: start.overrides,
        })
    }

    /// The report of a turn of a task that was queued or has begun, after at most `wait`.
    pub(crate) async fn turn_report(
        &self,
        task_id: &TaskId,
        turn_id: &str,
        wait: Duration,
    ) -> Result<TurnReport, AgentError> {
        let record = self.turn(task_id, turn_id).await?;
        let id = record.turn_id;
        let turn = match record.state {
            TurnState::Queued => self.follow_queued(task_id, id)?,
            // It left the queue without a turn.
            TurnState::Cancelled | TurnState::Failed if record.started_at.is_none() => None,
            _ => Some(self.follow(turn_id).await?),
        };
        let Some(turn) = turn else {
            let mut fold = ReportFold::new(task_id.clone(), id, false);
            (fold.report.status, fold.report.position) = (record.state, record.position);
            return Ok(fold.into_report());
        };
        let is_structured = turn.overrides.is_some_and(|overrides| overrides.response_format.is_some());
        let report = self.report(turn.events, (task_id.clone(), id), is_structured, wait).await?;
        if record.state == TurnState::Queued && report.text.is_some() {
            // Its options are only known now that it has begun.
            return Box::pin(self.turn_report(task_id, turn_id, Duration::ZERO)).await;
        }
        Ok(report)
    }

    fn follow_queued(&self, task_id: &TaskId, turn_id: TurnId) -> Result<Option<FollowedTurn>, AgentError> {
        let Some(progress) = self.registry.lock().queue.subscribe(task_id, turn_id) else { return Ok(None) };
        if *progress.borrow() == QueueProgress::Storing {
            return Ok(None);
        }
        let reader = QueueReader {
            last_ts: self.event_logs.open(task_id)?.published_ts(),
            event_logs: self.event_logs.clone(),
            task_id: task_id.clone(),
            turn_id,
            progress,
            sent_position: None,
            clock: std::sync::Arc::clone(&self.services.clock),
            stopping: self.stopping.clone(),
        };
        let events = TurnEvents::new(TurnStream::queued(reader));
        Ok(Some(FollowedTurn { events, task_id: task_id.clone(), overrides: None }))
    }
}
