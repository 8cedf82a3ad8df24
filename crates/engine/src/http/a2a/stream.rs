//! The events of a turn as a stream of the protocol.
//!
//! The answer is one artifact. A text that the agent says on its way is replaced by the next one, so that in the end
//! the artifact is the answer, and a client that follows from any point has the same.

use api::event::{BlockType, Event, Lifecycle, SentEvent};
use api::{TaskId, TurnId};
use serde_json::{Value, json};

use super::errors;
use super::task::TaskView;
use crate::agent::{AgentError, ReportFold};
use crate::http::json_rpc::{self, RequestId};
use crate::http::projection::{Projector, push_sse};

/// From where on a client sees a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Beginning {
    /// From its first event.
    First,
    /// From what it has done so far.
    Now,
}

/// A stream that follows a turn until it has ended or waits for a person.
pub(super) struct TaskStream {
    id: RequestId,
    beginning: Beginning,
    fold: ReportFold,
    /// The text that the artifact has.
    text: String,
    /// Whether the next text replaces it.
    begins_anew: bool,
    has_begun: bool,
    has_ended: bool,
}

impl TaskStream {
    pub(super) fn new(id: RequestId, beginning: Beginning, (task_id, turn_id): (TaskId, TurnId)) -> Self {
        Self {
            id,
            beginning,
            fold: ReportFold::new(task_id, turn_id, false),
            text: String::new(),
            begins_anew: true,
            has_begun: false,
            has_ended: false,
        }
    }

    fn view(&self) -> TaskView<'_> {
        TaskView::of_report(self.fold.report())
    }

    fn send(&self, out: &mut String, result: &Value) {
        if self.has_begun {
            push_sse(out, None, &json_rpc::result(&self.id, result));
        }
    }

    /// Begins with the task as it is now.
    fn begin(&mut self, out: &mut String) {
        self.has_begun = true;
        let task = self.view().with_partial_text(&self.text).task();
        self.send(out, &json!({"task": task}));
    }

    fn push_text(&mut self, out: &mut String, delta: &str) {
        let continues = !self.begins_anew;
        if self.begins_anew {
            self.text.clear();
        }
        self.begins_anew = false;
        self.text.push_str(delta);
        self.send(out, &self.view().artifact_update(delta, continues, false));
    }

    /// Ends with the outcome of the turn.
    fn end(&mut self, out: &mut String) {
        let report = self.fold.report();
        if let Some(answer) = &report.text
            && (self.begins_anew || *answer != self.text)
        {
            self.send(out, &self.view().artifact_update(answer, false, true));
        }
        if self.has_begun {
            self.send(out, &self.view().status_update());
        } else {
            self.begin(out);
        }
        self.has_ended = true;
    }
}

impl Projector for TaskStream {
    fn apply(&mut self, event: SentEvent, out: &mut String) {
        if self.has_ended {
            return;
        }
        let kind = event.event.clone();
        self.fold.apply(event);
        if !self.has_begun && self.beginning == Beginning::First {
            self.begin(out);
        }
        match kind {
            Event::TextDelta(delta) => self.push_text(out, &delta.text),
            Event::ContentBlockStart(block) if block.block_type == BlockType::Text => self.begins_anew = true,
            // What was said before does not count any more.
            Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => self.begins_anew = true,
            Event::ToolCall(call) => {
                let remark = format!("The agent calls {}.", call.tool);
                self.send(out, &self.view().remark(&call.tool_call_id.to_string(), &remark));
            }
            // Its reason follows.
            Event::ThreadLifecycle(Lifecycle::Errored { .. }) => {}
            _ if self.fold.has_ended() => self.end(out),
            _ => {}
        }
    }

    fn caught_up(&mut self, out: &mut String) {
        if self.has_ended {
            return;
        }
        let is_waiting = self.fold.is_waiting();
        if !self.has_begun {
            self.begin(out);
        } else if is_waiting {
            self.send(out, &self.view().status_update());
        }
        self.has_ended = is_waiting;
    }

    fn interrupt(&mut self, out: &mut String) {
        if !self.has_ended {
            let fault = errors::of_agent(AgentError::Stopping);
            push_sse(out, Some("error"), &json_rpc::error(Some(&self.id), &fault));
            self.has_ended = true;
        }
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }
}
