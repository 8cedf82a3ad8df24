//! The pairing of function calls and responses (<https://ai.google.dev/gemini-api/docs/function-calling>): a turn
//! with calls follows a user turn or responses, and the next turn has one response per call.

use serde_json::Value;

use super::super::error::invalid;
use super::super::node::{Node, is_model, members_of_parts};
use crate::protocol::ApiError;

const RESPONSE_COUNT_MISMATCH: &str = "Please ensure that the number of function response parts is equal to the number of \
                            function call parts of the function call turn.";

pub(super) fn check(contents: &[Node<'_>]) -> Result<(), ApiError> {
    for (index, content) in contents.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| contents.get(before));
        let calls: Vec<&Value> = members_of_parts(content.value, "functionCall").collect();
        let responds = members_of_parts(content.value, "functionResponse").next().is_some();
        if !calls.is_empty() {
            if before.is_none_or(|before| is_model(before.value)) {
                return Err(invalid(
                    "Please ensure that function call turn comes immediately after a user turn or after a function \
                     response turn.",
                ));
            }
            check_answered(&calls, contents.get(index + 1))?;
        }
        if responds
            && before.is_none_or(|before| members_of_parts(before.value, "functionCall").next().is_none())
        {
            return Err(invalid(
                "Please ensure that function response turn comes immediately after a function call turn.",
            ));
        }
    }
    Ok(())
}

fn check_answered(calls: &[&Value], next: Option<&Node<'_>>) -> Result<(), ApiError> {
    let responses: Vec<&Value> =
        next.map(|next| members_of_parts(next.value, "functionResponse").collect()).unwrap_or_default();
    if responses.len() != calls.len() {
        return Err(invalid(RESPONSE_COUNT_MISMATCH));
    }
    // The vendor matches responses to calls leniently, but a client should not rely on that.
    let mut open = calls.to_vec();
    for response in responses {
        let Some(position) = open.iter().position(|call| answers(response, call)) else {
            return Err(invalid(
                "Please ensure that every function response part has the name and the id of its call.",
            ));
        };
        open.remove(position);
    }
    Ok(())
}

fn answers(response: &Value, call: &Value) -> bool {
    let id = response.get("id");
    response.get("name") == call.get("name") && (id.is_none() || id == call.get("id"))
}
