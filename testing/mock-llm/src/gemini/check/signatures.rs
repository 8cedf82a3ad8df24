//! Thought signatures (<https://ai.google.dev/gemini-api/docs/thought-signatures>): those that come back are as they
//! were issued, and the newest models want one on the first call of each step of the current turn.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::super::always_signs;
use super::super::error::{invalid, missing_signature};
use super::super::node::{Node, field, is_model, members_of_parts, parts};
use crate::issued::{IssuedAnswers, IssuedBlock};
use crate::protocol::ApiError;

/// What the vendor documents for calls that none of its models made.
const DUMMY_SIGNATURES: [&str; 2] =
    ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"];

pub(super) fn check(contents: &[Node<'_>], model: &str, ledger: &IssuedAnswers) -> Result<(), ApiError> {
    let all_parts = contents.iter().flat_map(|content| parts(content.value));
    for part in all_parts {
        if let Some(signature) = field(part, "thoughtSignature").and_then(Value::as_str) {
            check_issued(signature, part, model, ledger)?;
        }
    }
    if always_signs(model) { check_present(contents) } else { Ok(()) }
}

/// A signature is one that was issued to this model for this call, or for a text.
fn check_issued(signature: &str, part: &Value, model: &str, ledger: &IssuedAnswers) -> Result<(), ApiError> {
    let standard = standard_alphabet(signature);
    if is_dummy(signature, &standard) {
        return Ok(());
    }
    let place = ledger.find_sealed(&standard);
    let issued = place.and_then(|place| Some((ledger.block(place)?, ledger.answer(place)?)));
    match issued {
        Some((IssuedBlock::Part(issued), answer))
            if answer.model == model && is_same_call(issued.call.as_ref(), field(part, "functionCall")) =>
        {
            Ok(())
        }
        _ => Err(invalid("Corrupted thought signature.")),
    }
}

/// A call's id may be left out: the older models have none.
fn is_same_call(issued: Option<&Value>, given: Option<&Value>) -> bool {
    match (issued, given) {
        (None, None) => true,
        (Some(issued), Some(given)) => {
            issued.get("name") == given.get("name") && arguments_or_empty(issued) == arguments_or_empty(given)
        }
        _ => false,
    }
}

/// Left out they are the same as none.
fn arguments_or_empty(call: &Value) -> Value {
    call.get("args").cloned().unwrap_or_else(|| Value::Object(serde_json::Map::new()))
}

/// Only the current turn is checked: what follows the last content of the user that is no response.
fn check_present(contents: &[Node<'_>]) -> Result<(), ApiError> {
    let speaks = |content: &Node<'_>| {
        !is_model(content.value) && members_of_parts(content.value, "functionResponse").next().is_none()
    };
    let start = contents.iter().rposition(speaks).unwrap_or(0);
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

/// Bytes are written in either alphabet, and the vendor's SDK changes it on the way.
fn standard_alphabet(signature: &str) -> String {
    signature.replace('-', "+").replace('_', "/")
}

/// A dummy as it stands, or as the bytes that an SDK makes of it.
fn is_dummy(signature: &str, standard: &str) -> bool {
    let is_bytes_of = |dummy: &str| STANDARD.decode(standard).is_ok_and(|bytes| bytes == dummy.as_bytes());
    DUMMY_SIGNATURES.iter().any(|dummy| signature == *dummy || is_bytes_of(dummy))
}
