//! The rules of a Responses request.
//!
//! Each rule is documented by the vendor, or known from refusals that users quote. The messages are as close to
//! the vendor's as known.

mod items;
mod pairing;
mod reasoning;
mod tools;

use crate::issued::IssuedAnswers;
use crate::openai::check::{REASONING_EFFORTS, REASONING_MODELS, check_json_schema};
use crate::openai::node::Node;
use crate::protocol::{ApiError, IncomingRequest};

/// The parameters of `POST /v1/responses`.
const PARAMETERS: &[&str] = &[
    "model",
    "input",
    "background",
    "context_management",
    "conversation",
    "include",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "moderation",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
];
const INCLUDABLE_VALUES: &[&str] = &[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
];
/// The prefixes of models that do not reason, and refuse requests for reasoning.
const NON_REASONING_MODELS: &[&str] = &["gpt-3.5", "gpt-4", "chatgpt-4o"];
const MIN_OUTPUT_TOKENS: i64 = 16;

/// Checks a request.
pub(super) fn check(request: &IncomingRequest, issued_answers: &IssuedAnswers) -> Result<(), ApiError> {
    let root = Node::root(&request.body);
    if !request.body.is_object() {
        return Err(ApiError::invalid("We could not parse the JSON body of your request."));
    }
    root.only(PARAMETERS)?;
    root.required("model")?.string()?;
    check_stateless(&root)?;
    check_scalars(&root)?;
    check_reasoning_settings(&root, request.model())?;
    tools::check(&root)?;
    let input = root.required("input")?;
    if input.value.is_string() {
        return Ok(());
    }
    let items = input.list()?;
    items.iter().try_for_each(items::check)?;
    pairing::check(&items)?;
    reasoning::check(&items, request.model(), issued_answers)
}

/// Refuses references to server-side state, because this provider keeps none.
fn check_stateless(root: &Node<'_>) -> Result<(), ApiError> {
    if let Some(previous) = root.member("previous_response_id") {
        let message = format!("Previous response with id '{}' not found.", previous.string()?);
        return Err(ApiError::invalid(message)
            .with_param("previous_response_id")
            .with_code("previous_response_not_found"));
    }
    match ["background", "conversation", "prompt"].into_iter().find_map(|name| root.member(name)) {
        Some(unsupported) if unsupported.value != &serde_json::Value::Bool(false) => {
            Err(unsupported.invalid("this provider keeps no state."))
        }
        _ => Ok(()),
    }
}

fn check_scalars(root: &Node<'_>) -> Result<(), ApiError> {
    for name in ["stream", "store", "parallel_tool_calls"] {
        if let Some(flag) = root.member(name) {
            flag.boolean()?;
        }
    }
    for name in ["instructions", "prompt_cache_key", "safety_identifier", "user"] {
        if let Some(text) = root.member(name) {
            text.string()?;
        }
    }
    if let Some(limit) = root.member("max_output_tokens") {
        let value = limit.integer()?;
        if value < MIN_OUTPUT_TOKENS {
            let detail = format!(
                "integer below minimum value. Expected a value >= {MIN_OUTPUT_TOKENS}, but got {value} instead."
            );
            return Err(limit.invalid(&detail).with_code("integer_below_min_value"));
        }
    }
    if let Some(text) = root.member("text") {
        text.only(&["format", "verbosity"])?;
        if let Some(format) = text.member("format") {
            check_format(&format)?;
        }
        if let Some(verbosity) = text.member("verbosity") {
            verbosity.one_of(&["low", "medium", "high"])?;
        }
    }
    if let Some(truncation) = root.member("truncation") {
        truncation.one_of(&["auto", "disabled"])?;
    }
    match root.member("include") {
        Some(include) => {
            include.list()?.iter().try_for_each(|wanted| wanted.one_of(INCLUDABLE_VALUES).map(|_| ()))
        }
        None => Ok(()),
    }
}

/// Checks the form of the answer, which is flat on this wire.
fn check_format(format: &Node<'_>) -> Result<(), ApiError> {
    if format.required("type")?.one_of(&["text", "json_object", "json_schema"])? != "json_schema" {
        return format.only(&["type"]);
    }
    format.only(&["type", "name", "description", "schema", "strict"])?;
    check_json_schema(format)
}

fn check_reasoning_settings(root: &Node<'_>, model: &str) -> Result<(), ApiError> {
    let has_prefix = |prefixes: &[&str]| prefixes.iter().any(|prefix| model.starts_with(prefix));
    let unsupported = |parameter: &str| {
        let message = format!("Unsupported parameter: '{parameter}' is not supported with this model.");
        Err(ApiError::invalid(message).with_param(parameter).with_code("unsupported_parameter"))
    };
    if let Some(reasoning) = root.member("reasoning") {
        reasoning.only(&["effort", "summary", "generate_summary", "context", "mode"])?;
        if let Some(effort) = reasoning.member("effort") {
            effort.one_of(REASONING_EFFORTS)?;
            if has_prefix(NON_REASONING_MODELS) {
                return unsupported("reasoning.effort");
            }
        }
        if let Some(summary) = reasoning.member("summary") {
            summary.one_of(&["concise", "detailed", "auto"])?;
        }
    }
    let wants_encrypted = root.member("include").is_some_and(|include| {
        include
            .value
            .as_array()
            .is_some_and(|values| values.iter().any(|value| value == "reasoning.encrypted_content"))
    });
    if wants_encrypted && has_prefix(NON_REASONING_MODELS) {
        let message = "Encrypted content is not supported with this model.";
        return Err(ApiError::invalid(message).with_param("include"));
    }
    if let Some(temperature) = root.member("temperature") {
        temperature.number_within(0.0, 2.0)?;
        if has_prefix(REASONING_MODELS) {
            return unsupported("temperature");
        }
    }
    if let Some(top_p) = root.member("top_p") {
        top_p.number_within(0.0, 1.0)?;
    }
    Ok(())
}
