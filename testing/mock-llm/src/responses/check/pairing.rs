//! The pairing of function calls and outputs: each call must have one output, which comes after it
//! (<https://platform.openai.com/docs/guides/function-calling>).

use super::super::read::{item_type, text_member};
use crate::openai::node::Node;
use crate::protocol::ApiError;

pub(super) fn check(items: &[Node<'_>]) -> Result<(), ApiError> {
    let mut open_calls: Vec<&str> = Vec::new();
    for item in items {
        let call_id = text_member(item.value, "call_id");
        match item_type(item.value) {
            "function_call" => open_calls.push(call_id),
            "function_call_output" => {
                let Some(position) = open_calls.iter().position(|call| *call == call_id) else {
                    return Err(input_error(&format!(
                        "No tool call found for function call output with call_id {call_id}."
                    )));
                };
                open_calls.remove(position);
            }
            _ => {}
        }
    }
    match open_calls.first() {
        None => Ok(()),
        Some(call) => Err(input_error(&format!("No tool output found for function call {call}."))),
    }
}

fn input_error(message: &str) -> ApiError {
    ApiError::invalid(message).with_param("input")
}
