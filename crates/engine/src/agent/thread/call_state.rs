//! A tool call of the last answer: its progress, and what the model is told as its result.

use api::memory::Source;
use llm::{Content, ToolOutcome, ToolReply, ToolUse};
use tools::HumanAnswer;

use super::{NextAction, Thread};
use crate::agent::loop_detector::RepeatCount;

/// The result of a call that was started and whose outcome nobody saw.
pub(crate) const OUTCOME_UNKNOWN: &str = "The outcome of this call is unknown: it was cut off after it had begun. \
                                          It may have taken effect. Check before you call it again.";
/// The result of a call that the turn did not come to.
pub(super) const NEVER_RUN: &str = "This call was not run: the turn ended before.";
/// The result of a call whose tool asked the user, who did not answer.
pub(super) const STOPPED_AT_QUESTION: &str =
    "This call was not finished: the turn ended before the person had answered it.";

/// The result of a call whose tool ran, and whose turn ended before the hooks after it had seen its outcome.
pub(super) const NOT_CHECKED: &str =
    "This call was made, but the turn ended before its result had been checked, so the result is withheld.";

/// A call without a result that is not waiting for the user.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenCall {
    /// The call.
    pub(crate) call: ToolUse,
    /// Its progress.
    pub(crate) stage: OpenStage,
    /// Whether it was sent to clients, when it began or when an approval was requested.
    pub(crate) sent: bool,
    /// The questions that its tool asked, with the answers.
    pub(crate) answers: Vec<HumanAnswer>,
    /// Whether the hooks before it have seen it.
    pub(crate) hooked: bool,
    /// The outcome of its tool and the source of that, which the hooks after it have yet to see.
    pub(crate) returned: Option<(ToolOutcome, Source)>,
}

/// The progress of a call without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenStage {
    /// It has not been handled yet.
    New,
    /// It may run or continue: the user has approved it or answered.
    Ready,
    /// Its intent is recorded, so it may have run.
    Running,
    /// Its tool has returned. The hooks after it come next.
    Returned,
}

/// A call of the last answer, and what has become of it.
#[derive(Debug)]
pub(super) struct CallState {
    /// The call, with the input that runs.
    pub(super) call: ToolUse,
    pub(super) stage: Stage,
    /// Whether its tool has begun, which clients were sent the call for.
    pub(super) sent: bool,
    /// Whether clients were sent the call with a request for its approval.
    pub(super) announced: bool,
    pub(super) answers: Vec<HumanAnswer>,
    pub(super) remarks: Vec<Content>,
    /// Whether the hooks before it have seen it.
    pub(super) hooked: bool,
    /// What hooks noted for the model.
    pub(super) notes: Vec<String>,
    /// The source of its result and of what hooks added.
    pub(super) source: Source,
    /// How often the call was made with the same result.
    pub(super) repeat_count: RepeatCount,
    /// The conversation of the sub-agent that the call runs.
    pub(super) sub_agent: Option<Box<Thread>>,
}

/// The progress of a call.
#[derive(Debug)]
pub(super) enum Stage {
    Open(OpenStage),
    AwaitingHuman,
    Returned(ToolOutcome, Source),
    Done(ToolOutcome),
}

impl CallState {
    pub(super) fn new(call: &ToolUse) -> Self {
        let stage = Stage::Open(OpenStage::New);
        let (answers, remarks) = (Vec::new(), Vec::new());
        Self {
            call: call.clone(),
            stage,
            sent: false,
            announced: false,
            answers,
            remarks,
            hooked: false,
            notes: Vec::new(),
            source: Source::Agent,
            repeat_count: RepeatCount::default(),
            sub_agent: None,
        }
    }

    /// Adds the source of a part of the result: once a tool's, it stays one.
    pub(super) fn add_source(&mut self, source: Source) {
        if self.source != Source::Tool {
            self.source = source;
        }
    }

    pub(super) fn to_open_call(&self) -> Option<OpenCall> {
        let (stage, returned) = match &self.stage {
            Stage::Open(stage) => (*stage, None),
            Stage::Returned(outcome, source) => (OpenStage::Returned, Some((outcome.clone(), *source))),
            Stage::AwaitingHuman | Stage::Done(_) => return None,
        };
        // A sub-agent that waits for the user does nothing until they have answered.
        if self.sub_agent.as_ref().is_some_and(|sub| matches!(sub.next_action(), NextAction::AwaitHuman(_))) {
            return None;
        }
        let (call, answers) = (self.call.clone(), self.answers.clone());
        let sent = self.sent || self.announced;
        Some(OpenCall { call, stage, sent, answers, hooked: self.hooked, returned })
    }

    pub(super) fn into_reply(self) -> ToolReply {
        let mut remarks = Vec::new();
        let (mut text, is_error) = match self.stage {
            Stage::Done(ToolOutcome { output, error, media, .. }) => {
                remarks = media;
                let is_error = error.is_some();
                (error.unwrap_or(output), is_error)
            }
            Stage::Returned(..) | Stage::Open(OpenStage::Returned) => (NOT_CHECKED.to_owned(), true),
            Stage::Open(OpenStage::Running) => (OUTCOME_UNKNOWN.to_owned(), true),
            // The tool had started and stopped at its question.
            Stage::Open(_) | Stage::AwaitingHuman if self.sent => (STOPPED_AT_QUESTION.to_owned(), true),
            Stage::Open(_) | Stage::AwaitingHuman => (NEVER_RUN.to_owned(), true),
        };
        for note in &self.notes {
            text.push_str("\n\n");
            text.push_str(note);
        }
        if let Some(warning) = self.repeat_count.warning() {
            text.push_str("\n\n");
            text.push_str(&warning);
        }
        remarks.extend(self.remarks);
        ToolReply { provider_id: self.call.provider_id, text, remarks, is_error }
    }
}
