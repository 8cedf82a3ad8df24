//! The user's decision about a call: what it may change, and how it is checked. Pure.

use api::approvals::{ApprovalDecision, ApprovalReason, ApprovalRespond};
use catalog::Permission;
use llm::ToolUse;
use serde_json::Value;
use tools::{ToolError, Toolbox, patterns};

use super::AgentError;
use super::approval_prompt::decisions_for;

/// The maximum length of a word to the agent, in characters.
const MAX_MESSAGE_CHARS: usize = 4_000;
/// The maximum size of a changed input, in bytes. The longest file that can be written fits.
const MAX_INPUT_BYTES: usize = 2 * 1024 * 1024;

/// Why a request takes no lasting approval.
pub(super) const ASKED_EACH_TIME: &str =
    "the user is asked about each call of this tool in this conversation";

/// What the answer to an approval request says beside the words of a HITL answer.
#[derive(Debug)]
pub(super) struct ApprovalAnswer {
    pub(super) decision: ApprovalDecision,
    /// What a lasting approval covers.
    pub(super) pattern: Option<String>,
    /// The input that the call is to run with.
    pub(super) input: Option<Value>,
}

impl ApprovalAnswer {
    /// The answer, and the user's word to the agent.
    pub(super) fn parse(respond: ApprovalRespond) -> Result<(Self, Option<String>), AgentError> {
        let ApprovalRespond { decision, pattern, input, message } = respond;
        let invalid = |message: String| Err(AgentError::Invalid(message));
        let is_lasting = matches!(decision, ApprovalDecision::AllowTask | ApprovalDecision::AllowAlways);
        if pattern.is_some() && !is_lasting {
            return invalid("`pattern`: is allowed only with `allow_task` and `allow_always`".into());
        }
        if input.is_some() && decision == ApprovalDecision::Deny {
            return invalid("`input`: is not allowed with `deny`".into());
        }
        if let Some(input) = &input {
            if !input.is_object() {
                return invalid("`input`: must be an object, like the input of the call".into());
            }
            if input.to_string().len() > MAX_INPUT_BYTES {
                return invalid(format!("`input`: must be at most {MAX_INPUT_BYTES} bytes of JSON"));
            }
        }
        let message = message.filter(|message| !message.trim().is_empty());
        if message.as_ref().is_some_and(|message| message.chars().count() > MAX_MESSAGE_CHARS) {
            return invalid(format!("`message`: must be at most {MAX_MESSAGE_CHARS} characters long"));
        }
        Ok((Self { decision, pattern, input }, message))
    }

    /// Checks the answer to a request about `call`. A changed input has to pass what the model's own has passed.
    pub(super) fn validate(
        &self,
        reason: Option<ApprovalReason>,
        call: &ToolUse,
        toolbox: &Toolbox,
    ) -> Result<(), AgentError> {
        let invalid = |message: String| Err(AgentError::Invalid(message));
        if reason.is_some_and(|reason| !decisions_for(reason).contains(&self.decision)) {
            return invalid(format!("`decision`: {ASKED_EACH_TIME}; it must be `allow_once` or `deny`"));
        }
        if self.input.is_none() && self.pattern.is_none() {
            return Ok(());
        }
        let Some(tool) = toolbox.find(&call.name) else {
            return invalid(format!("there is no tool called `{}` any more", call.name));
        };
        if toolbox.permission(&call.name, &*tool) == Permission::Deny {
            return invalid(format!("the tool `{}` is not permitted", call.name));
        }
        if let Some(input) = &self.input {
            let checked = toolbox.validate_input(&call.name, input).and_then(|()| {
                let delegated = tool.sub_agent(input).transpose().map(|_| ());
                delegated.and_then(|()| tool.check_input(input)).map_err(|ToolError(reason)| reason)
            });
            if let Err(reason) = checked {
                return invalid(format!("`input`: {reason}"));
            }
        }
        if let Some(pattern) = &self.pattern {
            let subject = tool.grant_subject(self.input.as_ref().unwrap_or(&call.input));
            if let Err(reason) = patterns::validate(pattern, subject.as_ref()) {
                return invalid(format!("`pattern`: {reason}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "../../tests/unit/agent/approval_answer.rs"]
mod tests;
