//! The rules of a Messages request.
//!
//! Each rule is documented by the vendor, or known from refusals that users quote. The messages are as close to
//! the vendor's as known. First the fields are checked one by one, then the rules across messages, in the order in
//! which the vendor reports them.

mod cache;
mod content;
mod pairing;
mod sampling;
mod thinking;
mod tools;

use serde_json::Value;

use super::is_without_sampling;
use super::node::Node;
use crate::protocol::{ApiError, Context, IncomingRequest};

/// The parameters of `POST /v1/messages` in all versions.
const PARAMETERS: &[&str] = &[
    "model",
    "messages",
    "max_tokens",
    "system",
    "stream",
    "stop_sequences",
    "tools",
    "tool_choice",
    "thinking",
    "metadata",
    "service_tier",
    "output_config",
    "cache_control",
    "container",
    "inference_geo",
    "speed",
    "diagnostics",
];

/// Checks a request.
pub(super) fn check(request: &IncomingRequest, context: &Context<'_>) -> Result<(), ApiError> {
    let root = Node::root(&request.body);
    if !request.body.is_object() {
        return Err(ApiError::invalid("The request body is not valid JSON: a JSON object is expected"));
    }
    let sampling_parameters: &[&str] =
        if is_without_sampling(&request.headers) { &[] } else { sampling::PARAMETERS };
    root.only(&[PARAMETERS, sampling_parameters].concat())?;
    check_scalars(&root)?;
    let thinking = thinking::check_config(&root, &request.headers)?;
    sampling::check(&root, thinking)?;
    check_system(&root)?;
    tools::check(&root, thinking)?;
    let messages = root.required("messages")?.list()?;
    content::check_messages(&root, &messages)?;
    cache::check(&root)?;
    pairing::check(&messages)?;
    thinking::check_blocks(request, &messages, thinking, context)
}

fn check_scalars(root: &Node<'_>) -> Result<(), ApiError> {
    let model = root.required("model")?;
    if model.string()?.is_empty() {
        return Err(model.error("String should have at least 1 character"));
    }
    let max_tokens = root.required("max_tokens")?;
    if max_tokens.integer()? < 1 {
        return Err(max_tokens.error("Input should be greater than or equal to 1"));
    }
    if let Some(stream) = root.member("stream") {
        stream.boolean()?;
    }
    if let Some(tier) = root.member("service_tier") {
        tier.one_of(&["auto", "standard_only"])?;
    }
    if let Some(metadata) = root.member("metadata") {
        metadata.only(&["user_id"])?;
    }
    if let Some(sequences) = root.member("stop_sequences") {
        for sequence in sequences.list()? {
            if sequence.string()?.trim().is_empty() {
                return Err(ApiError::invalid(
                    "stop_sequences: each stop sequence must contain non-whitespace",
                ));
            }
        }
    }
    check_output_config(root)
}

fn check_output_config(root: &Node<'_>) -> Result<(), ApiError> {
    let Some(config) = root.member("output_config") else { return Ok(()) };
    config.only(&["effort", "format"])?;
    if let Some(effort) = config.member("effort") {
        effort.one_of(&["low", "medium", "high", "xhigh", "max"])?;
    }
    if let Some(format) = config.member("format") {
        format.only(&["type", "schema"])?;
        format.tag(&["json_schema"])?;
        let schema = format.required("schema")?;
        schema.object()?;
        check_output_schema(&schema)?;
    }
    Ok(())
}

/// Checks the schema of an answer, and each schema inside it
/// (<https://platform.claude.com/docs/en/build-with-claude/structured-outputs>).
fn check_output_schema(schema: &Node<'_>) -> Result<(), ApiError> {
    const UNSUPPORTED: &[&str] = &[
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
    ];
    if let Some(keyword) = UNSUPPORTED.iter().find(|keyword| schema.member(keyword).is_some()) {
        let message = format!("output_config.format.schema: property '{keyword}' is not supported");
        return Err(ApiError::invalid(message));
    }
    let is_object = schema.member("type").is_some_and(|kind| kind.value == "object");
    if is_object && schema.value.get("additionalProperties") != Some(&Value::Bool(false)) {
        return Err(ApiError::invalid(
            "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false",
        ));
    }
    if let Some(properties) = schema.member("properties") {
        let names = properties.object()?.keys();
        names.filter_map(|name| properties.member(name)).try_for_each(|each| check_output_schema(&each))?;
    }
    schema.member("items").map_or(Ok(()), |items| check_output_schema(&items))
}

fn check_system(root: &Node<'_>) -> Result<(), ApiError> {
    let Some(system) = root.member("system") else { return Ok(()) };
    if matches!(system.value, Value::String(_)) {
        return Ok(());
    }
    for block in system.list()? {
        block.tag(&["text"])?;
        content::check_text(&block, "system")?;
    }
    Ok(())
}
