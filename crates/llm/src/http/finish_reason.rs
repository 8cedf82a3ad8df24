//! Interprets the reasons that providers give for the end of an answer.

use crate::{FinishReason, ModelError, ModelErrorKind};

/// The failure of a stream that ended before its answer was complete.
pub(in super::super) fn missing_end_marker() -> ModelError {
    ModelError::new(ModelErrorKind::Broken, "the provider's stream ended without its end marker")
}

/// The failure of a stream with an end marker but without a finish reason: an intermediary that cut it off may
/// have added the marker.
pub(in super::super) fn missing_finish_reason() -> ModelError {
    ModelError::new(ModelErrorKind::Broken, "the provider's stream ended without a finish reason")
}

/// The finish reason that the provider reported, if any.
#[derive(Debug, Default)]
pub(in super::super) struct RawFinishReason(Option<String>);

impl RawFinishReason {
    /// Records a reported reason. Some compatible servers also send an empty text, and Gemini a value for
    /// "unspecified"; those do not override an earlier reason.
    pub(in super::super) fn record(&mut self, reason: Option<String>) {
        let says_something = |reason: &String| !matches!(reason.as_str(), "" | "FINISH_REASON_UNSPECIFIED");
        self.0 = reason.filter(says_something).or(self.0.take());
    }

    /// Interprets the reason; `None` if none was reported.
    ///
    /// # Errors
    /// The provider broke off the answer.
    pub(in super::super) fn parse(&self) -> Result<Option<FinishReason>, ModelError> {
        self.0.as_deref().map(parse_finish_reason).transpose()
    }
}

/// Interprets a finish reason in the vocabulary of any protocol: gateways that translate between protocols pass on
/// values that they do not know.
///
/// Gemini's values are those of google-genai (`types.py`, `FinishReason`); its Chat Completions add text before or
/// after them (`function_call_filter: MALFORMED_FUNCTION_CALL`). Z.ai's are in
/// <https://docs.z.ai/api-reference/llm/chat-completion>.
fn parse_finish_reason(reason: &str) -> Result<FinishReason, ModelError> {
    let aborted = |kind| ModelError::new(kind, format!("the provider aborted its answer: {reason}"));
    let lowercase = reason.to_lowercase();
    let first = lowercase.split(':').next().unwrap_or_default().trim();
    Ok(match first {
        // Mistral's is `model_length`.
        "length" | "max_tokens" | "model_length" | "continuation" => FinishReason::Length,
        "model_context_window_exceeded" => FinishReason::ContextFull,
        // OpenAI's, Bedrock's, Z.ai's and Anthropic's; then Gemini's.
        "content_filter" | "content_filtered" | "guardrail_intervened" | "sensitive" | "refusal" => {
            FinishReason::Refusal
        }
        "safety"
        | "recitation"
        | "language"
        | "blocklist"
        | "prohibited_content"
        | "spii"
        | "image_safety"
        | "image_prohibited_content"
        | "image_recitation"
        | "escalation"
        | "model_armor"
        | "pup_limited_disabled" => FinishReason::Refusal,
        // DeepSeek's for a server that ran out of resources, Z.ai's, OpenRouter's for a provider that failed, and
        // SGLang's and vLLM's for an aborted request.
        "insufficient_system_resource" | "network_error" | "error" | "abort" => {
            return Err(aborted(ModelErrorKind::Busy));
        }
        // The model wrote a malformed call, or failed for an unknown reason: another attempt may succeed.
        "malformed_function_call"
        | "function_call_filter"
        | "unexpected_tool_call"
        | "too_many_tool_calls"
        | "malformed_response"
        | "other" => return Err(aborted(ModelErrorKind::Broken)),
        "missing_thought_signature" => {
            let message = format!("the provider refused the history: {reason}");
            return Err(ModelError::new(ModelErrorKind::BrokenHistory, message));
        }
        _ => FinishReason::Done,
    })
}
