//! The errors that differ from those of Chat Completions, and the events of errors within a stream.

use bytes::Bytes;
use serde_json::json;

use super::response::Response;
use crate::fault::Refusal;
use crate::openai;
use crate::protocol::{ApiError, StreamPosition};
use crate::transcript::single_event;

/// An error within a stream: an `error` event, then the failed response, as in the recorded stream
/// `openai-error.1.chunks.txt` of
/// <https://github.com/vercel/ai/tree/main/packages/openai/src/responses/__fixtures__>.
pub(super) fn events(error: &ApiError, position: &StreamPosition<'_>) -> Bytes {
    let code = error.code.unwrap_or(&error.kind);
    let first = json!({
        "type": "error", "sequence_number": position.events,
        "error": {"type": error.kind, "code": code, "message": error.message, "param": error.param},
    });
    let failed = Response::new(position.request, position.number).failed(code, &error.message);
    let last = json!({
        "type": "response.failed", "sequence_number": position.events + 1, "response": failed,
    });
    let events = [single_event(Some("error"), &first), single_event(Some("response.failed"), &last)];
    events.concat().into()
}

/// A scripted refusal.
pub(super) fn refusal(refusal: &Refusal, model: &str) -> ApiError {
    match refusal {
        Refusal::PromptTooLong => ApiError::invalid(
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
        )
        .with_param("input")
        .with_code("context_length_exceeded"),
        Refusal::BrokenHistory => unverified_content("gAAAAABlost"),
        _ => openai::error::refusal(refusal, model),
    }
}

/// The error for encrypted content that this provider did not issue.
pub(super) fn unverified_content(encrypted_content: &str) -> ApiError {
    let characters: Vec<char> = encrypted_content.chars().collect();
    let shown: String = match (characters.first_chunk::<4>(), characters.last_chunk::<4>()) {
        (Some(first), Some(last)) => first.iter().chain(&['.'; 3]).chain(last).collect(),
        _ => encrypted_content.to_owned(),
    };
    ApiError::invalid(format!(
        "The encrypted content {shown} could not be verified. Reason: Encrypted content could not be decrypted or \
         parsed."
    ))
    .with_code("invalid_encrypted_content")
}

/// The error for encrypted content under the id of another item.
pub(super) fn mismatched_item_id(item_id: &str) -> ApiError {
    ApiError::invalid(format!(
        "The encrypted content for item {item_id} could not be verified. Reason: Encrypted content item_id did not \
         match the target item id."
    ))
    .with_code("invalid_encrypted_content")
}
