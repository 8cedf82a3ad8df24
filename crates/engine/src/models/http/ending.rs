//! How an answer may end.

use crate::models::{ModelError, ModelErrorKind, StopCause};

/// The failure of a stream that ended before its answer was whole.
pub(in super::super) fn ended_early() -> ModelError {
    ModelError::new(ModelErrorKind::Broken, "the provider's stream ended without its end mark")
}

/// The failure of a stream with an end mark that does not say why it ended: whoever broke it off may have sent the mark.
pub(in super::super) fn no_reason() -> ModelError {
    ModelError::new(ModelErrorKind::Broken, "the provider's stream ended without saying why")
}

/// Why an answer ended, in the words of Chat Completions, of Messages, and of those after them: gateways that translate
/// one protocol into the other pass on the words that they do not know. None of an empty text, which says nothing.
///
/// # Errors
/// The provider broke the answer off.
pub(in super::super) fn stop_cause(reason: &str) -> Result<Option<StopCause>, ModelError> {
    Ok(Some(match reason.to_lowercase().as_str() {
        "" => return Ok(None),
        // Mistral's is `model_length`.
        "length" | "max_tokens" | "model_length" => StopCause::Length,
        // Anthropic's and Z.ai's, as `sensitive` and `network_error` are Z.ai's
        // (<https://docs.z.ai/api-reference/llm/chat-completion>).
        "model_context_window_exceeded" => StopCause::ContextFull,
        "content_filter" | "sensitive" | "refusal" => StopCause::Refusal,
        // DeepSeek's for a server that had to give up, OpenRouter's for a provider that did, and that of SGLang and vLLM
        // for what was given up.
        "insufficient_system_resource" | "network_error" | "error" | "abort" => {
            let what = format!("the provider broke its answer off: {reason}");
            return Err(ModelError::new(ModelErrorKind::Busy, what));
        }
        _ => StopCause::Done,
    }))
}
