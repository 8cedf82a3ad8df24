//! What the user is shown of a call that needs an approval: the text of the question, and the same as fields.

use std::sync::Arc;

use api::approvals::{
    ApprovalDecision, ApprovalPreview, ApprovalReason, ApprovalRequest, ApprovalRisk, PatternKind,
};
use api::{HitlId, Timestamp};
use llm::ToolUse;
use resources::threads::run_blocking;
use tools::{Question, Tool, approval, grants};

/// The most characters of a default pattern that are shown.
const MAX_SHOWN_PATTERN_CHARS: usize = 1_000;

/// What is shown of a call, except for what only its journal knows.
pub(super) struct ApprovalPrompt {
    preview: ApprovalPreview,
    risk: ApprovalRisk,
    reason: ApprovalReason,
    pattern_kind: Option<PatternKind>,
    default_pattern: Option<String>,
}

impl ApprovalPrompt {
    /// Prepares the question about a call. It may read files, and changes nothing.
    pub(super) async fn prepare(
        tool: Arc<dyn Tool>,
        reason: ApprovalReason,
        has_untrusted: bool,
        call: ToolUse,
    ) -> (Question, Self) {
        let default_text = approval::default_prompt(&call.name, &call.input);
        let default_preview = approval::input_preview(&call.input);
        let (risk, subject) = (tool.risk(), tool.grant_subject(&call.input));
        let render = move || (question_text(&*tool, reason, &call), tool.approval_preview(&call.input));
        let (text, preview) = run_blocking(render).await.unwrap_or((default_text, default_preview));
        let is_lasting = decisions_for(reason).contains(&ApprovalDecision::AllowTask);
        let subject = subject.filter(|_| is_lasting);
        let default_pattern = subject.as_ref().and_then(|subject| subject.default_pattern());
        let prompt = Self {
            preview,
            risk: if has_untrusted { raised(risk) } else { risk },
            reason,
            pattern_kind: subject.as_ref().map(tools::patterns::Subject::kind),
            default_pattern: default_pattern
                .map(|pattern| pattern.chars().take(MAX_SHOWN_PATTERN_CHARS).collect()),
        };
        (Question { text, options: None }, prompt)
    }

    /// The request about `call`, which the sub-agent `agent` makes, or the turn itself.
    pub(super) fn into_request(
        self,
        request_id: HitlId,
        call: &ToolUse,
        agent: Option<String>,
        created_at: Timestamp,
    ) -> ApprovalRequest {
        let Self { preview, risk, reason, pattern_kind, default_pattern } = self;
        ApprovalRequest {
            request_id,
            tool_call_id: call.call_id,
            tool: call.name.clone(),
            agent,
            input: call.input.clone(),
            preview,
            risk,
            reason,
            decisions: decisions_for(reason).to_vec(),
            pattern_kind,
            default_pattern,
            created_at,
        }
    }
}

/// The decisions that are possible about a call. A lasting approval would not prevent that the user is asked after
/// content that nobody has vouched for.
pub(super) fn decisions_for(reason: ApprovalReason) -> &'static [ApprovalDecision] {
    use ApprovalDecision::{AllowAlways, AllowOnce, AllowTask, Deny};
    match reason {
        ApprovalReason::UntrustedContent => &[AllowOnce, Deny],
        ApprovalReason::Permission | ApprovalReason::ToolChanged => {
            &[AllowOnce, AllowTask, AllowAlways, Deny]
        }
    }
}

/// The risk after content that nobody has vouched for, which may have led the model to the call.
fn raised(risk: ApprovalRisk) -> ApprovalRisk {
    match risk {
        ApprovalRisk::Low => ApprovalRisk::Medium,
        ApprovalRisk::Medium | ApprovalRisk::High => ApprovalRisk::High,
    }
}

/// The text of the question about a call.
fn question_text(tool: &dyn Tool, reason: ApprovalReason, call: &ToolUse) -> String {
    let mut text = tool.approval_prompt(&call.input);
    if reason == ApprovalReason::ToolChanged {
        text.push_str(&approval::changed_tool_notice(&tool.spec().description));
    }
    match tool.command(&call.input) {
        Some(command) => format!("{text}\n\n{}", grants::describe_scope(&command)),
        None => text,
    }
}
