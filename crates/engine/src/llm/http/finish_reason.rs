//! How an answer may end.

use crate::llm::{FinishReason, ModelError, ModelErrorKind};

/// The failure of a stream that ended before its answer was whole.
pub(in super::super) fn missing_end_marker() -> ModelError {
    ModelError::new(ModelErrorKind::Broken, "the provider's stream ended without its end mark")
}

/// The failure of a stream with an end mark that does not say why it ended: whoever broke it off may have sent the mark.
pub(in super::super) fn missing_finish_reason() -> ModelError {
    ModelError::new(ModelErrorKind::Broken, "the provider's stream ended without saying why")
}

/// Why an answer ended, as far as the provider has told.
#[derive(Debug, Default)]
pub(in super::super) struct RawFinishReason(Option<String>);

impl RawFinishReason {
    /// Takes what the provider tells: of some compatible servers also an empty text, of Gemini a word for nothing. Those
    /// take nothing back.
    pub(in super::super) fn record(&mut self, reason: Option<String>) {
        let says_something = |reason: &String| !matches!(reason.as_str(), "" | "FINISH_REASON_UNSPECIFIED");
        self.0 = reason.filter(says_something).or(self.0.take());
    }

    /// What it means; none where nothing was told.
    ///
    /// # Errors
    /// The provider broke the answer off.
    pub(in super::super) fn parse(&self) -> Result<Option<FinishReason>, ModelError> {
        self.0.as_deref().map(parse_finish_reason).transpose()
    }
}

/// Why an answer ended, in the words of all protocols: gateways that translate one into another pass on what they do not
/// know.
///
/// Gemini's are those of google-genai (`types.py`, `FinishReason`); its Chat Completions put more before or behind them
/// (`function_call_filter: MALFORMED_FUNCTION_CALL`). Z.ai's are in <https://docs.z.ai/api-reference/llm/chat-completion>.
fn parse_finish_reason(reason: &str) -> Result<FinishReason, ModelError> {
    let broken_off = |kind| ModelError::new(kind, format!("the provider broke its answer off: {reason}"));
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
        // DeepSeek's for a server that had to give up, Z.ai's, OpenRouter's for a provider that did, and that of SGLang
        // and vLLM for what was given up.
        "insufficient_system_resource" | "network_error" | "error" | "abort" => {
            return Err(broken_off(ModelErrorKind::Busy));
        }
        // The model wrote what is no call, or failed in a way that nobody knows: it may do better when asked again.
        "malformed_function_call"
        | "function_call_filter"
        | "unexpected_tool_call"
        | "too_many_tool_calls"
        | "malformed_response"
        | "other" => return Err(broken_off(ModelErrorKind::Broken)),
        "missing_thought_signature" => {
            let what = format!("the provider refused the history: {reason}");
            return Err(ModelError::new(ModelErrorKind::BrokenHistory, what));
        }
        _ => FinishReason::Done,
    })
}
