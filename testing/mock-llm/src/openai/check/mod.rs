//! The rules of a Chat Completions request.
//!
//! Each rule is documented by the vendor, or known from refusals that users quote. The messages are as close to
//! the vendor's as known.

mod audio;
pub(crate) mod messages;
mod pairing;
pub(crate) mod tools;

use super::node::Node;
use crate::protocol::{ApiError, IncomingRequest, Settings};

/// The parameters of `POST /v1/chat/completions`.
const PARAMETERS: &[&str] = &[
    "model",
    "messages",
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "modalities",
    "moderation",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
];
pub(crate) const REASONING_EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// The prefixes of models that reason before they answer, which restricts other parameters.
pub(crate) const REASONING_MODELS: &[&str] = &["o1", "o3", "o4", "gpt-5"];

/// Checks a request.
pub(super) fn check(request: &IncomingRequest, settings: &Settings) -> Result<(), ApiError> {
    let root = Node::root(&request.body);
    let Some(members) = request.body.as_object() else {
        return Err(ApiError::invalid("We could not parse the JSON body of your request."));
    };
    let unknown: Vec<&str> =
        members.keys().map(String::as_str).filter(|name| !PARAMETERS.contains(name)).collect();
    if !unknown.is_empty() {
        let plural = if unknown.len() > 1 { "s" } else { "" };
        let names = unknown.join(", ");
        return Err(ApiError::invalid(format!("Unrecognized request argument{plural} supplied: {names}")));
    }
    match root.member("model") {
        Some(model) if !model.string()?.is_empty() => {}
        _ => return Err(ApiError::invalid("you must provide a model parameter")),
    }
    check_stream(&root)?;
    check_limits(&root)?;
    check_sampling(&root, request.model())?;
    if let Some(format) = root.member("response_format") {
        check_response_format(&format)?;
    }
    tools::check(&root)?;
    let messages = root.required("messages")?.non_empty_list()?;
    messages::check(&messages, settings)?;
    audio::check(&root, request.model(), &messages)?;
    pairing::check(&messages)
}

fn check_stream(root: &Node<'_>) -> Result<(), ApiError> {
    let streams = root.member("stream").map_or(Ok(false), |stream| stream.boolean())?;
    let Some(options) = root.member("stream_options") else { return Ok(()) };
    if !streams {
        let message = "The 'stream_options' parameter is only allowed when 'stream' is enabled.";
        return Err(ApiError::invalid(message).with_param("stream_options"));
    }
    options.only(&["include_usage", "include_obfuscation"])?;
    for name in ["include_usage", "include_obfuscation"] {
        if let Some(option) = options.member(name) {
            option.boolean()?;
        }
    }
    Ok(())
}

/// Checks the form of the answer (<https://platform.openai.com/docs/guides/structured-outputs>).
fn check_response_format(format: &Node<'_>) -> Result<(), ApiError> {
    let kind = format.required("type")?.one_of(&["text", "json_object", "json_schema"])?;
    if kind != "json_schema" {
        return format.only(&["type"]);
    }
    format.only(&["type", "json_schema"])?;
    let form = format.required("json_schema")?;
    form.only(&["name", "description", "schema", "strict"])?;
    check_json_schema(&form)
}

/// Checks a named schema of an answer. In strict mode, additional properties must be forbidden and all properties
/// required in each of its objects.
pub(crate) fn check_json_schema(form: &Node<'_>) -> Result<(), ApiError> {
    let name = form.required("name")?;
    tools::check_function_name(&name)?;
    if let Some(description) = form.member("description") {
        description.string()?;
    }
    let is_strict = form.member("strict").map_or(Ok(false), |strict| strict.boolean())?;
    let schema = form.required("schema")?;
    let members = schema.object()?;
    let name = name.string()?;
    let refuse = |detail: String| {
        Err(ApiError::invalid(format!("Invalid schema for response_format '{name}': {detail}"))
            .with_param(&schema.path)
            .with_code("invalid_json_schema"))
    };
    let kind = members.get("type").and_then(serde_json::Value::as_str).unwrap_or("None");
    if kind != "object" {
        let detail = format!("schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'.");
        return refuse(detail);
    }
    match tools::strict_violation(schema.value).filter(|_| is_strict) {
        Some(violation) => refuse(violation),
        None => Ok(()),
    }
}

fn check_limits(root: &Node<'_>) -> Result<(), ApiError> {
    let limits = [root.member("max_tokens"), root.member("max_completion_tokens")];
    for limit in limits.iter().flatten() {
        let value = limit.integer()?;
        if value < 1 {
            let detail =
                format!("integer below minimum value. Expected a value >= 1, but got {value} instead.");
            return Err(limit.invalid(&detail).with_code("integer_below_min_value"));
        }
    }
    if limits.iter().all(Option::is_some) {
        let message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.";
        return Err(ApiError::invalid(message)
            .with_param("max_tokens")
            .with_code("invalid_parameter_combination"));
    }
    if let Some(count) = root.member("n")
        && count.integer()? != 1
    {
        return Err(count.invalid("this provider answers with one choice."));
    }
    Ok(())
}

fn check_sampling(root: &Node<'_>, model: &str) -> Result<(), ApiError> {
    if let Some(effort) = root.member("reasoning_effort") {
        effort.one_of(REASONING_EFFORTS)?;
    }
    if let Some(verbosity) = root.member("verbosity") {
        verbosity.one_of(&["low", "medium", "high"])?;
    }
    let temperature =
        root.member("temperature").map(|temperature| temperature.number_within(0.0, 2.0)).transpose()?;
    if let Some(top_p) = root.member("top_p") {
        top_p.number_within(0.0, 1.0)?;
    }
    for name in ["frequency_penalty", "presence_penalty"] {
        if let Some(penalty) = root.member(name) {
            penalty.number_within(-2.0, 2.0)?;
        }
    }
    if !REASONING_MODELS.iter().any(|prefix| model.starts_with(prefix)) {
        return Ok(());
    }
    if root.member("max_tokens").is_some() {
        let message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use \
                       'max_completion_tokens' instead.";
        return Err(ApiError::invalid(message).with_param("max_tokens").with_code("unsupported_parameter"));
    }
    match temperature {
        Some(temperature) if (temperature - 1.0).abs() > f64::EPSILON => {
            let message = format!(
                "Unsupported value: 'temperature' does not support {temperature} with this model. Only the \
                 default (1) value is supported."
            );
            Err(ApiError::invalid(message).with_param("temperature").with_code("unsupported_value"))
        }
        _ => Ok(()),
    }
}
