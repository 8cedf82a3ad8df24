//! The rules of thought signatures (<https://ai.google.dev/gemini-api/docs/thought-signatures>): signatures must
//! be sent back unchanged, and the newest models require one on the first call of each step of the current turn.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::super::always_signs;
use super::super::error::{invalid, missing_signature};
use super::super::node::{Node, field, is_model, members_of_parts, parts};
use crate::issued::{IssuedAnswers, IssuedBlock};
use crate::protocol::ApiError;

/// The values that the vendor documents for calls that were not made by its models.
const DUMMY_SIGNATURES: [&str; 2] =
    ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"];

pub(super) fn check(
    contents: &[Node<'_>],
    model: &str,
    issued_answers: &IssuedAnswers,
) -> Result<(), ApiError> {
    let all_parts = contents.iter().flat_map(|content| parts(content.value));
    for part in all_parts {
        if let Some(signature) = field(part, "thoughtSignature").and_then(Value::as_str) {
            check_issued(signature, part, model, issued_answers)?;
        }
    }
    if always_signs(model) { check_present(contents) } else { Ok(()) }
}

/// Checks that a signature was issued by this model for this call, or for a text.
fn check_issued(
    signature: &str,
    part: &Value,
    model: &str,
    issued_answers: &IssuedAnswers,
) -> Result<(), ApiError> {
    let standard = standard_alphabet(signature);
    if is_dummy(signature, &standard) {
        return Ok(());
    }
    let location = issued_answers.find_sealed(&standard);
    let issued = location
        .and_then(|location| Some((issued_answers.block(location)?, issued_answers.answer(location)?)));
    match issued {
        Some((IssuedBlock::Part(issued), answer))
            if answer.model == model && is_same_call(issued.call.as_ref(), field(part, "functionCall")) =>
        {
            Ok(())
        }
        _ => Err(invalid("Corrupted thought signature.")),
    }
}

/// Whether two calls have the same name and arguments. Ids are not compared: older models have none.
fn is_same_call(issued: Option<&Value>, given: Option<&Value>) -> bool {
    match (issued, given) {
        (None, None) => true,
        (Some(issued), Some(given)) => {
            issued.get("name") == given.get("name") && arguments_or_empty(issued) == arguments_or_empty(given)
        }
        _ => false,
    }
}

/// The arguments of a call. If they are missing, an empty object.
fn arguments_or_empty(call: &Value) -> Value {
    call.get("args").cloned().unwrap_or_else(|| Value::Object(serde_json::Map::new()))
}

/// Checks that the calls of the current turn are signed. The turn begins after the user's last content that is not
/// a function response.
fn check_present(contents: &[Node<'_>]) -> Result<(), ApiError> {
    let is_user_message = |content: &Node<'_>| {
        !is_model(content.value) && members_of_parts(content.value, "functionResponse").next().is_none()
    };
    let start = contents.iter().rposition(is_user_message).unwrap_or(0);
    for (index, content) in contents.iter().enumerate().skip(start) {
        let first = parts(content.value).iter().find(|part| field(part, "functionCall").is_some());
        if let Some(part) = first
            && field(part, "thoughtSignature").and_then(Value::as_str).is_none_or(str::is_empty)
        {
            let name =
                field(part, "functionCall").and_then(|call| call.get("name")?.as_str()).unwrap_or_default();
            return Err(missing_signature(name, index + 1));
        }
    }
    Ok(())
}

/// Converts a signature to the standard alphabet of Base64. The vendor's SDK converts between the two.
fn standard_alphabet(signature: &str) -> String {
    signature.replace('-', "+").replace('_', "/")
}

/// Whether a signature is a dummy, as text or as the Base64 that an SDK makes of it.
fn is_dummy(signature: &str, standard: &str) -> bool {
    let is_bytes_of = |dummy: &str| STANDARD.decode(standard).is_ok_and(|bytes| bytes == dummy.as_bytes());
    DUMMY_SIGNATURES.iter().any(|dummy| signature == *dummy || is_bytes_of(dummy))
}
